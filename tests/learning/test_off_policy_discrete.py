"""DQN, also by priorities, its distributional kin and Discrete SAC learn to balance a pole."""

from __future__ import annotations

from pathlib import Path

import pytest

import rlx

COMMON = ("env=cartpole", "threads=1", "trainer.eval_interval=0", "trainer.checkpoint_interval=0")


@pytest.mark.learning
@pytest.mark.parametrize(
    ("algo", "replay"),
    [
        ("dqn", "uniform"),
        ("dqn", "prioritized"),
        ("c51", "uniform"),
        ("qr_dqn", "uniform"),
        ("rainbow", "prioritized"),
        ("discrete_sac", "uniform"),
    ],
)
def test_solves_cartpole(algo: str, replay: str, tmp_path: Path) -> None:
    """Importance weights turned upside down show here; priorities turned upside down only in tests/data."""
    result = rlx.train(f"algo={algo}", f"replay={replay}", *COMMON, run_dir=tmp_path / "run", seed=0)
    assert result.summary["eval_return_mean"] >= 400.0
