"""Everything that learns discrete actions from pixels moves a square to its goal: tuned pairs, fixed seeds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import rlx
from rlx.config import learners
from rlx.paths import conf_dir

ALGORITHMS: dict[str, tuple[str, ...]] = {  # and what each of them is given besides its pair
    "a2c": (),
    "c51": (),
    "discrete_sac": (),
    "dqn": (),
    "ppo": (),
    "ppo_lstm": (),
    "pqn": (),
    "qr_dqn": (),
    "rainbow": ("replay.beta_batches=5400",),  # all batches of the run: importance weights are whole at its end
    "trpo": (),
}


def final_return(run_dir: Path, algo: str, *overrides: str, env: str = "pixel_goal") -> Any:
    budget = ("trainer.eval_interval=0", "trainer.checkpoint_interval=0", "trainer.eval_episodes=30")
    chosen = (f"algo={algo}", f"env={env}", "threads=1", *budget)
    return rlx.train(*chosen, *overrides, run_dir=run_dir, seed=0).summary["eval_return_mean"]


@pytest.mark.learning
@pytest.mark.parametrize("algo", ALGORITHMS)
def test_reaches_the_goal(algo: str, tmp_path: Path) -> None:
    """A random policy returns -0.66, one that misses the goal -1, the best one 0.83."""
    assert final_return(tmp_path / "run", algo, *ALGORITHMS[algo]) >= 0.6


@pytest.mark.learning
def test_noise_on_weights_explores_as_well(tmp_path: Path) -> None:
    """The pair of DQN with noise in place of epsilon."""
    assert final_return(tmp_path / "run", "dqn", "algo.noisy=true") >= 0.6


@pytest.mark.learning
def test_a_corner_that_was_shown_once_is_found(tmp_path: Path) -> None:
    """The best return is 0.75, and 0.453 is the most that a policy without memory can have."""
    assert final_return(tmp_path / "run", "ppo_lstm", env="pixel_memory") >= 0.6


def test_every_online_learner_of_discrete_actions_from_pixels_is_here() -> None:
    online = {"off_policy", "on_policy"}
    readers = {
        n for n, cls in learners().items() if cls.images and "discrete" in cls.actions and cls.regimes[0] in online
    }
    assert readers <= set(ALGORITHMS)
    assert all((conf_dir() / "algo_env" / f"{algo}_pixel_goal.yaml").exists() for algo in ALGORITHMS)
