"""What all sources of datasets share: the fields of their configs, and the checks that every dataset ends with."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from enum import Enum

from rlx.data.dataset import TransitionDataset
from rlx.data.episodes import Episodes, Terminals, apply_choices
from rlx.errors import UserError, shown
from rlx.reporting import counted
from rlx.types import Spec

log = logging.getLogger("rlx")

MAX_CHOICES = 2**16  # of a discrete action, where there is no env to tell


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
            raise UserError(f"{name} must be one of {listed} ({name}={shown(value)}).")
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
