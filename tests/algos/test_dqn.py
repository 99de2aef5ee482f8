"""DQN: the gradient by hand and by autograd, targets of each variant, epsilon, and a bandit whose optimum is known."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from rlx.algos.dqn import DQN, DQNConfig, QNetwork, dqn_loss, linear_decay
from rlx.errors import UserError
from rlx.types import Batch, Spec

SPEC = Spec("bandit", (2,), "float32", "discrete", (), action_sizes=(3,))


def bandit(n: int = 64) -> Batch:
    """Episodes of one step; action 2 pays 1, the others nothing."""
    action = torch.randint(3, (n,))
    reward = (action == 2).float()
    return Batch(torch.randn(n, 2), action, reward, torch.randn(n, 2), torch.ones(n), torch.full((n,), 0.5))


def make(**options: object) -> DQN:
    torch.manual_seed(0)
    return DQN(DQNConfig(**{"hidden": [16, 16], **options}), SPEC)


def constant(network: QNetwork, head: list[float]) -> None:
    """Let the network answer `head` to everything."""
    with torch.no_grad():
        for p in network.parameters():
            p.zero_()
        network.biases[-1].copy_(torch.tensor(head))


def gradients(learner: DQN) -> list[torch.Tensor]:
    """What the last update went down, clipped."""
    places = learner.optimizers["q"]._places
    assert places is not None
    return places.parts


def test_loss_by_hand() -> None:
    q = torch.tensor([[1.0, 0.0], [5.0, 2.0]], requires_grad=True)
    loss, error, metrics = dqn_loss(q, torch.tensor([0, 1]), torch.tensor([0.5, 5.0]), None)
    assert torch.autograd.grad(loss, q)[0].tolist() == [[0.25, 0.0], [0.0, -0.5]]  # 0.5 / 2; -3 clipped to -1, / 2
    assert error.tolist() == [0.5, 3.0]
    assert {k: v.item() for k, v in metrics.items()} == {"loss/q": 1.3125, "q/mean": 1.5, "q/target": 2.75}


def test_importance_weights_scale_the_gradient() -> None:
    q = torch.tensor([[1.0, 0.0], [5.0, 2.0]], requires_grad=True)
    target, weight = torch.tensor([0.5, 5.0]), torch.tensor([1.0, 0.5])
    loss, _, metrics = dqn_loss(q, torch.tensor([0, 1]), target, weight)
    assert torch.autograd.grad(loss, q)[0].tolist() == [[0.25, 0.0], [0.0, -0.25]]
    assert metrics["loss/q"].item() == 0.6875  # (0.125 + 0.5 * 2.5) / 2


@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize("double", [False, True])
def test_the_gradient_is_that_of_autograd(dueling: bool, double: bool) -> None:
    learner = make(dueling=dueling, double=double, max_grad_norm=1e9)
    torch.manual_seed(1)
    batch = bandit()._replace(reward=3.0 * torch.randn(64), terminated=torch.zeros(64), weight=torch.rand(64))
    torch.nn.init.normal_(learner.target_q.weights[-1])
    next_q = learner.target_q(batch.next_obs)
    choice = learner.q(batch.next_obs) if double else next_q
    target = batch.reward + 0.5 * next_q[torch.arange(64), choice.argmax(-1)]
    q = learner.q(batch.obs)[torch.arange(64), batch.action]
    loss = (batch.weight * F.huber_loss(q, target.detach(), reduction="none")).mean()
    expected = torch.autograd.grad(loss, list(learner.q.parameters()))
    metrics = learner.update(batch)
    torch.testing.assert_close(gradients(learner), list(expected))
    torch.testing.assert_close(metrics["loss/q"], loss.detach())
    torch.testing.assert_close(learner.td_error, (q - target).abs().detach())


@pytest.mark.parametrize("double", [False, True])
def test_each_network_has_a_noise_of_its_own(double: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of Q is the same for its values and for its choice of the next action."""
    learner = make(noisy=True, sigma=5.0, double=double)
    q, target_q = learner.q, learner.target_q
    noise, target_noise = q.noise(), target_q.noise()
    batch = bandit()._replace(terminated=torch.zeros(64))
    next_q = target_q(batch.next_obs, target_noise)
    choice = (q(batch.next_obs, noise) if double else next_q).argmax(-1)
    target = batch.reward + 0.5 * next_q[torch.arange(64), choice]
    error = q(batch.obs, noise)[torch.arange(64), batch.action] - target
    monkeypatch.setattr(QNetwork, "noise", lambda self: noise if self is q else target_noise)
    learner.update(batch)
    torch.testing.assert_close(learner.td_error, error.abs().detach())


def test_the_gradient_is_clipped() -> None:
    learner = make(max_grad_norm=0.125)
    learner.update(bandit()._replace(reward=torch.full((64,), 100.0)))
    norm = torch.cat([g.flatten() for g in gradients(learner)]).norm()
    assert norm.item() == pytest.approx(0.125, rel=1e-4)


@pytest.mark.parametrize(("double", "target"), [(False, 1.0 + 0.5 * 4.0), (True, 1.0 + 0.5 * 2.0)])
def test_double_values_the_online_choice_by_the_target_network(double: bool, target: float) -> None:
    learner = make(double=double)
    constant(learner.q, [0.0, 9.0, 1.0])
    constant(learner.target_q, [4.0, 2.0, 3.0])
    batch = bandit()._replace(reward=torch.ones(64), terminated=torch.zeros(64))
    assert learner.update(batch)["q/target"].item() == target


def test_terminated_states_do_not_bootstrap() -> None:
    learner = make()
    constant(learner.target_q, [4.0, 2.0, 3.0])
    batch = bandit()
    assert learner.update(batch)["q/target"].item() == pytest.approx(batch.reward.mean().item())


def test_dueling_by_hand() -> None:
    network = QNetwork(2, 3, [4], dueling=True)
    constant(network, [10.0, 1.0, 2.0, 6.0])  # V = 10, A = 1, 2, 6 with mean 3
    assert network(torch.zeros(1, 2)).tolist() == [[8.0, 9.0, 13.0]]


def test_targets_are_copied_every_so_many_updates() -> None:
    learner = make(target_interval=3)
    before = learner.target_q.weights[0].clone()
    learner.update(bandit())
    learner.update(bandit())
    assert torch.equal(learner.target_q.weights[0], before)
    learner.update(bandit())
    assert torch.equal(learner.target_q.weights[0], learner.q.weights[0])


def test_linear_decay() -> None:
    assert [linear_decay(1.0, 0.5, 10, at) for at in (0, 5, 10, 99)] == [1.0, 0.75, 0.5, 0.5]
    assert linear_decay(0.3, 0.5, 0, 99) == 0.3


def test_epsilon_falls_with_the_steps_of_the_policy() -> None:
    learner = make(epsilon=1.0, epsilon_end=0.0, epsilon_steps=8)
    constant(learner.q, [0.0, 1.0, 0.0])
    learner.act(torch.zeros(5, 2), explore=False)
    assert learner.epsilon == 1.0
    learner.explored += 6  # as a collector counts them
    assert learner.epsilon == 0.25
    learner.explored += 6
    assert learner.act(torch.zeros(100, 2), explore=True).unique().tolist() == [1]
    resumed = make(epsilon=1.0, epsilon_end=0.0, epsilon_steps=8)
    resumed.load_counters(learner.counters())
    assert resumed.epsilon == learner.epsilon == 0.0


def test_exploring_tries_every_action() -> None:
    learner = make(epsilon=0.75, epsilon_steps=0)
    constant(learner.q, [0.0, 1.0, 0.0])
    counts = learner.act(torch.zeros(4000, 2), explore=True).bincount(minlength=3) / 4000
    assert counts.tolist() == pytest.approx([0.25, 0.5, 0.25], abs=0.04)
    assert learner.epsilon == 0.75  # a schedule may move cfg.epsilon now
    learner.cfg.epsilon = 0.0
    assert learner.act(torch.zeros(100, 2), explore=True).unique().tolist() == [1]


def test_names_of_the_metrics() -> None:
    metrics = make().update(bandit())
    assert set(metrics) == {"loss/q", "q/mean", "q/target"}
    assert all(v.dim() == 0 and not v.requires_grad for v in metrics.values())


@pytest.mark.parametrize(
    "options",
    [
        {"tau": 0.0},
        {"target_interval": 0},
        {"max_grad_norm": 0.0},
        {"epsilon": 1.5},
        {"epsilon_steps": -1},
        {"lr": 0.0},
    ],
)
def test_impossible_settings_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(UserError):
        make(**options)


@pytest.mark.parametrize("dueling", [False, True])
def test_learns_a_bandit(dueling: bool) -> None:
    learner = make(lr=3e-3, dueling=dueling)
    for _ in range(300):
        learner.update(bandit())
    obs = torch.randn(64, 2)
    assert learner.act(obs, explore=False).unique().tolist() == [2]
    assert learner.q(obs).mean(0).tolist() == pytest.approx([0.0, 0.0, 1.0], abs=0.1)
