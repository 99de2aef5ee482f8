"""CrossQ learns to swing up a pendulum."""

from __future__ import annotations

from pathlib import Path

import pytest

import rlx


@pytest.mark.learning
def test_crossq_solves_pendulum(tmp_path: Path) -> None:
    result = rlx.train(
        "algo=crossq",
        "env=pendulum",
        "threads=1",
        "trainer.max_env_steps=4000",
        "trainer.eval_interval=0",
        "trainer.checkpoint_interval=0",
        run_dir=tmp_path / "run",
        seed=0,
    )
    assert result.summary["eval_return_mean"] >= -250.0
