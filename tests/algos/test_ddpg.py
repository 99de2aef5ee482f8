"""DDPG: one critic, no smoothing, no delay, and a bandit whose optimum is known."""

from __future__ import annotations

import copy

import pytest
import torch

from rlx.algos.ddpg import DDPG, DDPGConfig
from rlx.errors import UserError
from rlx.types import Batch, Spec

SPEC = Spec("bandit", (2,), "float32", "box", (1,), (-1.0,), (1.0,))


def bandit(n: int = 64, best: float = 0.5) -> Batch:
    """Episodes of one step; the reward is largest at the action `best`."""
    action = torch.rand(n, 1) * 2.0 - 1.0
    reward = -4.0 * (action[:, 0] - best).square()
    return Batch(torch.randn(n, 2), action, reward, torch.randn(n, 2), torch.ones(n), torch.full((n,), 0.99))


def make(**options: object) -> DDPG:
    torch.manual_seed(0)
    return DDPG(DDPGConfig(**{"hidden": [32, 32], **options}), SPEC)


def test_everything_moves_on_every_update() -> None:
    learner = make(tau=0.25)
    before = copy.deepcopy(learner.state_dict())
    metrics = learner.update(bandit())
    assert set(metrics) == {"loss/critic", "q/mean", "q/target", "loss/actor"}
    assert all(v.dim() == 0 and not v.requires_grad for v in metrics.values())
    after = learner.state_dict()
    moved = {k.partition(".")[0] for k in after if not torch.equal(after[k], before[k])}
    assert moved == {"critic", "policy", "target_critic", "target_policy"}
    for target, online in (
        ("target_critic.weights.0", "critic.weights.0"),
        ("target_policy.net.biases.1", "policy.net.biases.1"),
    ):
        torch.testing.assert_close(after[target], before[target].lerp(after[online], 0.25))


def test_the_target_by_hand() -> None:
    learner = make()
    with torch.no_grad():
        for p in learner.target_critic.parameters():
            p.zero_()
        learner.target_critic.biases[-1].fill_(2.0)
    batch = bandit()._replace(reward=torch.ones(64), discount=torch.full((64,), 0.25))
    stopped = copy.deepcopy(learner).update(batch)["q/target"]
    free = learner.update(batch._replace(terminated=torch.zeros(64)))["q/target"]
    assert (stopped.item(), free.item()) == (1.0, 1.5)


def test_the_target_is_not_random() -> None:
    batch = bandit()._replace(terminated=torch.zeros(64))
    targets = []
    for seed in (1, 2):
        learner = make()
        torch.manual_seed(seed)
        targets.append(learner.update(batch)["q/target"].item())
    assert targets[0] == targets[1]


def test_exploration_reads_the_config_at_use() -> None:
    learner = make(exploration_noise=5.0)
    obs = torch.randn(100, 2)
    assert learner.act(obs, explore=True).abs().max().item() == 1.0
    assert torch.equal(learner.act(obs, explore=False), learner.act(obs, explore=False))
    learner.cfg.exploration_noise = 0.0  # as a schedule does
    assert torch.equal(learner.act(obs, explore=True), learner.act(obs, explore=False))
    assert not learner.act(obs, explore=True).requires_grad


@pytest.mark.parametrize(
    "options", [{"tau": 0.0}, {"tau": 1.1}, {"exploration_noise": -0.1}, {"actor_lr": 0.0}, {"critic_lr": 0.0}]
)
def test_impossible_settings_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(UserError):
        make(**options)


def test_learns_a_bandit() -> None:
    learner = make(actor_lr=5e-4, critic_lr=5e-3)  # a critic that is ahead of the actor keeps it from the corners
    for _ in range(600):
        learner.update(bandit())
    actions = learner.act(torch.randn(64, 2), explore=False)
    assert actions.mean().item() == pytest.approx(0.5, abs=0.15)
    assert actions.std().item() < 0.15
