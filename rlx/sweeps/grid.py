"""A plain sweep: every combination of the values that were typed, checked before the first job starts."""

from __future__ import annotations

import itertools
import logging
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from rlx.build import env_spec
from rlx.config import check_spec, env_modules
from rlx.config.overrides import parse_override
from rlx.data.presence import check_there
from rlx.errors import UserError
from rlx.reporting import counted
from rlx.sweeps.job import Ended, Task, prepare
from rlx.sweeps.manifest import MOST_JOBS, SEED, Job, Sweep
from rlx.sweeps.settings import Dimension, Plan, naming
from rlx.system import AUTO, MAX_THREADS, choose_device, usable_cpus
from rlx.types import NO_ENV, Spec

log = logging.getLogger("rlx")


@dataclass
class GridConfig:
    """Every combination of the values."""

    _target_: str = "rlx.sweeps.grid.Grid"
    params: dict[str, Any] | None = field(default_factory=dict)  # key -> values, as on the command line


@dataclass
class BasicConfig(GridConfig):
    """The same under Hydra's name."""


class Grid:
    """The jobs of a plain sweep, in the order of their numbers."""

    def __init__(self, cfg: GridConfig, plan: Plan, sweep: Sweep):
        self.plan, self.sweep = plan, sweep
        if not sweep.jobs:
            refuse_intervals(plan.dimensions)
            sweep.swept = list(dict.fromkeys(d.name for d in plan.dimensions if d.swept))
            add_jobs(sweep, plan.dimensions)
        self._waiting = [job for job in sweep.jobs if unfinished(job) or plan.changes]
        self.configs = Checked(plan, sweep)
        self.configs.check(self._waiting)

    def next(self) -> Task | None:
        return self.configs.task(self._waiting.pop(0)) if self._waiting else None

    def finished(self) -> bool:
        return not self._waiting

    def planned(self) -> str:
        return counted(len(self.sweep.jobs), "job")

    def left(self) -> str:
        return f"{len(self._waiting)} of {self.planned()} left"

    def close(self) -> list[str]:
        return []

    def evaluated(self, job: Job, row: dict[str, Any]) -> str | None:
        return None

    def ended(self, job: Job, ended: Ended) -> None:
        """Nothing depends on it."""


def unfinished(job: Job) -> bool:
    return job.state not in ("done", "pruned")


def refuse_intervals(dimensions: Sequence[Dimension]) -> None:
    for dimension in dimensions:
        if dimension.interval is not None:
            raise UserError(
                f"{dimension.text} is a range to search in, and a plain sweep tries every value; give values "
                f"({dimension.key}=choice(...) or range(...)), or add hydra/sweeper=optuna."
            )


def add_jobs(sweep: Sweep, dimensions: Sequence[Dimension]) -> None:
    count = math.prod(len(dimension.values) for dimension in dimensions)
    if count > MOST_JOBS:
        raise UserError(f"This sweep has {count:,} jobs, and rlx runs at most {MOST_JOBS:,}; leave some values out.")
    for values in itertools.product(*(dimension.values for dimension in dimensions)):
        pairs = list(zip(dimensions, values, strict=True))
        choices = {dimension.name: plain(value) for dimension, value in pairs if dimension.swept}
        sweep.add_job([dimension.override(value) for dimension, value in pairs], choices, count)


def plain(value: str) -> str:
    """A value as a person reads it, without quotes and escapes."""
    read = parse_override(f"value={value}")
    text = None if read is None or read.is_sweep_override() else read.value()
    return text if isinstance(text, str) else value


class Checked:
    """Jobs as tasks, and the configs that they run with; envs are made once for all jobs that share them."""

    def __init__(self, plan: Plan, sweep: Sweep):
        self.plan, self.sweep = plan, sweep
        self.threads = 1  # the most that a job computes with
        self._specs: dict[str, Spec] = {}
        self._configs: dict[int, DictConfig] = {}

    def task(self, job: Job, changes: Sequence[str] = ()) -> Task:
        """What a launcher is told of a job; `changes` are further values that a resume of it changes."""
        folder = str(self.sweep.job_folder(job).absolute())
        every = (*self.plan.changes, *changes)
        return Task(job.number, folder, tuple(job.overrides), every, self.plan.trust, self.plan.typed)

    def config(self, job: Job) -> DictConfig | None:
        """Its config, if it was checked."""
        return self._configs.get(job.number)

    def check(self, jobs: Sequence[Job]) -> None:
        """Refuse, naming the job, what a single run would refuse before it trains. Jobs that differ in their seeds
        alone are composed once.
        """
        for group in _same_but_for_seeds(jobs, [self.task(job) for job in jobs]):
            first, cfg = group[0], None
            for job in group:
                with naming(job.name if job.choices else ""):
                    if cfg is None:
                        cfg = self._check_one(first)
                    elif job.choices.get(SEED, "").isdigit():
                        cfg.seed = int(job.choices[SEED])
                    check_there(cfg.dataset)
                    self._configs[job.number] = cfg

    def _check_one(self, job: Job) -> DictConfig:
        cfg = prepare(self.task(job))
        with choose_device(cfg.device):
            pass
        if cfg.env.id != NO_ENV:
            check_spec(cfg, self._spec(cfg))
        threads = cfg.threads
        self.threads = max(self.threads, min(MAX_THREADS, usable_cpus()) if threads == AUTO else threads or 1)
        return cfg

    def _spec(self, cfg: DictConfig) -> Spec:
        trust = [*cfg.trust, *env_modules(cfg)]
        key = f"{OmegaConf.to_yaml(cfg.env, resolve=True)}{trust}"
        if key not in self._specs:
            self._specs[key] = env_spec(OmegaConf.to_object(cfg.env), trust)  # type: ignore[arg-type]
        return self._specs[key]


def _same_but_for_seeds(jobs: Sequence[Job], tasks: Sequence[Task]) -> Iterator[list[Job]]:
    groups: dict[Any, list[Job]] = {}
    for job, task in zip(jobs, tasks, strict=True):
        plain_seed = re.fullmatch(r"\d{1,18}", job.choices.get(SEED, ""))
        rest = tuple(o for o in task.overrides if not (plain_seed and o.partition("=")[0] == SEED))
        saved = Path(task.folder).name if task.begun else None  # has a config of its own
        groups.setdefault((rest, saved), []).append(job)
    yield from groups.values()
