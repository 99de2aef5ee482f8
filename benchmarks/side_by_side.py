"""What the learning benchmarks share: runs of two libraries side by side, kept one by one, and the figures over seeds.

Every run is a process of its own, on one thread. A finished run goes into the store, a JSON file, at once and is not
made again, so that a long comparison can be stopped at any moment and goes on where it was. The store holds the
settings beside the runs: a case whose settings have changed starts anew.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

OUT = Path(__file__).parent.parent / "docs" / "benchmarks"
Points = list[list[float]]  # [step, mean return] of each evaluation


def iqm(values: np.ndarray) -> float:
    """Mean of the middle half (Agarwal et al., 2021, arXiv:2108.13264), fractional ends included."""
    ordered = np.sort(np.asarray(values, float))
    n = len(ordered)
    cut = n / 4
    weights = np.clip(np.minimum(np.arange(1, n + 1) - cut, n - cut - np.arange(n)), 0, 1)
    return float((weights * ordered).sum() / weights.sum())


def interval(values: np.ndarray, draws: int = 2000, level: float = 0.95) -> tuple[float, float]:
    """Percentile bootstrap of the IQM over runs."""
    rng = np.random.default_rng(0)
    values = np.asarray(values, float)
    found = [iqm(values[rng.integers(0, len(values), len(values))]) for _ in range(draws)]
    low, high = np.quantile(found, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def final(points: Points) -> float:
    """What a run reached: the mean of its last two evaluations."""
    return float(np.mean([value for _, value in points[-2:]]))


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
    """{case: {"settings": ..., library: {seed: points}}} in a file that is written after every run."""

    def __init__(self, path: Path):
        self.path = path
        self.cases: dict[str, dict[str, Any]] = json.loads(path.read_text()) if path.exists() else {}
        self._lock = Lock()

    def open(self, case: str, settings: dict[str, Any]) -> dict[str, Any]:
        found = self.cases.get(case)
        if found is None or found["settings"] != settings:
            found = self.cases[case] = {"settings": settings}
        return found

    def runs(self, case: str, library: str) -> list[Points]:
        return list(self.cases.get(case, {}).get(library, {}).values())

    def add(self, case: str, library: str, seed: int, points: Points) -> None:
        with self._lock:
            self.cases[case].setdefault(library, {})[str(seed)] = points
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
    parser.add_argument("--work", nargs=3, metavar=("LIBRARY", "CASE", "SEED"), help=argparse.SUPPRESS)
    return parser


def make_runs(
    args: argparse.Namespace, script: str, store: Store, settings: dict[str, dict[str, Any]], peer: str, *extra: str
) -> None:
    """Make the runs that are missing, ours and theirs in turn, and print a line after each case."""
    pythons = {"rlx": sys.executable, peer: args.peer_python}
    unknown = [case for case in args.cases if case not in settings]
    if unknown:
        raise SystemExit(f"There is no case {unknown[0]}; choose of {', '.join(settings)}.")

    def run(case: str, library: str, seed: int) -> None:
        command = [pythons[library], script, "--work", library, case, str(seed), *extra]
        done = subprocess.run(command, capture_output=True, text=True)
        lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
        if lines:
            store.add(case, library, seed, json.loads(lines[-1].removeprefix("RESULT ")))
        else:
            reason = (done.stderr.strip().splitlines() or ["no output"])[-1]
            print(f"{library} {case} seed {seed} failed: {reason}", file=sys.stderr, flush=True)

    print(header(peer), flush=True)
    for case in args.cases:
        known = store.open(case, settings[case])
        if not args.table:
            jobs = [(lib, seed) for seed in range(args.seeds) for lib in pythons if str(seed) not in known.get(lib, {})]
            with ThreadPoolExecutor(args.jobs) as pool:
                list(pool.map(lambda job: run(case, *job), jobs))  # noqa: B023
        print(row(store, case, peer), flush=True)


def header(peer: str) -> str:
    return f"| case | rlx | {peer} | seeds | not below |\n|---|---|---|---|---|"


def row(store: Store, case: str, peer: str) -> str:
    """IQM over seeds with a 95 % interval for each library; "not below": our interval reaches their IQM."""
    cells, found = [], {}
    for library in ("rlx", peer):
        finals = found[library] = np.array([final(points) for points in store.runs(case, library)])
        if len(finals):
            low, high = interval(finals)
            cells.append(f"{iqm(finals):.1f} [{low:.1f}, {high:.1f}]")
        else:
            cells.append("-")
    ours, theirs = found["rlx"], found[peer]
    verdict = "-"
    if len(ours) and len(theirs):
        verdict = "yes" if iqm(ours) >= iqm(theirs) else "overlap" if interval(ours)[1] >= iqm(theirs) else "no"
    return f"| {case} | {cells[0]} | {cells[1]} | {len(ours)} / {len(theirs)} | {verdict} |"


def draw(store: Store, cases: Iterable[str], path: Path) -> None:
    """One panel per case: mean and range over seeds of the evaluation return, of every library in the store."""
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
        for library in (name for name in store.cases[case] if name != "settings"):
            runs = store.runs(case, library)
            n = min(len(points) for points in runs)
            values = np.array([[value for _, value in points[:n]] for points in runs])
            steps = [step for step, _ in runs[0][:n]]
            ax.plot(steps, values.mean(0), label=library)
            ax.fill_between(steps, values.min(0), values.max(0), alpha=0.15)
        ax.set_title(case)
        ax.legend(frameon=False)
    fig.tight_layout()
    fig.savefig(path, dpi=90)
