"""Discrete IQL: the softmax policy and the critics of choices; the losses are those of tests/algos/test_iql.py."""

from __future__ import annotations

import copy
import math

import pytest
import torch

from rlx.algos.discrete_iql import DiscreteIQL, DiscreteIQLConfig
from rlx.config import compose_config
from rlx.nn import ChoiceCritic
from rlx.types import Batch, Spec

SPEC = Spec("bandit", (2,), "float32", "discrete", (), action_sizes=(3,))
NAMES = {
    "loss/value", "value/mean", "loss/actor", "policy/log_prob", "policy/weight", "q/advantage",
    "loss/critic", "q/mean", "q/target",
}  # fmt: skip


def bandit(n: int = 64) -> Batch:
    """Episodes of one step: half of the actions are 0 and pay 1, the others are 1 or 2 and pay 0 or 2."""
    action = torch.where(torch.rand(n) < 0.5, 0, torch.randint(1, 3, (n,)))
    reward = torch.tensor([1.0, 0.0, 2.0])[action]
    return Batch(torch.randn(n, 2), action, reward, torch.randn(n, 2), torch.ones(n), torch.full((n,), 0.5))


def make(**options: object) -> DiscreteIQL:
    torch.manual_seed(0)
    return DiscreteIQL(DiscreteIQLConfig(**{"hidden": [16, 16], **options}), SPEC)


def constant(learner: DiscreteIQL) -> None:
    """Q' = (3, 1, 5) and (4, 0, 6), Q = 0, V = 2, and a policy of 1/6, 1/3 and 1/2."""
    with torch.no_grad():
        for p in learner.parameters():
            p.zero_()
        learner.target_critic.biases[-1].copy_(torch.tensor([[3.0, 1.0, 5.0], [4.0, 0.0, 6.0]]).unsqueeze(1))
        learner.value.biases[-1].fill_(2.0)
        learner.policy.net.biases[-1].copy_(torch.tensor([1.0, 2.0, 3.0]).log())


def test_critics_give_the_values_of_the_taken_actions() -> None:
    critic = ChoiceCritic(2, 3, [])
    with torch.no_grad():
        for p in critic.parameters():
            p.zero_()
        critic.biases[-1].copy_(torch.tensor([[3.0, 1.0, 5.0], [4.0, 0.0, 6.0]]).unsqueeze(1))
    assert critic(torch.zeros(3, 2), torch.tensor([2, 0, 1])).tolist() == [[5.0, 3.0, 1.0], [6.0, 4.0, 0.0]]


def test_an_update_by_hand() -> None:
    learner = make(value_lr=1e-12, actor_lr=1e-12, critic_lr=1e-12, beta=0.5, expectile=0.75, max_weight=4.0)
    constant(learner)
    batch = bandit(3)._replace(action=torch.tensor([0, 1, 2]), reward=torch.tensor([1.0, 1.0, 4.0]))
    batch = batch._replace(terminated=torch.tensor([0.0, 0.0, 1.0]))
    metrics = {name: value.item() for name, value in learner.update(batch).items()}
    # min Q' = 3, 0, 5 and V = 2: advantages of 1, -2, 3
    assert metrics["q/advantage"] == pytest.approx(2.0 / 3.0)
    assert metrics["loss/value"] == pytest.approx((0.75 * 1.0 + 0.25 * 4.0 + 0.75 * 9.0) / 3.0)
    weights = [math.exp(0.5), math.exp(-1.0), 4.0]  # exp(1.5) is cut off
    assert metrics["policy/weight"] == pytest.approx(sum(weights) / 3.0)
    logs = [math.log(1 / 6), math.log(1 / 3), math.log(1 / 2)]
    assert metrics["loss/actor"] == pytest.approx(-sum(w * p for w, p in zip(weights, logs, strict=True)) / 3.0)
    targets = [1.0 + 0.5 * 2.0, 1.0 + 0.5 * 2.0, 4.0]
    assert metrics["q/target"] == pytest.approx(sum(targets) / 3.0)
    assert metrics["loss/critic"] == pytest.approx(2.0 * sum(y * y for y in targets) / 3.0)


def test_acting() -> None:
    learner = make()
    constant(learner)
    obs = torch.zeros(6000, 2)
    assert learner.act(obs, explore=False).unique().tolist() == [2]
    shares = learner.act(obs, explore=True).bincount(minlength=3) / 6000
    assert shares.tolist() == pytest.approx([1 / 6, 1 / 3, 1 / 2], abs=0.03)


def test_only_the_taken_actions_move_their_values() -> None:
    learner = make(critic_lr=0.1, hidden=[])
    constant(learner)
    learner.update(bandit()._replace(action=torch.zeros(64, dtype=torch.int64), obs=torch.zeros(64, 2)))
    moved = learner.critic.biases[-1].squeeze(1) != 0.0
    assert moved.tolist() == [[True, False, False]] * 2


def test_targets_follow_slowly() -> None:
    learner = make(tau=0.25)
    before = copy.deepcopy(learner.target_critic.weights[0])
    learner.update(bandit())
    torch.testing.assert_close(learner.target_critic.weights[0], before.lerp(learner.critic.weights[0], 0.25))


def test_dropout_reaches_the_policy_only_in_updates() -> None:
    learner = make(dropout=0.5)
    obs = torch.randn(8, 2)
    assert torch.equal(learner.act(obs, explore=False), learner.act(obs, explore=False))
    assert not torch.equal(learner.policy(obs).logits, learner.policy(obs).logits)
    assert learner.value.dropout == learner.critic.dropout == 0.0


def test_networks_start_orthogonal() -> None:
    learner = make()
    for network in (learner.policy.net, learner.value, learner.critic):
        assert all(bias.abs().max() == 0 for bias in network.biases)
        last = network.weights[-1][0] if network.ensemble else network.weights[-1]
        torch.testing.assert_close(last.t() @ last, 2.0 * torch.eye(last.shape[1]), rtol=0, atol=1e-5)


def test_the_decay_ends_with_the_budget() -> None:
    cfg = compose_config(["algo=discrete_iql", "env=cartpole", "dataset=random", "trainer.max_updates=123"])
    assert cfg.algo.actor_decay_updates == 123


def test_names_of_the_metrics() -> None:
    metrics = make().update(bandit())
    assert set(metrics) == NAMES
    assert all(v.dim() == 0 and not v.requires_grad for v in metrics.values())


@pytest.mark.parametrize(("beta", "expected"), [(0.0, 0), (10.0, 2)])
def test_learns_to_imitate_or_to_improve(beta: float, expected: int) -> None:
    learner = make(beta=beta, actor_lr=3e-3, critic_lr=3e-3, value_lr=3e-3, tau=0.05)
    for _ in range(400):
        learner.update(bandit())
    assert learner.act(torch.randn(64, 2), explore=False).unique().tolist() == [expected]
