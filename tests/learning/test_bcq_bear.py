"""BCQ and BEAR on Pendulum: each does clearly better than the behaviour that it learned from."""

from __future__ import annotations

from pathlib import Path

import pytest

import rlx
from rlx.data.sources import load_transition_dataset

BUDGET = ("env=pendulum", "threads=1", "trainer.max_updates=2400")
MARGIN = 200.0  # of about 350 between the behaviour's mean return and a solved pendulum


@pytest.mark.learning
@pytest.mark.parametrize("algo", ["bcq", "bear"])
def test_beats_the_behaviour_of_the_built_in_set(algo: str, tmp_path: Path) -> None:
    run = rlx.train(f"algo={algo}", *BUDGET, "dataset=minari", run_dir=tmp_path / "run", seed=0)
    behaviour = float(load_transition_dataset("rlx/pendulum/mixed-v0").returns().mean())
    assert -540.0 < behaviour < -480.0
    assert run.summary["eval_return_mean"] > behaviour + MARGIN


@pytest.mark.learning
@pytest.mark.parametrize("algo", ["bcq", "bear"])
def test_beats_the_behaviour_of_recorded_data(algo: str, tmp_path: Path, shared_data: Path) -> None:
    path = shared_data / "pendulum-rllib-sac-medium.npz"
    data = ("dataset=npz", f"dataset.path={path}")
    run = rlx.train(f"algo={algo}", *BUDGET, *data, run_dir=tmp_path / "run", seed=0)
    assert run.summary["eval_return_mean"] > float(load_transition_dataset(path).returns().mean()) + MARGIN
