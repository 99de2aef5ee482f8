"""Distributions against torch.distributions and hand-computed values."""

from __future__ import annotations

import math

import pytest
import torch
from torch import distributions as reference

from rlx.nn.distributions import Categorical, DiagGaussian, MultiCategorical


def test_categorical_by_hand():
    actions = Categorical(torch.tensor([[1.0, 3.0]]).log())  # probabilities 1/4 and 3/4
    assert actions.log_prob(torch.tensor([1])).tolist() == pytest.approx([math.log(0.75)])
    assert actions.entropy().tolist() == pytest.approx([0.25 * math.log(4) + 0.75 * math.log(4 / 3)])
    assert actions.mode().tolist() == [1]
    uniform = Categorical(torch.zeros(1, 2))
    assert actions.kl(uniform).tolist() == pytest.approx([0.25 * math.log(0.5) + 0.75 * math.log(1.5)])


def test_categorical_samples_follow_the_probabilities():
    torch.manual_seed(0)
    draws = Categorical(torch.tensor([0.2, 0.5, 0.3]).log().expand(20000, 3)).sample()
    assert draws.dtype == torch.int64
    assert (draws.bincount(minlength=3) / 20000).tolist() == pytest.approx([0.2, 0.5, 0.3], abs=0.015)


def test_multi_categorical_is_a_product_of_its_parts():
    logits, action = torch.randn(5, 5), torch.tensor([[0, 1], [2, 0], [1, 1], [0, 0], [2, 1]])
    actions = MultiCategorical(logits, (3, 2))
    parts = [reference.Categorical(logits=logits[:, :3]), reference.Categorical(logits=logits[:, 3:])]
    expected = parts[0].log_prob(action[:, 0]) + parts[1].log_prob(action[:, 1])
    torch.testing.assert_close(actions.log_prob(action), expected)
    torch.testing.assert_close(actions.entropy(), parts[0].entropy() + parts[1].entropy())
    assert actions.sample().shape == actions.mode().shape == (5, 2)
    assert actions.sample()[:, 1].max() < 2
    torch.testing.assert_close(actions.kl(MultiCategorical(logits + 1.0, (3, 2))), torch.zeros(5))


def test_diag_gaussian_agrees_with_torch():
    mean, log_std, action = torch.randn(6, 2), torch.tensor([0.3, -0.5]), torch.randn(6, 2)
    actions, expected = DiagGaussian(mean, log_std), reference.Normal(mean, log_std.exp())
    torch.testing.assert_close(actions.log_prob(action), expected.log_prob(action).sum(-1))
    torch.testing.assert_close(actions.entropy(), expected.entropy().sum(-1))
    other = DiagGaussian(torch.randn(6, 2), torch.tensor([-0.2, 0.4]))
    divergence = reference.kl_divergence(expected, reference.Normal(other.mean, other.log_std.exp())).sum(-1)
    torch.testing.assert_close(actions.kl(other), divergence)
    assert torch.equal(actions.mode(), mean)


def test_diag_gaussian_samples_have_its_moments():
    torch.manual_seed(0)
    draws = DiagGaussian(torch.tensor([[1.0, -2.0]]).expand(20000, 2), torch.tensor([0.0, math.log(0.5)])).sample()
    assert draws.mean(0).tolist() == pytest.approx([1.0, -2.0], abs=0.03)
    assert draws.std(0).tolist() == pytest.approx([1.0, 0.5], abs=0.02)
