"""The vocabulary that every part of rlx shares: Spec, Batch, Windows, Rollout, Acted, Metrics."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from torch import Tensor

Metrics = dict[str, Tensor]  # stable names such as "loss/critic"; values are detached 0-d tensors
Obs = Tensor | dict[str, Tensor]  # [N, *shape]; a dict where the Spec has several boxes
ObsArray = np.ndarray | dict[str, np.ndarray]  # the same on the side of the envs
Carry = tuple[Tensor, ...]  # what an actor remembers from step to step, [N, ...] each; () without memory

OBS = "obs"  # the name of the one box of an observation that is a single array
NO_ENV = "none"  # the env id of runs without a simulator


class Box(NamedTuple):
    """One part of an observation."""

    shape: tuple[int, ...]
    dtype: str  # "float32" or "uint8" (images)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def is_image(self) -> bool:
        return len(self.shape) == 3


class Goal(NamedTuple):
    """Where the goals lie in a flattened goal observation `[observation | achieved | desired]`."""

    dim: int
    achieved: tuple[int, int]  # start and end of the achieved goal in the flat observation
    desired: tuple[int, int]


class Spec(NamedTuple):
    """What a learner has to know of an environment. Shapes come from here, never from YAML."""

    env_id: str
    obs_shape: tuple[int, ...]
    obs_dtype: str  # "float32" or "uint8" (images)
    action_kind: str  # "box", "discrete" or "multi_discrete"
    action_shape: tuple[int, ...]  # (dim,) for box, () for discrete, (components,) for multi_discrete
    action_low: tuple[float, ...] = ()  # env units; box only
    action_high: tuple[float, ...] = ()
    action_sizes: tuple[int, ...] = ()  # number of choices of each discrete component
    episode_limit: int | None = None
    goal: Goal | None = None
    boxes: tuple[tuple[str, Box], ...] = ()  # by name, of an observation that is a dict; obs_shape is then ()

    @property
    def obs(self) -> dict[str, Box]:
        """The boxes of an observation by name; a single array is the box "obs"."""
        return dict(self.boxes) if self.boxes else {OBS: Box(self.obs_shape, self.obs_dtype)}

    @property
    def discrete(self) -> bool:
        return self.action_kind != "box"

    @property
    def obs_dim(self) -> int:
        """How many numbers an observation has."""
        return sum(box.size for box in self.obs.values())

    @property
    def action_dim(self) -> int:
        """dim(A) of a box; the number of choices of a discrete space."""
        return self.action_shape[0] if self.action_kind == "box" else sum(self.action_sizes)


class Batch(NamedTuple):
    """Transitions to learn from. Box actions are scaled to [-1, 1]; discrete ones are int64."""

    obs: Tensor  # [B, *obs_shape]
    action: Tensor  # [B, dim(A)], or [B] int64
    reward: Tensor  # [B], after the reward transform; summed and discounted over n steps
    next_obs: Tensor  # [B, *obs_shape]; the real successor, also at the end of an episode
    terminated: Tensor  # [B], 1.0 stops bootstrapping
    discount: Tensor  # [B], gamma ** n
    weight: Tensor | None = None  # [B] importance weights of a prioritized replay
    index: Tensor | None = None  # type: ignore[assignment]  # [B] rows to re-prioritise
    mc_return: Tensor | None = None  # [B] discounted Monte-Carlo return, where a dataset has it


class Windows(NamedTuple):
    """Stretches of episodes to learn from; padded entries are 0 everywhere."""

    obs: Tensor  # [B, L, *obs_shape]
    action: Tensor  # [B, L, dim(A)], or [B, L] int64
    reward: Tensor  # [B, L]
    return_to_go: Tensor  # [B, L], sum of (discounted) rewards from this row to the end of the episode
    terminated: Tensor  # [B, L]
    timestep: Tensor  # [B, L] int64, place in the episode
    mask: Tensor  # [B, L], 1.0 where real


class Rollout(NamedTuple):
    """On-policy experience, time first."""

    obs: Tensor  # [T, N, *obs_shape]
    action: Tensor  # [T, N, ...], unclipped
    reward: Tensor  # [T, N]
    next_obs: Tensor  # [T, N, *obs_shape]; the final observation where an episode ended
    terminated: Tensor  # [T, N] float
    truncated: Tensor  # [T, N] float
    carry: Carry = ()  # what the actor remembered before the first step, [N, ...] each
    lost_life: Tensor | None = None  # [T, N] bool: terminated, but the episode goes on, and so does what is remembered


class Acted(NamedTuple):
    """What an actor did about a batch of observations."""

    action: Tensor  # [N, dim(A)] in [-1, 1], or int64 [N] or [N, components]
    carry: Carry = ()  # to be handed back at the next step
    extras: Mapping[str, Tensor] = MappingProxyType({})  # [N, ...] by name, such as log_prob
