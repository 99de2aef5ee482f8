"""A Minari dataset by its id; rlx/data/minari.py reads and writes them."""

from __future__ import annotations

from dataclasses import dataclass

from rlx.data.dataset import TransitionDataset
from rlx.data.minari import read_minari
from rlx.data.sources.base import DatasetConfig, finish
from rlx.errors import UserError
from rlx.types import Spec


@dataclass
class MinariConfig(DatasetConfig):
    """A Minari dataset by its id, from the local storage or downloaded."""

    _target_: str = "rlx.data.sources.load_minari"
    id: str | None = None  # such as D4RL/door/human-v2
    download: bool = False  # fetch it when it is not there yet
    root: str | None = None  # the folder of datasets; null: MINARI_DATASETS_PATH, else ~/.minari/datasets


def load_minari(cfg: MinariConfig, spec: Spec, seed: int = 0) -> TransitionDataset:
    if not cfg.id:
        raise UserError(f"No Minari dataset is known for {spec.env_id}: set dataset.id=NAMESPACE/NAME-v0.")
    return finish(read_minari(cfg.id, cfg.root, cfg.download), cfg, spec)
