"""Observations on the side of the envs: an array, or a dict of arrays where the Spec has several boxes.

The first axis counts lanes (or rows) in every part. What is written with these functions works for both kinds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from rlx.types import Box, Obs, ObsArray


def map_obs(function: Callable[..., Any], first: Any, *others: Any) -> Any:
    """`function` of every part; the parts of several observations side by side."""
    if isinstance(first, dict):
        return {name: function(part, *(other[name] for other in others)) for name, part in first.items()}
    return function(first, *others)


def parts_of(obs: ObsArray) -> list[np.ndarray]:
    return list(obs.values()) if isinstance(obs, dict) else [obs]


def named_parts(name: str, obs: Any) -> dict[str, Any]:
    """An array by its name, or the parts of a dict as "obs/pixels"."""
    return {f"{name}/{part}": array for part, array in obs.items()} if isinstance(obs, dict) else {name: obs}


def num_rows(obs: Any) -> int:
    return len(parts_of(obs)[0])


def take_rows(obs: Any, index: Any) -> Any:
    """Rows of arrays or tensors by number, slice or mask; one row without the first axis for a plain integer."""
    return map_obs(lambda part: part[index], obs)


def set_rows(obs: ObsArray, index: Any, value: ObsArray) -> None:
    def write(part: np.ndarray, new: np.ndarray) -> None:
        part[index] = new

    map_obs(write, obs, value)


def stack_obs(rows: Sequence[Any]) -> Any:
    """Single observations as rows."""
    return map_obs(lambda *parts: np.stack(parts), rows[0], *rows[1:])


def copy_obs(obs: ObsArray) -> Any:
    return map_obs(np.copy, obs)


def zeros_obs(boxes: Box | dict[str, Box], rows: int) -> Any:
    """Room for so many observations of this shape."""
    return map_obs(lambda box: np.zeros((rows, *box.shape), box.dtype), boxes)


def row_like(obs: ObsArray, row: Any) -> Any:
    """A copy of one observation, with the parts, shapes and dtypes that the rows of `obs` have."""

    def copied(part: np.ndarray, new: Any) -> np.ndarray:
        copy = np.empty(part.shape[1:], part.dtype)
        copy[...] = new
        return copy

    return map_obs(copied, obs, row)


class DictRows:
    """Writes rows of a dict of arrays by number, as one writes those of an array."""

    def __init__(self, parts: dict[str, np.ndarray]):
        self._parts = parts

    def __setitem__(self, index: Any, obs: dict[str, Any]) -> None:
        for name, part in self._parts.items():
            part[index] = obs[name]


def rows_of(obs: ObsArray) -> np.ndarray | DictRows:
    """What `rows_of(obs)[i] = row` writes to: the array itself, so that it costs nothing there."""
    return DictRows(obs) if isinstance(obs, dict) else obs


def to_tensors(obs: ObsArray) -> Obs:
    """The same numbers as tensors, without a copy."""
    tensors: Obs = map_obs(torch.from_numpy, obs)
    return tensors
