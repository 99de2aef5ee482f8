"""TD3: the smaller target critic, the delay of policy and targets, noise that stays in the box, a known optimum."""

from __future__ import annotations

import copy

import pytest
import torch

from rlx.algos.td3 import TD3, TD3Config
from rlx.errors import UserError
from rlx.types import Batch, Spec

SPEC = Spec("bandit", (2,), "float32", "box", (1,), (-1.0,), (1.0,))


def bandit(n: int = 64, best: float = 0.5) -> Batch:
    """Episodes of one step; the reward is largest at the action `best`."""
    action = torch.rand(n, 1) * 2.0 - 1.0
    reward = -4.0 * (action[:, 0] - best).square()
    return Batch(torch.randn(n, 2), action, reward, torch.randn(n, 2), torch.ones(n), torch.full((n,), 0.99))


def make(**options: object) -> TD3:
    torch.manual_seed(0)
    return TD3(TD3Config(**{"hidden": [32, 32], **options}), SPEC)


def test_policy_and_targets_move_on_every_second_update() -> None:
    learner = make()
    before = copy.deepcopy(learner.state_dict())
    first = learner.update(bandit())
    assert set(first) == {"loss/critic", "q/mean", "q/target"}
    moved = {k.partition(".")[0] for k, v in learner.state_dict().items() if not torch.equal(v, before[k])}
    assert moved == {"critic"}
    second = learner.update(bandit())
    assert set(second) == {"loss/critic", "q/mean", "q/target", "loss/actor"}
    assert all(v.dim() == 0 and not v.requires_grad for v in second.values())
    moved = {k.partition(".")[0] for k, v in learner.state_dict().items() if not torch.equal(v, before[k])}
    assert moved == {"critic", "policy", "target_critic", "target_policy"}


def test_targets_follow_by_tau() -> None:
    learner = make(tau=0.25, policy_delay=1)
    before = copy.deepcopy(learner.state_dict())
    learner.update(bandit())
    for target, online in (
        ("target_critic.weights.0", "critic.weights.0"),
        ("target_policy.net.biases.1", "policy.net.biases.1"),
    ):
        after = learner.state_dict()
        torch.testing.assert_close(after[target], before[target].lerp(after[online], 0.25))


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


def test_the_target_action_is_smoothed() -> None:
    batch = bandit()._replace(terminated=torch.zeros(64))
    targets = []
    for noise in (0.0, 0.0, 0.2):
        learner = make(target_noise=noise)
        torch.manual_seed(len(targets))
        targets.append(learner.update(batch)["q/target"].item())
    assert targets[0] == targets[1] != targets[2]


def test_exploration_reads_the_config_at_use() -> None:
    learner = make()
    obs = torch.randn(3, 2)
    assert torch.equal(learner.act(obs, explore=False), learner.act(obs, explore=False))
    assert not torch.equal(learner.act(obs, explore=True), learner.act(obs, explore=True))
    learner.cfg.exploration_noise = 0.0  # as a schedule does
    assert torch.equal(learner.act(obs, explore=True), learner.act(obs, explore=False))
    assert not learner.act(obs, explore=True).requires_grad


@pytest.mark.parametrize(
    "options",
    [
        {"tau": 0.0},
        {"tau": 1.1},
        {"policy_delay": 0},
        {"target_noise": -0.1},
        {"target_noise_clip": -0.1},
        {"exploration_noise": -0.1},
        {"actor_lr": 0.0},
        {"critic_lr": 0.0},
    ],
)
def test_impossible_settings_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(UserError):
        make(**options)


def test_learns_a_bandit() -> None:
    learner = make(actor_lr=3e-3, critic_lr=3e-3)
    for _ in range(500):
        learner.update(bandit())
    actions = learner.act(torch.randn(64, 2), explore=False)
    assert actions.mean().item() == pytest.approx(0.5, abs=0.1)
    assert actions.std().item() < 0.15
