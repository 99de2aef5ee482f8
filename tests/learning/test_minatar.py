"""Breakout of MinAtar, 10 x 10 pixels: PQN with its tuned pair, fewer envs, a higher rate and a short budget."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

import rlx


@pytest.mark.learning
@pytest.mark.skipif(importlib.util.find_spec("minatar") is None, reason="minatar is not installed")
def test_pqn_plays_breakout(tmp_path: Path) -> None:
    """A random policy returns 0.5. Epsilon and the learning rate fall with the budget, as the pair says."""
    chosen = ("algo=pqn", "env=minatar", "env.game=breakout", "env.num_envs=64", "algo.lr=1e-3", "threads=1")
    budget = ("trainer.max_env_steps=300000", "trainer.rollout_length=16", "trainer.eval_episodes=50")
    rest = ("trainer.eval_interval=0", "trainer.checkpoint_interval=0")
    result = rlx.train(*chosen, *budget, *rest, run_dir=tmp_path / "run", seed=0)
    assert result.summary["eval_return_mean"] >= 5.0
