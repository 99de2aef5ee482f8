"""Envs of a few lines for the tests of envs and runners; the fixture `toy_envs` registers them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import register, registry

from rlx.collectors.runner import Runner
from rlx.envs import EnvConfig, make_vector_env

BOX = spaces.Box(-1.0, 1.0, (2,), np.float32)


class Counter(gym.Env):
    """Counts to three and terminates; the observation is the count and a number of the seed, the reward the action."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = spaces.Box(-2.0, 4.0, (1,), np.float32)
    random = False  # an env that does not replay

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self._count = 0
        self._tag = float(self.np_random.integers(0, 2**20))
        return self._observe(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        self._count += 1
        over = self._count == 3
        return self._observe(), float(action[0]), over, False, {"is_success": over} if over else {}

    def _observe(self) -> np.ndarray:
        drift = np.random.default_rng().random() if self.random else 0.0
        return np.array([self._count + drift, self._tag], np.float32)


class Odd(gym.Env):
    """Spaces that are unusual but allowed."""

    def __init__(self, obs: spaces.Space, action: spaces.Space):
        self.observation_space, self.action_space = obs, action

    def reset(self, **kwargs: Any) -> tuple[Any, dict]:
        super().reset(**kwargs)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        assert self.action_space.contains(action), action
        return self.observation_space.sample(), 0.0, False, False, {}


class Maze(gym.Env):
    """Calls its success as the mazes of gymnasium-robotics do, and may have goals that are dicts."""

    action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, nested: bool = False):
        box: spaces.Space = spaces.Box(-1.0, 1.0, (1,), np.float32)
        goal: spaces.Space = spaces.Dict(place=box) if nested else box
        self.observation_space = spaces.Dict(observation=box, achieved_goal=goal, desired_goal=goal)

    def reset(self, **kwargs: Any) -> tuple[Any, dict]:
        super().reset(**kwargs)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        return self.observation_space.sample(), 1.0, False, False, {"success": True}


def counter(n: int = 1, kind: str = "sync") -> Runner:
    return Runner(make_vector_env(EnvConfig(id="Counter-v0", num_envs=n, vectorization=kind)), seed=0)


@contextmanager
def registered() -> Iterator[None]:
    register("Counter-v0", entry_point=Counter)
    register("Odd-v0", entry_point=Odd, max_episode_steps=7)
    register("Maze-v0", entry_point=Maze)
    yield
    del registry["Counter-v0"], registry["Odd-v0"], registry["Maze-v0"]
