"""C51: projections and cross-entropies by hand, targets of each variant, gradients by autograd, noise, and Rainbow."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from helpers import REGIMES, SMALL, resumed, same_run, snapshots

import rlx
from rlx.algos.c51 import C51, C51Config, c51_loss, projected
from rlx.algos.dqn import QNetwork, of_action
from rlx.config import compose_config
from rlx.errors import UserError
from rlx.types import Batch, Spec

SPEC = Spec("bandit", (2,), "float32", "discrete", (), action_sizes=(3,))
SUPPORT = torch.tensor([0.0, 1.0, 2.0, 3.0])


def bandit(n: int = 64) -> Batch:
    """Episodes of one step; action 2 pays 1 or 3, equally often, the others nothing."""
    action = torch.randint(3, (n,))
    reward = (action == 2).float() * (1.0 + 2.0 * torch.randint(2, (n,)))
    return Batch(torch.randn(n, 2), action, reward, torch.randn(n, 2), torch.ones(n), torch.full((n,), 0.5))


def make(**options: object) -> C51:
    torch.manual_seed(0)
    return C51(C51Config(**{"hidden": [16, 16], "atoms": 4, "v_min": 0.0, "v_max": 3.0, **options}), SPEC)


def says(network: QNetwork, probs: list[list[float]]) -> None:
    """Let the network give these probabilities to everything."""
    with torch.no_grad():
        for p in network.parameters():
            p.zero_()
        network.biases[-1].copy_((torch.tensor(probs) + 1e-9).log().flatten())


def one(reward: float = 0.0, terminated: float = 0.0, discount: float = 1.0, action: int = 0) -> Batch:
    number = torch.ones(1)
    obs = torch.zeros(1, 2)
    return Batch(obs, torch.tensor([action]), reward * number, obs, terminated * number, discount * number)


# -- the projection


@pytest.mark.parametrize(
    ("returns", "probs", "expected"),
    [
        ([0.0, 1.0, 2.0, 3.0], [0.1, 0.2, 0.3, 0.4], [0.1, 0.2, 0.3, 0.4]),  # b is whole everywhere: nothing is lost
        ([0.5, 1.5, 2.5, 3.0], [0.2, 0.4, 0.2, 0.2], [0.1, 0.3, 0.3, 0.3]),  # halves go both ways
        ([0.25, 0.25, 0.25, 0.25], [0.25, 0.25, 0.25, 0.25], [0.75, 0.25, 0.0, 0.0]),  # the nearer atom gets more
        ([-5.0, -1.0, 4.0, 99.0], [0.1, 0.2, 0.3, 0.4], [0.3, 0.0, 0.0, 0.7]),  # clamped at both ends
        ([2.0, 2.0, 2.0, 2.0], [0.1, 0.2, 0.3, 0.4], [0.0, 0.0, 1.0, 0.0]),  # terminated: all on the reward
        ([0.0, 3.0, 3.0, 0.0], [0.5, 0.0, 0.5, 0.0], [0.5, 0.0, 0.0, 0.5]),  # the outermost atoms themselves
    ],
)
def test_projection_by_hand(returns: list[float], probs: list[float], expected: list[float]) -> None:
    found = projected(torch.tensor([returns]), torch.tensor([probs]), SUPPORT)
    assert found[0].tolist() == pytest.approx(expected)


def test_a_projection_keeps_the_mass_and_inside_the_support_the_mean() -> None:
    torch.manual_seed(0)
    support = torch.linspace(-10.0, 10.0, 51)
    probs = torch.randn(500, 51).softmax(-1)
    found = projected(5.0 * torch.randn(500, 51), probs, support)
    torch.testing.assert_close(found.sum(-1), torch.ones(500))
    assert (found >= 0).all()
    inside = 20.0 * torch.rand(500, 51) - 10.0
    torch.testing.assert_close(projected(inside, probs, support) @ support, (probs * inside).sum(-1), rtol=0, atol=2e-5)


def test_the_projection_is_the_triangular_one() -> None:
    """m_i = sum_j p_j clip(1 - |y_j - z_i| / dz, 0, 1), as the paper has it."""
    torch.manual_seed(0)
    support = torch.linspace(-1.0, 2.0, 7)
    returns, probs = 2.0 * torch.randn(50, 7), torch.randn(50, 7).softmax(-1)
    near = (1.0 - (returns.clamp(-1.0, 2.0)[:, None, :] - support[:, None]).abs() / 0.5).clamp(0.0, 1.0)
    torch.testing.assert_close(projected(returns, probs, support), (near * probs[:, None, :]).sum(-1))


# -- the loss


def test_loss_by_hand() -> None:
    logits = torch.log(torch.tensor([[0.5, 0.25, 0.25], [0.25, 0.25, 0.5]]))
    target = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.5, 0.5]])
    support = torch.tensor([0.0, 1.0, 2.0])
    loss, error, metrics = c51_loss(logits, target, None, support)
    assert error.tolist() == pytest.approx([math.log(2.0), 1.5 * math.log(2.0)])
    assert loss.item() == pytest.approx(1.25 * math.log(2.0))
    assert metrics["q/mean"].item() == pytest.approx((0.75 + 1.25) / 2)
    assert metrics["q/target"].item() == pytest.approx((0.0 + 1.5) / 2)
    weighted, same, _ = c51_loss(logits, target, torch.tensor([1.0, 0.5]), support)
    assert weighted.item() == pytest.approx(0.875 * math.log(2.0))
    assert same.tolist() == error.tolist(), "priorities are not weighted"


@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize("double", [False, True])
def test_the_gradient_is_that_of_autograd(dueling: bool, double: bool) -> None:
    learner = make(dueling=dueling, double=double, max_grad_norm=1e9, atoms=7)
    torch.manual_seed(1)
    batch = bandit()._replace(terminated=torch.zeros(64), weight=torch.rand(64))
    torch.nn.init.normal_(learner.target_q.weights[-1])
    rows, z = torch.arange(64), torch.linspace(0.0, 3.0, 7)
    next_probs = learner.target_q(batch.next_obs).softmax(-1)
    judge = learner.q(batch.next_obs).softmax(-1) if double else next_probs
    chosen = next_probs[rows, (judge * z).sum(-1).argmax(-1)]
    target = projected(batch.reward[:, None] + 0.5 * z, chosen, z)
    entropy = -(target * learner.q(batch.obs)[rows, batch.action].log_softmax(-1)).sum(-1)
    expected = torch.autograd.grad((batch.weight * entropy).mean(), list(learner.q.parameters()))
    learner.update(batch)
    places = learner.optimizers["q"]._places
    assert places is not None
    torch.testing.assert_close(places.parts, list(expected))
    torch.testing.assert_close(learner.td_error, entropy.detach())


# -- targets


def test_values_are_the_means_of_the_distributions() -> None:
    learner = make()
    says(learner.q, [[0.5, 0.5, 0.0, 0.0], [0.0, 0.0, 0.5, 0.5], [0.25, 0.25, 0.25, 0.25]])
    values = learner.expected(learner.q(torch.zeros(1, 2)))
    assert values[0].tolist() == pytest.approx([0.5, 2.5, 1.5], abs=1e-5)
    assert learner.act(torch.zeros(5, 2), explore=False).tolist() == [1] * 5


@pytest.mark.parametrize(("double", "target"), [(False, 0.5 + 0.5 * 2.5), (True, 0.5 + 0.5 * 1.0)])
def test_double_values_the_online_choice_by_the_target_network(double: bool, target: float) -> None:
    learner = make(double=double)
    says(learner.q, [[1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0], [1.0, 0.0, 0.0, 0.0]])  # action 1
    says(learner.target_q, [[0.0, 0.0, 0.5, 0.5], [0.0, 1.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]])  # 2.5, 1, 0
    metrics = learner.update(one(reward=0.5, discount=0.5))
    assert metrics["q/target"].item() == pytest.approx(target, abs=1e-5)


def test_terminated_states_do_not_bootstrap() -> None:
    learner = make()
    says(learner.target_q, [[0.0, 0.0, 0.0, 1.0]] * 3)
    assert learner.update(one(reward=1.25, terminated=1.0))["q/target"].item() == pytest.approx(1.25)


def test_dueling_by_hand() -> None:
    """Logits are V + A - mean A, atom by atom."""
    network = QNetwork(2, 2, [4], dueling=True, values=2)
    with torch.no_grad():
        for p in network.parameters():
            p.zero_()
        network.biases[-1].copy_(torch.tensor([10.0, 20.0, 1.0, 2.0, 3.0, 6.0]))  # V; A of two actions
    assert network(torch.zeros(1, 2)).tolist() == [[[9.0, 18.0], [11.0, 22.0]]]


def test_rows_of_the_actions() -> None:
    q = torch.arange(12.0).view(2, 3, 2)
    assert of_action(q, torch.tensor([2, 0])).tolist() == [[4.0, 5.0], [6.0, 7.0]]


@pytest.mark.parametrize(
    "options", [{"atoms": 1}, {"v_min": 3.0}, {"v_min": 1.0, "v_max": 0.0}, {"sigma": 0.0}, {"adam_eps": 0.0}]
)
def test_impossible_settings_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(UserError):
        make(**options)


@pytest.mark.parametrize("flags", [{}, {"dueling": True, "noisy": True, "double": True}], ids=["plain", "rainbow"])
def test_learns_the_distributions_of_a_bandit(flags: dict[str, bool]) -> None:
    learner = make(lr=3e-3, **flags)
    for _ in range(500):
        learner.update(bandit())
    obs = torch.randn(64, 2)
    assert learner.act(obs, explore=False).unique().tolist() == [2]
    probs = learner.q(obs).softmax(-1).mean(0)
    assert probs[2].tolist() == pytest.approx([0.0, 0.5, 0.0, 0.5], abs=0.08)
    assert probs[0].tolist() == pytest.approx([1.0, 0.0, 0.0, 0.0], abs=0.08)


# -- noise


def test_noise_is_fresh_at_every_act_and_off_without_exploration() -> None:
    learner = make(noisy=True, sigma=5.0)
    obs = torch.randn(50, 2)
    draws = [learner.act(obs, explore=True) for _ in range(4)]
    assert any(not torch.equal(draws[0], other) for other in draws[1:])
    before = torch.get_rng_state()
    still = learner.act(obs, explore=False)
    assert torch.equal(before, torch.get_rng_state()), "evaluation draws nothing"
    assert torch.equal(still, learner.expected(learner.q(obs)).argmax(-1))


def test_there_is_no_epsilon_beside_the_noise() -> None:
    learner = make(noisy=True, epsilon=1.0, epsilon_steps=0)
    with torch.no_grad():
        for std in learner.q.stds.parameters():
            std.zero_()
    assert learner.epsilon == 0.0
    assert len(learner.act(torch.zeros(100, 2), explore=True).unique()) == 1


def test_an_update_draws_noise_for_both_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = make(noisy=True, double=True)
    drawn = []
    real = QNetwork.noise
    monkeypatch.setattr(QNetwork, "noise", lambda self: drawn.append(self) or real(self))
    learner.update(bandit())
    learner.update(bandit())
    assert drawn == [learner.q, learner.target_q] * 2


def test_the_noise_reaches_loss_and_target() -> None:
    """With stds, the same batch gives another loss and another target for each noise."""
    found = []
    for seed in (1, 2):
        learner = make(noisy=True, double=True, sigma=3.0)
        torch.manual_seed(seed)
        found.append(learner.update(bandit()._replace(**one_state(), terminated=torch.zeros(64))))
    assert found[0]["q/mean"] != found[1]["q/mean"]
    assert found[0]["q/target"] != found[1]["q/target"]


def one_state() -> dict[str, torch.Tensor]:
    return {"obs": torch.ones(64, 2), "next_obs": torch.ones(64, 2), "reward": torch.zeros(64)}


def test_means_and_stds_learn() -> None:
    learner = make(noisy=True)
    before = {name: p.clone() for name, p in learner.q.named_parameters()}
    learner.update(bandit())
    assert not [name for name, p in learner.q.named_parameters() if torch.equal(p, before[name])]
    assert {"stds.weights.0", "stds.biases.2"} <= set(before)


# -- rainbow


def test_rainbow_is_a_composition_of_flags() -> None:
    cfg = compose_config(["algo=rainbow", "env=cartpole", "~algo_env"])
    plain = compose_config(["algo=c51", "env=cartpole", "~algo_env"])
    differs = {key for key in plain.algo if cfg.algo[key] != plain.algo[key]}
    assert differs == {"name", "double", "dueling", "noisy"}
    assert (cfg.replay.prioritized, cfg.replay.n_step) == (True, 3)
    assert compose_config(["algo=rainbow", "env=cartpole", "replay=uniform"]).replay.prioritized is False


def test_a_killed_rainbow_resumes_to_the_same_bits(tmp_path: Path) -> None:
    """Noise, priorities and n-step returns included."""
    own = ("algo=rainbow", "env=cartpole", "~algo_env", *SMALL, *REGIMES["off_policy"])
    with snapshots(("checkpoint", 2), into=tmp_path) as at:
        rlx.train(*own, run_dir=tmp_path / "run")
    assert resumed(at["checkpoint", 2]).summary["resumed"]
    same_run(at["checkpoint", 2], tmp_path / "run")
