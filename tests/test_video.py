"""Videos: every episode is filmed on a machine without a screen, and what cannot be filmed is told in a sentence."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import imageio_ffmpeg
import numpy as np
import pytest
from gymnasium import spaces
from helpers import tiny

import rlx
from rlx.cli import main
from rlx.envs import EnvConfig, rendering
from rlx.envs.rendering import FRAMES, make_rendered
from rlx.errors import RunFailed, UserError
from rlx.video import Mp4, check_video


def frames_of(path: Path) -> tuple[dict[str, Any], np.ndarray]:
    """What ffmpeg reads back: facts, and frames [N, height, width, 3]."""
    reader = imageio_ffmpeg.read_frames(str(path))
    facts = next(reader)
    width, height = facts["size"]
    return facts, np.stack([np.frombuffer(frame, np.uint8).reshape(height, width, 3) for frame in reader])


class Lamp(gym.Env):
    """Renders its count as brightness: 40 at the start, 40 more with each of three steps."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012
    observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)
    action_space = spaces.Box(-2.0, 2.0, (1,), np.float32)

    def __init__(self, render_mode: str | None = "rgb_array", fps: float = 10, size: tuple[int, int] = (150, 131)):
        self.render_mode, self.size, self.metadata = render_mode, size, {**self.metadata, "render_fps": fps}
        self.count = 0

    def reset(self, **kwargs: Any) -> tuple[np.ndarray, dict]:
        super().reset(seed=kwargs.get("seed"))
        self.count = 1
        return np.zeros(3, np.float32), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        np.random.random()  # an env that draws from where the run does
        self.count += 1
        return np.zeros(3, np.float32), 1.0, self.count == 4, False, {}

    def render(self) -> Any:
        return np.full((*self.size, 3), 40 * self.count, np.uint8)


class Dark(Lamp):
    """Is not made for being looked at."""

    metadata = {"render_modes": []}  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__(None)


gym.register("test/Dark-v0", Dark)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "run"
    rlx.train(*tiny("offline", "trainer.max_updates=5", "trainer.eval_interval=5"), run_dir=folder, quiet=True)
    return folder


def test_every_state_of_every_episode_is_a_frame(run: Path, tmp_path: Path) -> None:
    found = rlx.evaluate(run, episodes=2, env=Lamp, video=tmp_path / "x.mp4")
    assert found["returns"] == [3.0, 3.0]
    facts, frames = frames_of(tmp_path / "x.mp4")
    assert facts["fps"] == 10
    assert frames.shape[1:] == (150, 130, 3)  # even
    brightness = frames.mean((1, 2, 3))
    np.testing.assert_allclose(brightness, [40, 80, 120, 160] * 2, atol=4)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.mp4"]


def test_many_steps_a_second_are_thinned_and_small_pictures_enlarged(run: Path, tmp_path: Path) -> None:
    rlx.evaluate(run, episodes=1, env=lambda: Lamp(fps=100, size=(16, 16)), video=tmp_path / "x.mp4")
    facts, frames = frames_of(tmp_path / "x.mp4")
    assert facts["fps"] == 50
    assert frames.shape == (3, 128, 128, 3)
    np.testing.assert_allclose(frames.mean((1, 2, 3)), [40, 120, 160], atol=4)  # the last one always


def test_an_evaluation_that_is_filmed_comes_to_the_same(run: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    assert main(["evaluate", str(run), "--video", str(tmp_path / "x.mp4"), "episodes=2"]) == 0
    filmed = rlx.evaluate(run, episodes=2, video=tmp_path / "y.mp4")
    np.testing.assert_allclose(filmed["returns"], rlx.evaluate(run, episodes=2)["returns"], rtol=1e-6)
    facts, frames = frames_of(tmp_path / "x.mp4")
    assert facts["size"] == (500, 500)
    assert len(frames) == 62  # thirty steps and a first state, twice
    red = (frames[..., 0].astype(int) - frames[..., 1] > 60).sum((1, 2))
    assert (red > 1000).all()  # the pendulum is in all of them
    assert len({frame.tobytes() for frame in frames[:31]}) > 25  # and moves


def test_mujoco_is_drawn_without_a_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    if not any(map(rendering._is_there, ("EGL", "OSMesa"))):
        pytest.skip("neither EGL nor OSMesa is here")
    env = make_rendered(EnvConfig(id="Hopper-v5"), FRAMES)
    env.reset(seed=0)
    frame = rendering.frame_of(env, "Hopper-v5")
    env.close()
    assert frame.shape == (480, 480, 3)
    assert frame.std() > 10
    assert os.environ["MUJOCO_GL"] in ("egl", "osmesa")


def test_what_cannot_be_filmed_is_a_sentence(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="made with render_mode='rgb_array'"):
        rlx.evaluate(run, env=lambda: Lamp(render_mode=None), video=tmp_path / "x.mp4")
    with pytest.raises(UserError, match=r"test/Dark-v0 cannot be rendered: it has no render_mode rgb_array"):
        check_video(EnvConfig(id="test/Dark-v0"))
    for name, words in (("x.gif", "writes mp4"), ("no/x.mp4", "does not exist")):
        with pytest.raises(UserError, match=words):
            rlx.evaluate(run, video=tmp_path / name)

    def broken(self: Lamp) -> Any:
        raise OSError("no OpenGL here")

    monkeypatch.setattr(Lamp, "render", broken)
    with pytest.raises(RunFailed, match=r"no OpenGL here.*EGL or OSMesa"):
        rlx.evaluate(run, env=Lamp, video=tmp_path / "x.mp4")
    monkeypatch.setattr(Lamp, "render", lambda self: [1, 2])
    with pytest.raises(RunFailed, match="no picture in colours"):
        rlx.evaluate(run, env=Lamp, video=tmp_path / "x.mp4")
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with pytest.raises(UserError, match=r"imageio-ffmpeg.*\[video\]"):
        rlx.evaluate(run, video=tmp_path / "x.mp4")
    assert not list(tmp_path.iterdir())


def test_a_video_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    (tmp_path / "x.mp4").write_bytes(b"old")

    def fail() -> None:
        with Mp4(tmp_path / "x.mp4", 10) as video:
            video.add(np.zeros((128, 128, 3), np.uint8))
            raise ValueError("in the middle")

    with pytest.raises(ValueError, match="in the middle"):
        fail()
    assert [path.name for path in tmp_path.iterdir()] == ["x.mp4"]
    assert (tmp_path / "x.mp4").read_bytes() == b"old"


def test_watching_needs_a_screen(run: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    assert main(["watch", str(run)]) == 2
    assert f"python -m rlx evaluate {run} --video" in capsys.readouterr().err


def test_watching_without_pygame_says_what_to_install(run: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setitem(sys.modules, "pygame", None)
    assert main(["watch", str(run), "episodes=1"]) == 2
    assert "A window for Pendulum-v1 needs a package that is not installed" in capsys.readouterr().err


def test_watching_shows_whole_episodes(run: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")  # a window that nobody sees
    assert main(["watch", str(run), "episodes=1"]) == 0
    expected = rlx.evaluate(run, episodes=1)["returns"][0]
    assert f"returns {expected:.1f}" in capsys.readouterr().out
