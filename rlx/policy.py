"""Policy: a trained learner for those who only want actions, in the env's own units."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlx.agent import LearnerAgent
from rlx.envs.actions import unscaled
from rlx.errors import UserError, require
from rlx.learner import Learner
from rlx.obs import map_obs, num_rows, take_rows
from rlx.types import OBS, Box, ObsArray, Spec


def as_box(values: Any, box: Box) -> np.ndarray:
    """An array of the box's dtype; UserError for what are no numbers, and where pixels would lose what was given."""
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise UserError(f"An observation must be numbers in lists of equal lengths, of shape {box.shape}.") from error
    require(array.dtype.kind in "buif", f"An observation must be numbers in lists, of shape {box.shape}.")
    pixels = box.dtype == "uint8" and array.dtype != np.uint8
    if pixels and not ((array % 1 == 0) & (array >= 0) & (array <= 255)).all():
        hint = "; multiply those from 0 to 1 by 255" if array.dtype.kind == "f" else ""
        raise UserError(f"Pixels must be whole numbers from 0 to 255{hint}.")
    return np.asarray(array, box.dtype)


class Policy:
    """What `rlx.load` returns: raw observations in, env actions out.

    A policy with memory remembers what it has seen from one call of `act` to the next: call `reset` where an episode
    begins, and `feedback` after each step if the policy is conditioned on returns. It acts by the nodes, native or
    Python, that it was trained with, and leaves those of the process as they are.
    """

    def __init__(self, learner: Learner):
        self.learner = learner.eval()
        self.spec: Spec = learner.spec
        self._agent: LearnerAgent | None = None  # None: the next call begins new episodes
        self._rows = 0  # observations that it acts on at a time

    def __repr__(self) -> str:
        spec = self.spec
        shape = {name: box.shape for name, box in spec.boxes} if spec.boxes else spec.obs_shape
        return (
            f"Policy({self.learner.cfg.name} on {spec.env_id}: observations {shape}, {spec.action_kind} "
            f"actions {spec.action_shape or spec.action_sizes})"
        )

    def act(self, obs: Any, deterministic: bool = True) -> Any:
        """The action for one observation, or for a batch of them."""
        batch, single = self._as_batch(obs)
        agent = self._agent_for(num_rows(batch))
        agent.explore = not deterministic
        action = unscaled(agent.act(batch), self.spec)
        return action[0] if single else action

    def reset(self, rows: Sequence[int] | None = None) -> None:
        """New episodes begin: in these rows of the batch, or everywhere. Nothing to do for a policy without memory."""
        if rows is None:
            self._agent = None
        elif self._agent is not None:
            self._agent.begin(rows)

    def feedback(self, reward: Any) -> None:
        """What the latest step earned: one reward, or one for each row of the batch."""
        if self._agent is None:
            raise UserError("feedback is about the latest action and there is none yet; call act first.")
        self._agent.feedback(np.broadcast_to(np.asarray(reward, np.float32), (self._rows,)))

    def _agent_for(self, rows: int) -> LearnerAgent:
        if self._agent is None or (rows != self._rows and not self._agent.carry):
            self._agent, self._rows = LearnerAgent(self.learner, rows), rows
        if rows != self._rows:
            raise UserError(
                f"This policy is in the middle of {self._rows} episodes and was given {rows} observations; call "
                "reset() to begin new episodes."
            )
        return self._agent

    def _as_batch(self, obs: Any) -> tuple[ObsArray, bool]:
        """The observation as rows of arrays, and whether it was a single one."""
        boxes = self.spec.obs
        if self.spec.boxes and not (isinstance(obs, dict) and obs.keys() == boxes.keys()):
            raise UserError(f"{self.spec.env_id} has observations with the parts {', '.join(boxes)}; give all of them.")
        if not self.spec.boxes and isinstance(obs, dict):
            shape = self.spec.obs_shape
            raise UserError(
                f"{self.spec.env_id} has observations without parts; give numbers in lists, of shape {shape}."
            )
        parts = obs if self.spec.boxes else {OBS: obs}
        arrays = {name: as_box(parts[name], box) for name, box in boxes.items()}
        single = all(arrays[name].shape == box.shape for name, box in boxes.items())
        for name, box in boxes.items():
            if box.shape not in (arrays[name].shape, arrays[name].shape[1:]):
                what = f"part {name!r} of the observation" if self.spec.boxes else "observation"
                raise UserError(
                    f"The {what} has shape {arrays[name].shape}; {self.spec.env_id} expects {box.shape}, "
                    "or a batch of such observations."
                )
        if len({array.shape[: array.ndim - len(boxes[name].shape)] for name, array in arrays.items()}) > 1:
            shapes = ", ".join(f"{name!r} {array.shape}" for name, array in arrays.items())
            raise UserError(f"The parts of the observation have the shapes {shapes}; give equally many of each.")
        batch = arrays if self.spec.boxes else arrays[OBS]
        return (take_rows(batch, np.newaxis), True) if single else (map_obs(np.ascontiguousarray, batch), False)
