"""Reading and writing files whose place or content somebody else may have chosen.

What is read has to be a regular file of a bounded size: a FIFO waits for ever, and a device has no end. What is written
goes to a new file beside its place and is renamed: nothing is written through a link.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

TEXT_LIMIT = 64 * 2**20  # bytes of a config, a manifest or a state: far more than rlx writes


def open_regular(path: Path, follow: bool = True) -> int:
    """A descriptor to read a regular file by, links followed unless told otherwise; OSError for anything else."""
    if not follow and path.is_symlink():
        raise OSError(errno.ELOOP, "a link, where a file was expected", str(path))
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW))
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return fd


def read_bounded(path: Path, limit: int = TEXT_LIMIT, follow: bool = True) -> bytes:
    """The bytes of a regular file of at most `limit` bytes; OSError for anything else."""
    with open(open_regular(path, follow), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise OSError(errno.EFBIG, f"{size:,} bytes, where at most {limit:,} were expected", str(path))
        return file.read(limit)


@contextmanager
def named(path: Path) -> Iterator[None]:
    """Give OSErrors the name of the file, which the system leaves out where it fails to write or to sync."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


def write_atomically(path: Path, data: bytes) -> None:
    """Write beside, fsync, rename: readers see the old bytes or the new ones, and links are replaced, not followed."""
    beside = path.with_name(f".{path.name}.writing")
    with suppress(FileNotFoundError):
        beside.unlink()
    try:
        with named(path):
            fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
            with open(fd, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(beside, path)
    except OSError:
        with suppress(OSError):
            beside.unlink()  # half a file takes room where there may be none
        raise
    fsync_folder(path.parent)


def remove(path: Path) -> None:
    """Delete a file, a link, or a folder with everything in it; links go, what they point to stays."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def fsync_folder(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with named(path):
            os.fsync(fd)
    finally:
        os.close(fd)
