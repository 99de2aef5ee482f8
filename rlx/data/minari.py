"""Minari datasets: read from storage, downloaded on request, written with Minari's own writer.

Reading opens `data/metadata.json` and `data/main_data.hdf5` and nothing else. The env spec in the metadata is data: its
id is compared with the env of the run, and neither it nor anything it names is imported or made. What rlx builds
itself (see BUILT_IN) is made on first use when it is not there yet.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import socket
import tempfile
import threading
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from rlx.data.columns import Array
from rlx.data.dataset import TransitionDataset
from rlx.data.files import COPIES, Allowance, env_name, existing, first_line, hdf5_array, hdf5_file, readable
from rlx.data.keys import kind_of
from rlx.data.minari_obs import plan_observations, read_observations
from rlx.data.pendulum_data import pendulum_mixed
from rlx.errors import UserError, nearest, shown
from rlx.files import read_bounded
from rlx.obs import map_obs
from rlx.reporting import muted

log = logging.getLogger("rlx")

STEP_KEYS = ("actions", "rewards", "terminations", "truncations")
CONNECT_SECONDS = 3.0  # how long to wait for a sign of a network before a download


class Episode(NamedTuple):
    """One episode to be written; T transitions, T + 1 observations, actions in env units."""

    obs: Any  # an array, or a dict of arrays by name, "camera/left" for those inside another dict
    action: Array
    reward: Array
    terminated: Array
    truncated: Array
    seed: int | None = None


class BuiltIn(NamedTuple):
    """A dataset that rlx can make by itself."""

    env_id: str
    description: str
    episodes: Any  # () -> list[Episode]


BUILT_IN: Mapping[str, BuiltIn] = {
    "rlx/pendulum/mixed-v0": BuiltIn(
        "Pendulum-v1",
        "A scripted swing-up controller with three levels of noise, and random actions; 30 episodes each.",
        lambda: [Episode(*arrays) for arrays in pendulum_mixed()],
    )
}


def read_minari(dataset_id: str, root: str | None = None, download: bool = False) -> TransitionDataset:
    """The dataset of that id; built or downloaded first where that is possible and it is not there."""
    folder = find_minari(dataset_id, root, download)
    storage = minari_root(root)
    if not (folder / "data").is_dir():
        if dataset_id in BUILT_IN:
            build(dataset_id, storage)
        else:
            _download(dataset_id, storage)
    if not (folder / "data").is_dir():
        raise UserError(_absent(dataset_id, storage))
    return read_minari_folder(folder)


def find_minari(dataset_id: str, root: str | None = None, download: bool = False) -> Path:
    """The folder of a dataset that is there, or can be built or downloaded."""
    if len(dataset_id) > 250 or not re.fullmatch(r"[\w-]+([/.][\w-]+)*", dataset_id):
        raise UserError(
            f"'{shown(dataset_id)}' is not a Minari id: expected one like D4RL/door/human-v2, or an existing file."
        )
    storage = minari_root(root)
    folder = storage / dataset_id
    if not (folder / "data").is_dir() and dataset_id not in BUILT_IN and not download:
        raise UserError(_absent(dataset_id, storage))
    return folder


def load_episodes(dataset_id: str, root: str | None = None) -> list[Episode]:
    """The episodes of a local dataset, as they can be written again."""
    data = read_minari(dataset_id, root)
    return [
        Episode(
            map_obs(lambda o, n, a=start, z=stop: np.concatenate([o[a:z], n[z - 1 : z]]), data.obs, data.next_obs),
            data.action[start:stop],
            data.raw_reward[start:stop],
            data.terminated[start:stop] > 0,
            data.truncated[start:stop] > 0,
        )
        for start, stop in data.episodes
    ]


def minari_root(root: str | None = None) -> Path:
    """The folder of Minari datasets."""
    chosen = root or os.environ.get("MINARI_DATASETS_PATH") or "~/.minari/datasets"
    return Path(chosen).expanduser()


def local_ids(storage: Path) -> list[str]:
    files = storage.glob("**/data/metadata.json") if storage.is_dir() else ()
    return sorted(path.parent.parent.relative_to(storage).as_posix() for path in files)


def _absent(dataset_id: str, storage: Path) -> str:
    close = nearest(dataset_id, [*local_ids(storage), *BUILT_IN])
    hint = f" did you mean {close}?" if close else ""
    return (
        f"Minari dataset {dataset_id} is not in {storage}:{hint} fetch it with dataset.download=true, set "
        "MINARI_DATASETS_PATH to the folder it is in, or record it with "
        f"`python -m rlx collect CHECKPOINT id={dataset_id}`."
    )


def read_minari_folder(folder: Path) -> TransitionDataset:
    """A dataset from its folder; Minari itself is not needed."""
    file = _inside(folder, "metadata.json")
    with readable(file, "Minari metadata"):
        metadata = json.loads(read_bounded(file))
    if not isinstance(metadata, dict):
        raise UserError(f"{file}: cannot be read as Minari metadata: expected a JSON object.")
    stored = metadata.get("data_format", "hdf5")
    if stored != "hdf5":
        kind = shown(stored, 60)
        raise UserError(f"{folder}: stored as '{kind}', expected 'hdf5'; save it again with data_format='hdf5'.")
    stated = metadata.get("total_steps")
    if stated is not None and type(stated) is not int:
        kind = shown(json.dumps(stated), 60)
        raise UserError(f"{file}: total_steps is {kind}, expected an integer; get the dataset again.")
    data = _inside(folder, "main_data.hdf5")
    with hdf5_file(data) as h5:
        arrays = _read_episodes(h5, data, metadata, file)
    dataset = TransitionDataset.from_dict(arrays, source=str(folder), env_id=_env_id(metadata))
    if stated is not None and stated != len(dataset):
        raise UserError(
            f"{data}: holds {len(dataset)} transitions, expected {stated} as its metadata says; it is incomplete."
        )
    dataset.derived = True  # next_obs came from the observations
    kept = ("observations", *STEP_KEYS)
    dataset.key_map = {key: column for key, column in dataset.key_map.items() if kind_of(key) in kept}
    dataset.notes += ("next_obs taken from the observations, which include the last one of every episode",)
    return dataset


def _inside(folder: Path, name: str) -> Path:
    """A regular file of the dataset that is no link to elsewhere."""
    file = folder / "data" / name
    if not file.exists():
        raise UserError(
            f"{file}: no such file; the Minari dataset is incomplete, so delete its folder and get it again."
        )
    if folder.resolve() not in file.resolve().parents:
        raise UserError(f"{file}: is a link out of the dataset's folder, which is refused; copy the file there.")
    return existing(file, "Minari")


def _read_episodes(h5: Any, data: Path, metadata: dict[str, Any], file: Path) -> dict[str, Array]:
    """All episodes one after the other; `ends` closes those that were stopped without a flag."""
    import h5py

    columns: dict[str, list[Array]] = {}
    plan = None
    allowance = Allowance(data)
    if not len(h5):
        raise UserError(f"{data}: holds no episodes, expected at least one.")
    for i in range(len(h5)):
        if (episode := h5.get(f"episode_{i}")) is None:
            raise UserError(f"{data}: no key 'episode_{i}', expected episodes numbered from 0 to {len(h5) - 1}.")
        if not isinstance(episode, h5py.Group):
            raise UserError(f"{data}: key 'episode_{i}' is an array, expected a group of them.")
        if plan is None:
            space, jpeg = _json(metadata.get("observation_space")), bool(metadata.get("jpeg_encoding", True))
            plan = plan_observations(episode, space, jpeg, data, file)
        observations = read_observations(episode, plan, data, allowance)
        arrays = {key: hdf5_array(episode, key, data, allowance, COPIES) for key in STEP_KEYS}
        _check_episode(observations, arrays, f"{data}: key 'episode_{i}")
        for key, array in observations.items():
            arrays |= {key: array[:-1], f"next_{key}": array[1:]}
        arrays["ends"] = np.arange(1, len(arrays["rewards"]) + 1) == len(arrays["rewards"])
        for key, array in arrays.items():
            columns.setdefault(key, []).append(array)
    with readable(data, "Minari episodes of one shape"):
        return {key: np.concatenate(columns.pop(key)) for key in list(columns)}


def _check_episode(observations: dict[str, Array], arrays: dict[str, Array], where: str) -> None:
    """As many rows of everything, and one more of observations."""
    for key, array in {**observations, **arrays}.items():
        if not array.ndim:
            raise UserError(f"{where}/{key}' is a single number, expected an array.")
    steps = len(arrays["rewards"])
    for key, array in {**observations, **arrays}.items():
        expected = steps + (key in observations)
        if len(array) != expected:
            raise UserError(f"{where}/{key}' has {len(array)} rows, expected {expected} for {steps} rewards.")


def _env_id(metadata: dict[str, Any]) -> str | None:
    return env_name(_json(metadata.get("env_spec")).get("id"))


def _json(text: Any) -> dict[str, Any]:
    """A JSON object inside a JSON string; empty where there is none."""
    try:
        value = json.loads(text) if isinstance(text, str) else {}
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def build(dataset_id: str, storage: Path) -> None:
    """Make a dataset of BUILT_IN."""
    recipe = BUILT_IN[dataset_id]
    log.warning("Building the Minari dataset %s in %s (once, a few seconds).", dataset_id, storage)
    write_minari(
        dataset_id, recipe.episodes(), recipe.env_id, storage, algorithm="scripted", description=recipe.description
    )


def check_recordable(env_id: str) -> Any:
    """The registered spec of an env, without which Minari can keep no dataset of it; UserError where there is none."""
    try:
        spec = gymnasium.spec(env_id.rpartition(":")[2])  # whose module, if it names one, has been imported
        spec.to_json()
    except (gymnasium.error.Error, ValueError) as error:
        raise UserError(
            f"Minari keeps data of envs that are registered by the name of their class, and {env_id} is not "
            f"({first_line(error)}); register it with entry_point='module:Class'."
        ) from error
    return spec


def write_minari(
    dataset_id: str,
    episodes: Sequence[Episode],
    env_id: str,
    storage: Path,
    *,
    algorithm: str,
    description: str,
) -> Path:
    """Write a dataset that Minari loads. It appears whole or not at all; of two writers the first one wins."""
    import minari
    from minari.data_collector import EpisodeBuffer

    buffers = [
        EpisodeBuffer(
            id=i,
            seed=e.seed,
            observations=_nested(e.obs),
            actions=e.action,
            rewards=e.reward,
            terminations=e.terminated,
            truncations=e.truncated,
        )
        for i, e in enumerate(episodes)
    ]
    spec = check_recordable(env_id)
    folder = storage / dataset_id
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        beside = Path(tempfile.mkdtemp(prefix=".rlx-", dir=storage))
    except OSError as error:
        raise UserError(
            f"Cannot write {dataset_id} to {storage} ({error.strerror}); set MINARI_DATASETS_PATH."
        ) from error
    try:
        with storage_at(beside), muted():  # of an author, a link and an evaluation env that are not given
            minari.create_dataset_from_buffers(
                dataset_id,
                buffers,
                env=spec,
                observation_space=_space_of(episodes[0].obs) if isinstance(episodes[0].obs, dict) else None,
                algorithm_name=algorithm,
                author="rlx",
                description=description,
            )
        _publish(beside, folder, storage)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return folder


def _nested(obs: Any) -> Any:
    """Parts such as "camera/left" as dicts inside a dict, which is how Minari names them."""
    if not isinstance(obs, dict):
        return obs
    nested: dict[str, Any] = {}
    for name, part in obs.items():
        *above, last = name.split("/")
        inner = nested
        for key in above:
            inner = inner.setdefault(key, {})
        inner[last] = part
    return nested


def _space_of(obs: Any) -> gymnasium.Space[Any]:
    """The space of observations as rlx has them: vectors and images, where the env may have more kinds."""
    if isinstance(obs, dict):
        return gymnasium.spaces.Dict([(name, _space_of(part)) for name, part in _nested(obs).items()])
    low, high = (0, 255) if obs.dtype == np.uint8 else (-np.inf, np.inf)
    return gymnasium.spaces.Box(low, high, obs.shape[1:], obs.dtype.type)


def _publish(beside: Path, folder: Path, storage: Path) -> None:
    """Move a finished dataset, and the namespace files above it that are missing, into the storage."""
    built = beside / folder.relative_to(storage)
    for file in beside.glob("**/namespace_metadata.json"):
        target = storage / file.relative_to(beside)
        if not target.exists():
            os.replace(file, target)
    try:
        os.rename(built, folder)
    except OSError:
        if not (folder / "data" / "metadata.json").exists():
            raise
        log.info("%s appeared while it was being built; using that one.", folder)


@contextmanager
def storage_at(root: Path) -> Iterator[None]:
    """Let Minari read and write below `root`."""
    before = os.environ.get("MINARI_DATASETS_PATH")
    os.environ["MINARI_DATASETS_PATH"] = str(root)
    try:
        yield
    finally:
        if before is None:
            del os.environ["MINARI_DATASETS_PATH"]
        else:
            os.environ["MINARI_DATASETS_PATH"] = before


def _download(dataset_id: str, storage: Path) -> None:
    import minari

    host, port = _remote_address()
    if not _answers(host, port):
        raise UserError(
            f"Minari dataset {dataset_id} is not in {storage} and cannot be downloaded: {host} does not answer; check "
            "the network, or set MINARI_DATASETS_PATH to the folder it is in."
        )
    try:
        with storage_at(storage):
            minari.download_dataset(dataset_id)
    except (OSError, ValueError, RuntimeError, ImportError) as error:
        reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise UserError(
            f"Minari dataset {dataset_id} is not in {storage} and could not be downloaded: {reason}"
        ) from error


def _remote_address() -> tuple[str, int]:
    """Host and port that a download talks to first: the proxy, or the remote's server."""
    remote = os.environ.get("MINARI_REMOTE", "hf://")
    default = "https://storage.googleapis.com" if remote.startswith("gcp") else "https://huggingface.co"
    server = default if remote.startswith("gcp") else os.environ.get("HF_ENDPOINT", default)
    url = urllib.parse.urlsplit(urllib.request.getproxies().get("https") or server)
    return url.hostname or "huggingface.co", url.port or (80 if url.scheme == "http" else 443)


def _answers(host: str, port: int) -> bool:
    """Does a connection come about in time? In a thread, because looking up a name has no time limit of its own."""
    answered = threading.Event()

    def connect() -> None:
        try:
            socket.create_connection((host, port), CONNECT_SECONDS).close()
        except OSError:
            return
        answered.set()

    worker = threading.Thread(target=connect, daemon=True)
    worker.start()
    worker.join(CONNECT_SECONDS)
    return answered.is_set()
