"""Native nodes: the networks, samples and steps of rlx.nn in C++, for float32 on the CPU.

The Python ones remain the reference, and are what runs wherever the native ones are not there, or decline. They are a
setting of the process, like torch's threads: `NATIVE.on` is None, or the module that rlx.nn.native.build has loaded.
A policy that was trained by others acts by those: `with Nodes(module):` is a setting of the thread, for a while.
"""

from __future__ import annotations

import threading
from typing import Any

ACTIVATION_NUMBERS = {"relu": 0, "tanh": 1, "elu": 2, "gelu": 3}  # as in products.h


class Native(threading.local):
    """What computes in this thread: what the process has chosen, which is kept on the class, unless in `Nodes`."""

    on: Any = None  # the module of nodes.cpp; None: Python


NATIVE = Native()


class Nodes:
    """`with Nodes(module):` these nodes compute in this thread, whatever the process has chosen."""

    def __init__(self, module: Any):
        self.module = module

    def __enter__(self) -> None:
        own = vars(NATIVE)
        self.before = own.get("on", own)  # `own` itself: nothing
        own["on"] = self.module

    def __exit__(self, *error: object) -> None:
        own = vars(NATIVE)
        if self.before is own:
            del own["on"]
        else:
            own["on"] = self.before
