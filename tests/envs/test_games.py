"""Atari, MinAtar, the Control Suite and CarRacing: what they show, what they are asked for, and that they replay."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from rlx.collectors.runner import Runner
from rlx.config import compose_config, load_config
from rlx.data.frames import Frames, stacked_frames
from rlx.envs import EnvConfig, for_training, make_env, make_vector_env, spec_of
from rlx.envs.actions import unscaled
from rlx.envs.atari import Atari, Shrink, area_weights
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
            "env.game=Pon is not one of the .* choices; did you mean env.game=Pong",
        ),
        ("rlx/Atari-PONG-v0", "ale_py", "did you mean env.game=Pong"),
        ("rlx/Atari-123-v0", "ale_py", r"one of the .* choices; some of them are \w+(, \w+){4}\.$"),
        ("rlx/MinAtar-brekout-v0", "minatar", "did you mean env.game=breakout"),
        ("rlx/MinAtar-pong-v0", "minatar", "env.game=pong is not one of the 5 .* choose one of asterix, breakout,"),
        ("rlx/DMC-cheeta-v0", "dm_control", "did you mean env.task=cheetah_run"),
        ("rlx/Atari-Pong", "ale_py", r"not a registered environment; did you mean env.id=rlx/Atari-Pong-v0\?$"),
        ("rlx/MinAtar-breakout", "minatar", r"not a registered .* did you mean env.id=rlx/MinAtar-breakout-v0\?$"),
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


@pytest.mark.parametrize(("frame_skip", "steps"), [(1, 108_000), (4, 27_000), (5, 21_600)])
@pytest.mark.parametrize("vectorization", ["sync", "native"])
def test_a_game_has_at_most_half_an_hour(frame_skip: int, steps: int, vectorization: str) -> None:
    needs("ale_py")
    cfg = EnvConfig(id="rlx/Atari-Pong-v0", vectorization=vectorization, kwargs={"frame_skip": frame_skip})
    if vectorization == "sync":
        assert spec_of(make_env(cfg), cfg.id).episode_limit == steps
        assert spec_of(make_env(replace(cfg, max_episode_steps=7)), cfg.id).episode_limit == 7
    envs: Any = make_vector_env(cfg)
    assert (envs.envs[0].spec.max_episode_steps if vectorization == "sync" else envs._limit) == steps
    envs.close()


class Console:
    """Stands in for ALE: a screen of 2 x 4 pixels, whose halves each frame of a list paints in two greys."""

    greys = ((5, 5),)  # at the start of a game, and frame by frame
    last = 99  # the frame with which a game is over
    setLoggerMode = setFloat = setInt = loadROM = reset_game = staticmethod(lambda *args: None)

    def getMinimalActionSet(self) -> list[Any]:
        return [0]

    def getScreenDims(self) -> tuple[int, int]:
        return 2, 4

    def cloneState(self, include_rng: bool) -> int:
        return 0

    def restoreState(self, frame: int) -> None:
        self.frame = frame

    def getScreenGrayscale(self, out: np.ndarray) -> None:
        out[:, :2], out[:, 2:] = self.greys[getattr(self, "frame", 0)]

    def act(self, action: Any) -> int:
        self.frame += 1
        return 1

    def lives(self) -> int:
        return 1

    def game_over(self) -> bool:
        return self.frame >= self.last


def console(monkeypatch: pytest.MonkeyPatch, *greys: tuple[int, int], last: int = 99, **kwargs: Any) -> Atari:
    ale_py = needs("ale_py")
    made_of = type("Painted", (Console,), {"greys": greys, "last": last})
    monkeypatch.setattr(ale_py, "ALEInterface", made_of)
    return Atari("pong", size=2, sticky=0.0, **kwargs)


def halves(obs: np.ndarray) -> list[list[int]]:
    """The greys of both halves of each picture of a stack."""
    assert (obs[:, 0] == obs[:, 1]).all()
    return obs[:, 0].tolist()


@pytest.mark.parametrize(
    ("frame_skip", "expected"),
    [
        (1, [[9, 90], [80, 0], [7, 70], [60, 1], [2, 50], [40, 3]]),  # nothing to compare with
        (2, [[80, 90], [60, 70], [40, 50]]),
        (3, [[80, 70], [40, 50]]),
        (4, [[60, 70]]),
    ],
)
def test_a_picture_has_the_larger_of_each_pixels_last_two_frames(
    frame_skip: int, expected: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two sprites that are drawn in turns, one in every other frame, are both seen; older frames are not."""
    greys = ((255, 255), (9, 90), (80, 0), (7, 70), (60, 1), (2, 50), (40, 3))
    env = console(monkeypatch, *greys, frame_skip=frame_skip, stack=1)
    assert halves(env.reset(seed=0)[0]) == [[255, 255]]
    assert [halves(env.step(np.int64(0))[0])[0] for _ in expected] == expected


def test_a_picture_has_no_frames_from_before_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor any where the game is over before the step is: its last frame alone."""
    greys = ((0, 0), (200, 200), (210, 210), (5, 6), (8, 7), (220, 220), (3, 4))
    env = console(monkeypatch, *greys, last=6, frame_skip=4, stack=1)
    env.reset(seed=0)
    obs, reward, over, _, _ = env.step(np.int64(0))
    assert (halves(obs), reward, over) == ([[8, 7]], 4.0, False)
    obs, reward, over, _, _ = env.step(np.int64(0))
    assert (halves(obs), reward, over) == ([[3, 4]], 2.0, True)


def test_a_stack_begins_anew_with_each_game(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first picture three times; after the third step of a game it has left the stack."""
    greys = [(n, 10 * n) for n in range(1, 6)]
    env = console(monkeypatch, *greys, frame_skip=1, stack=3)
    for _ in range(2):
        first = env.reset(seed=0)[0]
        seen = [first, *(env.step(np.int64(0))[0] for _ in range(4))]
        assert [[picture[0] for picture in halves(stack)] for stack in seen] == [
            [1, 1, 1], [1, 1, 2], [1, 2, 3], [2, 3, 4], [3, 4, 5],
        ]  # fmt: skip


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


class Lives(Console):
    """A life is lost with every fourth frame; the n-th one gives a reward of n."""

    pressed: ClassVar[list[int]] = []

    def getMinimalActionSet(self) -> list[Any]:
        actions = needs("ale_py").Action
        return [actions.NOOP, actions.FIRE]

    def act(self, action: Any) -> int:
        self.pressed.append(action.value)
        self.frame += 1
        return self.frame

    def lives(self) -> int:
        return 9 - self.frame // 4


def test_fire_is_pressed_in_the_step_that_lost_a_life(monkeypatch: pytest.MonkeyPatch) -> None:
    """The step has the rewards of both, and one picture: that of the last two frames."""
    ale_py = needs("ale_py")
    greys = tuple((n, 10 + n) for n in range(30))
    monkeypatch.setattr(ale_py, "ALEInterface", type("Painted", (Lives,), {"greys": greys, "pressed": []}))
    env = Atari("pong", size=2, sticky=0.0, frame_skip=2, stack=3, fire_reset=True, episodic_life=True)
    first = env.reset(seed=0)[0]
    assert halves(first) == [[0, 10], [0, 10], [2, 12]]  # FIRE has been held for two frames
    stacks, rewards, lost = [first], [], []
    for _ in range(3):
        obs, reward, _, _, info = env.step(np.int64(0))
        stacks.append(obs)
        rewards.append(reward)
        lost.append(bool(info.get(LIFE_LOST)))
    assert env._ale.pressed == [1, 1, 0, 0, 1, 1, 0, 0, 1, 1, 0, 0, 1, 1]
    assert lost == [True, True, True]
    assert rewards == [3 + 4 + 5 + 6, 7 + 8 + 9 + 10, 11 + 12 + 13 + 14]
    assert [halves(stack)[-1] for stack in stacks] == [[2, 12], [6, 16], [10, 20], [14, 24]]
    assert [halves(stack)[:-1] for stack in stacks[1:]] == [halves(stack)[1:] for stack in stacks[:-1]]


def test_a_replay_keeps_one_frame_per_step_across_lost_lives() -> None:
    needs("ale_py")
    kwargs = {"fire_reset": True, "episodic_life": True, "size": 20}
    env = made("rlx/Atari-Breakout-v0", **kwargs)
    spec = spec_of(env, "Breakout")
    frames = Frames(spec.obs["obs"], 512, 1, stacked_frames(env, spec)["obs"])
    lost, seen, lane = 0, [], np.zeros(1, np.int64)
    obs, _ = env.reset(seed=3)
    for step in range(400):
        after, _, terminated, _, info = env.step(step % 4)
        frames.put(lane, np.array([step]), obs[None], after[None])
        seen.append((obs, after))
        lost += bool(info.get(LIFE_LOST))
        obs = env.reset()[0] if terminated else after
    assert lost >= 8
    assert frames.stack == 4  # 1: kept whole
    before, later = frames.both(np.arange(400))
    np.testing.assert_array_equal(before.numpy(), np.stack([a for a, _ in seen]))
    np.testing.assert_array_equal(later.numpy(), np.stack([b for _, b in seen]))


def test_pictures_shrink_without_matrix_products() -> None:
    """numpy's take all cores, whatever `threads` says; what they gave is what sums of few pixels give, to the bit."""
    rng = np.random.default_rng(0)
    for height, width, size in ((210, 160, 84), (210, 160, 20), (250, 160, 96), (210, 160, 83), (7, 5, 11), (9, 9, 1)):
        rows, columns = (area_weights(n, size).astype(np.int64) for n in (height, width))
        shrink = Shrink(height, width, size)
        for picture in (
            rng.integers(0, 256, (height, width)).astype(np.uint8),
            np.full((height, width), 255, np.uint8),
        ):
            whole = rows[0].sum() * columns[0].sum()
            expected = (rows @ picture @ columns.T + whole // 2) // whole
            np.testing.assert_array_equal(shrink(picture), expected)
    shrink = Shrink(210, 160, 84)
    floats = [name for name, value in vars(shrink).items() if np.asarray(value).dtype.kind == "f"]
    assert floats == []  # products of integers are never those of BLAS


def test_training_envs_alone_have_training_kwargs() -> None:
    cfg = EnvConfig(id="CartPole-v1", kwargs={"a": 1, "b": 1}, training_kwargs={"b": 2})
    assert for_training(cfg).kwargs == {"a": 1, "b": 2}
    assert cfg.kwargs == {"a": 1, "b": 1}
    with pytest.raises(UserError, match=r"env.kwargs.a is not a keyword of CartPole-v1; it has sutton_barto_reward"):
        make_vector_env(for_training(cfg))


@pytest.mark.parametrize("vectorization", ["sync", "native"])
def test_a_key_is_called_what_it_was_typed_as(vectorization: str) -> None:
    needs("ale_py")

    def refused(**kwargs: Any) -> str:
        with pytest.raises(UserError) as error:
            make_vector_env(for_training(EnvConfig(id="rlx/Atari-Pong-v0", vectorization=vectorization, **kwargs)))
        return str(error.value)

    both: dict[str, Any] = {"sticky": 0.0, "full_actions": False}
    assert refused(kwargs=both, training_kwargs={"episodic_life": "maybe"}).startswith(
        "env.training_kwargs.episodic_life must be true or false"
    )
    assert refused(kwargs=both, training_kwargs={"bogus": 1}).startswith("env.training_kwargs.bogus is not a keyword")
    assert refused(kwargs=both, training_kwargs={"sticky": 2}).startswith("env.training_kwargs.sticky must be")
    assert refused(kwargs={"sticky": 2}, training_kwargs={"episodic_life": True}).startswith(
        "env.kwargs.sticky must be"
    )


def test_pictures_without_a_screen_take_a_renderer(monkeypatch: pytest.MonkeyPatch) -> None:
    needs("dm_control")
    for name in ("MUJOCO_GL", "DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    with pytest.raises(
        UserError, match=r"observe=both renders pictures, and there is no screen; set MUJOCO_GL=egl \(or osmesa\)"
    ):
        made("rlx/DMC-cheetah_run-v0", observe="both")
    with pytest.raises(
        UserError, match=r"quadruped_escape renders its terrain .*, and there is no screen; set MUJOCO_GL=egl"
    ):
        made("rlx/DMC-quadruped_escape-v0")
    made("rlx/DMC-quadruped_walk-v0")


def test_a_renderer_that_there_is_not_is_told() -> None:
    needs("dm_control")
    code = (
        "from rlx.envs import EnvConfig, make_env\n"
        "from rlx.errors import UserError\n"
        "try:\n    make_env(EnvConfig(id='rlx/DMC-cheetah_run-v0'))\n"
        "except UserError as error:\n    print(error)"
    )
    env = {**os.environ, "MUJOCO_GL": "nonsense"}
    ran = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert ran.stdout.startswith("MUJOCO_GL=nonsense cannot be used here (")
    assert "set it to egl or osmesa" in ran.stdout


def test_the_control_suite_warns_of_nothing() -> None:
    """Neither of a missing screen nor of words in its own models."""
    needs("dm_control")
    code = "from rlx.envs import EnvConfig, make_env; make_env(EnvConfig(id='rlx/DMC-cheetah_run-v0'))"
    env = {k: v for k, v in os.environ.items() if k not in ("MUJOCO_GL", "DISPLAY")}
    ran = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert ran.stderr == ""


@pytest.mark.parametrize("key", ["frame_skip", "size", "stack"])
def test_atari_refuses_numbers_out_of_range(key: str) -> None:
    needs("ale_py")
    with pytest.raises(UserError, match=f"env.kwargs.{key} must be an integer from 1 to 1024"):
        made("rlx/Atari-Pong-v0", **{key: 0})
    with pytest.raises(UserError, match=r"env.kwargs.sticky must be at least 0 and below 1"):
        made("rlx/Atari-Pong-v0", sticky=1.0)


@pytest.mark.parametrize(("env_id", "package", "key", "value", "message"), [
    ("rlx/Atari-Pong-v0", "ale_py", "sticky", "often", r"sticky must be at least 0 and below 1 \(it is often\)"),
    ("rlx/Atari-Pong-v0", "ale_py", "fire_reset", "maybe", r"fire_reset must be true or false \(it is maybe\)"),
    ("rlx/Atari-Pong-v0", "ale_py", "color", True, r"color is not a keyword of .*; it has frame_skip, sticky, size"),
    ("rlx/Atari-Pong-v0", "ale_py", "rom", "pong", r"rom follows from env\.game and cannot be set; give env\.game"),
    ("rlx/Atari-Pong-v0", "ale_py", "stack", 84, r"stack=84 makes 84 channels of .* env\.kwargs\.size\.$"),
    ("rlx/MinAtar-breakout-v0", "minatar", "game", "asterix", r"game follows from env\.game and cannot be set"),
    ("rlx/DMC-cheetah_run-v0", "dm_control", "task", "run", r"task follows from env\.task and cannot be set"),
    ("rlx/DMC-cheetah_run-v0", "dm_control", "shadows", 5, r"shadows must be true or false \(it is 5\)"),
    ("rlx/DMC-cheetah_run-v0", "dm_control", "camera", 99, r"camera=99 is not .*; it has 0 \(side\), 1 \(back\)\.$"),
    ("rlx/DMC-cheetah_run-v0", "dm_control", "camera", True, r"camera=True is not a camera of this task"),
    ("rlx/DMC-cheetah_run-v0", "dm_control", "camera", "sid", r"camera=sid is not a camera of this task"),
    ("rlx/DMC-cheetah_run-v0", "dm_control", "stack", 28, r"stack=28 makes 84 channels of .* env\.kwargs\.size\.$"),
    ("rlx/MinAtar-breakout-v0", "minatar", "sticky", -1, r"sticky must be at least 0 and below 1 \(it is -1\)"),
    ("rlx/MinAtar-breakout-v0", "minatar", "ramping", 3, r"ramping must be true or false \(it is 3\)"),
])  # fmt: skip
def test_what_a_game_cannot_use_is_told(env_id: str, package: str, key: str, value: Any, message: str) -> None:
    needs(package)
    with pytest.raises(UserError, match=rf"^env\.kwargs\.{message}"):
        made(env_id, **{key: value})


@pytest.mark.parametrize(("word", "env_id"), [
    ("atari/pong", "rlx/Atari-Pong-v0"),
    ("atari/SpaceInvaders", "rlx/Atari-SpaceInvaders-v0"),
    ("atari/up_n_down", "rlx/Atari-UpNDown-v0"),
    ("minatar/space_invaders", "rlx/MinAtar-space_invaders-v0"),
    ("dmc/cheetah_run", "rlx/DMC-cheetah_run-v0"),
])  # fmt: skip
def test_a_game_may_stand_behind_its_suite(word: str, env_id: str) -> None:
    cfg = compose_config(["algo=dqn", f"env={word}"])
    assert cfg.env.id == env_id
    assert cfg.choices.env == word.partition("/")[0]
    later = compose_config(["algo=dqn", f"env={word}", "env.num_envs=2", "seed=3"])
    assert (later.env.id, later.env.num_envs) == (env_id, 2)


def test_a_game_behind_its_suite_may_have_hyphens_to_be_told() -> None:
    needs("minatar")
    with pytest.raises(UserError, match=r"env\.game=space-invaders is not .* did you mean env\.game=space_invaders\?$"):
        make_env(EnvConfig(id=compose_config(["algo=dqn", "env=minatar/space-invaders"]).env.id))


def test_a_game_behind_its_suite_is_for_the_command_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"Unknown env 'pendulum/fast'. Did you mean env=pendulum\?"):
        compose_config(["env=pendulum/fast"])
    (tmp_path / "experiment").mkdir()
    text = "# @package _global_\ndefaults:\n  - override /env: atari/pong\n"
    (tmp_path / "experiment" / "mine.yaml").write_text(text)
    with pytest.raises(UserError, match=r"write `override /env: atari` in its .* and `env: \{game: Pong\}` below"):
        compose_config(["experiment=mine", f"hydra.searchpath=[file://{tmp_path}]"])


def test_a_game_is_needed() -> None:
    with pytest.raises(UserError, match=r"^env.game needs a value \(it is null\), for example env.game=Breakout\.$"):
        compose_config(["env=atari", "env.game=null"])
    with pytest.raises(UserError, match=r"^env.task needs a value .* env.task=cheetah_run\.$"):
        compose_config(["env=dmc", "env.task=null"])


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


@pytest.mark.parametrize("seed", range(4))
def test_a_game_of_minatar_forgets_the_actions_of_the_one_before(seed: int) -> None:
    """Half of all steps repeat the action before; the first ones of a game repeat none, and the paddle stays."""
    needs("minatar")

    def places(before: list[int]) -> list[int]:
        """Columns of the paddle while a game is played without moving it, after another game."""
        env = made("rlx/MinAtar-breakout-v0", sticky=0.5)
        env.reset(seed=99)
        for action in before:
            env.step(action)
        seen = [env.reset(seed=seed)[0], *(env.step(0)[0] for _ in range(4))]
        return [int(np.argwhere(obs[9, :, 0])[0, 0]) for obs in seen]

    left, right = 1, 3
    assert places([left] * 5) == places([right] * 5) == places([]) == [4] * 5


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


def test_actions_without_bounds_are_not_scaled() -> None:
    """The LQR tasks have bounds of 1e10, which would make 1e10 of a learner's 1."""
    needs("dm_control")
    cfg = EnvConfig(id="rlx/DMC-lqr_lqr_2_1-v0")
    spec = spec_of(make_env(cfg), cfg.id)
    assert (spec.action_low, spec.action_high) == ((-np.inf,), (np.inf,))
    np.testing.assert_array_equal(unscaled(np.array([[0.5]], np.float32), spec), [[0.5]])
    runner = Runner(make_vector_env(cfg), seed=0)
    step, _ = runner.step(np.array([[1.0]], np.float32))
    assert np.abs(step.next_obs).max() < 10
    quadruped = spec_of(made("rlx/DMC-quadruped_walk-v0"), "quadruped")
    np.testing.assert_allclose(quadruped.action_high[:3], (1.0, 1.1, 0.8), rtol=1e-6)


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
        ("rlx/DMC-lqr_lqr_2_1-v0", {}, 20),  # whose model is made at random
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
