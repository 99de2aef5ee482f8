"""Dict observations, unions and datasets in a store: what is kept, where, and how often."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rlx
from rlx.data.dataset import TransitionDataset
from rlx.data.replay import DatasetReplay, Mixture, Replay, ReplayConfig
from rlx.errors import UserError
from rlx.types import Box, Spec

PIXELS, STATE = Box((2, 3, 3), "uint8"), Box((2,), "float32")
DICT = Spec("x", (), "float32", "box", (1,), (-1.0,), (1.0,), boxes=(("pixels", PIXELS), ("state", STATE)))
VECTOR = Spec("x", (2,), "float32", "box", (1,), (-1.0,), (1.0,))


def dict_obs(t: int, lanes: int) -> dict[str, np.ndarray]:
    values = 10 * t + np.arange(lanes)
    pixels = np.stack([np.full((lanes, 3, 3), 0), np.broadcast_to(values[:, None, None], (lanes, 3, 3))], 1)
    return {"pixels": pixels.astype(np.uint8), "state": np.stack([values, -values], 1).astype(np.float32)}


def fill_dicts(replay: Replay, steps: int, start: int = 0) -> None:
    n = replay.lanes
    for t in range(start, start + steps):
        over = np.full(n, t % 5 == 4)
        replay.add(dict_obs(t, n), np.zeros((n, 1)), np.full(n, t, np.float32), dict_obs(t + 1, n), over, ~over & False)


@pytest.mark.parametrize(("n_step", "lanes"), [(1, 1), (3, 1), (1, 2), (3, 2)])
def test_dict_observations_are_columns_and_batches_of_dicts(n_step: int, lanes: int) -> None:
    replay = Replay(ReplayConfig(capacity=8 * lanes, n_step=n_step), DICT, lanes, 0.5, 0)
    assert {"obs.state", "next_obs.state"} <= replay.layout.slices.keys()
    assert set(replay.store.columns) == {"pixels"}
    fill_dicts(replay, 13)
    (batch,) = replay.sample(64, 1)
    assert list(batch.obs) == ["pixels", "state"]
    assert batch.obs["pixels"].shape == (64, 2, 3, 3)
    assert batch.obs["pixels"].dtype == torch.uint8
    for i in range(64):
        t, lane = divmod(int(batch.obs["state"][i, 0]), 10)
        last = min(t + n_step - 1, t + (4 - t % 5), 12)
        for obs, at in ((batch.obs, t), (batch.next_obs, last + 1)):
            expected = dict_obs(at, lanes)
            assert all(np.array_equal(obs[k][i].numpy(), expected[k][lane]) for k in expected)


def test_dict_observations_go_through_segments() -> None:
    replay, twin = (Replay(ReplayConfig(capacity=12), DICT, 2, 0.5, 0) for _ in range(2))
    fill_dicts(replay, 4)
    twin.load_segment(0, replay.segment(0, 8))
    fill_dicts(replay, 5, start=4)
    tensors = replay.segment(8, 18)
    assert {"rows", "frames.pixels", "whole.pixels"} <= tensors.keys()
    twin.load_segment(8, tensors)
    twin.load_state(json.loads(json.dumps(replay.state())))
    for a, b in zip(replay.sample(32, 2), twin.sample(32, 2), strict=True):
        for x, y in ((a.obs, b.obs), (a.next_obs, b.next_obs)):
            assert all(torch.equal(x[k], y[k]) for k in x)


def dataset(n: int, width: int = 2, **more: Any) -> TransitionDataset:
    """Rewards -1, -2, ...; episodes of ten steps."""
    t = np.arange(n, dtype=np.float32)
    obs = np.repeat(t[:, None], width, 1)
    ends = (np.arange(n) % 10 == 9) | (np.arange(n) == n - 1)
    data = {"obs": obs, "action": np.full((n, 1), 0.5, np.float32), "reward": -t - 1, "next_obs": obs + 1}
    return TransitionDataset.from_dict({**data, "terminated": np.zeros(n), "truncated": ends, **more})


def union(n_step: int = 1, rows: int = 30, capacity: int = 20) -> Replay:
    prior = DatasetReplay(dataset(rows), VECTOR, 0.5, n_step, seed=0)
    return Replay(ReplayConfig(capacity=capacity, n_step=n_step, union=True), VECTOR, 1, 0.5, 0, prior=prior)


def fill(replay: Replay, steps: int, start: int = 0) -> None:
    for t in range(start, start + steps):
        obs = np.full((1, 2), t, np.float32)
        replay.add(obs, np.zeros((1, 1)), np.array([t + 1.0]), obs + 1, np.zeros(1), np.zeros(1))


def test_a_union_draws_all_rows_alike() -> None:
    replay = union()
    assert replay.ready  # of the dataset
    (batch,) = replay.sample(50, 1)
    assert (batch.reward < 0).all()
    fill(replay, 25)  # of which 20 are kept
    (batch,) = replay.sample(100_000, 1)
    rewards = batch.reward.long()
    assert set(rewards.tolist()) == {*range(-30, 0), *range(6, 26)}
    assert rewards.unique(return_counts=True)[1] == pytest.approx(np.full(50, 2000), rel=0.15)
    assert (batch.obs[:, 0] == batch.reward.abs() - 1).all()
    assert replay.total == 25  # the dataset is no part of what was collected


def test_a_union_looks_n_steps_ahead_in_both() -> None:
    replay = union(n_step=3)
    fill(replay, 9)
    (batch,) = replay.sample(500, 1)
    for obs, reward in zip(batch.obs[:, 0].tolist(), batch.reward.tolist(), strict=True):
        t, sign = int(obs), -1 if reward < 0 else 1
        last = min(t + 2, t + (9 - t % 10) if sign < 0 else 8)
        assert reward == sign * sum((k + 1) * 0.5 ** (k - t) for k in range(t, last + 1))


def test_a_union_resumes_exactly_without_the_dataset_in_its_segments() -> None:
    replay, twin = union(), union()
    fill(replay, 13)
    list(replay.sample(8, 3))
    tensors = replay.segment(0, 13)
    assert len(tensors["rows"]) == 13
    twin.load_segment(0, tensors)
    twin.load_state(json.loads(json.dumps(replay.state())))
    for a, b in zip(replay.sample(32, 3), twin.sample(32, 3), strict=True):
        assert torch.equal(a.obs, b.obs)
        assert torch.equal(a.reward, b.reward)


def test_shares_of_a_mix_and_a_union_exclude_each_other() -> None:
    data = dataset(10)._with(group=np.arange(10) % 2, shares=(0.5, 0.5))
    prior = DatasetReplay(data, VECTOR, 0.5, 1, seed=0)
    with pytest.raises(UserError, match="exact_per_batch"):
        Replay(ReplayConfig(capacity=5, union=True), VECTOR, 1, 0.5, 0, prior=prior)


def test_images_of_a_dataset_and_of_a_replay_in_one_batch() -> None:
    spec = Spec("x", (2, 3, 3), "uint8", "discrete", (), action_sizes=(3,))
    images = np.random.default_rng(0).integers(0, 255, (21, 2, 3, 3), np.uint8)
    columns = {"obs": images[:20], "next_obs": images[1:], "action": np.zeros(20, np.int64)}
    data = TransitionDataset.from_dict(
        {**columns, "reward": -np.arange(20.0) - 1, "terminated": np.zeros(20), "truncated": np.arange(20) == 19}
    )
    prior = DatasetReplay(data, spec, 0.5, 1, seed=0)
    for options in ({}, {"union": True}):
        replay = Replay(ReplayConfig(capacity=9, **options), spec, 1, 0.5, 0, prior=prior)  # type: ignore[arg-type]
        for t in range(12):
            replay.add(images[t][None], np.zeros(1), np.array([t + 1.0]), images[t + 1][None], np.zeros(1), np.zeros(1))
        source = replay if options else Mixture(replay, prior, 0.5)
        (batch,) = source.sample(40, 1)
        at = batch.reward.abs().long() - 1
        assert np.array_equal(batch.obs.numpy(), images[at])
        assert np.array_equal(batch.next_obs.numpy(), images[at + 1])


def test_a_dataset_is_in_memory_once() -> None:
    """400,000 bytes of observations: the columns that are left are views of the rows."""
    given = dataset(10_000, width=5).with_mc_returns(0.5)
    replay = DatasetReplay(given, VECTOR._replace(obs_shape=(5,)), 0.5, 1, seed=0)
    own = 0
    for name in ("obs", "next_obs", "action", "reward", "raw_reward", "terminated", "truncated", "mc_return", "ends"):
        column, before = getattr(replay.dataset, name), getattr(given, name)
        assert np.array_equal(column, before)
        own += 0 if np.shares_memory(column, replay.store.rows) else column.nbytes
    assert own == 10_000 * (4 + 1)  # truncated, as stored, and ends
    assert replay.nbytes == 10_000 * 4 * (5 + 1 + 1 + 5 + 1 + 1 + 1 + 1)
    assert replay.nbytes + own < 1.1 * (given.nbytes + given.ends.nbytes + 4 * 10_000 * 2)  # and discount, mc_return
    assert replay.dataset.fingerprint() == given.fingerprint()


def test_rewards_before_a_transform_stay_as_they_were() -> None:
    given = dataset(20).with_reward_transform(lambda reward, terminated: 2 * reward)
    made = DatasetReplay(given, VECTOR, 0.5, 1, seed=0).dataset
    assert made.raw_reward.tolist() == (-np.arange(20.0) - 1).tolist()
    assert made.reward.tolist() == (-2 * np.arange(20.0) - 2).tolist()


UNION = (
    "algo=iql", "env=pendulum", "~algo_env", "dataset=random", "dataset.size=60", "trainer=offline_to_online",
    "trainer.pretrain_updates=5", "trainer.learning_starts=0", "trainer.offline_batch_ratio=0", "replay.union=true",
    "algo.hidden=[8]", "algo.batch_size=16", "trainer.eval_interval=0", "threads=1", "logger=none",
)  # fmt: skip


def test_a_run_that_fine_tunes_on_a_union_resumes_exactly(tmp_path: Path) -> None:
    whole = rlx.train(*UNION, "trainer.max_env_steps=40", run_dir=tmp_path / "whole")
    rlx.train(*UNION, "trainer.max_env_steps=20", "replay.capacity=40", run_dir=tmp_path / "parts")
    parts = rlx.resume(tmp_path / "parts", "trainer.max_env_steps=40")
    ours, theirs = parts.learner.tensors(), whole.learner.tensors()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (("trainer.offline_batch_ratio=0.5",), r"add trainer\.offline_batch_ratio=0"),
        (("trainer=offline",), r"keeps no replay, so replay\.union=true has no effect"),
        (("dataset=null", "algo=sac", "trainer=off_policy"), "there is none; add dataset="),
    ],
)
def test_a_union_that_cannot_be_is_refused(change: tuple[str, ...], sentence: str, tmp_path: Path) -> None:
    groups = tuple(word.partition("=")[0] for word in change)
    kept = [word for word in UNION if word.partition("=")[0] not in groups]
    kept = [word for word in kept if not ("dataset=null" in change and word.startswith("dataset."))]
    with pytest.raises(UserError, match=sentence):
        rlx.train(*kept, *change, run_dir=tmp_path / "run")
