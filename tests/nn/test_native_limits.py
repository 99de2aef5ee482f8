"""Where the native nodes leave the work to Python: gradients of gradients, transforms, and tensors without numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from rlx.losses import critic_loss, soft_actor_loss
from rlx.nn import MLP, Critic
from rlx.nn.fused import SquashedSample, run_mlp
from rlx.nn.native import NATIVE
from rlx.nn.native.choose import use_native

pytestmark = pytest.mark.usefixtures("native")


def both_ways(compute: Callable[[], Any]) -> tuple[Any, Any]:
    made = []
    for on in (False, True):
        use_native(on)
        torch.manual_seed(0)
        made.append(compute())
    return made[0], made[1]


@pytest.mark.parametrize("members", [torch.tensor([1, 0]), torch.tensor([2]), slice(1), slice(1, 3)])
def test_gradients_of_gradients_by_members(members: Any) -> None:
    critic = Critic(3, 2, [8], n=3)

    def compute() -> Tensor:
        action = torch.randn(5, 2, requires_grad=True)
        values = critic(torch.randn(5, 3), action, frozen=True, members=members)
        first = torch.autograd.grad(values.square().sum(), action, create_graph=True)[0]
        return torch.autograd.grad(first.square().sum(), action)[0]

    torch.testing.assert_close(*both_ways(compute))


@pytest.mark.parametrize(
    "loss",
    [
        lambda q: critic_loss(q, torch.arange(4.0), 0.5)[0],
        lambda q: soft_actor_loss(q[0], q[1], torch.tensor(0.3))[0],
    ],
)
def test_gradients_of_gradients_of_losses(loss: Callable[[Tensor], Tensor]) -> None:
    def compute() -> tuple[Tensor, Tensor]:
        x = torch.randn(2, 4, requires_grad=True)
        first = torch.autograd.grad(loss(x**3), x, create_graph=True)[0]
        return first.detach(), torch.autograd.grad(first.square().sum(), x)[0]

    for plain, native in zip(*both_ways(compute), strict=True):
        torch.testing.assert_close(native, plain)


def test_samples_that_were_changed_have_no_gradients() -> None:
    for part in ("head", "action"):
        head = torch.zeros(3, 4, requires_grad=True)
        seen = head * 1.0
        action, _ = NATIVE.on.squashed(seen, torch.ones(3, 2))
        with torch.no_grad():
            (seen if part == "head" else action).mul_(2.0)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            torch.autograd.grad(action.sum(), head)


@torch.no_grad()
def test_transforms_see_the_operations_of_python() -> None:
    network, x = MLP([3, 8, 2]), torch.randn(4, 3)
    torch.testing.assert_close(torch.vmap(network)(x), torch.stack([network(row) for row in x]))
    _, tangent = torch.func.jvp(network, (x,), (torch.ones_like(x),))
    assert tangent.abs().sum() > 0.0
    traced = torch.jit.trace(network, x, check_trace=False)
    torch.testing.assert_close(traced(2.0 * x), network(2.0 * x))


def test_networks_compile_as_a_whole() -> None:
    network, x = MLP([3, 8, 2]), torch.randn(4, 3)
    compiled = torch.compile(network, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), network(x))


def test_tensors_without_numbers_are_left_to_python() -> None:
    network = MLP([3, 8, 2])
    with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True):
        assert network(torch.randn(4, 3)).shape == (4, 2)


def test_masks_that_do_not_fit_are_refused() -> None:
    """Repeated members would read beyond the masks of an ensemble."""
    network = MLP([3, 8, 1], ensemble=2, dropout=0.5)
    members = torch.tensor([1, 0, 1, 0, 1, 0, 1, 0])
    with torch.no_grad():
        assert network(torch.randn(4, 3), members=members).abs().max() < 100.0


def test_networks_whose_layers_do_not_fit_are_refused() -> None:
    x, first, last = torch.randn(4, 3), torch.randn(3, 8), torch.randn(7, 2)
    for bias in (torch.zeros(8), torch.zeros(5)):
        assert NATIVE.on.mlp(x, None, [first, bias, last, torch.zeros(2)], 2, 0, False, None, None, 1.0) is None


def test_a_changed_sample_of_python_is_refused_as_well() -> None:
    use_native(False)
    head = torch.zeros(3, 4, requires_grad=True)
    action, _ = SquashedSample.apply(head * 1.0, torch.ones(3, 2))
    with torch.no_grad():
        action.mul_(2.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(action.sum(), head)


def test_plain_layers_run_as_before() -> None:
    network = MLP([3, 8, 2])
    x = torch.randn(4, 3)
    torch.testing.assert_close(*both_ways(lambda: run_mlp(x, None, network.layers(), "relu").detach()))
