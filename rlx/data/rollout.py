"""RolloutBuffer: the experience of one on-policy iteration, time first."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlx.system import enough_memory
from rlx.types import Carry, Rollout, Spec


class RolloutBuffer:
    """Holds up to `length` steps of `num_envs` envs; `sample` yields them once, as a Rollout."""

    def __init__(self, length: int, num_envs: int, spec: Spec):
        self.size = 0
        self.carry: Carry = ()  # what the actor remembered before the first step
        kind = {"box": np.float32, "discrete": np.int64, "multi_discrete": np.int64}[spec.action_kind]
        obs_dtype = np.dtype(spec.obs_dtype)
        lead = (length, num_envs)
        columns: dict[str, tuple[tuple[int, ...], Any]] = {
            "obs": (spec.obs_shape, obs_dtype),
            "action": (spec.action_shape, kind),
            "reward": ((), np.float32),
            "next_obs": (spec.obs_shape, obs_dtype),
            "terminated": ((), np.float32),
            "truncated": ((), np.float32),
        }
        row = sum(math.prod(shape) * np.dtype(dtype).itemsize for shape, dtype in columns.values())
        what = f"A rollout of {length:,} steps of {num_envs} envs"
        with enough_memory(length * num_envs * row, what, lambda k: f"try trainer.rollout_length={int(length * k)}"):
            self._columns = {name: np.zeros((*lead, *shape), dtype) for name, (shape, dtype) in columns.items()}

    def add(
        self,
        obs: np.ndarray,
        action: np.ndarray,
        reward: np.ndarray,
        next_obs: np.ndarray,
        terminated: np.ndarray,
        truncated: np.ndarray,
        carry: Carry = (),
    ) -> None:
        """Append one step of all envs; `carry` is what the actor remembered before it."""
        if self.size == 0:
            self.carry = carry
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
        columns: Any = {name: torch.from_numpy(column[:size]) for name, column in self._columns.items()}
        yield Rollout(**columns, carry=self.carry)

    def cut_off(self, envs: Sequence[int]) -> None:
        """The running episodes of these envs go no further: their newest steps become boundaries."""
        if self.size:
            last = self.size - 1
            self._columns["truncated"][last, envs] = 1.0 - self._columns["terminated"][last, envs]

    def tensors(self) -> dict[str, Tensor]:
        """A rollout that is still being collected, for a checkpoint."""
        columns = {name: torch.from_numpy(column[: self.size]) for name, column in self._columns.items()}
        return columns | {f"carry.{i}": tensor for i, tensor in enumerate(self.carry)}

    def load_tensors(self, saved: dict[str, Tensor]) -> None:
        self.size = len(saved["reward"])
        for name, column in self._columns.items():
            column[: self.size] = saved[name].numpy()
        self.carry = tuple(saved[f"carry.{i}"] for i in range(len(saved) - len(self._columns)))
