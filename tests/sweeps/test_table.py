"""What a person sees of a sweep: seeds folded, intervals by Student's t, and a table that fits."""

from __future__ import annotations

import csv
import io
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from rlx.sweeps.driver import Running, Tail
from rlx.sweeps.job import Task
from rlx.sweeps.manifest import Sweep
from rlx.sweeps.table import (
    RESULTS,
    closing_lines,
    fold,
    interval,
    live_table,
    t_quantile,
    t_share,
    write_results,
)


@pytest.mark.parametrize(
    ("freedom", "expected"),
    [(1, 12.7062), (2, 4.3027), (3, 3.1824), (4, 2.7764), (5, 2.5706), (9, 2.2622), (30, 2.0423), (1000, 1.9623)],
)
def test_quantiles_of_students_t(freedom: int, expected: float) -> None:
    assert t_quantile(freedom) == pytest.approx(expected, abs=1e-4)


def test_share_of_students_t() -> None:
    assert t_share(1.0, 1) == pytest.approx(0.5)  # Cauchy
    assert t_share(2**0.5, 2) == pytest.approx(2**0.5 / 2)


def test_intervals() -> None:
    assert interval([]) == (None, None, None)
    assert interval([3.0]) == (3.0, None, None)
    mean, low, high = interval([1.0, 2.0, 3.0])
    assert mean == 2.0
    assert high == pytest.approx(2 + 4.30265 / 3**0.5, abs=1e-4)
    assert low == pytest.approx(4 - high)


def made(folder: Path) -> Sweep:
    """Two algorithms with three seeds each: b is better than a, and one run of it failed; c has not run yet."""
    sweep = Sweep(folder, swept=["algo", "seed"])
    for algo, returns in {"a": (1.0, 2.0, 3.0), "b": (5.0, 7.0, None), "c": ()}.items():
        for seed in range(3):
            job = sweep.add_job([f"algo={algo}", f"seed={seed}"], {"algo": algo, "seed": str(seed)}, 9)
            if seed < len(returns) and returns[seed] is not None:
                job.state, job.result = "done", summary(returns[seed])
            elif returns:
                job.state, job.exit_code, job.reason = "failed", 1, "It broke."
    return sweep


def summary(value: float) -> dict[str, Any]:
    return {"eval_return_mean": value, "best_eval_return_mean": value + 1, "wall_time_s": 1.0}


def test_seeds_are_folded_and_the_best_comes_first(tmp_path: Path) -> None:
    results = fold(made(tmp_path))
    assert [r["choices"] for r in results] == [{"algo": "b"}, {"algo": "a"}, {"algo": "c"}]
    assert [(r["runs"], r["failed"], r["mean"], r["best"]) for r in results] == [
        (2, 1, 6.0, 8.0), (3, 0, 2.0, 4.0), (0, 0, None, None),
    ]  # fmt: skip
    assert results[0]["high"] == pytest.approx(6 + 12.7062, abs=1e-4)


def test_results_as_csv(tmp_path: Path) -> None:
    sweep = made(tmp_path)
    sweep.results = fold(sweep)
    write_results(sweep)
    rows = list(csv.DictReader(io.StringIO((tmp_path / RESULTS).read_text())))
    assert [row["algo"] for row in rows] == ["b", "a", "c"]
    assert (rows[1]["runs"], rows[1]["mean"], rows[2]["mean"]) == ("3", "2.0", "")


def test_closing_lines_name_what_failed(tmp_path: Path) -> None:
    sweep = made(tmp_path)
    sweep.results = fold(sweep)
    text = closing_lines(sweep)
    assert "3 waiting, 5 done, 1 failed" in text
    assert "005_algo=b,seed=2 failed (exit code 1): It broke." in text
    assert "seed" not in text.partition("┡")[0].splitlines()[2], "folded"


@pytest.mark.parametrize(("width", "height"), [(80, 24), (40, 5), (200, 60)])
def test_the_live_table_fits(width: int, height: int, tmp_path: Path) -> None:
    sweep = Sweep(tmp_path)
    for i in range(5000):
        sweep.add_job([], {"algo": "an_algorithm", "env.kwargs.something_long": "x" * 100, "seed": str(i)}, 5000)
    running = []
    for job in sweep.jobs[:100]:
        job.state = "running"
        one = Running(job, Task(job.number, "", ()), Tail(tmp_path, None), began=time.monotonic() - 60, attempt=1)
        one.share, one.first_share, one.latest = 0.5, 0.0, -123.4
        running.append(one)
    console = Console(file=io.StringIO(), width=width, height=height, force_terminal=False)
    console.print(live_table(sweep, running, width, height))
    lines = console.file.getvalue().splitlines()
    assert len(lines) < height
    assert max(map(len, lines)) <= width
    assert "1m00s" in lines[1], "half in a minute, a minute is left"
    assert "4,900 waiting" in lines[-1]
