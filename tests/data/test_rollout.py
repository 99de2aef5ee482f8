"""RolloutBuffer: time first, once, and through a checkpoint in the middle."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rlx.data.rollout import RolloutBuffer
from rlx.types import Box, Spec

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


def test_a_lost_life_is_told_from_the_end_of_an_episode() -> None:
    """Through a checkpoint; an older one knows of none. An episode that cannot go on after all ends there."""
    buffer, twin, old = (RolloutBuffer(2, 2, BOX) for _ in range(3))
    for lost in (None, np.array([True, True])):
        buffer.add(np.zeros((2, 3)), np.zeros((2, 2)), np.zeros(2), np.zeros((2, 3)), np.ones(2), np.zeros(2), (), lost)
    saved = {k: v.clone() for k, v in buffer.tensors().items()}
    twin.load_tensors(saved)
    old.load_tensors({k: v for k, v in saved.items() if k != "lost_life"})
    twin.end_episodes([1])
    expected = ([[False] * 2, [True, True]], [[False] * 2, [True, False]], [[False] * 2] * 2)
    for one, lives in zip((buffer, twin, old), expected, strict=True):
        (rollout,) = one.sample(4, 1)
        assert rollout.lost_life.tolist() == lives
        assert rollout.terminated.tolist() == [[1.0] * 2] * 2


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
    buffer.end_episodes([0])
    zero, no = np.zeros((2, 3)), np.zeros(2)
    for terminated in (no, no, np.array([0.0, 1.0])):
        buffer.add(zero, np.zeros((2, 2)), no, zero, terminated, no)
    buffer.end_episodes([0, 1])
    (rollout,) = buffer.sample(1, 1)
    assert rollout.truncated.tolist() == [[0, 0], [0, 0], [1, 0]]  # what terminated is not truncated as well


def test_what_the_actor_remembered_is_part_of_the_rollout() -> None:
    buffer, twin = RolloutBuffer(4, 2, BOX), RolloutBuffer(4, 2, BOX)
    memory = np.arange(6, dtype=np.float32).reshape(2, 3)
    fill(buffer, 2)
    buffer.carry = (memory, torch.ones(2, dtype=torch.int64))
    memory += 1  # of the runner, which goes on
    twin.load_tensors({k: v.clone() for k, v in buffer.tensors().items()})
    for one in (buffer, twin):
        (rollout,) = one.sample(1, 1)
        assert rollout.carry[0].tolist() == [[0, 1, 2], [3, 4, 5]]
        assert rollout.carry[1].tolist() == [1, 1]
    (plain,) = RolloutBuffer(4, 2, BOX).sample(1, 1)
    assert plain.carry == ()


def test_dict_observations() -> None:
    boxes = (("pixels", Box((1, 2, 2), "uint8")), ("state", Box((3,), "float32")))
    spec = BOX._replace(obs_shape=(), boxes=boxes)
    buffer, twin = RolloutBuffer(4, 2, spec), RolloutBuffer(4, 2, spec)
    for t in range(3):
        obs, after = ({n: np.full((2, *b.shape), x, b.dtype) for n, b in boxes} for x in (t, t + 1))
        buffer.add(obs, np.zeros((2, 2)), np.zeros(2), after, np.zeros(2), np.zeros(2))
    assert {"obs.pixels", "next_obs.state"} <= buffer.tensors().keys()
    twin.load_tensors(buffer.tensors())
    for one in (buffer, twin):
        (rollout,) = one.sample(1, 1)
        assert rollout.obs["pixels"].shape == (3, 2, 1, 2, 2)
        assert rollout.obs["pixels"].dtype == torch.uint8
        assert rollout.obs["state"][:, 0, 0].tolist() == [0, 1, 2]
        assert rollout.next_obs["state"][:, 1, 2].tolist() == [1, 2, 3]
