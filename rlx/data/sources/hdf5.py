"""Transitions in an .hdf5 file: D4RL's flat layout, or the episodes of d3rlpy 2."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rlx.data.columns import Array, assemble
from rlx.data.dataset import TransitionDataset
from rlx.data.files import (
    COPIES,
    Allowance,
    existing,
    hdf5_array,
    hdf5_dataset,
    hdf5_declared,
    hdf5_file,
    hdf5_map,
    hdf5_parts,
    hdf5_text,
)
from rlx.data.keys import OBSERVATION_KEYS
from rlx.data.sources.base import DatasetConfig, Memory, finish
from rlx.errors import UserError, shown
from rlx.types import Spec


@dataclass
class Hdf5Config(DatasetConfig):
    """Transitions in an .hdf5 file, in the layout of D4RL or d3rlpy."""

    _target_: str = "rlx.data.sources.load_hdf5"
    path: str = ""  # the file; keys under their usual names
    memory: Memory = Memory.ram  # mmap leaves the observations on disk (contiguous arrays only)


def load_hdf5(cfg: Hdf5Config, spec: Spec | None, seed: int = 0) -> TransitionDataset:
    return finish(read_hdf5(cfg.path, cfg.memory == Memory.mmap), cfg, spec)


def read_hdf5(path: str, mmap: bool = False) -> TransitionDataset:
    file = existing(path, "hdf5")
    with hdf5_file(file) as h5:
        env_id = hdf5_text(h5, "env_id")
        allowance = Allowance(file)
        if "num_episodes" in h5 and "observations_0" in h5:
            arrays = _d3rlpy_episodes(h5, file, allowance)
            return TransitionDataset.from_dict(arrays, source=str(file), env_id=env_id)

        def read(key: str) -> Array:
            return hdf5_map(h5, key, file) if mmap else hdf5_array(h5, key, file)

        def declared(key: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
            return hdf5_declared(hdf5_dataset(h5, key, file), f"{file}: key '{key}'")

        columns = assemble(_keys(h5, file), read, str(file), declared, allowance.claim, mmap)
        return TransitionDataset(columns, str(file), env_id)


def _keys(h5: Any, file: Path) -> Collection[str]:
    """The keys of a file; a group of observations is its parts."""
    keys: dict[str, None] = dict.fromkeys(h5.keys())
    for name in OBSERVATION_KEYS & keys.keys():
        if hasattr(h5[name], "visititems"):
            del keys[name]
            keys |= dict.fromkeys(f"{name}/{part}" for part in hdf5_parts(h5[name], file))
    return keys


def _d3rlpy_episodes(h5: Any, file: Path, allowance: Allowance) -> dict[str, Array]:
    """The arrays per episode that d3rlpy 2 writes, one after the other."""
    columns: dict[str, list[Array]] = {
        "observations": [],
        "actions": [],
        "rewards": [],
        "terminals": [],
        "timeouts": [],
    }
    for i in range(_number(h5, "num_episodes", file, "iu", allowance)):
        for key in ("observations", "actions", "rewards"):
            array = hdf5_array(h5, f"{key}_{i}", file, allowance, copies=COPIES)
            if not array.ndim:
                raise UserError(f"{file}: key '{key}_{i}' is a single number: expected one row per transition.")
            columns[key].append(array)
        last = np.zeros(len(columns["rewards"][-1]), dtype=bool)
        last[-1:] = True
        terminated = bool(_number(h5, f"terminated_{i}", file, "iufb", allowance))
        columns["terminals"].append(last & terminated)
        columns["timeouts"].append(last & (not terminated))
    if not columns["rewards"]:
        raise UserError(f"{file}: key 'num_episodes' is 0: expected at least one episode.")
    return {key: np.concatenate(parts) for key, parts in columns.items()}


def _number(h5: Any, key: str, file: Path, kinds: str, allowance: Allowance) -> int:
    """A single number that is not negative."""
    stored = hdf5_dataset(h5, key, file)
    good = stored.size == 1 and stored.dtype.kind in kinds
    if not good or not (value := hdf5_array(h5, key, file, allowance).item()) >= 0:
        kind = f"shape {stored.shape} and dtype {shown(stored.dtype, 60)}"
        raise UserError(f"{file}: key '{key}' must be a single number of at least 0; it has {kind}.")
    return int(value)
