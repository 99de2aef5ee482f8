"""How much memory and how many CPUs there are, by limits written into a made-up root; and what is said of memory where
it does not suffice.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import rlx.system
from rlx.config import compose_config
from rlx.errors import UserError
from rlx.system import available_memory, enough_memory, keep_freed_memory, set_threads, usable_cpus

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


# -- CPUs --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def sixteen_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)), raising=False)


@pytest.fixture
def one_torch_thread() -> Iterator[None]:
    """Puts back what set_threads has set."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system has no affinity")
@pytest.mark.usefixtures("one_torch_thread")
def test_a_process_on_one_cpu_takes_one_thread() -> None:
    """As under `taskset -c 0`."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        assert usable_cpus() == 1
        assert set_threads(compose_config(["threads=auto"])) == "1 thread, there is one CPU"
        assert torch.get_num_threads() == 1
    finally:
        os.sched_setaffinity(0, before)


@pytest.mark.usefixtures("sixteen_cpus")
def test_a_quota_counts_of_every_group_above(root: Path) -> None:
    assert usable_cpus() == 16
    write(root, "sys/fs/cgroup/jobs/7/cpu.max", "max 100000\n")
    assert usable_cpus() == 16
    write(root, "sys/fs/cgroup/jobs/cpu.max", "350000 100000\n")
    assert usable_cpus() == 3
    write(root, "sys/fs/cgroup/cpu.max", "200000 100000\n")
    assert usable_cpus() == 2
    write(root, "sys/fs/cgroup/jobs/7/cpu.max", "50000 100000\n")
    assert usable_cpus() == 1  # and never none


@pytest.mark.usefixtures("sixteen_cpus")
def test_a_quota_of_version_1_counts(root: Path) -> None:
    write(root, "proc/self/cgroup", "5:memory:/box\n4:cpu,cpuacct:/box\n2:cpuset:/box\n")
    folder = "sys/fs/cgroup/cpu,cpuacct/box"
    write(root, f"{folder}/cpu.cfs_period_us", "100000\n")
    write(root, f"{folder}/cpu.cfs_quota_us", "-1\n")
    assert usable_cpus() == 16
    write(root, f"{folder}/cpu.cfs_quota_us", "400000\n")
    assert usable_cpus() == 4


@pytest.mark.usefixtures("sixteen_cpus")
def test_the_group_of_a_host_is_looked_for_at_the_top(root: Path) -> None:
    """A container may show the name that its group has outside, where no such folder is."""
    write(root, "proc/self/cgroup", "0::/docker/abc\n")
    write(root, "sys/fs/cgroup/cpu.max", "200000 100000\n")
    assert usable_cpus() == 2


@pytest.mark.usefixtures("sixteen_cpus", "one_torch_thread")
def test_threads_stay_within_the_quota(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rlx.system, "network_seconds", lambda *sizes: lambda threads: 1.0 / threads)
    assert set_threads(compose_config(["threads=auto"])).startswith("4 threads, measured")
    write(root, "sys/fs/cgroup/jobs/cpu.max", "200000 100000\n")
    assert set_threads(compose_config(["threads=auto"])).startswith("2 threads, measured")
    write(root, "sys/fs/cgroup/jobs/cpu.max", "100000 100000\n")
    assert set_threads(compose_config(["threads=auto"])) == "1 thread, there is one CPU"
    assert torch.get_num_threads() == 1
