"""Everything that learns discrete actions from pixels moves a square to its goal: tuned pairs, fixed seeds."""

from __future__ import annotations

from pathlib import Path

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
    "rainbow": ("replay.beta_batches=3600",),  # all batches of the run: importance weights are whole at its end
}
UNTRIED = {"trpo"}  # too slow here; its networks and rollouts are those of A2C and PPO


@pytest.mark.learning
@pytest.mark.parametrize("algo", ALGORITHMS)
def test_reaches_the_goal(algo: str, tmp_path: Path) -> None:
    """A random policy returns -0.66, one that misses the goal -1, the best one 0.83."""
    budget = ("trainer.eval_interval=0", "trainer.checkpoint_interval=0", "trainer.eval_episodes=30")
    result = rlx.train(f"algo={algo}", "env=pixel_goal", "threads=1", *budget, *ALGORITHMS[algo],
                       run_dir=tmp_path / "run", seed=0)  # fmt: skip
    assert result.summary["eval_return_mean"] >= 0.6


def test_every_online_learner_of_discrete_actions_from_pixels_is_here() -> None:
    online = {"off_policy", "on_policy"}
    readers = {
        n for n, cls in learners().items() if cls.images and "discrete" in cls.actions and cls.regimes[0] in online
    }
    assert readers - set(ALGORITHMS) <= UNTRIED
    assert all((conf_dir() / "algo_env" / f"{algo}_pixel_goal.yaml").exists() for algo in ALGORITHMS)
