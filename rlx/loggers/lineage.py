"""What a policy was trained on, in a form that travels with it."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from rlx.config import resolved_values

if TYPE_CHECKING:
    from rlx.trainers.trainer import Trainer

ORIGINS = ("id", "path", "source")  # keys that say where a dataset comes from, whichever a source has


def dataset_lineage(trainer: Trainer) -> dict[str, Any] | None:
    """Id, hash and mix of the dataset of a run; None where there is none.

    The names are those of the config: where a file lies may have come from the environment.
    """
    dataset = trainer.dataset
    if dataset is None:
        return None
    node = resolved_values(trainer.cfg)["dataset"] or {}
    fingerprint = dataset.fingerprint()
    lineage = {
        **_origin(node),
        "hash": hashlib.sha256(json.dumps(fingerprint, sort_keys=True).encode()).hexdigest(),
        "transitions": len(dataset),
        "env": dataset.env_id,
        "mix": None,
    }
    if node.get("sources"):
        ratios = node.get("ratios") or {}
        lineage["mix"] = {name: {**_origin(s), "ratio": ratios.get(name)} for name, s in node["sources"].items()}
    return lineage


def _origin(node: dict[str, Any]) -> dict[str, Any]:
    there = next((node[key] for key in ORIGINS if node.get(key)), None)
    return {"source": str(node.get("_target_", "")).rpartition(".")[2].removeprefix("load_"), "id": there}
