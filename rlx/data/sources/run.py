"""The replay that an earlier run has saved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rlx.checkpoint import MALFORMED, CheckpointData, CheckpointStore, DamagedCheckpoint
from rlx.data.columns import Array
from rlx.data.dataset import TransitionDataset
from rlx.data.files import expanded
from rlx.data.sources.base import DatasetConfig, finish
from rlx.data.store import Layout, Store
from rlx.errors import UserError
from rlx.restoring import restoring
from rlx.run_folder import refuse_link
from rlx.types import Spec


@dataclass
class RunConfig(DatasetConfig):
    """The replay that an earlier rlx run has saved."""

    _target_: str = "rlx.data.sources.load_run"
    path: str = ""  # the run folder


def load_run(cfg: RunConfig, spec: Spec | None, seed: int = 0) -> TransitionDataset:
    return finish(read_run(cfg.path), cfg, spec)


def find_run(path: str) -> Path:
    """The folder of a run that has checkpoints."""
    if not path:
        raise UserError("No run given for the run dataset: set dataset.path=RUN_FOLDER.")
    folder = expanded(path)
    if not (folder / "checkpoints").is_dir():
        raise UserError(f"{folder}: is not a run folder: expected one with checkpoints.")
    return folder


def read_run(path: str) -> TransitionDataset:
    folder = find_run(path)
    with restoring(folder):
        arrays, env_id = read_replay(folder)
    dataset = TransitionDataset.from_dict(arrays, source=str(folder), env_id=env_id)
    dataset.recorded = True
    dataset.scaled = dataset.action.dtype.kind == "f"  # a replay holds actions as learners see them
    dataset.notes += ("rewards are as the learner of that run saw them, after its reward transform",)
    return dataset


def read_replay(run_dir: Path) -> tuple[dict[str, Array], str]:
    """The transitions in a run's latest checkpoint by field, env after env, each in the order of time; and the env id.

    Actions and rewards are as the learner of that run saw them: scaled and transformed.
    """
    refuse_link(run_dir / "checkpoints")
    checkpoints = CheckpointStore(run_dir / "checkpoints")
    saved = checkpoints.latest()
    if not saved.segments:
        raise UserError(f"{run_dir} kept no replay (it was not an off-policy run); give the folder of one that did.")
    if saved.spec.boxes:
        raise UserError(f"{run_dir} has observations of several parts, which a dataset cannot hold; give another run.")
    try:
        return _arrays(checkpoints, saved), saved.spec.env_id
    except (DamagedCheckpoint, *MALFORMED) as error:
        text = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise UserError(f"The replay of {saved.path} cannot be read ({text}); give another run.") from error


def _arrays(checkpoints: CheckpointStore, saved: CheckpointData) -> dict[str, Array]:
    lanes, counters = len(saved.state["journal"]["episodes"]), saved.state["replay"]
    room = lanes * max(counters["lanes"]) if "lanes" in counters else counters["total"] - saved.segments[0]["start"]
    store: Store | None = None
    for start, tensors in checkpoints.replay_segments(saved):
        if store is None:
            store = Store(_layout_of(saved.spec, tensors), room, lanes, 1.0)
        store.load_segment(start, tensors)
    assert store is not None
    store.load_counters(counters)
    parts: dict[str, list[Array]] = {
        name: [] for name in ("obs", "action", "reward", "next_obs", "terminated", "truncated")
    }
    for place in map(store.history, range(lanes)):
        gathered = store.take(place)
        columns = store.layout.batch(*gathered)._asdict()
        columns["truncated"] = store.layout.column(gathered.rows, "truncated")
        columns["truncated"][-1:] = 1.0 - columns["terminated"][-1:]  # an episode that was still going on is cut
        for name, column in parts.items():
            column.append(columns[name].numpy())
    return {name: np.concatenate(column) for name, column in parts.items()}


def _layout_of(spec: Spec, tensors: Mapping[str, Any]) -> Layout:
    """The layout that the rows of a segment have."""
    apart = "obs" in tensors
    plain = Layout(spec, apart=apart)
    return plain if plain.width == tensors["rows"].shape[1] else Layout(spec, mc_return=True, apart=apart)
