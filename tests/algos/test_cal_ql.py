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
    ours, plain = make(), make(CQL)
    for learner in (ours, plain):
        torch.manual_seed(1)
        for _ in range(3):
            metrics = learner.update(bandit(mc_return=-math.inf))
    assert torch.equal(ours.critic.weights[0], plain.critic.weights[0])
    assert torch.equal(ours.actor.net.weights[0], plain.actor.net.weights[0])
    assert "q/bounded" not in metrics


def test_only_the_policys_actions_are_bounded() -> None:
    """Critics that say 0 under returns of 10: 2 x 4 candidates count as 10, the 4 uniform ones stay at 0."""
    learner = make(critic_lr=1e-12)
    with torch.no_grad():
        for p in (*learner.critic.parameters(), *learner.actor.parameters()):
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


def test_values_of_the_policy_do_not_fall_far_below_the_returns() -> None:
    """CQL pushes the values of actions outside of the data without end; Cal-QL stops at the data's return, 0."""
    found = {}
    for kind in (CQL, CalQL):
        learner = make(kind, weight=5.0, critic_lr=3e-3, actor_lr=1e-12)
        for _ in range(300):
            learner.update(bandit(128))
        obs = torch.randn(256, 2)
        with torch.no_grad():
            found[kind] = learner.critic(obs, learner.actor.sample(obs)[0]).mean().item()
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
