"""Discrete CQL: the conservative term by hand, what it adds to DQN, and data with actions that nobody tried."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from rlx.algos.discrete_cql import DiscreteCQL, DiscreteCQLConfig, conservative_loss
from rlx.algos.dqn import DQN, DQNConfig, QNetwork
from rlx.config import compose_config
from rlx.errors import UserError
from rlx.types import Batch, Spec

SPEC = Spec("bandit", (2,), "float32", "discrete", (), action_sizes=(3,))


def data(n: int = 64) -> Batch:
    """Steps of episodes that go on; nobody tried action 2, action 1 pays 1 and action 0 nothing."""
    action = torch.randint(2, (n,))
    return Batch(torch.randn(n, 2), action, action.float(), torch.randn(n, 2), torch.zeros(n), torch.full((n,), 0.5))


def make(**options: object) -> DiscreteCQL:
    torch.manual_seed(0)
    return DiscreteCQL(DiscreteCQLConfig(**{"hidden": [16, 16], **options}), SPEC)


def constant(network: torch.nn.Module, head: list[float]) -> None:
    with torch.no_grad():
        for p in network.parameters():
            p.zero_()
        network.biases[-1].copy_(torch.tensor(head))  # type: ignore


def test_the_conservative_term_by_hand() -> None:
    q = torch.tensor([[0.0, math.log(3.0)], [5.0, 5.0]], requires_grad=True)
    loss, metrics = conservative_loss(q, torch.tensor([0, 1]))
    assert loss.item() == pytest.approx((math.log(4.0) + math.log(2.0)) / 2.0)  # log(1 + 3) - 0; log 2 above 5
    assert metrics["loss/conservative"].item() == loss.item()
    # (softmax - one-hot of the data's action) / 2
    assert torch.autograd.grad(loss, q)[0].flatten().tolist() == pytest.approx([-0.375, 0.375, 0.25, -0.25])


def test_both_terms_see_the_noise_of_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = make(noisy=True, sigma=5.0)
    q, target_q = learner.q, learner.target_q
    noise, target_noise = q.noise(), target_q.noise()
    batch = data()
    choice = q(batch.next_obs, noise).argmax(-1)
    target = batch.reward + 0.5 * target_q(batch.next_obs, target_noise)[torch.arange(64), choice]
    values = q(batch.obs, noise).detach()
    monkeypatch.setattr(QNetwork, "noise", lambda self: noise if self is q else target_noise)
    metrics = learner.update(batch)
    torch.testing.assert_close(learner.td_error, (values[torch.arange(64), batch.action] - target).abs().detach())
    torch.testing.assert_close(metrics["loss/conservative"], F.cross_entropy(values, batch.action))


def test_the_gradient_is_that_of_both_terms() -> None:
    learner = make(weight=0.7, max_grad_norm=1e9)
    torch.nn.init.normal_(learner.target_q.weights[-1])
    torch.manual_seed(1)
    batch = data()._replace(reward=3.0 * torch.randn(64), weight=torch.rand(64))
    rows = torch.arange(64)
    q = learner.q(batch.obs)
    target = batch.reward + 0.5 * learner.target_q(batch.next_obs)[rows, learner.q(batch.next_obs).argmax(-1)]
    td = (batch.weight * F.huber_loss(q[rows, batch.action], target.detach(), reduction="none")).mean()
    gap = F.cross_entropy(q, batch.action)  # which logsumexp Q - Q(s, a) is
    expected = torch.autograd.grad(td + 0.7 * gap, list(learner.q.parameters()))
    metrics = learner.update(batch)
    places = learner.optimizers["q"]._places
    assert places is not None
    torch.testing.assert_close(places.parts, list(expected))
    torch.testing.assert_close(metrics["loss/q"], td.detach())
    torch.testing.assert_close(metrics["loss/conservative"], gap.detach())
    torch.testing.assert_close(learner.td_error, (q[rows, batch.action] - target).abs().detach())


def test_targets_are_those_of_double_dqn() -> None:
    learner = make()
    constant(learner.q, [0.0, 9.0, 1.0])
    constant(learner.target_q, [4.0, 2.0, 3.0])
    batch = data()._replace(reward=torch.ones(64))
    assert learner.update(batch)["q/target"].item() == 2.0  # 1 + 0.5 * 2


def test_terminated_states_do_not_bootstrap() -> None:
    batch = data()._replace(terminated=torch.ones(64))
    assert make().update(batch)["q/target"].item() == pytest.approx(batch.reward.mean().item())


def test_without_its_weight_it_is_dqn() -> None:
    learner = make(weight=0.0)
    torch.manual_seed(0)
    dqn = DQN(DQNConfig(hidden=[16, 16], lr=3e-4, double=True), SPEC)
    for _ in range(5):
        batch = data()
        learner.update(batch)
        dqn.update(batch)
    torch.testing.assert_close(learner.q.weights[0], dqn.q.weights[0])


def test_exploration_is_rare_when_fine_tuning() -> None:
    learner = make()
    constant(learner.q, [0.0, 1.0, 0.0])
    assert learner.epsilon == 0.05
    others = (learner.act(torch.zeros(10_000, 2), explore=True) != 1).float().mean().item()
    assert others == pytest.approx(0.05 * 2 / 3, abs=0.01)
    cfg = compose_config(["algo=discrete_cql", "env=cartpole", "trainer=offline_to_online", "dataset=random"])
    assert cfg.trainer.learning_starts == 0


def test_names_of_the_metrics() -> None:
    metrics = make().update(data())
    assert set(metrics) == {"loss/q", "q/mean", "q/target", "loss/conservative"}
    assert all(v.dim() == 0 and not v.requires_grad for v in metrics.values())


@pytest.mark.parametrize("options", [{"weight": -1.0}, {"tau": 0.0}, {"epsilon": 2.0}])
def test_impossible_settings_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(UserError):
        make(**options)


def test_actions_that_nobody_tried_are_not_trusted() -> None:
    """Its value starts high and nothing in the data speaks against it: DQN takes it, CQL the best of the others."""
    chosen = {}
    for weight in (0.0, 1.0):
        learner = make(weight=weight, lr=3e-3, target_interval=20)
        with torch.no_grad():
            for network in (learner.q, learner.target_q):
                network.biases[-1][2] = 5.0
        for _ in range(300):
            learner.update(data())
        chosen[weight] = learner.act(torch.randn(64, 2), explore=False).unique().tolist()
    assert chosen == {0.0: [2], 1.0: [1]}
