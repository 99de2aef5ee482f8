"""RolloutBuffer: the experience of one on-policy iteration, time first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from rlx.types import Rollout, Spec


class RolloutBuffer:
    """Holds up to `length` steps of `num_envs` envs; `sample` yields them once, as a Rollout."""

    def __init__(self, length: int, num_envs: int, spec: Spec):
        kind = {"box": np.float32, "discrete": np.int64, "multi_discrete": np.int64}[spec.action_kind]
        obs_dtype = np.dtype(spec.obs_dtype)
        lead = (length, num_envs)
        self._columns = {
            "obs": np.zeros((*lead, *spec.obs_shape), obs_dtype),
            "action": np.zeros((*lead, *spec.action_shape), kind),
            "reward": np.zeros(lead, np.float32),
            "next_obs": np.zeros((*lead, *spec.obs_shape), obs_dtype),
            "terminated": np.zeros(lead, np.float32),
            "truncated": np.zeros(lead, np.float32),
        }
        self.size = 0

    def add(
        self,
        obs: np.ndarray,
        action: np.ndarray,
        reward: np.ndarray,
        next_obs: np.ndarray,
        terminated: np.ndarray,
        truncated: np.ndarray,
    ) -> None:
        """Append one step of all envs."""
        values = (obs, action, reward, next_obs, terminated, truncated)
        for column, value in zip(self._columns.values(), values, strict=True):
            column[self.size] = value
        self.size += 1

    @property
    def ready(self) -> bool:
        return self.size > 0

    def sample(self, batch_size: int, n_batches: int) -> Iterator[Rollout]:
        """The rollout, once; the buffer is empty afterwards."""
        size, self.size = self.size, 0
        yield Rollout(**{name: torch.from_numpy(column[:size]) for name, column in self._columns.items()})

    def cut_off(self, envs: Sequence[int]) -> None:
        """The running episodes of these envs go no further: their newest steps become boundaries."""
        if self.size:
            last = self.size - 1
            self._columns["truncated"][last, envs] = 1.0 - self._columns["terminated"][last, envs]

    def tensors(self) -> dict[str, Tensor]:
        """A rollout that is still being collected, for a checkpoint."""
        return {name: torch.from_numpy(column[: self.size]) for name, column in self._columns.items()}

    def load_tensors(self, saved: dict[str, Tensor]) -> None:
        self.size = len(saved["reward"])
        for name, column in self._columns.items():
            column[: self.size] = saved[name].numpy()
