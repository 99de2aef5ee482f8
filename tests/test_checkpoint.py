"""Checkpoint folders: atomic, verified, incremental, and nothing but data."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

import rlx.checkpoint as module
from rlx.checkpoint import (
    Checkpoint,
    CheckpointStore,
    DamagedCheckpoint,
    find_checkpoint,
    read_folder,
    write_atomically,
    write_folder,
)
from rlx.data.replay import Replay, UniformConfig
from rlx.errors import UserError
from rlx.types import Goal, Spec

SPEC = Spec("x", (2,), "float32", "box", (1,), (-1.0,), (1.0,), episode_limit=5, goal=Goal(1, (0, 1), (1, 2)))


def checkpoint(value: float = 1.0) -> Checkpoint:
    tensors = {"learner": {"w": torch.full((3,), value), "n": torch.tensor(2)}, "rng": {"torch": torch.get_rng_state()}}
    cfg = OmegaConf.create({"a": "${oc.env:NO_SUCH_VARIABLE}", "b": 1})
    return Checkpoint.of(cfg, SPEC, {"learner": {"updates": 3}, "threads": 1, "x": [0.1, float("inf")]}, tensors)


def grow(replay: Replay, steps: int) -> None:
    for _ in range(steps):
        t = float(replay.total)
        replay.add(
            np.full((1, 2), t), np.zeros((1, 1)), np.full(1, t), np.full((1, 2), t + 1), np.zeros(1), np.zeros(1)
        )


def empty(capacity: int = 6) -> Replay:
    return Replay(UniformConfig(capacity=capacity), SPEC, 1, 0.9, seed=0)


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
    manifest["files"]["../secret.json"] = module._entry(b"{}")
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
    assert twin._rows[: int(value) * 2, 0].tolist() == list(range(int(value) * 2))
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
        np.testing.assert_array_equal(twin._rows, replay._rows)
    assert names[0] == ["000000000000-000000000002"]
    assert names[1] == ["000000000000-000000000002", "000000000002-000000000005"]
    assert names[2] == ["000000000000-000000000002", "000000000002-000000000005", "000000000005-000000000009"]
    assert names[3] == ["000000000002-000000000005", "000000000005-000000000009"], "what nobody needs goes"


def test_all_rows_are_written_anew_when_old_ones_have_changed(tmp_path: Path) -> None:
    store, replay = CheckpointStore(tmp_path), empty()
    grow(replay, 3)
    store.save_step(checkpoint(), 3, replay)
    replay.cut_off([0])
    store.rewrite_replay()
    grow(replay, 2)
    store.save_step(checkpoint(), 5, replay)
    twin = empty()
    store.load_replay(store.latest(), twin)
    np.testing.assert_array_equal(twin._rows, replay._rows)


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
