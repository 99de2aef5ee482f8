"""Arrays given from Python as a dataset: `rlx.train(dataset={"observations": ..., ...})`.

They are not part of a config or of a checkpoint, which only name them: whoever resumes such a run gives them again, and
their fingerprint has to be the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlx.data.dataset import TransitionDataset
from rlx.data.keys import opened
from rlx.data.sources.base import DatasetConfig
from rlx.errors import UserError
from rlx.types import Spec


@dataclass
class InMemoryConfig(DatasetConfig):
    """Arrays given from Python, which a config can only name."""

    _target_: str = "rlx.data.sources.load_in_memory"
    source: str = "arrays from Python"  # what they were
    rows: int = 0  # how many transitions


def load_in_memory(cfg: InMemoryConfig, spec: Spec | None, seed: int = 0) -> TransitionDataset:
    raise UserError(
        "dataset=in_memory stands for arrays that are given from Python, rlx.train(dataset={...}); on the command line "
        "use a file: dataset=npz dataset.path=FILE (numpy.savez writes one)."
    )


def as_dataset(given: TransitionDataset | Mapping[str, Any]) -> TransitionDataset:
    """A dataset, or a dict of arrays under any of the usual names."""
    if isinstance(given, TransitionDataset):
        return given
    if not isinstance(given, Mapping):
        raise UserError(
            f"dataset is a {type(given).__name__}; give a choice such as 'minari', a dict of arrays, or a "
            "TransitionDataset (rlx.load_transition_dataset reads files)."
        )
    env_id = given["env_id"] if isinstance(given.get("env_id"), str) else None
    arrays = {key: np.asarray(value) for key, value in opened(given).items() if not isinstance(value, str)}
    return TransitionDataset.from_dict(arrays, source="arrays from Python", env_id=env_id)
