"""search=NAME and search.KEY=VALUE: how a search goes about it, from conf/search/NAME.yaml and the command line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rlx.choices import choices
from rlx.config import parse
from rlx.config.errors import explain
from rlx.errors import UserError, nearest, shown
from rlx.fields import check_numbers, number
from rlx.files import read_bounded
from rlx.paths import conf_dir

GROUP = "search"
SAMPLERS = ("tpe", "cmaes", "gp", "random", "grid")
SCHEDULERS = ("none", "asha", "pbt")
PRUNERS = ("median", "none")
DIRECTIONS = ("maximize", "minimize")
AUTO = "auto"
EVALUATIONS = {"eval_return_mean", "best_eval_return_mean"}  # objectives that are known while a run goes on
OBJECTIVES = (*sorted(EVALUATIONS), "env_steps", "updates", "epoch", "wall_time_s")  # numbers of a summary.json


@dataclass
class SearchConfig:
    """What is searched, and how."""

    sampler: str = "tpe"  # tpe, cmaes, gp, random, grid
    trials: int | None = number(20, least=1)  # how many; with sampler=grid null: every combination
    seeds: int = number(1, least=1)  # runs of each trial, whose mean counts
    objective: str = AUTO  # a number of summary.json; auto: best_eval_return_mean, of pbt eval_return_mean
    direction: str = "maximize"  # or minimize
    seed: int = number(0, least=0)  # of the sampler
    startup: int = number(10, least=1)  # trials that are drawn at random before tpe and gp learn from them
    pruner: str = "median"  # median: end a trial whose evaluations are worse than those of most; none
    warmup: float = number(0.25, least=0, most=1)  # share of a run before it may be pruned
    scheduler: str = "none"  # asha: successive halving; pbt: population based training
    rungs: int = number(3, least=2)  # asha: budgets at which trials are compared, the whole one included
    factor: int = number(3, least=2)  # asha: one in so many goes on, for so many times the steps
    interval: int | None = number(None, least=1)  # pbt: steps between two comparisons; null: a tenth of the budget
    replaced: float = number(0.25, above=0, most=0.5)  # pbt: share of the members that take over a better one
    perturb: float = number(1.2, above=1)  # pbt: a value is multiplied or divided by this
    storage: str | None = None  # an Optuna URL; null: a journal in the folder of the sweep
    fixed: dict[str, Any] = field(default_factory=dict)  # overrides of every trial, by key
    space: dict[str, Any] = field(default_factory=dict)  # what is searched, by key: interval(...), choice(...), ...


def take_search(overrides: Sequence[str]) -> tuple[list[str], list[str]]:
    """`search=NAME` and `search.KEY=VALUE` out of the overrides, and the rest."""
    ours = [o for o in overrides if o.lstrip("+~").partition("=")[0].partition(".")[0] == GROUP]
    return ours, [o for o in overrides if o not in ours]


def read_search(ours: Sequence[str], folders: Sequence[Path]) -> SearchConfig:
    """The settings of a search as they were typed; `folders` are the user's own config folders."""
    cfg = OmegaConf.structured(SearchConfig)
    names = [o.partition("=")[2] for o in ours if o.lstrip("+").partition("=")[0] == GROUP]
    if len(names) > 1:
        raise UserError(f"A search has one name; give {GROUP}=NAME once.")
    for name in names:
        cfg = _merge(cfg, _read_file(name, folders), f"{GROUP}={name}")
    return change_search(cfg, [o for o in ours if o.lstrip("+").partition("=")[0] != GROUP])


def change_search(cfg: Any, ours: Sequence[str]) -> SearchConfig:
    """Settings with values changed by `search.KEY=VALUE`; checked."""
    cfg = OmegaConf.structured(cfg) if isinstance(cfg, SearchConfig) else cfg
    for override in ours:
        key = override.partition("=")[0].removeprefix(f"{GROUP}.")
        if key not in cfg or key in ("fixed", "space"):
            names = [str(name) for name in cfg if name not in ("fixed", "space")]
            guess = nearest(key, names)
            hint = f"did you mean {GROUP}.{guess}?" if guess else f"there are: {', '.join(names)}."
            raise UserError(f"There is no setting {shown(override.partition('=')[0])} of a search; {hint}")
        try:
            read = OverridesParser.create().parse_override(override)
            if read.is_sweep_override():
                raise UserError(f"{shown(override)} belongs to the search as a whole and has one value.")
            cfg[key] = read.value()
        except (HydraException, OmegaConfBaseException, ValueError, TypeError, RecursionError) as error:
            raise UserError(shown(explain(error, [override]), 500)) from error
    settings: SearchConfig = OmegaConf.to_object(cfg)  # type: ignore[assignment]
    check_search(settings)
    return settings


def settings_from(values: Any) -> SearchConfig:
    """Settings as sweep.json keeps them; data, which is checked."""
    return change_search(_merge(OmegaConf.structured(SearchConfig), values, "the search in sweep.json"), ())


def check_search(settings: SearchConfig) -> None:
    """Refuse values that a search cannot have."""
    check_numbers(settings, GROUP)
    if settings.objective == AUTO:
        settings.objective = "eval_return_mean" if settings.scheduler == "pbt" else "best_eval_return_mean"
    known = (
        ("sampler", SAMPLERS),
        ("scheduler", SCHEDULERS),
        ("pruner", PRUNERS),
        ("direction", DIRECTIONS),
        ("objective", OBJECTIVES),
    )
    for name, names in known:
        value = getattr(settings, name)
        if value not in names:
            guess = nearest(value, names)
            meant = f" Did you mean {GROUP}.{name}={guess}?" if guess else ""
            raise UserError(f"Unknown {name} {shown(value)!r}.{meant} Choices: {', '.join(names)}.")
    if settings.trials is None and settings.sampler != "grid":
        raise UserError(f"{GROUP}.trials=null is for {GROUP}.sampler=grid, which has an end; give a number of trials.")
    if settings.scheduler != "none" and settings.objective not in EVALUATIONS:
        raise UserError(
            f"{GROUP}.scheduler={settings.scheduler} compares trials by their evaluations; use {GROUP}.objective="
            f"{' or '.join(sorted(EVALUATIONS))}."
        )
    if settings.scheduler == "asha" and settings.sampler in ("cmaes", "gp"):
        raise UserError(
            f"{GROUP}.sampler={settings.sampler} cannot learn from trials of different lengths, which "
            f"{GROUP}.scheduler=asha has; use tpe, random or grid."
        )
    if settings.scheduler == "pbt" and settings.objective != "eval_return_mean":
        raise UserError(
            f"A member that takes over another has its best evaluation, too; use {GROUP}.objective=eval_return_mean "
            f"with {GROUP}.scheduler=pbt."
        )
    if settings.scheduler == "pbt" and settings.seeds > 1:
        raise UserError(f"A member of a population is one run; leave out {GROUP}.seeds, or use another scheduler.")


def _read_file(name: str, folders: Sequence[Path]) -> Any:
    """What a file of the group holds; one of the user's own wins."""
    names = choices(GROUP, folders)
    if name not in names:
        guess = nearest(name, names)
        meant = f" Did you mean {GROUP}={guess}?" if guess else ""
        raise UserError(f"Unknown {GROUP} {shown(name)!r}.{meant} Choices: {', '.join(names)}.")
    paths = [folder / GROUP / f"{name}.yaml" for folder in (*reversed(folders), conf_dir())]
    path = next(path for path in paths if path.is_file())
    try:
        return parse(read_bounded(path).decode())
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read ({shown(error)}).") from error


def _merge(cfg: Any, values: Any, name: str) -> DictConfig:
    if not isinstance(values, dict):
        raise UserError(f"{name} is not a mapping from settings to values.")
    for part in ("fixed", "space"):
        if not isinstance(values.get(part, {}), dict):
            raise UserError(f"{name}: {part} is not a mapping from keys to values.")
    try:
        merged = OmegaConf.merge(cfg, values)
    except (OmegaConfBaseException, ValueError, TypeError) as error:
        raise UserError(f"{name}: {shown(next(iter(str(error).splitlines()), error))}.") from error
    assert isinstance(merged, DictConfig)
    return merged
