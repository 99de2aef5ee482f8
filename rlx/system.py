"""The machine that a run is on: threads, device, memory, signals, versions.

Torch computes with one thread, unless asked otherwise. Threads change the order of sums and thereby the last bits of a
result. One thread gives the same run on a busy machine and on an idle one, and is never ten times slower because two
threads wait for each other (docs/speed.md).
"""

from __future__ import annotations

import ctypes
import logging
import math
import os
import platform
import re
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch.overrides import TorchFunctionMode

from rlx.errors import Interrupted, UserError, require
from rlx.reporting import counted

if sys.platform != "win32":
    import resource

if TYPE_CHECKING:
    from omegaconf import DictConfig

log = logging.getLogger("rlx")

ROOT = Path("/")


# -- threads -----------------------------------------------------------------------------------------------------------

AUTO = "auto"

MAX_THREADS = 4  # the networks here are too small for more

MIN_SPEEDUP = 1.3  # how much faster more threads have to be


def usable_cpus(root: Path | None = None) -> int:
    """CPUs that this process may use, by its affinity and by the quotas of its control groups."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([cpus, *_cpu_quotas(root or ROOT)]))


def _cpu_quotas(root: Path) -> Iterator[int]:
    """Whole CPUs that each control group of this process leaves it, those above its own included.

    A line of version 2 is "0::/name", one of version 1 "4:cpu,cpuacct:/name". Within a container the name may be that
    of the host; the group is then the topmost that is there.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for controllers, name in (line.split(":", 2)[1:] for line in lines if line.count(":") >= 2):
        if controllers and "cpu" not in controllers.split(","):
            continue
        top = root / "sys/fs/cgroup" / controllers
        group = top / name.strip("/")
        for folder in (group, *(parent for parent in group.parents if parent.is_relative_to(top))):
            try:
                if controllers:
                    quota, period = ((folder / f"cpu.cfs_{part}_us").read_text() for part in ("quota", "period"))
                else:
                    quota, period = (folder / "cpu.max").read_text().split()
                if int(quota) > 0:  # -1: none
                    yield int(quota) // int(period)
            except (OSError, ValueError):  # no such file, or "max"
                continue


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
    most = min(MAX_THREADS, usable_cpus())
    if most == 1:
        return 1, "there is one CPU"
    ratio = seconds(1) / seconds(most)
    if ratio >= MIN_SPEEDUP:
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


def set_threads(cfg: DictConfig, saved: int | None = None) -> str:
    """Choose and set torch's threads; what was chosen, and why."""
    layers = (value for key, value in cfg.algo.items() if str(key).endswith("hidden"))
    widest = max((n for widths in layers for n in widths or ()), default=1)
    chosen, why = choose_threads(cfg.threads, saved, network_seconds(int(widest), int(cfg.algo.batch_size)))
    if saved and chosen != saved:
        log.warning("The run had %s and now has %s: results may differ in the last bits.",
                    counted(saved, "thread"), counted(chosen, "thread"))  # fmt: skip
    torch.set_num_threads(chosen)
    keep_freed_memory()
    return f"{counted(chosen, 'thread')}, {why}"


# -- device ------------------------------------------------------------------------------------------------------------


def choose_device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()  # device=meta has no numbers to give
    except (RuntimeError, AssertionError) as error:
        raise UserError(
            f"device={name} is not available here ({str(error).splitlines()[0]}); use device=cpu."
        ) from error
    return device


# -- memory ------------------------------------------------------------------------------------------------------------

SHARE = 0.8  # of what is free, that a buffer is advised to take


def available_memory() -> int | None:
    """Bytes that this process can still allocate, by all the limits that the system tells of."""
    limits = [free for free in (_of_machine(), _of_control_group(), _of_process()) if free is not None]
    return min(limits) if limits else None


@contextmanager
def enough_memory(nbytes: int, what: str, smaller: Callable[[float], str]) -> Iterator[None]:
    """To make buffers in; a `UserError` where they do not fit. `smaller(share)` says what to type instead."""
    free = available_memory()
    if free is not None and nbytes > free:
        advice = smaller(SHARE * free / nbytes)
        raise UserError(f"{what} needs {nbytes / 2**30:.1f} GiB and {free / 2**30:.1f} GiB are free; {advice}.")
    try:
        yield
    except MemoryError as error:
        raise UserError(
            f"{what} needs {nbytes / 2**30:.1f} GiB, which could not be allocated; {smaller(SHARE / 2)}."
        ) from error


@contextmanager
def memory_errors() -> Iterator[None]:
    """A sentence where an allocation fails that nothing has asked about before."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        text = str(error).partition("\n")[0]
        if isinstance(error, MemoryError) or re.search(r"alloc|out of memory|overflow", text):
            raise UserError(
                f"There is not enough memory ({text[:200] or 'MemoryError'}); use smaller networks, batches or buffers."
            ) from error
        raise


class Allocation(TorchFunctionMode):
    """Refuses tensors that come to more than `limit` bytes in all, before they are made."""

    FILLED = frozenset({"empty", "zeros", "ones", "full", "rand", "randn", "arange", "linspace", "eye"})
    COPIED = frozenset({"empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "clone"})

    def __init__(self, limit: int, sentence: str):
        super().__init__()
        self.limit, self.sentence = limit, sentence
        self.used = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in self.FILLED:
            sizes = args[0] if args and isinstance(args[0], Sequence) else args
            self.used += 4 * math.prod(n for n in sizes if type(n) is int)
        elif name in self.COPIED and isinstance(args[0], torch.Tensor):
            self.used += args[0].nbytes
        require(self.used <= self.limit, self.sentence)
        return func(*args, **(kwargs or {}))


def _of_machine() -> int | None:
    lines = _lines("proc/meminfo")
    if "MemAvailable:" in lines:
        return lines["MemAvailable:"] * 1024
    if "SC_AVPHYS_PAGES" in getattr(os, "sysconf_names", ()):
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


def _of_control_group() -> int | None:
    """What a container or a batch system leaves; files that are only cached do not count as used."""
    try:
        name = (ROOT / "proc/self/cgroup").read_text().rpartition("::")[2].strip().strip("/")
    except OSError:
        return None
    for folder in (f"sys/fs/cgroup/{name}", "sys/fs/cgroup"):
        limit, used = _number(f"{folder}/memory.max"), _number(f"{folder}/memory.current")
        if limit is not None and used is not None:
            return limit - used + _lines(f"{folder}/memory.stat").get("inactive_file", 0)
    return None


def _of_process() -> int | None:
    """What `ulimit -v` leaves."""
    if sys.platform == "win32":
        return None
    limit, size = resource.getrlimit(resource.RLIMIT_AS)[0], _lines("proc/self/status").get("VmSize:")
    return None if limit == resource.RLIM_INFINITY or size is None else limit - size * 1024


def _number(path: str) -> int | None:
    try:
        return int((ROOT / path).read_text())
    except (OSError, ValueError):  # no such file, or "max"
        return None


def _lines(path: str) -> dict[str, int]:
    """The numbers of a file of lines "name number ...", by name."""
    try:
        rows = [line.split() for line in (ROOT / path).read_text().splitlines()]
    except OSError:
        return {}
    return {row[0]: int(row[1]) for row in rows if len(row) > 1 and row[1].isdigit()}


def keep_freed_memory() -> None:
    """Have glibc keep freed blocks for the next update instead of giving them back and faulting them in again.

    Every update allocates and frees the same hidden layers, some hundred kilobytes each, and the defaults return just
    these to the system. Worth a tenth of an update, and more with two threads; without glibc it does nothing.
    """
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # other C libraries have none
    if mallopt is not None:
        mallopt(-3, 32 << 20)  # M_MMAP_THRESHOLD: blocks below 32 MB come from the heap
        mallopt(-1, 256 << 20)  # M_TRIM_THRESHOLD: and the heap shrinks from 256 MB of free top on only


# -- signals -----------------------------------------------------------------------------------------------------------


INTERRUPTS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}  # stop reasons that a resume clears

PAUSED = "paused"  # the stop reason of trainer.pause_at

INTERRUPTED = (*INTERRUPTS.values(), PAUSED)  # a resume goes on in the middle of things

ONE_SIGNAL = 0.5  # seconds within which signals count as one: `timeout` and launchers send each of them twice


class Interruptible(Protocol):
    """What signals can end: a trainer."""

    interrupt: str | None  # set by a signal: end after the step under way

    def how_to_resume(self) -> str:
        """What to type to go on."""


@contextmanager
def interruptible(run: Interruptible) -> Iterator[None]:
    """SIGINT and SIGTERM end the run after the step under way, with a checkpoint; they reach the main thread only.

    A second one ends it at once: an env that hangs never ends its step.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    first = 0.0

    def handle(number: int, frame: Any) -> None:
        nonlocal first
        name, now = signal.Signals(number).name, time.monotonic()
        if run.interrupt is None:
            run.interrupt, first = INTERRUPTS[signal.Signals(number)], now
            text = f"rlx: {name}: the run ends after this step, with a checkpoint; a second one ends it at once.\n"
            with suppress(OSError):  # written past the streams: one may be in the middle of a line
                os.write(2, text.encode())
        elif now - first > ONE_SIGNAL:
            sentence = f"A second signal, {name}, ended the run in the middle of a step. {run.how_to_resume()}"
            raise Interrupted(sentence, 128 + number)

    before = {number: signal.signal(number, handle) for number in INTERRUPTS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# -- versions ----------------------------------------------------------------------------------------------------------


def versions() -> dict[str, str]:
    known = {"python": platform.python_version(), "cpu": torch.backends.cpu.get_cpu_capability()}
    for package in ("rlx", "torch", "gymnasium", "numpy", "hydra-core", "minari"):
        try:
            known[package] = version(package)
        except PackageNotFoundError:
            known[package] = "not installed"
    return known
