"""A policy with memory learns what no policy without can, in the same budget."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import rlx

pytestmark = pytest.mark.learning
PLAIN = ("algo=ppo", "env.num_envs=16", "trainer.rollout_length=32", "algo.lr=1e-3", "algo.batch_size=256")


def final_return(run_dir: Path, *overrides: str) -> Any:
    more = ("trainer.eval_interval=0", "trainer.eval_episodes=50", "threads=1", "logger=jsonl")
    return rlx.train(*overrides, *more, run_dir=run_dir, seed=0).summary["eval_return_mean"]


def test_a_cue_is_remembered(tmp_path: Path):
    """One of four cues, seen nine steps before it has to be chosen: without memory, one choice in four is right."""
    task = ("env=recall", "trainer.max_env_steps=30000")
    assert final_return(tmp_path / "lstm", "algo=ppo_lstm", *task) >= 0.95
    assert final_return(tmp_path / "plain", *PLAIN, "algo.discount=0.95", "algo.entropy_coef=0.01", *task) <= 0.5


def test_a_pole_is_balanced_without_seeing_velocities(tmp_path: Path):
    task = ("env=cartpole_hidden", "trainer.max_env_steps=30000")
    assert final_return(tmp_path / "lstm", "algo=ppo_lstm", *task) >= 150.0
    assert final_return(tmp_path / "plain", *PLAIN, "algo.discount=0.98", "algo.gae_lambda=0.8", *task) <= 75.0
