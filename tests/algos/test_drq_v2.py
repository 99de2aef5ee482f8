"""DrQ-v2: noise and losses by hand, who trains the shared convolutions, the fall of the noise, and a bandit."""

from __future__ import annotations

import copy
from functools import partial
from pathlib import Path

import pytest
import torch
from helpers import resumed, same_run, snapshots

import rlx
from rlx.algos.drq_v2 import DrQV2, DrQV2Config, truncated_normal
from rlx.config import compose_config
from rlx.errors import UserError
from rlx.nn.encoders import DrqConfig, drq
from rlx.types import Batch, Spec

SPEC = Spec("bandit", (2,), "float32", "box", (1,), (-1.0,), (1.0,))
PICTURE = Spec("picture", (2, 16, 16), "uint8", "box", (1,), (-1.0,), (1.0,))
NAMES = {"loss/critic", "q/mean", "q/target", "loss/actor", "policy/std"}


def bandit(n: int = 64, spec: Spec = SPEC, best: float = 0.5) -> Batch:
    """Episodes of one step, whose reward is largest at `best`."""
    action = torch.rand(n, 1) * 2.0 - 1.0
    reward = 1.0 - 4.0 * (action[:, 0] - best).square()
    shape = (n, *spec.obs_shape)
    images = spec.obs_dtype == "uint8"
    obs, next_obs = (torch.randint(256, shape, dtype=torch.uint8) if images else torch.randn(shape) for _ in range(2))
    return Batch(obs, action, reward, next_obs, torch.ones(n), torch.full((n,), 0.5))


def make(spec: Spec = SPEC, **options: object) -> DrQV2:
    torch.manual_seed(0)
    cfg = DrQV2Config(**{"hidden": [16, 16], **options})
    return DrQV2(cfg, spec, partial(drq, DrqConfig(channels=4, dim=6)) if spec is PICTURE else None)


def constant(learner: DrQV2, action: float, q: tuple[float, float], target_q: tuple[float, float]) -> None:
    """Let the networks answer the same to everything."""
    with torch.no_grad():
        for p in learner.parameters():
            p.zero_()
        learner.policy.net.biases[-1].fill_(torch.atanh(torch.tensor(action)))
        learner.critic.biases[-1].copy_(torch.tensor(q).view(2, 1, 1))
        learner.target_critic.biases[-1].copy_(torch.tensor(target_q).view(2, 1, 1))


def test_noise_is_clipped_and_then_the_action(monkeypatch: pytest.MonkeyPatch) -> None:
    mean = torch.tensor([[0.0, 0.5, 0.9, -0.9]], requires_grad=True)
    noise = torch.tensor([[1.0, -0.25, 2.0, -2.0]])
    monkeypatch.setattr("rlx.algos.drq_v2.noise_like", lambda x: noise)
    action = truncated_normal(mean, 0.5, 0.3)
    assert action.tolist()[0] == pytest.approx([0.3, 0.375, 1.0 - 1e-6, -1.0 + 1e-6], abs=1e-6)
    assert truncated_normal(mean, 0.5).tolist()[0] == pytest.approx([0.5, 0.375, 1.0, -1.0], abs=2e-6)
    action.sum().backward()
    assert mean.grad is not None
    assert mean.grad.tolist() == [[1.0] * 4]  # also where it was cut off


def test_the_target_is_the_smaller_target_critic() -> None:
    learner = make()
    constant(learner, 0.0, (5.0, 7.0), (2.0, 4.0))
    batch = bandit()._replace(reward=torch.ones(64), terminated=torch.zeros(64), discount=torch.full((64,), 0.25))
    metrics = learner.update(batch)
    assert metrics["q/target"].item() == 1.5  # 1 + 0.25 * 2
    assert metrics["loss/critic"].item() == 3.5**2 + 5.5**2  # the sum of both
    assert metrics["q/mean"].item() == 6.0


def test_each_row_has_the_smaller_critic_of_its_own() -> None:
    """Linear target critics x and -x: the first is the smaller one where x is below 0, the second elsewhere."""
    learner = make(hidden=[])
    constant(learner, 0.0, (0.0, 0.0), (0.0, 0.0))
    with torch.no_grad():
        learner.target_critic.weights[0][0, 0, 0], learner.target_critic.weights[0][1, 0, 0] = 1.0, -1.0
    next_obs = torch.tensor([[2.0, 0.0], [-4.0, 0.0], [6.0, 0.0]])
    batch = bandit(3)._replace(
        next_obs=next_obs, reward=torch.ones(3), terminated=torch.zeros(3), discount=torch.full((3,), 0.25)
    )
    metrics = learner.update(batch)  # targets 1 - 0.25 * 2, 1 - 0.25 * 4 and 1 - 0.25 * 6
    assert metrics["q/target"].item() == 0.0
    assert metrics["loss/critic"].item() == pytest.approx(2 * (0.25 + 0.0 + 0.25) / 3)


def test_the_actor_climbs_the_smaller_critic() -> None:
    learner = make(critic_lr=1e-12)
    constant(learner, 0.0, (7.0, 5.0), (2.0, 4.0))
    assert learner.update(bandit())["loss/actor"].item() == pytest.approx(-5.0)


def test_the_actions_of_both_losses_have_clipped_noise() -> None:
    """Linear critics Q = a and a policy that says 0: the noise is all there is, at most 0.3 of it."""
    learner = make(hidden=[], std=10.0, std_steps=0, critic_lr=1e-12, actor_lr=1e-12)
    constant(learner, 0.0, (0.0, 0.0), (0.0, 0.0))
    for critic in (learner.critic, learner.target_critic):
        with torch.no_grad():
            critic.weights[0][:, -1] = 1.0
    batch = bandit(2000)._replace(reward=torch.zeros(2000), terminated=torch.zeros(2000), discount=torch.ones(2000))
    std = torch.tensor(10.0)
    seen = []
    original = learner.target_critic.forward
    learner.target_critic.forward = lambda obs, action: seen.append(action) or original(obs, action)  # type: ignore
    learner._critic_loss(batch.obs, batch, std)
    original = learner.critic.forward
    learner.critic.forward = lambda obs, action, frozen: seen.append(action) or original(obs, action, frozen)  # type: ignore
    learner._actor_loss(batch.obs, std)
    for action in seen:
        assert action.max().item() == pytest.approx(0.3)
        assert action.min().item() == pytest.approx(-0.3)
    assert len(seen) == 2
    assert not torch.equal(*seen)


def test_the_noise_falls_with_the_steps_of_the_policy() -> None:
    learner = make(std=1.0, std_end=0.2, std_steps=8)
    assert learner.std == 1.0
    learner.explored += 4
    assert learner.std == pytest.approx(0.6)
    assert learner.update(bandit())["policy/std"].item() == pytest.approx(0.6)
    learner.explored += 10
    assert learner.std == pytest.approx(0.2)
    constant(learner, 0.0, (0.0, 0.0), (0.0, 0.0))
    assert learner.act(torch.zeros(4000, 2), explore=True).std().item() == pytest.approx(0.2, rel=0.05)
    assert learner.act(torch.zeros(10, 2), explore=False).abs().max().item() == 0.0
    assert make(std=0.7, std_steps=0).std == 0.7


def test_convolutions_learn_by_the_critics_alone() -> None:
    """Nothing but the critics' loss moves the encoder, which all networks read and of which there is no copy."""
    learner, batch = make(PICTURE), bandit(8, PICTURE)
    names = {name.partition(".")[0] for name, _ in learner.named_parameters()}
    assert names == {"encoder", "policy", "critic", "target_critic"}
    assert not [name for name, _ in learner.target_critic.named_parameters() if "layers" in name]
    features = learner.encoder(batch.obs)
    loss, _ = learner._critic_loss(features, batch, torch.tensor(0.1))
    assert all(p.abs().sum() > 0 for p in torch.autograd.grad(loss, list(learner.encoder.parameters())))
    before = copy.deepcopy(learner)
    learner.optimizers["critic"].lr = 1e-12
    learner.update(batch)
    for ours, old in zip(learner.encoder.parameters(), before.encoder.parameters(), strict=True):
        torch.testing.assert_close(ours, old, rtol=0, atol=1e-9)
    assert not torch.equal(learner.policy.net.weights[0], before.policy.net.weights[0])


def test_each_network_has_a_trunk_of_its_own() -> None:
    learner = make(PICTURE)
    trunks = [learner.policy.net.encoder, learner.critic.encoder, learner.target_critic.encoder]
    places = [{p.data_ptr() for p in trunk.parameters()} for trunk in trunks if trunk is not None]
    assert [len(place) for place in places] == [4, 4, 4]
    assert len(set.union(*places)) == 12
    learner.update(bandit(8, PICTURE))
    assert not torch.equal(learner.policy.net.encoder.out.weight, learner.critic.encoder.out.weight)


def test_targets_follow_slowly() -> None:
    learner = make(PICTURE, tau=0.25)
    before = copy.deepcopy(learner.target_critic)
    learner.update(bandit(8, PICTURE))
    for target, old, online in zip(
        learner.target_critic.parameters(), before.parameters(), learner.critic.parameters(), strict=True
    ):
        torch.testing.assert_close(target, old.lerp(online, 0.25))


def test_everything_starts_orthogonal() -> None:
    learner = make(PICTURE)
    trunk = learner.policy.net.encoder.out.weight
    for weight in (trunk, learner.policy.net.weights[0], *learner.critic.weights[1]):
        gram = weight @ weight.t() if weight.shape[0] < weight.shape[1] else weight.t() @ weight
        torch.testing.assert_close(gram, torch.eye(len(gram)), rtol=0, atol=1e-5)
    kernels = learner.encoder.layers[2].weight.flatten(1)
    torch.testing.assert_close(kernels @ kernels.t(), 2.0 * torch.eye(4), rtol=0, atol=1e-5)
    assert all(p.abs().max() == 0 for name, p in learner.named_parameters() if "bias" in name)


def test_terminated_states_do_not_bootstrap() -> None:
    batch = bandit()
    assert make().update(batch)["q/target"].item() == pytest.approx(batch.reward.mean().item(), rel=1e-6)


def test_names_of_the_metrics() -> None:
    metrics = make().update(bandit())
    assert set(metrics) == NAMES
    assert all(v.dim() == 0 and not v.requires_grad for v in metrics.values())


@pytest.mark.parametrize("options", [{"tau": 0.0}, {"std": -1.0}, {"std_steps": -1}, {"noise_clip": -0.1}])
def test_impossible_settings_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(UserError):
        make(**options)


def test_the_config_is_the_authors() -> None:
    cfg = compose_config(["algo=drq_v2", "env=pixel_goal", "~algo_env", "env.kwargs.continuous=true"])
    assert (cfg.encoder._target_, cfg.augment._target_) == ("rlx.nn.encoders.drq", "rlx.data.augment.shift")
    assert (cfg.encoder.dim, cfg.augment.pad, cfg.replay.n_step, cfg.replay.capacity) == (50, 4, 3, 1_000_000)
    assert (cfg.algo.actor_lr, cfg.algo.critic_lr, cfg.algo.tau, cfg.algo.batch_size) == (1e-4, 1e-4, 0.01, 256)
    assert (cfg.trainer.train_frequency, cfg.trainer.gradient_updates_per_step) == (2, 0.5)
    assert cfg.algo.hidden == [1024, 1024]


def test_learns_a_bandit() -> None:
    learner = make(actor_lr=3e-4, critic_lr=3e-3, std=0.1, std_steps=0)
    for _ in range(700):
        learner.update(bandit())
    assert learner.act(torch.randn(64, 2), explore=False).mean().item() == pytest.approx(0.5, abs=0.1)


@pytest.mark.parametrize("algo", ["drq_v2", "sac"])
def test_a_killed_run_from_moved_pictures_resumes_to_the_same_bits(algo: str, tmp_path: Path) -> None:
    """DrQ on top of SAC is algo=sac augment=shift encoder=drq."""
    small = ("~algo_env", "algo.hidden=[8]", "algo.batch_size=4", "encoder.channels=4", "encoder.dim=6", "threads=1")
    images = ("env=pixel_goal", "env.kwargs.continuous=true", "env.max_episode_steps=9", "augment=shift", "encoder=drq")
    budget = (
        "trainer.max_env_steps=60", "trainer.learning_starts=20", "trainer.eval_interval=0", "trainer.eval_episodes=1",
        "trainer.checkpoint_interval=20", "trainer.log_interval=10", "logger=jsonl", "~callbacks.progress",
    )  # fmt: skip
    with snapshots(("checkpoint", 2), into=tmp_path) as at:
        result = rlx.train(f"algo={algo}", *small, *images, *budget, run_dir=tmp_path / "run")
    assert result.summary["updates"] > 10
    assert resumed(at["checkpoint", 2]).summary["resumed"]
    same_run(at["checkpoint", 2], tmp_path / "run")
