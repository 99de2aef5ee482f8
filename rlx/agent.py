"""Agents: whatever acts in N lanes at once.

Whoever runs envs gives an agent observations, takes its actions, and tells it where episodes begin and what a step
earned. `LearnerAgent` is the usual one: a learner's actor, with the carry of every lane.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch

from rlx.learner import Learner
from rlx.nn.native import Nodes
from rlx.nn.native.choose import nodes_to_act_by
from rlx.obs import map_obs, to_tensors
from rlx.types import Carry, ObsArray


class Agent(Protocol):
    """Acts in N lanes; one that remembers nothing has nothing to do in `begin` and `feedback`."""

    def act(self, obs: ObsArray) -> np.ndarray:
        """Actions [N, ...] in the learner's units for raw observations [N, ...]."""

    def begin(self, lanes: Sequence[int]) -> None:
        """New episodes begin in these lanes."""

    def feedback(self, reward: np.ndarray) -> None:
        """The rewards [N] of the latest step, in the env's units."""


class LearnerAgent:
    """A learner's actor at work, by the nodes that it was trained with; the carry is kept here, one row per lane."""

    def __init__(self, learner: Learner, lanes: int, explore: bool = False):
        self.actor = learner.actor
        self.explore = explore
        self.carry: Carry = self.actor.initial(lanes)  # never written to: whoever keeps it keeps what it was
        self._as_process = learner.native is None
        self._nodes = nodes_to_act_by(bool(learner.native))
        self._device = next(iter(learner.parameters())).device
        self._on_cpu = self._device.type == "cpu"

    def act(self, obs: ObsArray) -> np.ndarray:
        tensors = to_tensors(obs)
        if not self._on_cpu:
            tensors = map_obs(lambda part: part.to(self._device), tensors)
        if self._as_process:
            acted = self.actor.act(tensors, self.carry, self.explore)
        else:
            with Nodes(self._nodes):
                acted = self.actor.act(tensors, self.carry, self.explore)
        self.carry = acted.carry
        return acted.action.numpy() if self._on_cpu else acted.action.cpu().numpy()

    def begin(self, lanes: Sequence[int]) -> None:
        if self.carry and len(lanes):
            index = torch.tensor(list(lanes), dtype=torch.long, device=self._device)
            fresh = self.actor.initial(len(index))
            self.carry = tuple(old.index_copy(0, index, new) for old, new in zip(self.carry, fresh, strict=True))

    def feedback(self, reward: np.ndarray) -> None:
        if self.carry:
            earned = torch.tensor(reward, dtype=torch.float32, device=self._device)
            self.carry = self.actor.feedback(self.carry, earned)
