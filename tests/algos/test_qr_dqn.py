"""QR-DQN: quantile Huber by hand and pair by pair, targets of each variant, and a distribution that is known."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from rlx.algos.dqn import QNetwork
from rlx.algos.qr_dqn import QRDQN, QRDQNConfig, qr_loss
from rlx.errors import UserError
from rlx.types import Batch, Spec

SPEC = Spec("bandit", (2,), "float32", "discrete", (), action_sizes=(3,))


def bandit(n: int = 64) -> Batch:
    """Episodes of one step; action 2 pays between 0 and 40, the others nothing."""
    action = torch.randint(3, (n,))
    reward = (action == 2).float() * 40.0 * torch.rand(n)
    return Batch(torch.randn(n, 2), action, reward, torch.randn(n, 2), torch.ones(n), torch.full((n,), 0.5))


def make(**options: object) -> QRDQN:
    torch.manual_seed(0)
    return QRDQN(QRDQNConfig(**{"hidden": [16, 16], "quantiles": 2, **options}), SPEC)


def says(network: QNetwork, quantiles: list[list[float]]) -> None:
    """Let the network answer these quantiles of the three actions to everything."""
    with torch.no_grad():
        for p in network.parameters():
            p.zero_()
        network.biases[-1].copy_(torch.tensor(quantiles).flatten())


def one(reward: float = 0.0, terminated: float = 0.0, discount: float = 1.0) -> Batch:
    number, obs = torch.ones(1), torch.zeros(1, 2)
    return Batch(obs, torch.tensor([0]), reward * number, obs, terminated * number, discount * number)


def by_pairs(z: Tensor, y: Tensor) -> Tensor:
    """The loss of every row [B], from the definition: sum over the predicted, mean over the target quantiles."""
    error = y[:, None, :] - z[:, :, None]  # [B, i, j]
    tau = (torch.arange(z.shape[1]) + 0.5) / z.shape[1]
    huber = F.huber_loss(z[:, :, None].expand_as(error), y[:, None, :].expand_as(error), reduction="none")
    return ((tau[:, None] - (error.detach() < 0).float()).abs() * huber).mean(2).sum(1)


@pytest.mark.parametrize(
    ("z", "y", "expected"),
    [
        ([0.0], [0.5], 0.5 * 0.125),  # tau = 1/2, within huber's unit
        ([0.0], [3.0], 0.5 * 2.5),  # beyond it
        ([0.0, 0.0], [0.5], 0.125 * (0.25 + 0.75)),  # the sum over predictions
        ([0.0, 0.0], [0.5, 2.5], (0.125 + 2.0) / 2 * (0.25 + 0.75)),  # the mean over targets
        ([2.0, 2.0], [0.0], 1.5 * (0.75 + 0.25)),  # targets below
        ([2.0, 0.0], [0.0], 1.5 * 0.75),  # the low quantile is too high: the weight 1 - tau of those below
        ([0.0, 2.0], [2.0], 1.5 * 0.25),  # the low quantile is too low
        ([1.0, 3.0], [3.0, 1.0], (1.5 * 0.25 + 1.5 * 0.25) / 2),  # targets in any order
    ],
)
def test_quantile_huber_by_hand(z: list[float], y: list[float], expected: float) -> None:
    loss, error, metrics = qr_loss(torch.tensor([z]), torch.tensor([y]), None)
    assert loss.item() == pytest.approx(expected)
    assert error.tolist() == pytest.approx([expected])
    assert metrics["q/mean"].item() == pytest.approx(sum(z) / len(z))
    assert metrics["q/target"].item() == pytest.approx(sum(y) / len(y))


def test_the_loss_is_that_of_all_pairs() -> None:
    torch.manual_seed(0)
    z = (3.0 * torch.randn(20, 9)).requires_grad_()
    y, weight = 3.0 * torch.randn(20, 7), torch.rand(20)
    loss, error, _ = qr_loss(z, y, weight)
    torch.testing.assert_close(error, by_pairs(z, y).detach())
    theirs = (weight * by_pairs(z, y)).mean()
    torch.testing.assert_close(loss, theirs)
    torch.testing.assert_close(torch.autograd.grad(loss, z), torch.autograd.grad(theirs, z))


@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize("double", [False, True])
def test_the_gradient_is_that_of_autograd(dueling: bool, double: bool) -> None:
    learner = make(dueling=dueling, double=double, max_grad_norm=1e9, quantiles=5)
    torch.manual_seed(1)
    batch = bandit()._replace(terminated=torch.zeros(64), weight=torch.rand(64))
    torch.nn.init.normal_(learner.target_q.weights[-1])
    rows = torch.arange(64)
    next_q = learner.target_q(batch.next_obs)
    judge = learner.q(batch.next_obs) if double else next_q
    target = batch.reward[:, None] + 0.5 * next_q[rows, judge.mean(-1).argmax(-1)]
    each = by_pairs(learner.q(batch.obs)[rows, batch.action], target.detach())
    expected = torch.autograd.grad((batch.weight * each).mean(), list(learner.q.parameters()))
    learner.update(batch)
    places = learner.optimizers["q"]._places
    assert places is not None
    torch.testing.assert_close(places.parts, list(expected), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(learner.td_error, each.detach())


def test_the_greedy_action_has_the_highest_mean() -> None:
    learner = make()
    says(learner.q, [[0.0, 9.0], [5.0, 6.0], [-20.0, 10.0]])
    assert learner.expected(learner.q(torch.zeros(1, 2))).tolist() == [[4.5, 5.5, -5.0]]
    assert learner.act(torch.zeros(4, 2), explore=False).tolist() == [1] * 4


@pytest.mark.parametrize(("double", "target"), [(False, 1.0 + 0.5 * 4.0), (True, 1.0 + 0.5 * 2.0)])
def test_double_values_the_online_choice_by_the_target_network(double: bool, target: float) -> None:
    learner = make(double=double)
    says(learner.q, [[0.0, 0.0], [9.0, 9.0], [1.0, 1.0]])
    says(learner.target_q, [[3.0, 5.0], [0.0, 4.0], [3.0, 3.0]])
    assert learner.update(one(reward=1.0, discount=0.5))["q/target"].item() == target


def test_terminated_states_do_not_bootstrap() -> None:
    learner = make()
    says(learner.target_q, [[3.0, 5.0]] * 3)
    assert learner.update(one(reward=1.25, terminated=1.0))["q/target"].item() == 1.25


@pytest.mark.parametrize("options", [{"quantiles": 0}, {"tau": 0.0}, {"sigma": -1.0}])
def test_impossible_settings_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(UserError):
        make(**options)


@pytest.mark.parametrize("flags", [{}, {"dueling": True, "noisy": True}], ids=["plain", "noisy"])
def test_the_quantiles_learn_a_distribution(flags: dict[str, bool]) -> None:
    """Rewards uniform in [0, 40]: the quartiles' midpoints are 5, 15, 25 and 35."""
    learner = make(lr=1e-2, quantiles=4, **flags)
    for _ in range(800):
        learner.update(bandit(128))
    obs = torch.randn(200, 2)
    assert learner.act(obs, explore=False).unique().tolist() == [2]
    quantiles = learner.q(obs).detach().mean(0)
    assert quantiles[2].tolist() == pytest.approx([5.0, 15.0, 25.0, 35.0], abs=2.0)
    assert quantiles[0].tolist() == pytest.approx([0.0] * 4, abs=1.0)
