"""SAC: losses by hand, targets that stop at terminated states, and a bandit whose optimum is known."""

from __future__ import annotations

import copy
import math

import pytest
import torch

from rlx.algos.sac import SAC, SACConfig
from rlx.errors import UserError
from rlx.types import Batch, Spec

SPEC = Spec("bandit", (2,), "float32", "box", (1,), (-1.0,), (1.0,))


def bandit(n: int = 64, best: float = 0.5) -> Batch:
    """Episodes of one step; the reward is largest at the action `best`."""
    action = torch.rand(n, 1) * 2.0 - 1.0
    reward = -4.0 * (action[:, 0] - best).square()
    return Batch(torch.randn(n, 2), action, reward, torch.randn(n, 2), torch.ones(n), torch.full((n,), 0.99))


def make(**options: object) -> SAC:
    torch.manual_seed(0)
    return SAC(SACConfig(**{"hidden": [32, 32], **options}), SPEC)


def test_names_of_the_metrics() -> None:
    metrics = make().update(bandit())
    names = {"loss/critic", "q/mean", "q/target", "loss/actor", "policy/entropy", "loss/alpha", "policy/alpha"}
    assert set(metrics) == names
    assert all(v.dim() == 0 and not v.requires_grad for v in metrics.values())


def test_terminated_states_do_not_bootstrap() -> None:
    batch = bandit()
    assert make().update(batch)["q/target"].item() == pytest.approx(batch.reward.mean().item(), rel=1e-6)
    free = make().update(batch._replace(terminated=torch.zeros(64)))
    assert free["q/target"].item() != pytest.approx(batch.reward.mean().item(), rel=1e-2)


def test_the_target_is_the_smaller_critic_and_the_entropy() -> None:
    learner = make(alpha=0.5)
    with torch.no_grad():
        for p in learner.target_critic.parameters():
            p.zero_()
        learner.target_critic.biases[-1].copy_(torch.tensor([3.0, 2.0]).view(2, 1, 1))
    batch = bandit()._replace(terminated=torch.zeros(64), reward=torch.ones(64), discount=torch.full((64,), 0.25))
    torch.manual_seed(1)
    log_prob = learner.policy.sample(batch.next_obs)[1].mean().item()
    torch.manual_seed(1)
    expected = 1.0 + 0.25 * (2.0 - 0.5 * log_prob)
    assert learner.update(batch)["q/target"].item() == pytest.approx(expected, rel=1e-5)


def test_target_entropy() -> None:
    assert make().target_entropy == -1.0
    assert make(target_entropy=-0.25).target_entropy == -0.25


def test_a_fixed_temperature_stays() -> None:
    learner = make(alpha=0.2, learn_alpha=False)
    learner.update(bandit())
    assert learner.log_alpha.item() == pytest.approx(math.log(0.2))
    free = make(alpha=0.2)
    free.update(bandit())
    assert free.log_alpha.item() != pytest.approx(math.log(0.2))


def test_targets_follow_slowly() -> None:
    learner = make(tau=0.25)
    before = copy.deepcopy(learner.target_critic.weights[0])
    learner.update(bandit())
    torch.testing.assert_close(learner.target_critic.weights[0], before.lerp(learner.critic.weights[0], 0.25))


def test_acting() -> None:
    learner = make()
    obs = torch.randn(3, 2)
    assert torch.equal(learner.act(obs, explore=False), learner.act(obs, explore=False))
    assert not torch.equal(learner.act(obs, explore=True), learner.act(obs, explore=True))
    assert not learner.act(obs, explore=True).requires_grad


@pytest.mark.parametrize(
    "options", [{"tau": 0.0}, {"tau": 1.5}, {"alpha": 0.0}, {"actor_lr": 0.0}, {"critic_lr": -1.0}]
)
def test_impossible_settings_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(UserError):
        make(**options)


def test_learns_a_bandit() -> None:
    learner = make(alpha=0.01, learn_alpha=False, actor_lr=3e-3, critic_lr=3e-3)
    for _ in range(300):
        learner.update(bandit())
    actions = learner.act(torch.randn(64, 2), explore=False)
    assert actions.mean().item() == pytest.approx(0.5, abs=0.1)
    assert actions.std().item() < 0.15


def test_the_temperature_brings_the_entropy_to_its_target() -> None:
    learner = make(alpha_lr=1e-2, actor_lr=3e-3, critic_lr=3e-3, target_entropy=-0.5)
    entropies = [learner.update(bandit())["policy/entropy"].item() for _ in range(600)]
    assert sum(entropies[-100:]) / 100 == pytest.approx(-0.5, abs=0.25)
