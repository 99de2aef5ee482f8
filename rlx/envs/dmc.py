"""rlx/DMC-DOMAIN_TASK-v0: the tasks of the DeepMind Control Suite (Tunyasuvunakool et al., 2020, arXiv:2006.12983).

    observe=state    the task's observations as one vector
    observe=pixels   the newest `stack` pictures of `camera`, [3 * stack, size, size] of uint8
    observe=both     a dict of `pixels` and `state`

An action is repeated `action_repeat` times and the rewards add up; only the last of these frames is rendered. A task
ends by its own time limit, which is no terminal state, or where the suite says that nothing is left to gain (discount
0), which is one.

Pictures are rendered without a screen, with MUJOCO_GL=egl or osmesa set before the run. Without a GPU most of that time
goes into the map of the shadows: `shadows=false` leaves them out, which changes the pictures. `render_mode="rgb_array"`
draws videos, larger than what is observed, from the same camera.
"""

from __future__ import annotations

import importlib
import os
import traceback
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import register, registry
from omegaconf import MISSING

from rlx.envs.factory import EnvConfig, check_flags, check_name, check_stack, check_whole, make_vector_env
from rlx.envs.rendering import FRAMES, USUAL_FPS, drawn_at, has_screen
from rlx.errors import UserError, require, shown
from rlx.reporting import muted

__all__ = ["DMC", "DmcConfig", "make_vector_env", "register_name"]

KEY = "env.task"
LOGGER = "absl"  # of dm_control, which warns where there is no screen, and of deprecated words in its own models
CHOICES = ("state", "pixels", "both")
UNBOUNDED = 1e10  # what the suite has for the bounds of actions that have none (mjMAXVAL)
FRAME = (240, 320)  # of a video: height and width
OFFSCREEN = ("egl", "osmesa")  # values of MUJOCO_GL that need no screen
HEIGHT_FIELD = 1  # a kind of geom (mjGEOM_HFIELD)


@dataclass
class DmcConfig(EnvConfig):
    """A task of the DeepMind Control Suite."""

    _target_: str = "rlx.envs.dmc.make_vector_env"
    task: str = MISSING  # cheetah_run, walker_walk, ...


def register_name(name: str) -> None:
    """Have `gymnasium.make` know a task; UserError for a name that is none, ImportError without dm_control."""
    try:
        with muted(LOGGER):
            from dm_control import suite
    except (AttributeError, ImportError, RuntimeError) as error:
        drawing = any("_render" in frame.filename for frame in traceback.extract_tb(error.__traceback__))
        if not drawing or "MUJOCO_GL" not in os.environ:
            raise
        chosen = shown(os.environ["MUJOCO_GL"])
        raise UserError(
            f"MUJOCO_GL={chosen} cannot be used here ({shown(error).rstrip('.')}); set it to egl or osmesa, which "
            "need a library (on Debian: libegl1 or libosmesa6), or leave it out where nothing is drawn."
        ) from error

    tasks = {f"{domain}_{task}": (domain, task) for domain, task in suite.ALL_TASKS}
    check_name(KEY, name, sorted(tasks))
    env_id = f"rlx/DMC-{name}-v0"
    if env_id not in registry:
        domain, task = tasks[name]
        register(env_id, f"{__name__}:DMC", kwargs={"domain": domain, "task": task})


def check_camera(camera: Any, model: Any) -> None:
    """A camera of the task by its number or its name; -1 is one that can be moved, which shows the whole."""
    names = [model.id2name(i, "camera") for i in range(model.ncam)]
    good = camera in names if isinstance(camera, str) else type(camera) is int and -1 <= camera < model.ncam
    told = ", ".join(f"{i} ({name})" if name else str(i) for i, name in enumerate(names))
    require(
        good, f"env.kwargs.camera={shown(camera)} is not a camera of this task; it has {told or 'none of its own'}."
    )


def check_renderer(what: str) -> None:
    require(
        has_screen() or "MUJOCO_GL" in os.environ,
        f"{what}, and there is no screen; set MUJOCO_GL=egl (or osmesa) in the environment.",
    )


def take_renderer() -> None:
    """Have dm_control, which reads MUJOCO_GL when it is imported, take what has been set since then."""
    from dm_control import _render

    chosen = os.environ.get("MUJOCO_GL", "")
    if not (has_screen() or chosen in OFFSCREEN):
        raise RuntimeError(f"there is no screen, and MUJOCO_GL is {shown(chosen) or 'not set'}")
    if chosen in OFFSCREEN and chosen != _render.BACKEND:
        with muted(LOGGER):
            importlib.reload(_render)


class DMC(gym.Env[Any, np.ndarray]):
    """One task."""

    metadata = drawn_at(USUAL_FPS)

    def __init__(
        self,
        domain: str,
        task: str,
        observe: str = "state",
        action_repeat: int = 1,
        size: int = 84,
        stack: int = 3,
        camera: int = 0,
        shadows: bool = True,
        render_mode: str | None = None,
    ):
        with muted(LOGGER):
            from dm_control import suite

        require(observe in CHOICES, f"env.kwargs.observe must be one of {', '.join(CHOICES)} (it is {observe!r}).")
        if observe != "state":
            check_renderer(f"env.kwargs.observe={observe} renders pictures")
        check_whole(action_repeat=action_repeat, size=size, stack=stack)
        check_flags(shadows=shadows)
        check_stack(stack, size, 3)
        with muted(LOGGER):
            self._env: Any = suite.load(domain, task, {"random": 0})  # LQR draws its springs here, once
        if (self._env.physics.model.geom_type == HEIGHT_FIELD).any():  # quadruped_escape
            check_renderer(f"{domain}_{task} renders its terrain whatever is observed")
        check_camera(camera, self._env.physics.model)
        self._observe, self._repeat, self._size, self._camera = observe, action_repeat, size, camera
        self.render_mode = render_mode
        self.metadata = drawn_at(1 / (self._env.control_timestep() * action_repeat))
        visual = self._env.physics.model.vis
        sides = FRAME if render_mode == FRAMES else (size, size)
        # as large as what is drawn: else it is 640 x 480, all of it cleared
        visual.global_.offheight, visual.global_.offwidth = (max(size, side) for side in sides)
        if not shadows:
            visual.quality.shadowsize = 0
        action = self._env.action_spec()
        bounds = (np.broadcast_to(bound, action.shape) for bound in (action.minimum, action.maximum))
        low, high = (
            np.where(np.abs(bound) < UNBOUNDED, bound, np.copysign(np.inf, bound)).astype(np.float32)
            for bound in bounds
        )
        self.action_space: spaces.Space[Any] = spaces.Box(low, high, dtype=np.float32)
        count = sum(int(np.prod(part.shape)) for part in self._env.observation_spec().values())
        state = spaces.Box(-np.inf, np.inf, (count,), np.float32)
        self._frames = np.zeros((stack, 3, size, size), np.uint8)
        pixels = spaces.Box(0, 255, (3 * stack, size, size), np.uint8)
        whole: dict[str, spaces.Space[Any]] = {"pixels": pixels, "state": state}
        self.observation_space: spaces.Space[Any] = spaces.Dict(whole) if observe == "both" else whole[observe]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._env.task._random = np.random.RandomState(int(self.np_random.integers(2**31)))
        step = self._env.reset()
        if self._observe != "state":
            self._frames[:] = self._picture()
        return self._observation(step), {}

    def step(self, action: np.ndarray) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward = 0.0
        for _ in range(self._repeat):
            step = self._env.step(action)
            reward += step.reward or 0.0
            if step.last():
                break
        if self._observe != "state":
            self._frames[:-1] = self._frames[1:].copy()
            self._frames[-1] = self._picture()
        over = bool(step.last() and step.discount == 0)
        return self._observation(step), reward, over, bool(step.last() and not over), {}

    def _picture(self) -> np.ndarray:
        picture: np.ndarray = self._env.physics.render(self._size, self._size, camera_id=self._camera)
        return np.moveaxis(picture, 2, 0)

    def render(self) -> np.ndarray | None:
        if self.render_mode != FRAMES:
            return None
        take_renderer()
        frame: np.ndarray = self._env.physics.render(*FRAME, camera_id=self._camera)
        return frame

    def _observation(self, step: Any) -> Any:
        if self._observe == "pixels":
            return self._frames.reshape(self.observation_space.shape or ()).copy()
        state = np.concatenate([np.ravel(part) for part in step.observation.values()]).astype(np.float32)
        if self._observe == "state":
            return state
        return {"pixels": self._frames.reshape(-1, self._size, self._size).copy(), "state": state}

    def close(self) -> None:
        self._env.close()
