"""Trials as jobs of a sweep: each is run once for each of its seeds, and its value is their mean."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rlx.errors import UserError, shown
from rlx.files import read_bounded
from rlx.reporting import counted
from rlx.sweeps.driver import BAD_INPUT
from rlx.sweeps.grid import Checked, plain
from rlx.sweeps.job import Ended, Task
from rlx.sweeps.manifest import FILE, MOST_JOBS, SEED, Job, Sweep
from rlx.sweeps.search.best import how_to_run, write_best
from rlx.sweeps.search.sampling import check_sampler, draw, grid, importance
from rlx.sweeps.search.settings import EVALUATIONS, SearchConfig
from rlx.sweeps.search.space import domains_from, domains_of
from rlx.sweeps.search.study import StoredStudy
from rlx.sweeps.search.trials import Trial, best_of, trials_from
from rlx.sweeps.settings import Plan
from rlx.system import PAUSED
from rlx.trainers.trainer import total_steps

SEED_STEPS = 1_000_000  # evaluations of a seed in the reports of its trial: those of the next seed come after them


class Search:
    """A search without a scheduler: each trial runs its whole budget, unless it is pruned."""

    def __init__(self, settings: SearchConfig, plan: Plan, sweep: Sweep):
        self.settings, self.plan, self.sweep = settings, plan, sweep
        self.sign = 1.0 if settings.direction == "maximize" else -1.0
        self.configs = Checked(plan, sweep)
        self._waiting: list[Job] = []
        self._best_so_far: dict[int, float] = {}  # of each job
        self._evaluations: dict[int, list[tuple[Any, Any]]] = {}  # of each job, by its counters
        self._opened = False
        self.trials: list[Trial] = []
        self.steps: int | None = None  # the budget of a run, on the clock of its regime
        self.eval_interval = 1
        fresh = sweep.search is None
        if sweep.search is None:
            self.domains = domains_of(plan.dimensions)
            self.fixed = [d.text for d in plan.dimensions if not d.swept]
            self._check_space()
            sweep.swept = [domain.name for domain in self.domains] + ([SEED] if settings.seeds > 1 else [])
        else:
            self._restore(sweep.search)
        check_sampler(settings, self.domains)
        combinations = len(grid(self.domains)) if settings.sampler == "grid" else MOST_JOBS
        self.most = min(combinations, settings.trials or combinations)
        if fresh:
            self.seeds = self._read_seeds()
            self._add_trial()
        self.prepare()
        if not fresh:
            for trial in self.trials:
                self.resume_trial(trial)
            self.configs.check(self._waiting)
        warmup = round(settings.warmup * (self.steps or 0) / self.eval_interval)
        self.study = StoredStudy(settings, self.domains, sweep.folder, warmup)

    def prepare(self) -> None:
        """What a scheduler works out from the budget."""

    def _check_space(self) -> None:
        if not self.domains:
            raise UserError(
                "There is nothing to search; give search=NAME, or values such as 'algo.tau=interval(0.001,0.1)'."
            )
        if any(domain.name == SEED for domain in self.domains):
            raise UserError("A search compares values over seeds; use search.seeds=N instead of sweeping over seed.")

    def _read_seeds(self) -> list[int]:
        typed = [o.partition("=")[2] for o in self.fixed if o.lstrip("+").partition("=")[0] == SEED]
        if typed and not typed[-1].isdigit():
            raise UserError(f"{SEED}={shown(typed[-1])} is not an integer of 0 or more.")
        first = int(typed[-1]) if typed else 0
        return [first + i for i in range(self.settings.seeds)]

    # -- what is on disk -------------------------------------------------------------------------------------------

    def _restore(self, written: dict[str, Any]) -> None:
        """Go on with what sweep.json says: trials that have not ended, or failed, run again."""
        try:
            self.domains = domains_from(written["space"])
            self.trials = trials_from(written["trials"], self.domains, len(self.sweep.jobs))
            self.fixed = [str(o) for o in written["fixed"]]
            self.seeds = [int(seed) for seed in written["seeds"]]
            self.steps = None if written["steps"] is None else int(written["steps"])
            self.eval_interval = max(1, int(written["eval_interval"]))
            owners = {number: trial.number for trial in self.trials for number in trial.jobs}
            if [owners.get(job.number) for job in self.sweep.jobs] != [job.trial for job in self.sweep.jobs]:
                raise ValueError("its trials and its jobs do not belong together")
            if any(len(trial.jobs) != len(self.seeds) for trial in self.trials):
                raise ValueError("a trial has not one job for each seed")
        except (LookupError, TypeError, ValueError, AttributeError, StopIteration) as error:
            raise UserError(f"{self.sweep.folder / FILE}: the search in it is damaged ({shown(error)}).") from error

    def resume_trial(self, trial: Trial) -> None:
        """Have a trial wait that has not ended, or failed."""
        if trial.state == "failed":
            trial.state = "running"
        if trial.state == "running":
            self.settle(trial)  # the search may have ended before it was written down
        if trial.state == "failed" and self._refused(trial):
            return
        if trial.state in ("running", "failed"):
            trial.state = "running"
            self.queue(trial)

    def _refused(self, trial: Trial) -> bool:
        """Did its values make no run, and do they still not?"""
        jobs = self.jobs_of(trial)
        if any(job.exit_code != BAD_INPUT or self.configs.task(job).begun for job in jobs):
            return False
        try:
            self.configs.check(jobs)
        except UserError:
            return True
        return False

    def note(self) -> None:
        """Write down what the search knows."""
        best = best_of(self.trials, self.settings.direction)
        before = self.sweep.search or {}
        self.sweep.search = {
            "sampler": self.settings.sampler,
            "scheduler": self.settings.scheduler,
            "objective": self.settings.objective,
            "direction": self.settings.direction,
            "space": {domain.name: domain.written() for domain in self.domains},
            "trials": [asdict(trial) for trial in self.trials],
            "best": None if best is None else best.number,
            "importance": before.get("importance", {}),
            "settings": {k: v for k, v in asdict(self.settings).items() if k not in ("space", "fixed")},
            "fixed": self.fixed,
            "seeds": self.seeds,
            "steps": self.steps,
            "eval_interval": self.eval_interval,
        }

    # -- trials ----------------------------------------------------------------------------------------------------

    def _add_trial(self) -> Trial:
        """The next trial and its jobs, which wait."""
        values = draw(self.settings, self.domains, self.trials)
        number = len(self.trials)
        trial = Trial(number, values, [])
        fixed = [o for o in self.fixed if o.lstrip("+").partition("=")[0] != SEED]
        drawn = self.overrides_of(trial)
        choices = {domain.name: plain(domain.text(values[domain.name])) for domain in self.domains}
        total = max(self.most * len(self.seeds), len(self.sweep.jobs) + len(self.seeds))
        jobs = []
        for seed in self.seeds:
            more = {SEED: str(seed)} if len(self.seeds) > 1 else {}
            jobs.append(self.sweep.add_job([*fixed, *drawn, f"{SEED}={seed}"], choices | more, total, trial=number))
        trial.jobs = [job.number for job in jobs]
        self.trials.append(trial)
        try:
            self.configs.check(jobs)
            self._waiting += jobs
        except UserError as error:
            if number == 0:  # what is wrong with it is wrong with all
                raise
            trial.state = "failed"
            for job in jobs:
                job.state, job.exit_code, job.reason = "failed", BAD_INPUT, str(error)
        if number == 0:
            self._read_budget(jobs[0])
        self.note()
        return trial

    def _read_budget(self, job: Job) -> None:
        cfg = self.configs.config(job)
        assert cfg is not None  # it was checked
        self.steps = total_steps(cfg.trainer)
        self.eval_interval = int(cfg.trainer.eval_interval) or self.steps or 1  # 0: only at the end

    def overrides_of(self, trial: Trial) -> list[str]:
        """Its values, as one would type them."""
        return [f"{domain.key}={domain.text(trial.values[domain.name])}" for domain in self.domains]

    def jobs_of(self, trial: Trial) -> list[Job]:
        return [self.sweep.jobs[number] for number in trial.jobs]

    def queue(self, trial: Trial) -> None:
        """Have the runs of a trial wait that have not come to where they are to go."""
        self._waiting += [job for job in self.jobs_of(trial) if job.state not in ("done", PAUSED)]

    def running(self) -> bool:
        """Is any trial under way?"""
        return any(trial.state == "running" for trial in self.trials)

    def let_go_on(self, trial: Trial) -> None:
        """Have the paused runs of a trial go on."""
        jobs = [job for job in self.jobs_of(trial) if job.state != "done"]
        self.configs.check([job for job in jobs if self.configs.config(job) is None])  # not in this session
        for job in jobs:
            job.state = "waiting"
        trial.state = "running"
        self.queue(trial)

    def report(self, trial: Trial, step: int, value: float) -> bool:
        """Note how a trial does, and ask Optuna whether it is worth going on."""
        if step in trial.reported():
            return False
        trial.reports.append([step, value])
        return self._opened and self.study.report(trial, step, value)

    # -- the source of the driver ----------------------------------------------------------------------------------

    def next(self) -> Task | None:
        self.open()
        while not self._waiting:
            if not self.go_on():
                return None
            self.note()
            self.sweep.save()  # before anything of it runs: numbers and values are never given out twice
        job = self._waiting.pop(0)
        return self.configs.task(job, self.changes(job))

    def open(self) -> None:
        """The study on disk, once the folder of the sweep is there."""
        if not self._opened:
            self.study.open(self.trials)
            self._opened = True

    def go_on(self) -> bool:
        """Add jobs that can start now; were there any?"""
        if len(self.trials) >= self.most:
            return False
        trial = self._add_trial()
        self.study.begin(trial)
        return True

    def changes(self, job: Job) -> list[str]:
        """What is changed when a job starts, or goes on."""
        return []

    def finished(self) -> bool:
        return not self._waiting and len(self.trials) >= self.most

    def evaluated(self, job: Job, row: dict[str, Any]) -> str | None:
        assert job.trial is not None
        trial = self.trials[job.trial]
        value: Any = row.get("eval/return_mean")
        if self.settings.objective not in EVALUATIONS or not _is_number(value):
            return None
        if self.settings.objective == "best_eval_return_mean":
            value = self._best_so_far[job.number] = max(value, self._best_so_far.get(job.number, -math.inf))
        return self.compare(trial, job, row, value)

    def compare(self, trial: Trial, job: Job, row: dict[str, Any], value: float) -> str | None:
        """Tell Optuna how a trial does, and ask whether it is worth going on."""
        if self.settings.pruner == "none":
            return None
        counters, seen = (row["env_steps"], row["updates"]), self._evaluations.setdefault(job.number, [])
        if counters not in seen:  # a run that goes on tells all of its rows again
            seen.append(counters)
        index = seen.index(counters)
        step = trial.jobs.index(job.number) * SEED_STEPS + index
        if self.report(trial, step, value) and trial.state == "running":
            self._prune(trial)
        return "pruned" if trial.state == "pruned" else None

    def _prune(self, trial: Trial) -> None:
        trial.state = "pruned"
        for job in self.jobs_of(trial):
            if job in self._waiting:
                self._waiting.remove(job)
                job.state = "pruned"

    def ended(self, job: Job, ended: Ended) -> None:
        assert job.trial is not None
        trial = self.trials[job.trial]
        self.settle(trial)
        self.study.end(trial)
        self.note()

    def settle(self, trial: Trial) -> None:
        """What became of a trial, once all of its runs have ended."""
        jobs = self.jobs_of(trial)
        if any(job.state in ("waiting", "running", "interrupted") for job in jobs):
            return
        values = [self.objective(job) for job in jobs if job.state == "done"]
        numbers = [value for value in values if value is not None]
        if any(job.state == "pruned" for job in jobs):
            trial.state = "pruned"
        elif len(numbers) < len(jobs):
            trial.state = "failed"
        else:
            trial.state, trial.value = "done", math.fsum(numbers) / len(numbers)

    def objective(self, job: Job) -> float | None:
        """The number that a run is judged by; a run without one has failed."""
        value: Any = read_summary(self.sweep.job_folder(job)).get(self.settings.objective)
        if _is_number(value):
            return float(value)
        job.state, job.exit_code = "failed", 1
        job.reason = f"Its summary has no {self.settings.objective}; is it evaluated?"
        return None

    def close(self) -> list[str]:
        """The search is over, for now: the best of it is written down; lines that tell of it."""
        self.open()
        best = best_of(self.trials, self.settings.direction)
        self.note()
        assert self.sweep.search is not None
        if best is None or best.value is None:
            return ["No trial has ended with a value."]
        self.sweep.search["importance"] = weights = importance(self.settings, self.domains, self.trials)
        overrides = [o for o in self.jobs_of(best)[0].overrides if o.partition("=")[0] != SEED]
        overrides = self.best_overrides(best, overrides)
        name, what = self.settings.objective, counted(len(self.trials), "trial")
        write_best(
            self.sweep.folder, overrides, f"The best of {what} of {self.sweep.name}: trial {best.number}, {name} "
            f"{best.value:.6g}."
        )  # fmt: skip
        values = ", ".join(f"{key}={value}" for key, value in best.values.items())
        lines = [f"Best of {what}: trial {best.number}, {name} {best.value:.4g} ({values})"]
        if weights:
            lines.append("Importance: " + ", ".join(f"{key} {weight:.0%}" for key, weight in weights.items()))
        return [*lines, how_to_run(self.sweep.folder, overrides)]

    def best_overrides(self, best: Trial, overrides: list[str]) -> list[str]:
        """What the best trial was run with, at the end."""
        return overrides

    def planned(self) -> str:
        seeds = f" of {counted(self.settings.seeds, 'seed')}" if self.settings.seeds > 1 else ""
        return f"{counted(self.most, 'trial')}{seeds} ({self.settings.sampler})"

    def left(self) -> str:
        return f"{sum(trial.over for trial in self.trials)} of {counted(self.most, 'trial')} have ended"


def read_summary(folder: Path) -> dict[str, Any]:
    try:
        summary = json.loads(read_bounded(folder / "summary.json", follow=False))
        return summary if isinstance(summary, dict) else {}
    except (OSError, ValueError, RecursionError):
        return {}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
