"""RolloutBuffer: the experience of one on-policy iteration, time first."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlx.reporting import counted
from rlx.system import enough_memory
from rlx.types import Carry, ObsArray, Rollout, Spec


class RolloutBuffer:
    """Holds up to `length` steps of `num_envs` envs; `sample` yields them once, as a Rollout.

    `carry`, what the actor remembered before the first step, is set by whoever collects; it stays until it is set anew.
    """

    def __init__(self, length: int, num_envs: int, spec: Spec):
        self.size = 0
        self.spec = spec
        self._carry: Carry = ()
        kind = {"box": np.float32, "discrete": np.int64, "multi_discrete": np.int64}[spec.action_kind]
        lead = (length, num_envs)
        number: tuple[tuple[int, ...], Any] = ((), np.float32)
        columns = {
            **{self._key("obs", name): (box.shape, np.dtype(box.dtype)) for name, box in spec.obs.items()},
            "action": (spec.action_shape, kind),
            "reward": number,
            **{self._key("next_obs", name): (box.shape, np.dtype(box.dtype)) for name, box in spec.obs.items()},
            "terminated": number,
            "truncated": number,
            "lost_life": ((), np.bool_),
        }
        row = sum(math.prod(shape) * np.dtype(dtype).itemsize for shape, dtype in columns.values())
        what = f"A rollout of {counted(length, 'step')} in {counted(num_envs, 'env')}"
        with enough_memory(length * num_envs * row, what, lambda k: f"try trainer.rollout_length={int(length * k)}"):
            self._columns = {name: np.zeros((*lead, *shape), dtype) for name, (shape, dtype) in columns.items()}

    def _key(self, kind: str, box: str) -> str:
        """What the column of a box is called: "obs", or "obs.pixels" where an observation is a dict."""
        return f"{kind}.{box}" if self.spec.boxes else kind

    @property
    def carry(self) -> Carry:
        return self._carry

    @carry.setter
    def carry(self, carry: Sequence[Any]) -> None:
        """Arrays or tensors [num_envs, ...], which are copied."""
        self._carry = tuple(torch.as_tensor(part).detach().clone() for part in carry)

    def add(
        self,
        obs: ObsArray,
        action: np.ndarray,
        reward: np.ndarray,
        next_obs: ObsArray,
        terminated: np.ndarray,
        truncated: np.ndarray,
        carry: Carry = (),
        lost_life: np.ndarray | None = None,
    ) -> None:
        """Append one step of all envs; `carry` is what the actor remembered before it."""
        if self.size == 0:
            self.carry = carry
        lost = False if lost_life is None else lost_life
        values = (*self._parts(obs), action, reward, *self._parts(next_obs), terminated, truncated, lost)
        for column, value in zip(self._columns.values(), values, strict=True):
            column[self.size] = value
        self.size += 1

    def _parts(self, obs: Any) -> list[np.ndarray]:
        return [obs[name] for name in self.spec.obs] if self.spec.boxes else [obs]

    @property
    def ready(self) -> bool:
        return self.size > 0

    def sample(self, batch_size: int, n_batches: int) -> Iterator[Rollout]:
        """The rollout, once; the buffer is empty afterwards."""
        size, self.size = self.size, 0
        columns: dict[str, Any] = {name: torch.from_numpy(column[:size]) for name, column in self._columns.items()}
        if self.spec.boxes:
            for kind in ("obs", "next_obs"):
                columns[kind] = {name: columns.pop(self._key(kind, name)) for name in self.spec.obs}
        yield Rollout(**columns, carry=self._carry)

    def end_episodes(self, lanes: Sequence[int]) -> None:
        """The running episodes of these envs go no further: their newest steps become boundaries."""
        if self.size:
            last = self.size - 1
            self._columns["truncated"][last, lanes] = 1.0 - self._columns["terminated"][last, lanes]
            self._columns["lost_life"][last, lanes] = False

    # -- checkpoints -----------------------------------------------------------------------------------------------

    def tensors(self) -> dict[str, Tensor]:
        """A rollout that is still being collected."""
        columns = {name: torch.from_numpy(column[: self.size]) for name, column in self._columns.items()}
        return columns | {f"carry.{i}": part for i, part in enumerate(self._carry)}

    def load_tensors(self, saved: Mapping[str, Tensor]) -> None:
        self.size = len(saved["reward"])
        for name, column in self._columns.items():
            if name in saved or name != "lost_life":  # which older checkpoints lack
                column[: self.size] = saved[name].numpy()
            else:
                column[: self.size] = False
        self.carry = [saved[f"carry.{i}"] for i in range(sum(name.startswith("carry.") for name in saved))]

    def state(self) -> dict[str, Any]:
        """Nothing: a rollout is read once, and what has been collected of it is in `tensors`."""
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        """There is nothing to take back."""
