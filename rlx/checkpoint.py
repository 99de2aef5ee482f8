"""Checkpoints: atomic, verified, free of pickle.

A checkpoint is a folder:

    manifest.json         format version; name, size and sha256 of every file; the replay segments; written last
    config.yaml           the composed config, interpolations unresolved
    state.json            counters, random states, callback states, the Spec, versions
    <group>.safetensors   tensors: learner, rng, journal, rollout

The replay is written incrementally: `replay/<start>-<end>.safetensors` holds rows of the stream since the checkpoint
before, and manifests refer to segments by name and hash. Everything is written beside its place, fsynced and renamed,
so a reader sees the old state or the new one. `last` and `best` are links that are swapped the same way. What is read
back is data: nothing in it is imported, unpickled or instantiated by its own say-so.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig, OmegaConf
from safetensors.torch import load as load_tensors
from safetensors.torch import save as dump_tensors
from torch import Tensor

from rlx.data.replay import Layout, Replay
from rlx.errors import UserError
from rlx.files import fsync_folder, write_atomically
from rlx.saved import check_saved_spec
from rlx.types import Goal, Spec

log = logging.getLogger("rlx")

FORMAT = 1


class DamagedCheckpoint(Exception):
    """A checkpoint folder that is not what its manifest says."""


@dataclass
class Checkpoint:
    """What is in a checkpoint folder, in memory."""

    config: str  # YAML
    spec: Spec
    state: dict[str, Any]
    tensors: dict[str, dict[str, Tensor]]  # by group
    segments: list[dict[str, Any]] = field(default_factory=list)  # of the replay: name, sha256, size, start, end
    path: Path | None = None

    @classmethod
    def of(
        cls, cfg: DictConfig, spec: Spec, state: dict[str, Any], tensors: dict[str, dict[str, Tensor]]
    ) -> Checkpoint:
        return cls(OmegaConf.to_yaml(cfg, resolve=False), spec, state, tensors)


def _entry(data: bytes) -> dict[str, Any]:
    return {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}


def _dump(tensors: dict[str, Tensor]) -> bytes:
    return dump_tensors({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})


def write_folder(checkpoint: Checkpoint, path: Path) -> None:
    """Write a checkpoint folder; it exists completely or not at all."""
    beside = path.with_name(f".{path.name}.writing")
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(parents=True)
    state = {**checkpoint.state, "spec": checkpoint.spec._asdict()}
    files = {"config.yaml": checkpoint.config.encode(), "state.json": json.dumps(state).encode()}
    files |= {f"{group}.safetensors": _dump(tensors) for group, tensors in checkpoint.tensors.items()}
    manifest = {"format": FORMAT, "files": {name: _entry(data) for name, data in files.items()}}
    manifest["segments"] = checkpoint.segments
    for name, data in files.items():
        write_atomically(beside / name, data)
    write_atomically(beside / "manifest.json", json.dumps(manifest, indent=1).encode())
    shutil.rmtree(path, ignore_errors=True)
    os.replace(beside, path)
    fsync_folder(path.parent)


def _verified(path: Path, entry: dict[str, Any]) -> bytes:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DamagedCheckpoint(f"{path.name} cannot be read ({error})") from error
    if _entry(data) != {"sha256": entry["sha256"], "size": entry["size"]}:
        raise DamagedCheckpoint(f"{path.name} is not what was written")
    return data


def read_folder(path: Path) -> Checkpoint:
    """Read and verify a checkpoint folder; DamagedCheckpoint if anything is missing or changed."""
    try:
        manifest = json.loads((path / "manifest.json").read_text())
        if manifest["format"] != FORMAT:
            raise UserError(f"{path} has checkpoint format {manifest['format']}; this rlx reads format {FORMAT}.")
        files = {name: _verified(path / Path(name).name, entry) for name, entry in manifest["files"].items()}
        state = json.loads(files["state.json"])
        raw = state.pop("spec")
        goal = raw.pop("goal")
        values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in raw.items()}
        spec = Spec(**values)
        spec = spec._replace(goal=Goal(goal[0], tuple(goal[1]), tuple(goal[2])) if goal else None)
        check_saved_spec(spec)
        tensors = {Path(n).stem: load_tensors(data) for n, data in files.items() if n.endswith(".safetensors")}
        segments = manifest["segments"]
        config = files["config.yaml"].decode()
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedCheckpoint(f"{path.name}: {error}") from error
    return Checkpoint(config, spec, state, tensors, segments, path)


class CheckpointStore:
    """The `checkpoints` folder of a run."""

    def __init__(self, folder: Path, keep: int = 2):
        self.folder = folder
        self.keep = max(1, keep)
        self._segments: list[dict[str, Any]] = []  # of the replay, as of the latest checkpoint

    # -- writing ---------------------------------------------------------------------------------------------------

    def save_step(self, checkpoint: Checkpoint, steps: int, replay: Replay | None) -> Path:
        """A full checkpoint; `last` points to it afterwards and older ones beyond `keep` go."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if replay is not None:
            self._segments = checkpoint.segments = self._save_replay(replay)
        path = self.folder / f"step_{steps:012d}"
        write_folder(checkpoint, path)
        self._point("last", path)
        for old in self.steps()[self.keep :]:
            shutil.rmtree(old)
        self._drop_unused_segments()
        return path

    def save_best(self, checkpoint: Checkpoint, steps: int) -> Path:
        """A policy-only checkpoint; `best` points to it afterwards."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"best_{steps:012d}"
        write_folder(checkpoint, path)
        self._point("best", path)
        for old in self.folder.glob("best_*"):
            if old != path:
                shutil.rmtree(old)
        return path

    def _point(self, name: str, path: Path) -> None:
        beside = self.folder / f".{name}.writing"
        with suppress(FileNotFoundError):
            beside.unlink()
        beside.symlink_to(path.name)
        os.replace(beside, self.folder / name)
        fsync_folder(self.folder)

    def _save_replay(self, replay: Replay) -> list[dict[str, Any]]:
        """Write the rows that are new; the segments that together hold all rows still in the ring."""
        oldest = replay.total - len(replay)
        start = max(self._segments[-1]["end"] if self._segments else 0, oldest)
        segments = [s for s in self._segments if s["end"] > oldest]
        if start < replay.total:
            (self.folder / "replay").mkdir(exist_ok=True)
            name = f"{start:012d}-{replay.total:012d}.safetensors"
            data = _dump(replay.segment(start, replay.total))
            write_atomically(self.folder / "replay" / name, data)
            segments.append({"name": name, "start": start, "end": replay.total, **_entry(data)})
        return segments

    def _drop_unused_segments(self) -> None:
        needed = {s["name"] for path in self.steps() for s in _segments_of(path)}
        for path in (self.folder / "replay").glob("*"):
            if path.name not in needed:
                path.unlink()

    # -- reading ---------------------------------------------------------------------------------------------------

    def steps(self) -> list[Path]:
        """Full checkpoints, newest first."""
        return sorted(self.folder.glob("step_*"), reverse=True)

    def latest(self) -> Checkpoint:
        """The newest checkpoint that is whole, replay included; damaged ones are passed over with a warning."""
        for path in self.steps():
            try:
                found = read_folder(path)
                for _ in self._read_segments(found):
                    pass
            except DamagedCheckpoint as error:
                log.warning("Checkpoint %s is damaged and passed over: %s.", path.name, error)
                continue
            return found
        if not self.steps():
            raise UserError(f"{self.folder} holds no checkpoint; give a run that has saved one.")
        raise UserError(
            f"{self.folder}: none of the checkpoints is whole; restore one from a backup, or start again elsewhere."
        )

    def _read_segments(self, checkpoint: Checkpoint) -> Iterator[tuple[dict[str, Any], bytes]]:
        for segment in checkpoint.segments:
            yield segment, _verified(self.folder / "replay" / Path(segment["name"]).name, segment)

    def load_replay(self, checkpoint: Checkpoint, replay: Replay) -> None:
        """Put the rows back; later checkpoints add to the segments of this one."""
        self._segments = list(checkpoint.segments)
        for segment, data in self._read_segments(checkpoint):
            tensors = load_tensors(data)
            beyond = max(0, segment["end"] - segment["start"] - replay.capacity)  # overwritten since
            replay.load_segment(segment["start"] + beyond, {k: v[beyond:] for k, v in tensors.items()})

    def rewrite_replay(self) -> None:
        """Rows have changed since they were written: the next checkpoint writes all of them."""
        self._segments = []

    def forget_after(self, checkpoint: Checkpoint) -> None:
        """Remove what a run that died later left behind: newer checkpoints that were damaged, unfinished writes."""
        for path in self.steps():
            if checkpoint.path is not None and path.name > checkpoint.path.name:
                shutil.rmtree(path)
        for path in self.folder.glob(".*.writing"):
            path.unlink() if path.is_symlink() or path.is_file() else shutil.rmtree(path)
        for path in (self.folder / "replay").glob(".*.writing"):
            path.unlink()
        self._drop_unused_segments()


def _segments_of(path: Path) -> list[dict[str, Any]]:
    try:
        return json.loads((path / "manifest.json").read_text())["segments"]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def find_checkpoint(path: Path) -> Path:
    """The checkpoint meant by a run folder (its best, else its last) or by a checkpoint folder."""
    if (path / "manifest.json").is_file():
        return path.resolve()
    for name in ("best", "last"):
        candidate = path / "checkpoints" / name
        if (candidate / "manifest.json").is_file():
            return candidate.resolve()
    raise UserError(
        f"{path} is neither a run folder with checkpoints nor a checkpoint; "
        "give multirun_outputs/runs/RUN or RUN/checkpoints/best."
    )


def read_replay(run_dir: Path) -> tuple[dict[str, np.ndarray], str]:
    """The transitions in a run's latest checkpoint by field, env after env, each in the order of time; and the env id.

    Actions and rewards are as the learner of that run saw them: scaled and transformed.
    """
    store = CheckpointStore(run_dir / "checkpoints")
    saved = store.latest()
    if not saved.segments:
        raise UserError(f"{run_dir} kept no replay (it was not an off-policy run); give the folder of one that did.")
    num_envs = len(saved.state["journal"]["episodes"])
    total = saved.state["replay"]["total"]
    oldest = saved.segments[0]["start"]
    parts = [load_tensors(data) for _, data in store._read_segments(saved)]
    rows = torch.cat([part["rows"] for part in parts])
    order = np.argsort(np.arange(oldest, total) % num_envs, kind="stable")
    outside = "obs" in parts[0]
    layout = Layout(saved.spec, outside=outside)
    layout = layout if layout.width == rows.shape[1] else Layout(saved.spec, mc_return=True, outside=outside)
    rows = rows[order]
    if outside:
        pair = (torch.cat([p["obs"] for p in parts])[order], torch.cat([p["next_obs"] for p in parts])[order])
        batch = layout.batch(rows, pair)
    else:
        batch = layout.batch(rows)
    truncated = layout.column(rows, "truncated").clone()
    lanes = np.bincount(np.arange(oldest, total) % num_envs, minlength=num_envs)
    for last in np.cumsum(lanes) - 1:  # an episode that was still going on is cut
        truncated[last] = 1.0 - batch.terminated[last]
    found = {name: getattr(batch, name) for name in ("obs", "action", "reward", "next_obs", "terminated")}
    arrays = {name: np.ascontiguousarray(tensor.numpy()) for name, tensor in {**found, "truncated": truncated}.items()}
    return arrays, saved.spec.env_id
