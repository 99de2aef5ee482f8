"""How the C library keeps freed memory."""

from __future__ import annotations

import ctypes
import sys


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
