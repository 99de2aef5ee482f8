"""Applies schedules: learning rates through the optimizers' `scale`, other hyperparameters by name.

Values are set before the first iteration and after each one, for the next. They follow from counters alone. A
checkpoint keeps the counters they were computed at, because it may lie within an iteration.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from rlx.callbacks.bus import Callback
from rlx.errors import UserError, nearest, require
from rlx.learner import is_learning_rate
from rlx.schedules import (
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
    from rlx.trainers.trainer import Trainer

# Numbers of algorithms that are read once, when the learner or its data are made. Besides these, learning rates, what
# the learner keeps a copy of, and first values of what it learns (see `is_kept`) do not move either.
READ_ONCE = frozenset(
    {
        "actor_weight_decay", "adam_eps", "beta1", "critics", "discount", "dropout", "eps", "eval_candidates",
        "log_std_init", "quantiles", "square_decay", "target_entropy_scale",
    }
)  # fmt: skip


def numeric_fields(config: Any) -> dict[str, float]:
    """The numbers of a config dataclass, by name."""
    if not is_dataclass(config):
        return {}
    values = {f.name: getattr(config, f.name) for f in fields(config)}
    return {k: v for k, v in values.items() if isinstance(v, int | float) and not isinstance(v, bool)}


def is_kept(learner: Any, name: str) -> bool:
    """Does the learner have its own copy, in itself, as the logarithm of a parameter, or in an optimizer?"""
    if name in vars(learner) or hasattr(learner, f"log_{name}"):
        return True
    return any(getattr(optimizer, name, None) is not None for optimizer in learner.optimizers.values())


def movable(trainer: Trainer) -> dict[str, Any]:
    """The numbers that a schedule can move, because they are read at each update or action; with their configs."""
    learner, phases = trainer.learner, trainer.settings.phases.values()
    found: dict[str, Any] = {
        name: learner.cfg
        for name in numeric_fields(learner.cfg)
        if name not in READ_ONCE and not is_learning_rate(name) and not is_kept(learner, name)
    }
    if any(phase.on_policy for phase in phases):
        found.pop("batch_size", None)  # a rollout is one batch
    if trainer.prior is not None and any(phase.collect > 0 and not phase.on_policy for phase in phases):
        found["offline_batch_ratio"] = trainer.settings
    return found


def find_owner(trainer: Trainer, name: str) -> Any:
    """The config that holds the number `name`, if a schedule can move it."""
    found = movable(trainer)
    if name in found:
        return found[name]
    can = f"{trainer.learner.cfg.name} can move here: {', '.join(sorted(found))}."
    if is_learning_rate(name):
        raise UserError(
            f"schedule.targets.{name} is a learning rate, and the schedule itself multiplies all of them: set "
            f"schedule=linear or schedule.kind, schedule.start and schedule.end instead; what {can}"
        )
    if name in numeric_fields(trainer.learner.cfg) or name in numeric_fields(trainer.settings):
        raise UserError(
            f"schedule.targets.{name} is not read again once the run has begun, so no schedule can move it; what {can}"
        )
    guess = nearest(name, found)
    hint = f"did you mean schedule.targets.{guess}? What" if guess else "what"
    raise UserError(f"schedule.targets.{name} names no number of the algorithm or the trainer; {hint} {can}")


def as_declared(owner: Any, name: str, value: float) -> float:
    """A whole number where the config has one."""
    return value if "float" in str(owner.__dataclass_fields__[name].type) else round(value)


def check_value(trainer: Trainer, name: str, value: float) -> None:
    """Refuse what the algorithm would refuse in its config; a learner that is made with it knows."""
    owner, learner = find_owner(trainer, name), trainer.learner
    value = as_declared(owner, name, value)
    try:
        if owner is not learner.cfg:
            require(0 <= value <= 1, f"trainer.{name} is a share; give 0 to 1.")
            return
        with torch.random.fork_rng(devices=[]):  # a learner draws its first weights
            changed: dict[str, Any] = {name: value}
            type(learner)(replace(owner, **changed), learner.spec)
    except UserError as error:
        raise UserError(f"schedule.targets.{name} reaches {value:.3g}, which cannot be: {error}") from error


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

    def check(self, trainer: Trainer) -> None:
        for name in self.targets:
            find_owner(trainer, name)
        for spec in (self.lr, *self.targets.values()):
            self._value(trainer, spec, _counters(trainer))
        for name, spec in self.targets.items():
            for value in reached(spec, 1.0 if spec.unit is Unit.fraction else trainer.total_steps or 0):
                check_value(trainer, name, value)

    def on_run_start(self, trainer: Trainer) -> None:
        self._owners = {name: find_owner(trainer, name) for name in self.targets}
        self._apply(trainer, self._at or _counters(trainer))
        if self._still or not self.used:  # after a resume, the last row may still be about the iteration before
            self.used = self._next

    def on_iteration(self, trainer: Trainer) -> None:
        if not self._still:
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
            owner = self._owners[name]
            value = as_declared(owner, name, self._value(trainer, spec, at))
            setattr(owner, name, value)
            if name == "offline_batch_ratio":
                for phase in trainer.settings.phases.values():
                    if phase.collect > 0:
                        phase.offline_fraction = value
            self._next[f"schedule/{name}"] = value
