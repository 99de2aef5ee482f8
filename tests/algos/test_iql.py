"""IQL: losses by hand, the order of its three steps, the decay of the actor's learning rate, and a bandit."""

from __future__ import annotations

import copy
import math

import pytest
import torch

from rlx.algos.iql import IQL, IQLConfig, cosine_decay, expectile_loss, iql_actor_loss
from rlx.errors import UserError
from rlx.types import Batch, Spec

SPEC = Spec("bandit", (2,), "float32", "box", (1,), (-1.0,), (1.0,))
NAMES = {
    "loss/value", "value/mean", "loss/actor", "policy/log_prob", "policy/weight", "q/advantage",
    "loss/critic", "q/mean", "q/target",
}  # fmt: skip


def bandit(n: int = 64, best: float = 0.5) -> Batch:
    """Uniform behaviour, reward largest (4) at `best`, episodes of one step."""
    action = torch.rand(n, 1) * 2.0 - 1.0
    reward = 4.0 - 4.0 * (action[:, 0] - best).square()
    return Batch(torch.randn(n, 2), action, reward, torch.randn(n, 2), torch.ones(n), torch.full((n,), 0.99))


def make(**options: object) -> IQL:
    torch.manual_seed(0)
    return IQL(IQLConfig(**{"hidden": [32, 32], **options}), SPEC)


def test_expectile_loss_by_hand() -> None:
    loss, metrics = expectile_loss(torch.tensor([3.0, 0.0]), torch.tensor([1.0, 2.0]), expectile=0.75)
    assert loss.item() == 2.0  # (0.75 * 4 + 0.25 * 4) / 2
    assert {k: v.item() for k, v in metrics.items()} == {"loss/value": 2.0, "value/mean": 1.5}


def test_the_minimum_of_the_loss_is_the_expectile() -> None:
    """Of 0 and 1 at expectile 0.9: 0.9 (1 - v) = 0.1 v, hence v = 0.9."""
    value = torch.tensor(0.9, requires_grad=True)
    loss, _ = expectile_loss(torch.tensor([0.0, 1.0]), value.expand(2), expectile=0.9)
    assert torch.autograd.grad(loss, value)[0].item() == pytest.approx(0.0, abs=1e-6)


def test_actor_loss_by_hand() -> None:
    advantage = torch.tensor([0.0, math.log(2.0) / 3.0, 100.0])
    loss, metrics = iql_actor_loss(torch.tensor([-1.0, -2.0, -0.01]), advantage, beta=3.0, max_weight=100.0)
    assert loss.item() == pytest.approx((1.0 + 4.0 + 1.0) / 3.0)
    assert metrics["policy/weight"].item() == pytest.approx(103.0 / 3.0)
    assert set(metrics) == {"loss/actor", "policy/log_prob", "policy/weight", "q/advantage"}


def test_names_of_the_metrics() -> None:
    metrics = make().update(bandit())
    assert set(metrics) == NAMES
    assert all(v.dim() == 0 and not v.requires_grad for v in metrics.values())


def test_actor_and_critic_see_the_new_value_and_the_target_critic() -> None:
    learner = make(value_lr=1e-2)
    with torch.no_grad():
        for p in learner.critic.parameters():  # away from its targets
            p.add_(0.1)
    before = copy.deepcopy(learner)
    batch = bandit()._replace(terminated=torch.zeros(64), discount=torch.full((64,), 0.25))
    metrics = learner.update(batch)
    with torch.no_grad():
        q = before.target_critic(batch.obs, batch.action).amin(0)
        new, old = learner.value(batch.obs).squeeze(-1), before.value(batch.obs).squeeze(-1)
        target = batch.reward + 0.25 * learner.value(batch.next_obs).squeeze(-1)
    assert metrics["q/advantage"].item() == pytest.approx((q - new).mean().item(), abs=1e-6)
    assert metrics["q/advantage"].item() != pytest.approx((q - old).mean().item(), abs=1e-3)
    assert metrics["q/target"].item() == pytest.approx(target.mean().item(), abs=1e-6)


def test_value_and_advantage_are_those_of_the_target_critics() -> None:
    """Target critics that say 3 and 2, critics that say 10 and 20, and a value of 0."""
    learner = make(hidden=[], value_lr=1e-12)
    with torch.no_grad():
        for p in learner.parameters():
            p.zero_()
        learner.critic.biases[0].copy_(torch.tensor([10.0, 20.0]).view(2, 1, 1))
        learner.target_critic.biases[0].copy_(torch.tensor([3.0, 2.0]).view(2, 1, 1))
    metrics = learner.update(bandit())
    assert metrics["loss/value"].item() == pytest.approx(0.7 * 2.0**2)
    assert metrics["q/advantage"].item() == pytest.approx(2.0)


def test_terminated_states_do_not_bootstrap() -> None:
    batch = bandit()
    assert make().update(batch)["q/target"].item() == pytest.approx(batch.reward.mean().item(), rel=1e-6)


def test_targets_follow_slowly() -> None:
    learner = make(tau=0.25)
    before = copy.deepcopy(learner.target_critic.weights[0])
    learner.update(bandit())
    torch.testing.assert_close(learner.target_critic.weights[0], before.lerp(learner.critic.weights[0], 0.25))


def test_cosine_decay_by_hand() -> None:
    assert [cosine_decay(t, 4) for t in (0, 2, 4, 9)] == pytest.approx([1.0, 0.5, 0.0, 0.0])
    assert cosine_decay(10**6, None) == 1.0


def test_only_the_actors_learning_rate_falls() -> None:
    learner = make(actor_lr=1e-3, actor_decay_updates=4)
    rates = []
    for _ in range(6):
        before = copy.deepcopy(learner.policy.net.weights[0])
        learner.update(bandit())
        rates.append(learner.optimizers["actor"].lr)
    assert rates == pytest.approx([1e-3 * cosine_decay(t, 4) for t in range(6)])
    assert torch.equal(learner.policy.net.weights[0], before)  # it has come to rest
    assert learner.optimizers["critic"].lr == learner.optimizers["value"].lr == 3e-4


def test_the_decay_follows_the_counters_after_a_resume() -> None:
    learner = make(actor_decay_updates=10)
    for _ in range(5):
        learner.update(bandit())
    again = make(actor_decay_updates=10)
    again.load_counters(learner.counters())
    again.load_tensors({k: v.clone() for k, v in learner.tensors().items()})
    batch = bandit()
    learner.update(batch)
    again.update(batch)
    assert again.optimizers["actor"].lr == learner.optimizers["actor"].lr < 3e-4
    assert torch.equal(again.policy.net.weights[0], learner.policy.net.weights[0])


def test_dropout_reaches_the_actor_only_in_updates() -> None:
    learner = make(dropout=0.5)
    obs = torch.randn(8, 2)
    assert torch.equal(learner.act(obs, explore=False), learner.act(obs, explore=False))
    assert learner.policy.net.dropout == 0.5
    assert learner.value.dropout == learner.critic.dropout == 0.0


def test_acting() -> None:
    learner = make()
    obs = torch.randn(100, 2)
    assert not torch.equal(learner.act(obs, explore=True), learner.act(obs, explore=True))
    assert learner.act(obs, explore=True).abs().max().item() <= 1.0
    assert not learner.act(obs, explore=True).requires_grad


@pytest.mark.parametrize(
    "options",
    [
        {"expectile": 0.0}, {"expectile": 1.0}, {"beta": -1.0}, {"max_weight": 0.0}, {"tau": 0.0}, {"dropout": 1.0},
        {"actor_decay_updates": 0}, {"value_lr": 0.0},
    ],
)  # fmt: skip
def test_impossible_settings_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(UserError):
        make(**options)


def test_a_higher_expectile_values_better_actions() -> None:
    """The bandit's rewards have mean 5/3 and maximum 4; V lies between, higher for a higher expectile."""
    found = []
    for expectile in (0.5, 0.95):
        learner = make(expectile=expectile, value_lr=3e-3, critic_lr=3e-3, tau=0.1)
        for _ in range(500):
            learner.update(bandit(256))
        found.append(learner.value(torch.randn(256, 2)).mean().item())
    assert found[0] == pytest.approx(5.0 / 3.0, abs=0.35)
    assert found[0] + 1.0 < found[1] < 4.2


@pytest.mark.parametrize(("beta", "expected"), [(0.0, 0.0), (10.0, 0.5)])
def test_learns_to_imitate_or_to_improve(beta: float, expected: float) -> None:
    learner = make(beta=beta, actor_lr=3e-3, critic_lr=3e-3, value_lr=3e-3, tau=0.05)
    for _ in range(500):
        learner.update(bandit(256))
    assert learner.act(torch.randn(64, 2), explore=False).mean().item() == pytest.approx(expected, abs=0.1)
