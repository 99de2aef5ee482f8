"""Runs and sweeps as they lie on disk: what they were, how far they came, and every metric that they wrote.

Everything here is data that somebody else may have written: files are read up to a bound, links inside a folder are not
followed, numbers are checked to be numbers, and what cannot be read costs the run a note, not the report. A run may be
under way, or killed in the middle of a line.
"""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import socket
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rlx.config import PYTHON, parse
from rlx.config.text import leaves
from rlx.errors import UserError, shown
from rlx.files import open_regular, read_bounded
from rlx.reporting import shortest
from rlx.run_folder import ERROR_FILE, HOLDER, LOCK, RESUMES
from rlx.sweeps.manifest import FILE as SWEEP_FILE
from rlx.sweeps.manifest import Job, Sweep, is_sweep

STATES = ("done", "running", "failed", "interrupted", "paused", "pruned", "waiting")
UNDER_WAY = ("running", "waiting")
GONE = "Its process is gone; it ended without a summary."
RECORDS = ("config.yaml", "metrics.jsonl", "summary.json")  # one of these makes a folder a run
INTERRUPTED = ("interrupted", "terminated")  # stop reasons of a run that is to be resumed
COUNTERS = ("env_steps", "updates", "epoch", "wall_time")  # in every row, beside its metrics
MOST_RUNS = 10_000  # that one report reads
MOST_METRICS = 300  # of one run; a name beyond them is left out
LONGEST = 200  # characters of a name
TAIL = 2**14  # bytes of the end of a log
TAIL_LINES = 15
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")  # colours of a terminal


class Curve(NamedTuple):
    """One metric of one run, a value per row that has it."""

    env_steps: np.ndarray
    updates: np.ndarray
    wall_time: np.ndarray
    values: np.ndarray

    def over(self, axis: str) -> tuple[np.ndarray, np.ndarray]:
        """Ascending x and its values; of rows that share an x, the last."""
        x = np.asarray(getattr(self, axis), float)
        order = np.argsort(x, kind="stable")
        x, y = x[order], self.values[order]
        last = np.append(x[1:] != x[:-1], True) if len(x) else np.zeros(0, bool)
        return x[last], y[last]


@dataclass
class Run:
    """A run folder, or a job of a sweep that has none yet."""

    path: Path
    name: str  # of its folder, made unique among the runs of a report
    state: str  # one of STATES
    reason: str = ""  # why it ended so
    sweep: str = ""
    number: int | None = None  # of its job
    algo: str = ""
    env: str = ""
    seed: int | None = None
    choices: dict[str, str] = field(default_factory=dict)  # what was asked for: overrides, choices by name
    command: str = ""
    started: str = ""
    ended: str = ""
    env_steps: int | None = None
    updates: int | None = None
    wall_time: float | None = None  # seconds of training
    final: float | None = None  # return of the last evaluation
    best: float | None = None
    final_std: float | None = None  # over the episodes of the last evaluation
    episodes: int | None = None  # of an evaluation
    versions: dict[str, str] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)  # flat: dotted key to value, interpolations as written
    curves: dict[str, Curve] = field(default_factory=dict)  # by metric
    kinds: dict[str, str] = field(default_factory=dict)  # by metric: train or eval
    log: list[str] = field(default_factory=list)  # last lines
    notes: list[str] = field(default_factory=list)  # what could not be read

    @property
    def steps_per_second(self) -> float | None:
        """Env steps, or updates where there are none, for each second of training."""
        steps = self.env_steps or self.updates
        return steps / self.wall_time if steps and self.wall_time else None

    @property
    def ended_well(self) -> bool:
        """Whether what it reached may be compared with others: it was not stopped half-way."""
        return self.state == "done" and self.final is not None


@dataclass
class Collection:
    """What a report is about."""

    paths: list[Path]
    runs: list[Run]
    sweeps: list[Sweep]
    notes: list[str]

    @property
    def under_way(self) -> bool:
        """Whether more is to come: a sweep that has not ended, or a run that has not."""
        ended = {sweep.folder for sweep in self.sweeps if sweep.ended}
        return any(run.state in UNDER_WAY and run.path.parent not in ended for run in self.runs)


def read_all(paths: Sequence[str | Path]) -> Collection:
    """All runs and sweeps at some paths: their folders, or folders of them. UserError where there are none."""
    runs: list[Run] = []
    sweeps: list[Sweep] = []
    notes: list[str] = []
    folders = [Path(path).expanduser() for path in paths]
    for path in folders:
        if not path.is_dir():
            raise UserError(
                f"{shown(path)} is not a folder; give the folder of a run or of a sweep, for example one below "
                "multirun_outputs."
            )
        before = len(runs)
        for item in _runs_and_sweeps(path, notes):
            if isinstance(item, Sweep):
                sweeps.append(item)
                runs += [read_job(item, job) for job in item.jobs[: MOST_RUNS + 1]]
            else:
                runs.append(read_run(item))
            if len(runs) > MOST_RUNS:
                raise UserError(f"{shown(path)} holds more than {MOST_RUNS:,} runs; give fewer of them.")
        if len(runs) == before:
            raise UserError(f"{shown(path)} holds no run (a folder with config.yaml) and no sweep (sweep.json).")
    unique = {os.path.realpath(run.path): run for run in runs}  # a run that was given twice counts once
    runs = list(unique.values())
    _name_envs(runs)
    _make_names_unique(runs)
    return Collection(folders, runs, sweeps, notes)


def _runs_and_sweeps(path: Path, notes: list[str], depth: int = 3) -> Iterator[Path | Sweep]:
    """Run folders and sweeps at or below a folder; links below it are left out."""
    if is_sweep(path):
        try:
            yield Sweep.load(path)
            return
        except UserError as error:
            notes.append(f"{shown(error)} Its runs are shown one by one.")
    elif any(os.path.lexists(path / name) for name in RECORDS):
        yield path
        return
    if depth:
        for child in sorted(os.scandir(path), key=lambda entry: _natural(entry.name)):
            if child.is_symlink():
                notes.append(f"{shown(child.name)} is a link and was left out.")
            elif child.is_dir():
                yield from _runs_and_sweeps(Path(child.path), notes, depth - 1)


def records(paths: Sequence[str | Path]) -> list[Path]:
    """The files whose change means that there is news of a run or a sweep."""
    files: list[Path] = []
    for path in paths:
        for item in _runs_and_sweeps(Path(path).expanduser(), []):
            folders = [item.job_folder(job) for job in item.jobs] if isinstance(item, Sweep) else [item]
            files += [item.folder / SWEEP_FILE] if isinstance(item, Sweep) else []
            files += [folder / name for folder in folders for name in RECORDS]
    return files


def _natural(name: str) -> list[tuple[int, int | str]]:
    """Sorts 2 before 10."""
    return [(0, int(part)) if part.isdecimal() else (1, part) for part in re.split(r"(\d{1,18})", name)]


def _name_envs(runs: Iterable[Run]) -> None:
    """A job that has not begun knows the choice, not the id: it is that of a run with the same choice."""

    def choice(run: Run) -> tuple[str, str | None, str | None]:
        return run.sweep, run.choices.get("env"), run.choices.get("env.id")

    ids = {choice(run): run.env for run in runs if run.config}
    for run in runs:
        if not run.config and run.sweep:
            run.env = ids.get(choice(run), run.env)


def _make_names_unique(runs: Iterable[Run]) -> None:
    seen: dict[str, int] = {}
    for run in runs:
        count = seen[run.name] = seen.get(run.name, 0) + 1
        if count > 1:
            run.name = f"{run.path.parent.name}/{run.name}" if run.path.parent.name else f"{run.name} ({count})"
            run.name = run.name if run.name not in seen else f"{run.name} ({count})"
            seen[run.name] = 1


# -- one run -----------------------------------------------------------------------------------------------------------


def read_run(folder: Path) -> Run:
    """A run folder, whatever state it is in."""
    run = Run(folder, shown(folder.resolve().name, LONGEST), "running")
    _read_config(run)
    _read_overrides(run)
    _read_metrics(run)
    _read_summary(run)
    _read_tails(run)
    if run.wall_time is None and run.curves:
        run.wall_time = max(float(curve.wall_time[-1]) for curve in run.curves.values())
    for counter in ("env_steps", "updates"):
        if getattr(run, counter) is None and run.curves:
            setattr(run, counter, int(max(float(getattr(curve, counter)[-1]) for curve in run.curves.values())))
    returns = run.curves.get("eval/return_mean")
    if returns is not None:
        run.final = float(returns.values[-1]) if run.final is None else run.final
        run.best = float(returns.values.max()) if run.best is None else run.best
    spread = run.curves.get("eval/return_std")
    if spread is not None:
        run.final_std = float(spread.values[-1])
    return run


def _read_config(run: Run) -> None:
    try:
        values = parse(read_bounded(run.path / "config.yaml", follow=False).decode())
    except FileNotFoundError:
        return
    except (OSError, UnicodeDecodeError, UserError) as error:
        run.notes.append(f"config.yaml cannot be read ({shown(error)}).")
        return
    run.config = {shown(key, LONGEST): value for key, value in leaves(values)}
    get = run.config.get
    run.algo, run.env = _text(get("algo.name")), _text(get("env.id"))
    run.seed = get("seed") if _is_integer(get("seed")) else None
    run.episodes = get("trainer.eval_episodes") if _is_integer(get("trainer.eval_episodes")) else None


def _read_overrides(run: Run) -> None:
    try:
        typed = parse(read_bounded(run.path / "overrides.yaml", follow=False).decode())
        resumes = run.path / RESUMES
        again = parse(read_bounded(resumes, follow=False).decode()) if os.path.lexists(resumes) else []
    except FileNotFoundError:
        return
    except (OSError, UnicodeDecodeError, UserError) as error:
        run.notes.append(f"What was asked for cannot be read ({shown(error)}).")
        return
    overrides = [str(item) for item in typed] if isinstance(typed, list) else []
    run.choices = as_choices(overrides)
    run.command = command_of(overrides)
    if str(run.config.get("env.id")).startswith(PYTHON) or "dataset=in_memory" in overrides:
        run.command = f"rlx.train({', '.join(map(repr, overrides))})  # and the objects that it was given"
    for entry in again if isinstance(again, list) else ():
        later = entry.get("overrides") if isinstance(entry, dict) else None
        changes = [str(item) for item in later] if isinstance(later, list) else []
        run.command += f"\n{shlex.join(['python', '-m', 'rlx', 'resume', shortest(run.path), *changes])}"


def as_choices(overrides: Iterable[str]) -> dict[str, str]:
    """KEY=VALUE of overrides; what is removed (~key) is "none"."""
    pairs = (override.partition("=") for override in overrides)
    return {
        shown(key.lstrip("+~"), LONGEST): "none" if key.startswith("~") else shown(value, LONGEST)
        for key, _, value in pairs
    }


def command_of(overrides: Sequence[str]) -> str:
    return shlex.join(["python", "-m", "rlx", *(shown(override, 2000) for override in overrides)])


def _read_metrics(run: Run) -> None:
    try:
        data = read_bounded(run.path / "metrics.jsonl", follow=False)
    except FileNotFoundError:
        return
    except OSError as error:
        run.notes.append(f"metrics.jsonl cannot be read ({shown(error.strerror)}).")
        return
    lines = data.split(b"\n")
    if lines.pop():  # a whole file ends in a newline
        run.notes.append("metrics.jsonl ends in the middle of a row, which is left out.")
    columns: dict[str, list[tuple[float, float, float, float]]] = {}
    damaged = 0
    for line in lines:
        try:
            row = json.loads(line)
            at = float(row["env_steps"]), float(row["updates"]), float(row["wall_time"])
            if not all(map(math.isfinite, at)):
                raise ValueError(at)
        except (ValueError, TypeError, LookupError, OverflowError, RecursionError):
            damaged += bool(line.strip())
            continue
        kind = "eval" if row.get("kind") == "eval" else "train"
        for name, value in row.items():
            if name in COUNTERS or not is_number(value):
                continue
            name = shown(name, LONGEST)
            if name not in columns:
                if len(columns) >= MOST_METRICS:
                    continue
                columns[name], run.kinds[name] = [], kind
            columns[name].append((*at, float(value)))
    if damaged:
        run.notes.append(f"{damaged} of the rows in metrics.jsonl cannot be read and are left out.")
    run.curves = {name: Curve(*np.array(rows, float).T) for name, rows in columns.items()}


def _read_summary(run: Run) -> None:
    """What the run came to, and from this its state: whoever has a summary has ended."""
    if not os.path.lexists(run.path / "summary.json"):
        run.state, run.reason = _state_without_summary(run.path)
        return
    try:
        summary = _json(run.path / "summary.json")
    except (OSError, ValueError) as error:
        run.state, run.reason = "failed", f"summary.json cannot be read ({shown(error)})."
        return
    stop = _text(summary.get("stop_reason"))
    run.state, run.reason = ("interrupted" if stop in INTERRUPTED else "done"), stop
    run.algo = run.algo or _text(summary.get("algo"))
    run.env = run.env or _text(summary.get("env"))
    if run.seed is None and _is_integer(summary.get("seed")):
        run.seed = summary["seed"]
    for key, name in (("env_steps", "env_steps"), ("updates", "updates")):
        setattr(run, name, summary[key] if _is_integer(summary.get(key)) else None)
    names = {"wall_time_s": "wall_time", "eval_return_mean": "final", "best_eval_return_mean": "best"}
    for key, name in names.items():
        setattr(run, name, float(summary[key]) if is_number(summary.get(key)) else None)
    run.versions = _texts(summary.get("versions"))


def _state_without_summary(folder: Path) -> tuple[str, str]:
    """Under way, or ended without a word: the lock says which process writes here, if it is of this machine."""
    if os.path.lexists(folder / ERROR_FILE):
        return "failed", "The environment failed; see the end of its traceback."
    try:
        holder = read_bounded(folder / LOCK, 400, follow=False)
    except OSError:
        return "failed", "It ended without a summary."
    process = re.match(rb"process (\d{1,10}) on (\S+)", holder) if HOLDER.fullmatch(holder) else None
    if process is None:
        return "running", ""
    host = re.sub(r"[^\w.-]", "-", socket.gethostname(), flags=re.ASCII)
    if process[2].decode() == host and not Path("/proc", process[1].decode()).exists() and Path("/proc/self").exists():
        return "failed", GONE
    return "running", ""


def _read_tails(run: Run) -> None:
    """The last lines of what it said, of runs that did not end well."""
    if run.state not in ("failed", "interrupted"):
        return
    for name in ("log.txt", ERROR_FILE):
        lines = tail(run.path / name)
        if lines:
            run.log = lines


def tail(path: Path) -> list[str]:
    """The last lines of a text, without the control characters of a terminal."""
    try:
        with open(open_regular(path, follow=False), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - TAIL))
            text = file.read(TAIL).decode(errors="replace")
    except OSError:
        return []
    lines = [shown(line.rstrip(), 500) for line in ESCAPES.sub("", text).splitlines()]
    return [line for line in lines if line.strip()][-TAIL_LINES:]


# -- a sweep -----------------------------------------------------------------------------------------------------------


def read_job(sweep: Sweep, job: Job) -> Run:
    """A job of a sweep: what the manifest knows, and what is in its folder, if there is one by now."""
    folder = sweep.job_folder(job)
    if folder.is_dir() and not folder.is_symlink():
        run = read_run(folder)
    else:
        run = Run(folder, job.folder, "waiting")
        if folder.is_symlink():
            run.notes.append("The folder of this job is a link, which is not followed.")
    run.sweep, run.number = shown(sweep.name, LONGEST), job.number
    if not (job.state == "running" and run.reason == GONE):  # the process of the sweep may be gone, too
        run.reason = run.reason if job.state in (run.state, "done") else ""
        run.state = job.state
    run.reason = shown(job.reason, 1000) if job.reason else run.reason
    if not run.log:
        _read_tails(run)
    run.choices |= as_choices(job.overrides)
    run.choices |= {shown(key, LONGEST): shown(value, LONGEST) for key, value in job.choices.items()}
    run.command = run.command or command_of(job.overrides)
    if run.seed is None and run.choices.get("seed", "").isdecimal():
        run.seed = int(run.choices["seed"])
    run.algo = run.algo or run.choices.get("algo", "")
    run.env = run.env or run.choices.get("env.id", "") or run.choices.get("env", "")
    run.started, run.ended = (shown(time or "", LONGEST) for time in (job.started, job.ended))
    return run


# -- values ------------------------------------------------------------------------------------------------------------


def _json(path: Path) -> dict[str, Any]:
    """An object in a JSON file; ValueError or OSError for anything else."""
    try:
        value = json.loads(read_bounded(path, follow=False))
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error
    if not isinstance(value, dict):
        raise ValueError("it is not a JSON object")
    return value


def _text(value: Any, length: int = LONGEST) -> str:
    return "" if value is None else shown(value, length)


def _texts(value: Any) -> dict[str, str]:
    """A flat object of texts, of a bounded size."""
    pairs = list(value.items())[:MOST_METRICS] if isinstance(value, dict) else []
    return {_text(key): _text(item) for key, item in pairs}


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63


def is_number(value: Any) -> bool:
    return _is_integer(value) or (isinstance(value, float) and math.isfinite(value))
