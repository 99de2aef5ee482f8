"""TRPO: conjugate gradients and Fisher products by hand, the trust region, the line search that restores."""

from __future__ import annotations

import copy

import pytest
import torch

from rlx.algos.trpo import TRPO, TRPOConfig, assign, conjugate_gradient, flat_grad
from rlx.errors import UserError
from rlx.losses import experience
from rlx.types import Rollout, Spec

KINDS = {"box": ((2,), ()), "discrete": ((), (3,)), "multi_discrete": ((2,), (3, 2))}


def spec_of(kind: str = "discrete") -> Spec:
    shape, sizes = KINDS[kind]
    return Spec("Test-v0", (4,), "float32", kind, shape, action_sizes=sizes)


def make_rollout(learner: TRPO, steps: int = 16, envs: int = 4) -> Rollout:
    obs = torch.randn(steps, envs, 4)
    action = torch.stack([learner.act(o, explore=True) for o in obs])
    nothing = torch.zeros(steps, envs)
    return Rollout(obs, action, torch.randn(steps, envs), torch.randn(steps, envs, 4), nothing, nothing)


def weights(module: torch.nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten().clone() for p in module.parameters()])


def test_conjugate_gradient_solves_a_small_system():
    matrix = torch.tensor([[4.0, 1.0], [1.0, 3.0]])
    x = conjugate_gradient(lambda v: matrix @ v, torch.tensor([1.0, 2.0]), iterations=2)
    torch.testing.assert_close(x, torch.tensor([1 / 11, 7 / 11]))  # as many iterations as dimensions: exact
    assert conjugate_gradient(lambda v: matrix @ v, torch.zeros(2), iterations=5).tolist() == [0.0, 0.0]


def test_hessian_of_the_kl_is_the_fisher_matrix():
    """For one categorical state with logits as parameters, F = diag(p) - p p'."""
    learner = TRPO(TRPOConfig(hidden=[]), spec_of())
    bias = learner.policy.net.biases[0]
    with torch.no_grad():
        bias.copy_(torch.tensor([0.5, -0.2, 0.1]))
    obs = torch.zeros(1, 4)
    with torch.no_grad():
        old = learner.policy(obs)
    slope = flat_grad(old.kl(learner.policy(obs)).mean(), [bias], create_graph=True)
    rows = [flat_grad(slope.dot(v), [bias], retain_graph=True) for v in torch.eye(3)]
    p = bias.detach().softmax(-1)
    torch.testing.assert_close(torch.stack(rows), torch.diag(p) - torch.outer(p, p))


@pytest.mark.parametrize("kind", list(KINDS))
def test_update_stays_in_the_trust_region_and_improves(kind: str):
    torch.manual_seed(0)
    learner = TRPO(TRPOConfig(hidden=[16], max_kl=0.02), spec_of(kind))
    rollout = make_rollout(learner)
    data = experience(rollout, learner, 0.95)
    old = copy.deepcopy(learner.policy)(data.obs)
    advantage = (data.advantage - data.advantage.mean()) / data.advantage.std(correction=0)
    metrics = learner.update(rollout)
    with torch.no_grad():
        new = learner.policy(data.obs)
        kl = old.kl(new).mean()
        gain = ((new.log_prob(data.action) - data.log_prob).exp() * advantage).mean() - advantage.mean()
    assert metrics["step_accepted"] == 1.0
    assert 0.002 < kl < 0.02
    torch.testing.assert_close(kl, metrics["kl"])
    assert gain > 0
    assert metrics.keys() == {
        "loss/policy", "loss/value", "kl", "step_accepted", "entropy", "explained_variance",
    }  # fmt: skip
    assert all(v.dim() == 0 and v.isfinite() and not v.requires_grad for v in metrics.values())


def test_the_trust_region_feels_the_std_of_a_gaussian():
    """KL between normals of std 1 and e^x has curvature 2 in x: the Fisher matrix of log_std is 2 I."""
    learner = TRPO(TRPOConfig(hidden=[]), spec_of("box"))
    obs, log_std = torch.zeros(1, 4), learner.policy.log_std
    slope = flat_grad(learner.policy.snapshot(obs).kl(learner.policy(obs)).mean(), [log_std], create_graph=True)
    rows = [flat_grad(slope.dot(v), [log_std], retain_graph=True) for v in torch.eye(2)]
    torch.testing.assert_close(torch.stack(rows), 2.0 * torch.eye(2))


def test_line_search_puts_the_policy_back():
    torch.manual_seed(0)
    learner = TRPO(TRPOConfig(hidden=[8]), spec_of())
    data = experience(make_rollout(learner), learner, 0.95)
    before = weights(learner.policy)
    with torch.no_grad():
        objective = ((learner.policy(data.obs).log_prob(data.action) - data.log_prob).exp() * data.advantage).mean()
    ascent = flat_grad(
        (learner.policy(data.obs).log_prob(data.action) * data.advantage).mean(), list(learner.policy.parameters())
    )
    for step in (1e4 * ascent, -1e-3 * ascent):  # far out of the region; downhill
        metrics = learner._line_search(data, step, objective)
        assert metrics["step_accepted"] == 0.0
        assert metrics["kl"] == 0.0
        assert torch.equal(weights(learner.policy), before)
    assert learner._line_search(data, 1e-3 * ascent, objective)["step_accepted"] == 1.0
    assert not torch.equal(weights(learner.policy), before)


def test_line_search_takes_the_longest_step_that_holds():
    torch.manual_seed(0)
    learner = TRPO(TRPOConfig(hidden=[8], max_kl=0.01, line_search_shrink=0.5), spec_of())
    data = experience(make_rollout(learner), learner, 0.95)
    params, start, old = list(learner.policy.parameters()), weights(learner.policy), learner.policy.snapshot(data.obs)
    objective = (learner.policy(data.obs).log_prob(data.action) * data.advantage).mean()
    step = 0.01 * flat_grad(objective, params)

    @torch.no_grad()
    def kl_of(step: torch.Tensor) -> float:
        assign(params, start + step)
        kl = old.kl(learner.policy(data.obs)).mean().item()
        assign(params, start)
        return kl

    while kl_of(step) < 0.01:
        step = 1.5 * step
    metrics = learner._line_search(data, 4.0 * step, data.advantage.mean())  # a quarter is still too long
    taken = weights(learner.policy) - start
    assert metrics["step_accepted"] == 1.0
    torch.testing.assert_close(taken, 0.5 * step, rtol=1e-3, atol=1e-6)
    assert metrics["kl"].item() == pytest.approx(kl_of(0.5 * step), rel=1e-4)


def test_the_critic_never_touches_the_policy():
    torch.manual_seed(0)
    learner = TRPO(TRPOConfig(hidden=[8], epochs=30), spec_of())
    data = experience(make_rollout(learner), learner, 0.95)
    policy, critic = weights(learner.policy), weights(learner.critic)
    first = ((data.value - data.returns) ** 2).mean()
    learner._fit_critic(data)
    assert torch.equal(weights(learner.policy), policy)
    assert not torch.equal(weights(learner.critic), critic)
    with torch.no_grad():
        assert ((learner.critic(data.obs) - data.returns) ** 2).mean() < first


def test_update_makes_good_actions_likelier():
    torch.manual_seed(0)
    learner = TRPO(TRPOConfig(hidden=[16], max_kl=0.1, normalize_obs=True), spec_of())
    for _ in range(10):
        rollout = make_rollout(learner, steps=32)
        reward = (rollout.action == (rollout.obs[..., 0] > 0).long()).float()
        learner.update(rollout._replace(reward=reward, terminated=torch.ones(32, 4)))
    obs = torch.randn(200, 4)
    assert (learner.act(obs, explore=False) == (obs[:, 0] > 0).long()).float().mean() > 0.9


@pytest.mark.parametrize(
    "setting",
    [{"epochs": 0}, {"max_kl": -0.01}, {"line_search_steps": 0}, {"line_search_shrink": 0.0}, {"cg_damping": -1.0}],
    ids=str,
)
def test_impossible_settings_are_refused(setting: dict):
    with pytest.raises(UserError, match=f"algo.{next(iter(setting))}"):
        TRPO(TRPOConfig(**setting), spec_of())


def test_parameters_stay_where_they_are_in_memory():
    """At other addresses, matrix products may round otherwise than after a resume."""
    torch.manual_seed(0)
    learner = TRPO(TRPOConfig(hidden=[8]), spec_of())
    before = [p.data_ptr() for p in learner.parameters()]
    learner.update(make_rollout(learner))
    assert [p.data_ptr() for p in learner.parameters()] == before
