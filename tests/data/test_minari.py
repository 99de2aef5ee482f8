"""Minari: the built-in dataset, reading without the env, and what is said when a dataset is not there."""

from __future__ import annotations

import json
import subprocess
import sys

import gymnasium
import h5py
import minari
import numpy as np
import pytest

from rlx.data import minari as source
from rlx.data.minari import Episode, read_minari, read_minari_folder, write_minari
from rlx.data.pendulum_data import EPISODES, pendulum_mixed, swing_up
from rlx.data.sources import MinariConfig, load_minari
from rlx.errors import UserError
from rlx.types import Spec

PENDULUM = Spec("Pendulum-v1", (3,), "float32", "box", (1,), (-2.0,), (2.0,), episode_limit=200)
BUILT = "rlx/pendulum/mixed-v0"


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A storage with the built-in dataset."""
    root = tmp_path_factory.mktemp("minari")
    read_minari(BUILT, str(root))
    return root


@pytest.fixture(autouse=True)
def storage(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    return tmp_path / "minari"


def test_the_controller_swings_up():
    """Started at rest hanging down, the pendulum stands upright at the end."""
    env = gymnasium.make("Pendulum-v1")
    env.reset(seed=0)
    env.unwrapped.state = np.array([np.pi, 0.0])
    obs = np.array([-1.0, 0.0, 0.0])
    total = 0.0
    for _ in range(200):
        obs, reward, *_ = env.step(np.array([swing_up(obs)], dtype=np.float32))
        total += reward
    assert obs[0] > 0.99
    assert total > -400


def test_built_in_dataset_is_of_mixed_quality(built):
    data = load_minari(MinariConfig(id=BUILT, root=str(built)), PENDULUM)
    assert len(data) == 4 * EPISODES * 200 >= 20_000
    assert data.env_id == "Pendulum-v1"
    returns = data.returns().reshape(4, EPISODES).mean(1)
    assert -200 < returns[0] < -100
    assert returns[0] > returns[1] > returns[2] > returns[3]
    assert returns[3] < -900
    assert data.terminated.sum() == 0
    assert np.abs(data.action).max() == 1


def test_built_in_dataset_is_the_same_every_time(built):
    with h5py.File(built / BUILT / "data" / "main_data.hdf5") as file:
        for i, (obs, action, *_) in enumerate(pendulum_mixed()):
            assert np.array_equal(file[f"episode_{i}/observations"], obs)
            assert np.array_equal(file[f"episode_{i}/actions"], action)


def test_minari_itself_loads_what_we_write(built, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(built))
    dataset = minari.load_dataset(BUILT)
    assert dataset.total_steps == 24_000
    assert dataset[0].observations.shape == (201, 3)
    assert "rlx/pendulum" in minari.namespace.list_local_namespaces()
    assert not [path for path in built.iterdir() if path.name.startswith(".")]


def test_building_is_told_and_done_once(storage, caplog):
    data = load_minari(MinariConfig(id=BUILT), PENDULUM)
    assert f"Building the Minari dataset {BUILT} in {storage}" in caplog.text
    caplog.clear()
    again = load_minari(MinariConfig(id=BUILT), PENDULUM)
    assert "Building" not in caplog.text
    assert np.array_equal(data.obs, again.obs)


def test_two_processes_that_build_at_once_both_get_the_whole_dataset(storage):
    code = (
        "import sys\n"
        "from rlx.data.minari import read_minari\n"
        f"data = read_minari({BUILT!r})\n"
        "assert len(data) == 24000 and 'jax' not in sys.modules\n"
    )
    workers = [subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True) for _ in range(2)]
    for worker in workers:
        _, errors = worker.communicate()
        assert worker.returncode == 0, errors
    assert sorted(path.name for path in storage.iterdir()) == ["rlx"]


def test_a_writer_that_comes_second_leaves_the_first_alone(storage):
    def episode(reward):
        return Episode(np.zeros((2, 3)), np.zeros((1, 1)), np.array([reward]), np.zeros(1, bool), np.ones(1, bool))

    for reward in (1.0, 2.0):
        write_minari("toy/d-v0", [episode(reward)], "Pendulum-v1", storage, algorithm="test", description="test")
    assert read_minari("toy/d-v0").reward.tolist() == [1.0]


def test_an_absent_dataset_says_where_it_looked_and_what_to_do(storage):
    with pytest.raises(UserError) as caught:
        load_minari(MinariConfig(id="toy/other-v3"), PENDULUM)
    sentence = str(caught.value)
    for part in ("toy/other-v3", str(storage), "dataset.download=true", "rlx collect"):
        assert part in sentence


def test_a_misspelt_id_gets_a_hint():
    with pytest.raises(UserError, match=f"did you mean {BUILT}"):
        read_minari("rlx/pendulum/mixd-v0")


def test_no_id():
    with pytest.raises(UserError, match=r"No Minari dataset is known for Pendulum-v1: set dataset.id="):
        load_minari(MinariConfig(), PENDULUM)


@pytest.mark.parametrize("bad", ["../outside-v0", "/etc/passwd", "a//b-v0", "hf://x/y-v0", "a b-v0"])
def test_ids_cannot_leave_the_storage(bad, storage):
    with pytest.raises(UserError, match="is not a Minari id"):
        load_minari(MinariConfig(id=bad), PENDULUM)


def test_download_without_a_network_is_refused_at_once(monkeypatch, storage):
    def no_download(*_):
        raise AssertionError("must not be tried")

    monkeypatch.setattr(source, "_remote_address", lambda: ("127.0.0.1", 9))  # nobody listens there
    monkeypatch.setattr(minari, "download_dataset", no_download)
    with pytest.raises(UserError) as caught:
        load_minari(MinariConfig(id="D4RL/door/human-v2", download=True), PENDULUM)
    for part in ("D4RL/door/human-v2", str(storage), "127.0.0.1 does not answer"):
        assert part in str(caught.value)


def test_a_name_server_that_never_answers_does_not_hold_us_up(monkeypatch):
    import threading

    release = threading.Event()
    monkeypatch.setattr(source, "CONNECT_SECONDS", 0.05)
    monkeypatch.setattr(source.socket, "create_connection", lambda *_: release.wait())
    assert not source._answers("huggingface.co", 443)
    release.set()


def test_a_failed_download_is_one_sentence(monkeypatch, storage):
    def fails(_):
        raise ValueError("Couldn't find any version")

    monkeypatch.setattr(source, "_answers", lambda *_: True)
    monkeypatch.setattr(minari, "download_dataset", fails)
    with pytest.raises(UserError, match=r"toy/x-v0 is not in .* could not be downloaded: Couldn't find any version"):
        read_minari("toy/x-v0", download=True)


def test_a_download_lands_where_it_is_read(monkeypatch, tmp_path):
    """The download itself is Minari's; here it writes a dataset where Minari would."""

    def fetch(dataset_id):
        root = minari.storage.datasets_root_dir.get_dataset_path()
        rows = Episode(np.zeros((2, 3)), np.zeros((1, 1)), np.ones(1), np.zeros(1, bool), np.ones(1, bool))
        write_minari(dataset_id, [rows], "Pendulum-v1", root, algorithm="test", description="test")

    monkeypatch.setattr(source, "_answers", lambda *_: True)
    monkeypatch.setattr(minari, "download_dataset", fetch)
    data = read_minari("toy/x-v0", root=str(tmp_path / "elsewhere"), download=True)
    assert len(data) == 1
    assert (tmp_path / "elsewhere" / "toy" / "x-v0").is_dir()


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, ("huggingface.co", 443)),
        ({"MINARI_REMOTE": "gcp://bucket"}, ("storage.googleapis.com", 443)),
        ({"HF_ENDPOINT": "http://mirror:8080"}, ("mirror", 8080)),
        ({"https_proxy": "http://proxy:3128"}, ("proxy", 3128)),
    ],
)
def test_the_address_that_is_tried(environment, expected, monkeypatch):
    for name in ("MINARI_REMOTE", "HF_ENDPOINT", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert source._remote_address() == expected


def test_the_env_in_the_metadata_is_never_made(built, tmp_path):
    """An env spec whose entry point would run code, and no spaces: Minari would make the env, we only read its id."""
    folder = tmp_path / "trap"
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "main_data.hdf5").write_bytes((built / BUILT / "data" / "main_data.hdf5").read_bytes())
    marker = tmp_path / "ran"
    (tmp_path / "trap_module.py").write_text(f"open({str(marker)!r}, 'w')\n")
    spec = {"id": "trap_module:Trap-v0", "entry_point": "trap_module:Trap"}
    metadata = {"data_format": "hdf5", "env_spec": json.dumps(spec), "total_steps": 24_000}
    (folder / "data" / "metadata.json").write_text(json.dumps(metadata))
    sys.path.insert(0, str(tmp_path))
    try:
        assert read_minari_folder(folder).env_id == "trap_module:Trap-v0"
    finally:
        sys.path.remove(str(tmp_path))
    assert not marker.exists()
    assert "trap_module" not in sys.modules


def storage_with(folder, observations, metadata=None):
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "metadata.json").write_text(json.dumps(metadata or {}))
    with h5py.File(folder / "data" / "main_data.hdf5", "w") as file:
        for key, array in observations.items():
            file[f"episode_0/{key}"] = array
        file["episode_0/actions"] = np.array([0, 1])
        file["episode_0/rewards"] = np.ones(2)
        file["episode_0/terminations"] = np.zeros(2, bool)
        file["episode_0/truncations"] = np.zeros(2, bool)  # stopped by the recorder without a flag
    return read_minari_folder(folder)


def test_goal_observations_are_joined(tmp_path):
    parts = {"achieved_goal": np.full((3, 1), 2.0), "desired_goal": np.full((3, 1), 3.0)}
    parts["observation"] = np.full((3, 2), 1.0)
    data = storage_with(tmp_path / "goal", {f"observations/{key}": array for key, array in parts.items()})
    assert data.obs[0].tolist() == [1, 1, 2, 3]
    assert data.truncated.tolist() == [0, 1]


def test_jpeg_images_are_decoded(tmp_path):
    space = gymnasium.spaces.Box(0, 255, (32, 32, 3), np.uint8)
    images = np.stack([np.full((32, 32, 3), value, np.uint8) for value in (0, 128, 255)])
    with source.storage_at(tmp_path):
        minari.create_dataset_from_buffers(
            "toy/images-v0",
            [
                minari.data_collector.EpisodeBuffer(
                    observations=list(images),
                    actions=[0, 1],
                    rewards=[0.0, 1.0],
                    terminations=[False, True],
                    truncations=[False, False],
                )
            ],
            observation_space=space,
            action_space=gymnasium.spaces.Discrete(2),
        )
    data = read_minari("toy/images-v0", str(tmp_path))
    assert data.obs.dtype == np.uint8
    assert data.obs.shape == (2, 32, 32, 3)
    assert data.next_obs[:, 0, 0, 0].tolist() == [128, 255]
    assert data.action.tolist() == [0, 1]
