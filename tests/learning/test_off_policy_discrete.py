"""DQN and Discrete SAC learn to balance a pole."""

from __future__ import annotations

from pathlib import Path

import pytest

import rlx

COMMON = ("env=cartpole", "threads=1", "trainer.eval_interval=0", "trainer.checkpoint_interval=0")


@pytest.mark.learning
@pytest.mark.parametrize("algo", ["dqn", "discrete_sac"])
def test_solves_cartpole(algo: str, tmp_path: Path) -> None:
    result = rlx.train(f"algo={algo}", *COMMON, run_dir=tmp_path / "run", seed=0)
    assert result.summary["eval_return_mean"] >= 400.0
