"""Discrete actions, offline first and then online: fine-tuning improves on the policy of the data."""

from __future__ import annotations

from pathlib import Path

import gymnasium as gym
import pytest

import rlx
from tests.learning.test_offline_discrete import (
    FIXED,
    VECTORS,
    every_algorithm,
    recorded,
    towards_upright,
)

pytestmark = pytest.mark.learning


def fine_tune(run_dir: Path, algo: str, env: str, data: Path, *overrides: str) -> tuple[float, float]:
    """Returns of the policy after the offline updates, and at the end."""
    source = (f"algo={algo}", f"env={env}", "~algo_env", "dataset=npz", f"dataset.path={data}")
    regime = (*source, "trainer=offline_to_online", *FIXED, "trainer.eval_episodes=20", *overrides)
    offline = rlx.train(*regime, "trainer.max_env_steps=1", run_dir=run_dir / "offline", seed=0)
    online = rlx.train(*regime, run_dir=run_dir / "online", seed=0)
    return float(offline.summary["eval_return_mean"]), float(online.summary["eval_return_mean"])


@every_algorithm
def test_balances_better_after_fine_tuning(algo: str, tmp_path: Path) -> None:
    behaviour = recorded(tmp_path / "data.npz", gym.make("CartPole-v1"), towards_upright, noise=0.9, steps=2000)
    assert behaviour < 30.0
    budget = ("trainer.pretrain_updates=500", "trainer.max_env_steps=3000")
    small = ("algo.hidden=[64,64]", "algo.discount=0.97", "algo.batch_size=64")
    offline, online = fine_tune(tmp_path, algo, "cartpole", tmp_path / "data.npz", *small, *budget, *VECTORS[algo])
    assert online > 1.3 * offline
    assert online > 90.0
