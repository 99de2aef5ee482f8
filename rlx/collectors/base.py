"""What a collector is: the env side of a run.

A collector owns the training envs and what acts in them: exploration, random steps, the reward transform and what a
resume needs to go on exactly. The trainer asks for steps, tells it about new weights, and knows nothing else of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from torch import Tensor

from rlx.types import Carry, ObsArray

RANDOM_STEPS = "random_steps"  # a knob: env steps that are still to be taken with random actions


class FinishedEpisode(NamedTuple):
    """A training episode that has ended."""

    ret: float  # raw return
    length: int
    info: dict[str, Any]  # the env's info at its last step


class Steps(NamedTuple):
    """One or more vector steps: rows [M, ...] in the order of time, env by env within a vector step.

    The arrays may be reused by the next call of `collect`: copy what you keep.
    """

    obs: ObsArray
    action: np.ndarray  # in the learner's units
    reward: np.ndarray  # after the reward transform
    next_obs: ObsArray  # final observations where an episode ended
    terminated: np.ndarray
    truncated: np.ndarray
    episodes: Sequence[FinishedEpisode]
    carry: Carry  # what the actor remembered before the first of these steps, one row per env
    lost_life: np.ndarray | None = None  # [M] bool: terminated to the learner alone, the episode goes on


class Collector(Protocol):
    """Acts in envs and gives back steps.

    It is made as `Target(config, learner, make_envs, reward, seed)`, or, where its config has no schema, as
    `Target(learner, make_envs, reward, seed, **values)`. `make_envs()` gives a VectorEnv.
    """

    num_envs: int
    lost: Sequence[int]  # envs that the latest `load_tensors` could not bring back, and that began new episodes

    def collect(self, n: int) -> Steps:
        """The next vector steps: at least one and at most n."""

    def load(self, weights: Callable[[], Mapping[str, Tensor]], version: int, knobs: Mapping[str, float]) -> None:
        """Act with these weights from now on.

        `weights` gives the learner's, for those who act elsewhere; `version` counts its updates; `knobs` are numbers
        that the trainer decides, such as RANDOM_STEPS.
        """

    def state(self) -> dict[str, Any]:
        """For a checkpoint, as JSON."""

    def tensors(self) -> dict[str, Tensor]:
        """For a checkpoint, what is not JSON."""

    def load_state(self, state: dict[str, Any]) -> None:
        """Take back what `state` gave, after the learner and the reward transform were restored."""

    def load_tensors(self, saved: dict[str, Tensor]) -> None:
        """Take back what `tensors` gave, after `load_state`; the envs are then where they were."""

    def close(self) -> None: ...
