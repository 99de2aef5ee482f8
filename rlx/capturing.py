"""Updates that are captured once and then run again without Python.

An update is always the same sequence of operations on tensors of the same shapes. Where the native nodes are on (see
rlx/nn/native), that sequence is noted while an update runs, together with the memory that every operation reads and
writes; the next updates copy their batch to where the first one lay and run the sequence as it is (program.h). Nothing
is computed in another way or order, so that not a bit differs.

    call 1    as ever, which makes what is made once
    call 2    as ever, and noted
    call 3    what was noted, on another batch
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from rlx.nn.native import NATIVE

log = logging.getLogger("rlx")

MOST_PROGRAMS = 8  # of a method
FAIR_SHARE = 8  # runs that a program should be good for, on average


def capturable(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method of a learner that is captured where the native nodes are on.

    From call to call only tensors, arguments and numbers of the config may change in there: counters stay outside, and
    so does whatever needs to look at a number. Gradients do not leave it.
    """

    @functools.wraps(method)
    def call(self: Any, *args: Any) -> Any:
        if NATIVE.on is None or not self.captures:
            return method(self, *args)
        captured = self.captured.get(method)
        if captured is None:
            captured = self.captured[method] = Captured(method)
        return captured(self, args)

    return call


class Captured:
    """The programs of one method of one learner."""

    def __init__(self, method: Callable[..., Any]):
        self.method = method
        self.programs: list[Any] = []
        self.why_not: str | None = None  # why it is not captured
        self._watched: list[Any] = []
        self._rates: tuple[Any, ...] = ()
        self._seen: set[Any] = set()  # arguments that were there once
        self._captures = 0
        self._runs = 0

    def __deepcopy__(self, memo: dict[int, Any]) -> Captured:
        return Captured(self.method)  # programs work on the memory of the learner that made them

    def __call__(self, learner: Any, args: tuple[Any, ...]) -> Any:
        if self.why_not is not None:
            return self.method(learner, *args)
        numbers = vars(learner.cfg)
        if self._watched:  # optimizers that took their learning rates into the programs
            rates = tuple(optimizer.numbers() for optimizer in self._watched)
            if rates != self._rates:
                self.programs.clear()
                self._rates = rates
        for program in self.programs:
            outputs = NATIVE.on.run(program, args, numbers)
            if outputs is not NotImplemented:
                self._runs += 1
                return outputs
        return self._try(learner, args)

    def _try(self, learner: Any, args: tuple[Any, ...]) -> Any:
        """A call that no program fits."""
        kind = tuple(kind_of(args))
        if kind not in self._seen:
            self._seen.add(kind)
            return self.method(learner, *args)
        if (self._captures - 4) * FAIR_SHARE > self._runs:
            return self._give_up("its arguments or numbers change too often", self.method(learner, *args))
        del self.programs[: len(self.programs) + 1 - MOST_PROGRAMS]  # the oldest, whose numbers may be those of before
        begun = NATIVE.on.begin(args, vars(learner.cfg))
        if begun is None:
            return self._give_up("its arguments cannot be captured", self.method(learner, *args))
        program, inputs = begun
        notes = Notes()
        try:
            with notes:
                result = self.method(learner, *inputs)
            if any(is_differentiable(x) for x in kind_of(result, tensors=True)):
                notes.problem = "its result is to be differentiated"
            if notes.problem is not None:
                return self._give_up(notes.problem, result)
            self._captures += 1
            self.programs.append(program)
            self._watched = [optimizer for optimizer in learner.optimizers.values() if optimizer.numbers()]
            self._rates = tuple(optimizer.numbers() for optimizer in self._watched)
            return NATIVE.on.end(result)
        finally:
            NATIVE.on.abandon()

    def _give_up(self, why: str, result: Any) -> Any:
        self.why_not = why
        self.programs.clear()
        log.debug("%s is not captured: %s.", self.method.__qualname__, why)
        return result


def is_differentiable(x: Any) -> bool:
    """Is it a tensor that gradients may go back from?"""
    return isinstance(x, Tensor) and (x.requires_grad or getattr(x, "made_by", None) is not None)


def kind_of(value: Any, tensors: bool = False) -> Iterator[Any]:
    """What a program depends on of its arguments: all but the numbers in tensors; with `tensors`, the leaves."""
    if isinstance(value, Tensor):
        yield value if tensors else (value.shape, value.stride(), value.dtype)
    elif isinstance(value, tuple | list):
        yield len(value)
        for part in value:
            yield from kind_of(part, tensors)
    elif isinstance(value, dict):
        yield tuple(value)
        for part in value.values():
            yield from kind_of(part, tensors)
    else:
        yield value


UNREPEATABLE = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)
aten = torch.ops.aten
MEMORY_ONLY = {aten.empty.memory_format, aten.empty_like.default, aten.empty_strided.default, aten.new_empty.default}


def in_memory(tensors: list[Any]) -> set[int]:
    return {t.untyped_storage()._cdata for t in tensors if isinstance(t, Tensor)}


class Notes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the operations of torch; the native ones note themselves."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.problem: str | None = None  # why what was noted cannot be repeated

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        made = func(*args, **kwargs)
        if self.problem is None:
            self._note(func, args, kwargs, made)
        return made

    def _note(self, func: Any, args: Any, kwargs: Any, made: Any) -> None:
        tensors = [] if made is None else list(made) if isinstance(made, tuple | list) else [made]
        if any(tag in func.tags for tag in UNREPEATABLE) or not all(isinstance(t, Tensor) for t in tensors):
            self.problem = f"{func} looks at numbers"
            return
        NATIVE.on.keep(tensors)
        schema = func._schema
        if func in MEMORY_ONLY:
            return
        if not schema.is_mutable:
            given = list(kind_of((*args, *kwargs.values()), tensors=True))
            if tensors and in_memory(tensors) <= in_memory(given):
                return  # a view: the memory is the same whenever the program runs
        if not NATIVE.on.note(schema.name, schema.overload_name, args, kwargs, tensors):
            self.problem = f"{func} cannot be called again"
