"""Envs that are looked at: in a window, or as frames on a machine without a screen."""

from __future__ import annotations

import ctypes.util
import math
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from rlx.config import PYTHON
from rlx.envs.factory import EnvConfig, make_env
from rlx.envs.vector import EnvFault
from rlx.errors import RunFailed, UserError, shown

WINDOW, FRAMES = "human", "rgb_array"  # render modes of Gymnasium
USUAL_FPS = 30
SIDE = 256  # pixels: what the envs of rlx are enlarged to, at least


def has_screen() -> bool:
    """Can a window be opened here?"""
    return sys.platform in ("win32", "darwin") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def without_screen() -> None:
    """Have pygame and MuJoCo draw into memory where there is no screen; what the user has chosen stays."""
    if has_screen():
        return
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    backend = next((name for name, library in (("egl", "EGL"), ("osmesa", "OSMesa")) if _is_there(library)), None)
    if backend is not None:
        os.environ.setdefault("MUJOCO_GL", backend)


def _is_there(library: str) -> bool:
    return ctypes.util.find_library(library) is not None


def drawn_at(fps: float) -> dict[str, Any]:
    """The metadata of an env that has frames, so many for a second."""
    return {"render_modes": [FRAMES], "render_fps": fps}


def enlarged(picture: np.ndarray) -> np.ndarray:
    """A picture [height, width, 3] of an env of few pixels, each of them repeated."""
    scale = math.ceil(SIDE / min(picture.shape[:2]))
    return picture.repeat(scale, 0).repeat(scale, 1)


def make_rendered(cfg: EnvConfig, mode: str, trust: Sequence[str] = ()) -> gym.Env:
    """An env as `make_env` makes it that can be rendered, tried once; UserError if that is impossible here."""
    if mode == FRAMES:
        without_screen()
    kwargs = {} if cfg.id.startswith(PYTHON) else {"render_mode": mode}
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*(render_mode|'human' rendering)")  # Gymnasium's; a sentence follows
            env = make_env(cfg, trust, **kwargs)
    except EnvFault as error:
        raise UserError(f"{cfg.id} cannot be rendered: {error}") from error
    except UserError as error:
        if "render_mode" in str(error):
            raise UserError(f"{cfg.id} cannot be rendered: it has no render_mode {mode}.") from error
        raise
    if env.render_mode != mode:
        env.close()
        made = f" as {env.render_mode}" if env.render_mode else ""
        what = "give one that is made with" if cfg.id.startswith(PYTHON) else "it has no"
        raise UserError(f"{cfg.id} cannot be rendered{made or ' as it is'}; {what} render_mode={mode!r}.")
    if mode == WINDOW:
        _open(env, cfg.id)
    return env


def _open(env: gym.Env, name: str) -> None:
    """Open the window, where the first reset does; UserError if that takes a package that is not there."""
    try:
        env.reset(seed=0)
    except gym.error.DependencyNotInstalled as error:
        env.close()
        raise UserError(
            f"A window for {name} needs a package that is not installed ({error}): pip install -e '.[video]' in a "
            "checkout of rlx."
        ) from error
    except Exception:
        return  # a fault of the env itself, which is reported where its episodes are played


def frame_of(env: gym.Env, name: str) -> np.ndarray:
    """What the env looks like now, [height, width, 3] uint8."""
    try:
        frame: Any = env.render()
    except Exception as error:  # of whatever draws: pygame, MuJoCo, OpenGL
        text = shown(" ".join(str(error).split()) or type(error).__name__)
        raise RunFailed(
            f"{name} cannot be rendered here ({text}). Without a screen, MuJoCo needs EGL or OSMesa (on Debian: "
            "libegl1 or libosmesa6) and classic control needs pygame (pip install -e '.[video]' in a checkout of rlx)."
        ) from error
    if not (isinstance(frame, np.ndarray) and frame.ndim == 3 and frame.shape[2] == 3 and frame.dtype == np.uint8):
        raise RunFailed(f"{name} gives no picture in colours when it is rendered; it cannot be recorded.")
    return frame


def fps_of(env: gym.Env) -> float:
    """How many steps a second of the env's time has."""
    given = env.metadata.get("render_fps")
    return float(given) if isinstance(given, int | float) and 0 < given < 10_000 else float(USUAL_FPS)


class Filmed(gym.Wrapper):
    """Hands on a frame of the first state of each episode and of every `stride`-th one after it."""

    def __init__(self, env: gym.Env, name: str, stride: int, sink: Callable[[np.ndarray], None]):
        super().__init__(env)
        self._name, self._stride, self._sink = name, stride, sink
        self._steps = 0

    def reset(self, **kwargs: Any) -> Any:
        first = self.env.reset(**kwargs)
        self._steps = 0
        self._sink(frame_of(self.env, self._name))
        return first

    def step(self, action: Any) -> Any:
        result = self.env.step(action)
        self._steps += 1
        if self._steps % self._stride == 0 or result[2] or result[3]:
            self._sink(frame_of(self.env, self._name))
        return result
