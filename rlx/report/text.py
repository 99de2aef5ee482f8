"""The report as Markdown and JSON, and how figures are written."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlx.report.analysis import Analysis
from rlx.report.comparison import MILESTONES
from rlx.report.data import Run
from rlx.report.statistics import Estimate, estimate, iqm_of, mean_of
from rlx.report.tables import columns_of
from rlx.reporting import counted


@dataclass
class Result:
    """What a method came to on an environment."""

    method: str
    env: str
    runs: int
    ended: int
    mean: Estimate | None  # of the last evaluations
    iqm: Estimate | None
    best: Estimate | None  # mean of the best evaluations


def results_of(analysis: Analysis) -> list[Result]:
    """One row per method and environment, in the order of the environments, the best first."""
    rows = []
    for group in analysis.grouping.groups:
        ended = [analysis.runs[i] for i in group.runs if analysis.runs[i].ended_well]
        finals = np.array([run.final for run in ended], float)
        bests = np.array([run.best for run in ended if run.best is not None], float)
        rows.append(
            (
                group.env,
                Result(
                    analysis.grouping.methods[group.method].label,
                    analysis.grouping.envs[group.env],
                    len(group.runs),
                    len(ended),
                    estimate([finals], mean_of) if len(finals) else None,
                    estimate([finals], iqm_of) if len(finals) else None,
                    estimate([bests], mean_of) if len(bests) else None,
                ),
            )
        )
    return [row for _, row in sorted(rows, key=lambda r: (r[0], -(r[1].iqm.value if r[1].iqm else -math.inf)))]


# -- figures -----------------------------------------------------------------------------------------------------------


def number(value: float | None, digits: int = 4) -> str:
    """About four digits that matter: 12,346, 1,234, 123.4, 1.234, 0.0123."""
    if value is None:
        return "–"
    size = abs(value)
    if value == 0 or 1e-3 <= size < 1e12:
        whole = len(str(int(size))) if size >= 1 else 0
        decimals = max(0, digits - whole) if size >= 1 else 3
        return f"{value:,.{decimals}f}"
    return f"{value:.{digits - 1}g}"


def interval(estimate: Estimate | None) -> str:
    """'-151.2 [-160.1, -140.9]'."""
    if estimate is None:
        return "–"
    if estimate.low is None:
        return number(estimate.value)
    return f"{number(estimate.value)} [{number(estimate.low)}, {number(estimate.high)}]"


def duration(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    if seconds < 100:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 100 else f"{minutes / 60:.1f} h"


def within(run: Run) -> float | None:
    """Half the width of the 95 % interval of a run's last evaluation, over its episodes."""
    if run.final_std is None or not run.episodes or run.episodes < 2:
        return None
    return 1.96 * run.final_std / math.sqrt(run.episodes)


# -- Markdown ----------------------------------------------------------------------------------------------------------


def markdown(analysis: Analysis) -> str:
    states = ", ".join(f"{count} {state}" for state, count in analysis.states.items())
    parts = [f"# {_plain(analysis.title)}", f"{counted(len(analysis.runs), 'run')}: {states}."]
    for sweep in analysis.collection.sweeps:
        parts.append(f"    {_line(sweep.command)}")
    several = len(analysis.grouping.envs) > 1
    rows = [
        [_plain(r.method), *([_plain(r.env)] if several else []), f"{r.ended} of {r.runs}",
         *map(interval, (r.iqm, r.mean, r.best))]
        for r in results_of(analysis)
    ]  # fmt: skip
    head = ["method", *(["environment"] if several else []), "finished", "IQM", "mean", "mean of the best"]
    parts += [
        "## Results",
        "Return of the last evaluation over seeds, with 95 % bootstrap intervals.",
        _rows(head, rows),
    ]
    parts += _comparison(analysis)
    if any(analysis.effects.values()):
        unit = "return" if len(analysis.grouping.envs) == 1 else "score"
        parts += ["## What mattered", f"Effect on the {unit} against the mean of all values of a choice, with the "
                  "others held fixed."]  # fmt: skip
        parts.append(
            _rows(
                ["choice", "effect", "settings", "runs"],
                [
                    [_plain(f"{key}={effect.value}"), interval(effect.effect), str(effect.settings), str(effect.runs)]
                    for key, values in analysis.effects.items()
                    for effect in values
                ],
            )
        )
    if analysis.failures:
        parts.append("## Failures")
        parts += [f"- {_plain(run.name)}: {_plain(run.reason or 'no reason given')}" for run in analysis.failures]
    parts += ["## Runs", _rows(
        ["run", "state", "final", "best", "env steps", "updates", "wall time"],
        [[_plain(run.name), run.state, number(run.final), number(run.best), f"{run.env_steps or 0:,}",
          f"{run.updates or 0:,}", duration(run.wall_time)] for run in analysis.runs],
    )]  # fmt: skip
    return "\n\n".join(parts) + "\n"


def _comparison(analysis: Analysis) -> list[str]:
    comparison = analysis.comparison
    if comparison is None:
        return []
    labels = [_plain(analysis.grouping.methods[m].label) for m in comparison.methods]
    parts = ["## Comparison", scale_sentence(comparison.scale)]
    if labels:
        columns = [comparison.aggregates[name] for name in ("iqm", "median", "mean", "gap")]
        figures = [[label, *map(interval, row)] for label, *row in zip(labels, *columns, strict=True)]
        parts.append(_rows(["method", "IQM", "median", "mean", "optimality gap"], figures))
        levels = [f"steps to {level:.0%}" for level in MILESTONES]
        rows = [
            [label, *("–" if x is None else f"{x:,.0f}" for x in steps)]
            for label, steps in zip(labels, comparison.milestones, strict=True)
        ]
        parts.append(_rows(["method", *levels], rows))
    if comparison.cautions:
        parts += ["### What cannot be concluded", "\n".join(f"- {_plain(text)}" for text in comparison.cautions)]
    return parts


def scale_sentence(scale: str) -> str:
    if scale == "normalised":
        return "Scores are normalised: 0 is a random policy, 1 an expert."
    return "Scores are scaled within this report: on each environment 0 is the worst and 1 the best finished run."


def _rows(head: list[str], rows: list[list[str]]) -> str:
    """A table of cells that are Markdown already."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _plain(text: str) -> str:
    """Text from a run, so that Markdown reads it as text."""
    escaped = "".join(f"\\{c}" if c in "\\`*|<>[]#" else c for c in text)
    return escaped.replace("&", "&amp;")


def _line(text: str) -> str:
    return " ".join(text.split())


# -- JSON --------------------------------------------------------------------------------------------------------------


def as_json(analysis: Analysis) -> str:
    comparison = analysis.comparison
    methods = analysis.grouping.methods
    value: dict[str, Any] = {
        "title": analysis.title,
        "states": analysis.states,
        "versions": analysis.versions,
        "sweeps": [{"name": sweep.name, "command": sweep.command} for sweep in analysis.collection.sweeps],
        "results": [_result(result) for result in results_of(analysis)],
        "effects": {
            key: [{"value": e.value, **_figure(e.effect), "settings": e.settings, "runs": e.runs} for e in effects]
            for key, effects in analysis.effects.items()
        },
        "runs": columns_of(analysis.collection),
        "notes": analysis.collection.notes,
    }
    if comparison is not None:
        labels = [methods[m].label for m in comparison.methods]
        value["comparison"] = {
            "scale": comparison.scale,
            "methods": labels,
            "aggregates": {
                name: [_figure(estimate) for estimate in estimates] for name, estimates in comparison.aggregates.items()
            },
            "improvement": [[None if e is None else _figure(e) for e in row] for row in comparison.improvement],
            "steps_to": {f"{level}": [steps[i] for steps in comparison.milestones]
                         for i, level in enumerate(MILESTONES)},
            "cautions": comparison.cautions,
        }  # fmt: skip
    return json.dumps(value, indent=1, allow_nan=False) + "\n"


def _figure(estimate: Estimate | None) -> dict[str, Any]:
    return {} if estimate is None else estimate._asdict()


def _result(result: Result) -> dict[str, Any]:
    figures = {name: _figure(getattr(result, name)) for name in ("mean", "iqm", "best")}
    return {"method": result.method, "env": result.env, "runs": result.runs, "finished": result.ended, **figures}
