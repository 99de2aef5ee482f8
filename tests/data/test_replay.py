"""Replay, mixture and segments, by numbers that can be followed by hand."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlx.data.dataset import TransitionDataset
from rlx.data.replay import DatasetReplay, Layout, Mixture, Replay, ReplayConfig
from rlx.data.sources import read_npz
from rlx.errors import UserError
from rlx.types import Spec

BOX = Spec("x", (2,), "float32", "box", (1,), (-1.0,), (1.0,))
DISCRETE = Spec("x", (2,), "float32", "discrete", (), action_sizes=(3,))
MULTI = Spec("x", (2,), "float32", "multi_discrete", (2,), action_sizes=(3, 4))
IMAGE = Spec("x", (3, 4, 4), "uint8", "discrete", (), action_sizes=(3,))


def make(spec: Spec = BOX, capacity: int = 8, num_envs: int = 1, n_step: int = 1, discount: float = 0.5) -> Replay:
    return Replay(ReplayConfig(capacity=capacity, n_step=n_step), spec, num_envs, discount, seed=0)


def fill(replay: Replay, steps: int, start: int = 0, ends: dict[int, str] | None = None) -> None:
    """Step t of env e has obs (t, e), reward t + 1, next_obs (t + 1, e)."""
    n, ends = replay.lanes, ends or {}
    for t in range(start, start + steps):
        env = np.arange(n)
        flags = {k: np.full(n, ends.get(t) == k) for k in ("terminated", "truncated")}
        obs, next_obs = (np.stack([np.full(n, float(x)), env], 1).astype(np.float32) for x in (t, t + 1))
        replay.add(obs, np.full((n, 1), 0.5), np.full(n, t + 1.0), next_obs, flags["terminated"], flags["truncated"])


def rows_of(replay: Replay, index: list[int]) -> Any:
    return replay.layout.batch(*replay.read(np.array(index)))


def test_a_row_comes_back_as_it_went_in() -> None:
    replay = make()
    fill(replay, 3, ends={1: "terminated", 2: "truncated"})
    batch = rows_of(replay, [0, 1, 2])
    assert batch.obs.tolist() == [[0, 0], [1, 0], [2, 0]]
    assert batch.next_obs.tolist() == [[1, 0], [2, 0], [3, 0]]
    assert batch.action.tolist() == [[0.5]] * 3
    assert batch.reward.tolist() == [1, 2, 3]
    assert batch.terminated.tolist() == [0, 1, 0]
    assert batch.discount.tolist() == [0.5] * 3
    assert batch.mc_return is None


@pytest.mark.parametrize(("spec", "action"), [(DISCRETE, np.array([2, 0])), (MULTI, np.array([[2, 3], [0, 1]]))])
def test_discrete_actions_are_integers(spec: Spec, action: np.ndarray) -> None:
    replay = make(spec)
    zero = np.zeros((2, 2), np.float32)
    replay.add(zero, action, np.zeros(2), zero, np.zeros(2), np.zeros(2))
    batch = rows_of(replay, [0, 1])
    assert batch.action.dtype == torch.int64
    assert batch.action.tolist() == action.tolist()


def test_images_stay_bytes() -> None:
    replay = make(IMAGE, n_step=2)
    images = np.random.default_rng(0).integers(0, 255, (4, 3, 4, 4), np.uint8)
    for t in range(3):
        flag = np.zeros(1)
        replay.add(images[t : t + 1], np.array([1]), np.ones(1), images[t + 1 : t + 2], flag, flag)
    batch = rows_of(replay, [0, 2])
    assert batch.obs.dtype == torch.uint8
    assert (batch.obs.numpy() == images[[0, 2]]).all()
    assert (batch.next_obs.numpy() == images[[2, 3]]).all()


def test_the_ring_keeps_the_newest() -> None:
    replay = make(capacity=4)
    fill(replay, 6)
    assert len(replay) == 4
    assert replay.total == 6
    assert sorted(rows_of(replay, [0, 1, 2, 3]).reward.tolist()) == [3, 4, 5, 6]
    seen = {float(r) for batch in replay.sample(64, 2) for r in batch.reward}
    assert seen == {3.0, 4.0, 5.0, 6.0}


def test_a_step_of_all_envs_may_wrap_around() -> None:
    replay = make(capacity=7, num_envs=3)
    assert replay.capacity == 6
    fill(replay, 3)
    assert sorted(rows_of(replay, list(range(6))).reward.tolist()) == [2, 2, 2, 3, 3, 3]


def test_n_step_returns_by_hand() -> None:
    replay = make(n_step=3)
    fill(replay, 5, ends={3: "terminated"})
    batch = rows_of(replay, [0, 1, 2, 3, 4])
    # 1 + 2/2 + 3/4; 2 + 3/2 + 4/4; 3 + 4/2 (end); 4 (end); 5 (newest row)
    assert batch.reward.tolist() == [2.75, 4.5, 5.0, 4.0, 5.0]
    assert batch.discount.tolist() == [0.125, 0.125, 0.25, 0.5, 0.5]
    assert batch.terminated.tolist() == [0, 1, 1, 1, 0]
    assert batch.next_obs[:, 0].tolist() == [3, 4, 4, 4, 5]
    assert batch.obs[:, 0].tolist() == [0, 1, 2, 3, 4]


def test_n_step_returns_stop_at_a_truncation_and_bootstrap_there() -> None:
    replay = make(n_step=3)
    fill(replay, 4, ends={1: "truncated"})
    batch = rows_of(replay, [0, 1, 2])
    assert batch.reward.tolist() == [2.0, 2.0, 5.0]
    assert batch.discount.tolist() == [0.25, 0.5, 0.25]
    assert batch.terminated.tolist() == [0, 0, 0]
    assert batch.next_obs[:, 0].tolist() == [2, 2, 4]


def slow_n_step(rewards: list[float], ends: list[bool], at: int, n: int, discount: float) -> tuple[float, float, int]:
    total, factor = 0.0, 1.0
    for k in range(at, min(at + n, len(rewards))):
        total += factor * rewards[k]
        factor *= discount
        if ends[k]:
            break
    return total, factor, k


@settings(max_examples=60, deadline=None)
@given(
    num_envs=st.integers(1, 3),
    n=st.integers(1, 5),
    capacity=st.integers(3, 12),
    flags=st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=25),
)
def test_n_step_returns_equal_a_slow_loop(num_envs: int, n: int, capacity: int, flags: list[tuple[bool, bool]]) -> None:
    """Any ring, any number of envs, any pattern of ends: rows only ever see their own episode's future."""
    replay = make(capacity=capacity, num_envs=num_envs, n_step=n, discount=0.9)
    for t, (terminated, truncated) in enumerate(flags):
        env = np.arange(num_envs)
        obs, next_obs = (np.stack([np.full(num_envs, float(x)), env], 1) for x in (t, t + 1))
        reward = np.sin(t + 10.0 * env)
        flag = (np.full(num_envs, terminated), np.full(num_envs, truncated))
        replay.add(obs, np.zeros((num_envs, 1)), reward, next_obs, *flag)
    ends = [a or b for a, b in flags]
    batch = rows_of(replay, list(range(len(replay))))
    for row in range(len(replay)):
        t, env = int(batch.obs[row, 0]), int(batch.obs[row, 1])
        rewards = [float(np.float32(np.sin(k + 10.0 * env))) for k in range(len(flags))]
        total, factor, last = slow_n_step(rewards, ends, t, n, float(np.float32(0.9)))
        assert batch.reward[row].item() == pytest.approx(total, abs=1e-5)
        assert batch.discount[row].item() == pytest.approx(factor, rel=1e-5)
        assert batch.next_obs[row].tolist() == [last + 1, env]
        assert batch.terminated[row].item() == float(flags[last][0])


def test_monte_carlo_returns_are_known_when_an_episode_ends() -> None:
    replay = Replay(ReplayConfig(capacity=8), BOX, 2, 0.5, seed=0, mc_return=True)
    fill(replay, 3, ends={0: "terminated"})
    unknown = [-np.inf, -np.inf]
    assert rows_of(replay, list(range(6))).mc_return.tolist() == [1.0, 1.0, *unknown, *unknown]
    fill(replay, 1, start=3, ends={3: "truncated"})  # rewards 2, 3, 4 of both envs
    assert rows_of(replay, list(range(8))).mc_return.tolist() == [1.0, 1.0, 4.5, 4.5, 5.0, 5.0, 4.0, 4.0]
    fill(replay, 2, start=4, ends={5: "terminated"})  # over the oldest rows: rewards 5, 6
    assert rows_of(replay, list(range(8))).mc_return.tolist() == [8.0, 8.0, 6.0, 6.0, 5.0, 5.0, 4.0, 4.0]
    again = Replay(ReplayConfig(capacity=8), BOX, 2, 0.5, seed=0, mc_return=True)
    fill(again, 6)
    again.load_tensors(replay.tensors())
    assert rows_of(again, list(range(8))).mc_return.equal(rows_of(replay, list(range(8))).mc_return)


@pytest.mark.parametrize(
    ("rewards", "end", "expected"),
    [
        ([-5.0, -5.0, -5.0], "truncated", [-10.0, -10.0, -10.0]),  # -5 / (1 - 0.5), as a dataset has it
        ([-5.0, -5.0, -5.0], "terminated", [-8.75, -7.5, -5.0]),  # it is over
        ([-5.0, -5.0, 5.0], "truncated", [-6.25, -2.5, 5.0]),  # it met its goal
    ],
)
def test_a_failure_that_was_cut_off_goes_on_for_ever(rewards: list[float], end: str, expected: list[float]) -> None:
    replay = Replay(ReplayConfig(capacity=8), BOX, 1, 0.5, seed=0, mc_return=True)
    obs = np.zeros((1, 2), np.float32)
    for i, reward in enumerate([1.0, *rewards]):  # after an episode of one step
        over = {"terminated": np.array([i == 0]), "truncated": np.array([False])}
        if i == len(rewards):
            over[end] = np.array([True])
        replay.add(obs, np.zeros((1, 1)), np.array([reward]), obs, **over)
    assert rows_of(replay, [0, 1, 2, 3]).mc_return.tolist() == [1.0, *expected]


def test_only_the_env_whose_episode_ended_gets_its_returns() -> None:
    replay = Replay(ReplayConfig(capacity=8), BOX, 2, 0.5, seed=0, mc_return=True)
    obs, flags = np.zeros((2, 2), np.float32), np.array([False, True])
    replay.add(obs, np.zeros((2, 1)), np.array([1.0, 2.0]), obs, flags, np.zeros(2, bool))
    assert rows_of(replay, [0, 1]).mc_return.tolist() == [-np.inf, 2.0]


def test_sampling_is_seeded_and_batches_are_cut_evenly() -> None:
    a, b = make(), make()
    for replay in (a, b):
        fill(replay, 8)
    first, second = (list(r.sample(5, 3)) for r in (a, b))
    assert [len(batch.reward) for batch in first] == [5, 5, 5]
    for x, y in zip(first, second, strict=True):
        assert torch.equal(x.obs, y.obs)
    state = a.state()
    expected = [batch.reward.tolist() for batch in a.sample(5, 2)]
    a.load_state(state)
    assert [batch.reward.tolist() for batch in a.sample(5, 2)] == expected


@pytest.mark.parametrize("spec", [BOX, IMAGE])
@pytest.mark.parametrize("total", [3, 8, 13])
def test_segments_put_everything_back(spec: Spec, total: int) -> None:
    """Written in pieces that overlap the end of the ring."""
    replay, twin = make(spec), make(spec)
    shape = (1, *spec.obs_shape)
    segments = []
    for t in range(total):
        obs, next_obs = (np.full(shape, x) for x in (t, t + 1))
        action = np.zeros((1, 1) if spec is BOX else 1)
        replay.add(obs, action, np.array([float(t)]), next_obs, np.zeros(1), np.zeros(1))
        if t % 3 == 2 or t == total - 1:
            start = segments[-1][1] if segments else 0
            segments.append((start, t + 1, {k: v.clone() for k, v in replay.segment(start, t + 1).items()}))
    for start, _, tensors in segments:
        twin.load_segment(start, tensors)
    twin.load_state(replay.state())
    assert np.array_equal(twin.store.rows, replay.store.rows)
    for x, y in zip(replay.sample(4, 2), twin.sample(4, 2), strict=True):
        assert torch.equal(x.obs, y.obs)
        assert torch.equal(x.next_obs, y.next_obs)


def test_an_episode_that_was_lost_is_cut_off() -> None:
    replay = make(num_envs=2, n_step=3)
    fill(replay, 2)
    replay.end_episodes([1])
    fill(replay, 2, start=2)
    batch = rows_of(replay, [2, 3])  # step 1 of env 0 and of env 1
    assert batch.reward.tolist() == [2 + 3 / 2 + 4 / 4, 2.0]
    assert batch.discount.tolist() == [0.125, 0.5]
    assert batch.terminated.tolist() == [0.0, 0.0]
    make().end_episodes([0])  # nothing to end in an empty one


def dataset(n: int) -> TransitionDataset:
    t = np.arange(n, dtype=np.float32)
    obs = np.stack([t, t], 1)
    data = {"obs": obs, "action": np.zeros((n, 1), np.float32), "reward": -t - 1.0, "next_obs": obs + 1.0}
    data |= {"terminated": np.zeros(n, np.float32), "truncated": np.zeros(n, np.float32)}
    data["truncated"][-1] = 1.0
    return TransitionDataset.from_dict(data)


@pytest.mark.parametrize(("fraction", "prior"), [(0.0, 0), (0.25, 2), (0.5, 4), (0.55, 4), (1.0, 8)])
def test_a_mixture_has_its_exact_share_in_every_batch(fraction: float, prior: int) -> None:
    online = make()
    fill(online, 8)
    mixture = Mixture(online, DatasetReplay(dataset(6), BOX, 0.5, 1, seed=0), fraction)
    assert mixture.prior_size(8) == prior
    batches = list(mixture.sample(8, 5))
    assert len(batches) == 5
    assert [int((batch.reward < 0).sum()) for batch in batches] == [prior] * 5


def test_a_dataset_as_a_replay_ends_its_episodes() -> None:
    replay = DatasetReplay(dataset(4), BOX, 0.5, 3, seed=0)
    batch = rows_of(replay, [1, 2, 3])
    assert batch.reward.tolist() == [-2 - 3 / 2 - 4 / 4, -3 - 4 / 2, -4]
    assert batch.terminated.tolist() == [0, 0, 0]


@pytest.mark.parametrize(("change", "word"), [({"capacity": 1, "num_envs": 2}, "capacity"), ({"n_step": 0}, "n_step")])
def test_what_cannot_work_is_refused(change: dict[str, int], word: str) -> None:
    with pytest.raises(UserError, match=word):
        make(**change)


def test_more_memory_than_there_is_says_how_much_would_fit() -> None:
    with pytest.raises(UserError, match=r"GiB.*try replay\.capacity=\d+"):
        make(capacity=10**13)


def test_a_dataset_beyond_memory_is_told_to_stay_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """100 rows of 9 numbers, 4 of them observations: 3600 bytes in memory, 2000 besides those on disk."""
    dataset(100).save(tmp_path / "data.npz")
    monkeypatch.setattr("rlx.system.available_memory", lambda: 2500)
    with pytest.raises(UserError, match=r"A dataset of 100 transitions.*dataset\.memory=mmap"):
        DatasetReplay(read_npz(str(tmp_path / "data.npz"), False), BOX, 0.5, 1, seed=0)
    replay = DatasetReplay(read_npz(str(tmp_path / "data.npz"), True), BOX, 0.5, 1, seed=0)
    assert replay.nbytes == 2000
    assert rows_of(replay, [7]).obs.tolist() == [[7.0, 7.0]]
    monkeypatch.setattr("rlx.system.available_memory", lambda: 1999)
    with pytest.raises(UserError, match=r"use a smaller one\.$"):
        DatasetReplay(read_npz(str(tmp_path / "data.npz"), True), BOX, 0.5, 1, seed=0)


def test_the_layout_has_no_gaps() -> None:
    for spec in (BOX, DISCRETE, MULTI, IMAGE):
        layout = Layout(spec, mc_return=True)
        edges = sorted((s.start, s.stop) for s in layout.slices.values() if s.start != s.stop)
        assert edges[0][0] == 0
        assert all(a[1] == b[0] for a, b in itertools.pairwise(edges))
        assert edges[-1][1] == layout.width
