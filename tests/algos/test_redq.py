"""REDQ: subsets of critics, the actor's mean of all of them, the delay, and a bandit whose optimum is known."""

from __future__ import annotations

import copy
import math

import pytest
import torch

from rlx.algos.redq import REDQ, REDQConfig
from rlx.config import compose_config
from rlx.errors import UserError
from rlx.types import Batch, Spec

SPEC = Spec("bandit", (2,), "float32", "box", (2,), (-1.0, -1.0), (1.0, 1.0))
CRITIC_NAMES = {"loss/critic", "q/mean", "q/target"}
ACTOR_NAMES = {"loss/actor", "policy/entropy", "loss/alpha", "policy/alpha"}


def bandit(n: int = 64, best: float = 0.5) -> Batch:
    """Episodes of one step; the reward is largest where both actions are `best`."""
    action = torch.rand(n, 2) * 2.0 - 1.0
    reward = -2.0 * (action - best).square().sum(-1)
    return Batch(torch.randn(n, 2), action, reward, torch.randn(n, 2), torch.ones(n), torch.full((n,), 0.99))


def free(batch: Batch, reward: float, discount: float) -> Batch:
    n = len(batch.reward)
    return batch._replace(
        terminated=torch.zeros(n), reward=torch.full((n,), reward), discount=torch.full((n,), discount)
    )


def make(**options: object) -> REDQ:
    torch.manual_seed(0)
    return REDQ(REDQConfig(**{"hidden": [16, 16], "critics": 5, "policy_delay": 4, **options}), SPEC)


def constant(critic: torch.nn.Module) -> None:
    """Critic i says i, whatever it sees."""
    with torch.no_grad():
        for p in critic.parameters():
            p.zero_()
        critic.biases[-1].copy_(torch.arange(5.0).view(5, 1, 1))


def test_every_critic_step_draws_a_new_pair() -> None:
    learner = make(alpha=1e-9, tau=1e-9, policy_delay=1000)
    constant(learner.target_critic)
    batch = free(bandit(), reward=0.0, discount=1.0)
    seen = [round(learner.update(batch)["q/target"].item(), 3) for _ in range(60)]
    assert set(seen) == {0.0, 1.0, 2.0, 3.0}  # the smaller of two of 0..4
    assert sum(seen) / len(seen) == pytest.approx(1.0, abs=0.35)  # its mean over all pairs


def test_the_target_by_hand() -> None:
    learner = make(subset=5, alpha=0.5)
    constant(learner.target_critic)
    batch = free(bandit(), reward=1.0, discount=0.25)
    torch.manual_seed(1)
    torch.randperm(5)
    log_prob = learner.policy.sample(batch.next_obs)[1].mean().item()
    torch.manual_seed(1)
    assert learner.update(batch)["q/target"].item() == pytest.approx(1.0 - 0.25 * 0.5 * log_prob, rel=1e-5)


def test_terminated_states_do_not_bootstrap() -> None:
    batch = bandit()
    assert make().update(batch)["q/target"].item() == pytest.approx(batch.reward.mean().item(), rel=1e-6)


def test_the_actor_climbs_the_mean_of_all_critics() -> None:
    learner = make(policy_delay=1, alpha=1e-9, critic_lr=1e-12)
    constant(learner.critic)
    assert learner.update(bandit())["loss/actor"].item() == pytest.approx(-2.0, rel=1e-5)  # mean of 0..4


def test_the_actor_and_the_temperature_move_once_per_env_step() -> None:
    learner = make()
    for i in range(1, 9):
        before = copy.deepcopy(learner.state_dict())
        metrics = learner.update(bandit())
        last = i % 4 == 0
        assert (not torch.equal(learner.policy.net.weights[0], before["policy.net.weights.0"])) == last
        assert (learner.log_alpha.item() != before["log_alpha"].item()) == last
        assert not torch.equal(learner.critic.weights[0], before["critic.weights.0"])
        assert not torch.equal(learner.target_critic.weights[0], before["target_critic.weights.0"])
        assert set(metrics) == CRITIC_NAMES | (ACTOR_NAMES if last else set())


def test_a_fixed_temperature_stays() -> None:
    learner = make(alpha=0.2, learn_alpha=False, policy_delay=1)
    learner.update(bandit())
    assert learner.log_alpha.item() == pytest.approx(math.log(0.2))


def test_the_defaults_are_those_of_the_paper() -> None:
    cfg = compose_config(["algo=redq", "env=mountaincar_continuous"])
    assert (cfg.algo.critics, cfg.algo.subset, cfg.algo.policy_delay) == (10, 2, 20)
    assert (cfg.trainer.gradient_updates_per_step, cfg.trainer.learning_starts) == (20, 5000)
    assert make().target_entropy == -2.0


@pytest.mark.parametrize(
    ("env", "entropy"), [("hopper", -1.0), ("halfcheetah", -3.0), ("walker2d", -3.0), ("ant", -4.0)]
)
def test_target_entropies_on_mujoco(env: str, entropy: float) -> None:
    assert compose_config(["algo=redq", f"env={env}"]).algo.target_entropy == entropy


@pytest.mark.parametrize(("updates", "delay"), [(5, 5), (2.6, 3), (0.25, 1)])
def test_the_delay_follows_the_updates_per_step(updates: float, delay: int) -> None:
    cfg = compose_config(["algo=redq", f"trainer.gradient_updates_per_step={updates}"])
    assert cfg.algo.policy_delay == delay


@pytest.mark.parametrize(
    "options",
    [
        {"subset": 6},
        {"subset": 0},
        {"critics": 0},
        {"tau": 0.0},
        {"alpha": 0.0},
        {"policy_delay": 0},
        {"alpha_lr": 0.0},
    ],
)
def test_impossible_settings_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(UserError):
        make(**options)


def test_learns_a_bandit() -> None:
    learner = make(alpha=0.01, learn_alpha=False, actor_lr=3e-3, critic_lr=3e-3, policy_delay=2, hidden=[32, 32])
    for _ in range(500):
        learner.update(bandit())
    actions = learner.act(torch.randn(64, 2), explore=False)
    assert actions.mean(0).tolist() == pytest.approx([0.5, 0.5], abs=0.15)
