"""Windows of trajectories, for learners that read sequences.

A window starts at a random row and covers up to `length` rows of the same episode: episodes are drawn in proportion to
their lengths, as Decision Transformer does. Shorter ones are padded with zeros, on the left by default (so that the
newest row is always last), and `mask` is 1 where a row is real.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlx.data.columns import Array
from rlx.data.dataset import TransitionDataset
from rlx.errors import UserError
from rlx.obs import map_obs
from rlx.returns import discounted_returns
from rlx.types import Windows


class WindowSampler:
    """Draws windows; what does not change between batches is computed once."""

    def __init__(self, dataset: TransitionDataset, length: int, discount: float = 1.0, pad: str = "left"):
        if length < 1:
            raise UserError(f"Windows must have a length of at least 1 (length {length}).")
        if pad not in ("left", "right"):
            raise UserError(f"Windows cannot be padded on the '{pad}'; give left or right.")
        dataset.check_order("windows")
        self.dataset = dataset
        self.length = length
        self.pad = pad
        self.return_to_go = discounted_returns(dataset.reward, dataset.ends, discount)
        starts, stops = dataset.episodes.T
        self.timestep = np.arange(len(dataset)) - np.repeat(starts, stops - starts)
        self.remaining = np.repeat(stops, stops - starts) - np.arange(len(dataset))

    def sample(self, rng: np.random.Generator, batch_size: int) -> Windows:
        """Windows that start at uniformly drawn rows."""
        return self.at(rng.integers(len(self.dataset), size=batch_size))

    def at(self, start: Array) -> Windows:
        """The windows that start at the given rows."""
        real = np.minimum(self.remaining[start], self.length)[:, None]
        place = np.arange(self.length)[None]
        offset = place - (self.length - real) if self.pad == "left" else place
        mask = (offset >= 0) & (offset < real)
        rows = start[:, None] + np.where(mask, offset, 0)  # padded places read the first row and are zeroed below

        def pick(column: Array) -> Tensor:
            values = np.asarray(column[rows])
            values[~mask] = 0
            return torch.from_numpy(values)

        data = self.dataset
        return Windows(
            obs=map_obs(pick, data.obs),
            action=pick(data.action),
            reward=pick(data.reward),
            return_to_go=pick(self.return_to_go),
            terminated=pick(data.terminated),
            timestep=pick(self.timestep),
            mask=torch.from_numpy(mask.astype(np.float32)),
        )


class WindowReader:
    """Minibatches of windows of a dataset: what a learner with `reads = Windows` learns from."""

    def __init__(self, dataset: TransitionDataset, length: int, seed: int, discount: float = 1.0):
        self.sampler = WindowSampler(dataset, length, discount)
        self.total = len(dataset)
        self._rng = np.random.default_rng(np.random.SeedSequence([seed, 0x5EED]))

    @property
    def ready(self) -> bool:
        return True

    def sample(self, batch_size: int, n_batches: int) -> Iterator[Windows]:
        """`n_batches` minibatches of windows [batch_size, length, ...]."""
        for _ in range(n_batches):
            start = self.sampler.dataset.sample_rows(self._rng, batch_size, 1)[0]
            yield self.sampler.at(start)

    def state(self) -> dict[str, Any]:
        return {"total": self.total, "rng": self._rng.bit_generator.state}

    def load_state(self, state: dict[str, Any]) -> None:
        self._rng.bit_generator.state = state["rng"]


def sample_trajectory_windows(
    dataset: TransitionDataset,
    batch_size: int,
    length: int,
    rng: np.random.Generator,
    *,
    discount: float = 1.0,
    pad: str = "left",
) -> Windows:
    """One batch of windows. For many batches make a WindowSampler, which prepares the dataset once."""
    return WindowSampler(dataset, length, discount, pad).sample(rng, batch_size)
