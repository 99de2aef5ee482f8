"""The script is the specification: same weights and same batches in, same losses and same weights out."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest
import references as ref
import torch
from torch import Tensor

from rlx.algos.iql import IQL
from rlx.config import compose_config, instantiate
from rlx.data.pendulum_data import pendulum_mixed

TUNED = ["algo=iql", "env=pendulum", "dataset=minari", "trainer.max_updates=10"]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return ref.load("iql_pendulum_reference")


def package_weights(learner: IQL) -> list[Tensor]:
    nets = (learner.policy.net, learner.value, learner.critic, learner.target_critic)
    return [p for net in nets for p in net.parameters()] + [learner.policy.log_std]


def script_weights(agent) -> list[Tensor]:
    critics = ref.stacked_weights_of(agent.critics) + ref.stacked_weights_of(agent.target_critics)
    return ref.weights_of(agent.actor) + ref.weights_of(agent.value_net) + critics + [agent.log_std.detach()]


def test_settings_are_those_of_the_tuned_pair(script: ModuleType):
    cfg = compose_config(TUNED)
    algo = cfg.algo
    assert algo.hidden == [script.HIDDEN] * 2
    assert algo.actor_lr == algo.critic_lr == algo.value_lr == script.LR
    assert (algo.batch_size, algo.discount, algo.tau) == (script.BATCH_SIZE, script.DISCOUNT, script.TAU)
    assert (algo.expectile, algo.beta, algo.max_weight) == (script.EXPECTILE, script.BETA, script.MAX_WEIGHT)
    assert (algo.normalize_obs, algo.dropout, algo.actor_decay_updates) == (True, 0.0, 10)
    assert cfg.reward.scale == script.REWARD_SCALE


def test_script_and_package_make_the_same_ten_updates(script: ModuleType):
    torch.manual_seed(0)
    data_obs = torch.randn(100, 3) * torch.tensor([1.0, 2.0, 5.0]) + 0.5
    agent = script.Agent(data_obs, 1, total_updates=10)  # the actor's learning rate falls to almost nothing
    learner: IQL = instantiate(compose_config(TUNED).algo, ref.PENDULUM)
    learner.set_normalizer(data_obs.mean(0), data_obs.std(0, unbiased=False))
    ours = package_weights(learner)
    ref.copy_weights(ours, script_weights(agent))
    initial = [p.detach().clone() for p in ours]
    for _ in range(10):
        batch = ref.random_batch(script.BATCH_SIZE)
        value_loss, actor_loss, critic_loss = script.update(agent, batch)
        metrics = learner.update(ref.package_batch(batch, script.DISCOUNT))
        assert metrics["loss/value"].item() == pytest.approx(value_loss, rel=1e-4)
        assert metrics["loss/actor"].item() == pytest.approx(actor_loss, rel=1e-4, abs=1e-5)
        assert metrics["loss/critic"].item() == pytest.approx(critic_loss, rel=1e-4)
        ref.assert_same_weights(ours, script_weights(agent))
    assert ref.largest_move(ours, initial) > 0.005  # they did learn


def test_script_and_package_have_the_same_data(script: ModuleType):
    data, _ = script.collect(1, seed=0)
    obs, action, reward, _, _, _ = pendulum_mixed(seed=0)[0]  # an episode of the first level
    np.testing.assert_allclose(data["obs"][:200], obs[:-1], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(data["next_obs"][:200], obs[1:], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(2 * data["action"][:200], action, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(data["reward"][:200], script.REWARD_SCALE * reward, rtol=1e-4, atol=1e-5)
    assert data["terminated"].sum() == 0


def test_script_runs_and_is_short(
    script: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(script, "EPISODES", 1)
    assert -2000 < script.main(["--total-timesteps", "1000", "--seed", "1"]) < 0
    assert "1000 updates" in capsys.readouterr().out
    assert ref.lines_of(script) <= 200
