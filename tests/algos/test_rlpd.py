"""RLPD: subsets of critics, the delay of the actor, and a bandit whose optimum is known."""

from __future__ import annotations

import copy

import pytest
import torch

from rlx.algos.rlpd import RLPD, RLPDConfig
from rlx.errors import UserError
from rlx.types import Batch, Spec

SPEC = Spec("bandit", (2,), "float32", "box", (2,), (-1.0, -1.0), (1.0, 1.0))


def bandit(n: int = 64, best: float = 0.5) -> Batch:
    """Episodes of one step; the reward is largest where both actions are `best`."""
    action = torch.rand(n, 2) * 2.0 - 1.0
    reward = -2.0 * (action - best).square().sum(-1)
    return Batch(torch.randn(n, 2), action, reward, torch.randn(n, 2), torch.ones(n), torch.full((n,), 0.99))


def make(**options: object) -> RLPD:
    torch.manual_seed(0)
    return RLPD(RLPDConfig(**{"hidden": [16, 16], "critics": 5, "policy_delay": 4, **options}), SPEC)


def constant_targets(learner: RLPD) -> None:
    """Target critic i says i, whatever it sees."""
    with torch.no_grad():
        for p in learner.target_critic.parameters():
            p.zero_()
        learner.target_critic.biases[-1].copy_(torch.arange(5.0).view(5, 1, 1))


def test_every_critic_step_draws_a_new_pair() -> None:
    learner = make(backup_entropy=False, tau=1e-9, policy_delay=1000)
    constant_targets(learner)
    batch = bandit()._replace(terminated=torch.zeros(64), reward=torch.zeros(64), discount=torch.ones(64))
    seen = [round(learner.update(batch)["q/target"].item(), 3) for _ in range(60)]
    assert set(seen) == {0.0, 1.0, 2.0, 3.0}  # the smaller of two of 0..4
    assert sum(seen) / len(seen) == pytest.approx(1.0, abs=0.35)  # its mean over all pairs


def test_the_whole_ensemble_as_subset_is_its_minimum() -> None:
    learner = make(backup_entropy=False, subset=5)
    constant_targets(learner)
    batch = bandit()._replace(terminated=torch.zeros(64), reward=torch.ones(64), discount=torch.full((64,), 0.5))
    assert learner.update(batch)["q/target"].item() == 1.0


def test_entropy_in_the_backup_is_a_choice() -> None:
    batch = bandit()._replace(terminated=torch.zeros(64), reward=torch.zeros(64), discount=torch.ones(64))
    targets = []
    for backup_entropy in (True, False):
        learner = make(backup_entropy=backup_entropy, subset=5, alpha=0.5)
        constant_targets(learner)
        torch.manual_seed(1)
        targets.append(learner.update(batch)["q/target"].item())
    learner = make(alpha=0.5)
    torch.manual_seed(1)
    torch.randperm(5)
    log_prob = learner.policy.sample(batch.next_obs)[1].mean().item()
    assert targets == pytest.approx([-0.5 * log_prob, 0.0], rel=1e-5)


def test_terminated_states_do_not_bootstrap() -> None:
    batch = bandit()
    assert make().update(batch)["q/target"].item() == pytest.approx(batch.reward.mean().item(), rel=1e-6)


def test_the_actor_climbs_the_mean_of_all_critics() -> None:
    learner = make(policy_delay=1, alpha=1e-9, critic_lr=1e-12)
    constant_targets(learner)
    learner.critic.load_state_dict(learner.target_critic.state_dict())
    assert learner.update(bandit())["loss/actor"].item() == pytest.approx(-2.0, rel=1e-5)  # mean of 0..4


def test_the_actor_and_the_temperature_move_on_the_last_minibatch() -> None:
    learner = make()
    critic_names = {"loss/critic", "q/mean", "q/target"}
    for i in range(1, 5):
        before = copy.deepcopy(learner.state_dict())
        metrics = learner.update(bandit())
        moved = not torch.equal(learner.policy.net.weights[0], before["policy.net.weights.0"])
        assert moved == (i == 4)
        assert (learner.log_alpha.item() != before["log_alpha"].item()) == (i == 4)
        assert not torch.equal(learner.critic.weights[0], before["critic.weights.0"])
        assert not torch.equal(learner.target_critic.weights[0], before["target_critic.weights.0"])
        extra = {"loss/actor", "policy/entropy", "loss/alpha", "policy/alpha"} if i == 4 else set()
        assert set(metrics) == critic_names | extra


def test_critics_have_layer_norm_and_the_actor_has_none() -> None:
    learner = make()
    assert len(learner.critic.gains) == 2
    assert len(learner.policy.net.gains) == 0
    assert len(make(layer_norm=False).critic.gains) == 0


def test_target_entropy() -> None:
    assert make().target_entropy == -1.0
    assert make(target_entropy=-3.0).target_entropy == -3.0


@pytest.mark.parametrize(
    "options",
    [{"subset": 6}, {"subset": 0}, {"tau": 0.0}, {"alpha": 0.0}, {"policy_delay": 0}, {"alpha_lr": 0.0}],
)
def test_impossible_settings_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(UserError):
        make(**options)


def test_learns_a_bandit() -> None:
    learner = make(alpha=0.01, alpha_lr=1e-9, actor_lr=3e-3, critic_lr=3e-3, policy_delay=2, hidden=[32, 32])
    for _ in range(600):
        learner.update(bandit())
    actions = learner.act(torch.randn(64, 2), explore=False)
    assert actions.mean(0).tolist() == pytest.approx([0.5, 0.5], abs=0.15)
