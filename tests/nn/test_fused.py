"""Gradients that are written by hand against autograd and against differences."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from rlx.nn.fused import SquashedSample, noise_like, plain_mlp, product
from rlx.nn.heads import Critic, SquashedGaussian
from rlx.nn.mlp import MLP

OPTIONS = list(itertools.product([None, 3], ["relu", "tanh", "elu"], [False, True]))


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)  # gradients are compared by differences, which a kink of relu nearby would spoil


def parts(net: MLP) -> list[Tensor]:
    return list(net.parameters())


@pytest.mark.parametrize(("inner", "columns"), [(5, 4), (5, 1), (1, 4)])
@pytest.mark.parametrize("members", [(), (3,)])
def test_products_are_those_of_matmul(members: tuple[int, ...], inner: int, columns: int) -> None:
    x, y = torch.randn(*members, 6, inner), torch.randn(*members, inner, columns)
    torch.testing.assert_close(product(x, y), x @ y)


@pytest.mark.parametrize(("ensemble", "activation", "layer_norm"), OPTIONS)
def test_gradients_are_right(ensemble: int | None, activation: str, layer_norm: bool) -> None:
    net = MLP([3, 5, 4, 2], ensemble=ensemble, activation=activation, layer_norm=layer_norm).double()
    x = torch.randn(6, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda *_: net(x), [x, *parts(net)])
    direction = torch.randn_like(net(x))
    plain = plain_mlp(x if ensemble is None else x.expand(ensemble, 6, 3), net.layers(), activation)
    expected = torch.autograd.grad(plain, [x, *parts(net)], direction)
    found = torch.autograd.grad(net(x), [x, *parts(net)], direction)
    torch.testing.assert_close(net(x), plain)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("layer_norm", [False, True])
def test_gradients_can_be_differentiated_again(layer_norm: bool) -> None:
    net = MLP([3, 5, 2], activation="tanh", layer_norm=layer_norm).double()
    x = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda *_: net(x), [x, *parts(net)])


def test_the_gradient_is_one_node_of_autograd() -> None:
    y = MLP([3, 5, 2])(torch.randn(4, 3))
    assert type(y.grad_fn).__name__ == "HandWrittenMLPBackward"
    assert MLP([3, 5, 2], dropout=0.5)(torch.randn(4, 3)).grad_fn is not None


def test_frozen_weights_pass_gradients_on_and_take_none() -> None:
    net = MLP([3, 5, 2], ensemble=2)
    x = torch.randn(4, 3, requires_grad=True)
    expected = torch.autograd.grad(net(x).sum(), x)[0]
    torch.testing.assert_close(torch.autograd.grad(net(x, frozen=True).sum(), x)[0], expected)
    y = net(x, frozen=True).sum()
    with pytest.raises(RuntimeError, match="not have been used"):
        torch.autograd.grad(y, parts(net))


def test_backward_leaves_the_incoming_gradient_alone() -> None:
    net = MLP([3, 5, 2])
    grad = torch.ones(4, 2)
    torch.autograd.grad(net(torch.randn(4, 3)), parts(net), grad)
    assert grad.eq(1.0).all()


@pytest.mark.parametrize("wanted", ["obs", "action", "both", "none"])
@pytest.mark.parametrize("frozen", [False, True])
def test_critics_are_differentiated_by_what_asks_for_it(wanted: str, frozen: bool) -> None:
    critic = Critic(3, 2, [8, 6], n=4).double()
    obs, action = (
        torch.randn(5, n, dtype=torch.float64, requires_grad=wanted in (name, "both"))
        for name, n in (("obs", 3), ("action", 2))
    )
    asked = [x for x in (obs, action, *([] if frozen else critic.parameters())) if x.requires_grad]
    if not asked:
        assert not critic(obs, action, frozen=frozen).requires_grad
        return
    both = torch.cat([obs, action], -1).expand(4, 5, 5)
    weights = torch.randn(4, 5, dtype=torch.float64)
    plain = plain_mlp(both, critic.layers(frozen), "relu").squeeze(-1)
    q = critic(obs, action, frozen=frozen)
    assert torch.equal(q, plain)
    expected = torch.autograd.grad(plain, asked, weights)
    torch.testing.assert_close(torch.autograd.grad(q, asked, weights), expected)


def test_noise_does_not_depend_on_the_layout() -> None:
    x = torch.zeros(3, 5)
    torch.manual_seed(0)
    expected = noise_like(x)
    torch.manual_seed(0)
    assert torch.equal(noise_like(torch.zeros(5, 3).mT), expected)


def test_gradients_of_a_squashed_sample() -> None:
    head, noise = torch.randn(4, 6, dtype=torch.float64, requires_grad=True), torch.randn(4, 3, dtype=torch.float64)
    assert torch.autograd.gradcheck(SquashedSample.apply, (head, noise))


def test_gradients_of_a_clamped_std_vanish() -> None:
    actor = SquashedGaussian(1, 1, [4])
    with torch.no_grad():
        actor.net.biases[-1].copy_(torch.tensor([0.0, 9.0]))
    grad = torch.autograd.grad(actor.sample(torch.zeros(1, 1))[1].sum(), actor.net.biases[-1])[0]
    assert grad[1].item() == 0.0
