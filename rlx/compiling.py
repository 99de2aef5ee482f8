"""`algo.compile=true`: updates as one graph that torch.compile turns into C++.

The losses of an update, their gradients and the steps down them are compiled together. What is left of an update are
its matrix products and few passes over memory around them, and next to nothing of Python.
"""

from __future__ import annotations

import functools
import logging
import sysconfig
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from rlx.errors import UserError

log = logging.getLogger("rlx")


def compilable(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method of a learner that is compiled where the learner's config says `compile: true`.

    From call to call only tensors, arguments and numbers of the config may change in there: counters stay outside, and
    an optimizer steps no more than once.
    """

    @functools.wraps(method)
    def call(self: Any, *args: Any) -> Any:
        if not self.cfg.compile:
            return method(self, *args)
        for optimizer in self.optimizers.values():
            optimizer.prepare()
        if method not in self.compiled:
            self.compiled[method] = compiled(method)
        return self.compiled[method](self, *args)

    return call


def compiled(method: Callable[..., Any]) -> Callable[..., Any]:
    """A compiled copy of a method; a copy, since torch keeps what it compiled with the code, for all who run it."""
    log.info(
        "Compiling the update: this takes up to a minute, or a few seconds if the same sizes were compiled before."
    )
    config: Any = torch._dynamo.config
    config.trace_autograd_ops = True
    function: Any = method
    own = types.FunctionType(function.__code__.replace(), function.__globals__, closure=function.__closure__)
    return torch.compile(own, fullgraph=True, options={"guard_filter_fn": guards_to_check})


def guards_to_check(guards: Sequence[Any]) -> list[bool]:
    """Which guards torch checks before each call: not the hundreds about what never changes in a learner."""
    return [not guard.name.startswith("L['self']") or ".cfg." in guard.name for guard in guards]


def check_compiler() -> None:
    """Refuse a machine that cannot compile, before any work."""
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    otherwise = "or use algo.compile=false."
    if not hasattr(torch._dynamo.config, "trace_autograd_ops"):
        raise UserError(f"algo.compile=true needs torch 2.13 and this is {torch.__version__}; upgrade it, {otherwise}")
    try:
        get_cpp_compiler()
    except InvalidCxxCompiler as error:
        raise UserError(
            f"algo.compile=true needs a C++ compiler and there is none; install g++, {otherwise}"
        ) from error
    if not (Path(sysconfig.get_paths()["include"]) / "Python.h").exists():
        raise UserError(f"algo.compile=true needs Python's C headers; install python3-dev, {otherwise}")
