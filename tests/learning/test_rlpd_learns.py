"""RLPD, with prior data in every batch, solves Pendulum in a budget in which SAC from scratch is nowhere near."""

from __future__ import annotations

from pathlib import Path

import pytest

import rlx

COMMON = ("env=pendulum", "threads=1", "trainer.max_env_steps=1500", "trainer.eval_interval=0", "logger=none")


@pytest.mark.learning
def test_prior_data_saves_env_steps(tmp_path: Path) -> None:
    rlpd = rlx.train("algo=rlpd", "dataset=minari", *COMMON, run_dir=tmp_path / "rlpd", seed=0)
    sac = rlx.train("algo=sac", *COMMON, run_dir=tmp_path / "sac", seed=0)
    assert rlpd.summary["eval_return_mean"] >= -250.0
    assert sac.summary["eval_return_mean"] < -500.0
