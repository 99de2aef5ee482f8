"""The replay that an earlier run has saved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rlx.checkpoint import MALFORMED, CheckpointData, CheckpointStore, DamagedCheckpoint
from rlx.data.dataset import TransitionDataset
from rlx.data.files import expanded
from rlx.data.sources.base import DatasetConfig, finish
from rlx.data.store import Layout, Store, make_columns, store_bytes
from rlx.errors import UserError
from rlx.obs import map_obs, parts_of
from rlx.restoring import restoring
from rlx.run_folder import refuse_link
from rlx.system import enough_memory
from rlx.types import Spec

COLUMNS = ("obs", "action", "reward", "next_obs", "terminated", "truncated")
CHUNK = 4096  # transitions that are read at once
SPARE = 8  # bytes per transition: choices become int64


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


def read_replay(run_dir: Path) -> tuple[dict[str, Any], str]:
    """The transitions in a run's latest checkpoint by field, env after env, each in the order of time; and the env id.

    Actions and rewards are as the learner of that run saw them: scaled and transformed.
    """
    refuse_link(run_dir / "checkpoints")
    checkpoints = CheckpointStore(run_dir / "checkpoints")
    saved = checkpoints.latest()
    if not saved.segments:
        raise UserError(f"{run_dir} kept no replay (it was not an off-policy run); give the folder of one that did.")
    try:
        return _arrays(checkpoints, saved, str(run_dir)), saved.spec.env_id
    except (DamagedCheckpoint, *MALFORMED) as error:
        text = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise UserError(f"The replay of {saved.path} cannot be read ({text}); give another run.") from error


def _arrays(checkpoints: CheckpointStore, saved: CheckpointData, source: str) -> dict[str, Any]:
    lanes, counters = len(saved.state["journal"]["episodes"]), saved.state["replay"]
    room = lanes * max(counters["lanes"]) if "lanes" in counters else counters["total"] - saved.segments[0]["start"]
    store: Store | None = None
    for start, tensors in checkpoints.replay_segments(saved):
        if store is None:
            store = _room_for(_layout_of(saved.spec, tensors), tensors, room, lanes, source)
        store.load_segment(start, tensors)
    assert store is not None
    store.load_counters(counters)
    arrays: dict[str, Any] = {}
    at = 0
    for lane in map(store.history, range(lanes)):
        for begin in range(0, len(lane), CHUNK):
            gathered = store.take(lane[begin : begin + CHUNK])
            columns = store.layout.batch(*gathered)._asdict()
            columns["truncated"] = store.layout.column(gathered.rows, "truncated")
            if begin + CHUNK >= len(lane):  # an episode that was still going on is cut
                columns["truncated"][-1:] = 1.0 - columns["terminated"][-1:]
            rows = slice(at, at := at + len(gathered.rows))
            for name in COLUMNS:
                column = map_obs(lambda part: part.numpy(), columns[name])
                if name not in arrays:
                    arrays[name] = map_obs(lambda part: np.empty((len(store), *part.shape[1:]), part.dtype), column)
                for whole, part in zip(parts_of(arrays[name]), parts_of(column), strict=True):
                    whole[rows] = part
    return arrays


def _room_for(layout: Layout, tensors: Mapping[str, Any], room: int, lanes: int, source: str) -> Store:
    """A store for the replay, if there is memory for it and for the arrays that are made of it.

    Of stacked frames it keeps the newest, as the run did.
    """
    kept = {name: tensors.get(layout.key("frames", name)) for name, box in layout.apart.items() if box.is_image}
    frames = {name: layout.apart[name].shape[0] // part.shape[1] for name, part in kept.items() if part is not None}
    needed = store_bytes(layout, room, lanes, frames) + room * (layout.batch_bytes + SPARE)
    with enough_memory(needed, f"{source}:", lambda _: "use a run with a smaller replay.capacity"):
        return Store(layout, room, lanes, 1.0, lambda slots: make_columns(layout, slots, lanes, frames))


def _layout_of(spec: Spec, tensors: Mapping[str, Any]) -> Layout:
    """The layout that the rows of a segment have."""
    apart = any(name == "obs" or name.startswith("obs.") for name in tensors)
    plain = Layout(spec, apart=apart)
    return plain if plain.width == tensors["rows"].shape[1] else Layout(spec, mc_return=True, apart=apart)
