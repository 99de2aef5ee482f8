"""What a checkpoint of a run holds: its parts by name, each of which can be written down and taken back.

    data        fingerprint of the dataset, which is not part of a checkpoint and has to be the same
    trainer     counters, and where in which phase the run is
    learner     weights, optimizers, counters
    reward      statistics of the reward transform
    replay      generator, priorities; its rows are kept in segments, see `rlx.checkpoint`
    prior       generator that draws from the dataset
    augment     generator that augmentations draw from
    rollout     what has been collected of an on-policy rollout
    journal     the collector: where the envs are, what its actor remembers
    callbacks   what each of them keeps
    rng         python, numpy, torch
    threads     of torch, on which rounding depends
    native      whether native nodes computed, which round differently

A part has `state` and `load_state` (JSON), `tensors` and `load_tensors`, or both. They are taken back in this order:
the collector needs the learner and the reward transform, and nothing may disturb the random states afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rlx.checkpoint import CheckpointData
from rlx.errors import UserError
from rlx.nn.native.choose import is_native
from rlx.restoring import check_like
from rlx.rng import load_rng_state, load_rng_tensors, rng_state, rng_tensors
from rlx.trainers.state import TrainerState

if TYPE_CHECKING:
    from rlx.data.reader import Reader
    from rlx.data.replay import Replay
    from rlx.learner import Learner
    from rlx.trainers.trainer import Trainer


@dataclass
class Part:
    """How one part of a run is written down and taken back."""

    state: Callable[[], Any] | None = None
    load_state: Callable[[Any], None] | None = None
    tensors: Callable[[], dict[str, Tensor]] | None = None
    load_tensors: Callable[[dict[str, Tensor]], None] | None = None
    rows: Replay | None = None  # whose rows are written in segments; they come back first
    of_policy: bool = False  # does a checkpoint of the policy alone hold it, too

    @classmethod
    def of(cls, part: Any, **options: Any) -> Part:
        """Of an object that has these methods under their names."""
        methods: list[Any] = [getattr(part, n, None) for n in ("state", "load_state", "tensors", "load_tensors")]
        return cls(*methods, **options)


def parts_of(trainer: Trainer) -> dict[str, Part]:
    """The parts of a run, in the order in which they are taken back."""
    learner, reward = trainer.learner, trainer.reward
    return {
        "data": _data(trainer),
        "trainer": Part(lambda: asdict(trainer.state), lambda state: _load_counters(trainer, state), of_policy=True),
        "learner": Part(
            learner.counters,
            lambda state: _load_learner(learner, state),
            learner.tensors,
            learner.load_tensors,
            of_policy=True,
        ),
        "reward": Part(reward.state, lambda state: _load_like(reward, state, "reward"), of_policy=True),
        "replay": Part.of(trainer.replay, rows=trainer.replay),
        "prior": _prior(trainer.prior),
        "augment": Part.of(trainer.augment),
        "rollout": Part.of(trainer.rollout),
        "journal": Part.of(trainer.collector),
        "callbacks": Part.of(trainer.bus),
        "rng": Part(rng_state, load_rng_state, rng_tensors, load_rng_tensors),
        "threads": Part(torch.get_num_threads),
        "native": Part(is_native, of_policy=True),
    }


class Snapshot:
    """Writes the parts of a run as checkpoints and takes them back."""

    def __init__(self, trainer: Trainer):
        self._trainer = trainer
        self._parts = parts_of(trainer)

    def save(self) -> Path:
        """A checkpoint of everything."""
        rows = next((part.rows for part in self._parts.values() if part.rows is not None), None)
        return self._trainer.checkpoints.save_step(self._written(self._parts), self._trainer.state.steps, rows)

    def save_policy(self) -> Path:
        """A checkpoint of the policy alone."""
        checkpoint = self._written({name: part for name, part in self._parts.items() if part.of_policy})
        checkpoint.state["policy_only"] = True
        return self._trainer.checkpoints.save_best(checkpoint, self._trainer.state.steps)

    def _written(self, parts: dict[str, Part]) -> CheckpointData:
        state = {name: part.state() for name, part in parts.items() if part.state is not None}
        groups = {name: part.tensors() for name, part in parts.items() if part.tensors is not None}
        groups = {name: tensors for name, tensors in groups.items() if tensors}
        return CheckpointData.of(self._trainer.cfg, self._trainer.spec, state, groups)

    def load(self, saved: CheckpointData) -> None:
        """Take every part back; ValueError and the like where a part is not one of this run."""
        for name, part in self._parts.items():
            if part.rows is not None:
                self._trainer.checkpoints.load_replay(saved, part.rows)
            if part.load_state is not None:
                part.load_state(saved.state.get(name))
            if part.load_tensors is not None:
                part.load_tensors(saved.tensors.get(name, {}))


# -- parts that are checked before they are taken back ---------------------------------------------------------------


def _data(trainer: Trainer) -> Part:
    """The dataset is not part of a checkpoint: it has to be the one that the run began with."""
    dataset = trainer.dataset
    if dataset is None:
        return Part(lambda: None)
    fingerprint = dataset.fingerprint()

    def compare(saved: dict[str, int] | None) -> None:
        known = saved or {}  # older checkpoints have none
        different = {name.removeprefix("some ") for name, now in fingerprint.items() if known.get(name, now) != now}
        if different:
            raise UserError(
                f"{dataset.source} has changed since the checkpoint was written ({', '.join(sorted(different))}), "
                "and a run can only go on with the data that it began with; put them back, say where they are (`python "
                f"-m rlx resume {trainer.run_dir} dataset.path=FILE`, or dataset.id=ID), or start a new run."
            )

    return Part(lambda: fingerprint, compare)


def _load_counters(trainer: Trainer, state: dict[str, Any]) -> None:
    check_like(state, asdict(TrainerState()), "trainer")
    _refuse_negative(state)
    if state["phase"] not in ("", *trainer.plan.phases):
        raise ValueError(f"its phase {state['phase']!r:.40} is not one of this run")
    trainer.state = TrainerState(**state)


def _load_learner(learner: Learner, state: dict[str, int]) -> None:
    check_like(state, learner.counters(), "learner")
    _refuse_negative(state)
    learner.load_counters(state)


def _refuse_negative(state: dict[str, Any]) -> None:
    if any(type(value) is int and value < 0 for value in state.values()):
        raise ValueError("its counters are not those of a run")


def _load_like(part: Any, state: Any, name: str) -> None:
    check_like(state, part.state(), name)
    part.load_state(state)


def _prior(prior: Reader | None) -> Part:
    if prior is None:
        return Part()

    def load(state: dict[str, Any]) -> None:
        if state["total"] != prior.state()["total"]:
            raise ValueError("its dataset had another length")
        prior.load_state(state)

    return Part(prior.state, load)
