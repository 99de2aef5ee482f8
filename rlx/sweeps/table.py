"""What a person sees of a sweep: a live table or plain lines, and at the end one answer."""

from __future__ import annotations

import csv
import io
import logging
import math
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rlx.callbacks.progress import format_seconds
from rlx.errors import shown
from rlx.files import write_atomically
from rlx.reporting import WIDTH, counted, in_digits, shortest
from rlx.sweeps.driver import Running
from rlx.sweeps.job import LOG
from rlx.sweeps.manifest import SEED, Job, Sweep

if TYPE_CHECKING:
    from rich.console import Group
    from rich.live import Live
    from rich.table import Table

log = logging.getLogger("rlx")

REFRESH = 0.5  # seconds between two states of the live table
BAR = 10  # characters
RESULTS = "results.csv"
COLUMNS = ("runs", "failed", "mean", "low", "high", "best")


# -- while it runs -----------------------------------------------------------------------------------------------------


class Lines:
    """One line when a job starts, ends or fails."""

    def __init__(self, sweep: Sweep):
        self.sweep = sweep

    def started(self, job: Job) -> None:
        log.info("%s started", self._name(job))

    def ended(self, job: Job, again: bool) -> None:
        if job.state == "failed":
            log.warning("%s", failure(self.sweep, job, again))
        else:
            log.info("%s %s%s", self._name(job), job.state, outcome(job))

    def show(self, running: list[Running]) -> None:
        """Lines come when something happens."""

    def close(self) -> None:
        """Nothing is open."""

    def _name(self, job: Job) -> str:
        ended = self.sweep.count("done", "failed", "pruned")
        return f"[{ended}/{len(self.sweep.jobs)}] {job.folder}"


class Screen(Lines):
    """A table of the running jobs that is drawn anew in its place."""

    def __init__(self, sweep: Sweep):
        super().__init__(sweep)
        self._live: Live | None = None
        self._due = 0.0

    def started(self, job: Job) -> None:
        """The table shows it."""

    def ended(self, job: Job, again: bool) -> None:
        if job.state == "failed":
            self._print(failure(self.sweep, job, again))
        self._due = 0.0

    def show(self, running: list[Running]) -> None:
        from rich.console import Console
        from rich.live import Live

        if time.monotonic() < self._due:
            return
        self._due = time.monotonic() + REFRESH
        if self._live is None:
            console = Console(markup=False, emoji=False, highlight=False)
            self._live = Live(console=console, auto_refresh=False, transient=True)  # no thread beside the loop
            self._live.start()
        size = self._live.console.size
        self._live.update(live_table(self.sweep, running, size.width, size.height), refresh=True)

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _print(self, text: str) -> None:
        if self._live is None:
            log.warning("%s", text)
        else:
            self._live.console.print(text, style="red", soft_wrap=True)


def live_table(sweep: Sweep, running: Sequence[Running], width: int, height: int) -> Group:
    """The running jobs, as many as fit, and how many wait, are done and failed."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    room = max(1, height - 5)
    table = Table(box=None, padding=(0, 1, 0, 0), expand=True, width=width)
    table.add_column("job", no_wrap=True, overflow="ellipsis", ratio=1)
    for name in ("", "return", "best", "ETA"):
        table.add_column(name, no_wrap=True, justify="right" if name else "left")
    for row in running[:room]:
        table.add_row(row.job.name, bar(row.share), value(row.latest), value(row.best), left(row.seconds_left))
    more = f", {len(running) - room} more running" if len(running) > room else ""
    return Group(table, Text(f"{counts(sweep)}{more}", no_wrap=True, overflow="ellipsis"))


def bar(share: float | None) -> str:
    if share is None:
        return f"{'':{BAR}}     "
    full = round(share * BAR)
    return f"{'━' * full}{'─' * (BAR - full)} {share:4.0%}"


def value(number: float | None) -> str:
    return "" if number is None else in_digits(number)


def left(seconds: float | None) -> str:
    return "" if seconds is None else format_seconds(seconds)


def counts(sweep: Sweep) -> str:
    """'2 running, 3 waiting, 7 done': what there is of each state."""
    states = ("running", "waiting", "paused", "done", "pruned", "failed", "interrupted")
    return ", ".join(f"{sweep.count(state):,} {state}" for state in states if sweep.count(state)) or "no jobs"


def outcome(job: Job) -> str:
    """': return -151.2 (best -140.9), 12s'."""
    result = job.result
    if result is None:
        return f": {job.reason}" if job.reason else ""
    last, best = result["eval_return_mean"], result["best_eval_return_mean"]
    parts = ["not evaluated" if last is None else f"return {in_digits(last)}"]
    if last is not None and best is not None:
        parts[0] += f" (best {in_digits(best)})"
    return f": {', '.join([*parts, format_seconds(result['wall_time_s'])])}"


def failure(sweep: Sweep, job: Job, again: bool = False) -> str:
    where = shortest(sweep.job_folder(job) / LOG)
    then = " It is taken up again." if again else ""
    return f"{job.folder} failed (exit code {job.exit_code}): {shown(job.reason, 300)}{then} See {where}"


def view(sweep: Sweep, live: bool) -> Lines:
    """A live table on a terminal, lines anywhere else."""
    return Screen(sweep) if live and sys.stdout.isatty() else Lines(sweep)


# -- at the end --------------------------------------------------------------------------------------------------------


def fold(sweep: Sweep) -> list[dict[str, Any]]:
    """For each combination of what was swept, over its seeds: the mean of the last evaluations with its 95 % interval,
    and the best evaluation of all; best mean first.
    """
    groups: dict[tuple[tuple[str, str], ...], list[Job]] = {}
    for job in sweep.jobs:
        groups.setdefault(job.combination, []).append(job)
    results = []
    for combination, jobs in groups.items():
        done = [job.result for job in jobs if job.state == "done" and job.result is not None]
        mean, low, high = interval([r["eval_return_mean"] for r in done if _is_number(r["eval_return_mean"])])
        best = max((r["best_eval_return_mean"] for r in done if _is_number(r["best_eval_return_mean"])), default=None)
        failed = sum(job.state == "failed" for job in jobs)
        results.append(
            {"choices": dict(combination), "runs": len(done), "failed": failed, "mean": mean, "low": low, "high": high,
             "best": best}
        )  # fmt: skip
    return sorted(results, key=lambda result: -math.inf if result["mean"] is None else result["mean"], reverse=True)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def interval(values: Sequence[float]) -> tuple[float | None, float | None, float | None]:
    """The mean and its 95 % confidence interval by Student's t; no interval for a single value."""
    if not values:
        return None, None, None
    n = len(values)
    mean = math.fsum(values) / n
    if n == 1:
        return mean, None, None
    spread = math.sqrt(math.fsum((x - mean) ** 2 for x in values) / (n - 1) / n)
    half = t_quantile(n - 1) * spread
    return mean, mean - half, mean + half


def t_quantile(freedom: int, level: float = 0.95) -> float:
    """The t within which a share `level` of Student's distribution lies, both sides; by bisection."""
    low, high = 0.0, 1e4
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if t_share(middle, freedom) < level else (low, middle)
    return (low + high) / 2


def t_share(t: float, freedom: int) -> float:
    """The share of Student's distribution within -t and t, by its finite series for integer degrees of freedom."""
    angle = math.atan(t / math.sqrt(freedom))
    cos, sin = math.cos(angle), math.sin(angle)
    odd = freedom % 2
    term = cos if odd else 1.0
    total = term if freedom > 1 else 0.0
    for k in range(3 if odd else 2, freedom - 1, 2):
        term *= (k - 1) / k * cos**2
        total += term
    return 2 / math.pi * (angle + sin * total) if odd else sin * total


def write_results(sweep: Sweep) -> None:
    """results.csv beside the manifest."""
    keys = [key for key in sweep.swept if key != SEED]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*keys, *COLUMNS])
    for result in sweep.results:
        choices = [result["choices"].get(key, "") for key in keys]
        writer.writerow([*choices, *("" if result[c] is None else result[c] for c in COLUMNS)])
    write_atomically(sweep.folder / RESULTS, text.getvalue().encode())


def results_table(sweep: Sweep) -> Table:
    from rich.table import Table

    keys = [key for key in sweep.swept if key != SEED and len({r["choices"].get(key) for r in sweep.results}) > 1]
    failures = any(result["failed"] for result in sweep.results)
    table = Table()
    for key in keys:
        table.add_column(key, overflow="fold")
    for name in ("runs", *(["failed"] if failures else []), "return", "95 % interval", "best"):
        table.add_column(name, justify="right", no_wrap=True)
    for r in sweep.results:
        between = "" if r["low"] is None else f"{in_digits(r['low'])} to {in_digits(r['high'])}"
        cells = [str(r["runs"]), *([str(r["failed"])] if failures else []), value(r["mean"]), between, value(r["best"])]
        table.add_row(*(r["choices"].get(key, "") for key in keys), *cells)
    return table


def closing_lines(sweep: Sweep, most: int = 50) -> str:
    """The answer of a sweep, what failed and why, and what to type next."""
    from rich.console import Console

    terminal = sys.stdout.isatty()
    file = io.StringIO()
    console = Console(file=file, width=Console().width if terminal else WIDTH, markup=False, emoji=False)
    shortened = Sweep(sweep.folder, swept=sweep.swept, jobs=sweep.jobs, results=sweep.results[:most])
    console.print(results_table(shortened))
    lines = [f"{sweep.name}: {counts(sweep)}", *(line.rstrip() for line in file.getvalue().splitlines())]
    if len(sweep.results) > most:
        lines.append(f"... and {len(sweep.results) - most:,} more in {shortest(sweep.folder / RESULTS)}")
    failed = [job for job in sweep.jobs if job.state == "failed"]
    lines += [failure(sweep, job) for job in failed[:most]]
    if len(failed) > most:
        lines.append(f"... and {len(failed) - most:,} more that failed")
    return "\n".join(lines)


def listing(sweep: Sweep) -> str:
    """The jobs of a sweep, one each line: what --dry-run prints."""
    lines = [f"{job.folder}  {' '.join(job.overrides)}" for job in sweep.jobs]
    return "\n".join([*lines, f"{counted(len(lines), 'job')} below {shortest(sweep.folder)}"])
