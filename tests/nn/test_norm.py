"""Batch renormalisation against its definition."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from rlx.nn.fused import D_MAX, R_MAX, RENORM_EPS, learn, moments
from rlx.nn.norm import MOMENTUM, RenormMLP, running_moments


def network() -> RenormMLP:
    """Two networks in double precision, with all parameters and statistics away from where they start."""
    torch.manual_seed(0)
    net = RenormMLP([3, 8, 7, 2], ensemble=2).double()
    with torch.no_grad():
        for p in (*net.gains, *net.shifts):
            p.normal_()
        for layer in net.layers():
            layer.mean.normal_(0.0, 0.3)
            layer.var.uniform_(0.05, 3.0)
            layer.mean[..., 0] = 20.0  # further than d may correct
    return net


def reference(net: RenormMLP, x: Tensor, member: int, learning: bool, renorm: bool) -> Tensor:
    """One member, as the paper writes it."""
    for i, layer in enumerate(net.layers()):
        weight, bias, gain, shift, mean, var = (p[member] for p in layer)
        std = (var + RENORM_EPS).sqrt()
        if learning:
            batch_std = (x.var(0, unbiased=False) + RENORM_EPS).sqrt()
            r = (batch_std / std).clamp(1 / R_MAX, R_MAX).detach() if renorm else 1.0
            d = ((x.mean(0) - mean) / std).clamp(-D_MAX, D_MAX).detach() if renorm else 0.0
            x = (x - x.mean(0)) / batch_std * r + d
        else:
            x = (x - mean) / std
        x = (x * gain + shift) @ weight + bias
        if i < len(net.weights) - 1:
            x = F.relu(x)
    return x


def test_moments_by_hand() -> None:
    mean, var = moments(torch.tensor([[[1.0, 5.0], [3.0, 5.0]]]))
    assert mean.tolist() == [[[2.0, 5.0]]]
    assert var.tolist() == [[[1.0, 0.0]]]


def test_in_use_it_normalises_by_the_running_statistics() -> None:
    net, x = network(), torch.randn(5, 3).double()
    for member in (0, 1):
        torch.testing.assert_close(net(x)[member], reference(net, x, member, learning=False, renorm=False))


def test_in_use_gradients_reach_the_input_only() -> None:
    net, x = network(), torch.randn(5, 3).double().requires_grad_()
    y = torch.stack([reference(net, x, member, learning=False, renorm=False) for member in (0, 1)])
    expected = torch.autograd.grad(y.square().sum(), x)[0]
    out = net(x).square().sum()
    torch.testing.assert_close(torch.autograd.grad(out, x, retain_graph=True)[0], expected)
    assert torch.autograd.grad(out, list(net.parameters()), allow_unused=True) == (None,) * 12


@pytest.mark.parametrize("renorm", [False, True])
def test_learning_has_the_output_and_the_gradients_of_the_definition(renorm: bool) -> None:
    net, x = network(), 2.0 * torch.randn(16, 3).double() + 1.0
    parameters = list(net.parameters())
    y = torch.stack([reference(net, x, member, learning=True, renorm=renorm) for member in (0, 1)])
    expected = torch.autograd.grad(y[:, :8].square().sum(), parameters)  # the second half only through the statistics
    plain, _ = learn(x.expand(2, 16, 3), net.layers(), renorm)
    plain_grads = torch.autograd.grad(plain[:, :8].square().sum(), parameters)
    found = net.learn(x, renorm)
    grads = torch.autograd.grad(found[:, :8].square().sum(), parameters)
    torch.testing.assert_close((found, plain), (y, y))
    torch.testing.assert_close(grads, expected)
    torch.testing.assert_close(plain_grads, expected)


def test_learning_moves_the_running_statistics() -> None:
    net = RenormMLP([1, 2, 1], ensemble=1)
    net.learn(torch.tensor([[1.0], [5.0]]), renorm=False)
    layer = net.layers()[0]
    assert layer.mean.item() == pytest.approx(MOMENTUM * 3.0)
    assert layer.var.item() == pytest.approx(1.0 + MOMENTUM * (4.0 - 1.0))
    before = layer.mean.clone()
    net(torch.randn(8, 1))
    assert torch.equal(layer.mean, before)


def test_running_moments_are_those_of_all_rows() -> None:
    torch.manual_seed(0)
    rows = torch.randn(70, 3) * torch.tensor([1.0, 5.0, 0.1]) + torch.tensor([0.0, -4.0, 2.0])
    mean, std, count = torch.zeros(3), torch.ones(3), torch.zeros((), dtype=torch.int64)
    for part in rows.split([10, 40, 20]):
        running_moments(part, mean, std, count)
    assert count.item() == 70
    torch.testing.assert_close(mean, rows.mean(0))
    torch.testing.assert_close(std, rows.std(0, correction=0))
