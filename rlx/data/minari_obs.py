"""Observations of a Minari episode, as `make_env` would have the env give them.

    one array              the array; images that are stored as JPEG are decoded
    a group with an image  a dict: images as they are, everything else as one vector for each name; a group inside the
                           group is opened ("camera/left") if there is an image in it
    a goal env's group     one vector [observation | achieved_goal | desired_goal]
    any other group        one vector

What is joined is joined in the order of the observation space in the metadata, which is the order of the env.
"""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rlx.data.columns import Array
from rlx.data.files import (
    COPIES,
    Allowance,
    check_pieces,
    first_line,
    hdf5_array,
    hdf5_dataset,
    hdf5_declared,
    hdf5_parts,
)
from rlx.errors import UserError, shown

GOAL_KEYS = ("observation", "achieved_goal", "desired_goal")  # in the order in which they are joined
OBSERVATIONS = "observations"
PIECE = 2**20  # bytes that HDF5 keeps unpacked while rows are read one by one


class Leaf(NamedTuple):
    """One stored array."""

    key: str  # below the episode: observations/camera/left
    jpeg: tuple[int, ...] | None  # the shape of images that are stored as JPEG
    is_image: bool  # of rank 3, or all that there is


Plan = dict[str, list[Leaf]]  # "observations", or "observations/pixels" for each part -> what it is joined from


def plan_observations(episode: Any, space: dict[str, Any], jpeg: bool, data: Path, metadata: Path) -> Plan:
    """How the observations of all episodes are read, from those of the first and from the space in the metadata."""
    stored = episode.get(OBSERVATIONS)
    if not hasattr(stored, "visititems"):
        return {OBSERVATIONS: [Leaf(OBSERVATIONS, _jpeg_shape(space, metadata) if jpeg else None, True)]}
    leaves: dict[tuple[str, ...], Leaf] = {}
    opened: set[tuple[str, ...]] = set()
    parts = {tuple(name.split("/")): array for name, array in hdf5_parts(stored, data).items()}
    for path in sorted(parts, key=lambda path: _order(space, path)):
        box, key = _subspace(space, path), "/".join((OBSERVATIONS, *path))
        if box.get("type", "Box") not in ("Box", "MultiBinary"):
            raise UserError(
                f"{data}: key '{shown(key, 60)}' holds the space {shown(box['type'], 60)}, expected arrays of numbers."
            )
        shape = _jpeg_shape(box, metadata) if jpeg else None
        rank = parts[path].ndim - 1 if shape is None else len(shape)
        leaves[path] = Leaf(key, shape, rank == 3)
        if rank == 3 and (shape is not None or parts[path].dtype == np.uint8):
            opened |= {path[:i] for i in range(len(path))}
    if not opened:
        if {path[0] for path in leaves} == set(GOAL_KEYS):
            return {OBSERVATIONS: sorted(leaves.values(), key=lambda leaf: GOAL_KEYS.index(leaf.key.split("/")[1]))}
        return {OBSERVATIONS: list(leaves.values())}
    plan: Plan = {}
    for path, leaf in leaves.items():
        name = next(path[:i] for i in range(1, len(path) + 1) if path[:i] not in opened)
        plan.setdefault("/".join((OBSERVATIONS, *name)), []).append(leaf)
    return plan


def read_observations(episode: Any, plan: Plan, data: Path, allowance: Allowance) -> dict[str, Array]:
    """[T + 1, ...] observations of an episode by key, "observations" or "observations/pixels"."""
    observations = {}
    for key, leaves in plan.items():
        arrays = [_read_leaf(episode, leaf, data, allowance) for leaf in leaves]
        whole = leaves[0].key == key and leaves[0].is_image  # and not a part of a vector
        observations[key] = arrays[0] if whole else _joined(arrays, leaves, data)
    return observations


def _read_leaf(episode: Any, leaf: Leaf, data: Path, allowance: Allowance) -> Array:
    if leaf.jpeg is None:
        return hdf5_array(episode, leaf.key, data, allowance, COPIES)
    return _read_images(hdf5_dataset(episode, leaf.key, data), data, leaf.jpeg, allowance)


def _joined(arrays: list[Array], leaves: list[Leaf], data: Path) -> Array:
    """Arrays side by side as one vector per row."""
    for array, leaf in zip(arrays, leaves, strict=True):
        if not array.ndim or len(array) != len(arrays[0]):
            rows = f"{len(array)} rows" if array.ndim else "a single number"
            raise UserError(f"{data}: key '{leaf.key}' has {rows}, expected as many rows as '{leaves[0].key}'.")
    vector = np.concatenate([array.reshape(len(array), math.prod(array.shape[1:])) for array in arrays], axis=1)
    return vector.astype(np.float32) if vector.dtype in (np.uint8, np.bool_) else vector  # no image


def _read_images(stored: Any, data: Path, image: tuple[int, ...], allowance: Allowance) -> Array:
    """[T + 1, ...] images that are stored as JPEG, one by one: only their bytes tell how many those are."""
    import h5py

    of_one_size = stored.ndim == 2 and stored.dtype == np.uint8  # as where a picture never changes
    if not of_one_size and (stored.ndim != 1 or h5py.check_vlen_dtype(stored.dtype) != np.uint8):
        raise UserError(f"{data}: key '{stored.name}' is not a list of JPEG images, as its metadata says.")
    where = f"{data}: key '{stored.name}'"
    size = math.prod(stored.chunks or ()) * stored.id.get_type().get_size()
    if not of_one_size and size > PIECE:  # it would be unpacked again for every row
        raise UserError(f"{where} is cut into pieces of {size:,} bytes, expected at most {PIECE:,}; save it again.")
    nbytes = len(stored) * math.prod(image)
    packed = math.prod(hdf5_declared(stored, where)[0]) if of_one_size else 0
    allowance.claim(nbytes + packed, COPIES * nbytes + packed)
    check_pieces(stored, where)
    rows = stored[()] if of_one_size else stored
    images = np.empty((len(stored), *image), np.uint8)
    for i in range(len(stored)):
        images[i] = _decode(rows[i], image, f"{where}, row {i},")
    return images


def _decode(encoded: Array, shape: tuple[int, ...], where: str) -> Array:
    from PIL import Image

    try:
        opened = Image.open(io.BytesIO(encoded.tobytes()), formats=("JPEG",))
    except Image.DecompressionBombError as error:
        raise UserError(f"{where} is too large ({first_line(error)}).") from error
    with opened as image:
        height, width = shape[:2]
        if image.size != (width, height):  # before it is decoded, which allocates what it says
            raise UserError(f"{where} is an image of {image.size}, expected {(width, height)} as its metadata says.")
        decoded = np.asarray(image, dtype=np.uint8)
    if decoded.shape != shape:
        raise UserError(f"{where} is an image of shape {decoded.shape}, expected {shape} as its metadata says.")
    return decoded


def _jpeg_shape(space: dict[str, Any], file: Path) -> tuple[int, ...] | None:
    """The shape of observations that Minari stores as JPEG: bytes 0 to 255, at least 32 x 32."""
    shape = space.get("shape") or ()
    if not isinstance(shape, list | tuple) or not all(type(n) is int and 0 < n < 2**31 for n in shape):
        raise UserError(f"{file}: the shape of observation_space is {shown(shape, 60)}, expected integers.")
    image = space.get("dtype") == "uint8" and len(shape) in (2, 3) and min(shape[:2]) >= 32
    return tuple(shape) if image else None


# -- the observation space as JSON, of which nothing is believed but names and their order -----------------------------


def _subspaces(space: dict[str, Any]) -> dict[str, Any]:
    inner = space.get("subspaces")
    if isinstance(inner, list):  # a Tuple, whose parts Minari numbers
        return {f"_index_{i}": part for i, part in enumerate(inner)}
    return inner if isinstance(inner, dict) else {}


def _subspace(space: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    for name in path:
        inner = _subspaces(space).get(name)
        space = inner if isinstance(inner, dict) else {}
    return space


def _order(space: dict[str, Any], path: tuple[str, ...]) -> list[tuple[int, str]]:
    """To sort by: where each name of a path comes in its space; unknown ones are last."""
    order = []
    for i, name in enumerate(path):
        names = list(_subspaces(_subspace(space, path[:i])))
        order.append((names.index(name) if name in names else len(names), name))
    return order
