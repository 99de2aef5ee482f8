"""A2C: its loss by hand, its optimizer against RMSprop, and a problem with a known answer."""

from __future__ import annotations

import pytest
import torch

from rlx.algos.a2c import A2C, A2CConfig, a2c_loss
from rlx.errors import UserError
from rlx.losses import experience
from rlx.types import Rollout, Spec

KINDS = {"box": ((2,), ()), "discrete": ((), (3,)), "multi_discrete": ((2,), (3, 2))}


def spec_of(kind: str = "discrete") -> Spec:
    shape, sizes = KINDS[kind]
    return Spec("Test-v0", (4,), "float32", kind, shape, action_sizes=sizes)


def make_rollout(learner: A2C, steps: int = 5, envs: int = 4) -> Rollout:
    obs = torch.randn(steps, envs, 4)
    action = torch.stack([learner.act(o, explore=True) for o in obs])
    nothing = torch.zeros(steps, envs)
    return Rollout(obs, action, torch.randn(steps, envs), torch.randn(steps, envs, 4), nothing, nothing)


def test_loss_by_hand():
    cfg = A2CConfig(entropy_coef=0.1, value_coef=0.5)
    loss, metrics = a2c_loss(
        log_prob=torch.tensor([-1.0, -2.0]),
        entropy=torch.tensor([0.4, 0.6]),
        value=torch.tensor([0.0, 1.0]),
        advantage=torch.tensor([1.0, -1.0]),
        returns=torch.tensor([2.0, 1.0]),
        cfg=cfg,
    )
    assert metrics["loss/policy"].item() == pytest.approx(-(-1.0 + 2.0) / 2)
    assert metrics["loss/value"].item() == pytest.approx(2.0)
    assert metrics["entropy"].item() == pytest.approx(0.5)
    assert loss.item() == pytest.approx(-0.5 + 0.5 * 2.0 - 0.1 * 0.5)


def test_returns_are_n_step_returns():
    torch.manual_seed(0)
    learner = A2C(A2CConfig(discount=0.5), spec_of())
    rollout = make_rollout(learner, steps=2, envs=1)
    data = experience(rollout, learner, learner.cfg.gae_lambda)
    with torch.no_grad():
        last = learner.critic(rollout.next_obs[1])
    r = rollout.reward[:, 0]
    expected = torch.cat([r[0] + 0.5 * r[1] + 0.25 * last, r[1] + 0.5 * last])
    torch.testing.assert_close(data.returns, expected)


def test_optimizer_is_rmsprop():
    learner = A2C(A2CConfig(lr=0.1, square_decay=0.9, eps=1e-12, max_grad_norm=1e9), spec_of())
    optimizer = learner.optimizers["policy"]
    before = optimizer.params[0].detach().clone()
    grads = [torch.full_like(p, 3.0) for p in optimizer.params]
    optimizer.step(grads)
    optimizer.step([2 * g for g in grads])
    # mean squares 0.1 * 9 = 0.9 and 0.9 * 0.9 + 0.1 * 36 = 4.41
    expected = before - 0.1 * (3.0 / 0.9**0.5 + 6.0 / 2.1)
    torch.testing.assert_close(optimizer.params[0].detach(), expected)


@pytest.mark.parametrize("kind", list(KINDS))
def test_update_moves_every_weight_and_reports(kind: str):
    torch.manual_seed(0)
    learner = A2C(A2CConfig(hidden=[8], normalize_obs=True, normalize_advantage=True, entropy_coef=0.01), spec_of(kind))
    before = [p.detach().clone() for p in learner.parameters()]
    rollout = make_rollout(learner)
    metrics = learner.update(rollout)
    assert learner.updates == 1
    assert all(not torch.equal(a, b) for a, b in zip(before, learner.parameters(), strict=True))
    assert metrics.keys() == {"loss/policy", "loss/value", "entropy", "explained_variance"}
    assert all(v.dim() == 0 and v.isfinite() and not v.requires_grad for v in metrics.values())
    torch.testing.assert_close(learner.obs_mean, rollout.obs.flatten(0, 1).mean(0))


def test_update_makes_good_actions_likelier():
    torch.manual_seed(0)
    learner = A2C(A2CConfig(hidden=[16], lr=0.01), spec_of())
    for _ in range(60):
        rollout = make_rollout(learner, steps=8, envs=8)
        reward = (rollout.action == (rollout.obs[..., 0] > 0).long()).float()
        learner.update(rollout._replace(reward=reward, terminated=torch.ones(8, 8)))
    obs = torch.randn(200, 4)
    assert (learner.act(obs, explore=False) == (obs[:, 0] > 0).long()).float().mean() > 0.9


@pytest.mark.parametrize("setting", [{"square_decay": 1.5}, {"max_grad_norm": -1.0}, {"gae_lambda": -0.1}], ids=str)
def test_impossible_settings_are_refused(setting: dict):
    with pytest.raises(UserError, match=f"algo.{next(iter(setting))}"):
        A2C(A2CConfig(**setting), spec_of())
