"""BEAR: the MMD and its losses by hand, the dual multiplier, the warm-up, and a bandit with a support to stay in."""

from __future__ import annotations

import copy
import math

import pytest
import torch

from rlx.algos.bear import BEAR, BEARConfig, Kernel, bear_loss, mmd, mmd_multiplier_loss, samples
from rlx.errors import UserError
from rlx.types import Batch, Spec

SPEC = Spec("bandit", (2,), "float32", "box", (1,), (-1.0,), (1.0,))
METRICS = {"loss/vae", "vae/reconstruction", "vae/kl", "loss/critic", "q/mean", "q/target"}
METRICS |= {"loss/actor", "policy/mmd", "loss/multiplier", "policy/multiplier"}


def bandit(n: int = 64) -> Batch:
    """Behaviour around 0.3, episodes of one step, and the more action the better."""
    action = 0.3 + 0.1 * torch.randn(n, 1)
    return Batch(torch.randn(n, 2), action, action[:, 0], torch.randn(n, 2), torch.ones(n), torch.full((n,), 0.99))


def make(**options: object) -> BEAR:
    torch.manual_seed(0)
    options = {"hidden": [32, 32], "vae_hidden": [32, 32], "warmup_updates": 0, **options}
    return BEAR(BEARConfig(**options), SPEC)  # type: ignore[arg-type]


def test_mmd_by_hand() -> None:
    """x = {0, 2} and y = {2}, so that k(x, x) = (1 + k) / 2, k(x, y) = (1 + k) / 2, k(y, y) = 1."""
    x, y = torch.tensor([[[0.0]], [[2.0]]]), torch.tensor([[[2.0]]])
    k = math.exp(-2.0 / 8.0)
    assert mmd(x, y, sigma=4.0).tolist() == [pytest.approx(math.sqrt((1.0 - k) / 2.0 + 1e-6), rel=1e-5)]
    k = math.exp(-4.0 / 8.0)
    assert mmd(x, y, sigma=4.0, kernel=Kernel.gaussian).item() == pytest.approx(math.sqrt((1.0 - k) / 2.0), rel=1e-5)


def test_the_laplacian_kernel_adds_up_the_dimensions() -> None:
    x, y = torch.zeros(1, 1, 2), torch.tensor([[[1.0, -3.0]]])
    assert mmd(x, y, sigma=2.0).item() == pytest.approx(math.sqrt(2.0 - 2.0 * math.exp(-4.0 / 4.0)), rel=1e-5)
    k = math.exp(-10.0 / 4.0)
    assert mmd(x, y, sigma=2.0, kernel=Kernel.gaussian).item() == pytest.approx(math.sqrt(2.0 - 2.0 * k), rel=1e-5)


def test_the_mmd_of_equal_sets_is_nothing_and_has_a_gradient() -> None:
    x = torch.randn(5, 3, 2, requires_grad=True)
    distance = mmd(x, x.detach(), sigma=10.0)
    assert distance.shape == (3,)
    assert distance.max().item() < 2e-3
    assert torch.isfinite(torch.autograd.grad(distance.sum(), x)[0]).all()


def test_what_keeps_the_root_differentiable_is_under_it() -> None:
    x = torch.zeros(2, 1, 1)
    assert mmd(x, x, sigma=10.0).item() == pytest.approx(1e-3, rel=1e-4)


def test_the_mmd_is_that_of_each_state_alone() -> None:
    x, y = torch.randn(4, 3, 2), torch.randn(6, 3, 2)
    each = torch.cat([mmd(x[:, b : b + 1], y[:, b : b + 1], sigma=1.0) for b in range(3)])
    torch.testing.assert_close(mmd(x, y, sigma=1.0), each)


def test_actor_loss_by_hand() -> None:
    q, distance, multiplier = torch.tensor([1.0, 2.0]), torch.tensor([0.5, 0.25]), torch.tensor(4.0)
    loss, metrics = bear_loss(q, distance, multiplier)
    assert loss.item() == 1.5 - 1.5
    assert {k: v.item() for k, v in metrics.items()} == {"loss/actor": 0.0, "policy/mmd": 0.375}
    assert bear_loss(None, distance, multiplier)[0].item() == 1.5


def test_mmd_multiplier_loss_by_hand() -> None:
    log_multiplier = torch.tensor(math.log(2.0), requires_grad=True)
    loss, metrics = mmd_multiplier_loss(log_multiplier, torch.tensor([0.5, 0.1]), epsilon=0.05)
    assert loss.item() == pytest.approx(-0.5)
    assert {k: v.item() for k, v in metrics.items()} == {
        "loss/multiplier": pytest.approx(-0.5),
        "policy/multiplier": pytest.approx(2.0),
    }
    assert torch.autograd.grad(loss, log_multiplier)[0].item() == pytest.approx(-0.5)  # it rises: the MMD is too large


def test_samples_have_the_policy_s_mean_and_std() -> None:
    torch.manual_seed(0)
    drawn = samples((torch.full((1, 1), 3.0), torch.full((1, 1), math.log(0.5))), 4000)
    assert drawn.shape == (4000, 1, 1)
    assert drawn.mean().item() == pytest.approx(3.0, abs=0.03)
    assert drawn.std().item() == pytest.approx(0.5, abs=0.03)


def test_samples_with_clipped_noise_stay_within_half_a_std() -> None:
    torch.manual_seed(0)
    drawn = samples((torch.full((1, 1), 3.0), torch.full((1, 1), math.log(2.0))), 4000, clip=0.5)
    assert drawn.amin().item() == 2.0  # 3 - 0.5 * 2
    assert drawn.amax().item() == 4.0
    share = ((drawn > 2.0) & (drawn < 4.0)).float().mean().item()
    assert share == pytest.approx(math.erf(0.5 / math.sqrt(2.0)), abs=0.03)  # of a normal within +-0.5: 38 %


@pytest.mark.parametrize(("clip", "range_"), [(0.5, 1.0), (0.25, 0.5)])
def test_the_actor_s_loss_has_clipped_noise_and_the_target_has_not(
    monkeypatch: pytest.MonkeyPatch, clip: float, range_: float
) -> None:
    seen: list[torch.Tensor] = []

    def watched(x: torch.Tensor, y: torch.Tensor, *rest: object) -> torch.Tensor:
        seen.append(x)
        return (x - y).square().mean((0, 2))

    monkeypatch.setattr("rlx.algos.bear.mmd", watched)
    learner, obs = make(noise_clip=clip, mmd_samples=200), torch.randn(3, 2)
    learner._actor_loss(obs, True)
    std = learner.policy(obs)[1].exp()
    torch.testing.assert_close(seen[0].amax(0) - seen[0].amin(0), range_ * std)  # both bounds are among 200 draws
    with torch.no_grad():  # Q = tanh(raw), so the best of 500 tells how far the target's noise reaches
        learner.target_policy.net.weights[-1].zero_()
        learner.target_policy.net.biases[-1].zero_()
    linear_critics(learner, [1.0, 1.0])
    learner.cfg.candidates = 500
    assert math.atanh(learner._next_value(torch.zeros(1, 2)).item()) > 2.0


def test_the_policy_s_std_follows_that_of_the_data() -> None:
    """With the MMD alone. Data of std 0.2 in the latent's terms; without the clip the std is lost against the VAE's
    clipped latents.
    """
    found = {}
    for clip in (0.5, None):
        learner = make(noise_clip=clip, warmup_updates=10_000, sigma=1.0, mmd_samples=10)
        for _ in range(400):
            learner.update(bandit(64))
        found[clip] = learner.policy(torch.randn(64, 2))[1].exp().mean().item()
    assert found[0.5] > 1.5 * found[None]


def test_metrics_and_what_moves() -> None:
    learner = make()
    before = copy.deepcopy(learner.state_dict())
    assert set(learner.update(bandit())) == METRICS
    moved = {k.split(".")[0] for k, v in learner.state_dict().items() if not torch.equal(v, before[k])}
    assert moved == {"vae", "policy", "critic", "log_multiplier", "target_policy", "target_critic"}


def test_the_actor_loss_reaches_the_actor_alone() -> None:
    learner = make()
    learner._actor_loss(torch.randn(8, 2), True)[0].backward()
    assert all(p.grad is not None for p in learner.policy.parameters())
    others = [*learner.vae.parameters(), *learner.critic.parameters(), learner.log_multiplier]
    assert all(p.grad is None for p in others)


def test_the_warm_up_looks_at_the_mmd_alone() -> None:
    """With a critic of no effect on the policy, until the warm-up is over."""
    plain, other = make(warmup_updates=2), make(warmup_updates=2)
    with torch.no_grad():
        other.critic.weights[-1].mul_(50.0)
    for i in range(3):
        for learner in (plain, other):
            torch.manual_seed(i)
            learner.update(bandit())
        same = torch.equal(plain.policy.net.weights[0], other.policy.net.weights[0])
        assert same == (i < 2)


@pytest.mark.parametrize(("epsilon", "limit"), [(1e-6, 10.0), (100.0, -5.0)])
def test_the_multiplier_rises_above_epsilon_and_falls_below_within_its_bounds(epsilon: float, limit: float) -> None:
    learner = make(epsilon=epsilon, multiplier_lr=3.0)
    for _ in range(6):
        learner.update(bandit())
    assert learner.log_multiplier.item() == limit


def test_the_target_is_softly_the_smaller_critic() -> None:
    learner = make()
    with torch.no_grad():
        for p in learner.target_critic.parameters():
            p.zero_()
        learner.target_critic.biases[-1].copy_(torch.tensor([6.0, 2.0]).view(2, 1, 1))
    batch = bandit()._replace(terminated=torch.zeros(64), reward=torch.ones(64), discount=torch.full((64,), 0.5))
    assert learner.update(batch)["q/target"].item() == pytest.approx(1.0 + 0.5 * 3.0)  # 0.75 * 2 + 0.25 * 6


def test_terminated_states_do_not_bootstrap() -> None:
    batch = bandit()
    assert make().update(batch)["q/target"].item() == pytest.approx(batch.reward.mean().item(), rel=1e-5)


def linear_critics(learner: BEAR, slopes: list[float]) -> None:
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


@pytest.mark.parametrize(("slopes", "smaller"), [([5.0, 1.0], 1.0), ([1.0, 5.0], 1.0), ([-1.0, -5.0], -5.0)])
def test_the_actor_follows_the_smaller_critic(slopes: list[float], smaller: float) -> None:
    """For actions above 0, where a policy that is certain of tanh(1) has all of them."""
    learner = make()
    linear_critics(learner, slopes)
    with torch.no_grad():
        for p in learner.policy.parameters():
            p.zero_()
        learner.policy.net.biases[-1].copy_(torch.tensor([1.0, -20.0]))
    obs = torch.randn(8, 2)
    torch.manual_seed(1)
    with_value = learner._actor_loss(obs, True)[0].item()
    torch.manual_seed(1)
    without = learner._actor_loss(obs, False)[0].item()
    assert without - with_value == pytest.approx(smaller * math.tanh(1.0), abs=1e-4)


def test_the_maximum_over_candidates_comes_after_the_minimum_over_critics() -> None:
    """Q_1 = a and Q_2 = -a: the soft minimum is -|a| / 2 for every candidate, so the best one is next to 0."""
    learner = make(candidates=500)
    linear_critics(learner, [1.0, -1.0])
    assert -0.02 < learner._next_value(torch.zeros(1, 2)).item() <= 0.0


def test_the_target_uses_the_target_actor() -> None:
    learner = make()
    linear_critics(learner, [1.0, 1.0])
    with torch.no_grad():
        learner.target_policy.net.biases[-1][0] = 50.0  # the mean
    torch.testing.assert_close(learner._next_value(torch.randn(5, 2)), torch.ones(5))


@pytest.mark.parametrize(("slopes", "pick"), [([1.0, -9.0], "amax"), ([-1.0, 9.0], "amin")])
def test_acts_with_the_sample_that_the_first_critic_likes_best(slopes: list[float], pick: str) -> None:
    learner = make()
    linear_critics(learner, slopes)
    obs = torch.randn(7, 2)
    mean, log_std = learner.policy(obs)
    expected = getattr(torch.tanh(mean + log_std.exp() * learner.eval_noise), pick)(0)
    torch.testing.assert_close(learner.act(obs, explore=False), expected)


def test_evaluation_is_a_function_of_the_observation() -> None:
    learner, obs = make(), torch.randn(400, 2)
    first = learner.act(obs, explore=False)
    assert torch.equal(learner.act(obs, explore=False), first)
    torch.testing.assert_close(torch.cat([learner.act(o[None], explore=False) for o in obs]), first)
    again = BEAR(learner.cfg, SPEC)  # other weights, other noise
    again.load_tensors(learner.tensors())
    assert torch.equal(again.act(obs, explore=False), first)


def test_exploration_samples_the_policy() -> None:
    actions = make().act(torch.zeros(100, 2), explore=True)
    assert actions.std().item() > 0.1
    assert actions.abs().max().item() < 1.0
    assert not actions.requires_grad


@pytest.mark.parametrize(
    "options",
    [
        {"tau": 0.0},
        {"sigma": 0.0},
        {"epsilon": -0.05},
        {"multiplier": 0.0},
        {"lam": 1.1},
        {"kl_weight": -1.0},
        {"candidates": 0},
        {"eval_candidates": 0},
        {"mmd_samples": 0},
        {"warmup_updates": -1},
        {"multiplier_lr": 0.0},
        {"noise_clip": 0.0},
    ],
)
def test_impossible_settings_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(UserError):
        make(**options)


def test_improves_inside_the_support_of_the_data() -> None:
    """All data lie around 0.3 and more is better: a tight constraint stays near, a loose one runs to the edge."""
    found = {}
    for epsilon in (0.02, 10.0):
        learner = make(epsilon=epsilon, sigma=1.0, actor_lr=3e-3, critic_lr=3e-3, vae_lr=3e-3, multiplier_lr=0.03)
        for _ in range(400):
            learner.update(bandit(64))
        found[epsilon] = learner.act(torch.randn(64, 2), explore=False).mean().item()
    assert 0.25 < found[0.02] < 0.6
    assert found[10.0] > 0.9
