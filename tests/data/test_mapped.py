"""Replays on disk: the same numbers as in memory, and nothing left behind."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from rlx.data.mapped import on_disk
from rlx.data.replay import Replay, ReplayConfig
from rlx.errors import UserError
from rlx.types import Box, Spec

BOXES = (("pixels", Box((3, 5, 5), "uint8")), ("state", Box((4,), "float32")))
DICT = Spec("dict", (), "float32", "discrete", (), action_sizes=(3,), boxes=BOXES)


def test_zeros_that_can_be_written(tmp_path: Path) -> None:
    array = on_disk(tmp_path / "run")((3, 4), np.float32)
    assert (array == 0).all()
    array[1, 2] = 7.0
    assert array.sum() == 7.0
    assert list((tmp_path / "run").iterdir()) == []  # it has no name
    assert on_disk(tmp_path)((0, 4), np.float32).shape == (0, 4)


def fill(replay: Replay, steps: int) -> None:
    rng = np.random.default_rng(0)
    frames = rng.integers(0, 256, (steps + 3, 5, 5), np.uint8)
    for t in range(steps):
        ends = t % 7 == 6
        obs, after = ({"pixels": frames[k : k + 3][None], "state": np.full((1, 4), k, np.float32)} for k in (t, t + 1))
        replay.add(obs, np.array([t % 3]), np.array([float(t)]), after, np.array([ends]), np.array([False]))


@pytest.mark.parametrize("stack", [1, 3])
def test_a_replay_on_disk_reads_as_one_in_memory(tmp_path: Path, stack: int) -> None:
    made = [
        Replay(ReplayConfig(capacity=20, n_step=2, memory=memory), DICT, 1, 0.9, 5, frames={"pixels": stack}, folder=at)
        for memory, at in (("ram", None), ("mmap", tmp_path))
    ]
    for replay in made:
        fill(replay, 33)
    assert isinstance(made[1].store.rows, np.memmap)
    assert isinstance(made[1].store.columns["pixels"].frames, np.memmap)  # type: ignore[attr-defined]
    for a, b in zip(*(replay.sample(8, 4) for replay in made), strict=True):
        for key in ("pixels", "state"):
            assert torch.equal(a.obs[key], b.obs[key])  # type: ignore[index]
            assert torch.equal(a.next_obs[key], b.next_obs[key])  # type: ignore[index]
        assert torch.equal(a.reward, b.reward)
    one, other = (replay.segment(13, 33) for replay in made)
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_full_disk_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(UserError, match=r"has no room for 0\.0 MiB of a replay \(No space left on device\)"):
        Replay(ReplayConfig(capacity=20, memory="mmap"), DICT, 1, 0.9, 5, folder=tmp_path)


def test_a_folder_that_cannot_be_written_to_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    sentence = r"file/run cannot be written to, which replay.memory=mmap needs \(Not a directory\); use another run_dir"
    with pytest.raises(UserError, match=sentence):
        Replay(ReplayConfig(capacity=20, memory="mmap"), DICT, 1, 0.9, 5, folder=tmp_path / "file" / "run")


def test_other_kinds_of_memory_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"replay.memory must be ram or mmap \(replay.memory=disk\)"):
        Replay(ReplayConfig(memory="disk"), DICT, 1, 0.9, 5)
    with pytest.raises(UserError, match=r"replay.memory=mmap needs a folder"):
        Replay(ReplayConfig(memory="mmap"), DICT, 1, 0.9, 5)
