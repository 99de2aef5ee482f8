"""HER reaches the goals of a sparse env in a budget in which SAC without it does not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import rlx


def success_rate(run_dir: Path, replay: str) -> float:
    budget = ["trainer.max_env_steps=2500", "trainer.eval_interval=0", "threads=1"]
    rlx.train("algo=her", "env=point_goal", f"replay={replay}", *budget, run_dir=run_dir, seed=0)
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return rows[-1]["eval/success_rate"]


@pytest.mark.learning
def test_her_reaches_goals_that_plain_sac_does_not(tmp_path: Path):
    assert success_rate(tmp_path / "her", "hindsight") >= 0.8
    assert success_rate(tmp_path / "sac", "uniform") < 0.3
