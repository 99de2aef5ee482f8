"""Schedules: how a value moves over a run, as a pure function of the run's counters.

With t the position on the schedule's clock, w the warm-up, h the horizon and p = clip((t - w) / (h - w), 0, 1):

    constant        start
    linear          start + (end - start) * clip(t / h, 0, 1)
    cosine          end + (start - end) * (1 + cos(pi * clip(t / h, 0, 1))) / 2
    warmup_linear   start * t / w while t < w, then start + (end - start) * p
    warmup_cosine   start * t / w while t < w, then end + (start - end) * (1 + cos(pi * p)) / 2
    step            start * gamma ** floor(t / step_size)

t, w, h and step_size are in one unit: learner updates, env steps, or the fraction of the run's budget that is spent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any, TypeVar

from rlx.errors import UserError, nearest

E = TypeVar("E", bound=Enum)
NEAR = 1e-3  # of a slope: how far from its end counts as there

# what phases call a key of the trainer; a schedule takes both names and moves the phases
FIELDS_OF_PHASES = {"offline_batch_ratio": "offline_fraction"}
MIXTURE = frozenset({*FIELDS_OF_PHASES, *FIELDS_OF_PHASES.values()})


class Kind(Enum):
    """The shapes a schedule can have."""

    constant = "constant"
    linear = "linear"
    cosine = "cosine"
    warmup_linear = "warmup_linear"
    warmup_cosine = "warmup_cosine"
    step = "step"


class Unit(Enum):
    """The clocks a schedule can run on."""

    updates = "updates"
    env_steps = "env_steps"
    fraction = "fraction"


def _member(kind: type[E], value: Any) -> E:
    if isinstance(value, kind):
        return value
    names = [m.value for m in kind]
    if value not in names:
        raise UserError(f"Unknown schedule {kind.__name__.lower()} {value!r}. Choices: {', '.join(names)}.")
    return kind(value)


@dataclass
class ScheduleSpec:
    """How one value moves."""

    kind: Kind = Kind.constant
    unit: Unit = Unit.fraction  # of warmup, horizon and step_size
    start: float = 1.0  # the value at the beginning, or after the warm-up
    end: float = 0.0  # the value at the horizon and after it
    warmup: float = 0.0  # how long warmup_* rises from 0 to start
    horizon: float = 1.0  # when the value arrives at end
    step_size: float = 0.25  # step: how long each value is held
    gamma: float = 0.5  # step: factor from one value to the next

    def __post_init__(self) -> None:
        self.kind = _member(Kind, self.kind)  # plain names are welcome: ScheduleSpec(kind="linear")
        self.unit = _member(Unit, self.unit)


@dataclass
class ScheduleConfig(ScheduleSpec):
    """The multiplier of every learning rate, and other numbers by name."""

    _target_: str = "rlx.callbacks.schedule.Schedules"
    targets: dict[str, Any] = field(default_factory=dict)  # hyperparameter -> fields of a ScheduleSpec, or a number


def parse_target(name: str, value: Any) -> ScheduleSpec:
    """The schedule of one hyperparameter, from what the user wrote: fields of a ScheduleSpec, or a constant."""
    if isinstance(value, ScheduleSpec):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return ScheduleSpec(start=float(value))
    known = [f.name for f in fields(ScheduleSpec)]
    if not isinstance(value, Mapping):
        raise UserError(
            f"schedule.targets.{name} is {value!r}; expected a number or fields of a schedule, "
            f"such as schedule.targets.{name}={{kind: linear, start: 1.0, end: 0.1}}."
        )
    for key, given in value.items():
        if key not in known:
            guess = nearest(str(key), known)
            hint = f"did you mean {guess!r}?" if guess else f"expected one of {', '.join(known)}."
            raise UserError(f"schedule.targets.{name} has no field {key!r}; {hint}")
        if key not in ("kind", "unit") and (isinstance(given, bool) or not isinstance(given, int | float)):
            raise UserError(f"schedule.targets.{name}.{key} is {given!r}; expected a number.")
    return ScheduleSpec(**value)


def check_schedule(spec: ScheduleSpec, name: str) -> None:
    """Refuse what has no meaning; `name` is how the user would address this schedule."""
    kind = spec.kind
    if kind in (Kind.linear, Kind.cosine, Kind.warmup_linear, Kind.warmup_cosine) and spec.horizon <= 0:
        raise UserError(f"{name}.horizon is {spec.horizon}; expected a positive number of {spec.unit.value}.")
    if kind in (Kind.warmup_linear, Kind.warmup_cosine) and not 0 <= spec.warmup < spec.horizon:
        raise UserError(
            f"{name}.warmup is {spec.warmup}; expected at least 0 and less than {name}.horizon ({spec.horizon})."
        )
    if kind is Kind.step and spec.step_size <= 0:
        raise UserError(f"{name}.step_size is {spec.step_size}; expected a positive number of {spec.unit.value}.")
    if kind is not Kind.constant and spec.unit is Unit.fraction and max(spec.warmup, spec.horizon) > 1:
        raise UserError(
            f"{name}.warmup and {name}.horizon are fractions of the run, at most 1; for counts set {name}.unit=updates "
            f"or {name}.unit=env_steps."
        )


def reached(spec: ScheduleSpec, total: float) -> set[float]:
    """The outermost values of a schedule whose clock goes from 0 to `total`: all but the very ends of a slope, which
    may be 0 where 0 itself would make no sense.
    """
    if spec.kind is Kind.constant:
        return {spec.start}
    if spec.kind is Kind.step:
        return {spec.start, spec.start * spec.gamma ** math.floor(total / spec.step_size)}
    warms_up = spec.kind in (Kind.warmup_linear, Kind.warmup_cosine) and spec.warmup > 0
    return {spec.start, spec.end + (spec.start - spec.end) * NEAR, *((spec.start * NEAR,) if warms_up else ())}


def resolve_schedule_value(
    spec: ScheduleSpec, *, updates: int = 0, env_steps: int = 0, fraction: float | None = None
) -> float:
    """The value of `spec` when the run stands at these counters; `fraction` is None where no budget is known."""
    if spec.kind is Kind.constant:
        return spec.start
    if spec.unit is Unit.fraction and fraction is None:
        raise UserError(
            "A schedule over the fraction of a run needs a budget on the run's clock: set trainer.max_env_steps where "
            "it collects, trainer.max_updates where it only learns from a dataset, or trainer.max_epochs; or give the "
            "schedule a clock of its own (schedule.unit=updates schedule.horizon=10000)."
        )
    clock = {Unit.updates: updates, Unit.env_steps: env_steps, Unit.fraction: fraction}
    t = float(clock[spec.unit] or 0)
    if spec.kind is Kind.step:
        return spec.start * spec.gamma ** math.floor(t / spec.step_size)

    warmup = spec.warmup if spec.kind in (Kind.warmup_linear, Kind.warmup_cosine) else 0.0
    if t < warmup:
        return spec.start * t / warmup
    p = min(1.0, (t - warmup) / (spec.horizon - warmup))
    if spec.kind in (Kind.linear, Kind.warmup_linear):
        return spec.start + (spec.end - spec.start) * p
    return spec.end + (spec.start - spec.end) * (1 + math.cos(math.pi * p)) / 2
