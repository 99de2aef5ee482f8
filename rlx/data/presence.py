"""Is a dataset there? Asked before a sweep starts, without reading any of it."""

from __future__ import annotations

from typing import Any

from omegaconf import DictConfig

from rlx.data.files import existing
from rlx.data.minari import find_minari
from rlx.data.sources.run import find_run
from rlx.errors import UserError

FILES = {f"rlx.data.sources.load_{kind}": kind for kind in ("npz", "pt", "hdf5")}


def check_there(node: Any) -> None:
    """UserError where the dataset of a config, or a part of a mix, does not exist; one of the user's own is not asked
    about.
    """
    if not isinstance(node, DictConfig):
        return
    target = str(node.get("_target_"))
    if target in FILES:
        existing(str(node.path), FILES[target])
    elif target == "rlx.data.sources.load_run":
        find_run(str(node.path))
    elif target == "rlx.data.sources.load_minari" and node.id:
        find_minari(str(node.id), node.root, bool(node.download))
    for name, source in (node.get("sources") or {}).items():
        try:
            check_there(source)
        except UserError as error:
            raise UserError(f"dataset.sources.{name}: {error}") from error
