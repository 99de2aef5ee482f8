"""How much memory there is, by limits written into a made-up root; and what is said where it does not suffice."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import rlx.system
from rlx.errors import UserError
from rlx.system import available_memory, enough_memory, keep_freed_memory

GIB = 2**30


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with 8 GiB free, a control group of its own and no limits."""
    monkeypatch.setattr(rlx.system, "ROOT", tmp_path)
    write(tmp_path, "proc/meminfo", f"MemTotal: {GIB} kB\nMemAvailable: {8 * GIB // 1024} kB\n")
    write(tmp_path, "proc/self/cgroup", "0::/jobs/7\n")
    write(tmp_path, "proc/self/status", f"Name:\tpython\nVmSize:\t{GIB // 1024} kB\n")
    return tmp_path


def write(root: Path, name: str, text: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)


def test_the_machine_sets_the_first_limit(root: Path) -> None:
    assert available_memory() == 8 * GIB


def test_a_control_group_sets_another_and_cached_files_do_not_count(root: Path) -> None:
    folder = "sys/fs/cgroup/jobs/7"
    write(root, f"{folder}/memory.max", f"{4 * GIB}\n")
    write(root, f"{folder}/memory.current", f"{3 * GIB}\n")
    write(root, f"{folder}/memory.stat", f"anon 5\ninactive_file {GIB}\n")
    assert available_memory() == 2 * GIB
    write(root, f"{folder}/memory.max", "max\n")
    assert available_memory() == 8 * GIB


def test_within_a_container_the_group_is_the_root(root: Path) -> None:
    write(root, "sys/fs/cgroup/memory.max", f"{2 * GIB}\n")
    write(root, "sys/fs/cgroup/memory.current", f"{GIB}\n")
    assert available_memory() == GIB


def test_the_process_may_have_a_limit(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (3 * GIB, 3 * GIB))
    assert available_memory() == 2 * GIB


def test_what_does_not_fit_is_refused_before_it_is_made(root: Path) -> None:
    with (
        pytest.raises(UserError, match=r"A heap needs 16\.0 GiB and 8\.0 GiB are free; take 0\.4 of it\."),
        enough_memory(16 * GIB, "A heap", lambda share: f"take {share:g} of it"),
    ):
        pytest.fail("it was made")


def test_an_allocation_that_fails_is_said(root: Path) -> None:
    with pytest.raises(UserError, match="which could not be allocated"), enough_memory(GIB, "A heap", str):
        raise MemoryError


def test_freed_memory_can_be_kept() -> None:
    keep_freed_memory()
    assert torch.ones(1000, 1000).sum().item() == 1e6
