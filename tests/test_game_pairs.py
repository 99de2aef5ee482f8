"""The tuned pairs of Atari and MinAtar run: small networks, few envs and short budgets, everything else as tuned."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from omegaconf import OmegaConf

import rlx
from rlx.choices import choices
from rlx.config import compose_config, learners
from rlx.paths import conf_dir
from rlx.types import Batch

PACKAGES = {"atari": "ale_py", "minatar": "minatar"}
ALGORITHMS = ("a2c", "c51", "discrete_sac", "dqn", "ppo", "pqn", "qr_dqn", "rainbow")
SMALL = {
    "atari": ("encoder=nature", "encoder.channels=[4,4,4]", "encoder.dim=16", "env.kwargs.size=36"),
    "minatar": ("encoder=small", "encoder.channels=4", "encoder.dim=16"),
}
SHORT = (
    "env.num_envs=4", "env.max_episode_steps=30", "algo.batch_size=32", "replay.capacity=1000", "logger=none",
    "trainer.max_env_steps=512", "trainer.rollout_length=16", "trainer.learning_starts=112", "trainer.eval_episodes=2",
    "trainer.eval_interval=0", "trainer.checkpoint_interval=0", "threads=1",
)  # fmt: skip


def test_every_learner_of_games_has_both_pairs() -> None:
    pairs = {f"{algo}_{suite}" for algo in ALGORITHMS for suite in PACKAGES}
    assert pairs == {name for name in choices("algo_env") if name.endswith(("_atari", "_minatar"))}


@pytest.mark.parametrize("suite", PACKAGES)
@pytest.mark.parametrize("algo", ALGORITHMS)
def test_a_pair_runs(algo: str, suite: str, tmp_path: Path) -> None:
    if importlib.util.find_spec(PACKAGES[suite]) is None:
        pytest.skip(f"{PACKAGES[suite]} is not installed")
    chosen = (f"algo={algo}", f"env={suite}")
    cfg = compose_config(chosen)
    assert cfg.algo.hidden == []  # the encoder's features are the one hidden layer
    assert cfg.reward.sign == (suite == "atari")
    assert cfg.trainer.max_env_steps >= 5_000_000
    result = rlx.train(*chosen, *SHORT, *SMALL[suite], run_dir=tmp_path / "run", seed=0, quiet=True)
    every_four_steps = (512 - 112) // 4
    rollouts = 512 // (16 * 4)
    name = "c51" if algo == "rainbow" else algo
    assert result.summary["updates"] == (every_four_steps if learners()[name].reads is Batch else rollouts)


def test_settings_that_their_sources_count_otherwise() -> None:
    """CleanRL's 0.5 is of half the squared error, Dopamine's priorities are roots of the loss."""
    assert compose_config(["algo=ppo", "env=atari"]).algo.value_coef == 0.25
    assert [compose_config(["algo=rainbow", f"env={suite}"]).replay.alpha for suite in PACKAGES] == [0.5, 0.5]


@pytest.mark.parametrize("pair", choices("algo_env"))
def test_a_pair_leaves_the_encoder_and_the_augmentation_to_choose(pair: str) -> None:
    """Each choice has keys of its own, so a pair that sets one could not run with the others."""
    assert not OmegaConf.load(conf_dir() / "algo_env" / f"{pair}.yaml").keys() & {"encoder", "augment"}


@pytest.mark.parametrize(("env", "steps"), [("dmc", 550_000), ("pixel_goal", 45_000)])
@pytest.mark.parametrize("encoder", choices("encoder"))
def test_drq_v2_takes_any_encoder(encoder: str, env: str, steps: int) -> None:
    cfg = compose_config(["algo=drq_v2", f"env={env}", f"encoder={encoder}", "augment=none"])
    assert cfg.trainer.max_env_steps == steps  # the pair is there


def test_drq_v2_learns_from_states(tmp_path: Path) -> None:
    if importlib.util.find_spec("dm_control") is None:
        pytest.skip("dm_control is not installed")
    chosen = ("algo=drq_v2", "env=dmc", "env.kwargs.observe=state", "encoder=auto", "augment=none")
    small = ("algo.hidden=[8]", "trainer.learning_starts=8", "trainer.max_env_steps=16")
    result = rlx.train(*chosen, *SHORT, *small, "env.num_envs=1", run_dir=tmp_path / "run", seed=0, quiet=True)
    assert result.summary["env_steps"] == 16


@pytest.mark.parametrize(("suite", "end"), [("minatar", 0.05), ("atari", 0.001)])
def test_pqn_explores_for_a_tenth_of_any_budget(suite: str, end: float) -> None:
    """The schedule's clock is a fraction of the run, so that a shorter run is not all exploration."""
    target = compose_config(["algo=pqn", f"env={suite}", "trainer.max_env_steps=4096"]).schedule.targets.epsilon
    assert (target.start, target.end, target.horizon) == (1.0, end, 0.1)
