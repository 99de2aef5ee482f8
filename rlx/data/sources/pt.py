"""Transitions in a .pt file: a dict of tensors, read without unpickling it."""

from __future__ import annotations

from dataclasses import dataclass

from rlx.data.columns import assemble
from rlx.data.dataset import TransitionDataset
from rlx.data.files import Allowance, env_name, existing
from rlx.data.keys import ALIASES
from rlx.data.sources.base import DatasetConfig, finish
from rlx.data.torch_files import TorchTensors
from rlx.types import Spec


@dataclass
class PtConfig(DatasetConfig):
    """Transitions in a .pt file: a dict of tensors, never unpickled."""

    _target_: str = "rlx.data.sources.load_pt"
    path: str = ""  # the file; keys under their usual names


def load_pt(cfg: PtConfig, spec: Spec | None, seed: int = 0) -> TransitionDataset:
    return finish(read_pt(cfg.path), cfg, spec)


def read_pt(path: str) -> TransitionDataset:
    file = existing(path, "pt")
    tensors = TorchTensors(file)
    for key in tensors.values.keys() & {name for names in ALIASES.values() for name in names}:
        tensors.declared(key)  # refuses what is no tensor, before it is missed
    columns = assemble(tensors.values.keys(), tensors.__getitem__, str(file), tensors.declared, Allowance(file).claim)
    return TransitionDataset(columns, str(file), env_name(tensors.values.get("env_id")))
