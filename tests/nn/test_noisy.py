"""Noisy layers: by hand, their spread, their gradients, and that nothing of them is kept."""

from __future__ import annotations

import math

import pytest
import torch

from rlx.nn.fused import Layer
from rlx.nn.mlp import MLP
from rlx.nn.noisy import Stds, rooted


def test_noise_is_the_signed_root() -> None:
    assert rooted(torch.tensor([4.0, -9.0, 0.0])).tolist() == [2.0, -3.0, 0.0]


def test_layers_under_noise_by_hand() -> None:
    layer = Layer(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([10.0, 20.0]))  # two inputs, two outputs
    stds = Stds([layer], 0.5)
    with torch.no_grad():
        stds.weights[0].copy_(torch.tensor([[0.5, 1.0], [2.0, 0.0]]))
        stds.biases[0].copy_(torch.tensor([1.0, 0.1]))
    (found,) = stds.applied([layer], [(torch.tensor([2.0, -3.0]), torch.tensor([1.0, 10.0]))])
    assert found.weight.tolist() == [[1.0 + 0.5 * 2.0, 2.0 + 20.0], [3.0 - 2.0 * 3.0, 4.0]]
    assert found.bias.tolist() == [11.0, 21.0]


def test_stds_start_by_the_number_of_inputs() -> None:
    stds = Stds(MLP([16, 4, 3]).layers(), 0.5)
    assert [std.unique().tolist() for std in stds.weights] == [[0.125], [0.25]]
    assert [std.unique().tolist() for std in stds.biases] == [[0.125], [0.25]]
    assert [tuple(std.shape) for std in stds.weights] == [(16, 4), (4, 3)]


def test_noise_has_one_number_for_each_input_and_output() -> None:
    stds = Stds(MLP([5, 4, 3]).layers(), 0.5)
    assert [(len(e_in), len(e_out)) for e_in, e_out in stds.draw()] == [(5, 4), (4, 3)]


def test_noise_is_drawn_anew_and_from_the_random_state() -> None:
    stds = Stds(MLP([5, 4]).layers(), 0.5)
    torch.manual_seed(0)
    first, second = stds.draw()[0], stds.draw()[0]
    assert not torch.equal(first[0], second[0])
    torch.manual_seed(0)
    assert all(map(torch.equal, first, stds.draw()[0]))
    assert set(stds.state_dict()) == {"weights.0", "biases.0"}


def test_weights_spread_as_their_stds_say() -> None:
    """E|x| = sqrt(2 / pi) for N(0, 1), so each entry of f(e_in) f(e_out)^T has a mean square of 2 / pi."""
    torch.manual_seed(0)
    layers = [Layer(torch.zeros(300, 200), torch.zeros(200))]
    stds = Stds(layers, 2.0 * math.sqrt(300))
    draws = [stds.applied(layers, stds.draw())[0] for _ in range(20)]
    weight = torch.stack([layer.weight.detach() for layer in draws])
    bias = torch.stack([layer.bias.detach() for layer in draws])
    assert weight.mean().item() == pytest.approx(0.0, abs=0.02)
    assert weight.square().mean().item() == pytest.approx(4.0 * 2.0 / math.pi, rel=0.05)
    assert bias.square().mean().item() == pytest.approx(4.0 * math.sqrt(2.0 / math.pi), rel=0.05)


def test_gradients_reach_means_and_stds() -> None:
    weight, bias = torch.zeros(2, 1, requires_grad=True), torch.zeros(1, requires_grad=True)
    stds = Stds([Layer(weight.detach(), bias.detach())], 0.5)
    (layer,) = stds.applied([Layer(weight, bias)], [(torch.tensor([2.0, 3.0]), torch.tensor([-1.0]))])
    (torch.tensor([[1.0, 10.0]]) @ layer.weight + layer.bias).sum().backward()
    assert weight.grad.tolist() == [[1.0], [10.0]]
    assert bias.grad.tolist() == [1.0]
    assert stds.weights[0].grad.tolist() == [[-2.0], [-30.0]]
    assert stds.biases[0].grad.tolist() == [-1.0]
