"""On-policy algorithms learn: tuned pairs, fixed seeds, through the same door as a user."""

from __future__ import annotations

import pytest

import rlx

pytestmark = pytest.mark.learning


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("algo", "env", "env_steps", "threshold"),
    [
        ("ppo", "cartpole", 50_000, 475.0),
        ("a2c", "cartpole", 100_000, 475.0),
        ("trpo", "cartpole", 50_000, 475.0),
        ("ppo", "pendulum", 60_000, -300.0),
    ],
)
def test_reaches_the_return(algo: str, env: str, env_steps: int, threshold: float):
    result = rlx.train(
        f"algo={algo}", f"env={env}", "seed=0", "logger=none",
        f"trainer.max_env_steps={env_steps}", "trainer.eval_interval=0", "trainer.eval_episodes=20",
    )  # fmt: skip
    assert result.summary["eval_return_mean"] >= threshold
