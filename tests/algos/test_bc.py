"""Behaviour cloning: losses by hand, all kinds of actions, and behaviour that it finds again."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from rlx.algos.bc import BC, BCConfig
from rlx.errors import UserError
from rlx.nn import BoundedGaussian
from rlx.types import Batch, Spec

BOX = Spec("box", (2,), "float32", "box", (1,), (-1.0,), (1.0,))
DISCRETE = Spec("discrete", (2,), "float32", "discrete", (), action_sizes=(3,))
MULTI = Spec("multi", (2,), "float32", "multi_discrete", (2,), action_sizes=(3, 2))


def make(spec: Spec = BOX, **options: object) -> BC:
    torch.manual_seed(0)
    return BC(BCConfig(**{"hidden": [32, 32], **options}), spec)


def batch_of(obs: Tensor, action: Tensor) -> Batch:
    n = len(obs)
    return Batch(obs, action, torch.zeros(n), obs, torch.zeros(n), torch.full((n,), 0.99))


def behaviour(kind: str, obs: Tensor) -> Tensor:
    """What the data does in these states."""
    sign = (obs[:, 0] > 0.0).long()
    if kind == "discrete":
        return 2 * sign
    if kind == "multi_discrete":
        return torch.stack([2 * sign, (obs[:, 1] > 0.0).long()], 1)
    return 0.5 * torch.tanh(obs[:, :1])


def test_discrete_loss_is_the_cross_entropy() -> None:
    learner = make(DISCRETE)
    obs, action = torch.randn(5, 2), torch.tensor([0, 1, 2, 2, 0])
    expected = torch.nn.functional.cross_entropy(learner.policy.net(obs), action).item()
    assert learner.update(batch_of(obs, action))["loss/bc"].item() == pytest.approx(expected)


def test_gaussian_likelihood_by_hand() -> None:
    policy = BoundedGaussian(2, 1, [4])
    with torch.no_grad():
        for p in policy.net.parameters():
            p.zero_()
        policy.net.biases[-1].fill_(math.atanh(0.5))
        policy.log_std.fill_(math.log(0.5))
    log_prob = policy(torch.zeros(1, 2)).log_prob(torch.tensor([[1.0]]))  # one std away from the mean
    assert log_prob.item() == pytest.approx(-0.5 - math.log(0.5) - 0.5 * math.log(2 * math.pi), abs=1e-6)


def test_gaussian_std_has_a_floor_and_samples_stay_in_the_box() -> None:
    policy = BoundedGaussian(2, 1, [4])
    with torch.no_grad():
        policy.log_std.fill_(-100.0)
    assert policy(torch.zeros(1, 2)).log_std.item() == -5.0
    torch.manual_seed(0)
    obs = torch.zeros(1000, 2)
    noise = policy.act(obs, explore=True) - policy.act(obs, explore=False)
    assert noise.std().item() == pytest.approx(math.exp(-5.0), rel=0.1)
    with torch.no_grad():
        policy.log_std.fill_(100.0)
    actions = policy.act(torch.zeros(200, 2), explore=True)
    assert actions.min().item() == -1.0
    assert actions.max().item() == 1.0


def test_a_std_beyond_its_bound_finds_back() -> None:
    policy = BoundedGaussian(2, 1, [4], log_std_range=(-6.0, 0.0))
    with torch.no_grad():
        policy.log_std.fill_(0.1)
    pi = policy(torch.zeros(1, 2))
    assert pi.log_std.item() == 0.0
    pi.log_prob(pi.mean.detach()).sum().backward()  # at the mean, d log_prob / d log_std = -1
    assert policy.log_std.grad.item() == pytest.approx(-1.0)


def test_dropout_is_for_training_only() -> None:
    policy = BoundedGaussian(2, 1, [64], dropout=0.5)
    obs = torch.randn(4, 2)
    assert torch.equal(policy.act(obs, explore=False), policy.act(obs, explore=False))
    assert not torch.equal(policy(obs).mean, policy(obs).mean)


@pytest.mark.parametrize(("spec", "gaussian"), [(BOX, False), (BOX, True), (DISCRETE, False), (MULTI, False)])
def test_reproduces_the_behaviour(spec: Spec, gaussian: bool) -> None:
    learner = make(spec, gaussian=gaussian, lr=3e-3)
    for _ in range(500):
        obs = torch.randn(128, 2)
        metrics = learner.update(batch_of(obs, behaviour(spec.action_kind, obs)))
        assert set(metrics) == {"loss/bc"}
    obs = torch.randn(256, 2)
    found, wanted = learner.act(obs, explore=False), behaviour(spec.action_kind, obs)
    assert found.shape == wanted.shape
    assert found.dtype == wanted.dtype
    if spec.discrete:
        assert (found == wanted).float().mean().item() > 0.95
    else:
        assert (found - wanted).abs().mean().item() < 0.03


def test_the_gaussian_finds_the_noise_of_the_behaviour() -> None:
    learner = make(gaussian=True, lr=1e-2)
    for _ in range(500):
        obs = torch.randn(256, 2)
        learner.update(batch_of(obs, behaviour("box", obs) + 0.1 * torch.randn(256, 1)))
    assert learner.policy.log_std.exp().item() == pytest.approx(0.1, rel=0.15)


def test_exploring_draws_from_a_stochastic_policy() -> None:
    obs = torch.zeros(200, 2)
    assert make(gaussian=True).act(obs, explore=True).std() > 0.1
    assert make(gaussian=True).act(obs, explore=False).std() == 0.0
    assert set(make(DISCRETE).act(obs, explore=True).tolist()) == {0, 1, 2}
    assert len(set(make(DISCRETE).act(obs, explore=False).tolist())) == 1
    assert torch.equal(make().act(obs, explore=True), make().act(obs, explore=False))


def test_observations_are_standardised() -> None:
    learner = make(normalize_obs=True, lr=3e-3)
    obs = 100.0 + 50.0 * torch.randn(2000, 2)
    learner.set_normalizer(obs.mean(0), obs.std(0, unbiased=False))
    action = behaviour("box", (obs - 100.0) / 50.0)
    for _ in range(500):
        rows = torch.randint(2000, (128,))
        learner.update(batch_of(obs[rows], action[rows]))
    assert (learner.act(obs, explore=False) - action).abs().mean().item() < 0.03


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(UserError):
        make(lr=0.0)
