"""What the page draws from: one JSON object, small enough that a page of hundreds of runs opens at once.

Arrays are kept once and named by their number, since the runs of a sweep share their steps. Curves are thinned to what
a screen can show; the metrics that tell most about a run are kept longest.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import Any

import numpy as np

from rlx.errors import shown
from rlx.report.comparison import Comparison, Effect
from rlx.report.curves import AXES, RETURN, SCORE, line, metrics_of, over_seeds, thin
from rlx.report.data import Collection, Run, is_number
from rlx.report.groups import Group, Grouping
from rlx.sweeps.manifest import SEED, Sweep

POINTS = 200  # of a curve of the returns
FEWER = (200, 100, 50, 25)  # of a curve of any other metric
BUDGET = 450_000  # numbers in all curves together: about 4 MB
VALUE = 300  # characters of a config value


class Arrays:
    """Arrays by number, equal ones once."""

    def __init__(self) -> None:
        self.kept: list[list[float | None]] = []
        self._numbers: dict[bytes, int] = {}

    def add(self, values: np.ndarray) -> int:
        rounded = np.array([float(f"{value:.6g}") for value in values])
        key = rounded.tobytes()
        if key not in self._numbers:
            self._numbers[key] = len(self.kept)
            self.kept.append([_short(value) if np.isfinite(value) else None for value in rounded.tolist()])
        return self._numbers[key]


def _short(value: float) -> float:
    return int(value) if value.is_integer() and abs(value) < 1e15 else value


def payload_of(
    collection: Collection, grouping: Grouping, comparison: Comparison | None, effects: dict[str, list[Effect]]
) -> dict[str, Any]:
    runs = collection.runs
    arrays = Arrays()
    points, dropped = points_of(runs, len(grouping.groups))
    curves = {name: _curves_of(name, runs, grouping.groups, most, arrays) for name, most in points.items()}
    base, differences = common_config(runs)
    longest = max((len(curve.values) for run in runs for curve in run.curves.values()), default=0)
    return {
        "axes": {axis: label for axis, label in AXES.items() if any(_has(run, axis) for run in runs)},
        "keys": grouping.keys,
        "methods": [asdict(method) for method in grouping.methods],
        "envs": [env or "no environment" for env in grouping.envs],
        "groups": [asdict(group) for group in grouping.groups],
        "runs": [_run(run, differs) for run, differs in zip(runs, differences, strict=True)],
        "config": base,
        "curves": curves,
        "arrays": arrays.kept,
        "thinned": longest > min(points.values(), default=POINTS),
        "points": points,
        "dropped": dropped,
        "comparison": None if comparison is None else _comparison(comparison),
        "effects": {key: [_effect(effect) for effect in values] for key, values in effects.items()},
        "searches": [_search(sweep, runs) for sweep in collection.sweeps if sweep.search],
    }


def points_of(runs: list[Run], groups: int) -> tuple[dict[str, int], list[str]]:
    """How many points a curve of each metric may have, and which metrics there is no room for."""
    names = metrics_of(runs)
    lengths = {
        name: sum(min(POINTS, len(run.curves[name].values)) for run in runs if name in run.curves) for name in names
    }

    def cost(name: str, most: int) -> float:
        bands = groups * (10 if name.startswith("eval/") else 6)
        return lengths[name] * min(1.0, most / POINTS) + bands * most

    first = [name for name in names if name in (RETURN, SCORE)]
    rest = [name for name in names if name not in first]
    left = BUDGET - sum(cost(name, POINTS) for name in first)
    most = next((n for n in FEWER if sum(cost(name, n) for name in rest) <= left), FEWER[-1])
    points, dropped = dict.fromkeys(first, POINTS), []
    for name in rest:
        left -= cost(name, most)
        if left >= 0:
            points[name] = most
        else:
            dropped.append(name)
    return points, dropped


def _has(run: Run, axis: str) -> bool:
    return bool(run.curves) and any(getattr(curve, axis).any() for curve in run.curves.values())


def _curves_of(name: str, runs: list[Run], groups: list[Group], most: int, arrays: Arrays) -> dict[str, Any]:
    lines = {axis: [line(run.curves[name], axis) if name in run.curves else None for run in runs] for axis in AXES}
    statistics = ("mean", "iqm") if name.startswith("eval/") else ("mean",)
    return {
        "runs": [
            {
                axis: [arrays.add(part[thin(len(part), most)]) for part in lines[axis][i] or ()]
                for axis in AXES
                if lines[axis][i] is not None
            }
            for i in range(len(runs))
        ],
        "groups": [_bands(group, lines, statistics, most, arrays) for group in groups],
    }


def _bands(group: Group, lines: dict[str, Any], statistics: tuple[str, ...], most: int, arrays: Arrays) -> Any:
    made: dict[str, dict[str, Any]] = {}
    same: dict[bytes, list[int]] = {}  # over env steps and over updates the values are often the same
    for axis in AXES:
        there = [lines[axis][i] for i in group.runs if lines[axis][i] is not None]
        points = max(25, most // 2) if axis == "wall_time" else most
        for statistic in statistics:
            equal = all(len(x) == len(there[0][0]) and (x == there[0][0]).all() for x, _ in there)
            key = statistic.encode() + b"".join(y.tobytes() for _, y in there) if equal and len(there) else b""
            if key and key in same and axis != "wall_time":
                x = there[0][0]
                made.setdefault(axis, {})[statistic] = [arrays.add(x[thin(len(x), points)]), *same[key][1:]]
                continue
            band = over_seeds(there, statistic, points)
            if band is not None:
                made.setdefault(axis, {})[statistic] = same[key] = [arrays.add(part) for part in band]
    return made


def common_config(runs: list[Run]) -> tuple[dict[str, str], list[dict[str, str | None]]]:
    """The config that most runs have, and for each run where it differs (None: it has no such key)."""
    flat = [{key: shown(value, VALUE) for key, value in run.config.items()} for run in runs]
    keys = dict.fromkeys(key for config in flat for key in config)
    base = {key: Counter(config.get(key) for config in flat if config).most_common(1)[0][0] for key in keys}
    differences = [
        {key: config.get(key) for key in keys if config.get(key) != base[key]} if config else {} for config in flat
    ]
    return {key: value for key, value in base.items() if value is not None}, differences


def _run(run: Run, differs: dict[str, str | None]) -> dict[str, Any]:
    names = ("name", "state", "reason", "seed", "command", "log", "notes", "final", "best")
    return {name: getattr(run, name) for name in names} | {"differs": differs, "read": bool(run.config)}


def _comparison(comparison: Comparison) -> dict[str, Any]:
    values = asdict(comparison)
    for line_ in (*values["profiles"], *values["efficiency"]):
        for key, numbers in line_.items():
            line_[key] = None if numbers is None else [float(f"{number:.6g}") for number in numbers]
    return values


def _effect(effect: Effect) -> dict[str, Any]:
    return {"value": effect.value, "effect": list(effect.effect), "settings": effect.settings, "runs": effect.runs}


def _search(sweep: Sweep, runs: list[Run]) -> dict[str, Any]:
    """Trials of a search as rows of numbers and names, and how much each choice mattered, where it was written down."""
    search = sweep.search or {}
    trials = [(trial["values"], trial["value"]) for trial in _dicts(search.get("trials")) if _is_trial(trial)]
    if not trials:  # jobs are the trials
        own = [run for run in runs if run.path.parent == sweep.folder and run.final is not None]
        trials = [({key: run.choices.get(key, "") for key in sweep.swept if key != SEED}, run.final) for run in own]
    keys = list(dict.fromkeys(key for values, _ in trials for key in values))
    importance = search.get("importance")
    pairs = importance.items() if isinstance(importance, dict) else ()
    return {
        "name": shown(sweep.name),
        "objective": shown(search.get("objective") or "final return"),
        "keys": [shown(key) for key in keys],
        "trials": [
            {"choices": [shown(values.get(key, "")) for key in keys], "value": value} for values, value in trials
        ],
        "direction": "minimize" if search.get("direction") == "minimize" else "maximize",
        "importance": {shown(key): weight for key, weight in pairs if is_number(weight)},
    }


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _is_trial(trial: dict[str, Any]) -> bool:
    return isinstance(trial.get("values"), dict) and is_number(trial.get("value"))
