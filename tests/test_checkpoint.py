"""Checkpoint folders: atomic, verified, incremental, and nothing but data."""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import zstandard
from omegaconf import OmegaConf

import rlx.checkpoint as module
from rlx.checkpoint import (
    CheckpointData,
    CheckpointStore,
    DamagedCheckpoint,
    find_checkpoint,
    read_folder,
    seal,
    write_atomically,
    write_folder,
)
from rlx.data.replay import Replay, ReplayConfig
from rlx.data.sources import read_replay
from rlx.errors import UserError
from rlx.types import Goal, Spec

SPEC = Spec("x", (2,), "float32", "box", (1,), (-1.0,), (1.0,), episode_limit=5, goal=Goal(1, (0, 1), (1, 2)))


def checkpoint(value: float = 1.0) -> CheckpointData:
    tensors = {"learner": {"w": torch.full((3,), value), "n": torch.tensor(2)}, "rng": {"torch": torch.get_rng_state()}}
    cfg = OmegaConf.create({"a": "${oc.env:NO_SUCH_VARIABLE}", "b": 1})
    return CheckpointData.of(cfg, SPEC, {"learner": {"updates": 3}, "threads": 1, "x": [0.1, float("inf")]}, tensors)


def grow(replay: Replay, steps: int) -> None:
    for _ in range(steps):
        t = float(replay.total)
        replay.add(
            np.full((1, 2), t), np.zeros((1, 1)), np.full(1, t), np.full((1, 2), t + 1), np.zeros(1), np.zeros(1)
        )


def empty(capacity: int = 6) -> Replay:
    return Replay(ReplayConfig(capacity=capacity), SPEC, 1, 0.9, seed=0)


def test_what_is_written_is_what_is_read(tmp_path: Path) -> None:
    saved = checkpoint()
    write_folder(saved, tmp_path / "c")
    found = read_folder(tmp_path / "c")
    assert found.spec == SPEC
    assert found.state == saved.state
    assert found.config == saved.config
    assert "${oc.env:NO_SUCH_VARIABLE}" in found.config
    for group, tensors in saved.tensors.items():
        for name, tensor in tensors.items():
            assert torch.equal(found.tensors[group][name], tensor)
            assert found.tensors[group][name].dtype == tensor.dtype


def test_there_is_no_pickle_in_it(tmp_path: Path) -> None:
    write_folder(checkpoint(), tmp_path / "c")
    assert {p.suffix for p in (tmp_path / "c").iterdir()} == {".json", ".yaml", ".safetensors"}


def test_the_manifest_names_every_file(tmp_path: Path) -> None:
    write_folder(checkpoint(), tmp_path / "c")
    manifest = json.loads((tmp_path / "c" / "manifest.json").read_text())
    assert set(manifest["files"]) == {p.name for p in (tmp_path / "c").iterdir()} - {"manifest.json"}
    for name, entry in manifest["files"].items():
        assert entry["size"] == (tmp_path / "c" / name).stat().st_size


def test_every_byte_is_verified(tmp_path: Path) -> None:
    """Flip one bit in each file in turn, manifest included."""
    write_folder(checkpoint(), tmp_path / "c")
    for path in sorted((tmp_path / "c").iterdir()):
        data = path.read_bytes()
        for at in {0, len(data) // 2, len(data) - 1}:
            path.write_bytes(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])
            with pytest.raises((DamagedCheckpoint, UserError)):
                read_folder(tmp_path / "c")
        path.write_bytes(data)
    read_folder(tmp_path / "c")


def test_a_manifest_cannot_point_elsewhere(tmp_path: Path) -> None:
    """Names in it are names of files beside it, not paths."""
    write_folder(checkpoint(), tmp_path / "c")
    (tmp_path / "secret.json").write_text("{}")
    manifest = json.loads((tmp_path / "c" / "manifest.json").read_text())
    manifest["files"]["../secret.json"] = module.entry_of(b"{}")
    (tmp_path / "c" / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(DamagedCheckpoint):
        read_folder(tmp_path / "c")


@pytest.mark.parametrize("fails_at", range(1, 12))
def test_a_crash_while_writing_leaves_the_old_one(
    fails_at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Die at each rename in turn; what can be read is the old checkpoint or the new one, never a mixture."""
    store, replay = CheckpointStore(tmp_path), empty()
    grow(replay, 2)
    store.save_step(checkpoint(1.0), 2, replay)
    grow(replay, 2)
    calls, rename = 0, os.replace

    def dying(a: Path, b: Path) -> None:
        nonlocal calls
        calls += 1
        if calls == fails_at:
            raise KeyboardInterrupt
        rename(a, b)

    monkeypatch.setattr(module.os, "replace", dying)
    try:
        store.save_step(checkpoint(2.0), 4, replay)
        assert fails_at > calls
    except KeyboardInterrupt:
        pass
    monkeypatch.undo()
    after = CheckpointStore(tmp_path)
    found = after.latest()
    value = float(found.tensors["learner"]["w"][0])
    assert value in (1.0, 2.0)
    twin = empty()
    after.load_replay(found, twin)
    assert twin.store.rows[: int(value) * 2, 0].tolist() == list(range(int(value) * 2))
    after.forget_after(found)
    assert not list(tmp_path.rglob("*.writing"))
    grow(twin, 0)
    after.save_step(checkpoint(3.0), 9, replay)
    assert after.latest().tensors["learner"]["w"][0] == 3.0


def test_only_the_newest_are_kept_and_links_follow(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=2)
    for steps in (10, 200, 3000):
        store.save_step(checkpoint(steps), steps, None)
    assert [p.name for p in store.steps()] == ["step_000000003000", "step_000000000200"]
    assert (tmp_path / "last").resolve().name == "step_000000003000"
    for steps in (5, 7):
        store.save_best(checkpoint(steps), steps)
    assert [p.name for p in tmp_path.glob("best_*")] == ["best_000000000007"]
    assert (tmp_path / "best").resolve().name == "best_000000000007"


def test_at_least_one_is_kept(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=0)
    store.save_step(checkpoint(), 1, None)
    assert store.latest()


def test_the_replay_is_written_incrementally(tmp_path: Path) -> None:
    store, replay = CheckpointStore(tmp_path, keep=2), empty(capacity=6)
    names = []
    for steps in (2, 3, 4, 0, 5):
        grow(replay, steps)
        store.save_step(checkpoint(replay.total), replay.total + len(names) * 100, replay)
        names.append(sorted(p.name[:25] for p in (tmp_path / "replay").iterdir()))
        twin = empty(capacity=6)
        store.load_replay(store.latest(), twin)
        np.testing.assert_array_equal(twin.store.rows, replay.store.rows)
    assert names[0] == ["000000000000-000000000002"]
    assert names[1] == ["000000000000-000000000002", "000000000002-000000000005"]
    assert names[2] == ["000000000000-000000000002", "000000000002-000000000005", "000000000005-000000000009"]
    assert names[3] == ["000000000002-000000000005", "000000000005-000000000009"], "what nobody needs goes"


def test_all_rows_are_written_anew_when_old_ones_have_changed(tmp_path: Path) -> None:
    store, replay = CheckpointStore(tmp_path), empty()
    grow(replay, 3)
    store.save_step(checkpoint(), 3, replay)
    replay.end_episodes([0])
    store.rewrite_replay()
    grow(replay, 2)
    store.save_step(checkpoint(), 5, replay)
    twin = empty()
    store.load_replay(store.latest(), twin)
    np.testing.assert_array_equal(twin.store.rows, replay.store.rows)


def test_a_damaged_one_is_passed_over_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = CheckpointStore(tmp_path, keep=3)
    for steps in (1, 2, 3):
        store.save_step(checkpoint(steps), steps, None)
    os.truncate(tmp_path / "step_000000000003" / "learner.safetensors", 5)
    (tmp_path / "step_000000000002" / "manifest.json").unlink()
    found = store.latest()
    assert found.path == tmp_path / "step_000000000001"
    assert [r.getMessage().split()[1] for r in caplog.records] == ["step_000000000003", "step_000000000002"]
    store.forget_after(found)
    assert [p.name for p in store.steps()] == ["step_000000000001"]


def test_none_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no checkpoint"):
        CheckpointStore(tmp_path).latest()
    CheckpointStore(tmp_path).save_step(checkpoint(), 1, None)
    (tmp_path / "last" / "manifest.json").unlink()
    with pytest.raises(UserError, match="none of the checkpoints"):
        CheckpointStore(tmp_path).latest()


def test_atomic_writes_replace(tmp_path: Path) -> None:
    write_atomically(tmp_path / "f", b"old")
    write_atomically(tmp_path / "f", b"new")
    assert (tmp_path / "f").read_bytes() == b"new"
    assert [p.name for p in tmp_path.iterdir()] == ["f"]


def test_finding_a_checkpoint(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "checkpoints")
    step = store.save_step(checkpoint(), 1, None)
    assert find_checkpoint(tmp_path) == step.resolve()
    best = store.save_best(checkpoint(), 2)
    assert find_checkpoint(tmp_path) == best.resolve()
    assert find_checkpoint(tmp_path / "checkpoints" / "last") == step.resolve()
    with pytest.raises(UserError, match="neither"):
        find_checkpoint(tmp_path / "nowhere")


# -- what others may have written ------------------------------------------------------------------------------------


def change_manifest(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """As somebody would who knows how manifests are made."""
    manifest = json.loads((folder / "manifest.json").read_bytes())
    change(manifest)
    (folder / "manifest.json").write_bytes(seal(manifest))


def put_file(folder: Path, name: str, data: bytes) -> None:
    """A file and what the manifest says of it."""
    (folder / name).write_bytes(data)
    change_manifest(folder, lambda m: m["files"].update({name: module.entry_of(data)}))


def put_state(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    state = json.loads((folder / "state.json").read_bytes())
    change(state)
    put_file(folder, "state.json", json.dumps(state).encode())


def safetensors(header: dict[str, Any] | str | bytes, data: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else (header if isinstance(header, str) else json.dumps(header)).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def tensor(shape: list[Any], start: int, end: int, dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


TENSORS = {
    "a_header_longer_than_the_file": safetensors("{}", length=2**63),
    "a_header_of_a_hundred_megabytes": safetensors("{}", length=100_000_000),
    "nothing": b"",
    "three_bytes": b"abc",
    "no_json": safetensors("{"),
    "no_text": safetensors(b"\xff\xfe"),
    "a_list": safetensors("[]"),
    "deep_json": safetensors('{"a": ' * 50_000 + "1" + "}" * 50_000),
    "an_unknown_type": safetensors({"w": tensor([1], 0, 4, "F33")}, bytes(4)),
    "a_huge_shape": safetensors({"w": tensor([2**40, 2**40], 0, 4)}, bytes(4)),
    "a_huge_empty_shape": safetensors({"w": tensor([0, 2**62], 0, 0)}),
    "a_negative_shape": safetensors({"w": tensor([-1, -1], 0, 4)}, bytes(4)),
    "a_shape_of_words": safetensors({"w": tensor(["x"], 0, 4)}, bytes(4)),
    "a_shape_that_does_not_fit": safetensors({"w": tensor([2], 0, 4)}, bytes(4)),
    "overlaps": safetensors({"v": tensor([2], 0, 8), "w": tensor([2], 4, 12)}, bytes(12)),
    "gaps": safetensors({"v": tensor([1], 0, 4), "w": tensor([1], 8, 12)}, bytes(12)),
    "offsets_beyond_the_end": safetensors({"w": tensor([2], 0, 8)}, bytes(4)),
    "bytes_that_nobody_has": safetensors({"w": tensor([1], 0, 4)}, bytes(8)),
    "the_same_name_twice": safetensors('{"w": %s, "w": %s}' % ((json.dumps(tensor([1], 0, 4)),) * 2), bytes(4)),
    "no_offsets": safetensors({"w": {"dtype": "F32", "shape": [1]}}, bytes(4)),
}
STATES = {
    "no_spec": lambda s: s.pop("spec"),
    "a_spec_of_words": lambda s: s["spec"].update(obs_shape=["x"]),
    "an_env_of_two_lines": lambda s: s["spec"].update(env_id="x\n\x1b[31my"),
    "a_huge_spec": lambda s: s["spec"].update(obs_shape=[2**62, 2**62]),
    "an_unknown_kind_of_action": lambda s: s["spec"].update(action_kind="dance"),
    "a_spec_too_many": lambda s: s["spec"].update(more=1),
    "no_counters": lambda s: s.pop("learner"),
    "counters_of_words": lambda s: s["learner"].update(updates="three"),
    "threads_of_words": lambda s: s.update(threads="many"),
    "a_million_threads": lambda s: s.update(threads=10**6),
    "another_total": lambda s: s.update(replay={"total": 7}),
    "steps_of_words": lambda s: s.update(trainer={"steps": "x"}),
}
BYTES = {
    "deep": b"[" * 1_000_000,
    "not_text": b"\xff\xfe",
    "huge_numbers": b'{"spec": ' + b"9" * 100_000 + b"}",
    "a_list": b"[]",
    "nothing": b"",
}
MANIFESTS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a_million_files": lambda m: m["files"].update({f"f{i}.safetensors": module.entry_of(b"") for i in range(100_000)}),
    "a_file_above": lambda m: m["files"].update({"../x.safetensors": module.entry_of(b"")}),
    "an_absolute_path": lambda m: m["files"].update({"/etc/passwd": module.entry_of(b"")}),
    "a_file_below": lambda m: m["files"].update({"a/b.safetensors": module.entry_of(b"")}),
    "a_nul": lambda m: m["files"].update({"a\0.safetensors": module.entry_of(b"")}),
    "a_surrogate": lambda m: m["files"].update({"\ud800.safetensors": module.entry_of(b"")}),
    "a_name_of_a_megabyte": lambda m: m["files"].update({"a" * 2**20 + ".safetensors": module.entry_of(b"")}),
    "no_learner": lambda m: m["files"].pop("learner.safetensors"),
    "no_files": lambda m: m.pop("files"),
    "files_as_a_list": lambda m: m.update(files=[]),
    "no_segments": lambda m: m.pop("segments"),
    "segments_as_a_number": lambda m: m.update(segments=3),
    "a_negative_size": lambda m: m["files"]["state.json"].update(size=-1),
    "a_size_of_words": lambda m: m["files"]["state.json"].update(size="x"),
    "a_huge_size": lambda m: m["files"]["state.json"].update(size=2**70),
    "no_hash": lambda m: m["files"]["state.json"].pop("sha256"),
    "a_number_as_hash": lambda m: m["files"]["state.json"].update(sha256=3),
    "a_segment_above": lambda m: m.update(segments=[{"name": "../x", "start": 0, "end": 1, **module.entry_of(b"")}]),
    "a_segment_of_nothing": lambda m: m.update(segments=[{}]),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_folder(checkpoint(), tmp_path / "c")
    return tmp_path / "c"


def is_damaged(folder: Path) -> None:
    with pytest.raises(DamagedCheckpoint) as caught:
        read_folder(folder)
    assert len(str(caught.value)) < 400
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", TENSORS)
def test_malformed_tensors(kind: str, folder: Path) -> None:
    put_file(folder, "learner.safetensors", TENSORS[kind])
    is_damaged(folder)


@pytest.mark.parametrize("kind", STATES)
def test_malformed_states(kind: str, folder: Path) -> None:
    put_state(folder, STATES[kind])
    is_damaged(folder)


@pytest.mark.parametrize("kind", BYTES)
@pytest.mark.parametrize("name", ["state.json", "manifest.json"])
def test_files_that_are_no_json(name: str, kind: str, folder: Path) -> None:
    if name == "state.json":
        put_file(folder, name, BYTES[kind])
    else:
        (folder / name).write_bytes(BYTES[kind])
    is_damaged(folder)


@pytest.mark.parametrize("kind", MANIFESTS)
def test_malformed_manifests(kind: str, folder: Path) -> None:
    change_manifest(folder, MANIFESTS[kind])
    is_damaged(folder)


def test_a_config_that_is_no_text(folder: Path) -> None:
    put_file(folder, "config.yaml", b"\xff\xfe")
    is_damaged(folder)


@pytest.mark.parametrize("name", ["manifest.json", "state.json", "learner.safetensors", "config.yaml"])
def test_only_regular_files_are_read(name: str, folder: Path, tmp_path: Path) -> None:
    data = (folder / name).read_bytes()
    (tmp_path / "same").write_bytes(data)
    for make in (lambda p: os.mkfifo(p), lambda p: p.symlink_to("/dev/zero"), lambda p: p.mkdir(),
                 lambda p: p.symlink_to(p.name), lambda p: p.symlink_to(tmp_path / "same")):  # fmt: skip
        (folder / name).unlink()
        make(folder / name)
        is_damaged(folder)
        if (folder / name).is_dir() and not (folder / name).is_symlink():
            (folder / name).rmdir()
            (folder / name).touch()


def test_sizes_are_compared_before_reading(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sparse file of a terabyte costs nothing; nor does one that the manifest knows of and memory could not hold."""
    monkeypatch.setattr(module, "verified", None)  # nothing may be read
    with (folder / "learner.safetensors").open("ab") as file:
        file.truncate(2**40)
    is_damaged(folder)
    change_manifest(folder, lambda m: m["files"]["learner.safetensors"].update(size=2**40))
    with pytest.raises(UserError, match=r"takes 2048.0 GiB to read and .* GiB are free"):
        read_folder(folder)


def test_a_manifest_is_bounded(folder: Path) -> None:
    with (folder / "manifest.json").open("ab") as file:
        file.truncate(2**40)
    is_damaged(folder)


# -- the manifest is protected ----------------------------------------------------------------------------------------


def two_checkpoints(folder: Path) -> CheckpointStore:
    store, replay = CheckpointStore(folder), empty(capacity=20)
    for steps in (4, 9):
        grow(replay, steps - replay.total)
        store.save_step(checkpoint(steps), steps, replay)
    return store


def test_every_byte_of_a_manifest_matters(tmp_path: Path) -> None:
    """Change each byte in turn, to a digit, a space and by a bit: the checkpoint before is taken."""
    two_checkpoints(tmp_path)
    path = tmp_path / "step_000000000009" / "manifest.json"
    data = path.read_bytes()
    for at in range(len(data)):
        for byte in {data[at] ^ 1, ord("7"), ord(" ")} - {data[at]}:
            path.write_bytes(data[:at] + bytes([byte]) + data[at + 1 :])
            with pytest.raises(DamagedCheckpoint):
                read_folder(path.parent)
    found = CheckpointStore(tmp_path).latest()
    assert found.tensors["learner"]["w"][0] == 4.0


def segments(*changes: tuple[int, str, Any]) -> Callable[[dict[str, Any]], None]:
    def change(manifest: dict[str, Any]) -> None:
        for at, key, value in changes:
            manifest["segments"][at][key] = value

    return change


SEGMENTS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "another_start": segments((1, "start", 3)),
    "another_end": segments((1, "end", 8)),
    "another_end_and_name": segments((1, "end", 8), (1, "name", "000000000004-000000000008.safetensors")),
    "a_gap": segments((1, "start", 5), (1, "name", "000000000005-000000000009.safetensors")),
    "the_first_one_missing": lambda m: m["segments"].pop(0),
    "the_last_one_missing": lambda m: m["segments"].pop(),
    "backwards": lambda m: m["segments"].reverse(),
    "twice": lambda m: m["segments"].append(m["segments"][0]),
    "words": segments((1, "start", "x")),
}


@pytest.mark.parametrize("form", [1, 2])
@pytest.mark.parametrize("kind", SEGMENTS)
def test_segments_have_to_join_up(kind: str, form: int, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Also in a manifest of format 1, which has no hash, and in one whose hash was made anew."""
    two_checkpoints(tmp_path)
    newest = tmp_path / "step_000000000009"
    put_state(newest, lambda s: s.update(replay={"total": 9}))
    change_manifest(newest, SEGMENTS[kind])
    if form == 1:
        to_format_1(newest)
    for name in ("000000000004-000000000008.safetensors", "000000000005-000000000009.safetensors"):
        (tmp_path / "replay" / name).write_bytes(
            (tmp_path / "replay" / "000000000004-000000000009.safetensors").read_bytes()
        )
    store = CheckpointStore(tmp_path)
    with caplog.at_level(logging.WARNING, "rlx"):
        found = store.latest()
    if kind == "the_first_one_missing":  # what is missing depends on the capacity
        with pytest.raises(DamagedCheckpoint, match="earlier rows are needed"):
            store.load_replay(found, empty(capacity=20))
        store.load_replay(found, empty(capacity=5))
    else:
        assert found.path == tmp_path / "step_000000000004"


def to_format_1(folder: Path) -> None:
    manifest = json.loads((folder / "manifest.json").read_bytes())
    del manifest["sha256"]
    (folder / "manifest.json").write_text(json.dumps({**manifest, "format": 1}, indent=1))


def test_a_checkpoint_of_format_1_is_read(tmp_path: Path) -> None:
    """Written by hand, as rlx wrote it before manifests had a hash of their own."""
    folder = tmp_path / "checkpoints" / "step_000000000002"
    folder.mkdir(parents=True)
    spec = '["x", [2], "float32", "box", [1], [-1.0], [1.0], [], 5, null]'
    names = ("env_id", "obs_shape", "obs_dtype", "action_kind", "action_shape", "action_low", "action_high",
             "action_sizes", "episode_limit", "goal")  # fmt: skip
    state = {
        "learner": {"updates": 3},
        "replay": {"total": 2},
        "journal": {"episodes": [1]},
        "spec": dict(zip(names, json.loads(spec), strict=True)),
    }
    weights = safetensors({"w": tensor([2], 0, 8)}, np.array([1.5, 2.5], np.float32).tobytes())
    width = Replay(ReplayConfig(capacity=4), SPEC, 1, 0.9, seed=0).layout.width
    rows = np.arange(2 * width, dtype=np.float32)
    segment = safetensors({"rows": tensor([2, width], 0, rows.nbytes)}, rows.tobytes())
    (folder.parent / "replay").mkdir()
    (folder.parent / "replay" / "000000000000-000000000002.safetensors").write_bytes(segment)
    files = {"config.yaml": b"a: 1\n", "state.json": json.dumps(state).encode(), "learner.safetensors": weights}
    for name, data in files.items():
        (folder / name).write_bytes(data)
    manifest = {
        "format": 1,
        "files": {n: {"sha256": hashlib.sha256(d).hexdigest(), "size": len(d)} for n, d in files.items()},
        "segments": [{"name": "000000000000-000000000002.safetensors", "start": 0, "end": 2,
                      "sha256": hashlib.sha256(segment).hexdigest(), "size": len(segment)}],
    }  # fmt: skip
    (folder / "manifest.json").write_text(json.dumps(manifest))
    found = CheckpointStore(folder.parent).latest()
    assert found.tensors["learner"]["w"].tolist() == [1.5, 2.5]
    assert found.config == "a: 1\n"
    replay = Replay(ReplayConfig(capacity=4), found.spec, 1, 0.9, seed=0)
    CheckpointStore(folder.parent).load_replay(found, replay)
    assert replay.store.rows[:2].ravel().tolist() == rows.tolist()
    arrays, env_id = read_replay(tmp_path)
    assert (env_id, len(arrays["reward"])) == ("x", 2)


def test_a_replay_without_its_envs_is_said(tmp_path: Path) -> None:
    store = two_checkpoints(tmp_path / "checkpoints")
    assert store.latest().segments
    with pytest.raises(UserError, match="cannot be read"):
        read_replay(tmp_path)


def test_a_checkpoint_under_another_name_is_passed_over(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    for steps in (1, 2):
        saved = checkpoint(steps)
        saved.state["trainer"] = {"steps": steps}
        store.save_step(saved, steps, None)
    (tmp_path / "step_000000000001").rename(tmp_path / "step_000000000099")
    assert store.latest().path == tmp_path / "step_000000000002"


# -- segments of a limited size --------------------------------------------------------------------------------------


def rows_per_segment(rows: int, replay: Replay, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SEGMENT_BYTES", rows * replay.row_bytes)


def test_no_segment_is_larger_than_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, replay = CheckpointStore(tmp_path), empty(capacity=10)
    rows_per_segment(4, replay, monkeypatch)
    spans = []
    for steps in (9, 4):
        grow(replay, steps)
        store.save_step(checkpoint(), replay.total, replay)
        spans.append([(s["start"], s["end"]) for s in store.latest().segments])
        back = empty(capacity=10)
        store.load_replay(store.latest(), back)
        np.testing.assert_array_equal(back.store.rows, replay.store.rows)
    assert spans == [[(0, 4), (4, 8), (8, 9)], [(0, 4), (4, 8), (8, 9), (9, 13)]]
    grow(replay, 2)
    store.save_step(checkpoint(), replay.total, replay)
    assert store.latest().segments[0]["start"] == 4, "a segment goes once all of its rows are overwritten"


@pytest.mark.parametrize("packed", [False, True])
def test_a_checkpoint_takes_the_memory_of_a_few_segments(
    packed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both ways, while the replay is a hundred times as large as a segment."""
    n = 100_000
    store, replay, back = CheckpointStore(tmp_path, packed=packed), empty(capacity=n), empty(capacity=n)
    t = np.arange(n, dtype=np.float32)
    replay.add(np.stack([t, t], 1), t[:, None], t, np.stack([t, t], 1), np.zeros(n), np.zeros(n))
    rows_per_segment(n // 100, replay, monkeypatch)
    monkeypatch.setattr(module, "read_bounded", lambda path, **_: path.read_bytes())  # which asks for its limit at once

    def load() -> None:
        for start, tensors in store.replay_segments(store.latest()):
            back.load_segment(start, tensors)

    for work in (lambda: store.save_step(checkpoint(), n, replay), load):
        tracemalloc.start()
        work()
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 0.15 * replay.nbytes
    np.testing.assert_array_equal(back.store.rows, replay.store.rows)


def test_rows_that_changed_leave_older_checkpoints_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All rows are written anew, in segments that would have the names of those of the checkpoint before."""
    store, replay = CheckpointStore(tmp_path), empty(capacity=20)
    rows_per_segment(4, replay, monkeypatch)
    grow(replay, 10)
    store.save_step(checkpoint(), 10, replay)
    before = replay.store.rows.copy()
    replay.store.rows[:, 0] += 1
    store.rewrite_replay()
    store.save_step(checkpoint(), 11, replay)
    for name, rows in (("step_000000000011", replay.store.rows), ("step_000000000010", before)):
        saved, back = store.latest(), empty(capacity=20)
        assert saved.path == tmp_path / name
        store.load_replay(saved, back)
        np.testing.assert_array_equal(back.store.rows[:10], rows[:10])
        (tmp_path / name).rename(tmp_path / f"no_{name}")


def test_segments_of_a_checkpoint_that_was_not_finished_are_written_over(tmp_path: Path) -> None:
    """Whoever is killed between the two leaves them behind, and has the same segments in the end."""
    folders, replay = (tmp_path / "whole", tmp_path / "killed"), empty(capacity=20)
    grow(replay, 10)
    leftover = folders[1] / "replay" / "000000000000-000000000010.safetensors"
    leftover.parent.mkdir(parents=True)
    leftover.write_bytes(b"of a run that went another way")
    saved = []
    for folder in folders:
        store = CheckpointStore(folder)
        store.save_step(checkpoint(), 10, replay)
        saved.append(store.latest().segments)
    assert saved[0] == saved[1]


def test_a_full_disk_leaves_no_segments_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, replay = CheckpointStore(tmp_path), empty(capacity=20)
    rows_per_segment(4, replay, monkeypatch)
    grow(replay, 3)
    store.save_step(checkpoint(), 3, replay)
    grow(replay, 12)

    def full(path: Path, data: bytes) -> None:
        if path.name.startswith("000000000011-"):
            raise OSError(errno.ENOSPC, "No space left on device")
        write_atomically(path, data)

    monkeypatch.setattr(module, "write_atomically", full)
    with pytest.raises(OSError, match="No space left"):
        store.save_step(checkpoint(), 15, replay)
    assert [path.name for path in (tmp_path / "replay").iterdir()] == ["000000000000-000000000003.safetensors"]
    monkeypatch.undo()
    store.save_step(checkpoint(), 15, replay)
    back = empty(capacity=20)
    store.load_replay(store.latest(), back)
    np.testing.assert_array_equal(back.store.rows, replay.store.rows)


def test_segments_of_lanes_that_differ_in_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One lane goes round its ring while the other stands still: all rows of some segments are overwritten."""
    store, replay, back = CheckpointStore(tmp_path), *(
        Replay(ReplayConfig(capacity=12), SPEC, 2, 0.9, seed=0) for _ in range(2)
    )  # fmt: skip
    rows_per_segment(2, replay, monkeypatch)
    for t in range(30):
        lane = [0] if t % 15 else [1]
        one = np.full((1, 2), float(t))
        replay.add(one, one[:, :1], one[:, 0], one, np.zeros(1), np.zeros(1), lanes=lane)
    store.save_step(checkpoint(), 30, replay)
    saved = store.latest()
    assert any(bool((tensors["position"] < 0).all()) for _, tensors in store.replay_segments(saved))
    store.load_replay(saved, back)
    back.load_state(replay.state())
    for lane in range(2):
        place = replay.store.history(lane)
        np.testing.assert_array_equal(back.store.history(lane), place)
        np.testing.assert_array_equal(back.store.rows[place], replay.store.rows[place])


# -- compressed segments ---------------------------------------------------------------------------------------------


def packed(folder: Path) -> CheckpointStore:
    store, replay = CheckpointStore(folder, packed=True), empty(capacity=200)
    for steps in (100, 150):
        grow(replay, steps - replay.total)
        store.save_step(checkpoint(steps), steps, replay)
    return store


def repacked(folder: Path, data: bytes, **values: Any) -> None:
    """Another file in the place of the newest segment, in a manifest that agrees."""
    name = "000000000100-000000000150.safetensors.zst"
    (folder / "replay" / name).write_bytes(data)
    entry = {**module.entry_of(data), **values}
    change_manifest(folder / "step_000000000150", lambda m: m["segments"][-1].update(entry))


def test_compressed_segments_come_back(tmp_path: Path) -> None:
    store = packed(tmp_path)
    names = sorted(path.name for path in (tmp_path / "replay").iterdir())
    assert names == ["000000000000-000000000100.safetensors.zst", "000000000100-000000000150.safetensors.zst"]
    plain, back = empty(capacity=200), empty(capacity=200)
    grow(plain, 150)
    store.load_replay(store.latest(), back)
    np.testing.assert_array_equal(back.store.rows, plain.store.rows)
    back.store.load_counters({"total": 150})
    grow(back, 10)
    store.packed = False  # which may change from session to session
    store.save_step(checkpoint(160), 160, back)
    assert [s["name"][-4:] for s in store.latest().segments] == [".zst", ".zst", "sors"]
    assert len(list(store.replay_segments(store.latest()))) == 3


def test_a_copy_holds_compressed_segments_as_they_are(tmp_path: Path) -> None:
    store = packed(tmp_path / "source")
    store.copy_latest(tmp_path / "copy")
    copy, back, plain = CheckpointStore(tmp_path / "copy"), empty(capacity=200), empty(capacity=200)
    grow(plain, 150)
    copy.load_replay(copy.latest(), back)
    np.testing.assert_array_equal(back.store.rows, plain.store.rows)


SIZE = 2**40  # of what no segment can be


@pytest.mark.parametrize(
    ("make", "values", "reason"),
    [
        (lambda d: d, {"unpacked": SIZE}, "says that it is 1,099,511,627,776 bytes, which its rows cannot be"),
        (lambda d: d, {"unpacked": 10}, "is not of the size that was written"),
        (lambda d: d, {"unpacked": None}, "does not say how large it is"),
        (lambda d: d, {"unpacked": -1}, "does not say how large it is"),
        (lambda d: d[:-9], {}, "cannot be unpacked"),
        (lambda d: b"no zstd" + d, {}, "cannot be unpacked"),
        (lambda d: zstandard.compress(bytes(2**26)), {}, "is not of the size that was written"),
        (lambda d: zstandard.compress(bytes(2**26)), {"unpacked": 2**26}, "which its rows cannot be"),
        (lambda d: zstandard.ZstdCompressor(write_content_size=False).compress(d), {}, "is not of the size"),
        (lambda d: d + d, {}, "cannot be unpacked"),
        (lambda d: zstandard.compress(b"x" * len(zstandard.decompress(d))), {}, "holds what rlx does not write"),
    ],
)
def test_what_a_segment_unpacks_to_is_bounded(
    make: Callable[[bytes], bytes], values: dict[str, Any], reason: str, tmp_path: Path, caplog: Any
) -> None:
    packed(tmp_path)
    data = (tmp_path / "replay" / "000000000100-000000000150.safetensors.zst").read_bytes()
    repacked(tmp_path, make(data), **values)
    with caplog.at_level(logging.WARNING, "rlx"):
        assert CheckpointStore(tmp_path).latest().path == tmp_path / "step_000000000100"
    assert reason in caplog.text


def test_there_has_to_be_memory_to_unpack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed(tmp_path)
    monkeypatch.setattr(module, "available_memory", lambda: 3000)
    monkeypatch.setattr(module, "check_room", lambda *_: None)
    with pytest.raises(UserError, match=r"takes 0.0 GiB to read and 0.0 GiB are free"):
        CheckpointStore(tmp_path).latest()
