"""Actions between the learner's units, [-1, 1] for a box and counted from 0 for choices, and those of the env."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces

from rlx.types import Spec


def box_scale(low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Half the width, the middle and the limit of a learner's action, by dimension; unbounded ones are left alone."""
    bounded = np.isfinite(low) & np.isfinite(high)
    low, high = np.where(bounded, low, low.dtype.type(-1)), np.where(bounded, high, high.dtype.type(1))
    return (high - low) / 2, (high + low) / 2, np.where(bounded, low.dtype.type(1), low.dtype.type(np.inf))


def to_env_units(space: spaces.Space[Any]) -> Callable[[np.ndarray], Any]:
    """The map from the learner's actions to those of an env with this action space."""
    if isinstance(space, spaces.Box):
        half, middle, limit = box_scale(space.low.ravel(), space.high.ravel())

        def scale(action: np.ndarray) -> np.ndarray:
            scaled: np.ndarray = np.minimum(np.maximum(action, -limit), limit) * half + middle
            return scaled.reshape((-1, *space.shape))

        return scale
    if isinstance(space, spaces.Discrete):
        start = int(space.start)
        return lambda action: [int(a) + start for a in action]
    assert isinstance(space, spaces.MultiDiscrete)
    first = space.start
    return lambda action: action + first


def unscaled(action: np.ndarray, spec: Spec) -> np.ndarray:
    """Actions from the learner's units to those of the env; discrete and unbounded ones stay as they are."""
    if spec.discrete:
        return action
    half, middle, limit = _scale_of(spec.action_low, spec.action_high)
    scaled: np.ndarray = np.minimum(np.maximum(action, -limit), limit) * half + middle
    return scaled


@functools.cache
def _scale_of(low: tuple[float, ...], high: tuple[float, ...]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return box_scale(np.array(low, np.float32), np.array(high, np.float32))


def random_actions(spec: Spec, n: int, rng: np.random.Generator) -> np.ndarray:
    """Uniformly random actions [n, ...] in the learner's units."""
    if spec.action_kind == "box":
        return rng.uniform(-1.0, 1.0, (n, *spec.action_shape)).astype(np.float32)
    return rng.integers(0, spec.action_sizes, (n, *(spec.action_shape or (1,)))).reshape(n, *spec.action_shape)
