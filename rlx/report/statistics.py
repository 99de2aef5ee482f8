"""Statistics over runs, as the field has settled on them (Agarwal et al., 2021, arXiv:2108.13264).

    iqm             mean of the middle half of all runs: as robust as a median, and it uses more of the data
    optimality gap  by how much runs fall short of a score of 1 on average
    profile         the share of runs that score above tau, for every tau
    improvement     the chance that a run of X beats a run of Y on a task: P(X > Y) + P(X = Y) / 2, mean over tasks

Scores are a list with one array of runs per task. Intervals are percentiles of a bootstrap that draws runs within each
task (stratified), with a fixed seed: the same runs always give the same figures.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

Array = np.ndarray
Scores = Sequence[Array]  # one array of runs per task
Statistic = Callable[[Scores], Array]  # of arrays [..., runs]; what is left is [...]

DRAWS = 2000
LEVEL = 0.95


class Estimate(NamedTuple):
    """A figure with its interval, which a single run does not have."""

    value: float
    low: float | None
    high: float | None


# -- of one sample, along the last axis --------------------------------------------------------------------------------


def iqm(values: Array) -> Array:
    """Mean of the middle half, fractional ends included: of 5 values, the three in the middle weigh 0.75, 1, 0.75."""
    ordered = np.sort(np.asarray(values, float), axis=-1)
    n = ordered.shape[-1]
    cut = n / 4
    weights = np.clip(np.minimum(np.arange(1, n + 1) - cut, n - cut - np.arange(n)), 0, 1)
    return np.asarray((weights * ordered).sum(-1) / weights.sum())


def mean(values: Array) -> Array:
    return np.asarray(np.mean(values, axis=-1))


# -- of scores over tasks ----------------------------------------------------------------------------------------------


def iqm_of(scores: Scores) -> Array:
    """IQM of all runs of all tasks together."""
    return iqm(np.concatenate(list(scores), axis=-1))


def mean_of(scores: Scores) -> Array:
    """Mean over tasks of the mean over runs."""
    return mean(np.stack([mean(task) for task in scores], axis=-1))


def median_of(scores: Scores) -> Array:
    """Median over tasks of the mean over runs; with a single task, the median over runs."""
    if len(scores) == 1:
        return np.asarray(np.median(scores[0], axis=-1))
    return np.asarray(np.median(np.stack([mean(task) for task in scores], axis=-1), axis=-1))


def gap_of(scores: Scores) -> Array:
    """How far runs fall short of 1 on average; what is above 1 does not make up for it."""
    return mean_of([1.0 - np.minimum(task, 1.0) for task in scores])


def profile_of(taus: Array) -> Statistic:
    """The share of runs above each tau, mean over tasks: [..., len(taus)]."""

    def profile(scores: Scores) -> Array:
        above = [(np.asarray(task)[..., None, :] > taus[:, None]).mean(-1) for task in scores]
        return np.asarray(np.mean(above, axis=0))

    return profile


def improvement(xs: Scores, ys: Scores) -> Array:
    """P(X > Y) + P(X = Y) / 2 of a run of X and one of Y on the same task, mean over tasks."""
    chances = []
    for x, y in zip(xs, ys, strict=True):
        x, y = np.asarray(x)[..., :, None], np.asarray(y)[..., None, :]
        chances.append(((x > y) + 0.5 * (x == y)).mean((-2, -1)))
    return np.asarray(np.mean(chances, axis=0))


# -- the bootstrap -----------------------------------------------------------------------------------------------------


def resample(scores: Scores, draws: int = DRAWS, seed: int = 0) -> list[Array]:
    """Runs drawn with replacement within each task: one array [draws, runs] per task."""
    rng = np.random.default_rng(seed)
    return [np.asarray(task, float)[rng.integers(0, len(task), (draws, len(task)))] for task in scores]


def percentiles(drawn: Array, level: float = LEVEL) -> tuple[Array, Array]:
    """Low and high ends of the interval that holds `level` of the draws, along the first axis."""
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return low, high


def estimate(scores: Scores, statistic: Statistic, draws: int = DRAWS) -> Estimate:
    """A statistic with its stratified bootstrap interval; where every task has one run, there is none."""
    value = float(statistic([np.asarray(task, float) for task in scores]))
    if all(len(task) < 2 for task in scores):
        return Estimate(value, None, None)
    low, high = percentiles(statistic(resample(scores, draws)))
    return Estimate(value, float(low), float(high))


def estimate_improvement(xs: Scores, ys: Scores, draws: int = DRAWS) -> Estimate:
    """The probability of improvement with its interval, both sides drawn anew."""
    value = float(improvement(xs, ys))
    if all(len(task) < 2 for task in (*xs, *ys)):
        return Estimate(value, None, None)
    low, high = percentiles(improvement(resample(xs, draws, 0), resample(ys, draws, 1)))
    return Estimate(value, float(low), float(high))


def band(values: Array, statistic: Callable[[Array], Array], draws: int = 1000) -> tuple[Array, Array, Array]:
    """A statistic over runs at every point of curves [runs, points], and the ends of its interval."""
    middle = statistic(values.T)
    n = len(values)
    if n < 2:
        return middle, middle, middle
    picked = np.random.default_rng(0).integers(0, n, (draws, n))
    if statistic is mean:  # by how often each run was drawn: one product instead of draws x runs x points
        counts = np.stack([(picked == i).sum(1) for i in range(n)], axis=1)
        drawn = counts @ values / n
    else:
        drawn = np.stack([statistic(column[picked]) for column in values.T], axis=1)
    return middle, *percentiles(drawn)


def smallest_p(n: int, m: int) -> float:
    """The smallest two-sided p that a rank test of n against m runs can give, all runs of one side above the other."""
    return min(1.0, 2 / math.comb(n + m, n))
