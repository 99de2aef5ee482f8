"""The vocabulary that every part of rlx shares: Spec, Batch, Rollout, Metrics."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

Metrics = dict[str, Tensor]  # stable names such as "loss/critic"; values are detached 0-d tensors


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

    @property
    def discrete(self) -> bool:
        return self.action_kind != "box"

    @property
    def obs_dim(self) -> int:
        size = 1
        for n in self.obs_shape:
            size *= n
        return size

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


class Rollout(NamedTuple):
    """On-policy experience, time first."""

    obs: Tensor  # [T, N, *obs_shape]
    action: Tensor  # [T, N, ...], unclipped
    reward: Tensor  # [T, N]
    next_obs: Tensor  # [T, N, *obs_shape]; the final observation where an episode ended
    terminated: Tensor  # [T, N] float
    truncated: Tensor  # [T, N] float
