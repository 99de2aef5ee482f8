"""CrossQ: batch renormalisation against its definition, one pass over both actions, a bandit with a known optimum."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from rlx.algos.crossq import CrossQ, CrossQConfig
from rlx.config import compose_config
from rlx.errors import UserError
from rlx.nn.norm import MOMENTUM, RenormMLP
from rlx.types import Batch, Spec

SPEC = Spec("bandit", (2,), "float32", "box", (1,), (-1.0,), (1.0,))


def bandit(n: int = 64, best: float = 0.5) -> Batch:
    """Episodes of one step; the reward is largest at the action `best`."""
    action = torch.rand(n, 1) * 2.0 - 1.0
    reward = -4.0 * (action[:, 0] - best).square()
    return Batch(torch.randn(n, 2), action, reward, torch.randn(n, 2), torch.ones(n), torch.full((n,), 0.99))


def make(**options: object) -> CrossQ:
    torch.manual_seed(0)
    return CrossQ(CrossQConfig(**{"hidden": [16, 16], "critic_hidden": [32, 32], **options}), SPEC)


def test_running_statistics_are_part_of_the_checkpoint() -> None:
    learner = make()
    for _ in range(3):
        learner.update(bandit())
    other = make()
    other.load_tensors({name: tensor.clone() for name, tensor in learner.tensors().items()})
    assert torch.equal(other.critic.mean_1, learner.critic.mean_1)
    obs = torch.randn(3, 2)
    assert torch.equal(other.act(obs, explore=False), learner.act(obs, explore=False))


def test_the_statistics_of_the_critic_are_those_of_both_actions() -> None:
    learner, batch = make(), bandit()
    torch.manual_seed(1)
    next_action, _ = learner.policy.sample(batch.next_obs)
    both = torch.cat([torch.cat([batch.obs, batch.action], -1), torch.cat([batch.next_obs, next_action], -1)])
    torch.manual_seed(1)
    learner.update(batch)
    torch.testing.assert_close(learner.critic.mean_0[0, 0], MOMENTUM * both.mean(0))


def test_the_target_is_the_smaller_next_value_of_the_same_pass() -> None:
    learner = make(alpha=0.5)
    with torch.no_grad():
        learner.critic.weights[-1].zero_()
        learner.critic.biases[-1].copy_(torch.tensor([3.0, 2.0]).view(2, 1, 1))
    batch = bandit()._replace(terminated=torch.zeros(64), reward=torch.ones(64), discount=torch.full((64,), 0.25))
    torch.manual_seed(1)
    log_prob = learner.policy.sample(batch.next_obs)[1].mean().item()
    torch.manual_seed(1)
    expected = 1.0 + 0.25 * (2.0 - 0.5 * log_prob)
    assert learner.update(batch)["q/target"].item() == pytest.approx(expected, rel=1e-5)


def test_terminated_states_do_not_bootstrap() -> None:
    batch = bandit()
    assert make().update(batch)["q/target"].item() == pytest.approx(batch.reward.mean().item(), rel=1e-6)


def test_the_actor_waits_for_the_critics() -> None:
    learner = make(policy_delay=3)
    before = learner.policy.net.weights[0].clone(), learner.policy.net.mean_1.clone()
    critic = {"loss/critic", "q/mean", "q/target"}
    assert set(learner.update(bandit())) == set(learner.update(bandit())) == critic
    assert torch.equal(learner.policy.net.weights[0], before[0])
    assert torch.equal(learner.policy.net.mean_1, before[1])
    metrics = learner.update(bandit())
    assert set(metrics) == critic | {"loss/actor", "policy/entropy", "loss/alpha", "policy/alpha"}
    assert all(v.dim() == 0 and not v.requires_grad for v in metrics.values())
    assert not torch.equal(learner.policy.net.weights[0], before[0])
    assert not torch.equal(learner.policy.net.mean_1, before[1])


def test_the_loss_of_the_actor_leaves_the_critic_alone() -> None:
    learner = make()
    before = {k: v.clone() for k, v in learner.critic.state_dict().items()}
    loss, _, _ = learner._actor_loss(bandit().obs, torch.tensor(1.0), False)
    learner.optimizers["actor"].minimize(loss)
    assert all(torch.equal(v, before[k]) for k, v in learner.critic.state_dict().items())


def test_renormalisation_starts_after_the_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    learner, seen = make(renorm_warmup=2, policy_delay=1), []
    inner = RenormMLP.learn

    def spy(self: RenormMLP, x: Tensor, renorm: bool) -> Tensor:
        seen.append(renorm)
        return inner(self, x, renorm)

    monkeypatch.setattr(RenormMLP, "learn", spy)
    for _ in range(4):
        learner.update(bandit())
    assert seen == [False] * 4 + [True] * 4  # critic and actor of each update


def test_acting_uses_the_running_statistics() -> None:
    learner = make()
    obs = torch.randn(3, 2)
    torch.testing.assert_close(learner.act(obs, explore=False)[:1], learner.act(obs[:1], explore=False))
    assert not torch.equal(learner.act(obs, explore=True), learner.act(obs, explore=True))


def test_target_entropy() -> None:
    assert make().target_entropy == -float(SPEC.action_dim)
    assert make(target_entropy=-0.25).target_entropy == -0.25


def test_a_fixed_temperature_stays() -> None:
    learner = make(alpha=0.2, learn_alpha=False, policy_delay=1)
    learner.update(bandit())
    assert learner.log_alpha.item() == pytest.approx(math.log(0.2))


@pytest.mark.parametrize(
    "options", [{"alpha": 0.0}, {"beta1": 1.0}, {"policy_delay": 0}, {"renorm_warmup": -1}, {"batch_size": 1}]
)
def test_impossible_settings_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(UserError):
        make(**options)


def test_learns_a_bandit() -> None:
    learner = make(alpha=0.01, learn_alpha=False, renorm_warmup=300)
    for _ in range(900):
        learner.update(bandit())
    actions = learner.act(torch.randn(64, 2), explore=False)
    assert actions.mean().item() == pytest.approx(0.5, abs=0.15)
    assert actions.std().item() < 0.2


def test_the_temperature_has_the_usual_beta1() -> None:
    learner = make(beta1=0.25)
    assert {name: optimizer.betas for name, optimizer in learner.optimizers.items()} == {
        "actor": (0.25, 0.999), "critic": (0.25, 0.999), "alpha": (0.9, 0.999),
    }  # fmt: skip


def test_each_network_warms_up_by_its_own_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The critic renormalises after 2 updates, the actor, which learns in every third of them, after 2 of its own."""
    seen: dict[int, list[bool]] = {}
    original = RenormMLP.learn

    def watched(self: RenormMLP, x: Tensor, renorm: bool) -> Tensor:
        seen.setdefault(len(self.weights[0]), []).append(renorm)
        return original(self, x, renorm)

    monkeypatch.setattr(RenormMLP, "learn", watched)
    learner = make(renorm_warmup=2, policy_delay=3)
    for _ in range(9):
        learner.update(bandit())
    assert seen == {2: [False, False, *[True] * 7], 1: [False, False, True]}  # two critics, one actor


def test_it_begins_with_5000_random_steps() -> None:
    assert compose_config(["algo=crossq", "env=hopper"]).trainer.learning_starts == 5000
