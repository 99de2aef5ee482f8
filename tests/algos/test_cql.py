"""CQL: the conservative loss by hand, its actions and backups, the multiplier, the warm-up, and a bandit."""

from __future__ import annotations

import copy
import itertools
import math

import pytest
import torch

from rlx.algos.cql import CQL, CQLConfig, cql_loss, gap_multiplier_loss, values
from rlx.errors import UserError
from rlx.nn import Critic
from rlx.types import Batch, Spec

SPEC = Spec("bandit", (2,), "float32", "box", (2,), (-1.0, -1.0), (1.0, 1.0))
NAMES = {
    "loss/critic", "q/mean", "q/target", "loss/conservative", "q/gap", "loss/actor", "policy/entropy", "loss/alpha",
    "policy/alpha",
}  # fmt: skip


def bandit(n: int = 64, spread: float = 1.0) -> Batch:
    """Behaviour uniform in +-spread, reward growing with both actions, episodes of one step."""
    action = (torch.rand(n, 2) * 2.0 - 1.0) * spread
    obs, next_obs = torch.randn(2, n, 2)
    return Batch(obs, action, action.sum(-1), next_obs, torch.ones(n), torch.full((n,), 0.99))


def make(**options: object) -> CQL:
    torch.manual_seed(0)
    return CQL(CQLConfig(**{"hidden": [16, 16], "bc_updates": 0, **options}), SPEC)


def constant(critic: Critic, *says: float) -> None:
    """Critic i says says[i], whatever it sees."""
    with torch.no_grad():
        for p in critic.parameters():
            p.zero_()
        critic.biases[-1].copy_(torch.tensor(says).view(-1, 1, 1))


def test_loss_by_hand() -> None:
    candidates = torch.tensor([[[0.0, 0.0], [math.log(3.0), 0.0]], [[1.0, 1.0], [1.0, 1.0]]])  # 2 critics, 2 rows
    data = torch.tensor([[math.log(2.0), 0.0], [1.0, 1.0]])
    loss, gap, metrics = cql_loss(candidates, data, weight=5.0)
    expected = torch.tensor([math.log(4.0) / 2.0, math.log(2.0)])  # equal: 2 log 2 / 2 and log 2
    torch.testing.assert_close(gap, expected)
    assert loss.item() == pytest.approx(10.0 * math.log(2.0), rel=1e-6)
    assert {k: v.item() for k, v in metrics.items()} == pytest.approx(
        {"loss/conservative": 10.0 * math.log(2.0), "q/gap": math.log(2.0)}
    )


def test_the_weight_multiplies_the_gap_before_the_threshold_is_taken_off() -> None:
    candidates, data = torch.zeros(1, 1, 1), torch.tensor([[-2.0]])  # a gap of 2
    loss, _, _ = cql_loss(candidates, data, weight=3.0, multiplier=0.5, threshold=4.0)
    assert loss.item() == 1.0  # 0.5 * (3 * 2 - 4)


def test_the_multiplier_rises_above_the_threshold_and_is_bounded() -> None:
    log = torch.tensor(0.0, requires_grad=True)
    above, metrics = gap_multiplier_loss(log, torch.tensor([2.0, 2.0]), weight=3.0, threshold=4.0)
    assert torch.autograd.grad(above, log)[0].item() == -2.0  # down its gradient: up
    assert {k: v.item() for k, v in metrics.items()} == {"loss/multiplier": -2.0, "q/multiplier": 1.0}
    below, _ = gap_multiplier_loss(log, torch.tensor([1.0, 1.0]), weight=3.0, threshold=4.0)
    assert torch.autograd.grad(below, log)[0].item() == 1.0
    _, metrics = gap_multiplier_loss(torch.tensor(100.0), torch.tensor([1.0]), weight=1.0, threshold=0.0)
    assert metrics["q/multiplier"].item() == 1e6


def test_many_actions_are_valued_in_one_call_as_one_by_one() -> None:
    critic = Critic(2, 2, [8])
    obs, actions = torch.randn(3, 2), torch.rand(3, 4, 2)
    found = values(critic, obs, actions)
    assert found.shape == (2, 3, 4)
    for k in range(4):
        torch.testing.assert_close(found[..., k], critic(obs, actions[:, k]))


def test_the_gap_is_importance_weighted() -> None:
    """With critics that say 0 the terms are 1 / density: on average 4, the volume of the box, for 3 x 200 actions."""
    learner = make(n_actions=200, critic_lr=1e-12)
    constant(learner.critic, 0.0, 0.0)
    with torch.no_grad():  # a policy whose samples cover the box
        for p in learner.policy.parameters():
            p.zero_()
    gap = learner.update(bandit(256))["q/gap"].item()
    assert gap == pytest.approx(math.log(3 * 200 * 4), abs=0.05)


@pytest.mark.parametrize("options", [{}, {"max_q_backup": True}, {"lagrange_threshold": 5.0}])
def test_the_critics_loss_reaches_the_critics_alone(options: dict[str, float]) -> None:
    """Not the policy by log pi, and not the multiplier, which climbs what the critics descend."""
    learner = make(**options)
    batch = bandit()._replace(terminated=torch.zeros(64))
    learner._critic_loss(batch, learner.log_alpha.detach().exp())[0].backward()
    with_gradient = {name.split(".")[0] for name, p in learner.named_parameters() if p.grad is not None}
    assert with_gradient == {"critic"}


def test_the_gap_is_that_of_three_kinds_of_actions_at_the_state_itself() -> None:
    """Critics that say 5 s: log(3 n * volume of the box) if all actions are valued at s, and more if some are at s'."""
    learner = make(hidden=[], n_actions=300, critic_lr=1e-12)
    with torch.no_grad():
        for p in learner.parameters():
            p.zero_()
        learner.critic.weights[0][:, 0] = 5.0
    batch = bandit(32)
    metrics = learner.update(batch)
    assert metrics["q/mean"].item() == pytest.approx(5.0 * batch.obs[:, 0].mean().item(), rel=1e-4)
    assert metrics["q/gap"].item() == pytest.approx(math.log(3 * 300 * 4), abs=0.1)


def test_the_actions_of_the_next_state_count() -> None:
    """Critics that say 100 a, a policy that is certain of a = tanh(s): the gap grows with s' where s stays."""
    learner = make(hidden=[], n_actions=1, critic_lr=1e-12)
    with torch.no_grad():
        for p in learner.parameters():
            p.zero_()
        learner.critic.weights[0][:, 2] = 100.0
        learner.policy.net.weights[0][0, 0] = 1.0
        learner.policy.net.biases[0][2:] = -5.0  # log_std
    batch = bandit()._replace(action=torch.zeros(64, 2), obs=torch.full((64, 2), -1.0))
    low, high = (learner.update(batch._replace(next_obs=torch.full((64, 2), s)))["q/gap"].item() for s in (-1.0, 1.0))
    assert high > low + 30.0


def test_multiplier_weight_and_threshold_meet_in_both_losses() -> None:
    """multiplier * (2 gap - 6) for each of two critics, and once with the other sign for the multiplier."""
    learner = make(weight=2.0, lagrange_threshold=6.0, n_actions=2, critic_lr=1e-12)
    constant(learner.critic, 0.0, 0.0)
    with torch.no_grad():
        learner.log_multiplier.fill_(math.log(0.5))
    metrics = learner.update(bandit())
    gap = metrics["q/gap"].item()
    assert metrics["loss/conservative"].item() == pytest.approx(2 * 0.5 * (2.0 * gap - 6.0), rel=1e-5)
    assert metrics["loss/multiplier"].item() == pytest.approx(-0.5 * (2.0 * gap - 6.0), rel=1e-5)


def test_names_of_the_metrics() -> None:
    metrics = make().update(bandit())
    assert set(metrics) == NAMES
    assert all(v.dim() == 0 and not v.requires_grad for v in metrics.values())
    assert set(make(lagrange_threshold=5.0).update(bandit())) == NAMES | {"loss/multiplier", "q/multiplier"}


def test_terminated_states_do_not_bootstrap() -> None:
    batch = bandit()
    assert make().update(batch)["q/target"].item() == pytest.approx(batch.reward.mean().item(), rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("options", [{}, {"max_q_backup": True}])
def test_the_backup_is_the_smaller_critic_without_entropy(options: dict[str, bool]) -> None:
    learner = make(**options)
    constant(learner.target_critic, 3.0, 2.0)
    batch = bandit()._replace(terminated=torch.zeros(64), reward=torch.ones(64), discount=torch.full((64,), 0.25))
    assert learner.update(batch)["q/target"].item() == pytest.approx(1.5)


def test_entropy_in_the_backup_is_a_choice() -> None:
    learner = make(backup_entropy=True, alpha=0.5)
    constant(learner.target_critic, 3.0, 2.0)
    batch = bandit()._replace(terminated=torch.zeros(64), reward=torch.ones(64), discount=torch.full((64,), 0.25))
    torch.manual_seed(1)
    log_prob = learner.policy.sample(batch.next_obs)[1].mean().item()
    torch.manual_seed(1)
    expected = 1.0 + 0.25 * (2.0 - 0.5 * log_prob)
    assert learner.update(batch)["q/target"].item() == pytest.approx(expected, rel=1e-5)


def test_max_q_backup_takes_the_best_of_each_critic_then_the_smaller() -> None:
    learner = make(max_q_backup=True, n_actions=4)
    next_obs = torch.randn(5, 2)
    torch.manual_seed(1)
    action, _ = learner._sample(next_obs, 4)
    torch.manual_seed(1)
    found = learner._next_value(next_obs, torch.tensor(1.0))
    each = torch.stack([learner.target_critic(next_obs, action[:, k]) for k in range(4)], -1)
    torch.testing.assert_close(found, each.max(-1).values.min(0).values)


def test_samples_match_the_policy() -> None:
    learner = make()
    obs = torch.randn(6, 2)
    action, log_prob = learner._sample(obs, 3)
    assert action.shape == (6, 3, 2)
    for k in range(3):
        torch.testing.assert_close(log_prob[:, k], learner.policy.log_prob(obs, action[:, k]), rtol=1e-3, atol=1e-3)


def test_the_actor_follows_the_smaller_critic() -> None:
    """Critics that say 4 and 1: the loss is alpha * log pi - 1."""
    learner = make(critic_lr=1e-12, n_actions=1, alpha=0.5)
    constant(learner.critic, 4.0, 1.0)
    metrics = learner.update(bandit())
    expected = -0.5 * metrics["policy/entropy"].item() - 1.0
    assert metrics["loss/actor"].item() == pytest.approx(expected, abs=1e-4)


def test_the_warm_up_imitates() -> None:
    """While it lasts, the critics do not matter to the policy."""
    learner = make(bc_updates=1, n_actions=2)
    twin = copy.deepcopy(learner)
    constant(twin.critic, 1.0, 2.0)
    batch = bandit()
    for one in (learner, twin):
        torch.manual_seed(1)
        one.update(batch)
    assert torch.equal(learner.policy.net.weights[0], twin.policy.net.weights[0])
    for one in (learner, twin):
        torch.manual_seed(1)
        one.update(batch)
    assert not torch.equal(learner.policy.net.weights[0], twin.policy.net.weights[0])


def test_the_warm_up_finds_the_behaviour() -> None:
    learner = make(bc_updates=1000, actor_lr=3e-3, n_actions=1, alpha=0.01)
    for _ in range(300):
        batch = bandit(128, spread=0.1)
        learner.update(batch._replace(action=batch.action + 0.4))
    assert learner.act(torch.randn(64, 2), explore=False).mean().item() == pytest.approx(0.4, abs=0.05)


def test_the_gap_pushes_values_down_outside_of_the_data() -> None:
    """Rewards grow with the action, the data ends at 0.2: plain values go on growing, conservative ones do not."""
    found = {}
    for weight in (0.0, 5.0):
        learner = make(weight=weight, critic_lr=3e-3, n_actions=5)
        for _ in range(300):
            metrics = learner.update(bandit(128, spread=0.2))
        obs = torch.randn(64, 2)
        inside, outside = (learner.critic(obs, torch.full((64, 2), a)).mean().item() for a in (0.1, 0.9))
        found[weight] = outside - inside, metrics["q/gap"].item()
    assert found[0.0][0] > 0.3
    assert found[5.0][0] < 0.0
    assert found[5.0][1] < found[0.0][1] - 0.5


@pytest.mark.parametrize(("threshold", "direction"), [(0.0, 1.0), (100.0, -1.0)])
def test_the_multiplier_follows_the_gap(threshold: float, direction: float) -> None:
    """The gap of uniform data is at least log(3 n_actions * volume), here 4.1: above 0 and below 100."""
    learner = make(lagrange_threshold=threshold, weight=1.0, critic_lr=1e-2, n_actions=5)
    found = [learner.update(bandit(128)) for _ in range(20)]
    multipliers = [metrics["q/multiplier"].item() for metrics in found]
    assert multipliers[0] == 1.0
    assert all(direction * (later - earlier) > 0.0 for earlier, later in itertools.pairwise(multipliers))
    assert found[-1]["q/gap"].item() > 4.0


def test_acting() -> None:
    learner = make()
    obs = torch.randn(3, 2)
    assert torch.equal(learner.act(obs, explore=False), learner.act(obs, explore=False))
    assert not torch.equal(learner.act(obs, explore=True), learner.act(obs, explore=True))


@pytest.mark.parametrize(
    "options",
    [
        {"tau": 0.0}, {"alpha": 0.0}, {"weight": -1.0}, {"n_actions": 0}, {"bc_updates": -1}, {"critic_lr": 0.0},
        {"lagrange_threshold": -1.0}, {"max_q_backup": True, "backup_entropy": True},
    ],
)  # fmt: skip
def test_impossible_settings_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(UserError):
        make(**options)


def test_conservative_values_keep_the_policy_at_the_data() -> None:
    """Rewards grow with the actions, and those of the data end at 0.5."""
    found = {}
    for weight in (0.0, 1.0):
        learner = make(weight=weight, actor_lr=3e-3, critic_lr=3e-3, alpha_lr=3e-3, n_actions=5)
        for _ in range(500):
            batch = bandit(128, spread=0.5)
            learner.update(batch._replace(reward=4.0 * batch.reward))
        found[weight] = learner.act(torch.randn(64, 2), explore=False).mean().item()
    assert found[0.0] > 0.7
    assert 0.2 < found[1.0] < 0.5
