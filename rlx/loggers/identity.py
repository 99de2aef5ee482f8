"""What a run is called where many of them are looked at together: its name, its sweep, its choices, its clock.

All of it is in the run folder and in the config, so that a resumed run is called as it was.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import yaml
from omegaconf import OmegaConf

from rlx.choices import FIRST
from rlx.config import GROUPS
from rlx.files import read_bounded

if TYPE_CHECKING:
    from rlx.trainers.trainer import Trainer

MANIFEST = "sweep.json"  # in the folder of a sweep, whose runs are the folders beside it
TAGGED = (*FIRST, "replay", "trainer", "experiment")  # groups whose choices tell runs apart
COUNTERS = ("env_steps", "updates", "epoch", "wall_time")  # in every row
UNTOLD = ("hydra", "logger", "callbacks", "run_dir", "trust", "choices")  # overrides that change no result


@dataclass(frozen=True)
class Identity:
    """How a run is called, and what tells it from others."""

    name: str  # of its folder; in a sweep, what differs
    group: str | None  # the name of its sweep
    choices: dict[str, str]  # by group
    values: dict[str, str]  # KEY=VALUE as they were typed

    @property
    def told(self) -> dict[str, str]:
        """Those choices that tell runs apart."""
        return {group: self.choices[group] for group in TAGGED if group in self.choices}

    @property
    def tags(self) -> list[str]:
        return [f"{group}={choice}" for group, choice in self.told.items()]


def identity_of(trainer: Trainer) -> Identity:
    folder = trainer.run_dir.absolute()
    in_sweep = (folder.parent / MANIFEST).is_file()
    name = re.sub(r"^\d+_(?=.)", "", folder.name) if in_sweep else folder.name
    chosen = OmegaConf.select(trainer.cfg, "choices") or {}
    choices = {str(group): str(choice) for group, choice in chosen.items()}
    return Identity(name, folder.parent.name if in_sweep else None, choices, _typed_values(trainer))


def _typed_values(trainer: Trainer) -> dict[str, str]:
    """The values among the overrides that a run was started with; choices of groups are known by then."""
    try:
        overrides = yaml.safe_load(read_bounded(trainer.run_dir / "overrides.yaml", follow=False))
    except (OSError, ValueError, yaml.YAMLError):  # a folder that was made by hand has none
        return {}
    texts = [text for text in overrides if isinstance(text, str)] if isinstance(overrides, list) else []
    pairs = (text.lstrip("+").partition("=") for text in texts if not text.startswith("~"))
    return {
        key: value
        for key, _, value in pairs
        if key.partition(".")[0].partition("/")[0] not in UNTOLD and key not in (*GROUPS, "experiment", "algo_env")
    }


def clock_of(trainer: Trainer, phase: str | None = None) -> tuple[str, str]:
    """What the metrics of a row are drawn over, and what goes before their names; `phase` is the present one if None.

    Env steps where a run collects, updates where it does not. Pretraining has no env steps in a run that has: what it
    reports is drawn over updates under the name of its phase, so that every chart has one axis.
    """
    phases, phase = trainer.plan.phases, trainer.state.phase if phase is None else phase
    if not any(rules.collect > 0 for rules in phases.values()):
        return "updates", ""
    if phase in phases and phases[phase].collect == 0:
        return "updates", f"{phase}/"
    return "env_steps", ""
