"""What sweep.json keeps of each trial: enough to go on with a search without anything else."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rlx.errors import shown
from rlx.sweeps.search.space import Domain, Value

STATES = ("running", "paused", "done", "pruned", "failed")
NAMES = ("number", "values", "value", "state", "jobs", "reports", "generation")


@dataclass
class Trial:
    """Values that are tried, in one run or several that differ in their seeds."""

    number: int
    values: dict[str, Value]
    jobs: list[int]
    value: float | None = None  # of the objective, once it has ended
    state: str = "running"
    reports: list[list[float]] = field(default_factory=list)  # [step, value]: what it was compared with others by
    generation: int = 0  # of a population: how often it has been compared

    @property
    def over(self) -> bool:
        return self.state in ("done", "pruned", "failed")

    def reported(self) -> dict[int, float]:
        return {int(step): value for step, value in self.reports}


def best_of(trials: Sequence[Trial], direction: str) -> Trial | None:
    """The best that has ended, the first of equals."""
    sign = 1 if direction == "maximize" else -1
    done = [trial for trial in trials if trial.state == "done" and trial.value is not None]
    return max(done, key=lambda trial: sign * (trial.value or 0.0), default=None)


def trials_from(values: Any, domains: Sequence[Domain], jobs: int) -> list[Trial]:
    """Trials as sweep.json keeps them, checked; ValueError and the like for what rlx has not written."""
    trials = []
    by_name = {domain.name: domain for domain in domains}
    for number, written in enumerate(values):
        if type(written["number"]) is not int or written["number"] != number or written["state"] not in STATES:
            raise ValueError(f"trial {number} is not one of this search")
        drawn = {str(name): _value(value) for name, value in written["values"].items()}
        if drawn.keys() != by_name.keys():
            raise ValueError(f"trial {number} has values of other keys than the search")
        for name, value in drawn.items():
            _check_within(by_name[name], value)
        numbers = [n for n in written["jobs"] if type(n) is int and 0 <= n < jobs]
        if len(numbers) != len(written["jobs"]) or not numbers:
            raise ValueError(f"trial {number} has jobs that the sweep does not have")
        reports = [[float(step), float(value)] for step, value in written["reports"]]
        outcome = None if written["value"] is None else float(written["value"])
        trials.append(Trial(number, drawn, numbers, outcome, written["state"], reports, int(written["generation"])))
    return trials


def _value(value: Any) -> Value:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"{shown(value)} is neither a number nor a text")
    return value


def _check_within(domain: Domain, value: Value) -> None:
    if domain.kind == "choice":
        domain.text(value)  # StopIteration is not an error to pass on
        return
    if isinstance(value, str) or not math.isfinite(value) or not domain.low <= value <= domain.high:
        raise ValueError(f"{shown(value)} is not a value of {domain.name}")
