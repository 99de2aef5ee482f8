"""A dataset from a path or an id alone: what it is follows from its name and from what is there."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from rlx.data.dataset import TransitionDataset
from rlx.data.episodes import apply_choices
from rlx.data.files import expanded
from rlx.data.minari import read_minari, read_minari_folder
from rlx.data.sources.base import choices_of
from rlx.data.sources.hdf5 import read_hdf5
from rlx.data.sources.npz import read_npz
from rlx.data.sources.pt import read_pt
from rlx.data.sources.run import read_run
from rlx.errors import UserError
from rlx.types import Spec


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
