"""How methods compare: aggregate scores, profiles, who beats whom, how soon, and what cannot be concluded.

A score is the return of a run's last evaluation on a scale that environments share: the normalised score (0 random, 1
expert) where all of them have one; otherwise 0 is the worst and 1 the best run of this report on that environment. Only
runs that ended well are compared.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from rlx.report.curves import RETURN, SCORE, line, thin
from rlx.report.data import Run
from rlx.report.groups import Grouping
from rlx.report.statistics import (
    Estimate,
    Scores,
    Statistic,
    estimate,
    estimate_improvement,
    gap_of,
    iqm_of,
    mean,
    mean_of,
    median_of,
    percentiles,
    profile_of,
    resample,
    smallest_p,
)

AGGREGATES: dict[str, Statistic] = {"iqm": iqm_of, "median": median_of, "mean": mean_of, "gap": gap_of}
MILESTONES = (0.5, 0.75, 0.9)
MOST_METHODS = 40  # that are compared: beyond them pairs are no longer read
FEW = 5  # seeds, below which bootstrap intervals are too narrow to be taken at their word


@dataclass
class Line:
    """A curve with its interval."""

    x: list[float]
    value: list[float]
    low: list[float] | None
    high: list[float] | None


@dataclass
class Effect:
    """What one value of a swept choice did to the result, against the mean of its values, all others held fixed."""

    value: str
    effect: Estimate
    settings: int  # of the other choices, in which it could be compared
    runs: int


@dataclass
class Comparison:
    scale: str  # "normalised", or "scaled" within this report
    methods: list[int]  # that have runs on every env, best IQM first
    aggregates: dict[str, list[Estimate]] = field(default_factory=dict)  # by statistic, for each of `methods`
    profiles: list[Line] = field(default_factory=list)
    improvement: list[list[Estimate | None]] = field(default_factory=list)  # row beats column
    efficiency: list[Line] = field(default_factory=list)
    milestones: list[list[float | None]] = field(default_factory=list)  # steps until IQM reaches each of MILESTONES
    cautions: list[str] = field(default_factory=list)  # what cannot be concluded


class Scale:
    """From returns of an env to scores."""

    def __init__(self, runs: list[Run]):
        compared = [run for run in runs if run.ended_well]
        self.normalised = bool(compared) and all(SCORE in run.curves for run in compared)
        finals: dict[str, list[float]] = {}
        for run in compared:
            assert run.final is not None
            finals.setdefault(run.env, []).append(run.final)
        self.ends = {env: (min(values), max(values)) for env, values in finals.items()}

    def final(self, run: Run) -> float:
        if self.normalised:
            return float(run.curves[SCORE].values[-1]) / 100
        assert run.final is not None
        return float(self._scaled(run.env, np.array(run.final)))

    def curve(self, run: Run) -> tuple[np.ndarray, np.ndarray]:
        name = SCORE if self.normalised else RETURN
        if name not in run.curves:
            return np.zeros(0), np.zeros(0)
        x, y = line(run.curves[name], "env_steps")
        return x, y / 100 if self.normalised else self._scaled(run.env, y)

    def _scaled(self, env: str, values: np.ndarray) -> np.ndarray:
        low, high = self.ends[env]
        return (values - low) / (high - low) if high > low else np.ones_like(values)


def compare(runs: list[Run], grouping: Grouping) -> Comparison | None:
    """None where no run has ended well."""
    scale = Scale(runs)
    ended = {
        (group.method, group.env): [runs[i] for i in group.runs if runs[i].ended_well] for group in grouping.groups
    }
    envs = sorted({env for (_, env), there in ended.items() if there})
    whole = [m for m in range(len(grouping.methods)) if all(ended.get((m, env)) for env in envs)]
    if not envs:
        return None
    scores = {m: [np.array([scale.final(run) for run in ended[m, env]]) for env in envs] for m in whole}
    methods = sorted(whole, key=lambda m: -float(iqm_of(scores[m])))[:MOST_METHODS]
    comparison = Comparison("normalised" if scale.normalised else "scaled", methods)
    comparison.cautions = cautions(runs, grouping, scores, methods, len(envs))
    if not methods:
        return comparison
    for name, statistic in AGGREGATES.items():
        comparison.aggregates[name] = [estimate(scores[m], statistic) for m in methods]
    comparison.profiles = profiles([scores[m] for m in methods])
    comparison.improvement = [
        [None if a == b else estimate_improvement(scores[a], scores[b]) for b in methods] for a in methods
    ]
    for m in methods:
        curve = efficiency([[scale.curve(run) for run in ended[m, env]] for env in envs])
        comparison.efficiency.append(curve)
        comparison.milestones.append([reached(curve, level) for level in MILESTONES])
    comparison.cautions += indistinct(comparison, grouping)
    return comparison


def profiles(scores: list[Scores]) -> list[Line]:
    """The share of runs above tau, for each method."""
    every = np.concatenate([task for method in scores for task in method])
    margin = 0.05 * (every.max() - every.min() or 1.0)
    taus = np.linspace(every.min() - margin, every.max() + margin, 101)
    lines = []
    for method in scores:
        profile = profile_of(taus)
        middle = profile([np.asarray(task) for task in method])
        low, high = percentiles(profile(resample(method, 500)))
        single = all(len(task) < 2 for task in method)
        ends = (None, None) if single else (low.tolist(), high.tolist())
        lines.append(Line(taus.tolist(), middle.tolist(), *ends))
    return lines


def efficiency(tasks: list[list[tuple[np.ndarray, np.ndarray]]], points: int = 60) -> Line:
    """IQM over tasks and runs along the steps that all of them have made."""
    curves = [curve for task in tasks for curve in task]
    if not all(len(x) for x, _ in curves):
        return Line([], [], None, None)
    first, last = max(x[0] for x, _ in curves), min(x[-1] for x, _ in curves)
    grid = np.unique(np.concatenate([x for x, _ in curves]))
    grid = grid[(grid >= first) & (grid <= last)]
    grid = grid[thin(len(grid), points)]
    values = [np.stack([np.interp(grid, x, y) for x, y in task], axis=-1) for task in tasks]  # [points, runs]
    middle = iqm_of(values)
    if all(len(task) < 2 for task in tasks):
        return Line(grid.tolist(), middle.tolist(), None, None)
    rng = np.random.default_rng(0)
    drawn = [np.moveaxis(v[:, rng.integers(0, v.shape[1], (500, v.shape[1]))], 1, 0) for v in values]
    low, high = percentiles(iqm_of(drawn))
    return Line(grid.tolist(), middle.tolist(), low.tolist(), high.tolist())


def reached(curve: Line, level: float) -> float | None:
    """Where a curve is first at or above a level."""
    return next((x for x, value in zip(curve.x, curve.value, strict=True) if value >= level), None)


# -- what cannot be concluded ------------------------------------------------------------------------------------------


def cautions(
    runs: list[Run], grouping: Grouping, scores: dict[int, list[np.ndarray]], methods: list[int], envs: int
) -> list[str]:
    """Sentences that stand beside the figures."""
    said = []
    left_out = [run for run in runs if not run.ended_well]
    if left_out:
        states = {state: sum(run.state == state for run in left_out) for state in {run.state for run in left_out}}
        counts = ", ".join(f"{n} {'not evaluated' if s == 'done' else s}" for s, n in sorted(states.items()))
        said.append(
            f"{len(left_out)} of {len(runs)} runs are left out of the comparison ({counts}). Where some methods "
            "fail more often than others, these figures flatter them."
        )
    if not methods:
        said.append("No method has a finished run on every environment, so nothing is aggregated over them.")
        return said
    if len(methods) < len(grouping.methods):
        others = len(grouping.methods) - len(methods)
        said.append(f"{others} of {len(grouping.methods)} methods are not compared: they have no finished run on every "
                    f"environment, or are beyond the best {MOST_METHODS}.")  # fmt: skip
    fewest = min(len(task) for m in methods for task in scores[m])
    if fewest == 1:
        said.append(
            "Some methods were run with a single seed. A single run says nothing about how much of a difference is "
            "chance: no ranking can be concluded from it."
        )
    elif fewest < FEW:
        said.append(
            f"Some methods were run with {fewest} seeds only. Bootstrap intervals of so few runs are too narrow, and "
            "methods whose intervals do not touch may still be equal."
        )
    p = smallest_p(fewest, fewest)
    if len(methods) > 1 and envs == 1 and p > 0.05 and fewest > 1:
        said.append(
            f"With {fewest} against {fewest} runs even a method whose every run is better cannot be told from chance "
            f"at the 5 % level (the smallest possible p of a rank test is {p:.2g})."
        )
    if envs == 1:
        said.append("There is one environment: nothing here says how the methods compare on others.")
    pairs = len(methods) * (len(methods) - 1) // 2
    if pairs >= 10:
        said.append(f"{pairs} pairs are compared: about {max(1, round(pairs * 0.05))} of them can be expected to look "
                    "different by chance alone.")  # fmt: skip
    return said


def indistinct(comparison: Comparison, grouping: Grouping) -> list[str]:
    """Which of the others cannot be told from the best."""
    best, *others = comparison.methods
    same = []
    for i, m in enumerate(others, start=1):
        chance = comparison.improvement[0][i]
        if chance is not None and (chance.low is None or chance.low <= 0.5):
            same.append(grouping.methods[m].label)
    if not same:
        return []
    names = ", ".join(same[:8]) + (f" and {len(same) - 8} more" if len(same) > 8 else "")
    return [
        f"{grouping.methods[best].label} has the highest IQM, but these runs do not show that it is better than "
        f"{names}: the interval of the probability of improvement includes one half."
    ]


# -- what mattered -----------------------------------------------------------------------------------------------------


def effects(runs: list[Run], grouping: Grouping, draws: int = 2000) -> dict[str, list[Effect]]:
    """For every swept choice: the mean difference that each of its values makes while all others stay as they are.

    In units of the return where there is one environment, of the score otherwise.
    """
    scale = Scale(runs)
    single = len(grouping.envs) == 1
    cells: dict[tuple[str, ...], np.ndarray] = {}
    for group in grouping.groups:
        values = [runs[i].final if single else scale.final(runs[i]) for i in group.runs if runs[i].ended_well]
        if values:
            choices = grouping.methods[group.method].choices
            cell = (*(choices[key] for key in grouping.keys), grouping.envs[group.env])
            cells[cell] = np.array(values, float)
    drawn = {cell: mean(resample([values], draws, seed)[0]) for seed, (cell, values) in enumerate(cells.items())}
    return {key: _effects_of(i, cells, drawn) for i, key in enumerate(grouping.keys)}


def _effects_of(
    place: int, cells: dict[tuple[str, ...], np.ndarray], drawn: dict[tuple[str, ...], np.ndarray]
) -> list[Effect]:
    settings: dict[tuple[str, ...], list[tuple[str, ...]]] = {}
    for cell in cells:
        settings.setdefault((*cell[:place], *cell[place + 1 :]), []).append(cell)
    values: dict[str, list[tuple[float, np.ndarray]]] = {}
    runs: dict[str, int] = {}
    repeated: dict[str, bool] = {}
    for there in settings.values():
        if len(there) < 2:
            continue  # nothing to compare with
        middle = np.mean([cells[cell].mean() for cell in there])
        middle_drawn = np.mean([drawn[cell] for cell in there], axis=0)
        for cell in there:
            values.setdefault(cell[place], []).append((cells[cell].mean() - middle, drawn[cell] - middle_drawn))
            runs[cell[place]] = runs.get(cell[place], 0) + len(cells[cell])
            repeated[cell[place]] = repeated.get(cell[place], False) or len(cells[cell]) > 1
    found = []
    for value, differences in values.items():
        middle = float(np.mean([difference for difference, _ in differences]))
        low, high = percentiles(np.mean([draws for _, draws in differences], axis=0))
        ends = (float(low), float(high)) if repeated[value] else (None, None)
        found.append(Effect(value, Estimate(middle, *ends), len(differences), runs[value]))
    return sorted(found, key=lambda effect: -effect.effect.value)
