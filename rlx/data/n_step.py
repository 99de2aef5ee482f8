"""n-step returns, formed when rows are read.

    R = r_0 + g r_1 + ... + g^(k-1) r_(k-1),  k <= n

A sum stops at the end of its episode, or at the newest step of its lane, and its transition bootstraps from where it
stopped with the discount g^k.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from rlx.data.store import Gathered, Store
from rlx.nn.native import NATIVE


class Ahead(NamedTuple):
    """What sums of rewards are made of."""

    places: np.ndarray  # [M, n] of the steps from each row on
    steps: np.ndarray  # [M] how many of them belong to its sum


def look_ahead(store: Store, place: np.ndarray, n: int) -> Ahead:
    """The steps of the same episodes from these rows on."""
    places = (place[:, None] + store.lanes * np.arange(n)) % store.capacity
    steps, going = np.ones(len(place), np.int64), np.ones(len(place), bool)
    newer = store.newer(place)
    for k in range(1, n):
        going &= ~store.ended(places[:, k - 1]) & (newer >= k)
        steps += going
    return Ahead(places, steps)


def sum_rewards(reward: Tensor, steps: np.ndarray, discount: float) -> tuple[Tensor, Tensor]:
    """Rewards [M, n] summed over the first `steps` of each row, and the discount of what follows."""
    n = reward.shape[1]
    powers = discounts(discount, n)
    count = torch.from_numpy(steps)
    total = reward[:, 0].clone()
    for k in range(1, n):
        total += torch.where(count > k, powers[k - 1] * reward[:, k], 0.0)
    return total, powers[count - 1]


@functools.cache
def discounts(discount: float, n: int) -> Tensor:
    """g, g^2, ..., g^n, each from the one before in float32."""
    powers = [torch.tensor(discount, dtype=torch.float32)]
    for _ in range(1, n):
        powers.append(powers[-1] * powers[0])
    return torch.stack(powers)


def read_n_step_natively(store: Store, place: np.ndarray, n: int) -> Gathered | None:
    """`read_n_step` of what `look_ahead` finds, in one pass over the rows; None where that cannot be had."""
    if NATIVE.on is None or store.columns:
        return None
    layout = store.layout
    columns = [layout.slices[name].start for name in ("reward", "discount")]
    rows = NATIVE.on.n_step(
        store.tensor, torch.from_numpy(place), store.ends(), torch.from_numpy(store.counts()),
        discounts(store.discount, n), *columns, layout.successor.start, layout.successor.stop,
    )  # fmt: skip
    return None if rows is None else Gathered(rows)


def read_n_step(store: Store, place: np.ndarray, ahead: Ahead) -> Gathered:
    """Transitions from these rows to where their sums end."""
    layout = store.layout
    last = ahead.places[np.arange(len(place)), ahead.steps - 1]
    rows = store.tensor.index_select(0, torch.from_numpy(place))
    rows[:, layout.successor] = store.tensor[:, layout.successor].index_select(0, torch.from_numpy(last))
    reward, discount = sum_rewards(store.numbers(ahead.places, "reward"), ahead.steps, store.discount)
    layout.column(rows, "reward").copy_(reward)
    layout.column(rows, "discount").copy_(discount)
    return Gathered(rows, {n: (c.obs(place), c.next_obs(last)) for n, c in store.columns.items()})
