"""Returns and targets, as pure functions: one-step TD, generalised advantages, lambda returns, Monte-Carlo."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from rlx.nn.native import NATIVE

Column = TypeVar("Column", np.ndarray, Tensor)


def td_target(reward: Tensor, discount: Tensor | float, terminated: Tensor, next_value: Tensor) -> Tensor:
    """r + discount * (1 - terminated) * V(s'); `discount` is gamma**n, and truncation does not appear."""
    if NATIVE.on is not None:
        target: Tensor | None = NATIVE.on.td_target(reward, discount, terminated, next_value)
        if target is not None:
            return target
    return reward + discount * (1.0 - terminated) * next_value


def gae(
    reward: Tensor,
    value: Tensor,
    next_value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    discount: float,
    lam: float,
) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimates and the returns they imply; everything is [T, N], time first.

    A_t = delta_t + discount * lam * A_{t+1}, cut where an episode ends. `next_value` is the value of the real
    successor, so a truncated episode bootstraps from its final observation and a terminated one from nothing.
    """
    delta = td_target(reward, discount, terminated, next_value) - value
    decay = discount * lam * (1.0 - torch.maximum(terminated, truncated))
    advantage = torch.empty_like(delta)
    running = torch.zeros_like(delta[0])
    for t in reversed(range(len(delta))):
        running = torch.addcmul(delta[t], decay[t], running, out=advantage[t])
    return advantage, advantage + value


def lambda_returns(
    reward: Tensor, next_value: Tensor, terminated: Tensor, truncated: Tensor, discount: float, lam: float
) -> Tensor:
    """G_t = r_t + discount * ((1 - lam) * V(s_{t+1}) + lam * G_{t+1}), cut where an episode ends; all are [T, N].

    `next_value` is the value of the real successor: a truncated episode and the last row bootstrap from it alone, a
    terminated one from nothing.
    """
    target = td_target(reward, discount, terminated, next_value)
    further = discount * lam * (1.0 - torch.maximum(truncated, terminated))
    returns = torch.empty_like(target)
    returns[-1] = target[-1]
    for t in reversed(range(len(target) - 1)):
        torch.addcmul(target[t], further[t], returns[t + 1] - next_value[t], out=returns[t])
    return returns


def going_on(reward: np.ndarray, truncated: bool, discount: float) -> np.ndarray:
    """The rewards [n] of one episode; the last one is r / (1 - discount) where a time limit cut off n times the same r.

    An episode that never met its sparse goal is taken to go on like that for ever, as the authors of Cal-QL do.
    """
    alike = len(reward) > 1 and np.ptp(reward) == 0.0
    if not (alike and truncated and discount < 1.0):
        return reward
    return np.append(reward[:-1], reward[-1] / (1.0 - discount)).astype(reward.dtype)


def discounted_returns(reward: Column, ends: Column, discount: float) -> Column:
    """Monte-Carlo return of every row [N]; rows are in time order and `ends` marks the last row of each episode."""
    if isinstance(reward, Tensor):
        return torch.from_numpy(discounted_returns(reward.numpy(), ends.numpy(), discount))
    result = np.empty(len(reward), np.result_type(reward.dtype, np.float32))
    running = 0.0
    for i, (r, end) in enumerate(zip(reward[::-1].tolist(), ends[::-1].tolist(), strict=True), start=1):
        running = r if end else r + discount * running
        result[-i] = running
    return result
