"""What the learning benchmarks share: runs of contestants side by side, kept one by one, and the figures over seeds.

Every run is a process of its own, on one thread. A finished run goes into the store, a JSON file, at once and is not
made again, so that a long comparison can be stopped at any moment and goes on where it was. The store holds the
settings beside the runs: a case whose settings have changed starts anew.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from rlx.report import statistics

OUT = Path(__file__).parent.parent / "docs" / "benchmarks"
Points = list[list[float]]  # [step, mean return] of each evaluation


def iqm(values: np.ndarray) -> float:
    """Mean of the middle half (Agarwal et al., 2021, arXiv:2108.13264), fractional ends included."""
    return float(statistics.iqm(values))


def interval(values: np.ndarray) -> tuple[float, float]:
    """95 % percentile bootstrap of the IQM over runs."""
    low, high = statistics.percentiles(statistics.iqm(statistics.resample([values])[0]))
    return float(low), float(high)


def final(points: Points) -> float:
    """What a run reached: the mean of its last two evaluations."""
    return float(np.mean([value for _, value in points[-2:]]))


def train_rlx(overrides: Sequence[str], seed: int) -> Points:
    """A run of ours, in a folder that is thrown away; its evaluations."""
    import rlx

    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        rlx.train(*overrides, run_dir=run_dir, seed=seed)
        rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [[r["env_steps"] or r["updates"], r["eval/return_mean"]] for r in rows if r["kind"] == "eval"]


def evaluation_seeds(seed: int, episodes: int = 10) -> list[int]:
    """Where the evaluation episodes of a run of ours with this seed begin."""
    own = int(np.random.SeedSequence([seed, 0xE7A1]).generate_state(1)[0])
    return [int(s) for s in np.random.SeedSequence(own).generate_state(episodes)]


def play(act: Callable[[np.ndarray], Any], env: Any, seeds: Iterable[int]) -> float:
    """Mean return of a deterministic policy over one episode from each seed."""
    returns = []
    for seed in seeds:
        obs, _ = env.reset(seed=seed)
        ended, total = False, 0.0
        while not ended:
            obs, reward, terminated, truncated, _ = env.step(act(np.asarray(obs, np.float32)))
            total += float(reward)
            ended = terminated or truncated
        returns.append(total)
    return float(np.mean(returns))


class Store:
    """{case: {"settings": ..., contestant: {seed: points}}} in a file that is written after every run."""

    def __init__(self, path: Path):
        self.path = path
        self.cases: dict[str, dict[str, Any]] = json.loads(path.read_text()) if path.exists() else {}
        self._lock = Lock()

    def open(self, case: str, settings: dict[str, Any]) -> dict[str, Any]:
        found = self.cases.get(case)
        if found is None or found["settings"] != settings:
            found = self.cases[case] = {"settings": settings}
        return found

    def runs(self, case: str, contestant: str) -> list[Points]:
        return list(self.cases.get(case, {}).get(contestant, {}).values())

    def add(self, case: str, contestant: str, seed: int, points: Points) -> None:
        with self._lock:
            self.cases[case].setdefault(contestant, {})[str(seed)] = points
            self.path.parent.mkdir(parents=True, exist_ok=True)
            beside = self.path.with_suffix(".new")
            beside.write_text(json.dumps(self.cases, indent=None).replace('}, "', '},\n"') + "\n")
            beside.replace(self.path)


def arguments(description: str | None, cases: Iterable[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="*", default=list(cases), help=f"of {', '.join(cases)}")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    parser.add_argument("--peer-python", default=sys.executable, help="interpreter that has the other library")
    parser.add_argument("--table", action="store_true", help="make no runs, only print what the store holds")
    parser.add_argument("--work", nargs=3, metavar=("CONTESTANT", "CASE", "SEED"), help=argparse.SUPPRESS)
    return parser


def make_runs(
    args: argparse.Namespace,
    script: str,
    store: Store,
    settings: dict[str, dict[str, Any]],
    pythons: dict[str, str],
    extra: Sequence[str] = (),
) -> Iterator[str]:
    """Make the runs that are missing, the contestants in turn, each by its interpreter; the cases as they are ready."""
    unknown = [case for case in args.cases if case not in settings]
    if unknown:
        raise SystemExit(f"There is no case {unknown[0]}; choose of {', '.join(settings)}.")

    def run(case: str, contestant: str, seed: int) -> None:
        command = [pythons[contestant], script, "--work", contestant, case, str(seed), *extra]
        done = subprocess.run(command, capture_output=True, text=True)
        lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
        if lines:
            store.add(case, contestant, seed, json.loads(lines[-1].removeprefix("RESULT ")))
        else:
            reason = (done.stderr.strip().splitlines() or ["no output"])[-1]
            print(f"{contestant} {case} seed {seed} failed: {reason}", file=sys.stderr, flush=True)

    for case in args.cases:
        known = store.open(case, settings[case])
        missing = [(c, seed) for seed in range(args.seeds) for c in pythons if str(seed) not in known.get(c, {})]
        if missing and not args.table:
            with ThreadPoolExecutor(args.jobs) as pool:
                list(pool.map(lambda job: run(case, *job), missing))  # noqa: B023
        yield case


def compare(
    args: argparse.Namespace,
    script: str,
    store: Store,
    settings: dict[str, dict[str, Any]],
    peer: str,
    extra: Sequence[str] = (),
) -> None:
    """Make the runs that are missing and print a row for each case: IQM over seeds with a 95 % interval.

    "yes": our IQM is not below theirs; "overlap": it is, but the intervals overlap; "no": they do not.
    """
    print(f"| case | rlx | {peer} | seeds | not below |\n|---|---|---|---|---|", flush=True)
    for case in make_runs(args, script, store, settings, {"rlx": sys.executable, peer: args.peer_python}, extra):
        ours, theirs = (np.array([final(run) for run in store.runs(case, name)]) for name in ("rlx", peer))
        verdict = "-"
        if len(ours) and len(theirs):
            overlap = interval(ours)[1] >= interval(theirs)[0]
            verdict = "yes" if iqm(ours) >= iqm(theirs) else "overlap" if overlap else "no"
        print(f"| {case} | {cell(ours)} | {cell(theirs)} | {len(ours)} / {len(theirs)} | {verdict} |", flush=True)


def cell(values: np.ndarray) -> str:
    if not len(values):
        return "-"
    low, high = interval(values)
    return f"{iqm(values):.1f} [{low:.1f}, {high:.1f}]"


def draw(store: Store, cases: Iterable[str], path: Path) -> None:
    """One panel per case: mean and range over seeds of the evaluation return of every contestant in the store."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    cases = list(cases)
    columns = min(3, len(cases))
    rows = -(-len(cases) // columns)
    fig, axes = plt.subplots(rows, columns, figsize=(3.7 * columns, 2.8 * rows), squeeze=False)
    for ax in axes.flat[len(cases) :]:
        ax.set_visible(False)
    for ax, case in zip(axes.flat, cases, strict=False):
        for contestant in (name for name in store.cases[case] if name != "settings"):
            runs = store.runs(case, contestant)
            n = min(len(points) for points in runs)
            values = np.array([[value for _, value in points[:n]] for points in runs])
            steps = [step for step, _ in runs[0][:n]]
            ax.plot(steps, values.mean(0), label=contestant)
            ax.fill_between(steps, values.min(0), values.max(0), alpha=0.15)
        ax.set_title(case)
        ax.legend(frameon=False)
    fig.tight_layout()
    fig.savefig(path, dpi=90)
