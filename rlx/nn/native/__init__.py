"""Native nodes: the networks, samples and steps of rlx.nn in C++, for float32 on the CPU.

The Python ones remain the reference, and are what runs wherever the native ones are not there, or decline. They are a
setting of the process, like torch's threads: `NATIVE.on` is None, or the module that rlx.nn.native.build has loaded.
"""

from __future__ import annotations

from typing import Any

ACTIVATION_NUMBERS = {"relu": 0, "tanh": 1, "elu": 2}  # as in products.h


class Native:
    """What computes in this process."""

    on: Any = None  # the module of nodes.cpp; None: Python


NATIVE = Native()
