"""PQN: losses and returns by hand, what it draws and clips, its normalisation, and a bandit whose optimum is known."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from rlx.algos.pqn import PQN, PQNConfig, pqn_loss
from rlx.errors import UserError
from rlx.nn import RAdam
from rlx.nn.encoders import ChannelNorm
from rlx.types import Rollout, Spec

SPEC = Spec("bandit", (2,), "float32", "discrete", (), action_sizes=(3,))
PICTURE = Spec("picture", (8, 8, 3), "uint8", "discrete", (), action_sizes=(3,))


def rollout(steps: int = 8, envs: int = 4) -> Rollout:
    """Episodes of one step; action 2 pays 1, the others nothing."""
    action = torch.randint(3, (steps, envs))
    ends, goes_on = torch.ones(steps, envs), torch.zeros(steps, envs)
    obs, next_obs = torch.randn(2, steps, envs, 2)
    return Rollout(obs, action, (action == 2).float(), next_obs, ends, goes_on)


def make(spec: Spec = SPEC, **options: object) -> PQN:
    torch.manual_seed(0)
    return PQN(PQNConfig(**{"hidden": [16, 16], "batch_size": 16, **options}), spec)


def reads_first(learner: PQN, slopes: list[float]) -> None:
    """Q(s, a) = slopes[a] * s_0, by a network without a hidden layer."""
    with torch.no_grad():
        learner.q.weights[0].zero_()
        learner.q.weights[0][0] = torch.tensor(slopes)
        learner.q.biases[0].zero_()


def test_loss_by_hand() -> None:
    q = torch.tensor([[1.0, 0.0], [5.0, 2.0]], requires_grad=True)
    loss, metrics = pqn_loss(q, torch.tensor([0, 1]), torch.tensor([0.5, 5.0]))
    assert torch.autograd.grad(loss, q)[0].tolist() == [[0.25, 0.0], [0.0, -1.5]]
    assert {k: v.item() for k, v in metrics.items()} == {"loss/q": (0.25 + 9.0) / 4, "q/mean": 1.5}


def test_returns_by_hand() -> None:
    """One env, four steps: the third ends in a truncation, whose final observation is worth 2 * 5."""
    learner = make(hidden=[], discount=0.5, q_lambda=0.5)
    reads_first(learner, [1.0, 2.0, -1.0])  # the best action is worth 2 s_0 where s_0 > 0
    column = torch.tensor([[1.0], [2.0], [3.0], [4.0]])
    obs = torch.stack([column, torch.zeros(4, 1)], -1)
    next_obs = torch.stack([torch.tensor([[2.0], [3.0], [5.0], [6.0]]), torch.zeros(4, 1)], -1)
    ends = torch.tensor([[0.0], [0.0], [1.0], [0.0]])
    data = Rollout(obs, torch.zeros(4, 1, dtype=torch.int64), torch.ones(4, 1), next_obs, torch.zeros(4, 1), ends)
    rows = learner._rows(data)
    # G_3 = 1 + 12/2 = 7; G_2 = 1 + 10/2 = 6; G_1 = 1 + (6/2 + 6/2)/2 = 4; G_0 = 1 + (4/2 + 4/2)/2 = 3
    assert rows.returns.tolist() == [3.0, 4.0, 6.0, 7.0]
    cut = learner._rows(data._replace(terminated=ends, truncated=torch.zeros(4, 1)))
    # G_2 = 1; G_1 = 1 + (6/2 + 1/2)/2 = 2.75; G_0 = 1 + (4/2 + 2.75/2)/2
    assert cut.returns.tolist() == [2.6875, 2.75, 1.0, 7.0]


def test_an_update_is_epochs_of_minibatches_of_radam() -> None:
    learner = make(epochs=3, batch_size=10, max_grad_norm=0.05)
    twin = make(epochs=3, batch_size=10, max_grad_norm=0.05)
    data = rollout()
    torch.manual_seed(5)
    metrics = learner.update(data)
    torch.manual_seed(5)
    optimizer = torch.optim.RAdam(twin.q.parameters(), lr=twin.cfg.lr)
    rows = twin._rows(data)
    losses = []
    for _ in range(3):
        for index in torch.randperm(32).split(10):  # the rest at the end is a minibatch, too
            q = twin.q(rows.obs[index]).gather(1, rows.action[index, None]).squeeze(1)
            loss = 0.5 * (q - rows.returns[index]).square().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(twin.q.parameters(), 0.05)
            optimizer.step()
            losses.append(loss.detach())
    assert learner.optimizers["q"].steps.item() == len(losses) == 12
    for ours, theirs in zip(learner.q.parameters(), twin.q.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(metrics["loss/q"], torch.stack(losses).mean())
    torch.testing.assert_close(metrics["q/target"], rows.returns.mean())
    assert set(metrics) == {"loss/q", "q/mean", "q/target"}


def test_returns_are_computed_once_per_rollout(monkeypatch: pytest.MonkeyPatch) -> None:
    learner, calls = make(epochs=4), []
    real = PQN._rows
    monkeypatch.setattr(PQN, "_rows", lambda self, data: calls.append(1) or real(self, data))
    learner.update(rollout())
    assert len(calls) == 1
    assert not hasattr(learner, "target_q")
    assert isinstance(learner.optimizers["q"], RAdam)


def norms(learner: PQN) -> tuple[int, list[type]]:
    """LayerNorms of the network behind the encoder, and those in it."""
    encoder = learner.q.encoder
    within = [] if encoder is None else [type(m) for m in encoder.modules() if isinstance(m, nn.LayerNorm)]
    return len(learner.q.gains), within


def test_a_layer_norm_behind_every_layer_but_the_last() -> None:
    assert norms(make()) == (2, [])
    assert norms(make(PICTURE)) == (2, [ChannelNorm, nn.LayerNorm])
    assert norms(make(PICTURE, layer_norm=False)) == (0, [])


def test_epsilon_falls_with_the_steps_of_the_policy() -> None:
    learner = make(hidden=[], epsilon=1.0, epsilon_end=0.0, epsilon_steps=8)
    reads_first(learner, [0.0, 1.0, 0.0])
    assert learner.epsilon == 1.0
    counts = learner.act(torch.ones(3000, 2), explore=True).bincount(minlength=3) / 3000
    assert counts.tolist() == pytest.approx([1 / 3] * 3, abs=0.04)
    learner.explored = 6
    assert learner.epsilon == 0.25
    learner.explored = 20
    assert learner.act(torch.ones(100, 2), explore=True).unique().tolist() == [1]
    learner.explored = 0
    assert learner.act(torch.ones(100, 2), explore=False).unique().tolist() == [1]


def test_observations_are_normalised_between_rollouts() -> None:
    learner = make(normalize_obs=True)
    seen: list[Tensor] = []
    learner.q.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    data = rollout()
    data = data._replace(obs=5.0 + 2.0 * data.obs)
    learner.update(data)
    torch.testing.assert_close(seen[0], data.obs.flatten(0, 1).clamp(-10.0, 10.0))
    torch.testing.assert_close(learner.obs_mean, data.obs.flatten(0, 1).mean(0))
    torch.testing.assert_close(learner.normalize(data.obs).flatten(0, 1).std(0, correction=0), torch.ones(2))


@pytest.mark.parametrize("options", [{"q_lambda": 1.5}, {"epochs": 0}, {"max_grad_norm": 0.0}, {"epsilon": 2.0}])
def test_impossible_settings_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(UserError):
        make(**options)


def test_learns_a_bandit() -> None:
    learner = make(lr=3e-3, epochs=4)
    for _ in range(100):
        learner.update(rollout())
    obs = torch.randn(64, 2)
    assert learner.act(obs, explore=False).unique().tolist() == [2]
    assert learner.q(obs).mean(0).tolist() == pytest.approx([0.0, 0.0, 1.0], abs=0.15)


def test_learns_from_pictures() -> None:
    """Which corner is lit says which action pays."""
    learner = make(PICTURE, lr=3e-3)
    obs = torch.zeros(16, 4, 8, 8, 3, dtype=torch.uint8)
    lit = torch.arange(64).view(16, 4) % 3
    for index, place in enumerate(((0, 0), (7, 0), (0, 7))):
        obs[lit == index, place[0], place[1]] = 255
    ends = torch.ones(16, 4)
    for _ in range(30):
        action = torch.randint(3, (16, 4))
        learner.update(Rollout(obs, action, (action == lit).float(), obs, ends, torch.zeros(16, 4)))
    assert torch.equal(learner.act(obs.flatten(0, 1), explore=False), lit.flatten())
