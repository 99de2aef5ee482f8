"""Cal-QL: the bound by hand, where it holds and where not, and values that stay at the data's returns."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

import rlx
from rlx.algos.cal_ql import CalQL, CalQLConfig, calibrated
from rlx.algos.cql import CQL, CQLConfig
from rlx.errors import UserError
from rlx.nn import Critic
from rlx.types import Batch, Metrics, Spec

SPEC = Spec("bandit", (2,), "float32", "box", (1,), (-1.0,), (1.0,))


def bandit(n: int = 64, mc_return: float | None = 0.0) -> Batch:
    action = torch.rand(n, 1) * 0.4 - 0.2
    found = None if mc_return is None else torch.full((n,), mc_return)
    obs, zeros = torch.randn(n, 2), torch.zeros(n)
    return Batch(obs, action, zeros, torch.randn(n, 2), torch.ones(n), torch.full((n,), 0.99), mc_return=found)


def make(kind: type[CQL] = CalQL, **options: object) -> CQL:
    torch.manual_seed(0)
    config = CalQLConfig if kind is CalQL else CQLConfig
    return kind(config(**{"hidden": [16, 16], "bc_updates": 0, "n_actions": 4, **options}), SPEC)


def test_the_bound_by_hand() -> None:
    q = torch.tensor([[[1.0, 3.0], [-5.0, 0.0]]], requires_grad=True)  # one critic, two rows, two actions
    found, metrics = calibrated(q, torch.tensor([2.0, -math.inf]))
    assert found.tolist() == [[[2.0, 3.0], [-5.0, 0.0]]]  # -inf: no return is known, no bound
    assert {k: v.item() for k, v in metrics.items()} == {"q/bounded": 0.25}
    assert torch.autograd.grad(found.sum(), q)[0].tolist() == [[[0.0, 1.0], [1.0, 1.0]]]  # bounded: not pushed down


def test_it_says_that_it_needs_returns() -> None:
    assert CalQL.needs_mc_return
    assert not CQL.needs_mc_return
    with pytest.raises(UserError, match="Monte-Carlo returns"):
        make().update(bandit(mc_return=None))


def test_without_known_returns_it_is_cql() -> None:
    ours, plain = make(max_q_backup=False), make(CQL)
    for learner in (ours, plain):
        torch.manual_seed(1)
        for _ in range(3):
            metrics = learner.update(bandit(mc_return=-math.inf))
    assert torch.equal(ours.critic.weights[0], plain.critic.weights[0])
    assert torch.equal(ours.policy.net.weights[0], plain.policy.net.weights[0])
    assert "q/bounded" not in metrics


def test_only_the_policys_actions_are_bounded() -> None:
    """Critics that say 0 under returns of 10: 2 x 4 candidates count as 10, the 4 uniform ones stay at 0."""
    learner = make(critic_lr=1e-12)
    with torch.no_grad():
        for p in (*learner.critic.parameters(), *learner.policy.parameters()):
            p.zero_()
    batch = bandit(4096, mc_return=10.0)
    torch.manual_seed(1)
    metrics = learner.update(batch)
    torch.manual_seed(1)
    learner._next_value(batch.next_obs, torch.tensor(1.0))  # draws as the update did
    torch.rand(4096, 4, 1)
    _, log_prob = learner._sample(torch.cat([batch.obs, batch.next_obs]), 4)
    drawn = 10.0 - torch.cat(log_prob.chunk(2), 1)
    expected = torch.logsumexp(torch.cat([torch.full((4096, 4), math.log(2.0)), drawn], 1), 1).mean().item()
    assert metrics["q/gap"].item() == pytest.approx(expected, rel=1e-5)
    assert metrics["q/bounded"].item() == 1.0


def says(critic: Critic, slopes: list[float]) -> None:
    """Critic i says slopes[i] * a, as relu(10 + slope * a) - 10."""
    with torch.no_grad():
        for p in critic.parameters():
            p.zero_()
        critic.weights[0][:, 2, 0] = torch.tensor(slopes)
        critic.biases[0][:, 0, 0] = 10.0
        critic.weights[1][:, 0, 0] = 1.0
        critic.weights[2][:, 0, 0] = 1.0
        critic.biases[2].fill_(-10.0)


def test_the_target_is_the_best_action_of_the_smaller_critic() -> None:
    """Critics a and -a: max_a min_i is at most 0 and close to it, CQL's min_i max_a is far above."""
    found = {}
    for kind in (CalQL, CQL):
        learner = make(kind, max_q_backup=True, n_actions=500)
        says(learner.target_critic, [1.0, -1.0])
        found[kind] = learner._next_value(torch.zeros(1, 2), torch.tensor(1.0)).item()
    assert -0.02 < found[CalQL] <= 0.0
    assert found[CQL] > 0.5
    assert CalQLConfig().max_q_backup
    assert not CQLConfig().max_q_backup


def test_best_by_hand() -> None:
    q = torch.tensor([[[1.0, 5.0]], [[4.0, 2.0]]])  # two critics, one row, two actions
    assert make()._best(q).tolist() == [2.0]  # the minima are 1 and 2
    assert make(CQL)._best(q).tolist() == [4.0]  # the maxima are 5 and 4


def test_the_threshold_is_weighted_too() -> None:
    """multiplier * weight * (gap - threshold), where CQL has multiplier * (weight * gap - threshold)."""
    for kind, first, threshold in ((CalQL, math.e, 5.0 * 0.8), (CQL, 1.0, 0.8)):
        learner = make(kind, lagrange_threshold=0.8, weight=5.0)
        metrics = learner.update(bandit(mc_return=-math.inf))
        gap = metrics["q/gap"].item()
        assert metrics["q/multiplier"].item() == pytest.approx(first)
        assert metrics["loss/conservative"].item() == pytest.approx(2 * first * (5.0 * gap - threshold), rel=1e-5)
        assert metrics["loss/multiplier"].item() == pytest.approx(-first * (5.0 * gap - threshold), rel=1e-5)


def test_values_of_the_policy_do_not_fall_far_below_the_returns() -> None:
    """CQL pushes the values of actions outside of the data without end; Cal-QL stops at the data's return, 0."""
    found = {}
    for kind in (CQL, CalQL):
        learner = make(kind, weight=5.0, critic_lr=3e-3, actor_lr=1e-12)
        for _ in range(300):
            learner.update(bandit(128))
        obs = torch.randn(256, 2)
        with torch.no_grad():
            found[kind] = learner.critic(obs, learner.policy.sample(obs)[0]).mean().item()
    assert found[CalQL] > found[CQL] + 0.5


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(UserError):
        make(weight=-1.0)


def test_goes_online_where_returns_are_not_known_yet(tmp_path: Path) -> None:
    """The dataset brings its returns, an episode under way has none: mixed batches hold both, and all stays finite."""
    seen: list[Batch] = []
    update = CalQL.update

    def watched(self: CalQL, batch: Batch) -> Metrics:
        seen.append(batch)
        return update(self, batch)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CalQL, "update", watched)
        result = rlx.train(
            "algo=cal_ql", "trainer=offline_to_online", "env=pendulum", "~algo_env", "dataset=random", "threads=1",
            "dataset.size=400", "logger=none", "algo.hidden=[16,16]", "algo.batch_size=16",
            "trainer.warmup_steps=10", "trainer.max_env_steps=20", "trainer.eval_episodes=1",
            "trainer.pretrain_updates=5", run_dir=tmp_path / "run",
        )  # fmt: skip
    assert len(seen) == 15
    assert all(batch.mc_return.isfinite().all() for batch in seen[:5])
    assert all(batch.mc_return.isneginf().sum() == 8 for batch in seen[5:])
    assert all(p.isfinite().all() for p in result.learner.parameters())
