"""Prioritized replay (Schaul et al., 2016), arXiv:1511.05952, proportional variant.

    P(i) = p_i / sum_k p_k,   p_i = (|TD error of i| + eps)^alpha,   a new row: the largest p so far
    w_i  = (N P(i))^-beta, divided by the largest of the minibatch; beta rises to 1, where w undoes all of the bias

Every minibatch is drawn when it is asked for, one row from each of its equal shares of the sum, so it follows the
priorities that the update before has set. Together with hindsight, rows of episodes that are not finished, or no longer
whole, have the priority 0. `SumTree` has 32 children per node: a million leaves are four levels, and an operation on
many leaves is a few NumPy calls per level. Its nodes are sums of their children and never corrected by differences, so
the leaves alone determine it, and a checkpoint holds nothing else.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from torch import Tensor

from rlx.data.store import whole

FAN_OUT = 32


class PriorityConfig(Protocol):
    """The fields of a replay's config that priorities read."""

    alpha: float
    beta: float
    beta_end: float
    beta_batches: int
    eps: float


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
        return np.asarray(self.levels[-1].reshape(-1)[leaf])

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


class Priorities:
    """The priorities of the rows of a store, by place."""

    def __init__(self, cfg: PriorityConfig, capacity: int):
        self.cfg = cfg
        self.drawn = 0  # minibatches so far
        self.largest = 1.0  # of all priorities so far
        self._tree = SumTree(capacity)

    @staticmethod
    def needed_bytes(capacity: int) -> int:
        return capacity * 8 * (FAN_OUT + 1) // FAN_OUT

    @property
    def beta(self) -> float:
        return self.cfg.beta + (self.cfg.beta_end - self.cfg.beta) * min(1.0, self.drawn / self.cfg.beta_batches)

    def __getitem__(self, place: np.ndarray) -> np.ndarray:
        return self._tree[place]

    def admit(self, place: np.ndarray) -> None:
        """These rows can be drawn from now on: they are new."""
        self._tree[place] = self.largest

    def dismiss(self, place: np.ndarray) -> None:
        """These rows cannot be drawn any more."""
        self._tree[place] = 0.0

    def draw(self, rng: np.random.Generator, batch_size: int) -> tuple[np.ndarray, np.ndarray]:
        """A minibatch, one row from each of the equal shares of the sum, and its importance weights."""
        share = (np.arange(batch_size) + rng.random(batch_size)) / batch_size
        place = self._tree.find(share * self._tree.total)
        weight = self.weights(place)
        self.drawn += 1
        return place, weight

    def weights(self, place: np.ndarray) -> np.ndarray:
        """Importance weights of rows that were drawn together; the largest is 1."""
        priority = self._tree[place]
        return np.asarray((priority / priority.min()) ** -self.beta, np.float32)

    def update(self, index: Tensor, td_error: Tensor) -> None:
        """Give rows the priorities of their new TD errors."""
        priority = (td_error.cpu().numpy().astype(np.float64) + self.cfg.eps) ** self.cfg.alpha
        self._tree[index.cpu().numpy()] = priority
        self.largest = max(self.largest, float(priority.max()))

    # -- checkpoints -----------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        return {"drawn": self.drawn, "largest": self.largest}

    def load_state(self, state: dict[str, Any]) -> None:
        self.drawn, self.largest = whole(state["drawn"]), float(state["largest"])

    def load(self, place: np.ndarray, priority: np.ndarray, may_be_zero: np.ndarray | None = None) -> None:
        """The priorities of most rows at once; those that may not be drawn have none."""
        zero = np.zeros(len(place), bool) if may_be_zero is None else may_be_zero
        if not np.all(np.isfinite(priority) & np.where(zero, priority == 0, priority > 0)):
            raise ValueError("priorities have to be positive")
        self._tree.fill(place, priority)
