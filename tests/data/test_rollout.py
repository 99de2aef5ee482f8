"""RolloutBuffer: time first, once, and through a checkpoint in the middle."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rlx.data.rollout import RolloutBuffer
from rlx.types import Spec

BOX = Spec("x", (3,), "float32", "box", (2,), (-1.0,) * 2, (1.0,) * 2)
DISCRETE = Spec("x", (2, 2, 1), "uint8", "discrete", (), action_sizes=(3,))


def fill(buffer: RolloutBuffer, steps: int, spec: Spec = BOX, n: int = 2) -> None:
    for t in range(steps):
        obs = np.full((n, *spec.obs_shape), t)
        action = np.full((n, *spec.action_shape), t % 3)
        flag = np.array([t == 1, False])
        buffer.add(obs, action, np.array([t, -t]), obs + 1, flag, ~flag)


@pytest.mark.parametrize(("spec", "dtype"), [(BOX, torch.float32), (DISCRETE, torch.int64)])
def test_a_rollout_is_yielded_once_with_time_first(spec: Spec, dtype: torch.dtype) -> None:
    buffer = RolloutBuffer(4, 2, spec)
    assert not buffer.ready
    fill(buffer, 3, spec)
    assert buffer.ready
    (rollout,) = buffer.sample(64, 1)
    assert rollout.obs.shape == (3, 2, *spec.obs_shape)
    assert rollout.action.shape == (3, 2, *spec.action_shape)
    assert rollout.action.dtype == dtype
    assert rollout.reward.tolist() == [[0, 0], [1, -1], [2, -2]]
    assert rollout.terminated.tolist() == [[0, 0], [1, 0], [0, 0]]
    assert rollout.truncated.tolist() == [[1, 1], [0, 1], [1, 1]]
    assert (rollout.next_obs == rollout.obs + 1).all()
    assert not buffer.ready
    fill(buffer, 4, spec)
    (full,) = buffer.sample(64, 1)
    assert len(full.reward) == 4


def test_more_steps_than_it_holds_is_an_error() -> None:
    buffer = RolloutBuffer(2, 2, BOX)
    with pytest.raises(IndexError):
        fill(buffer, 3)


@pytest.mark.parametrize("steps", [0, 2, 4])
def test_it_survives_a_checkpoint(steps: int) -> None:
    buffer, twin = RolloutBuffer(4, 2, BOX), RolloutBuffer(4, 2, BOX)
    fill(buffer, steps)
    fill(twin, 1)
    twin.load_tensors({k: v.clone() for k, v in buffer.tensors().items()})
    assert twin.size == steps
    for key, value in buffer.tensors().items():
        assert torch.equal(value, twin.tensors()[key])


def test_episodes_that_were_lost_are_cut_off() -> None:
    buffer = RolloutBuffer(4, 2, BOX)
    buffer.cut_off([0])
    zero, no = np.zeros((2, 3)), np.zeros(2)
    for terminated in (no, no, np.array([0.0, 1.0])):
        buffer.add(zero, np.zeros((2, 2)), no, zero, terminated, no)
    buffer.cut_off([0, 1])
    (rollout,) = buffer.sample(1, 1)
    assert rollout.truncated.tolist() == [[0, 0], [0, 0], [1, 0]]  # what terminated is not truncated as well
