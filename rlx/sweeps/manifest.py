"""sweep.json: what a sweep was asked for and what became of each of its jobs, so that it is understood after any end.

The file is data, also when rlx reads it again: it is bounded, every field has its type, and job folders are plain names
below the folder of the sweep.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime
from pathlib import Path
from typing import Any

from rlx.errors import UserError, shown
from rlx.files import read_bounded, write_atomically
from rlx.run_folder import refuse_link

FILE = "sweep.json"
FORMAT = 1
STATES = ("waiting", "running", "done", "failed", "paused", "pruned", "interrupted")
SEED = "seed"  # the swept key whose values are folded into one result
NAME_LENGTH = 120  # of a job folder: TensorBoard and a person can read it, and any file system takes it
MOST_JOBS = 100_000


def now() -> str:
    return datetime.now().astimezone().isoformat(timespec="seconds")


@dataclass
class Job:
    """One run of a sweep."""

    number: int
    overrides: list[str]  # all of this job, choices by name
    choices: dict[str, str]  # the swept keys only
    folder: str  # below the folder of the sweep
    state: str = "waiting"
    exit_code: int | None = None
    reason: str | None = None  # why it failed, in a sentence
    attempts: int = 0
    started: str | None = None
    ended: str | None = None
    result: dict[str, Any] | None = None  # from its summary.json
    trial: int | None = None  # of a search
    lineage: list[dict[str, Any]] = field(default_factory=list)  # of population based training

    @property
    def name(self) -> str:
        """What differs, as the table shows it: 'algo=bcq, seed=0'."""
        return ", ".join(f"{key}={value}" for key, value in self.choices.items()) or self.folder

    @property
    def combination(self) -> tuple[tuple[str, str], ...]:
        """What was swept besides the seed."""
        return tuple((key, value) for key, value in self.choices.items() if key != SEED)


def folder_name(number: int, choices: Mapping[str, str], jobs: int) -> str:
    """003_algo=bcq,seed=0: sorted as the jobs are, and safe to type into a shell."""
    digits = max(3, len(str(jobs - 1)))
    what = ",".join(f"{key}={value}" for key, value in choices.items())
    safe = re.sub(r"[^\w.=,+-]+", "_", what, flags=re.ASCII)
    return f"{number:0{digits}d}_{safe}"[:NAME_LENGTH].rstrip("_.,=") if safe else f"{number:0{digits}d}"


@dataclass
class Sweep:
    """A sweep and its jobs; `folder` is where it lies."""

    folder: Path
    command: str = ""  # as it was typed
    overrides: list[str] = field(default_factory=list)  # as given
    created: str = field(default_factory=now)
    ended: str | None = None
    versions: dict[str, str] = field(default_factory=dict)
    launcher: str = "local"
    sweeper: str = "grid"
    swept: list[str] = field(default_factory=list)  # keys that differ between jobs, in the order they were typed
    search: dict[str, Any] | None = None
    jobs: list[Job] = field(default_factory=list)
    results: list[dict[str, Any]] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.folder.resolve().name

    def job_folder(self, job: Job) -> Path:
        return self.folder / job.folder

    def count(self, *states: str) -> int:
        return sum(job.state in states for job in self.jobs)

    def add_job(self, overrides: Sequence[str], choices: Mapping[str, str], jobs: int = 0, **more: Any) -> Job:
        """A further job under the next number, of about `jobs` in all; numbers never restart."""
        number = len(self.jobs)
        job = Job(number, list(overrides), dict(choices), folder_name(number, choices, max(jobs, number + 1)), **more)
        self.jobs.append(job)
        return job

    def save(self) -> None:
        refuse_link(self.folder / FILE)
        values = {"format": FORMAT, "name": self.name}
        values |= {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("folder", "jobs")}
        values["jobs"] = [asdict(job) for job in self.jobs]
        write_atomically(self.folder / FILE, (json.dumps(_finite(values), indent=1) + "\n").encode())

    @classmethod
    def load(cls, folder: Path) -> Sweep:
        """As it was saved; a UserError for anything that rlx has not written."""
        path = folder / FILE
        try:
            values = json.loads(read_bounded(path, follow=False))
        except (OSError, ValueError, RecursionError) as error:
            raise UserError(f"{path} cannot be read ({shown(error)}); restore it, or start a new sweep.") from error
        try:
            return _read(folder, values)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise UserError(f"{path} is not the manifest of a sweep ({shown(error)}); restore it.") from error


def is_sweep(folder: Path) -> bool:
    return (folder / FILE).is_file()


def _finite(value: Any) -> Any:
    """inf and nan, which JSON does not have, as null."""
    if isinstance(value, dict):
        return {key: _finite(child) for key, child in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(child) for child in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


# -- reading -----------------------------------------------------------------------------------------------------------


def _read(folder: Path, values: Any) -> Sweep:
    if values["format"] != FORMAT:
        raise ValueError(f"format {shown(values['format'])}, and this version of rlx reads format {FORMAT}")
    if len(values["jobs"]) > MOST_JOBS:
        raise ValueError(f"{len(values['jobs']):,} jobs")
    sweep = Sweep(
        folder,
        command=_text(values["command"]),
        overrides=_texts(values["overrides"]),
        created=_text(values["created"]),
        ended=_text_or_none(values["ended"]),
        versions=_named_texts(values["versions"]),
        launcher=_text(values["launcher"]),
        sweeper=_text(values["sweeper"]),
        swept=_texts(values["swept"]),
        search=None if values["search"] is None else _dict(values["search"]),
        jobs=[_read_job(number, job) for number, job in enumerate(values["jobs"])],
        results=[_dict(result) for result in _list(values["results"])],
    )
    if len({job.folder for job in sweep.jobs}) < len(sweep.jobs):
        raise ValueError("two jobs have one folder")
    return sweep


def _read_job(number: int, values: Any) -> Job:
    if _integer(values["number"]) != number:
        raise ValueError(f"job {shown(values['number'])} in the place of job {number}")
    name = _text(values["folder"])
    if not re.fullmatch(r"\d{3,}(_[\w.=,+-]+)?", name, re.ASCII) or len(name) > NAME_LENGTH:
        raise ValueError(f"{shown(name)} is not the name of a job folder")
    if values["state"] not in STATES:
        raise ValueError(f"unknown state {shown(values['state'])}")
    return Job(
        number,
        overrides=_texts(values["overrides"]),
        choices=_named_texts(values["choices"]),
        folder=name,
        state=values["state"],
        exit_code=None if values["exit_code"] is None else _integer(values["exit_code"]),
        reason=_text_or_none(values["reason"]),
        attempts=_integer(values["attempts"]),
        started=_text_or_none(values["started"]),
        ended=_text_or_none(values["ended"]),
        result=None if values["result"] is None else _dict(values["result"]),
        trial=None if values["trial"] is None else _integer(values["trial"]),
        lineage=[_dict(step) for step in _list(values["lineage"])],
    )


def _kind(value: Any, kind: type, name: str) -> Any:
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ValueError(f"{shown(repr(value))} in the place of {name}")
    return value


def _text(value: Any) -> str:
    return str(_kind(value, str, "a text"))


def _text_or_none(value: Any) -> str | None:
    return None if value is None else _text(value)


def _integer(value: Any) -> int:
    return int(_kind(value, int, "an integer"))


def _list(value: Any) -> list[Any]:
    return list(_kind(value, list, "a list"))


def _dict(value: Any) -> dict[str, Any]:
    return dict(_kind(value, dict, "a dict"))


def _texts(value: Any) -> list[str]:
    return [_text(child) for child in _list(value)]


def _named_texts(value: Any) -> dict[str, str]:
    return {key: _text(child) for key, child in _dict(value).items()}
