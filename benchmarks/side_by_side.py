"""Interquartile mean with a bootstrap interval, as the learning benchmarks report it."""

import numpy as np


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
