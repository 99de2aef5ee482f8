"""On-policy algorithms learn: tuned pairs, fixed seeds, through the same door as a user."""

from __future__ import annotations

from pathlib import Path

import pytest

import rlx

pytestmark = pytest.mark.learning


@pytest.mark.parametrize(
    ("algo", "env", "env_steps", "threshold"),
    [
        ("ppo", "cartpole", 50_000, 475.0),
        ("a2c", "cartpole", 100_000, 475.0),
        ("trpo", "cartpole", 50_000, 475.0),
        ("pqn", "cartpole", 50_000, 400.0),
        ("ppo", "pendulum", 60_000, -300.0),
    ],
)
def test_reaches_the_return(tmp_path: Path, algo: str, env: str, env_steps: int, threshold: float):
    budget = [f"trainer.max_env_steps={env_steps}", "trainer.eval_interval=0", "trainer.eval_episodes=20"]
    result = rlx.train(f"algo={algo}", f"env={env}", *budget, "threads=1", seed=0, run_dir=tmp_path / "run")
    assert result.summary["eval_return_mean"] >= threshold
