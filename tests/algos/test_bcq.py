"""BCQ: losses by hand, the target, the best of the candidates, and a bandit whose data holds two ways to act."""

from __future__ import annotations

import copy

import pytest
import torch

from rlx.algos.bcq import BCQ, BCQConfig, bcq_loss, perturbed
from rlx.errors import UserError
from rlx.types import Batch, Spec

SPEC = Spec("bandit", (2,), "float32", "box", (1,), (-1.0,), (1.0,))
METRICS = {"loss/vae", "vae/reconstruction", "vae/kl", "loss/critic", "q/mean", "q/target"}
METRICS |= {"loss/actor", "policy/perturbation"}


def bandit(n: int = 64) -> Batch:
    """Behaviour near -0.6 or 0.6, episodes of one step; the reward is the action, but nobody has tried more."""
    action = 0.6 * torch.randint(0, 2, (n, 1)).mul(2).sub(1) + 0.02 * torch.randn(n, 1)
    return Batch(torch.randn(n, 2), action, action[:, 0], torch.randn(n, 2), torch.ones(n), torch.full((n,), 0.99))


def make(**options: object) -> BCQ:
    torch.manual_seed(0)
    return BCQ(BCQConfig(**{"hidden": [32, 32], "vae_hidden": [32, 32], **options}), SPEC)


def constant_critic(learner: BCQ, values: list[float]) -> None:
    with torch.no_grad():
        for p in learner.target_critic.parameters():
            p.zero_()
        learner.target_critic.biases[-1].copy_(torch.tensor(values).view(2, 1, 1))


def test_actor_loss_by_hand() -> None:
    loss, metrics = bcq_loss(torch.tensor([1.0, 4.0]), torch.tensor([[-1.0], [0.5]]))
    assert loss.item() == -2.5
    assert {k: v.item() for k, v in metrics.items()} == {"loss/actor": -2.5, "policy/perturbation": 0.75}


def test_perturbations_are_small_and_stay_in_the_box() -> None:
    action, perturbation = torch.tensor([[0.5], [0.98], [-1.0]]), torch.tensor([[1.0], [1.0], [-1.0]])
    torch.testing.assert_close(perturbed(action, perturbation, phi=0.05), torch.tensor([[0.55], [1.0], [-1.0]]))


def test_metrics_and_what_moves() -> None:
    learner = make()
    before = copy.deepcopy(learner.state_dict())
    assert set(learner.update(bandit())) == METRICS
    moved = {k.split(".")[0] for k, v in learner.state_dict().items() if not torch.equal(v, before[k])}
    assert moved == {"vae", "policy", "critic", "target_policy", "target_critic"}


def test_the_actor_loss_reaches_the_perturbation_alone() -> None:
    learner = make()
    loss, _ = learner._actor_loss(torch.randn(8, 2))
    loss.backward()
    assert all(p.grad is not None for p in learner.policy.parameters())
    assert all(p.grad is None for part in (learner.vae, learner.critic) for p in part.parameters())


def test_the_target_is_softly_the_smaller_critic() -> None:
    learner = make()
    constant_critic(learner, [6.0, 2.0])
    batch = bandit()._replace(terminated=torch.zeros(64), reward=torch.ones(64), discount=torch.full((64,), 0.5))
    assert learner.update(batch)["q/target"].item() == pytest.approx(1.0 + 0.5 * 3.0)  # 0.75 * 2 + 0.25 * 6


def test_terminated_states_do_not_bootstrap() -> None:
    batch = bandit()
    assert make().update(batch)["q/target"].item() == pytest.approx(batch.reward.mean().item(), rel=1e-5)


def test_the_maximum_over_candidates_comes_after_the_minimum_over_critics() -> None:
    """Q_1 = a and Q_2 = -a: the soft minimum is -|a| / 2 for every candidate, so the best one is next to 0."""
    learner = make(candidates=500, phi=0.0)
    linear_critics(learner, [1.0, -1.0])
    with torch.no_grad():
        learner.vae.decoder.biases[-1].sub_(learner.vae.decode(torch.zeros(1, 2), torch.zeros(1, 2))[0])
        learner.vae.decoder.weights[-1].mul_(20.0)
        learner.vae.decoder.biases[-1].mul_(20.0)  # candidates on both sides of 0
    value = learner._next_value(torch.zeros(1, 2))
    assert -0.02 < value.item() <= 0.0


def linear_critics(learner: BCQ, slopes: list[float]) -> None:
    """Q_i = slope_i * a, as relu(10 + a) - 10."""
    for critic in (learner.critic, learner.target_critic):
        with torch.no_grad():
            for p in critic.parameters():
                p.zero_()
            for i, slope in enumerate(slopes):
                critic.weights[0][i, 2, 0] = slope
                critic.biases[0][i, 0, 0] = 10.0
                critic.weights[1][i, 0, 0] = 1.0
                critic.weights[2][i, 0, 0] = 1.0
                critic.biases[2][i] = -10.0


def test_the_target_uses_the_target_actor() -> None:
    learner = make(candidates=3, phi=1.0)
    linear_critics(learner, [1.0, 1.0])
    with torch.no_grad():
        learner.vae.decoder.weights[-1].zero_()
        learner.vae.decoder.biases[-1].zero_()
        learner.target_policy.net.biases[-1].fill_(50.0)  # moves every candidate from 0 to 1
    torch.testing.assert_close(learner._next_value(torch.randn(5, 2)), torch.ones(5))


@pytest.mark.parametrize(("slopes", "pick"), [([1.0, -9.0], "amax"), ([-1.0, 9.0], "amin")])
def test_acts_with_the_candidate_that_the_first_critic_likes_best(slopes: list[float], pick: str) -> None:
    learner = make(phi=0.0)
    linear_critics(learner, slopes)
    obs = torch.randn(7, 2)
    each = [torch.tanh(learner.vae.decode(o.expand(100, 2), learner.eval_latents)) for o in obs]
    expected = torch.stack([getattr(candidates, pick)(0) for candidates in each])
    torch.testing.assert_close(learner.act(obs, explore=False), expected)


def test_evaluation_is_a_function_of_the_observation() -> None:
    learner, obs = make(), torch.randn(40, 2)
    first = learner.act(obs, explore=False)
    assert torch.equal(learner.act(obs, explore=False), first)
    torch.testing.assert_close(torch.cat([learner.act(o[None], explore=False) for o in obs]), first)
    again = BCQ(learner.cfg, SPEC)  # other weights, other latents
    again.load_tensors(learner.tensors())
    assert torch.equal(again.act(obs, explore=False), first)


def test_exploration_varies_and_stays_in_the_box() -> None:
    learner = make(exploration_noise=5.0)
    actions = learner.act(torch.zeros(100, 2), explore=True)
    assert actions.abs().max().item() == 1.0
    assert actions.std().item() > 0.5
    assert not actions.requires_grad


@pytest.mark.parametrize(
    "options",
    [
        {"tau": 0.0},
        {"phi": -0.1},
        {"phi": 1.5},
        {"lam": 1.1},
        {"kl_weight": -1.0},
        {"candidates": 0},
        {"eval_candidates": 0},
        {"exploration_noise": -0.1},
        {"vae_lr": 0.0},
    ],
)
def test_impossible_settings_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(UserError):
        make(**options)


def test_finds_the_better_of_two_behaviours_and_goes_no_further() -> None:
    """The best known action is 0.6; a critic alone would ask for 1, the perturbation may add 0.05."""
    learner = make(kl_weight=0.02, actor_lr=3e-3, critic_lr=3e-3, vae_lr=3e-3)
    for _ in range(500):
        learner.update(bandit(128))
    actions = learner.act(torch.randn(64, 2), explore=False)
    assert actions.mean().item() == pytest.approx(0.65, abs=0.08)
