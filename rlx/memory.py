"""How much memory is left, asked before a buffer is made that may not fit."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rlx.errors import UserError

ROOT = Path("/")
SHARE = 0.8  # of what is free, that a buffer is advised to take


def available_memory() -> int | None:
    """Bytes that this process can still allocate, by all the limits that the system tells of."""
    found = [free for free in (_of_machine(), _of_control_group(), _of_process()) if free is not None]
    return min(found) if found else None


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
        raise UserError(f"{what} needs {nbytes / 2**30:.1f} GiB, which there is not; {smaller(SHARE / 2)}.") from error


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
    import resource

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
