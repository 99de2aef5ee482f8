"""Off-policy learners of continuous actions solve Pendulum with their tuned pairs, at the smallest reliable budgets."""

from __future__ import annotations

from pathlib import Path

import pytest

import rlx

BUDGETS = {  # env steps after which three seeds out of three were above -200 (SAC: sixteen of sixteen above -211)
    "sac": 6000,
    "td3": 6000,
    "ddpg": 4000,
    "tqc": 4000,
    "redq": 2000,
}
QUICK = ("threads=1", "logger=jsonl", "~callbacks.progress", "trainer.eval_interval=0", "trainer.checkpoint_interval=0")


@pytest.mark.learning
@pytest.mark.parametrize("algo", BUDGETS)
def test_solves_pendulum(algo: str, tmp_path: Path) -> None:
    budget = f"trainer.max_env_steps={BUDGETS[algo]}"
    result = rlx.train(f"algo={algo}", "env=pendulum", *QUICK, budget, run_dir=tmp_path / algo, seed=0)
    assert result.summary["env_steps"] == BUDGETS[algo]
    assert result.summary["eval_return_mean"] >= -250.0
