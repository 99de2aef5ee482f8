"""Where datasets come from: files, an env, an earlier run. (Minari has a module of its own.)

Every source is a config dataclass and a function `load_x(cfg, spec, seed) -> TransitionDataset` whose result is
checked against the env and has its box actions in [-1, 1]. One that makes envs or other sources also takes `trust`, the
modules that the user allows. Where there is no env, the Spec is taken from the data:
files are then read with `spec=None`, and `finish` is called once it is known.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np

from rlx.checkpoint import MALFORMED, CheckpointData, CheckpointStore, DamagedCheckpoint
from rlx.config import PYTHON
from rlx.data.columns import ALIASES, Array, assemble, printable
from rlx.data.dataset import TransitionDataset
from rlx.data.episodes import Episodes, Terminals, apply_choices
from rlx.data.files import (
    Allowance,
    NpzArrays,
    env_name,
    existing,
    expanded,
    hdf5_array,
    hdf5_dataset,
    hdf5_declared,
    hdf5_file,
    hdf5_map,
    hdf5_text,
)
from rlx.data.store import Layout, Store
from rlx.data.torch_files import TorchTensors
from rlx.envs.factory import EnvConfig, make_env
from rlx.envs.vector import env_faults_explained
from rlx.errors import UserError
from rlx.reporting import counted
from rlx.restoring import restoring
from rlx.run_folder import refuse_link
from rlx.system import enough_memory
from rlx.types import Spec

log = logging.getLogger("rlx")

ROW_COST = 500  # bytes of a transition's Python objects besides its observations, roughly
MAX_CHOICES = 2**16  # of a discrete action, where there is no env to tell
TRAJECTORIES = {"obs", "acts", "terminal", "indices"}  # keys of what imitation wrote until 0.4
COPIES = 4  # of an array that is stored by episodes: the parts, the whole, and obs and next_obs picked from it


class ActionsOutside(str, Enum):
    """What to do with actions outside the env's box."""

    clip = "clip"
    error = "error"


class Memory(str, Enum):
    """Where observations live while training."""

    ram = "ram"
    mmap = "mmap"


@dataclass
class DatasetConfig:
    """Fields that every source has."""

    _target_: str = ""
    actions_outside: ActionsOutside = ActionsOutside.clip  # clip them to the box and say so, or refuse (error)
    any_env: bool = False  # take data that names another env, as long as the shapes fit
    terminals: Terminals = Terminals.check  # refuse time limits stored as terminals; time_limits: correct; as_stored
    episodes: Episodes = Episodes.check  # warn of missing boundaries; infer: from next_obs; as_stored


@dataclass
class NpzConfig(DatasetConfig):
    """Transitions in an .npz file."""

    _target_: str = "rlx.data.sources.load_npz"
    path: str = ""  # the file; keys under their usual names
    memory: Memory = Memory.ram  # mmap leaves the observations on disk (uncompressed files only)


@dataclass
class PtConfig(DatasetConfig):
    """Transitions in a .pt file: a dict of tensors, never unpickled."""

    _target_: str = "rlx.data.sources.load_pt"
    path: str = ""  # the file; keys under their usual names


@dataclass
class Hdf5Config(DatasetConfig):
    """Transitions in an .hdf5 file, in the layout of D4RL or d3rlpy."""

    _target_: str = "rlx.data.sources.load_hdf5"
    path: str = ""  # the file; keys under their usual names
    memory: Memory = Memory.ram  # mmap leaves the observations on disk (contiguous arrays only)


@dataclass
class RandomConfig(DatasetConfig):
    """Transitions of uniformly random actions, collected from the env at the start."""

    _target_: str = "rlx.data.sources.load_random"
    size: int = 10_000  # transitions
    env: Any = "${env}"  # the run's own, with its kwargs and its time limit


@dataclass
class RunConfig(DatasetConfig):
    """The replay that an earlier rlx run has saved."""

    _target_: str = "rlx.data.sources.load_run"
    path: str = ""  # the run folder


def load_npz(cfg: NpzConfig, spec: Spec | None, seed: int = 0) -> TransitionDataset:
    return finish(read_npz(cfg.path, cfg.memory == Memory.mmap), cfg, spec)


def load_pt(cfg: PtConfig, spec: Spec | None, seed: int = 0) -> TransitionDataset:
    return finish(read_pt(cfg.path), cfg, spec)


def load_hdf5(cfg: Hdf5Config, spec: Spec | None, seed: int = 0) -> TransitionDataset:
    return finish(read_hdf5(cfg.path, cfg.memory == Memory.mmap), cfg, spec)


def load_random(cfg: RandomConfig, spec: Spec, seed: int = 0, trust: Sequence[str] = ()) -> TransitionDataset:
    env = cfg.env if isinstance(cfg.env, EnvConfig) else spec.env_id  # outside of a run there is the id alone
    if spec.env_id.startswith(PYTHON):
        raise UserError(
            "dataset=random makes envs by their id and this one was given from Python; register it and use "
            "env.id=module:Id, or give the data themselves, as dataset={...}."
        )
    return finish(roll_out_random(env, cfg.size, seed, trust), cfg, spec)


def load_run(cfg: RunConfig, spec: Spec | None, seed: int = 0) -> TransitionDataset:
    return finish(read_run(cfg.path), cfg, spec)


def finish(dataset: TransitionDataset, cfg: DatasetConfig, spec: Spec | None) -> TransitionDataset:
    """Check against the env, scale actions, and tell what was loaded; without a spec, the data as they are."""
    if spec is None:
        dataset = apply_choices(_countable(dataset), cfg, None, check=False)
        dataset.settled = True
        return dataset
    choices = cfg
    if dataset.settled:  # nothing is corrected twice
        choices = choices_of(*("check" if c.value == "check" else "as_stored" for c in (cfg.terminals, cfg.episodes)))
    dataset = dataset.fitted_to(spec, cfg.actions_outside, cfg.any_env)
    dataset = apply_choices(dataset, choices, spec.episode_limit, spec.env_id)
    keys = ", ".join(f"{key} -> {column}" for key, column in dataset.key_map.items())
    size = f"{counted(len(dataset), 'transition')}, {counted(len(dataset.episodes), 'episode')}"
    log.info("%s: %s (%s)", dataset.source, size, keys)
    for note in dataset.notes:
        log.info("%s: %s", dataset.source, note)
    return dataset


def choices_of(terminals: str, episodes: str) -> DatasetConfig:
    """The two choices from text."""
    for name, value, kind in (("terminals", terminals, Terminals), ("episodes", episodes, Episodes)):
        if value not in [choice.value for choice in kind]:
            listed = ", ".join(choice.value for choice in kind)
            raise UserError(f"{name} must be one of {listed} ({name}={printable(str(value))}).")
    return DatasetConfig(terminals=Terminals(terminals), episodes=Episodes(episodes))


def _countable(dataset: TransitionDataset) -> TransitionDataset:
    """Choices from which the number of choices can be told, where no env tells it."""
    if dataset.action.dtype.kind != "f" and (dataset.action.min() < 0 or dataset.action.max() >= MAX_CHOICES):
        low, high = dataset.action.min(), dataset.action.max()
        raise UserError(
            f"{dataset.source}: key '{dataset.key_of('action')}' holds choices from {low} to {high}, expected 0 up to "
            f"{MAX_CHOICES - 1}; choose the env that the data came from."
        )
    return dataset


def load_transition_dataset(
    source: str | Path, spec: Spec | None = None, *, terminals: str = "check", episodes: str = "check"
) -> TransitionDataset:
    """A dataset from a file (.npz, .pt, .hdf5), a run folder, a Minari folder or a Minari id.

    Without a spec, actions stay in the units of the env, and nothing is checked that takes the env to know.
    """
    choices = choices_of(terminals, episodes)
    dataset = read_any(source)
    if spec is None:
        return apply_choices(dataset, choices, None, check=False)
    return apply_choices(dataset.fitted_to(spec), choices, spec.episode_limit, spec.env_id)


def read_any(source: str | Path) -> TransitionDataset:
    """The rows of a dataset as they are stored."""
    from rlx.data.minari import read_minari, read_minari_folder

    path = expanded(source)
    readers = {".npz": read_npz, ".pt": read_pt, ".pth": read_pt, ".hdf5": read_hdf5, ".h5": read_hdf5}
    if path.suffix in readers:
        dataset = readers[path.suffix](str(source))
    elif _has(path, "data/metadata.json"):
        dataset = read_minari_folder(path)
    elif _has(path, "checkpoints"):
        dataset = read_run(str(source))
    elif _has(path):
        raise UserError(_unknown_kind(path, readers))
    else:
        dataset = read_minari(str(source))
    return dataset


def _unknown_kind(path: Path, readers: Collection[str]) -> str:
    """How to come from what other libraries write to something that is read."""
    into = "np.savez(FILE, obs=..., action=..., reward=..., next_obs=..., terminated=..., truncated=...)"
    if path.suffix in (".pkl", ".pickle"):
        return f"{path}: is a pickle, which is never loaded; load it where it came from and save arrays with {into}."
    if _has(path, "dataset_info.json") and _has(path, "state.json"):
        return (
            f"{path}: is a folder of Hugging Face's datasets, as imitation writes it; load it there "
            "(imitation.data.serialize.load), join the trajectories (next_obs is obs[1:] of each) and save arrays with "
            f"{into}."
        )
    return f"{path}: unknown kind of dataset: expected {', '.join(readers)}, a run or a Minari folder."


def _has(folder: Path, name: str = "") -> bool:
    try:
        return (folder / name).exists()
    except (OSError, ValueError):  # a name that no file can have
        return False


def read_npz(path: str, mmap: bool = False) -> TransitionDataset:
    file = existing(path, "npz")
    arrays = NpzArrays(file, mmap)
    if arrays.members.keys() >= TRAJECTORIES and not mmap:
        return TransitionDataset.from_dict(_joined_trajectories(arrays, file), source=str(file))
    columns = assemble(
        arrays.members.keys(), arrays.__getitem__, str(file), arrays.declared, Allowance(file).claim, mmap
    )
    return TransitionDataset(columns, str(file), arrays.text("env_id"))


def _joined_trajectories(arrays: NpzArrays, file: Path) -> dict[str, Array]:
    """What imitation wrote until 0.4: trajectories one after the other, obs one longer, cut at `indices`."""
    allowance = Allowance(file)
    names: list[str] = [name for name in ("obs", "acts", "rews", "terminal", "indices") if name in arrays.members]
    for name in names:
        shape, dtype = arrays.declared(name)
        allowance.claim(math.prod(shape) * dtype.itemsize, COPIES * math.prod(shape) * dtype.itemsize)
    columns = {name: arrays[name] for name in names}
    cuts, terminal = columns.pop("indices"), columns.pop("terminal")
    steps = len(columns["acts"]) if columns["acts"].ndim else 0
    stops = np.append(cuts, steps) if cuts.ndim == 1 and cuts.dtype.kind in "iu" else np.zeros(0)
    if terminal.shape != stops.shape or not steps or (np.diff(stops, prepend=0) <= 0).any():
        raise UserError(
            f"{file}: key 'indices' does not cut {steps} actions into {terminal.size} trajectories, as imitation saves "
            "them; save the transitions as plain arrays."
        )
    last = np.zeros(steps, dtype=bool)
    last[stops - 1] = True
    over = np.zeros(steps, dtype=bool)
    over[stops - 1] = terminal != 0
    return {**columns, "terminated": over, "truncated": last & ~over}


def read_pt(path: str) -> TransitionDataset:
    file = existing(path, "pt")
    tensors = TorchTensors(file)
    for key in tensors.values.keys() & {name for names in ALIASES.values() for name in names}:
        tensors.declared(key)  # refuses what is no tensor, before it is missed
    columns = assemble(tensors.values.keys(), tensors.__getitem__, str(file), tensors.declared, Allowance(file).claim)
    return TransitionDataset(columns, str(file), env_name(tensors.values.get("env_id")))


def read_hdf5(path: str, mmap: bool = False) -> TransitionDataset:
    file = existing(path, "hdf5")
    with hdf5_file(file) as h5:
        env_id = hdf5_text(h5, "env_id")
        allowance = Allowance(file)
        if "num_episodes" in h5 and "observations_0" in h5:
            arrays = _d3rlpy_episodes(h5, file, allowance)
            return TransitionDataset.from_dict(arrays, source=str(file), env_id=env_id)

        def read(key: str) -> Array:
            return hdf5_map(h5, key, file) if mmap else hdf5_array(h5, key, file)

        def declared(key: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
            return hdf5_declared(hdf5_dataset(h5, key, file), f"{file}: key '{key}'")

        columns = assemble(h5.keys(), read, str(file), declared, allowance.claim, mmap)
        return TransitionDataset(columns, str(file), env_id)


def _d3rlpy_episodes(h5: Any, file: Path, allowance: Allowance) -> dict[str, Array]:
    """The arrays per episode that d3rlpy 2 writes, one after the other."""
    columns: dict[str, list[Array]] = {
        "observations": [],
        "actions": [],
        "rewards": [],
        "terminals": [],
        "timeouts": [],
    }
    for i in range(_number(h5, "num_episodes", file, "iu")):
        for key in ("observations", "actions", "rewards"):
            array = hdf5_array(h5, f"{key}_{i}", file, allowance, copies=COPIES)
            if not array.ndim:
                raise UserError(f"{file}: key '{key}_{i}' is a single number: expected one row per transition.")
            columns[key].append(array)
        last = np.zeros(len(columns["rewards"][-1]), dtype=bool)
        last[-1:] = True
        terminated = bool(_number(h5, f"terminated_{i}", file, "iufb"))
        columns["terminals"].append(last & terminated)
        columns["timeouts"].append(last & (not terminated))
    if not columns["rewards"]:
        raise UserError(f"{file}: key 'num_episodes' is 0: expected at least one episode.")
    return {key: np.concatenate(parts) for key, parts in columns.items()}


def _number(h5: Any, key: str, file: Path, kinds: str) -> int:
    """A single number that is not negative."""
    stored = hdf5_dataset(h5, key, file)
    if stored.size != 1 or stored.dtype.kind not in kinds or not (value := np.ravel(stored[()])[0]) >= 0:
        kind = f"shape {stored.shape} and dtype {printable(str(stored.dtype), 60)}"
        raise UserError(f"{file}: key '{key}' must be a single number of at least 0; it has {kind}.")
    return int(value)


def read_run(path: str) -> TransitionDataset:
    if not path:
        raise UserError("No run given for the run dataset: set dataset.path=RUN_FOLDER.")
    folder = expanded(path)
    if not (folder / "checkpoints").is_dir():
        raise UserError(f"{folder}: is not a run folder: expected one with checkpoints.")
    with restoring(folder):
        arrays, env_id = read_replay(folder)
    dataset = TransitionDataset.from_dict(arrays, source=str(folder), env_id=env_id)
    dataset.recorded = True
    dataset.scaled = dataset.action.dtype.kind == "f"  # a replay holds actions as learners see them
    dataset.notes += ("rewards are as the learner of that run saw them, after its reward transform",)
    return dataset


def read_replay(run_dir: Path) -> tuple[dict[str, Array], str]:
    """The transitions in a run's latest checkpoint by field, env after env, each in the order of time; and the env id.

    Actions and rewards are as the learner of that run saw them: scaled and transformed.
    """
    refuse_link(run_dir / "checkpoints")
    checkpoints = CheckpointStore(run_dir / "checkpoints")
    saved = checkpoints.latest()
    if not saved.segments:
        raise UserError(f"{run_dir} kept no replay (it was not an off-policy run); give the folder of one that did.")
    if saved.spec.boxes:
        raise UserError(f"{run_dir} has observations of several parts, which a dataset cannot hold; give another run.")
    try:
        return _arrays(checkpoints, saved), saved.spec.env_id
    except (DamagedCheckpoint, *MALFORMED) as error:
        text = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise UserError(f"The replay of {saved.path} cannot be read ({text}); give another run.") from error


def _arrays(checkpoints: CheckpointStore, saved: CheckpointData) -> dict[str, Array]:
    lanes, counters = len(saved.state["journal"]["episodes"]), saved.state["replay"]
    room = lanes * max(counters["lanes"]) if "lanes" in counters else counters["total"] - saved.segments[0]["start"]
    store: Store | None = None
    for start, tensors in checkpoints.replay_segments(saved):
        if store is None:
            store = Store(_layout_of(saved.spec, tensors), room, lanes, 1.0)
        store.load_segment(start, tensors)
    assert store is not None
    store.load_counters(counters)
    parts: dict[str, list[Array]] = {
        name: [] for name in ("obs", "action", "reward", "next_obs", "terminated", "truncated")
    }
    for place in map(store.history, range(lanes)):
        gathered = store.take(place)
        columns = store.layout.batch(*gathered)._asdict()
        columns["truncated"] = store.layout.column(gathered.rows, "truncated")
        columns["truncated"][-1:] = 1.0 - columns["terminated"][-1:]  # an episode that was still going on is cut
        for name, column in parts.items():
            column.append(columns[name].numpy())
    return {name: np.concatenate(column) for name, column in parts.items()}


def _layout_of(spec: Spec, tensors: Mapping[str, Any]) -> Layout:
    """The layout that the rows of a segment have."""
    apart = "obs" in tensors
    plain = Layout(spec, apart=apart)
    return plain if plain.width == tensors["rows"].shape[1] else Layout(spec, mc_return=True, apart=apart)


def roll_out_random(env_or_id: EnvConfig | str, size: int, seed: int, trust: Sequence[str] = ()) -> TransitionDataset:
    """`size` transitions of uniformly random actions; the same for the same seed."""
    cfg = EnvConfig(id=env_or_id) if isinstance(env_or_id, str) else env_or_id
    if size < 1:
        raise UserError(f"dataset.size must be at least 1 (dataset.size={size}).")
    columns: dict[str, list[Any]] = {
        name: [] for name in ("obs", "action", "reward", "next_obs", "terminated", "truncated")
    }
    with closing(make_env(cfg, trust)) as env, env_faults_explained(cfg.id):
        env.action_space.seed(seed)
        obs, _ = env.reset(seed=seed)
        needed = size * (4 * np.asarray(obs).nbytes + ROW_COST)  # as they come, and as arrays
        with enough_memory(needed, f"A dataset of {size:,} transitions", lambda k: f"try dataset.size={int(size * k)}"):
            for _ in range(size):
                action = env.action_space.sample()
                next_obs, reward, terminated, truncated, _ = env.step(action)
                row = (obs, action, reward, next_obs, terminated, truncated)
                for column, value in zip(columns.values(), row, strict=True):
                    column.append(value)
                obs = env.reset()[0] if terminated or truncated else next_obs
            arrays = {name: np.asarray(values) for name, values in columns.items()}
    dataset = TransitionDataset.from_dict(arrays, source=f"random actions in {cfg.id}", env_id=cfg.id)
    dataset.recorded = True
    return dataset
