"""A policy with memory learns what no policy without can, in the same budget."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import rlx

pytestmark = pytest.mark.learning
PLAIN = ("algo=ppo", "trainer.rollout_length=64", "algo.batch_size=256")  # everything else as with memory


def final_return(run_dir: Path, *overrides: str) -> Any:
    more = ("trainer.eval_interval=0", "trainer.eval_episodes=50", "threads=1", "logger=jsonl")
    return rlx.train(*overrides, *more, run_dir=run_dir, seed=0).summary["eval_return_mean"]


def test_a_cue_is_remembered(tmp_path: Path):
    """One of four cues, chosen eight steps after it was seen: without memory, one choice in four is right."""
    task = ("env=recall", "env.num_envs=16", "trainer.max_env_steps=30000", "algo.lr=1e-3", "algo.discount=0.95")
    assert final_return(tmp_path / "lstm", "algo=ppo_lstm", *task) >= 0.95
    assert final_return(tmp_path / "plain", *PLAIN, "algo.entropy_coef=0.01", *task) <= 0.45


def test_a_pole_is_balanced_without_seeing_velocities(tmp_path: Path):
    task = (
        "env=cartpole_hidden", "env.num_envs=8", "trainer.max_env_steps=30000", "reward=running_norm", "algo.lr=2e-3",
        "algo.normalize_obs=true", "schedule=linear",
    )  # fmt: skip
    assert final_return(tmp_path / "lstm", "algo=ppo_lstm", *task) >= 400.0
    assert final_return(tmp_path / "plain", *PLAIN, "algo.gae_lambda=0.9", *task) <= 75.0
