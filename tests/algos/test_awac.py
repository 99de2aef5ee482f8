"""AWAC: both weightings by hand, what is valued where, and a bandit between imitation and value."""

from __future__ import annotations

import copy
import math

import pytest
import torch

from rlx.algos.awac import AWAC, AWACConfig, Weighting, awac_loss, awac_weights
from rlx.errors import UserError
from rlx.types import Batch, Spec

SPEC = Spec("bandit", (2,), "float32", "box", (1,), (-1.0,), (1.0,))
CRITIC = {"loss/critic", "q/mean", "q/target"}
ACTOR = {"loss/actor", "policy/log_prob", "policy/weight", "q/advantage"}


def bandit(n: int = 64, best: float = 0.5) -> Batch:
    """Uniform behaviour, reward largest (4) at `best`, episodes of one step."""
    action = torch.rand(n, 1) * 2.0 - 1.0
    reward = 4.0 - 4.0 * (action[:, 0] - best).square()
    return Batch(torch.randn(n, 2), action, reward, torch.randn(n, 2), torch.ones(n), torch.full((n,), 0.99))


def make(**options: object) -> AWAC:
    torch.manual_seed(0)
    return AWAC(AWACConfig(**{"hidden": [32, 32], **options}), SPEC)


def test_weights_by_hand() -> None:
    advantage = torch.tensor([0.0, math.log(2.0), 1000.0])
    clipped = awac_weights(advantage, 1.0, Weighting.exp, max_weight=100.0)
    torch.testing.assert_close(clipped, torch.tensor([1.0, 2.0, 100.0]))
    softer = awac_weights(advantage[:2], 0.5, Weighting.exp, max_weight=100.0)
    torch.testing.assert_close(softer, torch.tensor([1.0, 4.0]))
    shared = awac_weights(advantage[:2], 1.0, Weighting.softmax, max_weight=100.0)
    torch.testing.assert_close(shared, torch.tensor([2.0 / 3.0, 4.0 / 3.0]))  # they average 1


def test_loss_by_hand() -> None:
    loss, metrics = awac_loss(torch.tensor([-1.0, -2.0]), torch.tensor([3.0, 0.5]))
    assert loss.item() == 2.0
    values = {"loss/actor": 2.0, "policy/log_prob": -1.5, "policy/weight": 1.75}
    assert {k: v.item() for k, v in metrics.items()} == values


def test_temperature_by_weighting() -> None:
    assert make().temperature == 1.0
    assert make(weighting=Weighting.softmax).temperature == 0.5
    assert make(temperature=0.3).temperature == 0.3


def test_names_of_the_metrics() -> None:
    metrics = make().update(bandit())
    assert set(metrics) == CRITIC | ACTOR
    assert all(v.dim() == 0 and not v.requires_grad for v in metrics.values())


def test_terminated_states_do_not_bootstrap() -> None:
    batch = bandit()
    assert make().update(batch)["q/target"].item() == pytest.approx(batch.reward.mean().item(), rel=1e-6)


def test_the_target_is_the_smaller_critic() -> None:
    learner = make()
    with torch.no_grad():
        for p in learner.target_critic.parameters():
            p.zero_()
        learner.target_critic.biases[-1].copy_(torch.tensor([3.0, 2.0]).view(2, 1, 1))
    batch = bandit()._replace(terminated=torch.zeros(64), reward=torch.ones(64), discount=torch.full((64,), 0.25))
    assert learner.update(batch)["q/target"].item() == pytest.approx(1.5)


def test_the_advantage_is_over_the_policys_action() -> None:
    """Critics that say 3 a and 3 a + 1: the advantage is three times the distance to a sample of the policy."""
    learner = make(critic_lr=1e-12, hidden=[])
    with torch.no_grad():
        learner.critic.weights[0].copy_(torch.tensor([0.0, 0.0, 3.0]).view(1, 3, 1).expand(2, 3, 1))
        learner.critic.biases[0].copy_(torch.tensor([0.0, 1.0]).view(2, 1, 1))
        learner.policy.net.weights[0].zero_()
        learner.policy.net.biases[0].fill_(math.atanh(0.5))
        learner.policy.log_std.fill_(-6.0)
    batch = bandit()
    expected = 3.0 * (batch.action.mean().item() - 0.5)
    assert learner.update(batch)["q/advantage"].item() == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize("data", [-1.0, 1.0])
def test_the_advantage_is_of_the_smaller_critic_on_both_sides(data: float) -> None:
    """Critics that say 5 a and a, target critics that say 0, a policy that is certain of 0: min(5 a, a) - 0."""
    learner = make(critic_lr=1e-12, hidden=[])
    with torch.no_grad():
        for p in learner.parameters():
            p.zero_()
        learner.critic.weights[0][:, 2, 0] = torch.tensor([5.0, 1.0])
        learner.policy.log_std.fill_(-6.0)
    batch = bandit()._replace(action=torch.full((64, 1), data))
    smaller = min(5.0 * data, data)
    assert learner.update(batch)["q/advantage"].item() == pytest.approx(smaller, abs=0.02)


def test_the_policys_value_is_that_of_a_sample_inside_the_box() -> None:
    """Q = |a|, a policy around 0 with a std of 1: V is the mean of min(|a|, 1), 0.63, and 0 for the mean action."""
    learner = make(critic_lr=1e-12, hidden=[2])
    with torch.no_grad():
        for p in learner.parameters():
            p.zero_()
        learner.critic.weights[0][:, 2] = torch.tensor([1.0, -1.0])
        learner.critic.weights[1].fill_(1.0)  # relu(a) + relu(-a)
    batch = bandit(4096)._replace(action=torch.zeros(4096, 1))
    assert learner.update(batch)["q/advantage"].item() == pytest.approx(-0.63, abs=0.03)


def test_weights_are_cut_at_the_configs_bound() -> None:
    """Q = 10 a and all actions of the data at 1: every weight would be exp(10)."""
    learner = make(critic_lr=1e-12, hidden=[], max_weight=7.0)
    with torch.no_grad():
        for p in learner.parameters():
            p.zero_()
        learner.critic.weights[0][:, 2] = 10.0
        learner.policy.log_std.fill_(-6.0)
    batch = bandit()._replace(action=torch.ones(64, 1))
    assert learner.update(batch)["policy/weight"].item() == pytest.approx(7.0)


def test_targets_follow_slowly() -> None:
    learner = make(tau=0.25)
    before = copy.deepcopy(learner.target_critic.weights[0])
    learner.update(bandit())
    torch.testing.assert_close(learner.target_critic.weights[0], before.lerp(learner.critic.weights[0], 0.25))


def test_the_std_is_bounded() -> None:
    learner = make()
    for log_std, bounded in ((3.0, 0.0), (-20.0, -6.0)):
        with torch.no_grad():
            learner.policy.log_std.fill_(log_std)
        assert learner.policy(torch.zeros(1, 2)).log_std.tolist() == [bounded]


def test_acting() -> None:
    learner = make()
    obs = torch.randn(100, 2)
    assert torch.equal(learner.act(obs, explore=False), learner.act(obs, explore=False))
    assert not torch.equal(learner.act(obs, explore=True), learner.act(obs, explore=True))
    assert learner.act(obs, explore=True).abs().max().item() <= 1.0
    assert not learner.act(obs, explore=True).requires_grad


@pytest.mark.parametrize(
    "options", [{"tau": 0.0}, {"temperature": 0.0}, {"temperature": -1.0}, {"max_weight": 0.0}, {"actor_lr": 0.0}]
)
def test_impossible_settings_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(UserError):
        make(**options)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"temperature": 1000.0}, 0.0),  # imitation: the mean of the behaviour
        ({"temperature": 0.1}, 0.5),
        ({"temperature": 0.1, "weighting": Weighting.softmax}, 0.5),
    ],
)
def test_learns_to_imitate_or_to_improve(options: dict[str, object], expected: float) -> None:
    learner = make(**options, actor_lr=3e-3, critic_lr=3e-3)
    for _ in range(500):
        learner.update(bandit(256))
    assert learner.act(torch.randn(64, 2), explore=False).mean().item() == pytest.approx(expected, abs=0.1)


def test_weight_decay_is_of_the_actor_alone() -> None:
    """The first step of Adam is lr * sign(gradient + decay * weight): with a large decay, towards 0."""
    learner = make(actor_weight_decay=1e6, actor_lr=1e-3)
    before = learner.policy.net.weights[0].detach().clone()
    critic = learner.optimizers["critic"]
    learner.update(bandit())
    moved = learner.policy.net.weights[0].detach() - before
    torch.testing.assert_close(moved, -1e-3 * before.sign(), atol=1e-5, rtol=1e-3)
    assert critic.weight_decay == 0.0
    with pytest.raises(UserError, match="actor_weight_decay"):
        make(actor_weight_decay=-1.0)
