"""Applies schedules: learning rates through the optimizers' `scale`, other hyperparameters by name.

Values are set before the first iteration and after each one, for the next. They follow from counters alone. A
checkpoint keeps the counters they were computed at, because it may lie within an iteration.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

from rlx.callbacks.bus import Callback
from rlx.errors import UserError, nearest
from rlx.fields import check_number, is_read_once
from rlx.learner import is_learning_rate
from rlx.schedules import (
    FIELDS_OF_PHASES,
    Kind,
    ScheduleConfig,
    ScheduleSpec,
    Unit,
    check_schedule,
    parse_target,
    reached,
    resolve_schedule_value,
)

if TYPE_CHECKING:
    from rlx.trainers.trainer import Phase, Trainer


def numeric_fields(config: Any) -> dict[str, float]:
    """The numbers of a config dataclass, by name."""
    if not is_dataclass(config):
        return {}
    values = {f.name: getattr(config, f.name) for f in fields(config)}
    return {k: v for k, v in values.items() if isinstance(v, int | float) and not isinstance(v, bool)}


def moves(config: Any) -> list[str]:
    """The numbers of a config dataclass that are read at each update or action, so that a schedule can move them."""
    return [name for name in numeric_fields(config) if not is_read_once(config, name) and not is_learning_rate(name)]


def mixing_phases(trainer: Trainer) -> list[Phase]:
    """The phases whose batches may be mixed from a dataset and what the run collects."""
    phases = trainer.plan.phases.values()
    return [p for p in phases if p.collect > 0 and not p.on_policy] if trainer.prior is not None else []


def movable(trainer: Trainer) -> dict[str, list[Any]]:
    """What a schedule can move, by the name of its target: the configs that hold it."""
    cfg, mixing = trainer.learner.cfg, mixing_phases(trainer)
    owners: dict[str, list[Any]] = {name: [cfg] for name in moves(cfg)}
    if any(phase.on_policy for phase in trainer.plan.phases.values()):
        owners.pop("batch_size", None)  # a rollout is one batch
    if mixing:
        owners |= dict.fromkeys(moves(mixing[0]), mixing)
        owners |= {name: mixing for name, field in FIELDS_OF_PHASES.items() if field in owners}
    return owners


def find_owners(trainer: Trainer, name: str) -> list[Any]:
    """The configs that hold the number `name`, if a schedule can move it."""
    owners = movable(trainer)
    if name in owners:
        return owners[name]
    can = f"{trainer.learner.cfg.name} can move here: {', '.join(sorted(owners))}."
    if is_learning_rate(name):
        raise UserError(
            f"schedule.targets.{name} is a learning rate, and the schedule itself multiplies all of them: set "
            f"schedule=linear or schedule.kind, schedule.start and schedule.end instead; what {can}"
        )
    phases = trainer.plan.phases.values()
    if any(name in numeric_fields(config) for config in (trainer.learner.cfg, trainer.plan, *phases)):
        raise UserError(
            f"schedule.targets.{name} is not read again once the run has begun, so no schedule can move it; what {can}"
        )
    guess = nearest(name, owners)
    hint = f"did you mean schedule.targets.{guess}? What" if guess else "what"
    raise UserError(f"schedule.targets.{name} names no number of the algorithm or the trainer; {hint} {can}")


def as_declared(owner: Any, name: str, value: float) -> float:
    """A whole number where the config has one."""
    return value if "float" in str(owner.__dataclass_fields__[name].type) else round(value)


def check_value(trainer: Trainer, name: str, value: float) -> None:
    """Refuse what the config itself would refuse."""
    field = FIELDS_OF_PHASES.get(name, name)
    for owner in find_owners(trainer, name):
        whole = as_declared(owner, field, value)
        try:
            check_number(owner, field, whole, "algo" if owner is trainer.learner.cfg else "trainer.phases")
        except UserError as error:
            raise UserError(f"schedule.targets.{name} reaches {whole:.3g}: {error}") from error


def _counters(trainer: Trainer) -> dict[str, int]:
    state = trainer.state
    return {"updates": state.updates, "env_steps": state.env_steps, "steps": state.steps}


class Schedules(Callback):
    """Sets every scheduled value for the next iteration."""

    order = 5

    def __init__(self, cfg: ScheduleConfig):
        self.lr: ScheduleSpec = cfg
        self.targets = {name: parse_target(name, value) for name, value in cfg.targets.items()}
        check_schedule(self.lr, "schedule")
        for name, spec in self.targets.items():
            check_schedule(spec, f"schedule.targets.{name}")
        self.used: dict[str, float] = {}  # what the iteration that just ended was run with, as metrics
        self._next: dict[str, float] = {}
        self._owners: dict[str, list[Any]] = {}
        self._at: dict[str, int] | None = None  # the counters that the values in force were computed at
        self._constant = all(spec.kind is Kind.constant for spec in (self.lr, *self.targets.values()))

    def check(self, trainer: Trainer) -> None:
        for name in self.targets:
            find_owners(trainer, name)
            field = FIELDS_OF_PHASES.get(name, name)
            if field != name and field in self.targets:
                raise UserError(f"schedule.targets.{name} and schedule.targets.{field} are the same number; give one.")
        for spec in (self.lr, *self.targets.values()):
            self._value(trainer, spec, _counters(trainer))
        for name, spec in self.targets.items():
            for value in reached(spec, 1.0 if spec.unit is Unit.fraction else trainer.total_steps or 0):
                check_value(trainer, name, value)

    def on_run_start(self, trainer: Trainer) -> None:
        self._owners = {name: find_owners(trainer, name) for name in self.targets}
        self._apply(trainer, self._at or _counters(trainer))
        if self._constant or not self.used:  # after a resume, the last row may still be about the iteration before
            self.used = self._next

    def on_iteration(self, trainer: Trainer) -> None:
        if not self._constant:
            self.used = self._next
            self._apply(trainer, _counters(trainer))

    def state(self) -> dict[str, Any]:
        return {"at": self._at, "used": self.used}

    def load_state(self, state: dict[str, Any]) -> None:
        self._at = state["at"]
        self.used = state.get("used", {})  # older checkpoints have none

    @staticmethod
    def _value(trainer: Trainer, spec: ScheduleSpec, at: dict[str, int]) -> float:
        total = trainer.total_steps
        fraction = min(1.0, at["steps"] / total) if total else None
        return resolve_schedule_value(spec, updates=at["updates"], env_steps=at["env_steps"], fraction=fraction)

    def _apply(self, trainer: Trainer, at: dict[str, int]) -> None:
        self._at = at
        lr = self._value(trainer, self.lr, at)
        for optimizer in trainer.learner.optimizers.values():
            optimizer.scale = lr
        self._next = {"schedule/lr": lr}
        for name, spec in self.targets.items():
            field = FIELDS_OF_PHASES.get(name, name)
            for owner in self._owners[name]:
                value = as_declared(owner, field, self._value(trainer, spec, at))
                setattr(owner, field, value)
                self._next[f"schedule/{name}"] = value
