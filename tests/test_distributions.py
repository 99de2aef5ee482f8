"""Distributions against torch.distributions, hand-computed values, and their own gradients against autograd."""

from __future__ import annotations

import math

import pytest
import torch
from torch import distributions as reference

from rlx.config import learners, schemas
from rlx.distributions import Categorical, DiagGaussian, MultiCategorical, Perceptron, Policy, first_log_std
from rlx.errors import UserError
from rlx.types import Spec


def spec_of(kind: str) -> Spec:
    shapes = {"box": ((2,), ()), "discrete": ((), (3,)), "multi_discrete": ((2,), (3, 2))}
    shape, sizes = shapes[kind]
    return Spec("Test-v0", (4,), "float32", kind, shape, action_sizes=sizes)


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


@pytest.mark.parametrize(
    ("low", "high", "std"),
    [
        (-1.0, 1.0, 1.0),  # HalfCheetah, Hopper
        (-3.0, 3.0, 1 / 3),  # InvertedPendulum: 1 in its own units
        (-2.0, 2.0, 0.5),  # Pendulum
        (-0.4, 0.4, 1.0),  # Humanoid: never more than the half range
        (0.0, 8.0, 0.25),  # the width counts, not where the box lies
        (-math.inf, math.inf, 1.0),  # unbounded actions are not scaled
        (-5.0, math.inf, 1.0),
    ],
)
def test_the_first_std_is_1_in_the_units_of_the_env_and_at_most_the_half_range(low: float, high: float, std: float):
    spec = Spec("Test-v0", (4,), "float32", "box", (2,), (low, -1.0), (high, 1.0))
    assert first_log_std(spec, None).exp().tolist() == pytest.approx([std, 1.0])  # each dimension has its own
    assert first_log_std(spec, -0.5).tolist() == [-0.5, -0.5]  # as asked, in the learner's units
    assert first_log_std(spec_of("box"), None).tolist() == [0.0, 0.0]  # no bounds known


@pytest.mark.parametrize("name", ["ppo", "a2c", "trpo"])
def test_on_policy_learners_begin_with_a_std_that_fits_the_box(name: str):
    spec = Spec("Test-v0", (4,), "float32", "box", (1,), (-3.0,), (3.0,))
    torch.manual_seed(0)
    learner = learners()[name](schemas()[f"algo/{name}"](), spec)
    draws = learner.act(torch.zeros(20000, 4), explore=True)
    assert 3.0 * draws.std().item() == pytest.approx(1.0, abs=0.02)


@pytest.mark.parametrize("entropy_weight", [0.0, 0.3])
@pytest.mark.parametrize("kind", ["box", "discrete", "multi_discrete"])
@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_gradients_of_the_policy_are_those_of_autograd(kind: str, entropy_weight: float, activation: str):
    torch.manual_seed(1)
    policy = Policy(spec_of(kind), [8, 8], activation, log_std=-0.3)
    with torch.no_grad():
        for p in policy.parameters():
            p.add_(torch.randn_like(p), alpha=0.3)
    obs, weight = torch.randn(7, 4), torch.randn(7)
    actions = policy(obs)
    action = actions.sample().detach()
    objective = (weight * actions.log_prob(action)).sum() + entropy_weight * actions.entropy().sum()
    expected = torch.autograd.grad(objective, policy.trainable())
    out = [torch.full_like(p, torch.nan) for p in policy.trainable()]
    with torch.no_grad():
        trace = policy.net.trace(obs)
        by_output = policy.distribution(trace[-1]).gradient(action, weight, entropy_weight)
        policy.backward(trace, by_output, out)
    for ours, theirs in zip(out, expected, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_policy_starts_near_uniform_and_acts_in_its_space():
    torch.manual_seed(0)
    obs = torch.randn(50, 4)
    with torch.no_grad():
        assert Policy(spec_of("discrete"), [64, 64])(obs).entropy().mean() > 0.999 * math.log(3)
        assert Policy(spec_of("box"), [64, 64])(obs).mode().abs().max() < 0.1
        for kind, shape in {"box": (50, 2), "discrete": (50,), "multi_discrete": (50, 2)}.items():
            policy = Policy(spec_of(kind), [8])
            assert policy.act(obs, explore=True).shape == policy.act(obs, explore=False).shape == shape
            torch.testing.assert_close(policy.act(obs, explore=False), policy(obs).mode())


def test_perceptron_names_the_activations_it_has():
    with pytest.raises(UserError, match="activation=gelu is not possible here; choose tanh or relu"):
        Perceptron([4, 8, 1], "gelu", final_gain=1.0)
