"""Updates that are captured once and then run again without Python.

An update is always the same sequence of operations on tensors of the same shapes. Where the native nodes are on (see
rlx/nn/native), that sequence is noted while an update runs, together with the memory that every operation reads and
writes; the next updates copy their batch to where the first one lay and run the sequence as it is (program.h). Nothing
is computed in another way or order, so that not a bit differs.

    call 1    as ever, which makes what is made once
    call 2    as ever, and noted
    call 3    what was noted, on another batch

What the noted call read of the learner, its config, networks and optimizers is compared before each run: where a
number, a tensor or a network has been replaced since, the update is captured anew.
"""

from __future__ import annotations

import functools
import logging
import random
import threading
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

from rlx.nn.native import NATIVE

log = logging.getLogger("rlx")

MOST_PROGRAMS = 8  # of a method
MOST_SIGNATURES = 1000  # that are remembered
FAIR_SHARE = 8  # runs that a program should be good for, on average
ONE_AT_A_TIME = threading.Lock()  # of captures: classes and functions of torch are watched for all threads


def capturable(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method of a learner that is captured where the native nodes are on.

    What has to happen at every call and is not an operation on tensors stays outside: counters, draws from NumPy,
    whatever looks at a number. Arguments and results are tensors and plain values, alone or in tuples, NamedTuples,
    lists and dicts; an argument that is written to is a copy. No gradients leave it.

    A tensor that later calls are to see is returned and then kept by the caller, as `td_error` is: the memory of one
    that is put into `self` in there would be overwritten. A method that looks at numbers, sets attributes or keeps
    tensors is found out while it is captured, and runs from Python. Watched are the attributes of the learner, its
    config, its networks and its optimizers; not what a method reads elsewhere, or inside other objects.
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
        self._seen: set[Any] = set()  # signatures of arguments that were there once
        self._captures = 0
        self._runs = 0

    def __call__(self, learner: Any, args: tuple[Any, ...]) -> Any:
        if self.why_not is not None:
            return self.method(learner, *args)
        for program in self.programs:
            outputs = NATIVE.on.run(program, args, vars(learner))
            if outputs is not NotImplemented:
                self._runs += 1
                return outputs
        return self._try(learner, args)

    def _try(self, learner: Any, args: tuple[Any, ...]) -> Any:
        """A call that no program fits."""
        outer = Notes.active()
        if outer is not None:  # part of what another method computes
            if outer.learner is not learner:
                outer.problem = "it calls another learner, whose numbers may change"
            return self.method(learner, *args)
        if not is_plain(args):
            return self._give_up("its arguments cannot be captured", self.method(learner, *args))
        signature = tuple(signature_of(args))
        if signature not in self._seen:
            if len(self._seen) == MOST_SIGNATURES:
                self._seen.clear()
            self._seen.add(signature)
            return self.method(learner, *args)
        if (self._captures - MOST_PROGRAMS) * FAIR_SHARE > self._runs:
            return self._give_up("its arguments or numbers change too often", self.method(learner, *args))
        if not ONE_AT_A_TIME.acquire(blocking=False):  # another thread captures: the next call may
            return self.method(learner, *args)
        try:
            begun = NATIVE.on.begin(args)
            if begun is None:
                return self._give_up("its arguments cannot be captured", self.method(learner, *args))
            program, inputs = begun
            notes, held, drawn = Notes(learner), tensors_held(learner), other_draws()
            with Watch(learner) as watch, Bypasses(notes), notes:
                result = self.method(learner, *inputs)
            problem = notes.problem or watch.problem or problem_with(result, held, tensors_held(learner))
            if other_draws() != drawn:
                problem = "it draws numbers from NumPy or Python"
            if problem is not None:
                return self._give_up(problem, result)
            outputs = NATIVE.on.end(result, watch.places(), vars(learner))
        finally:
            NATIVE.on.abandon()
            ONE_AT_A_TIME.release()
        self._captures += 1
        del self.programs[: -(MOST_PROGRAMS - 1)]  # the oldest, whose numbers may be those of before
        self.programs.append(program)
        return outputs

    def _give_up(self, why: str, result: Any) -> Any:
        self.why_not = why
        self.programs.clear()
        log.debug("%s is not captured: %s.", self.method.__qualname__, why)
        return result


HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")  # of a module


class Watch:
    """Notes which attributes of a learner and its parts are read while it is active, and that none of the learner's or
    of its networks' is set.
    """

    active: Watch | None = None

    def __init__(self, learner: Any) -> None:
        self._learner = learner
        modules = list(learner.modules()) if isinstance(learner, nn.Module) else [learner]
        self._fixed = {id(module) for module in modules}
        parts = [*modules, learner.cfg, *learner.optimizers.values()]
        self._parts = [(part, type(part)) for part in {id(part): part for part in parts}.values()]
        self._reads: dict[tuple[int, str], tuple[Any, str]] = {}
        self._sets: set[tuple[int, str]] = set()
        self.problem: str | None = None

    def __enter__(self) -> Watch:
        Watch.active = self
        try:
            for part, kind in self._parts:
                object.__setattr__(part, "__class__", watched(kind))  # type: ignore[arg-type]
        except TypeError as error:  # a class without attributes of its own
            self.problem = str(error)
        return self

    def __exit__(self, *error: Any) -> None:
        Watch.active = None
        for part, kind in self._parts:
            if type(part) is not kind:
                object.__setattr__(part, "__class__", kind)

    def read(self, part: Any, name: str) -> None:
        own = object.__getattribute__(part, "__dict__")
        if name in HOOKS and own.get(name):
            self.problem = "its networks have hooks"  # which are to be called each time
        everywhere = [own, *(own.get(kind, {}) for kind in ("_parameters", "_buffers", "_modules"))]
        found = [places for places in everywhere if name in places]
        if not found and is_default(type(part), name):
            found = [own]  # where it may get a value of its own
        for places in found:
            key = (id(places), name)
            if key not in self._sets:
                self._reads[key] = (places, name)

    def set(self, part: Any, name: str) -> None:
        if id(part) in self._fixed:
            self.problem = f"it sets self.{name}"
        key = (id(object.__getattribute__(part, "__dict__")), name)
        if key not in self._reads:
            self._sets.add(key)  # what is read later is not from before

    def places(self) -> list[tuple[Any, str]]:
        """Where what was read is kept: in a dict, or in the learner's own, which is None here: programs, which the
        learner keeps, are not to keep the learner.
        """
        own = vars(self._learner)
        reads = [(places, name) for places, name in self._reads.values() if name != "captured"]
        return [(None if places is own else places, name) for places, name in reads]


def is_default(kind: Any, name: str) -> bool:
    """Is it an attribute of a class, and neither a method nor a property?"""
    return hasattr(kind, name) and not hasattr(type(getattr(kind, name)), "__get__")


@functools.cache
def watched(kind: Any) -> Any:
    """The same class, which tells the active `Watch` of its attributes."""

    def __getattribute__(self: Any, name: str) -> Any:
        if Watch.active is not None and not name.startswith("__"):
            Watch.active.read(self, name)
        return kind.__getattribute__(self, name)

    def __setattr__(self: Any, name: str, value: Any) -> None:
        if Watch.active is not None:
            Watch.active.set(self, name)
        kind.__setattr__(self, name, value)

    return type(kind.__name__, (kind,), {"__getattribute__": __getattribute__, "__setattr__": __setattr__})


def other_draws() -> Any:
    """The states of the generators that a method may draw from besides torch's."""
    state: Any = np.random.get_state()
    return random.getstate(), state[1].tobytes(), state[2:]


def is_differentiable(x: Any) -> bool:
    """Is it a tensor that gradients may go back from?"""
    return isinstance(x, Tensor) and (x.requires_grad or getattr(x, "made_by", None) is not None)


PLAIN = (type(None), bool, int, float, complex, str, bytes, Enum, torch.dtype, torch.device)


def is_plain(value: Any) -> bool:
    """Can it be told from what it is that nothing in it changes but the numbers in tensors? Containers of other kinds
    may have more to them than what they contain, and objects of other kinds may change.
    """
    if isinstance(value, Tensor):
        return not is_differentiable(value)
    if type(value) is dict:
        return all(map(is_plain, value.values()))
    if type(value) in (tuple, list) or is_named_tuple(value):
        return all(map(is_plain, value))
    return isinstance(value, PLAIN)


def is_named_tuple(value: Any) -> bool:
    return isinstance(value, tuple) and hasattr(value, "_make") and not hasattr(value, "__dict__")


def signature_of(value: Any) -> Iterator[Any]:
    """What a program depends on of plain arguments: all but the numbers in tensors."""
    if isinstance(value, Tensor):
        yield (value.shape, value.stride(), value.dtype)
    elif isinstance(value, tuple | list):
        yield (type(value), len(value))
        for part in value:
            yield from signature_of(part)
    elif isinstance(value, dict):
        yield tuple(value)
        for part in value.values():
            yield from signature_of(part)
    else:
        yield value


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors in nested containers."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for part in value:
            yield from tensors_in(part)
    elif isinstance(value, dict):
        yield from tensors_in(list(value.values()))


def tensors_held(learner: Any) -> dict[tuple[str, int], Tensor]:
    """The tensors that a learner and its modules hold, by the names of their attributes."""
    owners = learner.named_modules() if isinstance(learner, nn.Module) else [("", learner)]
    return {
        (f"{path}.{name}".strip("."), i): tensor
        for path, owner in owners
        for name, value in vars(owner).items()
        for i, tensor in enumerate(tensors_in(value))
    }


def problem_with(result: Any, before: dict[Any, Tensor], after: dict[Any, Tensor]) -> str | None:
    """What a call left behind that another one could not leave."""
    if any(is_differentiable(x) for x in tensors_in(result)):
        return "its result is to be differentiated"
    if not is_plain(result):
        return "its result cannot be captured"
    kept = [name for (name, i), tensor in after.items() if before.get((name, i)) is not tensor]
    return f"it keeps a tensor in self.{kept[0]}" if kept else None


UNREPEATABLE = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)
aten = torch.ops.aten
BY_LENGTHS = aten._pack_padded_sequence.default  # the shape of what it makes, though it has no tag
MEMORY_ONLY = {aten.empty.memory_format, aten.empty_like.default, aten.empty_strided.default, aten.new_empty.default}


def storages_of(tensors: Iterable[Tensor]) -> set[int]:
    return {t.untyped_storage()._cdata for t in tensors}


class Notes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the operations of torch; the native ones note themselves."""

    def __init__(self, learner: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.learner = learner
        self.problem: str | None = None  # why what was noted cannot be repeated

    @staticmethod
    def active() -> Notes | None:
        """Those that are taken in this thread now."""
        mode = _get_current_dispatch_mode()
        return mode if isinstance(mode, Notes) else None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        made = func(*args, **kwargs)
        if self.problem is None:
            self._note(func, args, kwargs, made)
        return made

    def _note(self, func: Any, args: Any, kwargs: Any, made: Any) -> None:
        if func is aten.lift_fresh.default:  # a constant: its numbers are set at every run, it may be written to
            func, args = aten.copy_.default, (made, made.clone())
        tensors = [] if made is None else list(made) if isinstance(made, tuple | list) else [made]
        looks = func is BY_LENGTHS or any(tag in func.tags for tag in UNREPEATABLE)
        if looks or not all(isinstance(t, Tensor) for t in tensors):
            self.problem = f"{func} looks at numbers"
            return
        given = list(tensors_in((*args, *kwargs.values())))
        if any(t.device.type != "cpu" or t.layout is not torch.strided for t in (*tensors, *given)):
            self.problem = f"{func} does not compute on the CPU, on plain tensors"
            return
        NATIVE.on.keep(tensors)
        schema = func._schema
        if func in MEMORY_ONLY:
            return
        if tensors and not schema.is_mutable and storages_of(tensors) <= storages_of(given):
            return  # a view: the memory is the same whenever the program runs
        if not NATIVE.on.note(schema.name, schema.overload_name, args, kwargs, tensors):
            self.problem = f"{func} cannot be called again"


# what takes numbers out of the memory of a tensor, or changes the memory itself, without an operation of torch
UNNOTED = {
    Tensor.tolist, Tensor.numpy, Tensor.__array__, Tensor.__dlpack__, Tensor.__repr__, Tensor.__format__,
    Tensor.__float__, Tensor.__int__, Tensor.__index__, Tensor.__complex__, Tensor.apply_, Tensor.map_, Tensor.map2_,
    Tensor.data_ptr, Tensor.storage, Tensor.untyped_storage, Tensor.__deepcopy__, Tensor.share_memory_,
    Tensor.data.__set__,  # type: ignore[attr-defined]
    torch.tensor_split, Tensor.tensor_split,
}  # fmt: skip
OF_LISTS = {torch.tensor, torch.as_tensor, torch.asarray, Tensor.new_tensor, Tensor.new}  # and of tensors in them
OF_NUMPY = ("from_numpy", "frombuffer", "from_dlpack")
OF_STATES = ("manual_seed", "seed", "set_rng_state")
UNSEEN = {name: getattr(torch, name) for name in (*OF_NUMPY, *OF_STATES)}  # they bypass modes, too


class Bypasses(TorchFunctionMode):
    """Finds what bypasses operations: such numbers would be those of the captured call for ever."""

    def __init__(self, notes: Notes) -> None:
        super().__init__()
        self.notes = notes

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = (*args, *kwargs.values())
        listed = func in OF_LISTS and list(tensors_in([x for x in given if not isinstance(x, Tensor)]))
        if listed or func in UNNOTED or any(isinstance(x, np.ndarray | np.generic) for x in given):
            self._tell(func)
        return func(*args, **kwargs)

    def _tell(self, func: Any) -> None:
        if Notes.active() is self.notes:  # not another thread, and not the notes themselves
            name = getattr(func, "__name__", func)
            self.notes.problem = f"{name} sets a state" if name in OF_STATES else f"{name} looks at numbers"

    def __enter__(self) -> Bypasses:
        for name, original in UNSEEN.items():
            setattr(torch, name, self._watched(original))
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        for name, original in UNSEEN.items():
            setattr(torch, name, original)

    def _watched(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            self._tell(function)
            return function(*args, **kwargs)

        return call
