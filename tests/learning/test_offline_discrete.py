"""Discrete actions from datasets, of vectors and of pictures: every algorithm does better than what it learned from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import rlx
from rlx.data import load_transition_dataset

pytestmark = pytest.mark.learning

ALGORITHMS = ["discrete_cql", "discrete_bcq", "discrete_iql"]
FIXED = ("threads=1", "logger=none", "trainer.eval_interval=0", "trainer.checkpoint_interval=0")
every_algorithm = pytest.mark.parametrize("algo", ALGORITHMS)


def recorded(path: Path, env: gym.Env[Any, Any], act: Callable[[Any], Any], noise: float, steps: int) -> float:
    """Write what a policy does with so many actions at random; the mean return of its whole episodes."""
    rng = np.random.default_rng(0)
    env.action_space.seed(0)
    rows: list[tuple[Any, ...]] = []
    returns = [0.0]
    obs, _ = env.reset(seed=0)
    for _ in range(steps):
        action = env.action_space.sample() if rng.random() < noise else act(obs)
        next_obs, reward, terminated, truncated, _ = env.step(action)
        rows.append((obs, action, reward, next_obs, terminated, truncated))
        returns[-1] += float(reward)
        obs = next_obs
        if terminated or truncated:
            returns.append(0.0)
            obs, _ = env.reset()
    names = ("obs", "action", "reward", "next_obs", "terminated", "truncated")
    np.savez(path, **{name: np.array(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)})
    return float(np.mean(returns[:-1]))


def train(run_dir: Path, algo: str, env: str, data: Path, *overrides: str) -> float:
    source = (f"algo={algo}", f"env={env}", "dataset=npz", f"dataset.path={data}", "~algo_env")
    result = rlx.train(*source, *FIXED, "trainer.eval_episodes=20", *overrides, run_dir=run_dir, seed=0)
    return float(result.summary["eval_return_mean"])


def towards_upright(obs: np.ndarray) -> int:
    return int(obs[2] + obs[3] > 0)  # angle and its velocity


def towards_goal(obs: np.ndarray) -> int:
    """The move along the axis on which the goal is farther away."""
    (y, x), (goal_y, goal_x) = (np.argwhere(obs[:, :, colour])[0] for colour in (0, 1))
    dx, dy = goal_x - x, goal_y - y
    if abs(dy) > abs(dx):
        return 0 if dy < 0 else 1
    return 2 if dx < 0 else 3


SMALL = ("algo.hidden=[64,64]", "algo.discount=0.97", "trainer.max_updates=2500")
VECTORS = {
    "discrete_cql": ("algo.lr=1e-3", "algo.target_interval=100"),
    "discrete_bcq": ("algo.lr=1e-3", "algo.tau=0.02"),
    "discrete_iql": ("algo.actor_lr=1e-3", "algo.critic_lr=1e-3", "algo.value_lr=1e-3", "algo.tau=0.02"),
}
FEW = ("encoder=small", "schedule=linear", "algo.batch_size=64", "algo.hidden=[]", "algo.discount=0.9")
PICTURES = {
    "discrete_cql": ("algo.lr=2e-3", "algo.target_interval=100", "trainer.max_updates=1500"),
    "discrete_bcq": ("algo.lr=2e-3", "algo.tau=0.02", "trainer.max_updates=2000"),
    "discrete_iql": ("algo.actor_lr=2e-3", "algo.critic_lr=2e-3", "algo.value_lr=2e-3", "algo.tau=0.02",
                     "trainer.max_updates=1500"),
}  # fmt: skip


@every_algorithm
def test_balances_better_than_a_clumsy_controller(algo: str, tmp_path: Path) -> None:
    env = gym.make("CartPole-v1")
    behaviour = recorded(tmp_path / "data.npz", env, towards_upright, noise=0.6, steps=8000)
    assert behaviour < 120.0
    assert train(tmp_path / "run", algo, "cartpole", tmp_path / "data.npz", *SMALL, *VECTORS[algo]) > 2.0 * behaviour


@every_algorithm
def test_keeps_up_with_real_experts(algo: str, tmp_path: Path, shared_data: Path) -> None:
    path = shared_data / "cartpole-imitation-expert.npz"
    behaviour = load_transition_dataset(path).returns().mean()
    own = ("algo.threshold=0.7",) if algo == "discrete_bcq" else ()  # what experts seldom do is most often wrong
    assert train(tmp_path / "run", algo, "cartpole", path, *SMALL, *VECTORS[algo], *own) > behaviour - 50.0


@every_algorithm
def test_reaches_the_goal_of_pictures(algo: str, tmp_path: Path) -> None:
    """The best policy returns 0.83, a random one -0.66."""
    env = gym.make("rlx/PixelGoal-v0")
    behaviour = recorded(tmp_path / "data.npz", env, towards_goal, noise=0.6, steps=20_000)
    assert train(tmp_path / "run", algo, "pixel_goal", tmp_path / "data.npz", *FEW, *PICTURES[algo]) > behaviour
