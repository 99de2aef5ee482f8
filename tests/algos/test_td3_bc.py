"""TD3+BC: losses by hand, the delay of the policy, and a bandit between imitation and value."""

from __future__ import annotations

import copy
import math

import pytest
import torch

from rlx.algos.td3_bc import TD3BC, TD3BCConfig, td3_bc_loss
from rlx.errors import UserError
from rlx.types import Batch, Spec

SPEC = Spec("bandit", (2,), "float32", "box", (1,), (-1.0,), (1.0,))


def bandit(n: int = 64, best: float = 0.5) -> Batch:
    """Behaviour around 0, reward largest (4) at `best`, episodes of one step."""
    action = torch.rand(n, 1) * 2.0 - 1.0
    reward = 4.0 - 4.0 * (action[:, 0] - best).square()
    return Batch(torch.randn(n, 2), action, reward, torch.randn(n, 2), torch.ones(n), torch.full((n,), 0.99))


def make(**options: object) -> TD3BC:
    torch.manual_seed(0)
    return TD3BC(TD3BCConfig(**{"hidden": [32, 32], **options}), SPEC)


def test_actor_loss_by_hand() -> None:
    q, pi, action = torch.tensor([2.0, -4.0]), torch.tensor([[1.0], [0.0]]), torch.tensor([[0.0], [0.0]])
    loss, metrics = td3_bc_loss(q, pi, action, alpha=3.0)
    assert loss.item() == 0.5 + 1.0  # imitation 0.5, weight 3 / 3, mean value -1
    assert {k: v.item() for k, v in metrics.items()} == {"loss/actor": 1.5, "loss/bc": 0.5}


def test_the_weight_of_the_value_takes_no_gradient() -> None:
    q = torch.tensor([2.0, 4.0], requires_grad=True)
    loss, _ = td3_bc_loss(q, torch.zeros(2, 1), torch.zeros(2, 1), alpha=3.0)
    assert torch.autograd.grad(loss, q)[0].tolist() == [-0.5, -0.5]


def test_the_policy_moves_on_every_second_update() -> None:
    learner = make()
    before = copy.deepcopy(learner.state_dict())
    first = learner.update(bandit())
    assert set(first) == {"loss/critic", "q/mean", "q/target"}
    assert torch.equal(learner.policy.net.weights[0], before["policy.net.weights.0"])
    assert torch.equal(learner.target_critic.weights[0], before["target_critic.weights.0"])
    second = learner.update(bandit())
    assert set(second) == {"loss/critic", "q/mean", "q/target", "loss/actor", "loss/bc"}
    assert not torch.equal(learner.policy.net.weights[0], before["policy.net.weights.0"])
    assert not torch.equal(learner.target_critic.weights[0], before["target_critic.weights.0"])
    assert not torch.equal(learner.target_policy.net.weights[0], before["target_policy.net.weights.0"])


def test_the_actor_follows_the_first_critic_alone() -> None:
    learner = make(policy_delay=1, alpha=100.0)
    twin = copy.deepcopy(learner)
    with torch.no_grad():
        twin.critic.weights[0][1].zero_()
        twin.target_critic.weights[0][1].copy_(learner.target_critic.weights[0][1])
    batch = bandit()
    for one in (learner, twin):
        one.optimizers["critic"].lr = 1e-12  # the critics stand still
        torch.manual_seed(1)
        one.update(batch)
    assert torch.equal(learner.policy.net.weights[0], twin.policy.net.weights[0])


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


def test_the_target_is_the_value_of_the_target_actor() -> None:
    """Critics that say a, an actor that does -tanh(1), a target actor that does tanh(2)."""
    learner = make(hidden=[], target_noise=0.0, normalize_obs=False)
    with torch.no_grad():
        for p in learner.parameters():
            p.zero_()
        learner.target_critic.weights[0][:, 2] = 1.0
        learner.policy.net.biases[0].fill_(-1.0)
        learner.target_policy.net.biases[0].fill_(2.0)
    batch = bandit()._replace(terminated=torch.zeros(64), reward=torch.ones(64), discount=torch.full((64,), 0.5))
    assert learner.update(batch)["q/target"].item() == pytest.approx(1.0 + 0.5 * math.tanh(2.0))


def test_observations_are_standardised_in_act_and_update() -> None:
    learner = make()
    obs = torch.randn(100, 2) * 7.0 + 3.0
    learner.set_normalizer(obs.mean(0), obs.std(0, unbiased=False))
    plain = make(normalize_obs=False)
    plain.load_state_dict({k: v for k, v in learner.state_dict().items() if not k.startswith("obs_")})
    normal = (obs - obs.mean(0)) / (obs.std(0, unbiased=False) + 1e-3)
    torch.testing.assert_close(learner.act(obs, explore=False), plain.act(normal, explore=False))


def test_exploration_stays_in_the_box() -> None:
    learner = make(exploration_noise=5.0)
    actions = learner.act(torch.randn(100, 2), explore=True)
    assert actions.abs().max().item() == 1.0
    assert not actions.requires_grad


@pytest.mark.parametrize(
    "options",
    [{"tau": 0.0}, {"alpha": -1.0}, {"policy_delay": 0}, {"target_noise": -0.1}, {"actor_lr": 0.0}],
)
def test_impossible_settings_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(UserError):
        make(**options)


@pytest.mark.parametrize(("alpha", "expected"), [(0.0, 0.0), (2.5, 0.36)])
def test_learns_to_imitate_or_to_improve(alpha: float, expected: float) -> None:
    """The minimum of a^2 - weight * (4 - 4 (a - 0.5)^2) with weight = alpha / Q; about 0.36 for alpha = 2.5."""
    learner = make(alpha=alpha, actor_lr=3e-3, critic_lr=3e-3)
    for _ in range(600):
        learner.update(bandit(256))
    assert learner.act(torch.randn(64, 2), explore=False).mean().item() == pytest.approx(expected, abs=0.08)
