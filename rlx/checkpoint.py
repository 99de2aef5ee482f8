"""Checkpoints: atomic, verified, free of pickle.

A checkpoint is a folder:

    manifest.json         format version; name, size and sha256 of every file; the replay segments; a sha256 of all
                          this; written last
    config.yaml           the composed config, interpolations unresolved
    state.json            counters, random states, callback states, the Spec, versions
    <group>.safetensors   tensors: learner, rng, journal, rollout

The replay is written incrementally: the files `replay/<start>-<end>.safetensors` hold rows of the stream since the
checkpoint before, and manifests refer to these segments by name and hash; those of images are compressed (`.zst`). They
are written and read one by one and none is much larger than `SEGMENT_BYTES`, so that a checkpoint takes little memory
however large the replay is. Everything is written beside its place, fsynced and renamed, so a reader sees the old state
or the new one. `last` and `best` are links that
are swapped the same way. What is read back is data: nothing is imported, unpickled or instantiated because a file asks
for it. It is read from regular files only, of the size that the manifest says, and whatever is wrong with it is a
`DamagedCheckpoint`.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import re
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import zstandard
from omegaconf import DictConfig, OmegaConf
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as dump_tensors
from torch import Tensor

from rlx.errors import UserError
from rlx.files import fsync_folder, open_regular, read_bounded, remove, write_atomically
from rlx.restoring import check_saved_spec
from rlx.run_folder import refuse_link, refuse_stray
from rlx.system import available_memory
from rlx.types import Box, Goal, Spec

if TYPE_CHECKING:
    from rlx.data.replay import Replay

log = logging.getLogger("rlx")

# 1 had no sha256 of the manifest itself; later formats keep `seal`, which tells damage from a new format.
# 2 kept other things in the same files under other names, see `_upgrade` and `Learner.load_tensors`.
FORMAT = 3
PACKED, LEVEL = ".zst", 3  # of replay segments that are compressed by Zstandard
SEGMENT_BYTES = 64 * 2**20  # of the rows in a segment, before compression
MOST_FILES = 64  # of a checkpoint, besides the segments; there are about six
EXPORT = "policy.json"  # what the folder of an exported policy has in the place of a manifest, see `rlx.exports`

# What we write, and hence what we read and may delete. Other names in these folders are somebody else's.
STEP, BEST = re.compile(r"step_[0-9]{12,20}"), re.compile(r"best_[0-9]{12,20}")
FILE = re.compile(r"config\.yaml|state\.json|[a-z_]{1,64}\.safetensors")
SEGMENT = re.compile(r"([0-9]{12,20})-([0-9]{12,20})\.safetensors(\.zst)?")
UNFINISHED = re.compile(rf"\.(last|best|{STEP.pattern}|{BEST.pattern}|{SEGMENT.pattern})\.writing")

# bytes of an element, by the names that safetensors has for the types of torch
SIZES = {"BOOL": 1, "U8": 1, "I8": 1, "U16": 2, "I16": 2, "F16": 2, "BF16": 2, "U32": 4, "I32": 4, "F32": 4, "U64": 8,
         "I64": 8, "F64": 8, "C64": 8}  # fmt: skip

# what reading something malformed can lead to
MALFORMED = (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RuntimeError, AssertionError,
             MemoryError, SafetensorError)  # fmt: skip


class DamagedCheckpoint(Exception):
    """A checkpoint folder that is not what its manifest says."""


@dataclass
class CheckpointData:
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
    ) -> CheckpointData:
        return cls(OmegaConf.to_yaml(cfg, resolve=False), spec, state, tensors)


def entry_of(data: bytes) -> dict[str, Any]:
    """What a manifest says of a file."""
    return {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}


def dump(tensors: dict[str, Tensor]) -> bytes:
    """Tensors as a safetensors file."""
    return dump_tensors({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})


def write_folder(checkpoint: CheckpointData, path: Path) -> None:
    """Write a checkpoint folder; it exists completely or not at all."""
    beside = path.with_name(f".{path.name}.writing")
    remove(beside)
    try:
        _write_files(checkpoint, beside)
    except OSError:
        with suppress(OSError):
            remove(beside)  # half a checkpoint takes room where there may be none
        raise
    remove(path)
    os.replace(beside, path)
    fsync_folder(path.parent)


def _write_files(checkpoint: CheckpointData, beside: Path) -> None:
    beside.mkdir(parents=True)
    state = {**checkpoint.state, "spec": checkpoint.spec._asdict()}
    files = {"config.yaml": checkpoint.config.encode(), "state.json": json.dumps(state).encode()}
    files |= {f"{group}.safetensors": dump(tensors) for group, tensors in checkpoint.tensors.items()}
    manifest = {"format": FORMAT, "files": {name: entry_of(data) for name, data in files.items()}}
    manifest["segments"] = checkpoint.segments
    for name, data in files.items():
        write_atomically(beside / name, data)
    write_atomically(beside / "manifest.json", seal(manifest))


def seal(manifest: dict[str, Any]) -> bytes:
    """A manifest as it is written: the sha256 of all the rest is part of it."""
    rest = {key: value for key, value in manifest.items() if key != "sha256"}
    return json.dumps({**rest, "sha256": entry_of(json.dumps(rest).encode())["sha256"]}, indent=1).encode()


# -- reading: nothing is believed before it is checked ---------------------------------------------------------------


def _read_manifest(path: Path) -> dict[str, Any]:
    """The manifest of a checkpoint folder, or DamagedCheckpoint; UserError if another version of rlx wrote it."""
    try:
        data = read_bounded(path / "manifest.json", follow=False)
        manifest: dict[str, Any] = json.loads(data)
        form = manifest.get("format")
        if "sha256" in manifest and seal(manifest) != data:
            raise DamagedCheckpoint(f"manifest.json is not what was written (format {form!r:.20})")
        if form not in range(1, FORMAT + 1):
            raise UserError(f"{path} has checkpoint format {form!r:.20}; this rlx reads formats 1 to {FORMAT}.")
        if form != 1 and "sha256" not in manifest:
            raise DamagedCheckpoint("manifest.json lacks its sha256")
        _check_names(manifest["files"])
        _check_segments(manifest["segments"])
    except MALFORMED as error:
        raise DamagedCheckpoint(f"manifest.json cannot be read ({one_line(error)})") from error
    return manifest


def _check_names(files: dict[str, Any]) -> None:
    if not {"config.yaml", "state.json", "learner.safetensors"} <= files.keys() or len(files) > MOST_FILES:
        raise DamagedCheckpoint("manifest.json does not list the files of a checkpoint")
    for name, entry in files.items():
        _check_entry(name, entry, FILE)


def _check_entry(name: str, entry: dict[str, Any], pattern: re.Pattern[str]) -> None:
    size, digest = entry["size"], entry["sha256"]
    if not pattern.fullmatch(name) or type(size) is not int or size < 0 or not re.fullmatch("[0-9a-f]{64}", digest):
        raise DamagedCheckpoint(f"manifest.json describes {name!r:.80}, which rlx does not write")


def _check_segments(segments: list[dict[str, Any]]) -> None:
    """Each has its rows in its name, and begins where the one before ends."""
    at = None
    for segment in segments:
        name, start, end = segment["name"], segment["start"], segment["end"]
        _check_entry(name, segment, SEGMENT)
        packed = name.endswith(PACKED)
        if name != _segment_name(start, end, packed) or start >= end or at not in (None, start):
            raise DamagedCheckpoint(f"the replay segment {name} does not fit the others")
        unpacked = segment.get("unpacked", 0)
        if packed and (type(unpacked) is not int or unpacked < 1):
            raise DamagedCheckpoint(f"the replay segment {name} does not say how large it is")
        at = end


def _step_name(steps: int) -> str:
    return f"step_{steps:012d}"


def _segment_name(start: int, end: int, packed: bool = False) -> str:
    return f"{start:012d}-{end:012d}.safetensors{PACKED if packed else ''}"


def verified(path: Path, entry: dict[str, Any]) -> bytes:
    """The bytes of a regular file, of which the size is compared before it is read and the hash afterwards."""
    try:
        with open(open_regular(path, follow=False), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size != entry["size"]:
                raise DamagedCheckpoint(f"{path.name} has {size:,} bytes, and was written with {entry['size']:,}")
            data = file.read(size)
    except OSError as error:
        raise DamagedCheckpoint(f"{path.name} cannot be read ({one_line(error)})") from error
    if entry_of(data) != {"sha256": entry["sha256"], "size": entry["size"]}:
        raise DamagedCheckpoint(f"{path.name} is not what was written")
    return data


def _unpacked(segment: dict[str, Any], data: bytes, spec: Spec) -> bytes:
    """The bytes of a segment; a compressed one has to say in two places how many they are, and no more than fit."""
    if not segment["name"].endswith(PACKED):
        return data
    name, size = segment["name"], segment["unpacked"]
    row = 8 * (spec.obs_dim + spec.action_dim + 16)  # bytes, at most: two observations of floats, or three of uint8
    if size > 2**20 + row * (segment["end"] - segment["start"]):
        raise DamagedCheckpoint(f"{name} says that it is {size:,} bytes, which its rows cannot be")
    free = available_memory()
    if free is not None and 2 * size > free:
        raise UserError(f"{name} takes {2 * size / 2**30:.1f} GiB to read and {free / 2**30:.1f} GiB are free.")
    try:
        if zstandard.get_frame_parameters(data).content_size != size:
            raise DamagedCheckpoint(f"{name} is not of the size that was written")
        found = zstandard.ZstdDecompressor().decompress(data, max_output_size=size, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise DamagedCheckpoint(f"{name} cannot be unpacked ({one_line(error)})") from error
    return bytes(found)


def one_line(error: BaseException) -> str:
    """An error on one line."""
    text = (error.strerror or str(error)) if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
    return " ".join(text.split())[:200]


def check_room(path: Path, sizes: dict[str, int]) -> None:
    """Compare sizes before anything is read: with what is on disk, and with the memory that there is."""
    for name, size in sizes.items():
        try:
            info = os.lstat(path / name)
        except OSError as error:
            raise DamagedCheckpoint(f"{name} cannot be read ({one_line(error)})") from error
        if not stat.S_ISREG(info.st_mode) or info.st_size != size:
            raise DamagedCheckpoint(f"{name} is not a file of the size that was written")
    need, free = 2 * sum(sizes.values()), available_memory()  # as bytes, and as tensors
    if free is not None and need > free:
        raise UserError(f"{path} takes {need / 2**30:.1f} GiB to read and {free / 2**30:.1f} GiB are free.")


def _shapes(data: bytes) -> dict[str, tuple[int, ...]]:
    """The shapes of the tensors in a safetensors file by name; ValueError and the like if it is not well-formed."""
    size = int.from_bytes(data[:8], "little")
    begin = 8 + size
    if len(data) < begin:
        raise ValueError("the header is longer than the file")
    header = json.loads(data[8:begin], object_pairs_hook=_without_duplicates)
    header.pop("__metadata__", None)
    shapes, spans = {}, []
    for name, info in header.items():
        shape, (first, last) = info["shape"], info["data_offsets"]
        if len(shape) > 16 or any(type(n) is not int or not 0 <= n < 2**40 for n in (*shape, first, last)):
            raise ValueError(f"{name!r:.80} has no possible shape")
        if math.prod(shape) * SIZES[info["dtype"]] != last - first or math.prod(max(n, 1) for n in shape) >= 2**48:
            raise ValueError(f"{name!r:.80} is not as large as its shape")
        shapes[name] = tuple(shape)
        spans.append((first, last))
    at = 0
    for first, last in sorted(spans):
        if first != at:
            raise ValueError("tensors overlap, or leave gaps")
        at = last
    if begin + at != len(data):
        raise ValueError("the tensors do not fill the file")
    return shapes


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) != len(pairs):
        raise ValueError("a name occurs twice")
    return entries


def read_tensors(data: bytes) -> dict[str, Tensor]:
    """The tensors of a safetensors file; ValueError and the like if it is not well-formed."""
    _shapes(data)
    return load_tensors(data)


def read_folder(path: Path) -> CheckpointData:
    """Read and verify a checkpoint folder; DamagedCheckpoint if anything is missing, changed or malformed."""
    manifest = _read_manifest(path)
    entries = manifest["files"]
    check_room(path, {name: entry["size"] for name, entry in entries.items()})
    files = {name: verified(path / name, entry) for name, entry in entries.items()}
    at = "state.json"
    try:
        state = json.loads(files[at])
        spec = spec_from(state.pop("spec"))
        if manifest["format"] < FORMAT:
            _upgrade(state)
        _check_state(state, manifest["segments"])
        tensors = {}
        for at in (name for name in files if name.endswith(".safetensors")):
            tensors[Path(at).stem] = read_tensors(files[at])
        at = "config.yaml"
        config = files[at].decode()
    except MALFORMED as error:
        raise DamagedCheckpoint(f"{at} holds what rlx does not write ({one_line(error)})") from error
    return CheckpointData(config, spec, state, tensors, manifest["segments"], path)


def spec_from(raw: dict[str, Any]) -> Spec:
    """A Spec as it was written; ValueError and the like unless an env could have it."""
    goal, boxes = raw.pop("goal"), raw.pop("boxes", ())  # older checkpoints have no boxes
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in raw.items()}
    spec = Spec(**values)._replace(
        goal=Goal(goal[0], tuple(goal[1]), tuple(goal[2])) if goal else None,
        boxes=tuple((name, Box(tuple(shape), dtype)) for name, (shape, dtype) in boxes),
    )
    check_saved_spec(spec)
    return spec


def _upgrade(state: dict[str, Any]) -> None:
    """The state of a checkpoint of format 1 or 2 as it is kept today."""
    journal, rng = state.get("journal"), state.get("rng")
    if journal and rng and "actions" in rng:  # the generator of random actions, which is the collector's
        journal["rng"] = rng.pop("actions")
    reason = (state.get("trainer") or {}).get("stop_reason", "")
    for kept in (state.get("callbacks") or {}).values():
        if "bad_rows" in kept:  # early stopping did not say whether it was the one
            kept["stopped"] = reason if reason.startswith("early_stopping") else ""


def _check_state(state: dict[str, Any], segments: list[dict[str, Any]]) -> None:
    """What is used before a run is built, and what has to agree with the segments."""
    counters, threads = state["learner"], state.get("threads", 1)
    if "updates" not in counters or any(type(n) is not int for n in counters.values()):
        raise ValueError("the learner's counters are not integers")
    if type(threads) is not int or not 1 <= threads < 2**16:
        raise ValueError("the number of threads is not valid")
    if type(state.get("native", False)) is not bool:
        raise ValueError("native is neither true nor false")
    if type((state.get("trainer") or {}).get("steps", 0)) is not int:
        raise ValueError("the number of steps is not an integer")
    total = (state.get("replay") or {}).get("total")
    if total is not None and total != (segments[-1]["end"] if segments else 0):
        raise ValueError(f"the replay has {total} rows, and the segments end elsewhere")


class CheckpointStore:
    """The `checkpoints` folder of a run."""

    def __init__(self, folder: Path, keep: int = 2, packed: bool = False):
        self.folder = folder
        self.packed = packed  # are segments of the replay compressed
        self.keep = max(1, keep)
        self._segments: list[dict[str, Any]] = []  # of the replay, as of the latest checkpoint

    # -- writing ---------------------------------------------------------------------------------------------------

    def save_step(self, checkpoint: CheckpointData, steps: int, replay: Replay | None) -> Path:
        """A full checkpoint; `last` points to it afterwards and older ones beyond `keep` go."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if replay is not None:
            self._segments = checkpoint.segments = self._save_replay(replay)
        path = self.folder / _step_name(steps)
        write_folder(checkpoint, path)
        self._point("last", path)
        for old in self.steps()[self.keep :]:
            remove(old)
        self._drop_unused_segments()
        return path

    def save_best(self, checkpoint: CheckpointData, steps: int) -> Path:
        """A policy-only checkpoint; `best` points to it afterwards."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"best_{steps:012d}"
        write_folder(checkpoint, path)
        self._point("best", path)
        for old in _matching(self.folder, BEST):
            if old.name != path.name:
                remove(old)
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
        oldest = replay.oldest
        start = max(self._segments[-1]["end"] if self._segments else 0, oldest)
        written: list[dict[str, Any]] = []
        needed = self._needed()
        try:
            while start < replay.total:
                written.append(self._save_segment(replay, start, needed))
                start = written[-1]["end"]
        except OSError:
            with suppress(OSError):
                for segment in written:  # they take room where there may be none
                    if segment["name"] not in needed:
                        remove(self.folder / "replay" / segment["name"])
            raise
        return [s for s in self._segments if s["end"] > oldest] + written

    def _save_segment(self, replay: Replay, start: int, needed: dict[str, str]) -> dict[str, Any]:
        """Write rows from `start` on, as many as a segment holds; no segment that is needed changes."""
        folder = self.folder / "replay"
        folder.mkdir(exist_ok=True)
        end = min(replay.total, start + max(1, SEGMENT_BYTES // replay.row_bytes))
        segment, data = self._packed(replay, start, end)
        while end - start > 1 and needed.get(segment["name"], segment["sha256"]) != segment["sha256"]:
            end -= 1  # that one is of an older checkpoint, and rows have changed since
            segment, data = self._packed(replay, start, end)
        write_atomically(folder / segment["name"], data)
        return segment

    def _packed(self, replay: Replay, start: int, end: int) -> tuple[dict[str, Any], bytes]:
        """A segment as manifests refer to it, and its bytes."""
        data, unpacked = dump(replay.segment(start, end)), {}
        if self.packed:
            unpacked["unpacked"] = len(data)
            data = zstandard.ZstdCompressor(LEVEL).compress(data)
        name = _segment_name(start, end, self.packed)
        return {"name": name, "start": start, "end": end, **entry_of(data), **unpacked}, data

    def _needed(self) -> dict[str, str]:
        """The segments that the checkpoints here refer to, and their hashes."""
        return {s["name"]: s["sha256"] for path in self.steps() for s in _segments_of(path)}

    def _drop_unused_segments(self) -> None:
        needed = self._needed()
        for path in _matching(self.folder / "replay", SEGMENT):
            if path.name not in needed:
                remove(path)

    # -- reading ---------------------------------------------------------------------------------------------------

    def steps(self) -> list[Path]:
        """Full checkpoints, newest first."""
        return sorted(_matching(self.folder, STEP), reverse=True)

    def latest(self) -> CheckpointData:
        """The newest checkpoint that is whole, replay included; damaged ones are skipped with a warning."""
        reasons = []
        for path in self.steps():
            try:
                if path.is_symlink():
                    raise DamagedCheckpoint("it is a link")
                checkpoint = read_folder(path)
                steps = (checkpoint.state.get("trainer") or {}).get("steps")
                if steps is not None and path.name != _step_name(steps):
                    raise DamagedCheckpoint(f"it is the checkpoint of step {steps!r:.20}")
                for segment, data in self._read_segments(checkpoint):
                    _check_rows(segment, _unpacked(segment, data, checkpoint.spec))
            except DamagedCheckpoint as error:
                log.warning("Checkpoint %s is damaged and was skipped: %s.", path.name, error)
                reasons.append(f"{path.name}: {error}")
                continue
            return checkpoint
        if not reasons:
            raise UserError(f"{self.folder} holds no checkpoint; give a run that has saved one.")
        raise UserError(
            f"{self.folder}: none of the checkpoints is whole ({'; '.join(reasons)}); restore one from a backup, or "
            "start again elsewhere."
        )

    def _read_segments(self, checkpoint: CheckpointData) -> Iterator[tuple[dict[str, Any], bytes]]:
        """The segments of a checkpoint one by one, as they are in their files."""
        refuse_link(self.folder / "replay")
        for segment in checkpoint.segments:
            check_room(self.folder / "replay", {segment["name"]: segment["size"]})
            yield segment, verified(self.folder / "replay" / segment["name"], segment)

    def load_replay(self, checkpoint: CheckpointData, replay: Replay) -> None:
        """Put the rows back; later checkpoints add to the segments of this one."""
        self._segments = list(checkpoint.segments)
        if self._segments:
            start, end = self._segments[0]["start"], self._segments[-1]["end"]
            if start > max(0, end - replay.capacity):
                raise DamagedCheckpoint(f"the replay segments begin at row {start}, and earlier rows are needed")
        for start, tensors in self.replay_segments(checkpoint):
            replay.load_segment(start, tensors)

    def replay_segments(self, checkpoint: CheckpointData) -> Iterator[tuple[int, dict[str, Tensor]]]:
        """The rows of the replay, verified: the first of each segment, and its tensors."""
        for segment, data in self._read_segments(checkpoint):
            yield segment["start"], read_tensors(_unpacked(segment, data, checkpoint.spec))

    def rewrite_replay(self) -> None:
        """Rows have changed since they were written: the next checkpoint writes all of them."""
        self._segments = []

    def copy_latest(self, folder: Path) -> None:
        """Make `folder` the checkpoints of another run that stands where this one does: the newest whole checkpoint
        with its replay, and the best policy. It replaces what was there when it is complete.
        """
        saved = self.latest()
        assert saved.path is not None
        beside, before = (folder.with_name(f".{folder.name}.{what}") for what in ("writing", "before"))
        for path in (beside, before):
            remove(path)
        copy = CheckpointStore(beside)
        (beside / "replay").mkdir(parents=True)
        for segment, data in self._read_segments(saved):
            write_atomically(beside / "replay" / segment["name"], data)
        best = self.folder / "best"
        refuse_stray(best)
        for name, source in (("last", saved.path), ("best", best.resolve() if best.exists() else None)):
            if source is not None:
                _copy_folder(source, beside / source.name)
                copy._point(name, beside / source.name)
        if folder.exists():
            os.replace(folder, before)
        os.replace(beside, folder)
        fsync_folder(folder.parent)
        remove(before)

    def forget_after(self, checkpoint: CheckpointData) -> None:
        """Remove what a run that died later left behind: newer checkpoints that were damaged, unfinished writes."""
        for path in self.steps():
            if checkpoint.path is not None and path.name > checkpoint.path.name:
                remove(path)
        for folder in (self.folder, self.folder / "replay"):
            for path in _matching(folder, UNFINISHED):
                remove(path)
        self._drop_unused_segments()


def _copy_folder(path: Path, to: Path) -> None:
    """A checkpoint folder, file by file as its manifest says."""
    manifest = _read_manifest(path)
    to.mkdir()
    for name, entry in manifest["files"].items():
        write_atomically(to / name, verified(path / name, entry))
    write_atomically(to / "manifest.json", read_bounded(path / "manifest.json", follow=False))


def _matching(folder: Path, pattern: re.Pattern[str]) -> list[Path]:
    return [path for path in folder.glob("*") if pattern.fullmatch(path.name)]


def _check_rows(segment: dict[str, Any], data: bytes) -> None:
    """DamagedCheckpoint unless a segment has as many rows as it says; the replay knows what else belongs to them."""
    try:
        shapes = _shapes(data)
        rows = shapes["rows"][0] if "rows" in shapes else None
    except MALFORMED as error:
        raise DamagedCheckpoint(f"{segment['name']} holds what rlx does not write ({one_line(error)})") from error
    if rows != segment["end"] - segment["start"]:
        raise DamagedCheckpoint(f"{segment['name']} does not hold the rows that it should")


def _segments_of(path: Path) -> list[dict[str, Any]]:
    try:
        segments: list[dict[str, Any]] = _read_manifest(path)["segments"]
        return segments
    except (DamagedCheckpoint, UserError):
        return []


def find_checkpoint(path: Path) -> Path:
    """The checkpoint meant by a run folder (its best, else its last), by a checkpoint folder or by an export."""
    if path.name in ("best", "last"):
        refuse_stray(path)
    if (path / "manifest.json").is_file() or (path / EXPORT).is_file():
        return path.resolve()
    for name in ("best", "last"):
        candidate = path / "checkpoints" / name
        if (candidate / "manifest.json").is_file():
            refuse_link(candidate.parent)
            refuse_stray(candidate)
            return candidate.resolve()
    raise UserError(
        f"{path} is neither a run folder with checkpoints nor a checkpoint; "
        "give multirun_outputs/runs/RUN or RUN/checkpoints/best."
    )
