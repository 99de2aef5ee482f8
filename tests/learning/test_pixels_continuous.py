"""Continuous actions from pictures, online with tuned pairs and from datasets: fixed seeds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from test_offline_discrete import FIXED, recorded, towards_goal, train

import rlx
from rlx.config import learners
from rlx.data import load_transition_dataset
from rlx.data.minari import Episode, write_minari
from rlx.paths import conf_dir

pytestmark = pytest.mark.learning

CONTINUOUS = "env.kwargs.continuous=true"


def straight(obs: Any) -> np.ndarray:
    """A step of at most one cell along each axis, towards the goal."""
    (y, x), (goal_y, goal_x) = (np.argwhere(obs[:, :, colour])[0] for colour in (0, 1))
    return np.clip(np.array([goal_x - x, goal_y - y], np.float32) / 2.0, -1.0, 1.0)


SMALL = ("encoder=small", "encoder.dim=64", "augment=shift", "augment.pad=1")
ONLINE = ["ddpg", "drq_v2", "redq", "sac", "td3", "tqc"]
OFFLINE = ["awac", "bc", "iql", "td3_bc"]
BOTH = ["rlpd"]


@pytest.mark.parametrize("algo", ONLINE)
def test_reaches_the_goal(algo: str, tmp_path: Path) -> None:
    """A random policy returns -0.5, one that misses the goal -1, the best one 0.88."""
    chosen = (f"algo={algo}", "env=pixel_goal", CONTINUOUS, *SMALL, "trainer.eval_episodes=30")
    result = rlx.train(*chosen, *FIXED, run_dir=tmp_path / "run", seed=0)
    assert result.summary["eval_return_mean"] >= 0.4


def test_every_learner_of_continuous_actions_from_pictures_is_here() -> None:
    readers = {n for n, cls in learners().items() if cls.images and cls.actions == ("box",)} | {"bc"}
    assert readers == {*ONLINE, *OFFLINE, *BOTH}
    assert all((conf_dir() / "algo_env" / f"{algo}_pixel_goal.yaml").exists() for algo in ONLINE)


@pytest.mark.parametrize("algo", ["bc", "iql"])
def test_learns_from_a_dataset_of_pictures(algo: str, tmp_path: Path) -> None:
    env = gym.make("rlx/PixelGoal-v0", continuous=True)
    behaviour = recorded(tmp_path / "data.npz", env, straight, noise=0.5, steps=12_000)
    rates = {"bc": ("algo.lr=2e-3",), "iql": ("algo.actor_lr=2e-3", "algo.critic_lr=2e-3", "algo.value_lr=2e-3")}[algo]
    few = ("algo.hidden=[]", "algo.batch_size=64", "algo.discount=0.9", "trainer.max_updates=1500", "schedule=linear")
    score = train(tmp_path / "run", algo, "pixel_goal", tmp_path / "data.npz", CONTINUOUS, *rates, *few)
    # cloning averages the noise away; IQL has come more than half of the way from a random policy's -0.5
    assert score > (behaviour if algo == "bc" else 0.2)


@pytest.mark.parametrize(
    ("algo", "more"),
    [
        ("awac", ("algo.actor_lr=2e-3", "algo.temperature=0.05", "trainer.max_updates=2000")),
        ("td3_bc", ("algo.actor_lr=1e-3", "algo.normalize_obs=false", "trainer.max_updates=3000", *SMALL[2:])),
    ],
)
def test_does_better_than_noisy_pictures(algo: str, more: tuple[str, ...], tmp_path: Path) -> None:
    """Four of five actions are random and return 0.42; their mean, which cloning learns, is slow and returns 0.11."""
    env = gym.make("rlx/PixelGoal-v0", continuous=True)
    behaviour = recorded(tmp_path / "data.npz", env, straight, noise=0.8, steps=20_000)
    assert behaviour < 0.45
    few = ("algo.hidden=[64]", "algo.batch_size=64", "algo.discount=0.9", "algo.critic_lr=2e-3", "algo.tau=0.05")
    chosen = (CONTINUOUS, *SMALL[:2], *few, "schedule=linear")
    assert train(tmp_path / "run", algo, "pixel_goal", tmp_path / "data.npz", *chosen, *more) > 0.55


@pytest.mark.parametrize("algo", BOTH)
def test_reaches_the_goal_with_prior_pictures_in_every_batch(algo: str, tmp_path: Path) -> None:
    """Every other action of the prior data is random, and they return 0.79; a random policy returns -0.5."""
    env = gym.make("rlx/PixelGoal-v0", continuous=True)
    recorded(tmp_path / "data.npz", env, straight, noise=0.5, steps=20_000)
    few = (
        "algo.hidden=[64]", "algo.batch_size=64", "algo.discount=0.9", "algo.actor_lr=1e-3", "algo.critic_lr=2e-3",
        "algo.alpha=0.02", "algo.alpha_lr=1e-9", "algo.critics=4", "algo.policy_delay=1", "algo.tau=0.05",
        "env.num_envs=32", "replay.n_step=3", "schedule=linear", "trainer.max_env_steps=45000",
        "trainer.train_frequency=1", "trainer.gradient_updates_per_step=0.1", "trainer.learning_starts=1000",
    )  # fmt: skip
    assert train(tmp_path / "run", algo, "pixel_goal", tmp_path / "data.npz", CONTINUOUS, *SMALL, *few) >= 0.6


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
