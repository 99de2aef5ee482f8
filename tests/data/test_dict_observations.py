"""Datasets whose observations are dicts of boxes: read, checked, drawn from, mixed, written, and learned from.

Row i of every hand-made set has pixels that are all i and a state that begins with i, so that a row is known again.
"""

from __future__ import annotations

import json

import gymnasium as gym
import h5py
import minari
import numpy as np
import pytest
import torch
from gymnasium.envs.registration import register, registry

import rlx
from rlx.cli import main
from rlx.data import TransitionDataset, WindowSampler, load_transition_dataset, mix_transition_datasets
from rlx.data.inspect import inspect_dataset
from rlx.data.minari import Episode, load_episodes, read_minari, write_minari
from rlx.data.replay import DatasetReplay, Mixture, Replay, ReplayConfig
from rlx.data.sources import read_npz, roll_out_random
from rlx.data.specs import spec_of_dataset
from rlx.envs import EnvConfig, make_env, spec_of
from rlx.errors import UserError
from rlx.types import Box, Spec

PIXELS, STATE = Box((3, 4, 4), "uint8"), Box((2,), "float32")
SPEC = Spec("toy", (), "float32", "discrete", (), action_sizes=(3,), boxes=(("pixels", PIXELS), ("state", STATE)))
ROWS, LENGTH = 12, 4  # three episodes


def pixels(rows):
    return np.tile(np.asarray(rows, np.uint8)[:, None, None, None], (1, *PIXELS.shape))


def state(rows):
    return np.stack([np.asarray(rows, np.float64), -np.asarray(rows, np.float64)], axis=1)


def arrays(**changes):
    rows = np.arange(ROWS)
    columns = {
        "observations/pixels": pixels(rows),
        "observations/state": state(rows),
        "next_observations/pixels": pixels(rows + 1),
        "next_observations/state": state(rows + 1),
        "actions": rows % 3,
        "rewards": rows.astype(np.float32),
        "terminals": rows % LENGTH == LENGTH - 1,
        "timeouts": np.zeros(ROWS, bool),
    }
    columns |= {key.replace("__", "/"): array for key, array in changes.items()}
    return {key: array for key, array in columns.items() if array is not None}


def saved(path, columns=None):
    np.savez(path, **(columns or arrays()))
    return path


def nested(columns):
    """The parts of observations in dicts of their own."""
    made = {}
    for key, array in columns.items():
        name, slash, part = key.partition("/")
        if slash:
            made.setdefault(name, {})[part] = array
        else:
            made[key] = array
    return made


def refused(columns, spec=None):
    with pytest.raises(UserError) as caught:
        TransitionDataset.from_dict(columns, spec=spec)
    sentence = str(caught.value)
    assert "\n" not in sentence
    return sentence


def follows(obs, next_obs, steps=1):
    """Do both parts of every row belong together?"""
    rows = np.asarray(obs["state"])[:, 0]
    assert np.array_equal(np.asarray(obs["pixels"]), pixels(rows))
    assert np.array_equal(np.asarray(obs["state"]), state(rows))
    after = np.minimum(rows + steps, rows - rows % LENGTH + LENGTH)
    assert np.array_equal(np.asarray(next_obs["pixels"]), pixels(after))
    assert np.array_equal(np.asarray(next_obs["state"]), state(after))
    return rows.astype(int).tolist()


# -- reading ---------------------------------------------------------------------------------------------------------


def write_hdf5(path):
    with h5py.File(path, "w") as file:
        for key, array in arrays().items():
            file[key] = array


def write_pt(path):
    tensors = nested(arrays())
    for key, value in tensors.items():
        is_dict = isinstance(value, dict)
        tensors[key] = {k: torch.from_numpy(v) for k, v in value.items()} if is_dict else torch.from_numpy(value)
    torch.save(tensors, path)


@pytest.mark.parametrize("kind", ["npz", "hdf5", "pt"])
def test_every_kind_of_file(kind, tmp_path):
    file = tmp_path / f"data.{kind}"
    {"npz": saved, "hdf5": write_hdf5, "pt": write_pt}[kind](file)
    data = load_transition_dataset(file, SPEC)
    assert follows(data.obs, data.next_obs) == list(range(ROWS))
    assert {name: str(part.dtype) for name, part in data.obs.items()} == {"pixels": "uint8", "state": "float32"}
    assert data.key_map["observations/pixels"] == "obs/pixels"
    assert len(data.episodes) == 3
    assert "obs/pixels (3, 4, 4) uint8, obs/state (2,) float32" in repr(data)


@pytest.mark.parametrize("kind", ["npz", "hdf5"])
def test_parts_that_stay_on_disk(kind, tmp_path):
    file = tmp_path / f"data.{kind}"
    {"npz": saved, "hdf5": write_hdf5}[kind](file)
    data = rlx.data.sources.read_npz(str(file), True) if kind == "npz" else rlx.data.sources.read_hdf5(str(file), True)
    assert data.memory == "mmap"
    data = data.fitted_to(SPEC)
    prior = DatasetReplay(data, SPEC, 0.9, 1, seed=0)
    for batch in prior.sample(5, 4):
        follows(batch.obs, batch.next_obs)
    assert prior.dataset.memory == "mmap"


def test_arrays_from_python_may_be_nested():
    columns = nested(arrays())
    columns["observations"] = {"state": columns["observations"]["state"], "camera": {"left": pixels(np.arange(ROWS))}}
    del columns["next_observations"]
    data = TransitionDataset.from_dict(columns)
    assert list(data.obs) == ["camera/left", "state"]
    assert data.obs["camera/left"].shape == (ROWS, *PIXELS.shape)


def test_successors_are_derived_for_every_part():
    """Without next_obs, the last row of each terminated episode repeats its own."""
    data = TransitionDataset.from_dict(arrays(next_observations__pixels=None, next_observations__state=None))
    after = [1, 2, 3, 3, 5, 6, 7, 7, 9, 10, 11, 11]
    assert data.next_obs["state"][:, 0].tolist() == after
    assert data.next_obs["pixels"][:, 0, 0, 0].tolist() == after
    assert data.made_up


def test_boundaries_show_in_any_part():
    """The state goes on and the picture does not: a boundary all the same."""
    columns = arrays(terminals=np.zeros(ROWS, bool), timeouts=None)
    columns["next_observations/pixels"] = columns["next_observations/pixels"].copy()
    columns["next_observations/pixels"][4] = 99
    data = TransitionDataset.from_dict(columns)
    assert np.flatnonzero(data.ends).tolist() == [4, ROWS - 1]


def test_what_is_saved_is_read_again(tmp_path):
    data = TransitionDataset.from_dict(arrays())
    again = read_npz(str(data.save(tmp_path / "again.npz")))
    assert again.fingerprint() == data.fingerprint()
    mapped = read_npz(str(tmp_path / "again.npz"), mmap=True).fingerprint()
    assert mapped.items() <= data.fingerprint().items()
    other = TransitionDataset.from_dict(arrays(observations__pixels=pixels(np.arange(ROWS)[::-1])))
    differ = {name for name, crc in other.fingerprint().items() if crc != data.fingerprint()[name]}
    assert differ == {"obs/pixels", "some obs/pixels"}


def test_the_table_of_a_dataset():
    table = dict(inspect_dataset(TransitionDataset.from_dict(arrays()), SPEC._replace(env_id="toy")))
    assert table["obs/pixels"] == "(3, 4, 4) uint8, [0, 11]"
    assert table["obs/state"] == "(2,) float32, [0, 11], [-11, -0]"
    assert table["NaN or inf"] == "0"
    assert table["env match"] == "yes: toy"


# -- what is refused -------------------------------------------------------------------------------------------------

REFUSED = {
    "a successor without a part": (
        {"next_observations__state": None},
        "'next_observations' holds the part pixels, expected the parts pixels, state as in 'observations'",
    ),
    "successors that are one array": (
        {"next_observations__state": None, "next_observations__pixels": None, "next_observations": state(range(ROWS))},
        "'next_observations' holds one array, expected the parts pixels, state",
    ),
    "other parts": (
        {"next_observations__state": None, "next_observations__place": state(range(ROWS))},
        "holds the parts pixels, place, expected the parts pixels, state",
    ),
    "twice": ({"observations": state(range(ROWS))}, "the keys 'observations' and 'observations/pixels' both mean"),
    "rows": ({"observations__state": state(range(5))}, "key 'observations/state' has 5 rows, expected 12"),
    "a shape": (
        {"next_observations__pixels": pixels(range(ROWS))[:, :2]},
        "key 'next_observations/pixels' has rows of shape (2, 4, 4) and dtype uint8, expected (3, 4, 4) and uint8",
    ),
    "a dtype": (
        {"next_observations__pixels": pixels(range(ROWS)).astype(np.float32)},
        "key 'next_observations/pixels' has rows of shape (3, 4, 4) and dtype float32",
    ),
    "NaN": ({"observations__state": np.full((ROWS, 2), np.nan)}, "key 'observations/state' holds nan in row 0"),
    "text": ({"observations__state": np.array(["a"] * ROWS)}, "key 'observations/state' has dtype <U1"),
    "flags": ({"observations__state": np.zeros((ROWS, 2), bool)}, "key 'observations/state' has dtype bool"),
    "a number": ({"observations__state": np.float32(1)}, "key 'observations/state' is a single number"),
    "no name": ({"observations/": state(range(ROWS))}, "key 'observations/' does not name a part"),
    "an odd name": ({"observations/\x1b[31m": state(range(ROWS))}, "does not name a part of an observation"),
    "too many": (
        {f"observations/{i}": state(range(ROWS)) for i in range(200)},
        "'observations' has more than 100 parts",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_parts_are_refused(name):
    changes, expected = REFUSED[name]
    sentence = refused(arrays(**changes))
    assert expected in sentence
    assert sentence.isprintable()


def test_rows_that_differ_without_successors():
    columns = {k: v for k, v in arrays(observations__state=state(range(5))).items() if not k.startswith("next_")}
    assert "key 'observations/state' has 5 rows, expected 12 as in 'observations/pixels'" in refused(columns)


def test_objects_in_a_part_are_never_unpickled(tmp_path):
    file = saved(tmp_path / "data.npz", arrays(observations__state=np.array([[{}]] * ROWS, dtype=object)))
    with pytest.raises(UserError, match="key 'observations/state' is an object array"):
        load_transition_dataset(file)


FITS = {
    "another name": ((("camera", PIXELS), ("state", STATE)), "'observations/camera', 'observations/state' for toy"),
    "one more": ((*SPEC.boxes, ("sound", STATE)), "holds the parts pixels, state, expected 'observations/pixels', "),
    "a shape": (
        (("pixels", PIXELS), ("state", Box((5,), "float32"))),
        "key 'observations/state' has observations of shape (2,), expected (5,) for toy",
    ),
    "channels first": (
        (("pixels", Box((4, 4, 3), "uint8")), ("state", STATE)),
        "of shape (3, 4, 4), expected (4, 4, 3) for toy; their channels come first, and should come last; save them as "
        "np.moveaxis(pictures, 1, -1).",
    ),
    "channels last": (
        (("pixels", Box((4, 3, 4), "uint8")), ("state", STATE)),
        "expected (4, 3, 4) for toy; their channels come last, and should come first; save them as "
        "np.moveaxis(pictures, -1, 1).",
    ),
    "a dtype": (
        (("pixels", Box(PIXELS.shape, "float32")), ("state", STATE)),
        "key 'observations/pixels' has dtype uint8, expected float32 for toy; save it as float32",
    ),
    "one array": ((), "holds the parts pixels, state, expected one array of shape (7,) for toy"),
}


@pytest.mark.parametrize("name", FITS)
def test_data_that_do_not_fit_the_env(name):
    boxes, expected = FITS[name]
    spec = SPEC._replace(boxes=boxes, obs_shape=() if boxes else (7,))
    assert expected in refused(arrays(), spec)


def test_one_array_for_an_env_with_parts():
    columns = {k: v for k, v in arrays(observations=state(range(ROWS))).items() if "/" not in k}
    assert "'observations' holds one array, expected 'observations/pixels', 'observations/state'" in refused(
        columns, SPEC
    )


def test_a_pt_file_whose_dict_holds_something_else(tmp_path):
    torch.save({**{k: torch.zeros(3) for k in ("actions", "rewards", "terminals")}, "observations": {"a": [1]}},
               tmp_path / "data.pt")  # fmt: skip
    with pytest.raises(UserError, match="key 'observations/a' is a list, expected a tensor"):
        load_transition_dataset(tmp_path / "data.pt")


# -- batches ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("boxes", [SPEC.boxes, SPEC.boxes[::-1]], ids=["pixels_first", "state_first"])
def test_both_parts_of_a_batch_are_of_the_same_rows(boxes, n_step):
    """Whatever the order of the file, the parts of a batch have that of the env, which the networks know."""
    spec = SPEC._replace(boxes=boxes)
    prior = DatasetReplay(TransitionDataset.from_dict(arrays(), spec=spec), spec, 0.9, n_step, seed=0)
    seen = []
    for batch in prior.sample(6, 20):
        assert list(batch.obs) == list(batch.next_obs) == list(dict(boxes))
        rows = follows(batch.obs, batch.next_obs, n_step)
        assert batch.action.tolist() == [row % 3 for row in rows]
        seen += rows
    assert set(seen) == set(range(ROWS))
    follows(prior.dataset.obs, prior.dataset.next_obs)
    assert np.shares_memory(prior.dataset.obs["state"], prior.store.rows)  # in memory once


@pytest.mark.parametrize("mmap", [False, True])
def test_batches_of_a_replay_and_a_dataset(mmap, tmp_path):
    data = read_npz(str(saved(tmp_path / "data.npz")), mmap).fitted_to(SPEC)
    prior = DatasetReplay(data, SPEC, 0.9, 1, seed=0)
    online = Replay(ReplayConfig(capacity=40), SPEC, 1, 0.9, 0, prior=prior)
    for i in range(100, 120):
        ends = np.array([i % LENGTH == LENGTH - 1])
        step = {name: make([i]).astype(SPEC.obs[name].dtype) for name, make in (("pixels", pixels), ("state", state))}
        after = {n: make([i + 1]).astype(SPEC.obs[n].dtype) for n, make in (("pixels", pixels), ("state", state))}
        online.add(step, np.array([i % 3]), np.zeros(1), after, ends, ~ends & False)
    for batch in Mixture(online, prior, 0.5).sample(8, 10):
        rows = follows(batch.obs, batch.next_obs)
        assert sum(row < ROWS for row in rows) == 4


def test_windows_and_subsets_keep_the_parts_together():
    data = TransitionDataset.from_dict(arrays(), spec=SPEC)
    window = WindowSampler(data, 3).at(np.array([5]))
    assert window.obs["state"][0, :, 0].tolist() == window.obs["pixels"][0, :, 0, 0, 0].tolist() == [5, 6, 7]
    part = data.subset(np.array([9, 2]))
    assert follows(part.obs, part.next_obs) == [9, 2]


def test_mixtures():
    data = TransitionDataset.from_dict(arrays(), spec=SPEC)
    mixed = mix_transition_datasets({"a": data, "b": data}, {"a": 1, "b": 1}, exact_per_batch=True)
    assert follows(mixed.obs, mixed.next_obs) == [*range(ROWS), *range(ROWS)]
    single = {k: v for k, v in arrays(observations=state(range(ROWS))).items() if "/" not in k}
    with pytest.raises(UserError, match="it has obs, action, expected obs/pixels, obs/state, action"):
        mix_transition_datasets({"a": data, "b": TransitionDataset.from_dict(single)}, {"a": 1, "b": 1})


def test_the_spec_of_data_without_an_env():
    spec = spec_of_dataset(TransitionDataset.from_dict(arrays()))
    assert spec.boxes == SPEC.boxes
    assert spec.obs_shape == ()


# -- Minari ----------------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def storage(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    return tmp_path / "minari"


def episode(obs, steps=3):
    last = np.arange(steps) == steps - 1
    return Episode(obs, np.arange(steps) % 3, np.ones(steps, np.float32), np.zeros(steps, bool), last, 7)


def test_minari_with_dicts_inside_a_dict(storage):
    """As `make_env` opens them, and Minari itself loads what was written."""
    rng = np.random.default_rng(0)
    obs = {
        "camera/left": rng.integers(0, 255, (4, 16, 16, 3), dtype=np.uint8),
        "camera/right": rng.integers(0, 255, (4, 16, 16, 3), dtype=np.uint8),
        "state": rng.standard_normal((4, 2)).astype(np.float32),
    }
    write_minari("toy/d-v0", [episode(obs)] * 2, "Pendulum-v1", storage, algorithm="test", description="test")
    theirs = minari.load_dataset("toy/d-v0")[0].observations
    assert np.array_equal(theirs["camera"]["left"], obs["camera/left"])
    data = read_minari("toy/d-v0")
    assert data.obs.keys() == obs.keys()
    for name, part in obs.items():
        assert np.array_equal(data.obs[name], np.concatenate([part[:-1]] * 2))
        assert np.array_equal(data.next_obs[name], np.concatenate([part[1:]] * 2))
    again = load_episodes("toy/d-v0")[1]
    assert all(np.array_equal(again.obs[name], part) for name, part in obs.items())


def test_minari_with_a_large_picture_that_never_changes(storage):
    """Minari stores such pictures as JPEG, all of one size."""
    obs = {"pixels": np.full((4, 40, 40, 3), 200, np.uint8), "state": np.zeros((4, 2), np.float32)}
    write_minari("toy/d-v0", [episode(obs)], "Pendulum-v1", storage, algorithm="test", description="test")
    data = read_minari("toy/d-v0")
    assert data.obs["pixels"].shape == (3, 40, 40, 3)
    assert np.abs(data.obs["pixels"].astype(int) - 200).max() <= 2


def stored(storage, space, **groups):
    """A dataset of one episode that somebody else has written."""
    folder = storage / "toy" / "d-v0" / "data"
    folder.mkdir(parents=True)
    (folder / "metadata.json").write_text(json.dumps({"observation_space": json.dumps(space)}))
    with h5py.File(folder / "main_data.hdf5", "w") as file:
        for key, array in {
            **{f"observations/{name.replace('__', '/')}": array for name, array in groups.items()},
            **{"actions": np.arange(3) % 3, "rewards": np.ones(3), "terminations": np.zeros(3, bool)},
            "truncations": np.arange(3) == 2,
        }.items():
            file[f"episode_0/{key}"] = array
    return read_minari("toy/d-v0")


def box(*shape, dtype="float64"):
    return {"type": "Box", "dtype": dtype, "shape": list(shape)}


def test_minari_vectors_are_joined_in_the_order_of_the_space(storage):
    """As Gymnasium flattens them, whatever order the file has."""
    space = {"type": "Dict", "subspaces": {"z": box(1), "a": {"type": "Dict", "subspaces": {"y": box(2), "b": box(1)}}}}
    data = stored(storage, space, z=np.full((4, 1), 1.0), a__y=np.full((4, 2), 2.0), a__b=np.full((4, 1), 3.0))
    assert data.obs.tolist() == [[1, 2, 2, 3]] * 3


def test_minari_parts_beside_a_picture_are_vectors(storage):
    """A goal env with a picture is a dict; bytes that are no picture become numbers, dicts without one are joined."""
    space = {"type": "Dict", "subspaces": {"observation": box(2, 2, 3, dtype="uint8"), "achieved_goal": box(2)}}
    data = stored(
        storage,
        space,
        observation=np.zeros((4, 2, 2, 3), np.uint8),
        achieved_goal=np.ones((4, 2)),
        desired_goal=np.ones((4, 2), np.uint8),
        arm__joints=np.ones((4, 3)),
        arm__grip=np.zeros((4, 1)),
    )
    shapes = {name: (part.shape[1:], str(part.dtype)) for name, part in data.obs.items()}
    assert shapes == {
        "achieved_goal": ((2,), "float32"),
        "arm": ((4,), "float32"),
        "desired_goal": ((2,), "float32"),
        "observation": ((2, 2, 3), "uint8"),
    }


def test_minari_parts_of_another_length_are_refused(storage):
    with pytest.raises(UserError, match="key 'episode_0/observations/state' has 3 rows, expected 4 for 3 rewards"):
        stored(storage, {}, pixels=np.zeros((4, 2, 2, 3), np.uint8), state=np.zeros((3, 2)))


def test_minari_episodes_with_other_parts_are_refused(storage):
    obs = {"pixels": np.zeros((4, 2, 2, 3), np.uint8), "state": np.zeros((4, 2), np.float32)}
    write_minari("toy/d-v0", [episode(obs)] * 2, "Pendulum-v1", storage, algorithm="test", description="test")
    with h5py.File(storage / "toy/d-v0/data/main_data.hdf5", "a") as file:
        del file["episode_1/observations/state"]
    with pytest.raises(UserError, match="no key '/episode_1/observations/state'"):
        read_minari("toy/d-v0")


# -- envs and runs ---------------------------------------------------------------------------------------------------

TINY = ("encoder=small", "encoder.channels=2", "encoder.dim=8", "algo.batch_size=8", "trainer.eval_episodes=1",
        "logger=jsonl", "threads=1", "~callbacks.progress")  # fmt: skip
OFFLINE = ("trainer.max_updates=6", "trainer.eval_interval=6", "trainer.checkpoint_interval=6")
ONLINE = ("trainer.max_env_steps=40", "trainer.learning_starts=10", "trainer.eval_interval=40")


def train(tmp_path, *overrides):
    return rlx.train("env=pixel_state", *TINY, *overrides, run_dir=tmp_path / "run", quiet=True)


def pixel_state():
    return spec_of(make_env(EnvConfig(id="rlx/PixelState-v0")), "rlx/PixelState-v0")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Random actions in the env, as files: with choices, and with steps in the plane."""
    folder = tmp_path_factory.mktemp("recorded")
    cfgs = {kind: EnvConfig(id="rlx/PixelState-v0", kwargs={"continuous": kind == "box"}) for kind in ("box", "choice")}
    return {kind: roll_out_random(cfg, 120, seed=0).save(folder / f"{kind}.npz") for kind, cfg in cfgs.items()}


def test_random_actions_are_the_steps_of_the_env():
    cfg = EnvConfig(id="rlx/PixelState-v0")
    data = roll_out_random(cfg, 40, seed=3)
    env = make_env(cfg)
    obs, _ = env.reset(seed=3)
    for i in range(int(data.episodes[0, 1])):
        assert all(np.array_equal(data.obs[name][i], obs[name]) for name in ("pixels", "state"))
        obs, reward, *_ = env.step(data.action[i])
        assert all(np.array_equal(data.next_obs[name][i], obs[name]) for name in ("pixels", "state"))
        assert data.reward[i] == np.float32(reward)
    data.fitted_to(spec_of(env, cfg.id))


@pytest.mark.parametrize("algo", ["bc", "discrete_bcq", "discrete_cql", "discrete_iql", "dqn"])
def test_learning_choices_from_a_file(algo, recorded, tmp_path):
    source = ("dataset=npz", f"dataset.path={recorded['choice']}", "trainer=offline")
    result = train(tmp_path, f"algo={algo}", *source, *OFFLINE)
    assert result.summary["updates"] == 6


@pytest.mark.parametrize("algo", ["bc", "iql", "awac", "td3_bc"])
@pytest.mark.parametrize("memory", ["ram", "mmap"])
def test_learning_steps_from_a_file(algo, memory, recorded, tmp_path):
    result = train(
        tmp_path, f"algo={algo}", "env.kwargs.continuous=true", "algo.normalize_obs=false", "dataset=npz",
        f"dataset.path={recorded['box']}", f"dataset.memory={memory}", *OFFLINE,
    )  # fmt: skip
    assert result.summary["updates"] == 6


@pytest.mark.parametrize("more", [
    ("algo=rlpd", "algo.critics=2"),
    ("algo=iql", "trainer=offline_to_online", "trainer.pretrain_updates=4"),
    ("algo=sac", "replay.union=true", "trainer.offline_batch_ratio=0"),
], ids=["rlpd", "fine_tuning", "union"])  # fmt: skip
def test_offline_to_online(more, recorded, tmp_path):
    result = train(
        tmp_path, "env.kwargs.continuous=true", "dataset=npz", f"dataset.path={recorded['box']}", *ONLINE, *more
    )
    assert result.summary["env_steps"] == 40


def test_the_replay_of_a_run_is_a_dataset(tmp_path):
    """What two lanes have collected, rows and frames, in the order of time."""
    result = train(tmp_path, "algo=dqn", "env.num_envs=2", *ONLINE)
    data = load_transition_dataset(result.run_dir, pixel_state())
    assert len(data) == 40
    assert data.compared().gaps.size == 0
    assert data.obs["pixels"].dtype == np.uint8
    source = ("dataset=run", f"dataset.path={result.run_dir}")
    assert train(tmp_path / "next", "algo=discrete_cql", *source, *OFFLINE).summary["updates"] == 6


def test_what_is_collected_is_read_back(tmp_path, capsys):
    run = train(tmp_path, "algo=bc", "dataset=random", "dataset.size=60", *OFFLINE).run_dir
    folder = rlx.collect(run, "toy/d-v0", episodes=3, seed=5)
    data = load_transition_dataset("toy/d-v0", pixel_state())
    env, row = make_env(EnvConfig(id="rlx/PixelState-v0")), 0
    with h5py.File(folder / "data" / "main_data.hdf5") as file:
        seeds = [int(file[f"episode_{i}"].attrs["seed"]) for i in range(3)]
    for seed in seeds:
        obs, _ = env.reset(seed=seed)
        over = False
        while not over:
            assert all(np.array_equal(data.obs[name][row], obs[name]) for name in obs)
            obs, _, terminated, truncated, _ = env.step(data.action[row])
            assert all(np.array_equal(data.next_obs[name][row], obs[name]) for name in obs)
            over, row = terminated or truncated, row + 1
            assert bool(data.ends[row - 1]) == over
    assert row == len(data)
    assert main(["inspect-data", "toy/d-v0", "env=pixel_state"]) == 0
    assert "obs/pixels" in capsys.readouterr().out
    source = ("dataset=minari", "dataset.id=toy/d-v0")
    assert train(tmp_path / "next", "algo=discrete_bcq", *source, *OFFLINE).summary["updates"] == 6


class Cameras(gym.Env):
    """Two pictures in a dict, and joints in another."""

    observation_space = gym.spaces.Dict({
        "camera": gym.spaces.Dict({side: gym.spaces.Box(0, 255, (8, 8, 3), np.uint8) for side in ("left", "right")}),
        "arm": gym.spaces.Dict({"joints": gym.spaces.Box(-1, 1, (2,)), "gear": gym.spaces.Discrete(3)}),
    })  # fmt: skip
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), 1.0, False, False, {}


@pytest.fixture
def _cameras():
    register("Cameras-v0", entry_point=f"{__name__}:Cameras", max_episode_steps=5)
    yield
    del registry["Cameras-v0"]


@pytest.mark.usefixtures("_cameras")
def test_nested_observations_through_every_source(tmp_path):
    """The dict without pictures is one vector, in which the gear is one of three numbers."""
    run = rlx.train("env.id=Cameras-v0", "algo=bc", "dataset=random", "dataset.size=30", *TINY, *OFFLINE,
                    run_dir=tmp_path / "run", quiet=True).run_dir  # fmt: skip
    rlx.collect(run, "toy/d-v0", episodes=2)
    spec = spec_of(make_env(EnvConfig(id="Cameras-v0")), "Cameras-v0")
    data = load_transition_dataset("toy/d-v0", spec)
    assert {name: part.shape[1:] for name, part in data.obs.items()} == {name: b.shape for name, b in spec.boxes}
    assert set(data.obs) == {"camera/left", "camera/right", "arm"}


def test_without_an_env(recorded, tmp_path):
    result = rlx.train("env=none", "algo=bc", "dataset=npz", f"dataset.path={recorded['choice']}", *TINY,
                       "trainer.max_updates=6", "callbacks.fitted_q.updates=2", run_dir=tmp_path / "run",
                       quiet=True)  # fmt: skip
    assert result.policy.spec.boxes == (("pixels", Box((16, 16, 3), "uint8")), ("state", Box((4,), "float32")))


def test_vectors_without_an_env(tmp_path):
    """Two vectors are not one: an algorithm that reads dicts learns from them, any other says so."""
    rng = np.random.default_rng(0)
    columns = {f"observations/{name}": rng.standard_normal((40, n)) for name, n in (("position", 2), ("speed", 3))}
    columns |= {"actions": rng.uniform(-1, 1, (40, 1)), "rewards": np.ones(40), "terminals": np.arange(40) % 10 == 9}
    source = ("env=none", "dataset=npz", f"dataset.path={saved(tmp_path / 'data.npz', columns)}", *OFFLINE)
    own = ("algo.batch_size=8", "callbacks.fitted_q.updates=2")
    assert rlx.train("algo=bc", *source, *own, run_dir=tmp_path / "bc", quiet=True).summary["updates"] == 6
    with pytest.raises(UserError, match="algo=cql reads vectors and none gives the parts position, speed"):
        rlx.train("algo=cql", *source, run_dir=tmp_path / "cql", quiet=True)


@pytest.mark.parametrize(("overrides", "expected"), [
    (("algo=dqn", "replay=hindsight", "dataset=random"), "Hindsight needs a goal env and rlx/PixelState-v0 is not one"),
    (("algo=cal_ql", "env.kwargs.continuous=true", "dataset=random"),
     "cal_ql reads vectors and rlx/PixelState-v0 gives images"),
    (("algo=td3_bc", "env.kwargs.continuous=true", "dataset=random"), "algo.normalize_obs=true is for vectors"),
    (("algo=bc", "dataset=npz", "dataset.path={vectors}"), "'obs' holds one array, expected 'obs/pixels', 'obs/state'"),
], ids=["hindsight", "cal_ql", "normalize", "vectors"])  # fmt: skip
def test_the_command_line_refuses_in_a_sentence(overrides, expected, tmp_path, capsys):
    vectors = roll_out_random("CartPole-v1", 30, seed=0)
    vectors.env_id = None
    vectors.save(tmp_path / "vectors.npz")
    overrides = [o.format(vectors=tmp_path / "vectors.npz") for o in overrides]
    code = main(["env=pixel_state", *overrides, f"run_dir={tmp_path / 'run'}"])
    told = capsys.readouterr()
    assert code == 2
    assert expected in told.err + told.out
    assert "Traceback" not in told.err
