"""Reading and writing files whose place or content somebody else may have chosen.

What is read has to be a regular file of a bounded size: a FIFO waits for ever, and a device has no end. What is written
goes to a new file beside its place and is renamed: nothing is written through a link.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path

from rlx.errors import UserError

TEXT_LIMIT = 64 * 2**20  # bytes of a config, a manifest or a state: far more than rlx writes


def open_regular(path: Path) -> int:
    """A descriptor to read a regular file by, links followed; OSError for anything else."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return fd


def read_bounded(path: Path, limit: int = TEXT_LIMIT) -> bytes:
    """The bytes of a regular file of at most `limit` bytes; OSError for anything else."""
    with open(open_regular(path), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise OSError(errno.EFBIG, f"{size:,} bytes, where at most {limit:,} were expected", str(path))
        return file.read(limit)


def write_atomically(path: Path, data: bytes) -> None:
    """Write beside, fsync, rename: readers see the old bytes or the new ones, and links are replaced, not followed."""
    beside = path.with_name(f".{path.name}.writing")
    with suppress(FileNotFoundError):
        beside.unlink()
    with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)
    fsync_folder(path.parent)


def refuse_link(path: Path) -> None:
    """A folder below a run that is a link leads to a place that somebody else has chosen."""
    if path.is_symlink():
        raise UserError(f"{path} is a link, and nothing is written through links; remove it.")


def fsync_folder(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
