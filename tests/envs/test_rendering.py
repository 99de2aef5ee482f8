"""What the envs of rlx look like, and that looking changes nothing."""

from __future__ import annotations

import importlib.util
import math
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import SMALL, final, same_tensors

import rlx
from rlx.cli import main
from rlx.envs import EnvConfig, make_env, rendering
from rlx.envs.minatar import COLORS, GAMES
from rlx.envs.rendering import FRAMES, enlarged, fps_of, frame_of, make_rendered
from rlx.errors import RunFailed
from rlx.obs import parts_of

PACKAGES = {"Atari": "ale_py", "MinAtar": "minatar", "DMC": "dm_control"}
BLACK, RED, GREEN, YELLOW, DARK = (0, 0, 0), (255, 0, 0), (0, 255, 0), (255, 255, 0), (0, 96, 0)


def needed(env_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip where a package or a renderer is missing."""
    suite = env_id.removeprefix("rlx/").partition("-")[0]
    if suite in PACKAGES and importlib.util.find_spec(PACKAGES[suite]) is None:
        pytest.skip(f"{PACKAGES[suite]} is not installed")
    if suite == "DMC":
        without_display(monkeypatch)
        rendering.without_screen()
        if "MUJOCO_GL" not in os.environ:
            pytest.skip("neither EGL nor OSMesa is here")


def without_display(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    for name in ("MUJOCO_GL", "SDL_VIDEODRIVER"):  # put back afterwards
        before = os.environ.get(name)
        monkeypatch.setenv(name, before or "")
        if before is None:
            monkeypatch.delenv(name)


def drawn(env_id: str, seed: int = 0, **kwargs: Any) -> Any:
    env = make_rendered(EnvConfig(id=env_id, kwargs=kwargs), FRAMES)
    env.reset(seed=seed)
    return env


def at(frame: np.ndarray, row: int, column: int, cells: int) -> tuple[int, ...]:
    """The color of a cell of a picture with so many in a row; one color in all of it."""
    side = frame.shape[1] // cells
    cell = frame[row * side : (row + 1) * side, column * side : (column + 1) * side].reshape(-1, 3)
    assert (cell == cell[0]).all()
    return tuple(cell[0].tolist())


# -- that nothing changes --------------------------------------------------------------------------------------------


def trace(env: Any, steps: int, name: str | None) -> tuple[list[Any], list[np.ndarray]]:
    """All that comes of random actions, with the random state at the end, and frames if they are asked for."""
    env.action_space.seed(0)
    seen: list[Any] = []
    frames: list[np.ndarray] = []

    def observe(obs: Any, *rest: Any) -> None:
        seen.append(([part.tobytes() for part in parts_of(obs)], rest))
        if name is not None:
            frames.append(frame_of(env, name))

    observe(*env.reset(seed=3))
    for _ in range(steps):
        found = env.step(env.action_space.sample())
        observe(*found)
        if found[2] or found[3]:
            observe(*env.reset())
    return [*seen, env.unwrapped.np_random.bit_generator.state], frames


@pytest.mark.parametrize(
    ("env_id", "kwargs", "steps", "fps", "size"),
    [
        ("rlx/PixelGoal-v0", {}, 80, 5, (256, 256)),
        ("rlx/PixelGoal-v0", {"continuous": True}, 80, 5, (256, 256)),
        ("rlx/PixelMemory-v0", {}, 80, 5, (256, 256)),
        ("rlx/PixelState-v0", {}, 80, 5, (256, 256)),
        ("rlx/PointGoal-v0", {}, 80, 15, (256, 256)),
        ("rlx/Recall-v0", {"cues": 5}, 30, 5, (333, 259)),
        *((f"rlx/MinAtar-{game}-v0", {}, 200, 10, (260, 260)) for game in GAMES),
        ("rlx/Atari-Breakout-v0", {"fire_reset": True, "episodic_life": True}, 100, 15, (210, 160)),
        ("rlx/Atari-Pong-v0", {"frame_skip": 2}, 40, 30, (210, 160)),
        ("rlx/DMC-cheetah_run-v0", {}, 20, 100, (240, 320)),
        ("rlx/DMC-cartpole_swingup-v0", {"observe": "both", "action_repeat": 2, "size": 64}, 8, 50, (240, 320)),
        ("rlx/DMC-cartpole_swingup-v0", {"observe": "pixels", "size": 300}, 4, 100, (240, 320)),
        ("rlx/DMC-quadruped_escape-v0", {}, 3, 50, (240, 320)),
        ("rlx/DMC-lqr_lqr_2_1-v0", {}, 10, 100 / 3, (240, 320)),
    ],
)
def test_what_is_looked_at_stays_the_same(
    env_id: str,
    kwargs: dict[str, Any],
    steps: int,
    fps: float,
    size: tuple[int, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Observations, rewards, ends, infos and random draws, to the bit."""
    needed(env_id, monkeypatch)
    cfg = EnvConfig(id=env_id, kwargs=kwargs)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        filmed = make_rendered(cfg, FRAMES)
    plain = make_env(cfg)
    expected, none = trace(plain, steps, None)
    found, frames = trace(filmed, steps, env_id)
    assert found == expected
    assert none == []
    assert plain.render() is None
    assert cfg.kwargs == kwargs
    assert math.isclose(fps_of(filmed), fps)
    assert {frame.shape for frame in frames} == {(*size, 3)}
    assert len({frame.tobytes() for frame in frames}) > 2  # something moves
    assert any((frame.max(2) > frame.min(2)).any() for frame in frames)  # in colours
    filmed.close()


def test_few_pixels_are_enlarged_by_repeating_them() -> None:
    picture = np.arange(36, dtype=np.uint8).reshape(3, 4, 3)
    large = enlarged(picture)
    assert large.shape == (258, 344, 3)
    np.testing.assert_array_equal(large[::86, ::86], picture)
    np.testing.assert_array_equal(large[85::86, 85::86], picture)


# -- what they show --------------------------------------------------------------------------------------------------


def places(frame: np.ndarray) -> dict[tuple[int, ...], tuple[int, int]]:
    """The (row, column) of every color in a picture of 8 x 8 cells."""
    return {at(frame, i, j, 8): (i, j) for i in range(8) for j in range(8) if at(frame, i, j, 8) != BLACK}


@pytest.mark.parametrize("env_id", ["rlx/PixelGoal-v0", "rlx/PixelState-v0"])
def test_agent_and_goal_are_in_the_picture_whatever_is_observed(env_id: str) -> None:
    env = drawn(env_id)
    env.unwrapped._x, env.unwrapped._y, env.unwrapped._goal_x, env.unwrapped._goal_y = 4.0, 6.0, 8, 6
    env.unwrapped._picture[:] = 0
    env.unwrapped._picture[6:8, 8:10, 1] = 255
    assert places(env.render()) == {RED: (3, 2), GREEN: (3, 4)}
    env.step(3)
    assert places(env.render()) == {RED: (3, 3), GREEN: (3, 4)}
    assert env.step(3)[2]
    assert places(env.render()) == {YELLOW: (3, 4)}


def test_a_goal_to_be_remembered_gets_darker() -> None:
    env = drawn("rlx/PixelMemory-v0")
    before = places(env.render())
    env.step(0)
    after = places(env.render())
    assert after == {RED: before[RED], DARK: before[GREEN]}


def test_a_point_and_its_goal_are_seen_from_above() -> None:
    env = drawn("rlx/PointGoal-v0")
    env.unwrapped._goal[:] = 0.8, 0.4  # to the right, and up
    frame = env.render()
    scale = 255 / 3.2  # pixels for a unit; 1.6 beyond the middle is the border
    for color, (x, y) in {RED: (0.0, 0.0), GREEN: (0.8, 0.4)}.items():
        rows, columns = np.nonzero((frame == color).all(2))
        np.testing.assert_allclose((columns.mean(), rows.mean()), (127.5 + scale * x, 127.5 - scale * y), atol=1)


def test_a_cue_is_seen_asked_for_and_solved() -> None:
    env = drawn("rlx/Recall-v0", delay=1)
    cue = env.unwrapped._cue
    grey, white = (64, 64, 64), (255, 255, 255)

    def cells() -> list[tuple[int, ...]]:
        frame = env.render()
        return [at(frame, row, column, 5) for row, column in ((1, 1), (1, 3), (3, 1), (3, 3), (5, 1))]

    def expected(bar: tuple[int, ...], **colors: tuple[int, ...]) -> list[tuple[int, ...]]:
        squares = [grey] * 4
        squares[(cue + 1) % 4] = colors.get("wrong", grey)
        squares[cue] = colors.get("cue", grey)
        return [*squares, bar]

    assert cells() == expected(grey, cue=white)
    env.step(0)
    assert cells() == expected(white)
    env.step((cue + 1) % 4)
    assert cells() == expected(grey, cue=GREEN, wrong=RED)
    env.reset()
    cue = env.unwrapped._cue
    env.step(0)
    env.step(cue)
    assert cells() == expected(grey, cue=GREEN)


@pytest.mark.parametrize("game", GAMES)
def test_the_last_channel_of_minatar_is_on_top(game: str, monkeypatch: pytest.MonkeyPatch) -> None:
    env_id = f"rlx/MinAtar-{game}-v0"
    needed(env_id, monkeypatch)
    assert len({tuple(color) for color in COLORS.tolist()}) == len(COLORS) == 11
    env = drawn(env_id)
    env.action_space.seed(0)
    for _ in range(60):
        obs, _, over, _, _ = env.step(env.action_space.sample())
        frame = env.render()[::26, ::26]
        for i, j in np.ndindex(10, 10):
            objects = np.flatnonzero(obs[i, j])
            assert frame[i, j].tolist() == COLORS[objects.max() + 1 if len(objects) else 0].tolist()
        if over:
            env.reset()


@pytest.mark.parametrize("fire_reset", [True, False])
def test_atari_shows_the_screen_of_the_console(fire_reset: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    needed("rlx/Atari-Breakout-v0", monkeypatch)
    env = drawn("rlx/Atari-Breakout-v0", fire_reset=fire_reset)
    first = env.render()
    assert {tuple(first[row, 80].tolist()) for row in range(57, 93)} == {
        (200, 72, 72), (198, 108, 58), (180, 122, 48), (162, 162, 42), (72, 160, 72), (66, 72, 200),
    }  # the rows of bricks  # fmt: skip
    for _ in range(30):
        env.step(2)  # to the right
    assert (env.render() != first).any()
    env.reset(seed=0)
    np.testing.assert_array_equal(env.render(), first)  # every episode begins in the same state


def test_the_control_suite_is_drawn_when_only_its_state_was_wanted_before(tmp_path: Path) -> None:
    """dm_control takes its renderer when it is imported, which is before a run has thought of a video."""
    pytest.importorskip("dm_control", reason="dm_control is not installed")
    if not any(map(rendering._is_there, ("EGL", "OSMesa"))):
        pytest.skip("neither EGL nor OSMesa is here")
    code = (
        "from rlx.envs import EnvConfig, make_env\n"
        "from rlx.envs.rendering import make_rendered, frame_of\n"
        "cfg = EnvConfig(id='rlx/DMC-cartpole_swingup-v0')\n"
        "make_env(cfg).reset(seed=0)\n"
        "env = make_rendered(cfg, 'rgb_array')\n"
        "env.reset(seed=0)\n"
        "assert frame_of(env, cfg.id).std() > 10"
    )
    without = ("MUJOCO_GL", "PYOPENGL_PLATFORM", "DISPLAY", "WAYLAND_DISPLAY")
    env = {key: value for key, value in os.environ.items() if key not in without}
    ran = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_the_control_suite_without_a_renderer_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    needed("rlx/DMC-cheetah_run-v0", monkeypatch)
    env = drawn("rlx/DMC-cheetah_run-v0")
    monkeypatch.setattr(sys, "platform", "linux")
    for value, told in (("glfw", "glfw"), ("", "not set")):
        monkeypatch.setenv("MUJOCO_GL", value)
        match = rf"there is no screen, and MUJOCO_GL is {told}\). Without a screen, MuJoCo needs EGL or OSMesa"
        with pytest.raises(RunFailed, match=match):
            frame_of(env, "rlx/DMC-cheetah_run-v0")


# -- the verbs -------------------------------------------------------------------------------------------------------


def test_a_pixel_env_is_filmed_and_watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    overrides = (
        "algo=dqn",
        "env=pixel_goal",
        *SMALL,
        "encoder=small",
        "trainer.max_env_steps=40",
        "env.max_episode_steps=5",
    )
    rlx.train(*overrides, "callbacks=[default,video]", run_dir=run, quiet=True)
    assert [path.suffix for path in (run / "videos").iterdir()] == [".mp4"]
    assert "render_mode" not in (run / "config.yaml").read_text()
    rlx.train(*overrides, run_dir=tmp_path / "without", quiet=True)
    same_tensors(final(run), final(tmp_path / "without"))
    expected = rlx.evaluate(run, episodes=2)["returns"]
    assert rlx.evaluate(run, episodes=2, video=tmp_path / "x.mp4")["returns"] == expected
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")  # a window that nobody sees
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert main(["watch", str(run), "episodes=1"]) == 0
    assert "returns" in capsys.readouterr().out
