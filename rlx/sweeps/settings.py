"""What was typed after -m, taken apart: the overrides of the jobs, Hydra's own, and the name of the sweep.

Hydra composes one config for launcher and sweeper before it knows of jobs, and leaves out the groups that are swept.
Here that config is composed from the first value of everything that is swept, so that keys that only the swept choices
have are known.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, IntervalSweep, Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rlx.choices import choices
from rlx.config import compose_config, fit_numbers, instantiate, register, trusted
from rlx.config.errors import explain
from rlx.config.overrides import SEARCH, config_folders, literal
from rlx.errors import UserError, nearest, shown
from rlx.fields import check_numbers
from rlx.sweeps.launchers.base import LauncherConfig, Pool
from rlx.sweeps.manifest import MOST_JOBS
from rlx.sweeps.search.settings import SearchConfig, read_search, take_search

SWEEPS = Path("multirun_outputs") / "sweeps"
NAME = "sweep"  # sweep=NAME: the folder below SWEEPS
FOLDER = "hydra.sweep.dir"


@dataclass
class Dimension:
    """One override of a sweep: its key, as Hydra writes it, and the values it takes; one value is not swept."""

    key: str  # such as algo, +env.kwargs.x, trainer.max_env_steps
    values: list[str]
    swept: bool
    text: str  # as it was typed
    interval: IntervalSweep | None = None  # what a search draws from; `values` is then its beginning

    @property
    def name(self) -> str:
        """The key without what Hydra has before it and behind it."""
        return self.key.lstrip("+~").partition("@")[0]

    def override(self, value: str) -> str:
        return f"{self.key}={value}" if self.swept else self.text


@dataclass
class Plan:
    """A sweep as it was typed, or as it is resumed."""

    given: list[str]  # as typed, without the name
    dimensions: list[Dimension]
    hydra: DictConfig  # Hydra's own config: launcher, sweeper, sweep
    folder: Path
    changes: tuple[str, ...] = ()  # of a resume
    trust: tuple[str, ...] = ()  # modules that were trusted when resuming
    search: SearchConfig | None = None  # as it was typed
    search_changes: tuple[str, ...] = ()  # search.KEY=VALUE of a resume
    typed: bool = True  # were the jobs typed in this session, not read from a manifest
    hydra_overrides: list[str] = field(default_factory=list)

    @property
    def launcher(self) -> str:
        return str(self.hydra.runtime.choices["hydra/launcher"])

    @property
    def sweeper(self) -> str:
        name = str(self.hydra.runtime.choices["hydra/sweeper"])
        return "grid" if name == "basic" else name

    def pool(self, threads: int) -> Pool:
        """The launcher that was chosen."""
        pool: Pool = instantiate(self.hydra.launcher, threads)
        return pool

    @property
    def limits(self) -> LauncherConfig:
        """Retries and timeouts."""
        config: LauncherConfig = OmegaConf.to_object(self.hydra.launcher)  # type: ignore[assignment]
        check_numbers(config, "hydra.launcher")
        return config


def read_plan(arguments: Sequence[str]) -> Plan:
    """The plan of a sweep from its overrides."""
    register()
    name, given = take_name(arguments)
    overrides = [o for o in given if o != "hydra.mode=MULTIRUN"]
    for override in overrides:
        if override.lstrip("+").startswith("run_dir="):
            raise UserError(
                f"{override} would put all jobs of a sweep into one folder; use sweep=NAME or {FOLDER}=FOLDER, below "
                "which each job has its own."
            )
    searching, overrides = take_search(overrides)
    search = read_search(searching, config_folders(overrides)) if searching else None
    ours, jobs = split(overrides)
    dimensions = latest([read_dimension(override, overrides) for override in jobs])
    if search is not None:
        typed = {dimension.name for dimension in dimensions}
        named = [f"{key}={_text(value)}" for key, value in {**search.fixed, **search.space}.items()]
        of_search = [read_dimension(override, overrides) for override in named]
        dimensions = [d for d in of_search if d.name not in typed] + dimensions
    hydra = compose_hydra(dimensions, ours)
    if search is not None and hydra.runtime.choices["hydra/sweeper"] != "optuna":
        raise UserError(f"{shown(searching[0])} is about a search; add hydra/sweeper=optuna.")
    params = hydra.sweeper.get("params") or {}
    typed = {dimension.name for dimension in dimensions}
    more = fit_numbers([f"{key}={_text(value)}" for key, value in params.items()], sweep=True)
    from_yaml = [read_dimension(override, overrides) for override in more]
    dimensions = [d for d in from_yaml if d.name not in typed] + dimensions
    return Plan(given, dimensions, hydra, sweep_folder(name, ours, hydra), search=search, hydra_overrides=ours)


def first_job(arguments: Sequence[str]) -> list[str]:
    """The overrides of the first job of a sweep, with those of Hydra itself: what --cfg shows."""
    plan = read_plan(arguments)
    return [*(d.override(d.values[0]) for d in plan.dimensions), *plan.hydra_overrides]


def take_name(arguments: Sequence[str]) -> tuple[str | None, list[str]]:
    """`sweep=NAME` out of the arguments."""
    names = [a.partition("=")[2] for a in arguments if a.partition("=")[0] == NAME]
    for name in names:
        if not re.fullmatch(r"\w[\w.+=,-]{0,99}", name, re.ASCII):
            raise UserError(f"{NAME}={shown(name)} is not a name; give letters, digits, - and _, as it names a folder.")
    if len(names) > 1:
        raise UserError(f"A sweep has one name; give {NAME}=NAME once.")
    return names[0] if names else None, [a for a in arguments if a.partition("=")[0] != NAME]


def split(overrides: Sequence[str]) -> tuple[list[str], list[str]]:
    """Overrides of Hydra itself, and of the jobs."""
    ours = []
    for override in overrides:
        key = override.lstrip("+~").partition("=")[0]
        if key.startswith(("hydra.", "hydra/")) and key != SEARCH:
            ours.append(override)
            if key == "hydra.sweep.subdir":
                raise UserError(f"{shown(override)} has no effect; job folders are named by number and what differs.")
            if key == "hydra.mode":
                raise UserError(f"{shown(override)} is not for sweeps; leave it out.")
    return ours, [override for override in overrides if override not in ours]


def read_dimension(override: str, overrides: Sequence[str]) -> Dimension:
    """All values that an override stands for, by Hydra's grammar."""
    (fitted,) = fit_numbers([override], sweep=True)
    try:
        read = OverridesParser.create().parse_override(fitted)
        key = read.get_key_element()
        if not read.is_sweep_override():
            return Dimension(key, [fitted.partition("=")[2]], False, fitted)
        if read.is_interval_sweep():
            interval: Any = read.value()
            return Dimension(key, [repr(interval.start)], True, fitted, interval)
        values = _values(read, overrides)
    except (HydraException, ValueError, ArithmeticError, RecursionError) as error:
        raise UserError(explain(error, [override])) from error
    if not values:
        raise UserError(f"{shown(override)} stands for no value at all; there would be no job.")
    if len(values) > MOST_JOBS:
        raise UserError(f"{shown(override)} stands for {len(values):,} values; a sweep has at most {MOST_JOBS:,} jobs.")
    return Dimension(key, values, True, fitted)


def _values(read: Override, overrides: Sequence[str]) -> list[str]:
    value: Any = read._value
    if isinstance(value, Glob):
        names = choices(read.key_or_group, config_folders(overrides))
        return list(value.filter(names))
    values = []
    for text in read.sweep_string_iterator():
        values.append(text)
        if len(values) > MOST_JOBS:
            break
    return values


def _text(value: Any) -> str:
    """A value of hydra.sweeper.params: a text is in the grammar of the command line, a list is a list."""
    return (
        value
        if isinstance(value, str)
        else literal(OmegaConf.to_object(value) if OmegaConf.is_config(value) else value)
    )


def latest(dimensions: Sequence[Dimension]) -> list[Dimension]:
    """Where a key is swept and given more than once, the last one wins, as anywhere on a command line."""
    keys = [dimension.key.lstrip("+") for dimension in dimensions]
    swept = {key for key, dimension in zip(keys, dimensions, strict=True) if dimension.swept}
    last = {key: i for i, key in enumerate(keys)}
    return [d for i, (key, d) in enumerate(zip(keys, dimensions, strict=True)) if key not in swept or last[key] == i]


def compose_hydra(dimensions: Sequence[Dimension], ours: Sequence[str]) -> DictConfig:
    """Hydra's own config, with the launcher and the sweeper that were chosen."""
    register()
    check_hydra(ours)
    first = [dimension.override(dimension.values[0]) for dimension in dimensions]
    with naming(", ".join(d.override(d.values[0]) for d in dimensions if d.swept)):
        hydra: DictConfig = compose_config([*first, *ours], hydra_too=True).hydra
    for group, node in (("launcher", hydra.launcher), ("sweeper", hydra.sweeper)):
        name = hydra.runtime.choices[f"hydra/{group}"]
        if not trusted(str(node.get("_target_")), ()):
            raise UserError(f"hydra/{group}={shown(name)} is not a {group} of rlx; choose one of {_listed(group)}.")
    return hydra


class naming:
    """To compose and check a job in: a sentence about it begins with what the job is."""

    def __init__(self, name: str):
        self.name = name

    def __enter__(self) -> None:
        """Nothing to do."""

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if isinstance(error, UserError) and self.name:
            raise UserError(f"The job {shown(self.name)}: {error}") from error


def check_hydra(ours: Sequence[str]) -> None:
    """A launcher or a sweeper that there is not, and sweeps over what belongs to the sweep itself."""
    for override in ours:
        key, _, value = override.lstrip("+").partition("=")
        try:
            swept = OverridesParser.create().parse_override(override).is_sweep_override()
        except (HydraException, ValueError, RecursionError) as error:
            raise UserError(explain(error, [override])) from error
        if swept:
            raise UserError(f"{shown(override)} belongs to the sweep as a whole and has one value.")
        group = key.removeprefix("hydra/")
        if group in ("launcher", "sweeper") and key.startswith("hydra/"):
            names = launchers(group)
            if value not in names:
                guess = nearest(value, names)
                meant = f" Did you mean {key}={guess}?" if guess else ""
                raise UserError(f"Unknown {group} {shown(value)!r}.{meant} Choices: {', '.join(names)}.")


def launchers(group: str) -> list[str]:
    """The launchers or sweepers that there are."""
    return sorted(name.removesuffix(".yaml") for name in ConfigStore.instance().list(f"hydra/{group}"))


def _listed(group: str) -> str:
    return ", ".join(f"hydra/{group}={name}" for name in launchers(group))


def sweep_folder(name: str | None, ours: Sequence[str], hydra: DictConfig) -> Path:
    chosen = any(override.lstrip("+").startswith(f"{FOLDER}=") for override in ours)
    if name is not None and chosen:
        raise UserError(f"{NAME}={name} and {FOLDER} both say where the sweep goes; give one of them.")
    if name is not None:
        return SWEEPS / name
    try:
        return Path(str(hydra.sweep.dir)).expanduser()
    except (OmegaConfBaseException, RuntimeError) as error:
        raise UserError(f"{FOLDER} does not lead to a folder ({shown(error)}); give a plain path.") from error
