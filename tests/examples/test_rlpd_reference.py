"""The script is the specification: same weights and same batches in, same losses and same weights out."""

from __future__ import annotations

from types import ModuleType

import pytest
import references as ref
import torch
from torch import Tensor

from rlx.algos.rlpd import RLPD
from rlx.config import compose_config, instantiate

TUNED = ["algo=rlpd", "env=pendulum", "dataset=minari"]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return ref.load("rlpd_pendulum_reference")


def package_weights(learner: RLPD) -> list[Tensor]:
    nets = (learner.policy.net, learner.critic, learner.target_critic)
    return [p for net in nets for p in net.parameters()] + [learner.log_alpha]


def script_weights(agent) -> list[Tensor]:
    critics = ref.stacked_weights_of(agent.critics) + ref.stacked_weights_of(agent.target_critics)
    return ref.weights_of(agent.actor) + critics + [agent.log_alpha.detach()]


def test_settings_are_those_of_the_tuned_pair(script: ModuleType):
    cfg = compose_config(TUNED)
    algo, trainer = cfg.algo, cfg.trainer
    assert algo.hidden == [script.HIDDEN] * 2
    assert algo.actor_lr == algo.critic_lr == algo.alpha_lr == script.LR
    assert (algo.batch_size, algo.discount, algo.tau) == (script.BATCH_SIZE, script.DISCOUNT, script.TAU)
    assert (algo.critics, algo.subset, algo.policy_delay) == (script.CRITICS, script.SUBSET, script.UPDATES_PER_STEP)
    assert (algo.alpha, algo.target_entropy, algo.backup_entropy, algo.normalize_obs) == (1.0, None, True, False)
    assert (trainer.learning_starts, trainer.gradient_updates_per_step, trainer.offline_batch_ratio) == (
        script.LEARNING_STARTS, script.UPDATES_PER_STEP, 0.5,
    )  # fmt: skip
    assert (trainer.pretrain_updates, trainer.train_frequency, cfg.reward.scale) == (0, 1, 1.0)


def test_script_and_package_make_the_same_first_updates(script: ModuleType):
    torch.manual_seed(0)
    agent = script.Agent(3, 1)
    learner: RLPD = instantiate(compose_config(TUNED).algo, ref.PENDULUM)
    ours = package_weights(learner)
    ref.copy_weights(ours, script_weights(agent))
    initial = [p.detach().clone() for p in ours]
    for i in range(12):  # three env steps: three updates of the actor
        batch = ref.random_batch(script.BATCH_SIZE)
        torch.manual_seed(i)
        losses = script.update(agent, batch, last=i % 4 == 3)
        torch.manual_seed(i)
        metrics = learner.update(ref.package_batch(batch, script.DISCOUNT))
        assert {name for name in metrics if name.startswith("loss/")} == {f"loss/{name}" for name in losses}
        for name, loss in losses.items():
            assert metrics[f"loss/{name}"].item() == pytest.approx(loss, rel=1e-4, abs=1e-5)
        ref.assert_same_weights(ours, script_weights(agent))
    assert learner.log_alpha.item() != 0.0
    assert ref.largest_move(ours, initial) > 0.005  # they did learn


def test_batches_are_half_prior_data(script: ModuleType):
    prior = {name: torch.ones(5, *shape) for name, shape in zip(script.FIELDS, [(3,), (1,), (), (3,), ()], strict=True)}
    zeros = torch.zeros(3).numpy()
    batch = script.sample(prior, [(zeros, zeros[:1], 0.0, zeros, False)] * 7)
    assert {name: column.mean().item() for name, column in batch.items()} == dict.fromkeys(script.FIELDS, 0.5)
    assert batch["obs"].shape == (script.BATCH_SIZE, 3)


def test_script_runs_and_is_short(
    script: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(script, "PRIOR_EPISODES", 1)
    assert -2000 < script.main(["--total-timesteps", "250", "--seed", "1"]) < 0
    assert "250 steps" in capsys.readouterr().out
    assert ref.lines_of(script) <= 200
