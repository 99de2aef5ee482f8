"""Continuous actions from pictures: DrQ-v2 online, BC and IQL from datasets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from test_offline_discrete import FIXED, recorded, towards_goal, train

import rlx
from rlx.data import load_transition_dataset
from rlx.data.minari import Episode, write_minari

pytestmark = pytest.mark.learning

CONTINUOUS = "env.kwargs.continuous=true"


def straight(obs: Any) -> np.ndarray:
    """A step of at most one cell along each axis, towards the goal."""
    (y, x), (goal_y, goal_x) = (np.argwhere(obs[:, :, colour])[0] for colour in (0, 1))
    return np.clip(np.array([goal_x - x, goal_y - y], np.float32) / 2.0, -1.0, 1.0)


def test_drq_v2_reaches_the_goal(tmp_path: Path) -> None:
    """A random policy returns -0.7, one that misses the goal -1, the best one 0.88."""
    chosen = ("algo=drq_v2", "env=pixel_goal", "encoder=small", "trainer.eval_episodes=30")
    result = rlx.train(*chosen, *FIXED, run_dir=tmp_path / "run", seed=0)
    assert result.summary["eval_return_mean"] >= 0.4


@pytest.mark.parametrize("algo", ["bc", "iql"])
def test_learns_from_a_dataset_of_pictures(algo: str, tmp_path: Path) -> None:
    env = gym.make("rlx/PixelGoal-v0", continuous=True)
    behaviour = recorded(tmp_path / "data.npz", env, straight, noise=0.5, steps=12_000)
    rates = {"bc": ("algo.lr=2e-3",), "iql": ("algo.actor_lr=2e-3", "algo.critic_lr=2e-3", "algo.value_lr=2e-3")}[algo]
    few = ("algo.hidden=[]", "algo.batch_size=64", "algo.discount=0.9", "trainer.max_updates=1500", "schedule=linear")
    score = train(tmp_path / "run", algo, "pixel_goal", tmp_path / "data.npz", CONTINUOUS, *rates, *few)
    # cloning averages the noise away; IQL has come more than half of the way from a random policy's -0.7
    assert score > (behaviour if algo == "bc" else 0.2)


def test_cloning_reads_pictures_of_minari(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which keeps them as JPEG, hence not as they were."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    recorded(tmp_path / "data.npz", gym.make("rlx/PixelGoal-v0"), towards_goal, noise=0.3, steps=6000)
    data = load_transition_dataset(tmp_path / "data.npz")
    episodes = [
        Episode(
            np.concatenate([data.obs[start:stop], data.next_obs[stop - 1 : stop]]), data.action[start:stop],
            data.reward[start:stop], data.terminated[start:stop] > 0, data.truncated[start:stop] > 0,
        )
        for start, stop in data.episodes
    ]  # fmt: skip
    about = {"algorithm": "towards the goal", "description": "noisy"}
    write_minari("toy/goal-v0", episodes, "rlx/PixelGoal-v0", tmp_path, **about)
    few = ("algo.lr=2e-3", "algo.hidden=[]", "algo.batch_size=64", "trainer.max_updates=1200", "schedule=linear")
    source = ("dataset=minari", "dataset.id=toy/goal-v0", "env=pixel_goal", "trainer.eval_episodes=20")
    result = rlx.train("algo=bc", *source, *FIXED, *few, run_dir=tmp_path / "run", seed=0)
    assert result.summary["eval_return_mean"] > 0.5
