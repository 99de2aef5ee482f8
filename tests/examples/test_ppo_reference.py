"""The script is the specification: same weights and same rollouts in, same losses and same weights out."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import gymnasium as gym
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import Tensor, nn

from rlx.algos.ppo import PPO
from rlx.config import compose_config, instantiate
from rlx.types import Rollout, Spec

PATH = Path(__file__).parents[2] / "examples" / "ppo_cartpole_reference.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("ppo_cartpole_reference", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def package_learner() -> PPO:
    """PPO as `algo=ppo env=cartpole` configures it."""
    cfg = compose_config(["algo=ppo", "env=cartpole"])
    return instantiate(cfg.algo, Spec("CartPole-v1", (4,), "float32", "discrete", (), action_sizes=(2,)))


def weights_of(net: nn.Sequential) -> list[Tensor]:
    """In the order of the package: [in, out] weights first, then biases."""
    layers = [m for m in net if isinstance(m, nn.Linear)]
    return [layer.weight.detach().T for layer in layers] + [layer.bias.detach() for layer in layers]


def test_settings_are_those_of_the_tuned_pair(script: ModuleType):
    cfg = compose_config(["algo=ppo", "env=cartpole"])
    algo = cfg.algo
    assert (cfg.env.num_envs, cfg.trainer.rollout_length) == (script.NUM_ENVS, script.ROLLOUT_LENGTH)
    assert (algo.epochs, algo.batch_size, algo.lr, algo.clip_range) == (
        script.EPOCHS, script.BATCH_SIZE, script.LR, script.CLIP_RANGE,
    )  # fmt: skip
    assert (algo.discount, algo.gae_lambda, algo.value_coef, algo.max_grad_norm) == (
        script.DISCOUNT, script.GAE_LAMBDA, script.VALUE_COEF, script.MAX_GRAD_NORM,
    )  # fmt: skip
    assert algo.entropy_coef == 0.0
    assert (cfg.schedule.kind.value, cfg.schedule.targets.clip_range.kind) == ("linear", "linear")


def test_script_and_package_make_the_same_ten_updates(script: ModuleType):
    torch.manual_seed(0)
    agent, learner = script.Agent(4, 2), package_learner()
    optimizer = script.make_optimizer(agent)
    ours = [*learner.policy.net.parameters(), *learner.critic.parameters()]
    with torch.no_grad():
        for p, q in zip(ours, weights_of(agent.actor) + weights_of(agent.critic), strict=True):
            p.copy_(q)
    initial = [p.detach().clone() for p in ours]
    envs = SyncVectorEnv(
        [lambda: gym.make("CartPole-v1", max_episode_steps=25)] * script.NUM_ENVS,  # short: truncations occur
        autoreset_mode=AutoresetMode.SAME_STEP,
    )
    obs, _ = envs.reset(seed=0)
    truncations = 0.0
    for i in range(10):
        remaining = 1 - i / 10
        rollout, obs = script.collect(envs, agent, obs)
        truncations += rollout["truncated"].sum().item()
        torch.manual_seed(i)
        optimizer.param_groups[0]["lr"] = script.LR * remaining
        policy_loss, value_loss = script.update(agent, optimizer, rollout, script.CLIP_RANGE * remaining)
        torch.manual_seed(i)
        learner.optimizers["policy"].scale = remaining
        learner.cfg.clip_range = script.CLIP_RANGE * remaining
        metrics = learner.update(Rollout(**rollout))
        assert metrics["loss/policy"].item() == pytest.approx(policy_loss, rel=1e-3, abs=1e-5)
        assert metrics["loss/value"].item() == pytest.approx(value_loss, rel=1e-4)
        for p, q in zip(ours, weights_of(agent.actor) + weights_of(agent.critic), strict=True):
            torch.testing.assert_close(p.detach(), q, rtol=1e-4, atol=1e-5)
    envs.close()
    assert truncations > 0
    assert max((p.detach() - q).abs().max() for p, q in zip(ours, initial, strict=True)) > 0.05  # they did learn


def test_script_runs_and_is_short(script: ModuleType, capsys: pytest.CaptureFixture[str]):
    assert script.main(["--total-timesteps", "5120", "--seed", "1"]) > 0
    assert "5120 steps" in capsys.readouterr().out
    assert len(PATH.read_text().splitlines()) <= 200
