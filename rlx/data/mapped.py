"""Arrays on disk that only this process sees: files without a name, mapped into memory.

The system keeps in memory what is in use and as much more as there is room for. A file is opened below a given folder
and loses its name at once, so that nothing of it is left when the process ends, however it ends.
"""

from __future__ import annotations

import errno
import math
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from rlx.errors import UserError

Allocate = Callable[[tuple[int, ...], Any], np.ndarray]  # zeros of a shape and a dtype


FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def in_units(nbytes: int) -> str:
    """A size in MiB, or in GiB from one on."""
    return f"{nbytes / 2**30:.1f} GiB" if nbytes >= 2**30 else f"{nbytes / 2**20:.1f} MiB"


def in_memory(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    return np.zeros(shape, dtype)


def on_disk(folder: Path) -> Allocate:
    """Zeros in a file below a folder; all of the room is taken at once, as there is no way to fail later."""

    def allocate(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        nbytes = math.prod(shape) * np.dtype(dtype).itemsize
        if nbytes == 0:
            return np.zeros(shape, dtype)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder) as file:
                os.posix_fallocate(file.fileno(), 0, nbytes)
                return np.memmap(file, dtype, "r+", shape=shape)  # the mapping outlives the descriptor
        except OSError as error:
            if error.errno in FULL:
                raise UserError(
                    f"{folder} has no room for {in_units(nbytes)} of a replay ({error.strerror}); use a smaller "
                    "replay.capacity, or a run_dir on another disk."
                ) from error
            raise UserError(
                f"{folder} cannot be written to, which replay.memory=mmap needs ({error.strerror}); use another "
                "run_dir, or replay.memory=ram."
            ) from error

    return allocate
