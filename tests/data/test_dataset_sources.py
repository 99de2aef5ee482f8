"""The same transitions through every kind of file, from memory and from disk, and out of an env."""

from __future__ import annotations

import h5py
import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

import rlx
from rlx.collectors.runner import episode_seed
from rlx.config import compose_config, instantiate
from rlx.data import TransitionDataset, load_transition_dataset
from rlx.data.columns import MappedColumn
from rlx.data.minari import Episode, write_minari
from rlx.data.sources import (
    Hdf5Config,
    Memory,
    NpzConfig,
    PtConfig,
    RandomConfig,
    RunConfig,
    load_hdf5,
    load_npz,
    load_pt,
    load_random,
    load_run,
)
from rlx.envs import make_env
from rlx.errors import UserError
from rlx.types import Spec

PENDULUM = Spec("Pendulum-v1", (3,), "float32", "box", (1,), (-2.0,), (2.0,), episode_limit=200)
CARTPOLE = Spec("CartPole-v1", (4,), "float32", "discrete", (), action_sizes=(2,), episode_limit=500)
COLUMNS = ("obs", "action", "reward", "next_obs", "terminated", "truncated")


def arrays(episodes=3, length=20):
    rng = np.random.default_rng(0)
    stream = rng.standard_normal((episodes, length + 1, 3)).astype(np.float32)
    ends = np.tile(np.arange(length) == length - 1, episodes)
    return {
        "observations": stream[:, :-1].reshape(-1, 3),
        "actions": rng.uniform(-2, 2, (episodes * length, 1)).astype(np.float32),
        "rewards": rng.standard_normal(episodes * length).astype(np.float32),
        "next_observations": stream[:, 1:].reshape(-1, 3),
        "terminals": np.zeros(episodes * length, dtype=bool),
        "timeouts": ends,
    }


def write_hdf5(path, columns):
    with h5py.File(path, "w") as file:
        for key, array in columns.items():
            file[key] = array
    return path


def same(data, reference):
    for name in COLUMNS:
        found, expected = np.asarray(getattr(data, name)), getattr(reference, name)
        assert found.dtype == expected.dtype
        assert np.array_equal(found, expected), name


def test_npz_pt_hdf5_and_minari_are_bit_identical(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    columns = arrays()
    reference = TransitionDataset.from_dict(columns, spec=PENDULUM)
    np.savez(tmp_path / "d.npz", **columns)
    np.savez_compressed(tmp_path / "c.npz", **columns)
    torch.save({k: torch.as_tensor(v) for k, v in columns.items()}, tmp_path / "d.pt")
    write_hdf5(tmp_path / "d.hdf5", columns)
    episodes = []
    for start in range(0, 60, 20):
        rows = slice(start, start + 20)
        obs = np.concatenate([columns["observations"][rows], columns["next_observations"][start + 19 : start + 20]])
        rest = (columns[key][rows] for key in ("actions", "rewards", "terminals", "timeouts"))
        episodes.append(Episode(obs, *rest))
    write_minari("toy/d-v0", episodes, "Pendulum-v1", tmp_path / "minari", algorithm="test", description="test")
    for source in ("d.npz", "c.npz", "d.pt", "d.hdf5"):
        same(load_transition_dataset(tmp_path / source, PENDULUM), reference)
    same(load_transition_dataset("toy/d-v0", PENDULUM), reference)
    same(load_transition_dataset(tmp_path / "minari" / "toy" / "d-v0", PENDULUM), reference)


def test_saved_datasets_load_again(tmp_path):
    data = TransitionDataset.from_dict(arrays(), env_id="Pendulum-v1")
    path = data.with_reward_transform(lambda r, terminated: r * 0).save(tmp_path / "saved")
    again = load_transition_dataset(path)
    same(again, data)
    assert again.env_id == "Pendulum-v1"


@pytest.mark.parametrize("kind", ["npz", "hdf5"])
def test_mapped_observations_stay_on_disk_and_give_the_same_rows(kind, tmp_path):
    path = tmp_path / f"d.{kind}"
    if kind == "npz":
        np.savez(path, **arrays())
        data = load_npz(NpzConfig(path=str(path), memory=Memory.mmap), PENDULUM)
    else:
        data = load_hdf5(Hdf5Config(path=str(write_hdf5(path, arrays())), memory=Memory.mmap), PENDULUM)
    reference = TransitionDataset.from_dict(arrays(), spec=PENDULUM)
    assert data.memory == "mmap"
    assert isinstance(data.obs, np.memmap)
    assert isinstance(data.next_obs, np.memmap)
    same(data, reference)
    rows = np.array([[5, 1], [59, 5]])
    assert np.array_equal(data.obs[rows], reference.obs[rows])


def test_mapped_observations_are_cast_and_shifted_when_read(tmp_path):
    columns = arrays() | {"observations": arrays()["observations"].astype(np.float64)}
    del columns["next_observations"]
    np.savez(tmp_path / "d.npz", **columns)
    data = load_npz(NpzConfig(path=str(tmp_path / "d.npz"), memory=Memory.mmap), PENDULUM)
    assert isinstance(data.next_obs, MappedColumn)
    same(data, TransitionDataset.from_dict(columns, spec=PENDULUM))
    part = data.subset(np.array([3, 4, 30]))
    assert part.memory == "mmap"
    assert np.array_equal(part.next_obs[[0, 2]], np.asarray(data.next_obs)[[3, 30]])


def test_pt_reads_bfloat16_and_the_env_id(tmp_path):
    saved = {k: torch.as_tensor(v) for k, v in arrays().items()}
    saved["rewards"] = saved["rewards"].bfloat16()
    torch.save({**saved, "env_id": "Pendulum-v1"}, tmp_path / "d.pt")
    data = load_pt(PtConfig(path=str(tmp_path / "d.pt")), PENDULUM)
    assert np.array_equal(data.reward, saved["rewards"].float().numpy())
    assert data.env_id == "Pendulum-v1"


def test_d4rl_files_may_hold_more_than_transitions(tmp_path):
    path = write_hdf5(tmp_path / "d.hdf5", arrays() | {"infos/qpos": np.zeros((60, 2)), "metadata/algorithm": b"SAC"})
    same(load_transition_dataset(path), TransitionDataset.from_dict(arrays()))


def test_episodes_as_d3rlpy_writes_them(tmp_path):
    obs = np.arange(5, dtype=np.float32)[:, None]
    with h5py.File(tmp_path / "d.h5", "w") as file:
        file["num_episodes"] = 2
        file["version"] = "2.0"
        for i, (rows, terminated) in enumerate([(slice(0, 3), True), (slice(3, 5), False)]):
            file[f"observations_{i}"] = obs[rows]
            file[f"actions_{i}"] = np.array([[0], [1], [0]])[: rows.stop - rows.start]
            file[f"rewards_{i}"] = np.ones((rows.stop - rows.start, 1), np.float32)
            file[f"terminated_{i}"] = terminated
    data = load_transition_dataset(tmp_path / "d.h5")
    assert data.terminated.tolist() == [0, 0, 1, 0]  # the last row of the second episode has no successor
    assert data.truncated.tolist() == [0, 0, 0, 1]
    assert data.next_obs[:, 0].tolist() == [1, 2, 2, 4]
    assert data.action.tolist() == [0, 1, 0, 0]


@pytest.mark.parametrize("spec", [PENDULUM, CARTPOLE])
def test_random_rollouts_depend_on_the_seed_alone(spec):
    first, again, other = (load_random(RandomConfig(size=450), spec, seed) for seed in (1, 1, 2))
    same(again, first)
    assert not np.array_equal(first.obs, other.obs)
    assert len(first) == 450
    inside = ~first.ends[:-1]
    assert np.array_equal(first.next_obs[:-1][inside], first.obs[1:][inside])


def test_random_rollouts_of_pendulum_are_scaled_and_cut_at_the_time_limit():
    data = load_random(RandomConfig(size=450), PENDULUM, 0)
    assert data.episodes.tolist() == [[0, 200], [200, 400], [400, 450]]
    assert 0.9 < np.abs(data.action).max() <= 1
    assert data.terminated.sum() == 0


@pytest.mark.parametrize("nested", [False, True])
def test_random_rollouts_are_of_the_env_of_the_run(nested):
    """Its time limit and its kwargs, also as a part of a mix."""
    chosen = ["dataset=random", "dataset.size=100"]
    if nested:
        chosen = ["dataset=mix", "~dataset.sources.prior", "~dataset.ratios.prior", "dataset.sources.random.size=100"]
    cfg = compose_config(["env=pendulum", "env.max_episode_steps=25", "+env.kwargs.g=0.0", *chosen])
    data = instantiate(cfg.dataset, PENDULUM, 0)
    assert np.diff(data.episodes, axis=1).ravel().tolist() == [25] * 4
    # without gravity the torque alone moves it: speed' = speed + 3 * torque * dt
    torque = data.action[:, 0] * 2
    assert np.allclose(data.next_obs[:, 2], np.clip(data.obs[:, 2] + 3 * torque * 0.05, -8, 8), atol=1e-4)


def test_random_rollouts_need_a_size():
    with pytest.raises(UserError, match=r"dataset\.size=0"):
        load_random(RandomConfig(size=0), PENDULUM, 0)


def test_a_run_gives_its_replay_with_actions_as_they_are(tmp_path, monkeypatch):
    (tmp_path / "checkpoints").mkdir()
    columns = arrays() | {"actions": np.full((60, 1), 0.5, np.float32)}
    monkeypatch.setattr("rlx.data.sources.run.read_replay", lambda folder: (columns, "Pendulum-v1"))
    data = load_run(RunConfig(path=str(tmp_path)), PENDULUM)
    assert data.action[0].tolist() == [0.5]  # scaled already, not scaled again
    assert any("reward transform" in note for note in data.notes)


STACKED = (
    "+env.wrappers.gray=GrayscaleObservation",
    "+env.wrappers.stack={_target_: FrameStackObservation, stack_size: 3}",
)


@pytest.mark.parametrize(("wrappers", "shape"), [((), (16, 16, 3)), (STACKED, (3, 16, 16))])
def test_a_run_of_images_is_a_dataset(tmp_path, wrappers, shape):
    """To the byte: its actions, played again from the seeds of its episodes, lead to the same pictures."""
    tiny = ("algo=dqn", "~algo_env", "encoder=flat", "algo.hidden=[8]", "trainer.learning_starts=70")
    run = tmp_path / "run"
    here = ("env=pixel_goal", "~callbacks.evaluate", "trainer.max_env_steps=70", *wrappers)
    rlx.train(*tiny, *here, run_dir=run, quiet=True)
    data = load_transition_dataset(run)
    assert (data.obs.shape, data.obs.dtype, data.next_obs.dtype) == ((70, *shape), np.uint8, np.uint8)
    env = make_env(OmegaConf.to_object(compose_config(["env=pixel_goal", "~algo_env", *wrappers]).env))
    for number, (start, stop) in enumerate(data.episodes, start=1):
        obs, _ = env.reset(seed=episode_seed(0, 0, number))
        for row in range(start, stop):
            assert np.array_equal(data.obs[row], obs)
            obs, *_ = env.step(data.action[row])
            assert np.array_equal(data.next_obs[row], obs)
    offline = ("dataset=run", f"dataset.path={run}", *wrappers, "algo.hidden=[8]", "encoder=flat")
    budget = {"max_updates": 2, "eval_episodes": 1}
    result = rlx.train("algo=bc", *offline, env="pixel_goal", trainer=budget, run_dir=tmp_path / "offline", quiet=True)
    assert result.summary["updates"] == 2


def test_without_an_env_data_may_name_theirs(tmp_path):
    np.savez(tmp_path / "d.npz", **arrays(), env_id=np.array("Pendulum-v1"))
    chosen = (
        "algo=bc",
        "env=none",
        "dataset=npz",
        f"dataset.path={tmp_path / 'd.npz'}",
        "algo.hidden=[8]",
        "~callbacks.fitted_q",
    )
    result = rlx.train(*chosen, trainer={"max_updates": 2}, run_dir=tmp_path / "run", quiet=True)
    assert result.summary["updates"] == 2


@pytest.mark.parametrize(("path", "expected"), [("", "dataset.path=RUN_FOLDER"), ("nowhere", "is not a run folder")])
def test_a_run_that_is_none(path, expected):
    with pytest.raises(UserError, match=expected):
        load_run(RunConfig(path=path), PENDULUM)


def test_mapping_needs_little_memory(tmp_path):
    import tracemalloc

    n = 20_000
    obs = np.random.default_rng(0).standard_normal((n, 100)).astype(np.float32)  # 8 MB each of obs and next_obs
    rest = {"actions": np.zeros((n, 1)), "rewards": np.zeros(n), "terminals": np.zeros(n), "timeouts": np.zeros(n)}
    np.savez(tmp_path / "d.npz", observations=obs, next_observations=obs, **rest)
    spec = PENDULUM._replace(obs_shape=(100,))
    tracemalloc.start()
    data = load_npz(NpzConfig(path=str(tmp_path / "d.npz"), memory=Memory.mmap), spec)
    rows = data.sample_rows(np.random.default_rng(0), 256, 4)
    assert data.obs[rows].shape == (4, 256, 100)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4e6


def test_what_was_loaded_is_told(tmp_path, caplog):
    np.savez(tmp_path / "d.npz", **arrays())
    with caplog.at_level("INFO", logger="rlx"):
        load_npz(NpzConfig(path=str(tmp_path / "d.npz")), PENDULUM)
    assert "60 transitions, 3 episodes" in caplog.text
    assert "timeouts -> truncated" in caplog.text
