from __future__ import annotations

import json
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest

from rlx.config import compose_config, instantiate
from rlx.errors import UserError
from rlx.rewards import (
    RewardClipWrapper,
    RewardConfig,
    RewardScaleWrapper,
    RewardShiftWrapper,
    RewardTransform,
    RunningReturn,
    apply_reward_wrappers,
)


def transform(reward, terminated=None, truncated=None, infos=None, **fields):
    reward = np.asarray(reward, np.float32)
    terminated = np.zeros(len(reward)) if terminated is None else np.asarray(terminated)
    return RewardTransform(RewardConfig(**fields))(reward, terminated, truncated, infos).tolist()


def dataset(reward, ends):
    """Episodes of the given lengths."""
    stops = np.cumsum(ends)
    episodes = np.stack([stops - np.asarray(ends), stops], axis=1)
    reward = np.asarray(reward, np.float32)
    return SimpleNamespace(raw_reward=reward, terminated=np.zeros(len(reward), np.float32), episodes=episodes)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, [-2.0, 0.0, 4.0]),
        ({"scale": 0.5}, [-1.0, 0.0, 2.0]),
        ({"shift": 1.0}, [-1.0, 1.0, 5.0]),
        ({"clip_low": -1.0, "clip_high": 1.0}, [-1.0, 0.0, 1.0]),
        ({"clip_high": 1.0}, [-2.0, 0.0, 1.0]),
        ({"clip_low": 0.0}, [0.0, 0.0, 4.0]),
        ({"sign": True}, [-1.0, 0.0, 1.0]),
        ({"step_penalty": 0.25}, [-2.25, -0.25, 3.75]),
        ({"terminal_bonus": 10.0}, [-2.0, 0.0, 14.0]),
    ],
)
def test_each_operation_by_hand(fields, expected):
    assert transform([-2.0, 0.0, 4.0], terminated=[0.0, 0.0, 1.0], **fields) == expected


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"scale": 2.0, "shift": 1.0}, [7.0]),  # 3 * 2 + 1, not (3 + 1) * 2
        ({"shift": -1.0, "clip_high": 2.5}, [2.0]),  # shifted first, so nothing is left to clip
        ({"scale": 0.1, "clip_low": -1.0, "clip_high": 1.0}, [0.3]),  # scaled first
        ({"clip_high": 0.0, "sign": True}, [0.0]),  # clipped first: the sign of 0
        ({"sign": True, "step_penalty": 0.5}, [0.5]),  # the penalty is not reduced to a sign
        ({"clip_high": 1.0, "terminal_bonus": 5.0}, [6.0]),  # a bonus is not clipped away
        ({"scale": 0.1, "terminal_bonus": 5.0}, [5.3]),  # nor scaled
    ],
)
def test_order_of_operations(fields, expected):
    assert transform([3.0], terminated=[1.0], **fields) == pytest.approx(expected)


def test_a_truncated_episode_gets_no_terminal_bonus():
    found = transform([1.0, 1.0], [True, False], np.array([False, True]), [{}, {}], terminal_bonus=10.0)
    assert found == [11.0, 1.0]


def test_success_is_read_from_the_info():
    infos = [{"won": True}, {"won": np.bool_(False)}, {}]
    fields = {"success_bonus": 10.0, "success_key": "won", "scale": 0.5}
    assert transform([1.0] * 3, [False] * 3, np.zeros(3, bool), infos, **fields) == [10.5, 0.5, 0.5]
    with pytest.raises(UserError, match="datasets do not have"):
        transform([1.0], **fields)


def test_dataset_rows_and_env_steps_get_the_same_bits():
    raw = np.random.default_rng(0).normal(size=50)
    cfg = RewardConfig(scale=0.1, shift=0.7, clip_high=0.75, terminal_bonus=0.3)
    terminated = np.arange(50) % 7 == 0
    rows = RewardTransform(cfg)(raw.astype(np.float32), terminated.astype(np.float32))
    steps = RewardTransform(cfg)
    one_by_one = [
        steps(raw[i : i + 1], terminated[i : i + 1], np.array([False]), [{}])[0] for i in range(50)
    ]  # envs give float64
    assert rows.dtype == np.float32
    assert rows.tobytes() == np.array(one_by_one).tobytes()


def test_the_input_is_left_alone():
    reward = np.array([1.0, 2.0], np.float32)
    RewardTransform(RewardConfig(step_penalty=1.0))(reward, np.zeros(2))
    assert reward.tolist() == [1.0, 2.0]


def test_identity_is_known():
    assert RewardTransform(RewardConfig()).identity
    assert RewardTransform(RewardConfig(success_key="won", running_clip=5.0)).identity
    for fields in (
        {"scale": 2.0},
        {"clip_low": 0.0},
        {"sign": True},
        {"normalize_return": True},
        {"success_bonus": 1.0},
    ):
        assert not RewardTransform(RewardConfig(**fields)).identity


def test_normalize_return_spans_a_thousand():
    data = dataset([1, 2, 3, 4, 5, 5], ends=[2, 1, 3])  # returns 3, 3, 14
    made = RewardTransform(RewardConfig(normalize_return=True))
    made.fit(data)
    assert made.factor == 1000.0 / 11.0
    assert made(data.raw_reward, data.terminated).tolist() == pytest.approx((data.raw_reward * 1000 / 11).tolist())


def test_normalize_return_comes_after_shaping():
    data = dataset([1, 1, 1], ends=[1, 2])
    made = RewardTransform(RewardConfig(normalize_return=True, shift=1.0, return_range=10.0))  # returns 2 and 4
    made.fit(data)
    assert made(np.array([1.0]), np.array([0.0])).tolist() == [10.0]


def test_normalize_return_needs_a_dataset_that_varies():
    made = RewardTransform(RewardConfig(normalize_return=True))
    with pytest.raises(UserError, match="fitted on a dataset"):
        made(np.array([1.0]), np.array([0.0]))
    with pytest.raises(UserError, match="different return"):
        made.fit(dataset([1, 1], ends=[1, 1]))


def test_the_fitted_factor_survives_a_checkpoint():
    made = RewardTransform(RewardConfig(normalize_return=True))
    made.fit(dataset([1, 2, 4], ends=[1, 1, 1]))
    again = RewardTransform(RewardConfig(normalize_return=True))
    again.load_state(json.loads(json.dumps(made.state())))
    assert again.factor == made.factor


def test_running_return_by_hand():
    running = RunningReturn(discount=0.5)
    running.observe(np.array([1.0, 2.0]), np.array([False, True]))  # returns 1, 2; the second env starts over
    running.observe(np.array([4.0, 6.0]), np.array([False, False]))  # returns 4.5, 6
    values = np.array([1.0, 2.0, 4.5, 6.0])
    assert running.count == 4
    assert running.mean == pytest.approx(values.mean())
    assert running.std == pytest.approx(np.sqrt(values.var() + 1e-8))


def test_running_norm_divides_by_the_std_and_clips():
    made = RewardTransform(RewardConfig(running_norm=True, running_discount=0.0, running_clip=1.5))
    no = np.array([False, False])
    assert made(np.array([1.0, 3.0]), no, no, [{}, {}]).tolist() == pytest.approx([1.0, 1.5])  # std 1
    made(np.array([100.0, 300.0]), no)  # without an env step nothing is learned
    assert made.running.count == 2


def test_running_norm_goes_on_exactly_after_a_checkpoint():
    rng = np.random.default_rng(1)
    rewards, ended = rng.normal(size=(40, 3)), rng.random((40, 3)) < 0.1
    no = np.zeros(3, bool)

    def run(made, start, stop):
        found = []
        for t in range(start, stop):
            infos = [{}, {}, {}]
            found.append((made(rewards[t], ended[t], no, infos).tolist(), infos))
        return found

    cfg = RewardConfig(running_norm=True, scale=0.3)
    whole = run(RewardTransform(cfg), 0, 40)
    first = RewardTransform(cfg)
    run(first, 0, 17)
    second = RewardTransform(cfg)
    second.load_state(json.loads(json.dumps(first.state())))
    assert run(second, 17, 40) == whole[17:]


def test_running_norm_refuses_a_dataset():
    with pytest.raises(UserError, match="normalize_return"):
        RewardTransform(RewardConfig(running_norm=True)).fit(dataset([1, 2], ends=[1, 1]))


def test_an_episode_that_ends_is_told_its_transformed_return():
    made = RewardTransform(RewardConfig(scale=0.5))
    no = np.array([False, False])
    first, second, third = [{}, {}], [{}, {}], [{}, {}]
    made(np.array([2.0, 4.0]), no, no, first)
    made(np.array([2.0, 4.0]), np.array([True, False]), no, second)
    made(np.array([8.0, 4.0]), no, np.array([True, True]), third)
    assert first == [{}, {}]
    assert second == [{"transformed_return": 2.0}, {}]
    assert third == [{"transformed_return": 4.0}, {"transformed_return": 6.0}]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"clip_low": 1.0, "clip_high": 0.0}, "above"),
        ({"normalize_return": True, "running_norm": True}, "exclude"),
    ],
)
def test_configs_that_mean_nothing_are_refused(fields, words):
    with pytest.raises(UserError, match=words):
        RewardTransform(RewardConfig(**fields))


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["reward=identity"], [-4.0, 0.0, 1.0]),
        (["reward=scale"], [-0.4, 0.0, 0.1]),
        (["reward=scale", "reward.scale=2"], [-8.0, 0.0, 2.0]),
        (["reward=clip_1"], [-1.0, 0.0, 1.0]),
        (["reward=clip_1", "reward.scale=0.1"], [-0.4, 0.0, 0.1]),
        (["reward=sign_clip"], [-1.0, 0.0, 1.0]),
        (["reward=sparse_goal_zero_one"], [0.0, 1.0, 1.0]),
        (["reward=antmaze"], [-5.0, -1.0, 0.0]),
    ],
)
def test_presets(overrides, expected):
    made = instantiate(compose_config(overrides).reward)
    assert made(np.array([-4.0, 0.0, 1.0]), np.zeros(3)).tolist() == pytest.approx(expected)
    assert made.identity == (overrides == ["reward=identity"])


@pytest.mark.parametrize("algo_env", [[], ["algo_env=cql_pendulum"]], ids=["by names", "chosen"])
def test_a_reward_that_is_chosen_goes_before_that_of_a_tuned_pair(algo_env):
    of_pair = compose_config(["algo=cql", "env=pendulum", *algo_env])
    assert of_pair.reward.scale == 0.1
    chosen = compose_config(["algo=cql", "env=pendulum", "reward=identity", *algo_env])
    assert chosen.reward.scale == 1.0
    assert chosen.algo == of_pair.algo
    assert chosen.trainer == of_pair.trainer
    clipped = compose_config(["algo=cql", "env=pendulum", "reward=clip_1", "reward.scale=0.5", *algo_env]).reward
    assert (clipped.scale, clipped.clip_high) == (0.5, 1.0)


def test_a_chosen_reward_reads_what_the_pair_says_of_the_algorithm():
    cfg = compose_config(["algo=ppo", "env=cartpole", "reward=running_norm"])
    assert cfg.reward.running_discount == cfg.algo.discount == 0.98


def test_presets_that_follow_the_data():
    fitted = instantiate(compose_config(["reward=normalize_return"]).reward)
    fitted.fit(dataset([0, 4], ends=[1, 1]))
    assert fitted.factor == 250.0
    running = instantiate(compose_config(["reward=running_norm", "algo.discount=0.9"]).reward)
    assert running.running.discount == 0.9


class Given(gymnasium.Env):
    """Gives the reward it is told."""

    observation_space = gymnasium.spaces.Discrete(1)
    action_space = gymnasium.spaces.Box(-10, 10, ())

    def reset(self, *, seed=None, options=None):
        return 0, {}

    def step(self, action):
        return 0, float(action), False, False, {}


@pytest.mark.parametrize(
    ("wrap", "expected"),
    [
        (lambda env: RewardScaleWrapper(env, 0.5), 1.5),
        (lambda env: RewardShiftWrapper(env, -1.0), 2.0),
        (lambda env: RewardClipWrapper(env), 1.0),
        (lambda env: RewardClipWrapper(env, 4.0, None), 4.0),
        (lambda env: apply_reward_wrappers(env, scale=2.0, shift=1.0, clip_high=5.0), 5.0),
        (lambda env: apply_reward_wrappers(env, scale=2.0, shift=1.0), 7.0),
    ],
)
def test_wrappers(wrap, expected):
    assert wrap(Given()).step(3.0)[1] == expected


def test_wrappers_agree_with_the_transform():
    fields = {"scale": 0.5, "shift": 1.0, "clip_low": -1.0, "clip_high": 2.0}
    env = apply_reward_wrappers(Given(), **fields)
    rewards = [-8.0, -1.0, 0.0, 1.0, 8.0]
    assert [env.step(r)[1] for r in rewards] == transform(rewards, **fields)


def test_only_the_wrappers_asked_for_are_put_on():
    env = Given()
    assert apply_reward_wrappers(env) is env
    with pytest.raises(UserError, match="above"):
        RewardClipWrapper(env, 1.0, 0.0)
