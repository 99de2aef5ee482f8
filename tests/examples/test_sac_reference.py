"""The script is the specification: same weights and same batches in, same losses and same weights out."""

from __future__ import annotations

from types import ModuleType

import pytest
import references as ref
import torch
from torch import Tensor

from rlx.algos.sac import SAC
from rlx.config import compose_config, instantiate


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return ref.load("sac_pendulum_reference")


def package_weights(learner: SAC) -> list[Tensor]:
    nets = (learner.policy.net, learner.critic, learner.target_critic)
    return [p for net in nets for p in net.parameters()] + [learner.log_alpha]


def script_weights(agent) -> list[Tensor]:
    critics = ref.stacked_weights_of(agent.critics) + ref.stacked_weights_of(agent.target_critics)
    return ref.weights_of(agent.actor) + critics + [agent.log_alpha.detach()]


def test_settings_are_those_of_the_tuned_pair(script: ModuleType):
    cfg = compose_config(["algo=sac", "env=pendulum"])
    algo = cfg.algo
    assert algo.hidden == [script.HIDDEN] * 2
    assert algo.actor_lr == algo.critic_lr == algo.alpha_lr == script.LR
    assert (algo.batch_size, algo.discount, algo.tau) == (script.BATCH_SIZE, script.DISCOUNT, script.TAU)
    assert (algo.alpha, algo.learn_alpha, algo.target_entropy, algo.normalize_obs) == (1.0, True, None, False)
    assert cfg.trainer.learning_starts == script.LEARNING_STARTS
    assert (cfg.trainer.train_frequency, cfg.trainer.gradient_updates_per_step, cfg.reward.scale) == (1, 1.0, 1.0)


def test_script_and_package_make_the_same_ten_updates(script: ModuleType):
    torch.manual_seed(0)
    agent = script.Agent(3, 1)
    learner: SAC = instantiate(compose_config(["algo=sac", "env=pendulum"]).algo, ref.PENDULUM)
    ours = package_weights(learner)
    ref.copy_weights(ours, script_weights(agent))
    initial = [p.detach().clone() for p in ours]
    for i in range(10):
        batch = ref.random_batch(script.BATCH_SIZE)
        torch.manual_seed(i)
        critic_loss, actor_loss, alpha_loss = script.update(agent, batch)
        torch.manual_seed(i)
        metrics = learner.update(ref.package_batch(batch, script.DISCOUNT))
        assert metrics["loss/critic"].item() == pytest.approx(critic_loss, rel=1e-4)
        assert metrics["loss/actor"].item() == pytest.approx(actor_loss, rel=1e-4, abs=1e-5)
        assert metrics["loss/alpha"].item() == pytest.approx(alpha_loss, rel=1e-4, abs=1e-5)
        ref.assert_same_weights(ours, script_weights(agent))
    assert ref.largest_move(ours, initial) > 0.005  # they did learn


def test_script_runs_and_is_short(script: ModuleType, capsys: pytest.CaptureFixture[str]):
    assert -2000 < script.main(["--total-timesteps", "1000", "--seed", "1"]) < 0
    assert "1000 steps" in capsys.readouterr().out
    assert ref.lines_of(script) <= 200
