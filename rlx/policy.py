"""Policy: a trained learner for those who only want actions, in the env's own units."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from rlx.envs.runner import box_scale
from rlx.errors import UserError
from rlx.learner import Learner
from rlx.types import Carry, Spec


class Policy:
    """What `rlx.load` returns: raw observations in, env actions out."""

    def __init__(self, learner: Learner):
        self.learner = learner.eval()
        self.spec: Spec = learner.spec
        self._carry: Carry | None = None

    def reset(self) -> None:
        """Forget: the next observations are the first of new episodes."""
        self._carry = None

    def __repr__(self) -> str:
        spec = self.spec
        return (
            f"Policy({self.learner.cfg.name} on {spec.env_id}: observations {spec.obs_shape}, {spec.action_kind} "
            f"actions {spec.action_shape or spec.action_sizes})"
        )

    def act(self, obs: Any, deterministic: bool = True) -> Any:
        """The action for one observation, or for a batch of them."""
        array = np.asarray(obs, self.spec.obs_dtype)
        single = array.shape == self.spec.obs_shape
        if not single and array.shape[1:] != self.spec.obs_shape:
            raise UserError(
                f"The observation has shape {array.shape}; {self.spec.env_id} expects {self.spec.obs_shape}, "
                "or a batch of such observations."
            )
        action = unscaled(self.act_scaled(array[None] if single else array, deterministic), self.spec)
        return action[0] if single else action

    def act_scaled(self, obs: np.ndarray, deterministic: bool = True) -> np.ndarray:
        """Actions in the learner's units, [-1, 1] for a box, for a batch of observations."""
        actor = self.learner.actor
        carry = self._carry if self._carry and len(self._carry[0]) == len(obs) else actor.initial(len(obs))
        acted = actor.act(torch.from_numpy(obs), carry, explore=not deterministic)
        self._carry = acted.carry
        return acted.action.cpu().numpy()


def unscaled(action: np.ndarray, spec: Spec) -> np.ndarray:
    """Actions from the learner's units to those of the env; discrete and unbounded ones stay as they are."""
    low, high = np.array(spec.action_low, np.float32), np.array(spec.action_high, np.float32)
    if spec.discrete:
        return action
    half, middle, limit = box_scale(low, high)
    return np.clip(action, -limit, limit) * half + middle
