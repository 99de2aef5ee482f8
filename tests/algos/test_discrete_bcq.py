"""Discrete BCQ: which actions are allowed, both losses by hand, the shared encoder, and actions that nobody tried."""

from __future__ import annotations

import copy
import math

import pytest
import torch
import torch.nn.functional as F

from rlx.algos.discrete_bcq import DiscreteBCQ, DiscreteBCQConfig, behaviour_loss, best_allowed
from rlx.errors import UserError
from rlx.types import Batch, Spec

SPEC = Spec("bandit", (2,), "float32", "discrete", (), action_sizes=(3,))
PICTURE = Spec("picture", (8, 8, 3), "uint8", "discrete", (), action_sizes=(3,))


def data(n: int = 64, spec: Spec = SPEC) -> Batch:
    """Steps of episodes that go on; nobody tried action 2, action 1 pays 1 and action 0 nothing."""
    action = torch.randint(2, (n,))
    shape = (n, *spec.obs_shape)
    images = spec.obs_dtype == "uint8"
    obs, next_obs = (torch.randint(256, shape, dtype=torch.uint8) if images else torch.randn(shape) for _ in range(2))
    return Batch(obs, action, action.float(), next_obs, torch.zeros(n), torch.full((n,), 0.5))


def make(spec: Spec = SPEC, **options: object) -> DiscreteBCQ:
    torch.manual_seed(0)
    return DiscreteBCQ(DiscreteBCQConfig(**{"hidden": [16, 16], **options}), spec)


def constant(network: torch.nn.Module, head: list[float]) -> None:
    with torch.no_grad():
        for p in network.parameters():
            p.zero_()
        network.biases[-1].copy_(torch.tensor(head))  # type: ignore


def logs(*numbers: float) -> list[float]:
    return [math.log(x) for x in numbers]


def test_unlikely_actions_are_left_out() -> None:
    """Likelihoods of 0.6, 0.3 and 0.1 are 1, 1/2 and 1/6 of the largest; logits need not be normalised."""
    logits = torch.tensor([logs(6.0, 3.0, 1.0)] * 3)
    q = torch.tensor([[1.0, 2.0, 3.0]] * 3)
    assert best_allowed(q, logits, 0.3).tolist() == [1, 1, 1]
    assert best_allowed(q, logits, 0.6).tolist() == [0, 0, 0]
    assert best_allowed(q, logits, 0.1).tolist() == [2, 2, 2]
    assert best_allowed(-q - 1e9, logits, 0.3).tolist() == [0, 0, 0]  # however low the values


def test_the_imitation_loss_by_hand() -> None:
    logits = torch.tensor([[math.log(3.0), 0.0], [2.0, 2.0]], requires_grad=True)
    loss, metrics = behaviour_loss(logits, torch.tensor([0, 1]), penalty=0.5)
    likelihood = (math.log(4.0 / 3.0) + math.log(2.0)) / 2.0
    assert metrics["loss/behaviour"].item() == pytest.approx(likelihood)
    assert loss.item() == pytest.approx(likelihood + 0.5 * (math.log(3.0) ** 2 + 0.0 + 4.0 + 4.0) / 4.0)


@pytest.mark.parametrize(("threshold", "expected"), [(0.3, 1.0 + 0.5 * 2.0), (0.1, 1.0 + 0.5 * 3.0)])
def test_the_target_takes_the_best_allowed_action(threshold: float, expected: float) -> None:
    learner = make(threshold=threshold)
    constant(learner.q, [0.0, 1.0, 9.0])
    constant(learner.target_q, [4.0, 2.0, 3.0])
    constant(learner.behaviour, logs(6.0, 3.0, 1.0))
    assert learner.act(torch.zeros(3, 2), explore=False).unique().tolist() == [1 if threshold == 0.3 else 2]
    metrics = learner.update(data()._replace(reward=torch.ones(64)))
    assert metrics["q/target"].item() == pytest.approx(expected)


def test_the_gradient_is_that_of_all_terms() -> None:
    learner = make(logit_penalty=0.3, threshold=0.5, lr=1e-12)
    torch.nn.init.normal_(learner.behaviour.weights[-1])
    torch.nn.init.normal_(learner.target_q.weights[-1])
    batch = data()
    rows = torch.arange(64)
    chance = learner.behaviour(batch.next_obs).softmax(-1)
    allowed = chance / chance.amax(-1, keepdim=True) > 0.5
    choice = torch.where(allowed, learner.q(batch.next_obs), -1e8).argmax(-1)
    assert 0 < (choice != learner.q(batch.next_obs).argmax(-1)).sum() < 64
    target = batch.reward + 0.5 * learner.target_q(batch.next_obs)[rows, choice].detach()
    logits = learner.behaviour(batch.obs)
    loss = F.huber_loss(learner.q(batch.obs)[rows, batch.action], target) + F.cross_entropy(logits, batch.action)
    loss = loss + 0.3 * logits.square().mean()
    ours, metrics = learner._loss(batch)
    torch.testing.assert_close(ours, loss)
    torch.testing.assert_close(metrics["q/target"], target.mean())
    params = [*learner.q.parameters(), *learner.behaviour.parameters()]
    torch.testing.assert_close(torch.autograd.grad(ours, params), torch.autograd.grad(loss, params))


def test_both_losses_train_the_shared_encoder() -> None:
    learner, batch = make(PICTURE), data(8, PICTURE)
    assert learner.behaviour.encoder is None
    encoder = learner.q.encoder
    assert encoder is not None
    q, logits = learner.values_and_logits(batch.obs)
    torch.testing.assert_close(q, learner.q(batch.obs))
    for part in (q, logits):
        grads = torch.autograd.grad(part.sum(), list(encoder.parameters()), retain_graph=True)
        assert all(g.abs().sum() > 0 for g in grads)
    before = copy.deepcopy(encoder)
    learner.update(batch)
    assert all(not torch.equal(a, b) for a, b in zip(encoder.parameters(), before.parameters(), strict=True))


def test_targets_follow() -> None:
    learner = make(tau=0.25, target_interval=2)
    before = copy.deepcopy(learner.target_q.weights[0])
    learner.update(data())
    assert torch.equal(learner.target_q.weights[0], before)
    learner.update(data())
    torch.testing.assert_close(learner.target_q.weights[0], before.lerp(learner.q.weights[0], 0.25))


def test_terminated_states_do_not_bootstrap() -> None:
    batch = data()._replace(terminated=torch.ones(64))
    assert make().update(batch)["q/target"].item() == pytest.approx(batch.reward.mean().item())


def test_exploration_is_rare_when_fine_tuning() -> None:
    learner = make()
    constant(learner.q, [0.0, 1.0, 0.0])
    constant(learner.behaviour, [0.0, 0.0, 0.0])
    others = (learner.act(torch.zeros(10_000, 2), explore=True) != 1).float().mean().item()
    assert others == pytest.approx(0.05 * 2 / 3, abs=0.01)


def test_names_of_the_metrics() -> None:
    metrics = make().update(data())
    assert set(metrics) == {"loss/q", "q/mean", "q/target", "loss/behaviour"}
    assert all(v.dim() == 0 and not v.requires_grad for v in metrics.values())


@pytest.mark.parametrize("options", [{"threshold": 1.0}, {"threshold": -0.1}, {"tau": 0.0}, {"logit_penalty": -1.0}])
def test_impossible_settings_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(UserError):
        make(**options)


def test_actions_that_nobody_tried_are_not_taken() -> None:
    """Its value starts high and nothing in the data speaks against it; without the threshold it would be taken."""
    chosen = {}
    for threshold in (0.0, 0.3):
        learner = make(threshold=threshold, lr=3e-3, tau=0.05)
        with torch.no_grad():
            for network in (learner.q, learner.target_q):
                network.biases[-1][2] = 5.0
        for _ in range(300):
            learner.update(data())
        chosen[threshold] = learner.act(torch.randn(64, 2), explore=False).unique().tolist()
    assert chosen == {0.0: [2], 0.3: [1]}
