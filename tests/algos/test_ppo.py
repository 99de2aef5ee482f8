"""PPO: losses by hand, gradients against autograd, and the rules of an update."""

from __future__ import annotations

import math

import pytest
import torch

from rlx.algos.ppo import PPO, PPOConfig, approximate_kl
from rlx.errors import UserError
from rlx.losses import Experience, experience
from rlx.types import Rollout, Spec

KINDS = {"box": ((2,), ()), "discrete": ((), (3,)), "multi_discrete": ((2,), (3, 2))}


def spec_of(kind: str = "discrete") -> Spec:
    shape, sizes = KINDS[kind]
    return Spec("Test-v0", (4,), "float32", kind, shape, action_sizes=sizes)


def make_rollout(learner: PPO, steps: int = 16, envs: int = 4) -> Rollout:
    """A walk with random observations in which some episodes end each way."""
    obs = torch.randn(steps, envs, 4)
    action = torch.stack([learner.act(o, explore=True) for o in obs])
    ends = torch.rand(steps, envs)
    return Rollout(
        obs, action, torch.randn(steps, envs), torch.randn(steps, envs, 4), (ends < 0.1).float(), (ends > 0.9).float()
    )


def weights(learner: PPO) -> list[torch.Tensor]:
    return [p.detach().clone() for p in learner.parameters()]


def test_approximate_kl_by_hand():
    assert approximate_kl(torch.tensor([math.log(2.0)]), torch.zeros(1)).item() == pytest.approx(1 - math.log(2))


def test_values_bootstrap_at_truncation_and_at_the_end_only():
    torch.manual_seed(0)
    learner = PPO(PPOConfig(discount=0.5, gae_lambda=0.0), spec_of())
    rollout = make_rollout(learner, steps=3, envs=3)
    nothing = torch.zeros(3, 3)
    terminated, truncated = nothing.clone(), nothing.clone()
    terminated[1, 0], truncated[1, 1] = 1.0, 1.0
    rollout = rollout._replace(terminated=terminated, truncated=truncated)
    data = experience(rollout, learner, lam=0.0)
    with torch.no_grad():
        value, following = learner.critic(rollout.obs), learner.critic(rollout.next_obs)
    expected = rollout.reward.clone()
    expected[0] += 0.5 * value[1]
    expected[1, 1] += 0.5 * following[1, 1]  # cut off: the final observation's value
    expected[1, 2] += 0.5 * value[2, 2]  # went on; and [1, 0] terminated: nothing
    expected[2] += 0.5 * following[2]
    torch.testing.assert_close(data.returns, expected.flatten())
    torch.testing.assert_close(data.advantage, (expected - value).flatten())


def step(learner: PPO, data: Experience) -> list[torch.Tensor]:
    """Make one gradient step; the gradients that it went down, clipped."""
    loss, _, _ = learner._loss(data)
    optimizer = learner.optimizers["policy"]
    optimizer.minimize(loss, max_grad_norm=learner.cfg.max_grad_norm)
    assert optimizer._places is not None
    return [part.clone() for part in optimizer._places.parts]


@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("clip_range_value", [None, 0.05])
def test_gradient_is_that_of_the_loss(kind: str, clip_range_value: float | None):
    torch.manual_seed(0)
    cfg = PPOConfig(hidden=[8, 8], entropy_coef=0.1, clip_range_value=clip_range_value, max_grad_norm=0.01)
    learner = PPO(cfg, spec_of(kind))
    data = experience(make_rollout(learner), learner, 0.95)
    with torch.no_grad():
        for p in learner.parameters():  # away from the policy that collected, so that clips bind
            p.add_(torch.randn_like(p), alpha=0.2)
    actions = learner.policy(data.obs)
    ratio = (actions.log_prob(data.action) - data.log_prob).exp()
    advantage = (data.advantage - data.advantage.mean()) / data.advantage.std(correction=0)
    surrogate = torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
    value = learner.critic(data.obs)
    error = (value - data.returns) ** 2
    if clip_range_value is not None:
        near = data.value + (value - data.value).clamp(-clip_range_value, clip_range_value)
        error = torch.max(error, (near - data.returns) ** 2)
    loss = -surrogate + 0.5 * error.mean() - 0.1 * actions.entropy().mean()
    params = learner.optimizers["policy"].params
    expected = torch.autograd.grad(loss, params)
    norm = torch.cat([g.flatten() for g in expected]).norm()
    assert norm > 0.01
    found = step(learner, data._replace(advantage=advantage))
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs * (0.01 / norm), rtol=1e-4, atol=1e-7)


def test_only_gradients_beyond_the_limit_are_scaled():
    def gradient(limit: float) -> torch.Tensor:
        torch.manual_seed(0)
        learner = PPO(PPOConfig(hidden=[8, 8], max_grad_norm=limit), spec_of())
        return torch.cat([g.flatten() for g in step(learner, experience(make_rollout(learner), learner, 0.95))])

    free = gradient(1e6)
    for limit, scale in ((1e3, 1.0), (0.25, 0.25 / free.norm().item())):
        torch.testing.assert_close(gradient(limit), free * scale)


def test_advantages_are_standardised_by_minibatch():
    torch.manual_seed(0)
    learner = PPO(PPOConfig(hidden=[8], batch_size=24, epochs=2), spec_of())
    data = experience(make_rollout(learner), learner, 0.95)
    parts = list(learner._minibatches(data))
    assert [len(part.obs) for part in parts] == [24, 24, 16] * 2
    for part in parts:
        assert part.advantage.mean().item() == pytest.approx(0.0, abs=1e-6)
        assert part.advantage.std(correction=0).item() == pytest.approx(1.0, rel=1e-5)
    learner.cfg.normalize_advantage = False
    kept = torch.cat([part.advantage for part in learner._minibatches(data)][:3])
    assert torch.equal(kept.sort().values, data.advantage.sort().values)


def test_gradients_by_autograd_lead_to_the_same_weights(monkeypatch: pytest.MonkeyPatch):
    learners = []
    for record in (True, False):
        torch.manual_seed(0)
        learner = PPO(PPOConfig(hidden=[8], batch_size=16, entropy_coef=0.1, clip_range_value=0.1), spec_of("box"))
        with monkeypatch.context() as patch:
            if not record:
                patch.setattr("rlx.algos.ppo.recorded", lambda obs: obs)
            learner.update(make_rollout(learner))
        learners.append(learner)
    for ours, theirs in zip(weights(learners[0]), weights(learners[1]), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", list(KINDS))
def test_update_moves_every_weight_and_reports(kind: str):
    torch.manual_seed(0)
    learner = PPO(PPOConfig(hidden=[8], batch_size=16, epochs=3), spec_of(kind))
    before = weights(learner)
    metrics = learner.update(make_rollout(learner))
    assert learner.updates == 1
    assert all(not torch.equal(a, b) for a, b in zip(before, weights(learner), strict=True))
    assert metrics.keys() == {
        "loss/policy", "loss/value", "entropy", "kl", "clip_fraction", "explained_variance", "gradient_steps",
    }  # fmt: skip
    assert metrics["gradient_steps"] == 3 * 4
    assert all(v.dim() == 0 and v.isfinite() and not v.requires_grad for v in metrics.values())


def test_update_makes_good_actions_likelier():
    torch.manual_seed(0)
    learner = PPO(PPOConfig(hidden=[16], batch_size=64, normalize_obs=True), spec_of())
    for _ in range(5):
        rollout = make_rollout(learner, steps=64)
        reward = (rollout.action == (rollout.obs[..., 0] > 0).long()).float()
        learner.update(rollout._replace(reward=reward, terminated=torch.ones(64, 4), truncated=torch.zeros(64, 4)))
    obs = torch.randn(200, 4)
    assert (learner.act(obs, explore=False) == (obs[:, 0] > 0).long()).float().mean() > 0.9


def test_target_kl_stops_the_epochs():
    def steps(target_kl: float | None) -> float:
        torch.manual_seed(0)
        learner = PPO(PPOConfig(hidden=[16], lr=0.05, batch_size=32, target_kl=target_kl), spec_of())
        return learner.update(make_rollout(learner))["gradient_steps"].item()

    assert steps(None) == 20
    assert 1 <= steps(0.01) < 20


def test_observation_statistics_move_after_the_update_only():
    torch.manual_seed(0)
    learner = PPO(PPOConfig(hidden=[8], normalize_obs=True), spec_of("box"))
    rollout = make_rollout(learner)._replace(obs=torch.randn(16, 4, 4) * 3 + 2)
    before = experience(rollout, learner, 0.95)
    assert torch.equal(before.obs, rollout.obs.flatten(0, 1).clamp(-10, 10))  # the first rollout was seen as it is
    learner.update(rollout)
    flat = rollout.obs.flatten(0, 1)
    torch.testing.assert_close(learner.obs_mean, flat.mean(0))
    torch.testing.assert_close(learner.obs_std, flat.std(0, correction=0))
    far = learner.obs_mean + 1000.0 * learner.obs_std
    assert learner.normalize(far).tolist() == [10.0] * 4
    assert {"model.obs_mean", "model.obs_std", "model.obs_count"} <= learner.tensors().keys()


def test_clip_range_can_be_scheduled_from_outside():
    torch.manual_seed(0)
    learner = PPO(PPOConfig(hidden=[8]), spec_of())
    data = experience(make_rollout(learner), learner, 0.95)
    with torch.no_grad():
        learner.policy.net.weights[0].add_(1.0)
    learner.cfg.clip_range = 0.0
    narrow = learner._loss(data)[1]["loss/policy"]
    learner.cfg.clip_range = 100.0
    wide = learner._loss(data)[1]["loss/policy"]
    assert wide < narrow


def test_a_rest_minibatch_of_one_row_is_harmless():
    torch.manual_seed(0)
    learner = PPO(PPOConfig(hidden=[8], batch_size=21), spec_of())
    learner.update(make_rollout(learner))  # 64 rows: 21, 21, 21, 1
    assert all(p.isfinite().all() for p in learner.parameters())


def test_minibatches_cover_every_row_once_per_epoch():
    learner = PPO(PPOConfig(batch_size=3, epochs=2), spec_of())
    rows = torch.arange(7.0)
    data = Experience(rows.unsqueeze(-1), rows, rows, rows, rows, rows)
    seen = list(learner._minibatches(data))
    assert [len(m.value) for m in seen] == [3, 3, 1] * 2
    assert all(torch.equal(m.obs.squeeze(-1), m.returns) for m in seen)
    for epoch in (seen[:3], seen[3:]):
        assert sorted(torch.cat([m.value for m in epoch]).tolist()) == rows.tolist()


def test_saved_and_loaded_learners_go_on_alike():
    torch.manual_seed(0)
    cfg = PPOConfig(hidden=[8], normalize_obs=True)
    first, second = PPO(cfg, spec_of("box")), PPO(cfg, spec_of("box"))
    first.update(make_rollout(first))
    second.load_tensors({k: v.clone() for k, v in first.tensors().items()})
    rollout = make_rollout(first)
    for learner in (first, second):
        torch.manual_seed(7)
        learner.update(rollout)
    assert all(torch.equal(a, b) for a, b in zip(weights(first), weights(second), strict=True))


@pytest.mark.parametrize(
    "setting",
    [
        {"epochs": 0},
        {"clip_range": 0.0},
        {"max_grad_norm": -0.5},
        {"gae_lambda": 1.5},
        {"target_kl": 0.0},
        {"clip_range_value": -1.0},
    ],
    ids=str,
)
def test_impossible_settings_are_refused(setting: dict):
    with pytest.raises(UserError, match=f"algo.{next(iter(setting))}"):
        PPO(PPOConfig(**setting), spec_of())
