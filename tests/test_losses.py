"""Shared losses and the functions around them against values that can be computed by hand."""

from __future__ import annotations

import warnings

import pytest
import torch

from rlx.losses import (
    alpha_loss,
    bc_loss,
    bc_nll_loss,
    critic_loss,
    dpg_loss,
    explained_variance,
    smoothed,
    soft_actor_loss,
    soft_min,
    standardized,
    standardized_in_parts,
    with_noise,
)


def test_critics_by_hand() -> None:
    loss, metrics = critic_loss(torch.tensor([[1.0, 2.0], [3.0, 2.0]]), torch.tensor([1.0, 0.0]))
    assert loss.item() == 6.0
    assert {k: v.item() for k, v in metrics.items()} == {"loss/critic": 6.0, "q/mean": 2.0, "q/target": 0.5}


def test_half_the_loss_of_critics_by_hand() -> None:
    loss, metrics = critic_loss(torch.tensor([[1.0, 2.0], [3.0, 2.0]]), torch.tensor([1.0, 0.0]), coef=0.5)
    assert loss.item() == 3.0  # half of (0 + 4) and (4 + 4), summed, over two rows
    assert {k: v.item() for k, v in metrics.items()} == {"loss/critic": 3.0, "q/mean": 2.0, "q/target": 0.5}


def test_soft_minimum_by_hand() -> None:
    assert soft_min(torch.tensor([[4.0, 1.0], [0.0, 5.0]]), lam=0.75).tolist() == [1.0, 2.0]


def test_smoothing_is_clipped_twice() -> None:
    moved = smoothed(torch.zeros(1000, 1), std=10.0, clip=0.5)
    assert moved.abs().max().item() == 0.5
    assert smoothed(torch.ones(1000, 1), std=10.0, clip=0.5).max().item() == 1.0
    assert smoothed(torch.full((2, 1), 0.25), std=0.0, clip=0.5).tolist() == [[0.25], [0.25]]


def test_deterministic_policy_gradient_by_hand() -> None:
    q = torch.tensor([1.0, 4.0], requires_grad=True)
    loss, metrics = dpg_loss(q)
    assert loss.item() == -2.5
    assert torch.autograd.grad(loss, q)[0].tolist() == [-0.5, -0.5]
    assert {k: v.item() for k, v in metrics.items()} == {"loss/actor": -2.5}


def test_soft_policies_by_hand() -> None:
    loss, metrics = soft_actor_loss(torch.tensor([1.0, 3.0]), torch.tensor([-1.0, 2.0]), torch.tensor(0.5))
    assert loss.item() == -1.75
    assert {k: v.item() for k, v in metrics.items()} == {"loss/actor": -1.75, "policy/entropy": -0.5}


def test_alpha_rises_while_the_entropy_is_too_low() -> None:
    log_alpha = torch.tensor(0.0, requires_grad=True)
    low, metrics = alpha_loss(log_alpha, torch.tensor([3.0]), target_entropy=-1.0)  # entropy -3 < -1
    assert torch.autograd.grad(low, log_alpha)[0].item() == -2.0
    assert set(metrics) == {"loss/alpha", "policy/alpha"}
    assert metrics["policy/alpha"].item() == 1.0
    high, _ = alpha_loss(log_alpha, torch.tensor([-1.0]), target_entropy=-1.0)
    assert torch.autograd.grad(high, log_alpha)[0].item() == 2.0


def test_noise_has_its_std_and_stays_in_the_box() -> None:
    torch.manual_seed(0)
    assert with_noise(torch.zeros(20000, 1), 0.1).std().item() == pytest.approx(0.1, rel=0.03)
    assert with_noise(torch.full((1000, 1), 0.9), 5.0).abs().max().item() == 1.0
    assert with_noise(torch.full((2, 1), 0.25), 0.0).tolist() == [[0.25], [0.25]]


def test_imitation_by_hand() -> None:
    loss, metrics = bc_loss(torch.tensor([[1.0], [0.0]]), torch.tensor([[0.0], [2.0]]))
    assert loss.item() == 2.5
    assert {k: v.item() for k, v in metrics.items()} == {"loss/bc": 2.5}
    loss, metrics = bc_nll_loss(torch.tensor([-1.0, -2.0]))
    assert loss.item() == 1.5
    assert {k: v.item() for k, v in metrics.items()} == {"loss/bc": 1.5}


def test_advantages_and_explained_variance_by_hand() -> None:
    assert standardized(torch.tensor([1.0, 3.0])).tolist() == pytest.approx([-1.0, 1.0])
    assert standardized(torch.tensor([5.0])).tolist() == [0.0]
    assert explained_variance(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.0])).item() == 1.0
    assert explained_variance(torch.zeros(2), torch.tensor([1.0, 2.0])).item() == 0.0


@pytest.mark.parametrize("rows", [2, 4, 6])
def test_advantages_are_standardised_in_parts(rows: int) -> None:
    """Of four rows each; fewer are a part of their own, and no part is empty, which torch would warn of."""
    advantage = torch.tensor([1.0, 3.0, 3.0, 1.0, 5.0, 9.0])[:rows]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        parts = standardized_in_parts(advantage, 4)
    torch.testing.assert_close(parts, torch.tensor([-1.0, 1.0, 1.0, -1.0, -1.0, 1.0])[:rows])
