"""Observation spaces as rlx knows them: one array, or a dict of arrays where images come with something else.

| an env's observation space | what the learner sees |
|---|---|
| a vector, or an array of rank 3 (an image) | the same array |
| a goal env's dict | one vector: `[observation \\| achieved_goal \\| desired_goal]` |
| a dict with an image in it (uint8, rank 3) | a dict: images as they are, everything else as one vector per name |
| anything else that Gymnasium can flatten | one vector |
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rlx.types import Box

GOAL_PARTS = ("observation", "achieved_goal", "desired_goal")


class FlattenGoal(gym.ObservationWrapper):
    """A goal env's dict as one vector: [observation | achieved_goal | desired_goal]; success is always `is_success`."""

    def __init__(self, env: gym.Env):
        super().__init__(env)
        parts: Any = env.observation_space
        size = sum(int(np.prod(parts[k].shape)) for k in GOAL_PARTS)
        self.observation_space = spaces.Box(-np.inf, np.inf, (size,), np.float32)

    def observation(self, observation: dict[str, np.ndarray]) -> np.ndarray:
        return np.concatenate([np.ravel(observation[k]) for k in GOAL_PARTS]).astype(np.float32)

    def step(self, action: Any) -> tuple[np.ndarray, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        if "success" in info:  # what the mazes of gymnasium-robotics call it
            info.setdefault("is_success", info["success"])
        return self.observation(observation), reward, terminated, truncated, info


class FlattenParts(gym.ObservationWrapper):
    """A dict with images as a flat dict: images by their path ("camera/left"), everything else as one vector each."""

    def __init__(self, env: gym.Env):
        super().__init__(env)
        self._parts = list(_parts_of(env.observation_space))
        flat = [(name, space if is_image(space) else spaces.flatten_space(space)) for name, _, space in self._parts]
        self.observation_space = spaces.Dict(flat)

    def observation(self, observation: Any) -> dict[str, Any]:
        flat = {}
        for name, path, space in self._parts:
            part = observation
            for key in path:
                part = part[key]
            flat[name] = part if is_image(space) else spaces.flatten(space, part)
        return flat


def is_image(space: spaces.Space[Any]) -> bool:
    return isinstance(space, spaces.Box) and len(space.shape) == 3


def holds_images(space: spaces.Space[Any]) -> bool:
    """Is it a dict with an image of uint8 somewhere in it?"""
    if not isinstance(space, spaces.Dict):
        return False
    return any((is_image(part) and part.dtype == np.uint8) or holds_images(part) for part in space.values())


def is_goal_space(space: spaces.Space[Any]) -> bool:
    """Has it goals that are arrays? Those that are dicts, as FrankaKitchen's, are flattened like any other dict."""
    if not isinstance(space, spaces.Dict):
        return False
    return all(isinstance(space.get(k), spaces.Box) for k in GOAL_PARTS)


def with_arrays(env: gym.Env) -> gym.Env:
    """The env with observations that are one array or, where images are among them, a dict of arrays."""
    space = env.observation_space
    if isinstance(space, spaces.Dict) and holds_images(space):
        plain = all(isinstance(name, str) and _is_array(part) for name, part in space.items())
        return env if plain else FlattenParts(env)
    if is_goal_space(space):
        return FlattenGoal(env)
    return env if _is_array(space) else gym.wrappers.FlattenObservation(env)


def boxes_of(space: spaces.Space[Any]) -> Box | dict[str, Box]:
    """The shape and dtype of an observation of an env made by `make_env`, or of each of its parts."""
    return {name: _box(part) for name, part in space.items()} if isinstance(space, spaces.Dict) else _box(space)


def _box(space: spaces.Space[Any]) -> Box:
    shape = tuple(int(n) for n in space.shape or ())
    return Box(shape, "uint8" if len(shape) == 3 and space.dtype == np.uint8 else "float32")


def _is_array(space: spaces.Space[Any]) -> bool:
    """Vectors and images stay as they are."""
    return isinstance(space, spaces.Box) and len(space.shape) in (1, 3)


def _parts_of(space: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[str, tuple[Any, ...], spaces.Space[Any]]]:
    """Name, path and space of every part; a dict is a part of its own unless it holds images."""
    for key, part in space.items():
        if holds_images(part):
            yield from _parts_of(part, (*path, key))
        else:
            yield "/".join(map(str, (*path, key))), (*path, key), part
