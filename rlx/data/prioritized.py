"""Prioritized replay (Schaul et al., 2016), arXiv:1511.05952, proportional variant.

    P(i) = p_i / sum_k p_k,   p_i = (|TD error of i| + eps)^alpha,   a new row: the largest p so far
    w_i  = (N P(i))^-beta, divided by the largest of the minibatch; beta rises to 1, where w undoes all of the bias

Every minibatch is drawn when it is asked for, one row from each of its equal shares of the sum, so it follows the
priorities that the update before has set. `SumTree` has 32 children per node: a million leaves are four levels, and an
operation on many leaves is a few NumPy calls per level. Its nodes are sums of their children and never corrected by
differences, so the leaves alone determine it, and a checkpoint holds nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlx.data.replay import Replay, UniformConfig, cut, whole
from rlx.errors import require
from rlx.types import Batch, Spec

FAN_OUT = 32


@dataclass
class PrioritizedConfig(UniformConfig):
    """Replay that draws transitions by their TD errors."""

    _target_: str = "rlx.data.prioritized.PrioritizedReplay"
    alpha: float = 0.6  # how far priorities count; 0 is uniform
    beta: float = 0.4  # how far importance weights correct for it, at the start
    beta_end: float = 1.0  # and at the end
    beta_batches: int = 50_000  # minibatches in between
    eps: float = 1e-6  # added to every TD error, so that each transition can be drawn again


class SumTree:
    """Sums over a fixed number of leaves, for drawing leaves in proportion to their values."""

    def __init__(self, size: int):
        sizes = [size]
        while sizes[0] > 1:
            sizes.insert(0, -(-sizes[0] // FAN_OUT))
        # levels[d] holds one node per row of children in levels[d + 1]; padded with zeros to whole rows
        self.levels = [np.zeros((-(-n // FAN_OUT), FAN_OUT)) for n in sizes]

    @property
    def total(self) -> float:
        return float(self.levels[0][0, 0])

    def __getitem__(self, leaf: np.ndarray) -> np.ndarray:
        return self.levels[-1].reshape(-1)[leaf]

    def __setitem__(self, leaf: np.ndarray, value: np.ndarray | float) -> None:
        """Set leaves and all sums above them; where a leaf is named twice, its last value counts."""
        self.levels[-1].reshape(-1)[leaf] = value
        for below, level in zip(self.levels[:0:-1], self.levels[-2::-1], strict=True):
            leaf = leaf // FAN_OUT
            level.reshape(-1)[leaf] = below[leaf].sum(-1)

    def fill(self, leaf: np.ndarray, value: np.ndarray) -> None:
        """The same for most of the leaves at once."""
        self.levels[-1].reshape(-1)[leaf] = value
        for below, level in zip(self.levels[:0:-1], self.levels[-2::-1], strict=True):
            level.reshape(-1)[: len(below)] = below.sum(-1)

    def find(self, mass: np.ndarray) -> np.ndarray:
        """For each mass in [0, total) the leaf at which the running sum of all leaves first exceeds it."""
        node = np.zeros(len(mass), np.int64)
        for level in self.levels[1:]:
            reach = level[node].cumsum(-1)
            mass = np.minimum(mass, np.nextafter(reach[:, -1], 0.0))  # a sum may be rounded below what was asked of it
            child = (reach <= mass[:, None]).sum(-1)
            before = np.where(child > 0, reach[np.arange(len(mass)), child - 1], 0.0)
            mass = mass - before
            node = node * FAN_OUT + child
        return node


class PrioritizedReplay(Replay):
    prioritized = True

    def __init__(self, cfg: PrioritizedConfig, spec: Spec, num_envs: int, discount: float, seed: int, **layout: bool):
        require(cfg.alpha >= 0.0, f"replay.alpha={cfg.alpha} is not possible; give 0 or more, as 0.6.")
        for name, value in (("beta", cfg.beta), ("beta_end", cfg.beta_end)):
            require(0.0 <= value <= 1.0, f"replay.{name}={value} is not possible; give 0 to 1.")
        require(cfg.beta_batches >= 1, f"replay.beta_batches={cfg.beta_batches} is not possible; give 1 or more.")
        require(cfg.eps > 0.0, f"replay.eps={cfg.eps} is not possible; give more than 0, as 1e-6.")
        super().__init__(cfg, spec, num_envs, discount, seed, **layout)
        self.cfg = cfg
        self.drawn = 0  # minibatches so far
        self.largest = 1.0  # of all priorities so far
        self._tree = SumTree(self.capacity)

    @property
    def nbytes(self) -> int:
        return super().nbytes + self.capacity * 8 * (FAN_OUT + 1) // FAN_OUT

    @property
    def beta(self) -> float:
        return self.cfg.beta + (self.cfg.beta_end - self.cfg.beta) * min(1.0, self.drawn / self.cfg.beta_batches)

    def add(self, obs: np.ndarray, action: np.ndarray, reward: np.ndarray, *rest: Any) -> None:
        at = (self.total + np.arange(len(reward))) % self.capacity
        super().add(obs, action, reward, *rest)
        self._tree[at] = self.largest

    def indices(self, batch_size: int, n_batches: int) -> np.ndarray:
        share = (np.tile(np.arange(batch_size), n_batches) + self._rng.random(batch_size * n_batches)) / batch_size
        return self._tree.find(share * self._tree.total)

    def sample(self, batch_size: int, n_batches: int) -> Iterator[Batch]:
        for _ in range(n_batches):
            index = self.indices(batch_size, 1)
            weight = torch.from_numpy(self.weights(index))
            self.drawn += 1
            gathered = self._n_step(index) if self.n_step > 1 else self.take(index)
            (batch,) = cut(self.layout, gathered, batch_size)
            yield batch._replace(weight=weight, index=torch.from_numpy(index))

    def weights(self, index: np.ndarray) -> np.ndarray:
        """Importance weights of rows that were drawn together; the largest is 1."""
        priority = self._tree[index]
        return ((priority / priority.min()) ** -self.beta).astype(np.float32)

    def prioritize(self, index: Tensor, td_error: Tensor) -> None:
        """Give rows the priorities of their new TD errors."""
        priority = (td_error.cpu().numpy().astype(np.float64) + self.cfg.eps) ** self.cfg.alpha
        self._tree[index.cpu().numpy()] = priority
        self.largest = max(self.largest, float(priority.max()))

    # -- checkpoints -----------------------------------------------------------------------------------------------

    def state(self) -> dict:
        return {**super().state(), "drawn": self.drawn, "largest": self.largest}

    def load_state(self, state: dict) -> None:
        super().load_state(state)
        self.drawn, self.largest = whole(state["drawn"]), float(state["largest"])

    def tensors(self) -> dict[str, Tensor]:
        """And the priorities."""
        stream = np.arange(self.total - len(self), self.total)
        return super().tensors() | {"priority": torch.from_numpy(self._tree[stream % self.capacity])}

    def load_tensors(self, saved: dict[str, Tensor]) -> None:
        super().load_tensors(saved)
        priority = saved["priority"].numpy()[-self.capacity :]  # the capacity may have changed since
        if not np.all(np.isfinite(priority) & (priority > 0)):
            raise ValueError("priorities have to be positive")
        stream = np.arange(self.total - len(priority), self.total)
        self._tree.fill(stream % self.capacity, priority)
