"""Observation spaces as rlx knows them: one array, or a dict of arrays where images come with something else.

| an env's observation space | what the learner sees |
|---|---|
| a vector, or an array of rank 3 (an image) | the same array |
| an array of rank 4 (a stack of images) | one image, [n * channels, height, width] |
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

from rlx.errors import require
from rlx.nn.encoders import channels_first, is_channels_last
from rlx.types import Box

GOAL_PARTS = ("observation", "achieved_goal", "desired_goal")
PICTURE = 16  # pixels of each side from which on an array of uint8 is a picture, and not a small grid


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


class FoldStack(gym.ObservationWrapper):
    """A stack of n images as one, [n * channels, height, width]: the first axis is that of time, as a replay has it."""

    def __init__(self, env: gym.Env):
        super().__init__(env)
        space: Any = env.observation_space
        self.observation_space = folded_space(space)

    def observation(self, observation: np.ndarray) -> np.ndarray:
        return folded(observation)


class FlattenWhole(gym.wrappers.FlattenObservation):
    """What is neither a vector nor an image as one vector."""


class FlattenParts(gym.ObservationWrapper):
    """A dict with images as a flat dict: images by their path ("camera/left"), everything else as one vector each."""

    def __init__(self, env: gym.Env):
        super().__init__(env)
        self._parts = list(_parts_of(env.observation_space))
        self.observation_space = spaces.Dict([(name, _flat_space(space)) for name, _, space in self._parts])

    def observation(self, observation: Any) -> dict[str, Any]:
        flat = {}
        for name, path, space in self._parts:
            part = observation
            for key in path:
                part = part[key]
            flat[name] = _flat(part, space)
        return flat


def _flat_space(space: Any) -> spaces.Space[Any]:
    if is_stack(space):
        return folded_space(space)
    return space if is_image(space) else spaces.flatten_space(space)


def _flat(part: Any, space: spaces.Space[Any]) -> Any:
    if is_stack(space):
        return folded(part)
    return part if is_image(space) else spaces.flatten(space, part)


def is_image(space: spaces.Space[Any]) -> bool:
    return isinstance(space, spaces.Box) and len(space.shape) == 3


def is_stack(space: spaces.Space[Any]) -> bool:
    """Is it a stack of images, as FrameStackObservation makes them?"""
    return isinstance(space, spaces.Box) and len(space.shape) == 4


def folded(stack: np.ndarray) -> np.ndarray:
    """[n, height, width, channels], or [n, channels, height, width], as [n * channels, height, width]."""
    stack = channels_first(stack)
    return np.ascontiguousarray(stack.reshape(-1, *stack.shape[2:]))


def folded_space(space: spaces.Box) -> spaces.Box:
    low, high = folded(space.low), folded(space.high)
    channels, height, width = low.shape
    require(
        not is_channels_last(Box(low.shape, "uint8")),
        f"A stack of {space.shape[0]} images makes {channels} channels of {height} x {width} pixels, which cannot be "
        "told from rows; stack fewer of them.",
    )
    return spaces.Box(low, high, dtype=space.dtype.type)


def holds_images(space: spaces.Space[Any]) -> bool:
    """Is it a dict with an image of uint8 somewhere in it?"""
    if not isinstance(space, spaces.Dict):
        return False
    return any(
        ((is_image(part) or is_stack(part)) and part.dtype == np.uint8) or holds_images(part) for part in space.values()
    )


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
    if is_stack(space):
        return FoldStack(env)
    return env if _is_array(space) else FlattenWhole(env)


def is_grey_picture(shape: tuple[int, ...], dtype: Any) -> bool:
    """Is it a picture without an axis for its channel?"""
    return len(shape) == 2 and np.dtype(dtype) == np.uint8 and min(shape) >= PICTURE


def flattened_picture(env: gym.Env) -> tuple[int, int] | None:
    """Height and width of a grey picture that `with_arrays` took for numbers."""
    space = env.env.observation_space if isinstance(env, FlattenWhole) else None
    if not isinstance(space, spaces.Box) or not is_grey_picture(space.shape, space.dtype):
        return None
    height, width = space.shape
    return height, width


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
