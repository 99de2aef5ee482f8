"""Captured updates: when one is captured, when not, and that nothing but the speed tells."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from rlx.algos.redq import REDQ, REDQConfig
from rlx.algos.sac import SAC, SACConfig
from rlx.capturing import MOST_PROGRAMS, capturable
from rlx.nn import Adam, AdamW, RMSprop
from rlx.nn.native.choose import use_native
from rlx.types import Batch, Spec

pytestmark = pytest.mark.usefixtures("native")
BOX = Spec("x", (3,), "float32", "box", (2,), (-1.0, -1.0), (1.0, 1.0))


@pytest.fixture(autouse=True)
def _natively(native: None) -> None:
    use_native(True)
    torch.manual_seed(0)


@dataclass
class Toy:
    """As much of a learner as `capturable` looks at."""

    body: Callable[..., Any]
    cfg: Any = field(default_factory=lambda: SimpleNamespace(number=2.0))
    optimizers: dict[str, Any] = field(default_factory=dict)
    captures: bool = True
    captured: dict[Any, Any] = field(default_factory=dict)
    calls: int = 0

    @capturable
    def learn(self, *args: Any) -> Any:
        self.calls += 1
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


def test_shapes_that_always_change_are_not_captured() -> None:
    toy = Toy(lambda self, x: x.sum())
    for i in range(40):
        for _ in range(2):
            assert toy.learn(torch.ones(i)).item() == i
    assert toy.state.why_not is not None
    assert len(toy.state.programs) <= MOST_PROGRAMS


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (lambda self, x: x * x.sum().item(), "looks at numbers"),
        (lambda self, x: x[x > 0.0], "looks at numbers"),
        (lambda self, x: (x * torch.ones(2, requires_grad=True)).sum(), "is to be differentiated"),
    ],
)
def test_what_cannot_be_captured_runs_as_it_is(body: Callable[..., Any], why: str) -> None:
    toy = Toy(body)
    for i in range(5):
        x = torch.tensor([float(i), 1.0])
        assert torch.equal(toy.learn(x), body(toy, x))
    assert why in toy.state.why_not
    assert toy.calls == 5


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
    assert toy.calls == (2 if type(optimizer) is Adam else 5)


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


def test_without_native_nodes_nothing_is_captured() -> None:
    use_native(False)
    toy = Toy(lambda self, x: x + 1.0)
    for _ in range(4):
        toy.learn(torch.zeros(1))
    assert toy.calls == 4
    assert not toy.captured
