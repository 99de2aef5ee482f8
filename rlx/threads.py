"""How many threads torch computes with: one, unless asked otherwise.

Threads change the order of sums and thereby the last bits of a result. One thread gives the same run on a busy machine
and on an idle one, and is never ten times slower because two threads wait for each other (docs/speed.md).
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

AUTO = "auto"
MOST = 4  # the networks here are too small for more
CLEARLY = 1.3  # how much faster more threads have to be


def usable_cpus(root: Path = Path("/")) -> int:
    """CPUs that this process may use, by its affinity and by the quota of its control group."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        name = (root / "proc/self/cgroup").read_text().rpartition("::")[2].strip().strip("/")
    except OSError:
        return cpus
    for folder in (root / "sys/fs/cgroup" / name, root / "sys/fs/cgroup"):
        try:
            quota, period = (folder / "cpu.max").read_text().split()
            return max(1, min(cpus, int(quota) // int(period)))
        except (OSError, ValueError):  # no such file, or "max"
            continue
    return cpus


def choose_threads(wanted: int | str | None, saved: int | None, seconds: Callable[[int], float]) -> tuple[int, str]:
    """The number of threads, and why: as asked, as the checkpoint had it, as measured (auto), else one.

    `seconds(n)` measures how long some work takes with n threads.
    """
    if isinstance(wanted, int):
        return wanted, "as asked"
    if saved is not None:
        return saved, "as the run had it"
    if wanted != AUTO:
        return 1, "the default"
    most = min(MOST, usable_cpus())
    if most == 1:
        return 1, "there is one CPU"
    ratio = seconds(1) / seconds(most)
    if ratio >= CLEARLY:
        return most, f"measured to be {ratio:.1f} times as fast as one"
    return 1, f"{most} were measured to be {ratio:.1f} times as fast"


def network_seconds(width: int, batch_size: int, rounds: int = 9) -> Callable[[int], float]:
    """Measures products of a network's size; the median, so that one interruption does not decide."""

    def seconds(threads: int) -> float:
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        a, b = torch.ones(batch_size, width), torch.ones(width, width)
        times = []
        for _ in range(rounds + 1):
            start = time.perf_counter()
            for _ in range(20):
                torch.mm(a, b)
            times.append(time.perf_counter() - start)
        torch.set_num_threads(before)
        return statistics.median(times[1:])

    return seconds
