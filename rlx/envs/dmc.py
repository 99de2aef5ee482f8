"""rlx/DMC-DOMAIN_TASK-v0: the tasks of the DeepMind Control Suite (Tunyasuvunakool et al., 2020, arXiv:2006.12983).

    observe=state    the task's observations as one vector
    observe=pixels   the newest `stack` pictures of `camera`, [3 * stack, size, size] of uint8
    observe=both     a dict of `pixels` and `state`

An action is repeated `action_repeat` times and the rewards add up; only the last of these frames is rendered. A task
ends by its own time limit, which is no terminal state, or where the suite says that nothing is left to gain (discount
0), which is one.

Pictures are rendered without a screen, with MUJOCO_GL=egl or osmesa set before the run. Without a GPU most of that time
goes into the map of the shadows: `shadows=false` leaves them out, which changes the pictures.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import register, registry
from omegaconf import MISSING

from rlx.envs.factory import EnvConfig, check_name, make_vector_env
from rlx.errors import require

__all__ = ["DMC", "DmcConfig", "make_vector_env", "register_name"]

CHOICES = ("state", "pixels", "both")


@dataclass
class DmcConfig(EnvConfig):
    """A task of the DeepMind Control Suite."""

    _target_: str = "rlx.envs.dmc.make_vector_env"
    task: str = MISSING  # cheetah_run, walker_walk, ...


def register_name(name: str) -> None:
    """Have `gymnasium.make` know a task; UserError for a name that is none, ImportError without dm_control."""
    from dm_control import suite

    tasks = {f"{domain}_{task}": (domain, task) for domain, task in suite.ALL_TASKS}
    check_name("env.task", name, sorted(tasks))
    env_id = f"rlx/DMC-{name}-v0"
    if env_id not in registry:
        domain, task = tasks[name]
        register(env_id, f"{__name__}:DMC", kwargs={"domain": domain, "task": task})


class DMC(gym.Env[Any, np.ndarray]):
    """One task."""

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
    ):
        from dm_control import suite

        require(observe in CHOICES, f"env.kwargs.observe must be one of {', '.join(CHOICES)} (it is {observe!r}).")
        for name, value in (("action_repeat", action_repeat), ("size", size), ("stack", stack)):
            require(type(value) is int and 1 <= value <= 2**10, f"env.kwargs.{name} must be 1 to 1024 (it is {value}).")
        self._env: Any = suite.load(domain, task)
        self._observe, self._repeat, self._size, self._camera = observe, action_repeat, size, camera
        visual = self._env.physics.model.vis
        visual.global_.offwidth = visual.global_.offheight = size  # else 640 x 480, all of it cleared
        if not shadows:
            visual.quality.shadowsize = 0
        action = self._env.action_spec()
        low, high = (
            np.broadcast_to(bound, action.shape).astype(np.float32) for bound in (action.minimum, action.maximum)
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

    def _observation(self, step: Any) -> Any:
        if self._observe == "pixels":
            return self._frames.reshape(self.observation_space.shape or ()).copy()
        state = np.concatenate([np.ravel(part) for part in step.observation.values()]).astype(np.float32)
        if self._observe == "state":
            return state
        return {"pixels": self._frames.reshape(-1, self._size, self._size).copy(), "state": state}

    def close(self) -> None:
        self._env.close()
