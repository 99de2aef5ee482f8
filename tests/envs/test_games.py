"""Atari, MinAtar, the Control Suite and CarRacing: what they show, what they are asked for, and that they replay."""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from rlx.collectors.runner import Runner
from rlx.config import compose_config, load_config
from rlx.data.frames import stacked_frames
from rlx.envs import EnvConfig, for_training, make_env, make_vector_env, spec_of
from rlx.envs.atari import Shrink, area_weights
from rlx.envs.minatar import GAMES
from rlx.envs.vector import LIFE_LOST
from rlx.errors import UserError
from rlx.types import Box

PACKAGES = {"Atari": "ale_py", "MinAtar": "minatar", "DMC": "dm_control", "CarRacing": "Box2D"}


def needs(name: str) -> Any:
    """Skip where a package is missing; MinAtar as a whole would import what it draws with."""
    __tracebackhide__ = True
    if name == "minatar":
        import importlib.util

        return importlib.util.find_spec(name) or pytest.skip("minatar is not installed")
    return pytest.importorskip(name, reason=f"{name} is not installed")


def made(env_id: str, **kwargs: Any) -> Any:
    return make_env(EnvConfig(id=env_id, kwargs=kwargs))


# -- the config ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "env_id"),
    [
        (["env=atari", "env.game=Pong"], "rlx/Atari-Pong-v0"),
        (["env=minatar"], "rlx/MinAtar-breakout-v0"),
        (["env=dmc", "env.task=walker_walk"], "rlx/DMC-walker_walk-v0"),
        (["env=carracing"], "CarRacing-v3"),
    ],
)
def test_a_preset_has_the_game_as_a_key(overrides: list[str], env_id: str) -> None:
    cfg = compose_config(["algo=dqn", *overrides])
    assert cfg.env.id == env_id
    assert cfg.env.suite == cfg.env.extra


def test_a_saved_config_keeps_the_game_and_cannot_name_a_file() -> None:
    from omegaconf import OmegaConf

    text = OmegaConf.to_yaml(compose_config(["algo=dqn", "env=atari", "env.game=Pong"]))
    assert load_config(text).env.id == "rlx/Atari-Pong-v0"
    assert load_config(text, ["env.game=Qbert"]).env.id == "rlx/Atari-Qbert-v0"
    for key in ("kwargs", "training_kwargs"):
        changed = OmegaConf.create(text)
        changed.env[key].rom = "/tmp/rom.bin"
        with pytest.raises(UserError, match=rf"env.{key}.rom=/tmp/rom.bin, which may be a file"):
            load_config(OmegaConf.to_yaml(changed))
    changed = OmegaConf.create(text)
    changed.env._target_ = "ale_py.vector_env.AtariVectorEnv"
    with pytest.raises(UserError, match="which rlx does not have there"):
        load_config(OmegaConf.to_yaml(changed))


@pytest.mark.parametrize(
    ("env_id", "package", "message"),
    [
        (
            "rlx/Atari-Pon-v0",
            "ale_py",
            "env.game=Pon is not one of the .* that there are; did you mean env.game=Pong",
        ),
        ("rlx/MinAtar-pong-v0", "minatar", "env.game=pong is not one of the 5 .* choose one of asterix, breakout,"),
        ("rlx/DMC-cheeta-v0", "dm_control", "did you mean env.task=cheetah_run"),
    ],
)
def test_a_wrong_name_is_answered_with_the_right_one(env_id: str, package: str, message: str) -> None:
    needs(package)
    with pytest.raises(UserError, match=message):
        made(env_id)


@pytest.mark.parametrize(("suite", "extra"), [("Atari-Pong", "atari"), ("DMC-cheetah_run", "dmc")])
def test_a_missing_package_is_told_with_its_extra(suite: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [n for n in sys.modules if n.partition(".")[0] in ("ale_py", "dm_control")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "ale_py", None)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "dm_control", None)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=rf"needs a package that is not installed .*\.\[{extra}\]"):
        make_env(EnvConfig(id=f"rlx/{suite}-v0", extra=extra))


# -- what they show --------------------------------------------------------------------------------------------------


def test_pictures_shrink_by_area() -> None:
    """Five pixels become two: the third is shared by both."""
    np.testing.assert_array_equal(area_weights(5, 2), [[2, 2, 1, 0, 0], [0, 0, 1, 2, 2]])
    shrink = Shrink(5, 2, 2)  # along the other axis, pixels stay
    picture = np.array([[10, 0], [20, 0], [30, 0], [40, 255], [51, 255]], np.uint8)
    # (2 * 10 + 2 * 20 + 30) / 5 = 18, (30 + 2 * 40 + 2 * 51) / 5 = 42.4; 0, (2 * 255 + 2 * 255) / 5 = 204
    np.testing.assert_array_equal(shrink(picture), [[18, 0], [42, 204]])
    assert (Shrink(210, 160, 84)(np.full((210, 160), 255, np.uint8)) == 255).all()


def test_pong_is_a_stack_of_grey_frames() -> None:
    needs("ale_py")
    env = made("rlx/Atari-Pong-v0")
    check_env(env.unwrapped, skip_render_check=True, skip_close_check=True)
    spec = spec_of(env, "Pong")
    assert spec.obs == {"obs": Box((4, 84, 84), "uint8")}
    assert spec.action_sizes == (6,)
    assert spec.episode_limit == 27_000
    assert stacked_frames(env, spec) == {"obs": 4}
    obs, _ = env.reset(seed=0)
    assert (obs == obs[0]).all()  # the first frame, four times
    nxt = env.step(0)[0]
    np.testing.assert_array_equal(nxt[:3], obs[1:])


def test_sticky_actions_repeat_the_one_before() -> None:
    """Without them the same actions give the same game whatever the seed; with probability near 1 no action counts."""
    needs("ale_py")

    def seen(sticky: float, seed: int, actions: list[int]) -> np.ndarray:
        env = made("rlx/Atari-Pong-v0", sticky=sticky)
        env.reset(seed=seed)
        return np.stack([env.step(action)[0][-1] for action in actions])

    up, down = [0] * 15 + [2] * 10, [0] * 15 + [3] * 10
    np.testing.assert_array_equal(seen(0.0, 0, up), seen(0.0, 1, up))
    assert not np.array_equal(seen(0.0, 0, up), seen(0.0, 0, down))
    np.testing.assert_array_equal(seen(0.9999, 0, up), seen(0.9999, 0, down))
    assert not np.array_equal(seen(0.5, 0, up), seen(0.5, 1, up))


def play_breakout(steps: int, **kwargs: Any) -> tuple[list[int], int]:
    """At which steps lives were lost, and how many games ended, pressing FIRE now and then."""
    env = made("rlx/Atari-Breakout-v0", **kwargs)
    env.reset(seed=3)
    lost, games = [], 0
    for step in range(steps):
        _, _, terminated, _, info = env.step(1 if step % 5 == 0 else 0)
        lost += [step] if info.get(LIFE_LOST) else []
        games += terminated
        if terminated:
            env.reset(seed=3)
    return lost, games


def test_a_lost_life_is_told_and_the_game_goes_on() -> None:
    needs("ale_py")
    lost, games = play_breakout(250, episodic_life=True)
    assert games >= 1
    assert 4 * games <= len(lost) <= 4 * games + 4  # the last of five lives ends the game
    assert play_breakout(250) == ([], games)


def test_fire_begins_every_life() -> None:
    needs("ale_py")

    def lives_lost(fire_reset: bool) -> int:
        env = made("rlx/Atari-Breakout-v0", fire_reset=fire_reset, episodic_life=True, sticky=0.0)
        env.reset(seed=0)
        return sum(bool(env.step(0)[4].get(LIFE_LOST)) for _ in range(150))

    assert lives_lost(False) == 0  # the ball never comes
    assert lives_lost(True) >= 3


def test_training_envs_alone_have_training_kwargs() -> None:
    cfg = EnvConfig(id="CartPole-v1", kwargs={"a": 1, "b": 1}, training_kwargs={"b": 2})
    assert for_training(cfg).kwargs == {"a": 1, "b": 2}
    assert cfg.kwargs == {"a": 1, "b": 1}
    with pytest.raises(UserError, match=r"env.kwargs \(a, b\) do not fit CartPole-v1"):
        make_vector_env(for_training(cfg))


@pytest.mark.parametrize("key", ["frame_skip", "size", "stack"])
def test_atari_refuses_numbers_out_of_range(key: str) -> None:
    needs("ale_py")
    with pytest.raises(UserError, match=f"env.kwargs.{key} must be 1 to 1024"):
        made("rlx/Atari-Pong-v0", **{key: 0})
    with pytest.raises(UserError, match=r"env.kwargs.sticky must be at least 0 and below 1"):
        made("rlx/Atari-Pong-v0", sticky=1.0)


@pytest.mark.parametrize(("game", "minimal"), zip(GAMES, (5, 3, 3, 6, 4), strict=True))
def test_minatar_has_ten_by_ten_pixels(game: str, minimal: int) -> None:
    needs("minatar")
    env = made(f"rlx/MinAtar-{game}-v0")
    check_env(env.unwrapped, skip_render_check=True, skip_close_check=True)
    box = spec_of(env, game).obs["obs"]
    assert box.shape[:2] == (10, 10)
    assert box.dtype == "uint8"
    obs, _ = env.reset(seed=0)
    assert set(np.unique(obs)) == {0, 255}
    assert env.action_space.n == 6
    assert made(f"rlx/MinAtar-{game}-v0", minimal_actions=True).action_space.n == minimal


def test_the_control_suite_gives_vectors() -> None:
    needs("dm_control")
    env = made("rlx/DMC-cheetah_run-v0", action_repeat=4)
    spec = spec_of(env, "cheetah")
    assert (spec.obs_shape, spec.action_shape) == ((17,), (6,))
    env.reset(seed=0)
    ends = [env.step(np.zeros(6, np.float32))[2:4] for _ in range(250)]
    assert ends[-1] == (False, True)  # 1,000 steps, which is no terminal state
    assert ends[:-1] == [(False, False)] * 249
    with pytest.raises(UserError, match=r"env.kwargs.observe must be one of state, pixels, both"):
        made("rlx/DMC-cheetah_run-v0", observe="sound")


def test_the_control_suite_renders_one_picture_per_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames under a repeated action are not drawn, nor is anything where nobody looks; shadows may be left out."""
    needs("dm_control")
    if "MUJOCO_GL" not in os.environ:
        pytest.skip("set MUJOCO_GL=egl or osmesa to draw pictures")
    from dm_control.mujoco import Physics

    drawn: list[tuple[int, ...]] = []
    original = Physics.render

    def render(self: Any, *args: Any, **kwargs: Any) -> np.ndarray:
        picture: np.ndarray = original(self, *args, **kwargs)
        drawn.append(picture.shape)
        return picture

    monkeypatch.setattr(Physics, "render", render)
    pictures = {}
    for shadows in (True, False):
        env = made("rlx/DMC-walker_stand-v0", observe="pixels", action_repeat=4, size=48, shadows=shadows)
        first, _ = env.reset(seed=0)
        for _ in range(3):
            pictures[shadows] = env.step(np.zeros(6, np.float32))[0]
        assert drawn == [(48, 48, 3)] * 4
        assert (first[:3] == first[3:6]).all()  # a stack begins with copies of one picture
        assert pictures[shadows].shape == (9, 48, 48)
        drawn.clear()
    assert 0 < (pictures[True] != pictures[False]).mean() < 0.9
    made("rlx/DMC-walker_stand-v0", action_repeat=4).reset(seed=0)
    assert drawn == []


# -- that they replay ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("env_id", "kwargs", "steps"),
    [
        ("rlx/MinAtar-breakout-v0", {}, 300),
        ("rlx/MinAtar-space_invaders-v0", {}, 300),
        ("rlx/Atari-Breakout-v0", {"fire_reset": True, "episodic_life": True}, 250),
        ("rlx/Atari-Qbert-v0", {}, 120),  # which a restored state alone does not bring back
        ("rlx/Atari-Frostbite-v0", {}, 120),  # which a reset alone does not
        ("rlx/DMC-cheetah_run-v0", {}, 150),
        ("rlx/DMC-cartpole_swingup-v0", {}, 150),
    ],
)
def test_a_journal_brings_a_game_back(env_id: str, kwargs: dict[str, Any], steps: int) -> None:
    needs(PACKAGES[env_id.removeprefix("rlx/").partition("-")[0]])
    cfg = EnvConfig(id=env_id, kwargs=kwargs, num_envs=2, vectorization="sync")
    runner, twin = (Runner(make_vector_env(cfg), seed=1) for _ in range(2))
    runner.envs.action_space.seed(0)

    def actions() -> np.ndarray:
        return np.stack([np.asarray(runner.envs.action_space.sample()) for _ in range(2)])

    for _ in range(steps):
        runner.step(actions())
    for _ in range(40):
        twin.step(actions())  # has been elsewhere
    assert twin.restore(runner.journal()) == []
    for _ in range(60):
        action = actions()
        (step, finished), (other, also) = runner.step(action), twin.step(action)
        np.testing.assert_array_equal(step.next_obs, other.next_obs)
        np.testing.assert_array_equal(step.reward, other.reward)
        assert finished == also


def test_ales_own_vector_env_is_asked_for_by_name() -> None:
    needs("ale_py")
    cfg = EnvConfig(id="rlx/Atari-Breakout-v0", num_envs=2, vectorization="native", kwargs={"episodic_life": True})
    envs = make_vector_env(cfg)
    first = envs.reset({0: 1, 1: 2})
    assert first[0].shape == (4, 84, 84)
    lost, ended = 0, 0
    for i in range(300):
        step = envs.step([1 if i % 5 == 0 else 0] * 2)
        lost += sum(bool(info.get(LIFE_LOST)) for info in step.infos)
        ends = np.flatnonzero(step.terminated | step.truncated).tolist()
        ended += len(ends)
        if ends:
            envs.reset({lane: 10 + lane for lane in ends})
    envs.close()
    assert ended >= 2
    assert lost >= 8
    with pytest.raises(UserError, match="does not press FIRE after a life"):
        make_vector_env(EnvConfig(id=cfg.id, vectorization="native", kwargs={"fire_reset": True}))
    with pytest.raises(UserError, match=r"env.wrappers cannot be run by a native vector env"):
        make_vector_env(EnvConfig(id=cfg.id, vectorization="native", wrappers={"time": "ClipReward"}))


@pytest.mark.parametrize("vectorization", ["sync", "native"])
def test_a_time_limit_truncates(vectorization: str) -> None:
    needs("ale_py")
    cfg = EnvConfig(id="rlx/Atari-Pong-v0", vectorization=vectorization, max_episode_steps=3)
    envs = make_vector_env(cfg)
    envs.reset({0: 0})
    assert [bool(envs.step([0]).truncated[0]) for _ in range(3)] == [False, False, True]
    envs.reset({0: 1})
    assert not envs.step([0]).truncated[0]
    envs.close()
