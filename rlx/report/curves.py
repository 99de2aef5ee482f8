"""Curves over env steps, updates or wall time: of single runs, and over the seeds of a group with a 95 % band.

Runs of a group that were evaluated at the same steps are combined value by value. Where their steps differ, as seconds
always do, each run is interpolated linearly between its own rows and counts as far as it went, so that the number of
runs behind a point can fall along a curve; it is part of the curve. An offline run has no env steps: over env steps it
is drawn over its updates.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rlx.report.data import Curve, Run
from rlx.report.statistics import band, iqm, mean

AXES = {"env_steps": "env steps", "updates": "updates", "wall_time": "wall time (s)"}
RETURN = "eval/return_mean"
SCORE = "eval/normalized_score"
FIRST = (RETURN, SCORE, "eval/success_rate", "eval/length_mean", "train/return_mean", "train/length_mean")
ASIDE = ("schedule/", "eval/return_std")  # drawn last

Array = np.ndarray


class Band(NamedTuple):
    """A statistic over runs along x, with the ends of its interval and the number of runs at each point."""

    x: Array
    value: Array
    low: Array
    high: Array
    runs: Array


def metrics_of(runs: Sequence[Run]) -> list[str]:
    """All metrics, those that tell most about a run first."""
    names = {name for run in runs for name in run.curves}

    def rank(name: str) -> tuple[int, bool, str]:
        return FIRST.index(name) if name in FIRST else len(FIRST), name.startswith(ASIDE), name

    return sorted(names, key=rank)


def thin(n: int, most: int) -> Array:
    """Indices of at most `most` of n points, evenly spaced, the first and the last among them."""
    if n <= most:
        return np.arange(n)
    return np.unique(np.round(np.linspace(0, n - 1, most)).astype(int))


def line(curve: Curve, axis: str) -> tuple[Array, Array]:
    """x and y of a run; over updates, where it has no env steps."""
    return curve.over("updates" if axis == "env_steps" and not curve.env_steps.any() else axis)


def over_seeds(lines: Sequence[tuple[Array, Array]], statistic: str, most: int) -> Band | None:
    """Mean or IQM of the curves of a group, at no more than `most` points."""
    lines = [(x, y) for x, y in lines if len(x)]
    if not lines:
        return None
    xs, values = on_one_grid(lines, most)
    there = np.isfinite(values)
    of = {"mean": mean, "iqm": iqm}[statistic]
    middle, low, high = (np.full(len(xs), np.nan) for _ in range(3))
    for pattern in np.unique(there, axis=1).T:  # the same runs behind each of these points
        points = (there == pattern[:, None]).all(0)
        middle[points], low[points], high[points] = band(values[pattern][:, points], of)
    return Band(xs, middle, low, high, there.sum(0))


def on_one_grid(lines: Sequence[tuple[Array, Array]], most: int) -> tuple[Array, Array]:
    """x [points] and values [runs, points]; nan where a run has not begun, or has ended."""
    grid = np.unique(np.concatenate([x for x, _ in lines]))
    grid = grid[thin(len(grid), most)]
    return grid, np.stack([np.interp(grid, x, y, left=np.nan, right=np.nan) for x, y in lines])
