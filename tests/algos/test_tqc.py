"""TQC: truncation and quantile regression by hand and against the sum over all pairs, and a known optimum."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rlx.algos.tqc import TQC, TQCConfig, quantile_loss, without_largest
from rlx.config import compose_config
from rlx.errors import UserError
from rlx.losses import half_squared_excess, quantile_huber
from rlx.types import Batch, Spec

SPEC = Spec("bandit", (2,), "float32", "box", (1,), (-1.0,), (1.0,))


def bandit(n: int = 64, best: float = 0.5) -> Batch:
    """Episodes of one step; the reward is largest at the action `best`."""
    action = torch.rand(n, 1) * 2.0 - 1.0
    reward = -4.0 * (action[:, 0] - best).square()
    return Batch(torch.randn(n, 2), action, reward, torch.randn(n, 2), torch.ones(n), torch.full((n,), 0.99))


def make(**options: object) -> TQC:
    torch.manual_seed(0)
    return TQC(TQCConfig(**{"hidden": [32, 32], "critics": 3, "quantiles": 5, "dropped": 1, **options}), SPEC)


def by_pairs(z: Tensor, y: Tensor) -> Tensor:
    """The loss as the paper writes it, in float64."""
    z, y = z.double(), y.double()
    difference = y[None, :, None, :] - z[..., None]  # [n, B, q, m]
    tau = ((torch.arange(z.shape[-1]) + 0.5) / z.shape[-1])[:, None]
    size = difference.abs()
    huber = torch.where(size < 1.0, 0.5 * size.square(), size - 0.5)
    return ((tau - (difference < 0.0).double()).abs() * huber).mean()


def test_truncation_by_hand() -> None:
    quantiles = torch.tensor([[[5.0, 1.0, 3.0]], [[2.0, 9.0, 4.0]]])  # two critics, one row, three quantiles
    assert without_largest(quantiles, dropped=1).tolist() == [[1.0, 2.0, 3.0, 4.0]]
    assert without_largest(quantiles, dropped=0).tolist() == [[1.0, 2.0, 3.0, 4.0, 5.0, 9.0]]


def test_truncation_does_not_mix_rows() -> None:
    quantiles = torch.tensor([[[1.0], [10.0]], [[2.0], [20.0]]])  # two critics, two rows, one quantile
    assert without_largest(quantiles, dropped=0).tolist() == [[1.0, 2.0], [10.0, 20.0]]


def test_half_squared_excess_by_hand() -> None:
    x, y = torch.tensor([[-1.0, 0.0, 2.0, 5.0]]), torch.tensor([[0.0, 1.0, 3.0]])
    assert half_squared_excess(x, y).tolist() == [[0.0, 0.0, 2.5, 22.5]]


@pytest.mark.parametrize(
    ("z", "y", "expected"),
    [
        (0.0, [0.0], 0.0),
        (0.0, [0.5], 0.0625),  # half of 0.5^2 / 2
        (0.0, [-0.5], 0.0625),
        (0.0, [3.0], 1.25),  # half of 3 - 1/2
        (4.0, [1.0], 1.25),
        (1.0, [-1.0, 0.5, 1.5, 4.0], (0.75 + 0.0625 + 0.0625 + 1.25) / 4),
    ],
)
def test_the_median_by_hand(z: float, y: list[float], expected: float) -> None:
    assert quantile_huber(torch.tensor([[[z]]]), torch.tensor([y])).mean().item() == pytest.approx(expected)


def test_low_quantiles_mind_the_targets_below_them() -> None:
    z = torch.zeros(1, 1, 2)  # tau = 1/4 and 3/4
    assert quantile_huber(z, torch.tensor([[0.5]])).mean().item() == pytest.approx(0.125 * (0.25 + 0.75) / 2)
    low, high = torch.tensor([[[-2.0, 0.0]]]), torch.tensor([[[0.0, 2.0]]])
    below = torch.tensor([[-2.0]])
    assert quantile_huber(low, below).mean().item() == pytest.approx(1.5 * 0.25 / 2)
    assert quantile_huber(high, below).mean().item() == pytest.approx((1.5 * 0.75 + 3.5 * 0.25) / 2)


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 2**20),
    n=st.integers(1, 4),
    rows=st.integers(1, 5),
    q=st.integers(1, 7),
    m=st.integers(1, 9),
    offset=st.sampled_from([0.0, -50.0, 3000.0]),
    spread=st.sampled_from([0.01, 1.0, 30.0]),
)
def test_the_loss_and_its_gradient_are_those_over_all_pairs(
    seed: int, n: int, rows: int, q: int, m: int, offset: float, spread: float
) -> None:
    torch.manual_seed(seed)
    z = (offset + spread * torch.randn(n, rows, q)).requires_grad_()
    y = (offset + spread * torch.randn(rows, m)).sort(-1).values
    ours, theirs = quantile_huber(z, y).mean().float(), by_pairs(z, y)
    torch.testing.assert_close(ours, theirs.float(), rtol=1e-5, atol=1e-7)
    gradients = [torch.autograd.grad(loss, z)[0] for loss in (ours, theirs)]
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-7)


def test_equal_targets_and_quantiles_cost_nothing() -> None:
    z = torch.full((2, 3, 4), 7.0, requires_grad=True)
    loss, metrics = quantile_loss(z, torch.full((3, 6), 7.0))
    assert loss.item() == 0.0
    assert torch.autograd.grad(loss, z)[0].abs().max().item() < 1e-12
    assert {k: v.item() for k, v in metrics.items()} == {"loss/critic": 0.0, "q/mean": 7.0, "q/target": 7.0}


def test_names_of_the_metrics() -> None:
    metrics = make().update(bandit())
    names = {"loss/critic", "q/mean", "q/target", "loss/actor", "policy/entropy", "loss/alpha", "policy/alpha"}
    assert set(metrics) == names
    assert all(v.dim() == 0 and not v.requires_grad for v in metrics.values())


def constant(critic: torch.nn.Module, *values: float) -> None:
    """Every critic's quantiles are `values`, whatever it sees."""
    with torch.no_grad():
        for p in critic.parameters():
            p.zero_()
        critic.biases[-1].copy_(torch.tensor(values).expand_as(critic.biases[-1]))


def test_the_target_by_hand() -> None:
    learner = make(alpha=0.5)
    constant(learner.target_critic, 5.0, 4.0, 3.0, 2.0, 100.0)  # the three largest are dropped: 100 of each critic
    batch = bandit()._replace(reward=torch.ones(64), discount=torch.full((64,), 0.25))
    assert copy.deepcopy(learner).update(batch)["q/target"].item() == 1.0
    torch.manual_seed(1)
    log_prob = learner.policy.sample(batch.next_obs)[1].mean().item()
    torch.manual_seed(1)
    expected = 1.0 + 0.25 * (3.5 - 0.5 * log_prob)
    free = learner.update(batch._replace(terminated=torch.zeros(64)))
    assert free["q/target"].item() == pytest.approx(expected, rel=1e-5)


def test_the_actor_climbs_the_mean_of_all_quantiles() -> None:
    learner = make(alpha=1e-9, critic_lr=1e-12)
    constant(learner.critic, 5.0, 4.0, 3.0, 2.0, 100.0)
    assert learner.update(bandit())["loss/actor"].item() == pytest.approx(-22.8, rel=1e-5)  # nothing truncated


def test_targets_follow_by_tau() -> None:
    learner = make(tau=0.25)
    before = copy.deepcopy(learner.target_critic.weights[0])
    learner.update(bandit())
    torch.testing.assert_close(learner.target_critic.weights[0], before.lerp(learner.critic.weights[0], 0.25))


def test_critics_may_be_wider_than_the_actor() -> None:
    learner = make(critic_hidden=[8, 8, 8])
    assert [tuple(w.shape) for w in learner.critic.weights] == [(3, 3, 8), (3, 8, 8), (3, 8, 8), (3, 8, 5)]
    assert [tuple(w.shape) for w in learner.policy.net.weights] == [(2, 32), (32, 32), (32, 2)]


def test_target_entropy() -> None:
    assert make().target_entropy == -float(SPEC.action_dim)
    assert make(target_entropy=-0.25).target_entropy == -0.25


def test_a_fixed_temperature_stays() -> None:
    learner = make(alpha=0.2, learn_alpha=False)
    learner.update(bandit())
    assert learner.log_alpha.item() == pytest.approx(math.log(0.2))


@pytest.mark.parametrize(("env", "dropped"), [("hopper", 5), ("halfcheetah", 0), ("walker2d", 2), ("ant", 2)])
def test_dropped_quantiles_on_mujoco(env: str, dropped: int) -> None:
    cfg = compose_config(["algo=tqc", f"env={env}"])
    assert (cfg.algo.dropped, cfg.algo.critics, cfg.algo.quantiles) == (dropped, 5, 25)


@pytest.mark.parametrize(
    "options",
    [
        {"dropped": 5},
        {"dropped": -1},
        {"quantiles": 0, "dropped": 0},
        {"critics": 0},
        {"tau": 0.0},
        {"alpha": 0.0},
        {"actor_lr": 0.0},
        {"alpha_lr": -1.0},
    ],
)
def test_impossible_settings_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(UserError):
        make(**options)


def test_the_quantiles_learn_a_distribution() -> None:
    """One state, rewards uniform in [0, 30]: the quantiles are spread evenly, far wider than huber's unit."""
    learner = make(critic_lr=1e-2, actor_lr=1e-9, dropped=0)
    batch = bandit(128)._replace(obs=torch.zeros(128, 2), action=torch.zeros(128, 1))
    for _ in range(400):
        learner.update(batch._replace(reward=30.0 * torch.rand(128)))
    found = learner.critic(torch.zeros(1, 2), torch.zeros(1, 1)).mean((0, 1)).tolist()
    assert found == pytest.approx([3.0, 9.0, 15.0, 21.0, 27.0], abs=2.0)


def test_learns_a_bandit() -> None:
    learner = make(alpha=0.01, learn_alpha=False, actor_lr=3e-3, critic_lr=3e-3)
    for _ in range(300):
        learner.update(bandit())
    actions = learner.act(torch.randn(64, 2), explore=False)
    assert actions.mean().item() == pytest.approx(0.5, abs=0.1)
    assert actions.std().item() < 0.15
