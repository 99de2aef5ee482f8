"""Offline learning on Pendulum: every algorithm beats the behaviour that it learned from, and cloning repeats it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import rlx
from rlx.data import TransitionDataset, load_transition_dataset

pytestmark = pytest.mark.learning

MARGIN = 200.0  # return above the mean of the data; broken losses end below it
TD3_BC = ("algo.hidden=[64,64]", "algo.actor_lr=1e-3", "algo.critic_lr=1e-3", "algo.discount=0.95", "algo.tau=0.02",
          "algo.alpha=10", "schedule.kind=constant")  # fmt: skip
ALGORITHMS = {"td3_bc": TD3_BC, "awac": (), "iql": (), "cql": (), "cal_ql": ()}  # the others have tuned pairs

every_algorithm = pytest.mark.parametrize("algo", list(ALGORITHMS))


def train(run_dir: Path, algo: str, *overrides: str) -> rlx.Result:
    budget = ("trainer=offline", "trainer.max_updates=3000", "trainer.eval_interval=0", "trainer.eval_episodes=20")
    fixed = ("env=pendulum", "threads=1", "logger=none", "trainer.checkpoint_interval=0")
    return rlx.train(f"algo={algo}", *fixed, *budget, *overrides, run_dir=run_dir, seed=0)


def from_file(path: Path) -> tuple[str, str]:
    return "dataset=npz", f"dataset.path={path}"


@every_algorithm
def test_beats_the_behaviour_of_the_mixed_set(tmp_path: Path, algo: str) -> None:
    result = train(tmp_path / "run", algo, "dataset=minari", *ALGORITHMS[algo])
    behaviour = load_transition_dataset("rlx/pendulum/mixed-v0").returns().mean()
    assert result.summary["eval_return_mean"] > behaviour + MARGIN


@every_algorithm
def test_beats_the_behaviour_of_real_data(tmp_path: Path, shared_data: Path, algo: str) -> None:
    path = shared_data / "pendulum-rllib-sac-medium.npz"
    result = train(tmp_path / "run", algo, *from_file(path), *ALGORITHMS[algo])
    behaviour = load_transition_dataset(path).returns().mean()
    assert result.summary["eval_return_mean"] > behaviour + MARGIN


def controlled_episodes(path: Path) -> TransitionDataset:
    """The part of the mixed set that its controller steered with little noise: the first 30 episodes."""
    mixed = load_transition_dataset("rlx/pendulum/mixed-v0")
    part = mixed.subset(np.arange(mixed.episodes[29, 1]))
    part.save(path)
    return part


@pytest.mark.parametrize("gaussian", [False, True])
def test_cloning_reproduces_the_behaviour(tmp_path: Path, gaussian: bool) -> None:
    data = controlled_episodes(tmp_path / "controlled.npz")
    cloned = train(tmp_path / "run", "bc", *from_file(tmp_path / "controlled.npz"), f"algo.gaussian={gaussian}")
    assert cloned.summary["eval_return_mean"] == pytest.approx(data.returns().mean(), abs=75.0)
    torque = 2.0 * cloned.learner.act(torch.from_numpy(data.obs), explore=False).numpy()
    # the noise on the controller's torque has a standard deviation of 0.2 and cannot be predicted
    assert np.sqrt(np.square(torque - data.action).mean()) < 0.6


def test_cloning_reproduces_real_experts(tmp_path: Path, shared_data: Path) -> None:
    path = shared_data / "pendulum-rllib-sac-expert.npz"
    behaviour = load_transition_dataset(path).returns().mean()
    assert train(tmp_path / "run", "bc", *from_file(path)).summary["eval_return_mean"] > behaviour - 75.0
