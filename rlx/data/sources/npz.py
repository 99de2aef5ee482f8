"""Transitions in an .npz file; also the trajectories that imitation wrote until 0.4."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rlx.data.columns import Array, assemble
from rlx.data.dataset import TransitionDataset
from rlx.data.files import COPIES, Allowance, NpzArrays, existing
from rlx.data.sources.base import DatasetConfig, Memory, finish
from rlx.errors import UserError
from rlx.types import Spec

TRAJECTORIES = {"obs", "acts", "terminal", "indices"}  # keys of what imitation wrote until 0.4


@dataclass
class NpzConfig(DatasetConfig):
    """Transitions in an .npz file."""

    _target_: str = "rlx.data.sources.load_npz"
    path: str = ""  # the file; keys under their usual names
    memory: Memory = Memory.ram  # mmap leaves the observations on disk (uncompressed files only)


def load_npz(cfg: NpzConfig, spec: Spec | None, seed: int = 0) -> TransitionDataset:
    return finish(read_npz(cfg.path, cfg.memory == Memory.mmap), cfg, spec)


def read_npz(path: str, mmap: bool = False) -> TransitionDataset:
    file = existing(path, "npz")
    arrays = NpzArrays(file, mmap)
    if arrays.members.keys() >= TRAJECTORIES and not mmap:
        return TransitionDataset.from_dict(_joined_trajectories(arrays, file), source=str(file))
    columns = assemble(
        arrays.members.keys(), arrays.__getitem__, str(file), arrays.declared, Allowance(file).claim, mmap
    )
    return TransitionDataset(columns, str(file), arrays.text("env_id"))


def _joined_trajectories(arrays: NpzArrays, file: Path) -> dict[str, Array]:
    """What imitation wrote until 0.4: trajectories one after the other, obs one longer, cut at `indices`."""
    allowance = Allowance(file)
    names: list[str] = [name for name in ("obs", "acts", "rews", "terminal", "indices") if name in arrays.members]
    for name in names:
        shape, dtype = arrays.declared(name)
        allowance.claim(math.prod(shape) * dtype.itemsize, COPIES * math.prod(shape) * dtype.itemsize)
    columns = {name: arrays[name] for name in names}
    cuts, terminal = columns.pop("indices"), columns.pop("terminal")
    steps = len(columns["acts"]) if columns["acts"].ndim else 0
    stops = np.append(cuts, steps) if cuts.ndim == 1 and cuts.dtype.kind in "iu" else np.zeros(0)
    if terminal.shape != stops.shape or not steps or (np.diff(stops, prepend=0) <= 0).any():
        raise UserError(
            f"{file}: key 'indices' does not cut {steps} actions into {terminal.size} trajectories, as imitation saves "
            "them; save the transitions as plain arrays."
        )
    last = np.zeros(steps, dtype=bool)
    last[stops - 1] = True
    over = np.zeros(steps, dtype=bool)
    over[stops - 1] = terminal != 0
    return {**columns, "terminated": over, "truncated": last & ~over}
