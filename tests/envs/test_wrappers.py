"""Wrappers by config: those of Gymnasium by name, others with trust, and none that reach beyond a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import yaml
from helpers import resumed, same_run, snapshots, tiny

import rlx
from rlx.build import env_spec
from rlx.config import WRAPPERS, load_config
from rlx.envs import make_env, make_vector_env
from rlx.envs.factory import EnvConfig
from rlx.envs.wrappers import REFUSED, make_wrappers
from rlx.errors import UserError

STACK = "+env.wrappers.stack={_target_: FrameStackObservation, stack_size: 3}"
MINE = """
import gymnasium


class Louder(gymnasium.RewardWrapper):
    def __init__(self, env, factor):
        super().__init__(env)
        self.factor = factor

    def reward(self, reward):
        return self.factor * reward


def nothing(env):
    return None
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "my_wrappers.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)
    return "my_wrappers"


def pendulum(**wrappers: Any) -> EnvConfig:
    return EnvConfig(id="Pendulum-v1", wrappers=wrappers)


def test_they_are_applied_in_their_order() -> None:
    stack = {"_target_": "FrameStackObservation", "stack_size": 4}
    assert env_spec(pendulum(time="TimeAwareObservation", stack=stack)).obs_shape == (16,)  # 4 x (3 + the time)
    assert env_spec(pendulum(stack=stack)).obs_shape == (12,)
    assert env_spec(pendulum(stack=stack, time=None)).obs_shape == (12,)  # null leaves one out


@pytest.mark.parametrize("name", ["FrameStack", "FrameStackObservation", "gymnasium.wrappers.FrameStackObservation"])
def test_names_of_one_wrapper(name: str) -> None:
    assert env_spec(pendulum(stack={"_target_": name, "stack_size": 2})).obs_shape == (6,)


def test_training_and_evaluation_have_them(tmp_path: Path) -> None:
    clip = "env.wrappers.clip={_target_: ClipReward, min_reward: -0.001, max_reward: 0}"
    result = rlx.train(*tiny("off_policy", STACK, clip), run_dir=tmp_path / "run")
    assert result.learner.spec.obs_shape == (9,)
    assert -0.031 <= result.summary["eval_return_mean"] <= 0  # 30 steps of -0.001 at the least
    assert rlx.evaluate(tmp_path / "run", episodes=1)["eval/return_mean"] >= -0.031


def test_given_envs_have_them_too(tmp_path: Path) -> None:
    overrides = [o for o in tiny("off_policy", "algo=sac") if not o.startswith("env=")]
    result = rlx.train(*overrides, STACK, env=lambda: gym.make("Pendulum-v1"), run_dir=tmp_path / "run")
    assert result.learner.spec.obs_shape == (9,)


@pytest.mark.parametrize("regime", ["off_policy", "on_policy"])
def test_a_run_with_memory_in_its_wrappers_resumes_exactly(regime: str, tmp_path: Path) -> None:
    sticky = "+env.wrappers.sticky={_target_: StickyAction, repeat_action_probability: 0.3}"
    moment = ("checkpoint", 1)
    with snapshots(moment, into=tmp_path) as taken:
        rlx.train(*tiny(regime, "env.num_envs=2", STACK, sticky), run_dir=tmp_path / "whole")
    assert resumed(taken[moment]).summary["exact"]
    same_run(taken[moment], tmp_path / "whole")


def test_native_vector_envs_know_no_wrappers() -> None:
    cfg = EnvConfig(id="CartPole-v1", wrappers={"time": "TimeAwareObservation"}, num_envs=8)
    envs = make_vector_env(cfg)
    assert envs.reset(dict.fromkeys(range(8), 0))[0].shape == (5,)
    envs.close()
    cfg.vectorization = "native"
    with pytest.raises(UserError, match=r"env.vectorization=sync"):
        make_vector_env(cfg)


@pytest.mark.parametrize(
    ("node", "words"),
    [
        ("TimeAwareObservations", r"Unknown wrapper .*Did you mean TimeAwareObservation\? Choices: "),
        (
            "FrameStack",
            r'FrameStackObservation needs stack_size; for example "env.wrappers.it={_target_: FrameStackObservation, '
            r'stack_size: 4}"',
        ),
        ("RescaleAction", r"needs min_action and max_action; .*, min_action: -1, max_action: 1}"),
        (
            {"_target_": "FrameStack", "num_stack": 4},
            "env.wrappers.it.num_stack is not an argument of FrameStackObservation; it has stack_size, padding_type",
        ),
        ({"_target_": "ClipAction", "low": 1}, "env.wrappers.it.low is not an argument of ClipAction; it has none"),
        ({"_target_": "GrayscaleObservation"}, "does not fit"),
        ({"stack_size": 2}, "does not name a wrapper"),
        (3, "does not name a wrapper"),
        ({"_target_": "RecordVideo", "video_folder": "here"}, "cannot be RecordVideo: it writes files"),
        ("gymnasium.wrappers.NormalizeReward", r"use reward=running_norm"),
        ("NormalizeObservation", r"use algo.normalize_obs=true"),
        ("os.system", r"add trust=\[os\] to allow code from os"),
        ("rlx.cli.main", "Unknown wrapper"),
        ("gymnasium.wrappers.vector.RecordVideo", "Unknown wrapper"),
    ],
)  # fmt: skip
def test_a_wrapper_that_cannot_be_is_refused_in_a_sentence(node: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=words) as error:
        make_env(pendulum(it=node))
    assert str(error.value).startswith(("env.wrappers.it", "Unknown wrapper"))


def test_an_error_at_the_first_step_is_told_before_a_run_begins(mine: str, tmp_path: Path) -> None:
    wrong = "+env.wrappers.it={_target_: my_wrappers.Louder, factor: much}"
    with pytest.raises(UserError, match=r"env.wrappers \(it\) do not fit Pendulum-v1"):
        rlx.train(*tiny("off_policy", wrong, f"trust=[{mine}]"), run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_every_wrapper_of_gymnasium_is_either_offered_or_refused() -> None:
    classes = {name for name in dir(gym.wrappers) if isinstance(getattr(gym.wrappers, name), type)}
    conversions = {"ArrayConversion", "JaxToNumpy", "JaxToTorch", "NumpyToTorch"}
    assert {name for name in classes if issubclass(getattr(gym.wrappers, name), gym.Wrapper)} - conversions <= {
        *WRAPPERS,
        *REFUSED,
    }
    assert not WRAPPERS & REFUSED.keys()


def test_wrappers_of_ones_own_need_trust(mine: str, tmp_path: Path) -> None:
    node = {"_target_": f"{mine}.Louder", "factor": 2}
    with pytest.raises(UserError, match=r"add trust=\[my_wrappers\]"):
        make_wrappers({"it": node})
    with pytest.raises(UserError, match="made a NoneType"):
        make_env(pendulum(it=f"{mine}.nothing"), [mine])
    rewards = []
    for cfg in (pendulum(), pendulum(it=node)):
        env = make_env(cfg, [mine])
        env.reset(seed=0)
        rewards.append(env.step(np.zeros(1))[1])
    assert rewards[1] == 2 * rewards[0]
    loud = "+env.wrappers.it={_target_: my_wrappers.Louder, factor: 2}"
    rlx.train(*tiny("off_policy", loud, f"trust=[{mine}]"), run_dir=tmp_path / "run")
    with pytest.raises(UserError, match=r"asks for my_wrappers.Louder as env.wrappers.it.* trust="):
        rlx.evaluate(tmp_path / "run", episodes=1)
    assert rlx.evaluate(tmp_path / "run", episodes=1, trust=(mine,))["episodes"] == 1


@pytest.mark.parametrize(
    ("node", "words"),
    [
        ({"_target_": "RecordVideo", "video_folder": "x"}, "asks for RecordVideo as env.wrappers.it"),
        ("os.system", "asks for os.system as env.wrappers.it"),
        ({"_target_": "rlx.files.remove"}, "asks for rlx.files.remove"),
        ({"_target_": "${algo._target_}"}, r"asks for .*algo"),
        ({"_target_": "ClipReward", "max_reward": {"_target_": "os.system"}}, "asks for os.system"),
        ({"_target_": "DtypeObservation", "dtype": "/etc/passwd"}, "which may be a file or a module"),
        ({"_target_": "FrameStackObservation", "stack_size": 10**8}, "in env.wrappers whose product is more than"),
    ],
)  # fmt: skip
def test_a_saved_config_cannot_ask_for_more(node: Any, words: str, tmp_path: Path) -> None:
    rlx.train(*tiny("off_policy", STACK, "trainer.max_env_steps=60"), run_dir=tmp_path / "run")
    values = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert load_config(yaml.safe_dump(values)).env.wrappers.stack.stack_size == 3
    values["env"]["wrappers"] = {"it": node}
    with pytest.raises(UserError, match=words):
        load_config(yaml.safe_dump(values))


def test_data_of_wrapped_envs_are_not_written_as_those_of_the_env(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"callbacks.make_data .*env.wrappers"):
        rlx.train(
            *tiny("off_policy", STACK, "callbacks=[default,make_data]", "callbacks.make_data.prefix=mine"),
            run_dir=tmp_path / "no",
        )
    rlx.train(*tiny("off_policy", STACK), run_dir=tmp_path / "run")
    with pytest.raises(UserError, match="collect writes what the env itself gives"):
        rlx.collect(tmp_path / "run", "mine/wrapped-v0", episodes=1)
