"""Applies schedules: learning rates through the optimizers' `scale`, other hyperparameters by name.

Values are set before the first iteration and after each one, for the next. They follow from counters alone. A
checkpoint keeps the counters they were computed at, because it may lie within an iteration.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

from rlx.callbacks.bus import Callback
from rlx.errors import UserError, nearest
from rlx.schedules import Kind, ScheduleConfig, ScheduleSpec, check_schedule, parse_target, resolve_schedule_value

if TYPE_CHECKING:
    from rlx.trainers.trainer import Trainer


def numeric_fields(config: Any) -> dict[str, float]:
    """The numbers of a config dataclass, by name."""
    if not is_dataclass(config):
        return {}
    values = {f.name: getattr(config, f.name) for f in fields(config)}
    return {k: v for k, v in values.items() if isinstance(v, int | float) and not isinstance(v, bool)}


def find_owner(trainer: Trainer, name: str) -> Any:
    """The config that holds the number `name`: the algorithm's first, then the trainer's."""
    owners = (trainer.learner.cfg, trainer.settings)
    for owner in owners:
        if name in numeric_fields(owner):
            return owner
    known = [k for owner in owners for k in numeric_fields(owner)]
    guess = nearest(name, known)
    hint = f"did you mean schedule.targets.{guess}?" if guess else f"there are: {', '.join(sorted(known))}."
    raise UserError(f"schedule.targets.{name} names no number of the algorithm or the trainer; {hint}")


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
        self._owners: dict[str, Any] = {}
        self._at: dict[str, int] | None = None  # the counters that the values in force were computed at
        self._still = all(spec.kind is Kind.constant for spec in (self.lr, *self.targets.values()))

    def on_run_start(self, trainer: Trainer) -> None:
        self._owners = {name: find_owner(trainer, name) for name in self.targets}
        self._apply(trainer, self._at or _counters(trainer))
        self.used = self._next

    def on_iteration(self, trainer: Trainer) -> None:
        if not self._still:
            self.used = self._next
            self._apply(trainer, _counters(trainer))

    def state(self) -> dict[str, Any]:
        return {"at": self._at}

    def load_state(self, state: dict[str, Any]) -> None:
        self._at = state["at"]

    def _apply(self, trainer: Trainer, at: dict[str, int]) -> None:
        self._at = at
        total = trainer.total_steps
        fraction = min(1.0, at["steps"] / total) if total else None

        def value_of(spec: ScheduleSpec) -> float:
            return resolve_schedule_value(spec, updates=at["updates"], env_steps=at["env_steps"], fraction=fraction)

        lr = value_of(self.lr)
        for optimizer in trainer.learner.optimizers.values():
            optimizer.scale = lr
        self._next = {"schedule/lr": lr}
        for name, spec in self.targets.items():
            owner = self._owners[name]
            whole = "float" not in str(owner.__dataclass_fields__[name].type)
            value = round(value_of(spec)) if whole else value_of(spec)
            setattr(owner, name, value)
            self._next[f"schedule/{name}"] = value
