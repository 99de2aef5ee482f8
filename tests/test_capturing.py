"""Captured updates: when one is captured, when not, and that nothing but the speed tells."""

from __future__ import annotations

import copy
import functools
import gc
import pickle
import random
import threading
import weakref
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from rlx import capturing
from rlx.algos.a2c import A2C, A2CConfig
from rlx.algos.ppo import PPO, PPOConfig
from rlx.algos.redq import REDQ, REDQConfig
from rlx.algos.sac import SAC, SACConfig
from rlx.capturing import MOST_PROGRAMS, capturable
from rlx.nn import Adam, AdamW, Critic, RMSprop
from rlx.nn.native.choose import use_native
from rlx.types import Batch, Rollout, Spec

pytestmark = pytest.mark.usefixtures("native")
BOX = Spec("x", (3,), "float32", "box", (2,), (-1.0, -1.0), (1.0, 1.0))


@pytest.fixture(autouse=True)
def _natively(native: None) -> None:
    use_native(True)
    torch.manual_seed(0)


class Numbers:
    """A config of any numbers."""

    def __init__(self, **numbers: Any):
        vars(self).update(numbers)


CALLS: Counter[int] = Counter()  # of bodies; a learner that counted them itself would not be captured


@dataclass
class Toy:
    """As much of a learner as `capturable` looks at."""

    body: Callable[..., Any]
    cfg: Any = field(default_factory=lambda: Numbers(number=2.0))
    optimizers: dict[str, Any] = field(default_factory=dict)
    captures: bool = True
    captured: dict[Any, Any] = field(default_factory=dict)
    seen: list[Any] = field(default_factory=list)
    kept: Any = None

    def __post_init__(self) -> None:
        CALLS[id(self)] = 0

    @property
    def calls(self) -> int:
        return CALLS[id(self)]

    @capturable
    def learn(self, *args: Any) -> Any:
        CALLS[id(self)] += 1
        return self.body(self, *args)

    @property
    def state(self) -> Any:
        (state,) = self.captured.values()
        return state


def test_from_the_third_call_on_python_is_not_asked() -> None:
    toy = Toy(lambda self, x: {"y": x * self.cfg.number + 1.0})
    for i in range(6):
        assert toy.learn(torch.full((3,), float(i)))["y"].tolist() == [2.0 * i + 1.0] * 3
    assert toy.calls == 2


def test_results_are_not_written_over() -> None:
    toy = Toy(lambda self, x: (x + 1.0, {"sum": x.sum()}))
    kept = [toy.learn(torch.full((2,), float(i))) for i in range(5)]
    assert [y.tolist() for y, _ in kept] == [[i + 1.0] * 2 for i in range(5)]
    assert [told["sum"].item() for _, told in kept] == [2.0 * i for i in range(5)]


def test_what_is_given_stays_as_it_was() -> None:
    toy = Toy(lambda self, x: x.mul_(2.0).clone())
    for i in range(4):
        x = torch.ones(2)
        assert toy.learn(x).tolist() == [2.0, 2.0]
        assert x.tolist() == ([2.0, 2.0] if i == 0 else [1.0, 1.0])  # captured: a copy of it is changed


def test_random_numbers_are_those_of_single_operations() -> None:
    def body(self: Toy, x: Tensor) -> Tensor:
        return x + torch.randn(3) * torch.rand(3) + torch.randperm(3) + torch.empty(3).bernoulli_(0.5)

    drawn = []
    for captures in (False, True):
        torch.manual_seed(7)
        toy = Toy(body, captures=captures)
        drawn.append(torch.stack([toy.learn(torch.zeros(3)) for _ in range(6)]))
    assert torch.equal(*drawn)
    assert toy.state.programs


@pytest.mark.parametrize("place", [0, 1, 2])
def test_nan_is_the_largest_and_the_smallest(place: int) -> None:
    toy = Toy(lambda self, x: (x.amax(0), x.amin(0), x.amax(1), x.abs(), -x))
    for _ in range(4):
        x = torch.randn(3, 3)
        x[place, 1] = float("nan")
        for made, single in zip(toy.learn(x), toy.body(toy, x), strict=True):
            assert torch.equal(made.isnan(), single.isnan())
            assert torch.equal(made.nan_to_num(), single.nan_to_num())
    assert toy.calls == 2


def test_the_largest_of_one_number_is_that_number() -> None:
    toy = Toy(lambda self, x: (x.sum().amax(0), x.sum().amin(-1)))
    for i in range(4):
        assert [y.item() for y in toy.learn(torch.full((2,), float(i)))] == [2.0 * i] * 2
    assert toy.calls == 2


def test_an_operation_that_makes_another_shape_than_before_is_an_error() -> None:
    """Not a number that is repeated until it fits."""
    with torch.library._scoped_library("rlx_tests", "FRAGMENT") as library:
        library.define("first(Tensor x, Tensor n) -> Tensor")
        library.impl("first", lambda x, n: x[: int(n)].clone(), "CompositeExplicitAutograd")
        toy = Toy(lambda self, x, n: torch.ops.rlx_tests.first(x, n))
        for n in (3, 3, 3):
            assert toy.learn(torch.arange(4.0), torch.tensor(n)).tolist() == [0.0, 1.0, 2.0]
        with pytest.raises(RuntimeError, match="first gave another shape than when it was captured"):
            toy.learn(torch.arange(4.0), torch.tensor(1))


def test_other_shapes_and_arguments_have_programs_of_their_own() -> None:
    toy = Toy(lambda self, x, twice: x * 2.0 if twice else x.clone())
    for i in range(4):
        for n in (2, 3):
            for twice in (True, False):
                assert toy.learn(torch.full((n,), float(i)), twice).tolist() == [i * (1.0 + twice)] * n
    assert len(toy.state.programs) == 4
    assert toy.calls == 8


def test_a_number_of_the_config_that_changes_is_seen() -> None:
    toy = Toy(lambda self, x: x * self.cfg.number)
    made = []
    for i in range(12):
        toy.cfg.number = float(i // 4)
        made.append(toy.learn(torch.ones(1)).item())
    assert made == [float(i // 4) for i in range(12)]
    assert toy.state.programs


def test_numbers_that_always_change_are_not_captured() -> None:
    toy = Toy(lambda self, x: x * self.cfg.number)
    for i in range(60):
        toy.cfg.number = float(i)
        assert toy.learn(torch.ones(1)).item() == i
    assert toy.state.why_not == "its arguments or numbers change too often"
    assert not toy.state.programs


class Weighted(torch.nn.Module):
    def __init__(self, weight: float):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((3,), weight))
        self.factor = 1.0
        self.dropout = torch.nn.Dropout(1.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.weight * x * self.factor).detach()


def still(network: torch.nn.Module) -> Adam:
    optimizer = Adam(network.parameters(), 0.1)
    optimizer.scale = 0.0
    return optimizer


class Whole(torch.nn.Module):
    """A learner with networks and an optimizer."""

    default = 1.0  # of the class

    def __init__(self) -> None:
        super().__init__()
        self.cfg = Numbers(scale=1.0, list=[1.0], only_acting=0.0)
        self.q, self.other = Weighted(1.0).eval(), Weighted(5.0).eval()
        self.number: Any = 1.0
        self.nested = {"numbers": [torch.ones(()), 1.0]}
        self.optimizers: dict[str, Any] = {"q": still(self.q)}
        self.captures, self.captured, self.updates = True, {}, 0

    def update(self, x: Tensor) -> Tensor:
        self.updates += 1
        y: Tensor = self.learn(x)
        return y

    @capturable
    def learn(self, x: Tensor) -> Tensor:
        CALLS[id(self)] += 1
        factor, number = self.nested["numbers"]
        optimizer = self.optimizers["q"]
        optimizer.minimize((optimizer.params[0] * x).sum())
        return self.q(x) * self.number * self.cfg.scale * self.cfg.list[0] * factor * number * self.default


def share(whole: Whole) -> None:
    whole.q.share_memory()


@pytest.mark.parametrize(
    "change",
    [
        lambda whole: setattr(whole.q.weight, "data", torch.full((3,), 7.0)),
        lambda whole: setattr(whole.q, "weight", torch.nn.Parameter(torch.full((3,), 7.0))),
        lambda whole: setattr(whole, "q", whole.other),
        lambda whole: setattr(whole, "number", 7.0),
        lambda whole: setattr(whole, "number", torch.tensor(7.0)),
        lambda whole: setattr(whole, "default", 7.0),
        lambda whole: setattr(whole, "cfg", Numbers(scale=7.0, list=[1.0])),
        lambda whole: setattr(whole.cfg, "scale", 7.0),
        lambda whole: whole.cfg.list.__setitem__(0, 7.0),
        lambda whole: whole.nested["numbers"].__setitem__(0, torch.tensor(7.0)),
        lambda whole: whole.nested["numbers"].__setitem__(1, 7.0),
        lambda whole: setattr(whole.q, "factor", 7.0),
        lambda whole: whole.q.train(),
        lambda whole: setattr(whole.optimizers["q"], "betas", (0.5, 0.5)),
        lambda whole: setattr(whole.optimizers["q"], "max_grad_norm", 1e-3),
        lambda whole: whole.optimizers.__setitem__("q", still(whole.other)),
        share,
    ],
)
def test_what_is_replaced_after_a_capture_is_seen(change: Callable[[Whole], Any]) -> None:
    """Once: the next call runs from Python, and the one after that as it was captured then."""
    torch.manual_seed(0)
    whole = Whole()
    for _ in range(4):
        whole.update(torch.ones(3))
    calls, x = CALLS[id(whole)], torch.ones(3)
    change(whole)
    made = whole.update(x)
    assert CALLS[id(whole)] == calls + 1
    single = whole.q(x) * whole.number * whole.cfg.scale * whole.cfg.list[0] * whole.default
    assert torch.equal(made, single * whole.nested["numbers"][0] * whole.nested["numbers"][1])
    assert torch.equal(whole.update(x), made)
    assert CALLS[id(whole)] == calls + 1


@pytest.mark.parametrize("register", ["register_forward_hook", "register_forward_pre_hook"])
@pytest.mark.parametrize("before", [0, 4])
def test_hooks_of_networks_are_called_each_time(register: str, before: int) -> None:
    whole, seen = Whole(), []
    for _ in range(before):
        whole.update(torch.ones(3))
    getattr(whole.q, register)(lambda *given: seen.append(given))
    for _ in range(5):
        whole.update(torch.ones(3))
    assert len(seen) == 5


def test_what_only_acting_reads_may_change() -> None:
    whole = Whole()
    for i in range(40):
        whole.cfg.only_acting = i / 40.0
        whole.optimizers["q"].scale = 1.0 - i / 40.0
        whole.update(torch.ones(3))
    assert CALLS[id(whole)] == 2


def test_a_counter_is_found_out() -> None:
    def body(self: Toy, x: Tensor) -> Tensor:
        self.kept = (self.kept or 0) + 1
        return x * self.kept

    toy = Toy(body)
    assert [toy.learn(torch.ones(1)).item() for _ in range(5)] == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert toy.state.why_not == "it sets self.kept"


def test_a_counter_outside_is_found_out_where_it_is_read() -> None:
    toy = Toy(lambda self, x: x * self.kept)
    for i in range(60):
        toy.kept = i
        assert toy.learn(torch.ones(1)).item() == i
    assert toy.state.why_not == "its arguments or numbers change too often"


@pytest.mark.parametrize("draw", [random.random, np.random.rand])
def test_draws_of_other_generators_are_found_out(draw: Callable[[], float]) -> None:
    toy = Toy(lambda self, x: x + draw())
    assert len({toy.learn(torch.zeros(1)).item() for _ in range(5)}) == 5
    assert toy.state.why_not == "it draws numbers from NumPy or Python"


@pytest.mark.parametrize("make", [torch.tensor, torch.as_tensor, torch.Tensor, torch.asarray])
def test_a_constant_that_is_written_to_starts_anew(make: Any) -> None:
    def body(self: Toy, x: Tensor) -> Tensor:
        total = make([0.0, 1.0])
        for part in x:
            total += part
        return total

    toy = Toy(body)
    assert [toy.learn(torch.ones(3)).tolist() for _ in range(5)] == [[3.0, 4.0]] * 5
    assert toy.calls == 2


def test_a_result_without_memory_of_its_own_is_copied() -> None:
    toy = Toy(lambda self, x: (x.sum().expand(3), x[::2]))
    for i in range(5):
        total, some = toy.learn(torch.full((4,), float(i)))
        assert total.tolist() == [4.0 * i] * 3
        assert some.tolist() == [i, i]
    assert toy.calls == 2


def test_other_devices_are_left_to_python() -> None:
    toy = Toy(lambda self, x: torch.ones(3, device="meta") + 1.0)
    assert [toy.learn(torch.zeros(3)).device.type for _ in range(5)] == ["meta"] * 5
    assert toy.calls == 5


def test_a_graph_from_before_a_run_is_refused_after_it() -> None:
    """What a program writes to counts as changed, as it does without it."""
    whole = Whole()
    for _ in range(3):
        whole.update(torch.ones(3))
    loss = whole.q.weight.square().sum()
    whole.update(torch.ones(3))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_an_interrupt_while_something_is_noted_is_an_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(BaseException):
        pass

    def interrupted(*_: Any) -> None:
        raise Interrupted

    whole = Whole()
    whole.update(torch.ones(3))
    with monkeypatch.context() as patch:
        patch.setattr(capturing.Notes, "_note", interrupted)
        with pytest.raises(Interrupted):
            whole.update(torch.ones(3))
    assert type(whole) is Whole
    assert type(whole.cfg) is Numbers


def test_a_learner_that_nobody_needs_is_freed() -> None:
    whole = Whole()
    for _ in range(4):
        whole.update(torch.ones(3))
    gone = weakref.ref(whole)
    weight = weakref.ref(whole.q.weight)
    del whole
    gc.collect()
    assert gone() is None
    assert weight() is None


def test_as_many_shapes_as_there_may_be_programs_are_captured() -> None:
    toy = Toy(lambda self, x: x.sum())
    for _ in range(5):
        for n in range(MOST_PROGRAMS):
            assert toy.learn(torch.ones(n)).item() == n
    assert len(toy.state.programs) == MOST_PROGRAMS == 8
    assert toy.calls == 2 * MOST_PROGRAMS


def test_the_newest_programs_are_kept() -> None:
    toy = Toy(lambda self, x: x.sum())
    for n in range(MOST_PROGRAMS + 2):
        for _ in range(20):
            toy.learn(torch.ones(n))
    assert len(toy.state.programs) == MOST_PROGRAMS
    calls = toy.calls
    toy.learn(torch.ones(2))
    assert toy.calls == calls
    toy.learn(torch.ones(1))
    assert toy.calls == calls + 1


def test_numbers_that_change_now_and_then_are_captured_anew() -> None:
    toy = Toy(lambda self, x: x * self.cfg.number)
    for i in range(400):
        toy.cfg.number = float(i // 20)
        assert toy.learn(torch.ones(1)).item() == i // 20
    assert toy.state.why_not is None
    assert toy.calls == 21


def test_shapes_that_always_change_are_not_captured() -> None:
    toy = Toy(lambda self, x: x.sum())
    for i in range(40):
        for _ in range(2):
            assert toy.learn(torch.ones(i)).item() == i
    assert toy.state.why_not is not None
    assert len(toy.state.programs) <= MOST_PROGRAMS


def with_data(self: Toy, x: Tensor) -> Tensor:
    y = torch.zeros(2)
    y.data = x + 1.0
    return y


def packed(self: Toy, x: Tensor) -> Tensor:
    rows = torch.nn.utils.rnn.pack_padded_sequence(torch.ones(4, 1), x.long()[:1].clamp(1, 4))
    return rows.data + x[0]


def seeded(self: Toy, x: Tensor) -> Tensor:
    torch.manual_seed(3)
    return x + torch.rand(2)


def forked(self: Toy, x: Tensor) -> Tensor:
    with torch.random.fork_rng(devices=[]):
        return x + torch.rand(2)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (lambda self, x: x * x.sum().item(), "looks at numbers"),
        (lambda self, x: x[x > 0.0], "looks at numbers"),
        (lambda self, x: x if x.sum() > 2.0 else -x, "looks at numbers"),
        (lambda self, x: x * x.tolist()[0], "looks at numbers"),
        (lambda self, x: x * float(x.numpy()[0]), "looks at numbers"),
        (lambda self, x: x * float(np.asarray(x)[0]), "looks at numbers"),
        (lambda self, x: x * float(np.from_dlpack(x)[0]), "looks at numbers"),
        (lambda self, x: x * x.untyped_storage()[0], "looks at numbers"),
        (lambda self, x: torch.from_numpy(x.numpy() + 1.0), "looks at numbers"),
        (lambda self, x: x + torch.from_numpy(np.full(2, len(self.seen))), "looks at numbers"),
        (lambda self, x: x + torch.as_tensor(np.full(2, len(self.seen))), "looks at numbers"),
        (lambda self, x: copy.deepcopy(x) + 1.0, "looks at numbers"),
        (with_data, "looks at numbers"),
        (lambda self, x: torch.tensor_split(x, x.long()[:1])[1], "looks at numbers"),
        (lambda self, x: torch.tensor([x[0], 1.0]), "looks at numbers"),
        (lambda self, x: torch.as_tensor([[1.0], (x[0],)]), "looks at numbers"),
        (lambda self, x: torch.asarray([x[0], 1.0]), "looks at numbers"),
        (lambda self, x: torch.Tensor([x[0], 1.0]), "looks at numbers"),
        (lambda self, x: torch.LongTensor([x[0].long()]), "looks at numbers"),
        (lambda self, x: x.new_tensor(data=[x[0]]), "looks at numbers"),
        (lambda self, x: x.new([x[0]]), "looks at numbers"),
        (lambda self, x: x.clone().apply_(lambda number: number + 1.0), "looks at numbers"),
        (lambda self, x: x.clone().map_(x, lambda a, b: a + b), "looks at numbers"),
        (seeded, "sets a state"),
        (forked, "sets a state"),
        (packed, "looks at numbers"),
        (lambda self, x: x.to_sparse().to_dense(), "does not compute on the CPU, on plain tensors"),
        (lambda self, x: F.rrelu(x - 3.0, 0.25, 0.25, training=True), "cannot be called again"),
        (lambda self, x: (x * torch.ones(2, requires_grad=True)).sum(), "is to be differentiated"),
        (lambda self, x: SimpleNamespace(y=x + 1.0), "result cannot be captured"),
        (lambda self, x: Pair((x + 1.0, x)), "result cannot be captured"),
    ],
)
def test_what_cannot_be_captured_runs_as_it_is(body: Callable[..., Any], why: str) -> None:
    toy = Toy(body)
    results = []
    for i in range(5):
        x = torch.tensor([float(i), 1.0])
        results.append((toy.learn(x), body(toy, x)))
        toy.seen.append(x)
    for made, single in results:
        assert repr(made) == repr(single)
    assert why in toy.state.why_not
    assert toy.calls == 5


class Pair(tuple):
    """More than a tuple: nobody knows how to make one of two tensors."""


class Two(NamedTuple):
    a: Any
    b: Any


@pytest.mark.parametrize(
    ("make", "captured"),
    [
        (lambda x, y: [x, y], True),
        (lambda x, y: (x, [y, {"a": [x]}], None, 3), True),
        (lambda x, y: {"a": x, "b": {"c": (y,)}}, True),
        (lambda x, y: Two([x], Two(y, "word")), True),
        (lambda x, y: OrderedDict(a=x, b=y), False),
        (lambda x, y: [Pair((x, y))], False),
        (lambda x, y: SimpleNamespace(a=x, b=y), False),
        (lambda x, y: (x, np.arange(3), y), False),
        (lambda x, y: (x, x.shape, y), False),
    ],
)
def test_arguments_and_results_of_any_structure(make: Any, captured: bool) -> None:
    """They go in and come out as they are, or are left to Python."""

    def body(self: Toy, given: Any) -> tuple[Any, Any]:
        x, y = found_in(given)
        return make(x + 1.0, x - y), y * 2.0

    toy = Toy(body)
    results = [toy.learn(make(torch.full((2,), float(i)), torch.full((3, 1), 2.0 * i))) for i in range(6)]
    for i, (made, last) in enumerate(results):
        x, y = torch.full((2,), float(i)), torch.full((3, 1), 2.0 * i)
        assert repr(made) == repr(make(x + 1.0, x - y))
        assert torch.equal(last, y * 2.0)
    assert toy.calls == (2 if captured else 6)


def found_in(given: Any) -> tuple[Tensor, Tensor]:
    """The first two tensors of a structure."""
    found: list[Tensor] = []

    def walk(value: Any) -> None:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, SimpleNamespace):
            walk(vars(value))
        elif isinstance(value, tuple | list):
            for part in value:
                walk(part)
        elif isinstance(value, dict):
            walk(list(value.values()))

    walk(given)
    return found[0], found[1]


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (lambda x, y: {"a": x, "b": y}, lambda x, y: {"b": y, "a": x}),
        (lambda x, y: {"a": x, "b": y}, lambda x, y: {"a": x, "c": y}),
        (lambda x, y: (x, 1.0, y), lambda x, y: (1.0, x, y)),
        (lambda x, y: ((x, y), x), lambda x, y: ((x,), (y, x))),
        (lambda x, y: (x, y), lambda x, y: [x, y]),
        (lambda x, y: (x, y), lambda x, y: Two(x, y)),
        (lambda x, y: (x, 1), lambda x, y: (x, True)),
        (lambda x, y: (x, y), lambda x, y: (x, y.clone().requires_grad_())),
    ],
)
def test_arguments_of_another_structure_are_another_program(first: Any, then: Any) -> None:
    toy = Toy(lambda self, given: str(type(given)))
    for _ in range(4):
        toy.learn(first(torch.ones(2), torch.zeros(2)))
    assert toy.calls == 2
    toy.learn(then(torch.ones(2), torch.zeros(2)))
    assert toy.calls == 3


@pytest.mark.parametrize("keep", [lambda self, x: setattr(self, "kept", x), lambda self, x: self.seen.append([x])])
def test_a_tensor_that_is_kept_is_not_written_over(keep: Any) -> None:
    def body(self: Toy, x: Tensor) -> Tensor:
        keep(self, y := x + 1.0)
        return y.sum()

    toy = Toy(body)
    kept = []
    for i in range(5):
        toy.learn(torch.full((1,), float(i)))
        kept.append(toy.seen[-1][0] if toy.seen else toy.kept)
    assert [x.item() for x in kept] == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert toy.state.why_not in ("it sets self.kept", "it keeps a tensor in self.seen")


def test_a_captured_method_may_call_another() -> None:
    """Of its own learner, as part of it; of another one, whose config it does not watch, from Python."""

    @dataclass
    class Both(Toy):
        @capturable
        def twice(self, x: Tensor) -> Any:
            CALLS[id(self)] += 1
            return self.learn(self.learn(x))

    toy = Both(lambda self, x: x * self.cfg.number)
    assert [toy.twice(torch.full((1,), float(i))).item() for i in range(6)] == [4.0 * i for i in range(6)]
    (outer,) = [state for state in toy.captured.values() if state.method.__name__ == "twice"]
    assert len(outer.programs) == 1

    inner = Toy(lambda self, x: x * self.cfg.number)
    toy = Toy(lambda self, x: inner.learn(x) + 1.0)
    for i in range(8):
        inner.cfg.number = float(i // 4)
        assert toy.learn(torch.ones(1)).item() == i // 4 + 1.0
    assert "another learner" in toy.state.why_not
    assert inner.state.programs


def test_another_thread_may_learn_while_something_is_captured() -> None:
    """What is read after the other one has been captured is watched all the same."""

    def learn_elsewhere() -> None:
        other = Toy(lambda self, x: x + 1.0)
        for _ in range(3):
            other.learn(torch.zeros(1))

    def body(self: Toy, x: Tensor) -> Tensor:
        thread = threading.Thread(target=learn_elsewhere)
        thread.start()
        thread.join()
        return x * self.cfg.number

    toy = Toy(body)
    for i in range(8):
        toy.cfg.number = float(i // 4)
        assert toy.learn(torch.ones(1)).item() == i // 4
    assert toy.calls == 3


def test_an_interrupt_before_anything_is_noted_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(learner: Any) -> None:
        raise KeyboardInterrupt

    toy = Toy(lambda self, x: x + 1.0)
    toy.learn(torch.zeros(1))
    with monkeypatch.context() as patch:
        patch.setattr(capturing, "Notes", interrupted)
        patch.setattr(interrupted, "active", lambda: None, raising=False)
        with pytest.raises(KeyboardInterrupt):
            toy.learn(torch.zeros(1))
    assert [toy.learn(torch.full((1,), float(i))).item() for i in range(4)] == [1.0, 2.0, 3.0, 4.0]
    assert toy.state.programs


def test_torch_is_as_it_was_after_a_capture() -> None:
    before = torch.from_numpy
    toy = Toy(lambda self, x: x + 1.0)
    for _ in range(3):
        toy.learn(torch.zeros(1))
    assert torch.from_numpy is before


def test_errors_of_captured_operations_are_those_of_torch() -> None:
    toy = Toy(lambda self, x, place: x.scatter(0, place, 1.0))
    for _ in range(4):
        toy.learn(torch.zeros(2), torch.tensor([1]))
    messages = []
    for call in (toy.learn, functools.partial(toy.body, toy)):
        with pytest.raises(RuntimeError) as error:
            call(torch.zeros(2), torch.tensor([7]))
        messages.append(str(error.value))
    assert messages[0] == messages[1]
    assert toy.calls == 2


def test_an_error_in_a_captured_call_is_raised_and_the_next_call_works() -> None:
    def body(self: Toy, x: Tensor) -> Tensor:
        if self.calls == 2:
            raise ArithmeticError("two")
        return x + 1.0

    toy = Toy(body)
    toy.learn(torch.zeros(1))
    with pytest.raises(ArithmeticError, match="two"):
        toy.learn(torch.zeros(1))
    assert [toy.learn(torch.full((1,), float(i))).item() for i in range(4)] == [1.0, 2.0, 3.0, 4.0]


def step_down(self: Toy, x: Tensor) -> None:
    (optimizer,) = self.optimizers.values()
    optimizer.minimize((optimizer.params[0] * x).square().sum())


@pytest.mark.parametrize(
    "make",
    [lambda p: Adam(p, 0.1), lambda p: AdamW(p, 0.1, weight_decay=0.1), lambda p: RMSprop(p, 0.1, 0.9, 1e-5)],
)
def test_learning_rates_may_move(make: Any) -> None:
    """One that is looked up when a step is made keeps its program; the others are captured anew."""
    ways = []
    for captures in (False, True):
        weight = torch.nn.Parameter(torch.ones(3))
        optimizer = make([weight])
        toy = Toy(step_down, captures=captures)
        toy.optimizers["a"] = optimizer
        for i in range(40):
            optimizer.scale = 0.5 ** (i // 10)
            toy.learn(torch.full((3,), 1.0 + i))
        ways.append(weight.detach().clone())
    assert torch.equal(*ways)
    assert toy.state.programs
    assert toy.calls == (5 if type(optimizer) is AdamW else 2)


def batch(rows: Tensor) -> Batch:
    """Views of rows, as a replay gives them."""
    return Batch(rows[:, :3], rows[:, 3:5], rows[:, 5], rows[:, 6:9], rows[:, 9], rows[:, 10])


def gathered(n: int, size: int) -> list[Batch]:
    whole = torch.randn(n * size, 11).clamp_(-0.9, 0.9)
    whole[:, 9], whole[:, 10] = 0.0, 0.99
    return [batch(part) for part in whole.split(size)]


def test_the_minibatches_of_a_burst_share_a_program() -> None:
    learner = SAC(SACConfig(hidden=[16, 16]), BOX)
    for part in gathered(20, 32):
        learner.update(part)
    (state,) = learner.captured.values()
    assert len(state.programs) == 1
    lonely = [Batch(*(x.clone() if x is not None else None for x in part)) for part in gathered(3, 32)]
    for part in lonely:  # rows that do not lie side by side are another program
        learner.update(part)
    assert len(state.programs) == 2


def test_arguments_that_lie_in_another_order_are_another_program() -> None:
    """A program copies rows in one piece, and what lies elsewhere in them is not what it was captured with."""
    toy = Toy(lambda self, x, y: x - y)
    for i in range(4):
        rows = torch.arange(6.0).view(3, 2) + i
        assert torch.equal(toy.learn(rows[:, 0], rows[:, 1]), rows[:, 0] - rows[:, 1])
    assert toy.calls == 2
    rows = torch.arange(6.0).view(3, 2)
    assert torch.equal(toy.learn(rows[:, 1], rows[:, 0]), rows[:, 1] - rows[:, 0])
    other = torch.arange(6.0).view(3, 2) * 2.0
    assert torch.equal(toy.learn(rows[:, 0], other[:, 1]), rows[:, 0] - other[:, 1])
    assert torch.equal(toy.learn(rows[:, 0], rows[:, 0]), torch.zeros(3))


def test_arguments_of_several_types_may_lie_in_one_piece_of_memory() -> None:
    """Where a wide number does not begin at a multiple of its size from the first of them, too."""
    toy = Toy(lambda self, x, y: (x + 1.0, y + 1))
    for i in range(4):
        memory = torch.zeros(24, dtype=torch.uint8)
        x, y = memory[4:8].view(torch.float32), memory[8:].view(torch.int64)
        x.fill_(i), y.copy_(torch.tensor([10 * i, 10 * i + 1]))
        made, others = toy.learn(x, y)
        assert made.tolist() == [i + 1.0]
        assert others.tolist() == [10 * i + 1, 10 * i + 2]
    assert toy.calls == 2


def test_gradients_go_to_the_members_that_are_drawn_now() -> None:
    """An index that changes from run to run is looked up on the way back, too."""
    critic, ways = Critic(3, 2, [8], n=4), []

    def body(self: Toy, obs: Tensor, action: Tensor, members: Tensor) -> Tensor:
        action = action.detach().requires_grad_()
        return torch.autograd.grad(critic(obs, action, frozen=True, members=members).sum(), action)[0]

    batches = [(torch.randn(5, 3), torch.randn(5, 2), torch.randperm(4)[:2]) for _ in range(8)]
    for captures in (False, True):
        toy = Toy(body, captures=captures)
        ways.append([toy.learn(*part) for part in batches])
    assert toy.calls == 2
    assert all(map(torch.equal, *ways))


def rollouts(n: int) -> list[Rollout]:
    made = []
    for _ in range(n):
        obs, action = torch.randn(17, 4, 3), torch.randn(16, 4, 2)
        ends = torch.rand(16, 4) < 0.1
        made.append(Rollout(obs[:-1], action, torch.randn(16, 4), obs[1:], ends.float(), torch.zeros(16, 4)))
    return made


@pytest.mark.parametrize(
    ("make", "scheduled"),
    [
        (lambda: PPO(PPOConfig(hidden=[8], lr=0.02, batch_size=24, epochs=3, target_kl=0.01), BOX), False),
        (lambda: A2C(A2CConfig(hidden=[8]), BOX), True),
    ],
)
def test_on_policy_updates_are_captured_as_a_whole(make: Any, scheduled: bool) -> None:
    """Also where PPO looks at the divergence between gradient and step, and where A2C's learning rate is scheduled."""
    batches, start, ways = rollouts(8), make().state_dict(), []
    for captures in (False, True):
        learner = make()
        learner.load_state_dict(start)
        learner.captures = captures
        torch.manual_seed(1)
        metrics = []
        for i, part in enumerate(batches):
            learner.optimizers["policy"].scale = 1.0 - i / 10.0 if scheduled else 1.0
            metrics.append(learner.update(part))
        ways.append((learner.tensors(), metrics))
    assert all(torch.equal(ways[1][0][name], tensor) for name, tensor in ways[0][0].items())
    for told, again in zip(ways[0][1], ways[1][1], strict=True):
        assert all(torch.equal(told[name], again[name]) for name in told)
    assert learner.captured
    assert all(state.why_not is None and state.programs for state in learner.captured.values())
    assert all(state._captures <= 2 for state in learner.captured.values())  # two sizes of minibatches
    if not scheduled:
        steps = [told["gradient_steps"].item() for told in ways[0][1]]
        assert 1.0 < min(steps) < 9.0  # cut short


def test_the_members_that_a_target_takes_are_drawn_anew() -> None:
    """REDQ's subset is looked up when a program runs."""
    ways = []
    batches = gathered(12, 16)
    start = REDQ(REDQConfig(hidden=[8], critics=5), BOX).state_dict()
    for captures in (False, True):
        learner = REDQ(REDQConfig(hidden=[8], critics=5), BOX)
        learner.load_state_dict(start)
        learner.captures = captures
        torch.manual_seed(1)
        for part in batches:
            learner.update(part)
        ways.append(learner.tensors())
    assert all(torch.equal(ways[1][name], tensor) for name, tensor in ways[0].items())


def test_a_copy_of_a_learner_captures_for_itself() -> None:
    learner = SAC(SACConfig(hidden=[8]), BOX)
    for part in gathered(4, 16):
        learner.update(part)
    twin = copy.deepcopy(learner)
    before = {name: tensor.clone() for name, tensor in learner.tensors().items()}
    for part in gathered(4, 16):
        twin.update(part)
    assert all(torch.equal(before[name], tensor) for name, tensor in learner.tensors().items())
    assert any(not torch.equal(before[name], tensor) for name, tensor in twin.tensors().items())


def test_a_learner_can_be_pickled() -> None:
    learner = SAC(SACConfig(hidden=[8]), BOX)
    for part in gathered(4, 16):
        learner.update(part)
    twin = pickle.loads(pickle.dumps(learner))
    assert learner.captured
    assert not twin.captured
    assert all(torch.equal(twin.tensors()[name], tensor) for name, tensor in learner.tensors().items())


def test_without_native_nodes_nothing_is_captured() -> None:
    use_native(False)
    toy = Toy(lambda self, x: x + 1.0)
    for _ in range(4):
        toy.learn(torch.zeros(1))
    assert toy.calls == 4
    assert not toy.captured
