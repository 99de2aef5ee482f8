"""The same data through every format trains bit-identical learners; a run's replay becomes a dataset."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

import rlx
from rlx.data.minari import Episode, write_minari
from rlx.data.sources import load_transition_dataset

TINY = ["algo.hidden=[8,8]", "algo.batch_size=16", "trainer.max_updates=20", "trainer.eval_episodes=1", "threads=1",
        "logger=none", "~callbacks.progress"]  # fmt: skip
NAMES = {"obs": "observations", "action": "actions", "reward": "rewards", "next_obs": "next_observations",
         "terminated": "terminals", "truncated": "timeouts"}  # fmt: skip


@pytest.fixture(scope="module")
def columns() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    obs = rng.normal(size=(4, 26, 3)).astype(np.float32)  # four episodes of 25 steps
    truncated = np.zeros((4, 25), np.float32)
    truncated[:, -1] = 1.0
    return {
        "obs": obs[:, :-1].reshape(-1, 3),
        "action": rng.uniform(-2, 2, (100, 1)).astype(np.float32),
        "reward": rng.normal(size=100).astype(np.float32),
        "next_obs": obs[:, 1:].reshape(-1, 3),
        "terminated": np.zeros(100, np.float32),
        "truncated": truncated.ravel(),
    }


def write(kind: str, columns: dict[str, np.ndarray], folder: Path) -> list[str]:
    """Write the columns in a format; the overrides that load them."""
    path = folder / f"data.{kind}"
    if kind == "npz":
        np.savez(path, **columns)
    elif kind == "pt":
        torch.save({name: torch.from_numpy(column) for name, column in columns.items()}, path)
    elif kind == "hdf5":
        with h5py.File(path, "w") as file:
            for name, column in columns.items():
                file[NAMES[name]] = column
    else:
        episodes = []
        for start in range(0, 100, 25):
            rows = slice(start, start + 25)
            obs = np.concatenate([columns["obs"][rows], columns["next_obs"][start + 24 : start + 25]])
            flags = columns["terminated"][rows].astype(bool), columns["truncated"][rows].astype(bool)
            episodes.append(Episode(obs, columns["action"][rows], columns["reward"][rows], *flags))
        write_minari("test/same-v0", episodes, "Pendulum-v1", folder, algorithm="none", description="random numbers")
        return ["dataset=minari", "dataset.id=test/same-v0", f"dataset.root={folder}"]
    return [f"dataset={kind}", f"dataset.path={path}"]


def test_every_format_trains_the_same_bits(columns: dict[str, np.ndarray], tmp_path: Path):
    found = {}
    for kind in ("npz", "pt", "hdf5", "minari"):
        source = write(kind, columns, tmp_path)
        result = rlx.train("algo=td3_bc", "env=pendulum", *source, *TINY, run_dir=tmp_path / f"run_{kind}", seed=0)
        found[kind] = result.learner.tensors()
    for kind in ("pt", "hdf5", "minari"):
        for name, tensor in found["npz"].items():
            assert torch.equal(tensor, found[kind][name]), f"{name} differs between npz and {kind}"


def test_a_run_becomes_a_dataset(tmp_path: Path):
    online = ["trainer.max_env_steps=90", "trainer.learning_starts=80", "env.num_envs=3", "env.max_episode_steps=10"]
    settings = [word for word in TINY if "max_updates" not in word]
    rlx.train("algo=sac", "env=pendulum", *online, *settings, run_dir=tmp_path / "run", seed=0)
    dataset = load_transition_dataset(tmp_path / "run")
    assert (len(dataset), len(dataset.episodes), dataset.env_id) == (90, 9, "Pendulum-v1")
    inside = ~dataset.ends[:-1]
    assert (dataset.next_obs[:-1][inside] == dataset.obs[1:][inside]).all()
    source = ["dataset=run", f"dataset.path={tmp_path / 'run'}"]
    result = rlx.train("algo=td3_bc", "env=pendulum", *source, *TINY, run_dir=tmp_path / "offline", seed=0)
    assert result.summary["updates"] == 20
