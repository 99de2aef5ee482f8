"""Discrete SAC: losses by hand, exact expectations in the target, and a bandit whose optimum is known."""

from __future__ import annotations

import copy
import math

import pytest
import torch

from rlx.algos.discrete_sac import DiscreteSAC, DiscreteSACConfig, expected_actor_loss, weighted_critic_loss
from rlx.errors import UserError
from rlx.losses import alpha_loss
from rlx.nn import MLP
from rlx.types import Batch, Spec

SPEC = Spec("bandit", (2,), "float32", "discrete", (), action_sizes=(3,))


def bandit(n: int = 64) -> Batch:
    """Episodes of one step; action 2 pays 1, the others nothing."""
    action = torch.randint(3, (n,))
    reward = (action == 2).float()
    return Batch(torch.randn(n, 2), action, reward, torch.randn(n, 2), torch.ones(n), torch.full((n,), 0.5))


def make(**options: object) -> DiscreteSAC:
    torch.manual_seed(0)
    return DiscreteSAC(DiscreteSACConfig(**{"hidden": [16, 16], **options}), SPEC)


def constant(network: MLP, head: torch.Tensor) -> None:
    """Let the network answer `head` to everything."""
    with torch.no_grad():
        for p in network.parameters():
            p.zero_()
        network.biases[-1].copy_(head.view_as(network.biases[-1]))


def test_critic_loss_by_hand() -> None:
    q, target = torch.tensor([[1.0, 2.0], [3.0, 2.0]]), torch.tensor([1.0, 0.0])
    loss, metrics = weighted_critic_loss(q, target)
    assert loss.item() == 3.0  # half of (0 + 4) and (4 + 4), summed, over two rows
    assert {k: v.item() for k, v in metrics.items()} == {"loss/critic": 3.0, "q/mean": 2.0, "q/target": 0.5}
    assert weighted_critic_loss(q, target, torch.tensor([1.0, 0.5]))[0].item() == 2.0


def test_actor_loss_sums_over_the_actions() -> None:
    log_pi = torch.tensor([[0.5, 0.5], [0.25, 0.75]]).log()
    q = torch.tensor([[1.0, 3.0], [4.0, 0.0]])
    loss, entropy, metrics = expected_actor_loss(log_pi, q, torch.tensor(2.0))
    entropies = [math.log(2.0), -0.25 * math.log(0.25) - 0.75 * math.log(0.75)]
    assert entropy.item() == pytest.approx(sum(entropies) / 2)
    assert loss.item() == pytest.approx((-2.0 * entropies[0] - 2.0 - 2.0 * entropies[1] - 1.0) / 2)
    assert set(metrics) == {"loss/actor", "policy/entropy"}


def test_alpha_rises_while_the_entropy_is_too_low() -> None:
    log_alpha = torch.tensor(0.0, requires_grad=True)
    low, _ = alpha_loss(log_alpha, torch.tensor(-0.25), target_entropy=0.5)
    assert torch.autograd.grad(low, log_alpha)[0].item() == -0.25
    high, _ = alpha_loss(log_alpha, torch.tensor(-1.0), target_entropy=0.5)
    assert torch.autograd.grad(high, log_alpha)[0].item() == 0.5


def test_the_target_is_an_exact_expectation() -> None:
    learner = make(alpha=0.5)
    pi = torch.tensor([0.5, 0.25, 0.25])
    constant(learner.policy, pi.log())
    constant(learner.target_critic, torch.tensor([[4.0, 8.0, 0.0], [6.0, 2.0, 1.0]]))  # the smaller: 4, 2, 0
    batch = bandit()._replace(terminated=torch.zeros(64), reward=torch.ones(64))
    value = 0.5 * 4.0 + 0.25 * 2.0 + 0.5 * 1.5 * math.log(2.0)  # entropy 1.5 log 2, alpha 0.5
    assert learner.update(batch)["q/target"].item() == pytest.approx(1.0 + 0.5 * value)


def test_terminated_states_do_not_bootstrap() -> None:
    batch = bandit()
    assert make().update(batch)["q/target"].item() == pytest.approx(batch.reward.mean().item(), rel=1e-6)


def test_target_entropy_is_a_share_of_the_largest() -> None:
    assert make(target_entropy_scale=0.98).target_entropy == pytest.approx(0.98 * math.log(3.0))


def test_eps_of_adam_reaches_the_actor_and_the_critics() -> None:
    for learner, eps in ((make(), 1e-4), (make(adam_eps=1e-3), 1e-3)):
        assert {name: adam.eps for name, adam in learner.optimizers.items()} == {
            "actor": eps, "critic": eps, "alpha": 1e-8,
        }  # fmt: skip


def test_td_errors_are_told_to_a_prioritized_replay() -> None:
    learner = make()
    constant(learner.critic, torch.tensor([[1.0, 1.0, 1.0], [2.0, 2.0, 2.0]]))
    batch = bandit()._replace(reward=torch.full((64,), 4.0), index=torch.arange(64), weight=torch.ones(64))
    learner.update(batch)
    assert learner.td_error is not None
    assert learner.td_error.tolist() == [2.5] * 64  # mean of |1 - 4| and |2 - 4|


def test_a_fixed_temperature_stays() -> None:
    learner = make(alpha=0.2, learn_alpha=False)
    learner.update(bandit())
    assert learner.log_alpha.item() == pytest.approx(math.log(0.2))


def test_targets_follow_slowly() -> None:
    learner = make(tau=0.25)
    before = copy.deepcopy(learner.target_critic.weights[0])
    learner.update(bandit())
    torch.testing.assert_close(learner.target_critic.weights[0], before.lerp(learner.critic.weights[0], 0.25))


def test_exploring_draws_from_the_policy() -> None:
    learner = make()
    constant(learner.policy, torch.tensor([0.45, 0.1, 0.45]).log())
    counts = learner.act(torch.zeros(40000, 2), explore=True).bincount(minlength=3) / 40000
    assert counts.tolist() == pytest.approx([0.45, 0.1, 0.45], abs=0.01)  # noise of the other sign: 0.06 for the middle
    constant(learner.policy, torch.tensor([0.5, 0.25, 0.25]).log())
    assert learner.act(torch.zeros(5, 2), explore=False).tolist() == [0] * 5


def test_names_of_the_metrics() -> None:
    metrics = make().update(bandit())
    names = {"loss/critic", "q/mean", "q/target", "loss/actor", "policy/entropy", "loss/alpha", "policy/alpha"}
    assert set(metrics) == names
    assert all(v.dim() == 0 and not v.requires_grad for v in metrics.values())


@pytest.mark.parametrize(
    "options",
    [{"tau": 0.0}, {"alpha": 0.0}, {"target_entropy_scale": 1.0}, {"target_entropy_scale": -0.1}, {"adam_eps": 0.0}],
)
def test_impossible_settings_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(UserError):
        make(**options)


def test_learns_the_soft_optimum_of_a_bandit() -> None:
    learner = make(alpha=0.5, learn_alpha=False, actor_lr=3e-3, critic_lr=3e-3)
    for _ in range(500):
        learner.update(bandit())
    pi = learner.policy(torch.randn(64, 2)).softmax(-1).mean(0)
    best = math.exp(2.0) / (math.exp(2.0) + 2.0)  # softmax of Q / alpha
    assert pi[2].item() == pytest.approx(best, abs=0.05)
