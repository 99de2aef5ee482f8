"""Hindsight replay by hand-made episodes: which rows are sampled, which goals they get, what the reward becomes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import rlx
from rlx.data.replay import Replay, ReplayConfig
from rlx.envs import EnvConfig, make_env, spec_of
from rlx.envs.point_goal import PointGoal
from rlx.envs.vector import EnvFault
from rlx.errors import RunFailed, UserError
from rlx.rewards import RewardConfig, RewardTransform
from rlx.types import Spec

ENV = make_env(EnvConfig(id="rlx/PointGoal-v0"))
SPEC = spec_of(ENV, "rlx/PointGoal-v0")


def make_replay(capacity: int = 64, num_envs: int = 1, fraction: float = 1.0, n_step: int = 1) -> Replay:
    cfg = ReplayConfig(hindsight=True, capacity=capacity, relabel_fraction=fraction, n_step=n_step)
    replay = Replay(cfg, SPEC, num_envs, discount=0.9, seed=0)
    replay.attach_env(ENV, RewardTransform(RewardConfig()))
    return replay


def add_episode(replay: Replay, length: int, tag: float, ends: bool = True) -> None:
    """Step t of episode `tag` moves the achieved goal from (tag, t) to (tag, t + 1); the desired goal is far away."""
    for t in range(length):
        obs = np.array([[0, 0, 0, 0, tag, t, 99, 99]], np.float32).repeat(replay.lanes, 0)
        next_obs = obs.copy()
        next_obs[:, 5] = t + 1
        last = np.full(replay.lanes, ends and t == length - 1)
        n = replay.lanes
        replay.add(obs, np.zeros((n, 2), np.float32), -np.ones(n), next_obs, np.zeros(n), last)


def sample(replay: Replay, count: int = 200):
    return next(iter(replay.sample(count, 1)))


def test_nothing_is_ready_before_an_episode_has_ended():
    replay = make_replay()
    add_episode(replay, 5, tag=1, ends=False)
    assert not replay.ready


def test_only_finished_episodes_are_sampled():
    replay = make_replay()
    add_episode(replay, 5, tag=1)
    add_episode(replay, 5, tag=2, ends=False)
    assert replay.ready
    assert set(sample(replay).obs[:, 4].tolist()) == {1.0}


def test_goals_come_from_the_next_achieved_goals_of_the_rest_of_the_episode():
    replay = make_replay()
    add_episode(replay, 4, tag=1)
    add_episode(replay, 6, tag=2)
    batch = sample(replay, 2000)
    step, goal = batch.obs[:, 5], batch.obs[:, 6:8]
    assert (goal[:, 0] == batch.obs[:, 4]).all()  # of the same episode
    assert (goal[:, 1] >= step + 1).all()  # its own successor at the earliest
    first = goal[(batch.obs[:, 4] == 2) & (step == 0)][:, 1]
    assert set(first.tolist()) == {1.0, 2.0, 3.0, 4.0, 5.0, 6.0}  # and every later one
    assert (batch.next_obs[:, 6:8] == goal).all()


def test_the_reward_is_computed_for_the_new_goal():
    replay = make_replay()
    add_episode(replay, 6, tag=1)
    batch = sample(replay, 500)
    reached = (batch.next_obs[:, 4:6] == batch.next_obs[:, 6:8]).all(1)
    assert 0 < int(reached.sum()) < 500
    assert (batch.reward == (reached.float() - 1.0)).all()


def test_the_reward_transform_applies_to_relabelled_rewards():
    replay = make_replay()
    replay.attach_env(ENV, RewardTransform(RewardConfig(shift=5.0)))
    add_episode(replay, 6, tag=1)
    assert set(sample(replay).reward.tolist()) == {4.0, 5.0}


def test_share_of_relabelled_samples():
    replay = make_replay(fraction=0.25)
    add_episode(replay, 40, tag=1)
    relabelled = (sample(replay, 20_000).obs[:, 6] != 99).float().mean()
    assert relabelled == pytest.approx(0.25, abs=0.01)


def test_partly_overwritten_episodes_are_not_sampled():
    replay = make_replay(capacity=10)
    add_episode(replay, 6, tag=1)
    add_episode(replay, 6, tag=2)  # overwrites the first two rows of episode 1
    assert set(sample(replay).obs[:, 4].tolist()) == {2.0}


def test_envs_side_by_side_keep_their_episodes_apart():
    replay = make_replay(capacity=40, num_envs=2)
    for t in range(6):
        obs = np.array([[0, 0, 0, 0, env, t, 99, 99] for env in (1, 2)], np.float32)
        next_obs = obs.copy()
        next_obs[:, 5] = t + 1
        ended = np.array([t == 3, False])
        replay.add(obs, np.zeros((2, 2), np.float32), -np.ones(2), next_obs, np.zeros(2), ended)
    batch = sample(replay, 500)
    assert set(batch.obs[:, 4].tolist()) == {1.0}
    assert float(batch.obs[:, 5].max()) == 3.0
    assert float(batch.obs[:, 7].max()) == 4.0


def test_a_whole_episode_of_any_env_is_enough():
    """Six steps of two envs fit. Env 1 ends episodes at steps 2 and 5, env 0 one at step 6 that began too long ago."""
    replay = make_replay(capacity=12, num_envs=2)
    for t in range(7):
        obs = np.array([[0, 0, 0, 0, env, t, 99, 99] for env in (0, 1)], np.float32)
        ended = np.array([t == 6, t in (2, 5)])
        replay.add(obs, np.zeros((2, 2), np.float32), -np.ones(2), obs, np.zeros(2), ended)
    assert replay.ready
    batch = sample(replay, 500)
    assert set(batch.obs[:, 4].tolist()) == {1.0}
    assert set(batch.obs[:, 5].tolist()) == {3.0, 4.0, 5.0}


def test_the_memory_of_episodes_is_counted():
    plain = Replay(ReplayConfig(capacity=64), SPEC, 1, 0.9, 0)
    assert make_replay(capacity=64).nbytes == plain.nbytes + 64 * 16  # two int64 per row


def test_a_bonus_that_relabelled_goals_cannot_get_is_refused():
    with pytest.raises(UserError, match=r"use reward\.success_bonus=0"):
        make_replay().attach_env(ENV, RewardTransform(RewardConfig(success_bonus=1.0)))


@pytest.mark.parametrize(
    ("compute", "said"),
    [
        (None, "there is none"),
        (lambda achieved, desired, info: -float(np.linalg.norm(achieved - desired)), r"two goals give \(\)"),
        (lambda achieved, desired, info: float(achieved[:, 0] > 0), "it fails at two goals"),
    ],
)
def test_a_reward_that_cannot_judge_many_goals_is_refused(compute, said: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(type(ENV.unwrapped), "compute_reward", compute and staticmethod(compute))
    with pytest.raises(UserError, match=said):
        make_replay()


@pytest.mark.parametrize(
    ("compute", "said"),
    [
        (lambda achieved, desired, info: 1 / 0, "raised ZeroDivisionError"),
        (lambda achieved, desired, info: desired[:, :1], r"gave float32 of shape \(\d+, 1\), not one reward for each"),
        (lambda achieved, desired, info: np.nan * desired[:, 0], "gave rewards that are not finite"),
    ],
)
@pytest.mark.parametrize("n_step", [1, 3])
def test_a_reward_that_fails_later_is_a_fault_of_the_env(
    compute, said: str, n_step: int, monkeypatch: pytest.MonkeyPatch
):
    """Of n steps, the rewards of all are computed anew."""
    replay = make_replay(n_step=n_step)
    add_episode(replay, 4, tag=1)
    monkeypatch.setattr(replay.hindsight, "_compute_reward", compute)
    with pytest.raises(EnvFault, match=f"rlx/PointGoal-v0: compute_reward of {5 * n_step} goals {said}"):
        sample(replay, 5)


class Breaks(PointGoal):
    """Fails at more than two goals."""

    def compute_reward(self, achieved_goal, desired_goal, info):
        if len(desired_goal) > 2:
            raise ValueError("too many goals")
        return super().compute_reward(achieved_goal, desired_goal, info)


def test_a_run_whose_env_cannot_judge_goals_ends_in_a_sentence(tmp_path: Path):
    budget = {"max_env_steps": 60, "learning_starts": 20, "eval_episodes": 1}
    small = {"algo.hidden": [8], "algo.batch_size": 8, "env.max_episode_steps": 10}
    with pytest.raises(
        RunFailed, match=r"compute_reward of \d goals raised ValueError: too many goals .*The run ended"
    ):
        rlx.train("algo=her", env=Breaks, trainer=budget, run_dir=tmp_path / "run", quiet=True, **small)
    assert "too many goals" in (tmp_path / "run" / "error.txt").read_text()


def test_goals_are_not_left_as_they_were_for_want_of_an_env():
    replay = Replay(ReplayConfig(hindsight=True, capacity=64), SPEC, 1, discount=0.9, seed=0)
    add_episode(replay, 4, tag=1)
    with pytest.raises(RuntimeError, match="attach_env"):
        sample(replay)


@pytest.mark.parametrize(("capacity", "num_envs", "warns"), [(50, 1, False), (49, 1, True), (99, 2, True)])
def test_episodes_that_do_not_fit_are_said(capacity: int, num_envs: int, warns: bool, caplog: pytest.LogCaptureFixture):
    """An episode of PointGoal has 50 steps."""
    make_replay(capacity, num_envs)
    assert (f"at least {50 * num_envs}" in caplog.text) == warns


@pytest.mark.parametrize("num_envs", [1, 3])
def test_state_through_json_samples_the_same(num_envs: int):
    replay = make_replay(capacity=60, num_envs=num_envs)
    for tag in range(5):
        add_episode(replay, 7, tag=tag)
    add_episode(replay, 2, tag=9, ends=False)
    other = make_replay(capacity=60, num_envs=num_envs)
    start = replay.total - len(replay)
    other.load_segment(start, replay.segment(start, replay.total))
    other.load_state(json.loads(json.dumps(replay.state())))
    add_episode(replay, 3, tag=9)
    add_episode(other, 3, tag=9)
    for a, b in zip(sample(replay), sample(other), strict=True):
        assert (a is None and b is None) or (a == b).all()


@pytest.mark.parametrize(
    ("spec", "change"),
    [(SPEC._replace(goal=None), {}), (SPEC, {"relabel_fraction": 1.5}), (SPEC, {"n_step": 0})],
)
def test_what_does_not_fit_is_refused(spec: Spec, change: dict):
    with pytest.raises(UserError):
        Replay(ReplayConfig(hindsight=True, capacity=10, **change), spec, 1, 0.9, 0)
