"""Parameters that others are put in the place of: networks compute with those that they have now."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from rlx.nn.mlp import MLP

KINDS: dict[str, dict[str, Any]] = {"plain": {}, "ensemble": {"ensemble": 3}, "normalised": {"layer_norm": True}}


@pytest.fixture(params=KINDS)
def pair(request: pytest.FixtureRequest) -> tuple[MLP, MLP]:
    return MLP([4, 8, 8, 2], **KINDS[request.param]), MLP([4, 8, 8, 2], **KINDS[request.param])


@pytest.fixture(params=["python", "native"], autouse=True)
def nodes(request: pytest.FixtureRequest) -> None:
    if request.param == "native":
        request.getfixturevalue("native")


@pytest.mark.parametrize("frozen", [False, True])
def test_a_network_computes_with_what_it_was_assigned(pair: tuple[MLP, MLP], frozen: bool) -> None:
    net, other = pair
    x = torch.randn(5, 4)
    expected = other(x)
    assert not torch.equal(net(x), expected)
    net.load_state_dict(other.state_dict(), assign=True)
    assert torch.equal(net(x, frozen=frozen), expected)


def test_a_functional_call_takes_the_given_parameters_and_gives_their_gradients(pair: tuple[MLP, MLP]) -> None:
    net, other = pair
    x = torch.randn(5, 4)
    before = net(x)
    given = {name: p.detach().clone().requires_grad_() for name, p in other.named_parameters()}
    y = torch.func.functional_call(net, given, (x,))
    y.square().sum().backward()
    expected = other(x)
    expected.square().sum().backward()
    assert torch.equal(y, expected)
    for name, p in other.named_parameters():
        assert torch.equal(given[name].grad, p.grad), name
    assert all(p.grad is None for p in net.parameters())
    assert torch.equal(net(x), before)


def test_a_copy_computes_with_its_own(pair: tuple[MLP, MLP]) -> None:
    net, other = pair
    twin = copy.deepcopy(net)
    twin.load_state_dict(other.state_dict())
    x = torch.randn(5, 4)
    assert torch.equal(twin(x), other(x))
    assert not torch.equal(twin(x), net(x))


def test_a_network_that_was_exported_computes_with_its_own(pair: tuple[MLP, MLP]) -> None:
    net, _ = pair
    x = torch.randn(5, 4)
    before = net(x)
    torch.export.export(net, (x,), strict=False)
    after = net(x)
    assert type(after) is torch.Tensor
    assert torch.equal(after, before)
