"""Population based training (Jaderberg et al., 2017, arXiv:1711.09846).

Every trial is a member, and all of them train at once. Every `search.interval` steps they pause with a checkpoint and
are compared by their last evaluations: the worst (`search.replaced`) take over the checkpoint of one of the best and go
on with its values, perturbed; a member that has failed does so, too. Values with `tag(log, ...)` are multiplied or
divided by `search.perturb`; others go up or down by the same share of their interval.

Members are compared when all of them have come to the same step, not as they come. So what a population does depends on
its values and on `search.seed` alone, not on how fast each member was, and a search that was killed goes on exactly.
All members have the same seed: a member that takes over another continues that very run.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from rlx.checkpoint import CheckpointStore
from rlx.errors import UserError, require
from rlx.files import read_bounded, write_atomically
from rlx.run_folder import RunLock, refuse_links
from rlx.sweeps.manifest import FILE, Job
from rlx.sweeps.search.settings import SearchConfig
from rlx.sweeps.search.source import Search
from rlx.sweeps.search.space import Domain, Value
from rlx.sweeps.search.trials import Trial
from rlx.system import PAUSED

METRICS_LIMIT = 2**31  # bytes of a metrics.jsonl that is copied
INTERVALS = 10  # between two comparisons, unless search.interval says otherwise


def comparisons(settings: SearchConfig, steps: int | None, eval_interval: int) -> list[int]:
    """The steps at which members are compared; each has an evaluation, and the last is the end of a run."""
    if steps is None:
        raise UserError("search.scheduler=pbt needs a budget in steps, such as trainer.max_env_steps=10000.")
    interval = math.ceil((settings.interval or steps / INTERVALS) / eval_interval) * eval_interval
    if interval >= steps:
        raise UserError(
            f"Members are compared every {interval:,} steps, and a run has {steps:,}; lower trainer.eval_interval or "
            "search.interval, or give a larger budget."
        )
    return [*range(interval, steps, interval), steps]


def perturbed(domain: Domain, value: Value, factor: float, up: bool) -> Value:
    """A value somewhat higher or lower, within its interval."""
    assert not isinstance(value, str)  # a population has numbers only
    if domain.log:
        moved = value * factor if up else value / factor
    else:
        moved = value + (factor - 1) * (domain.high - domain.low) * (1 if up else -1)
    if domain.kind == "int" and round(moved) == value:
        moved = value + (1 if up else -1)
    return domain.value(min(max(moved, domain.low), domain.high))


class Population(Search):
    """Members that pause at the same steps; `reports` of a trial are what they came to there."""

    def prepare(self) -> None:
        for domain in self.domains:
            if domain.kind == "choice":
                raise UserError(
                    f"search.scheduler=pbt changes values while a run goes on, and {domain.name} is a choice; give it "
                    "an interval, or one value."
                )
        if self.most < 2:
            raise UserError("A population has at least two members; give search.trials=2 or more.")
        self.stops = comparisons(self.settings, self.steps, self.eval_interval)
        inside = all(0 <= trial.generation < len(self.stops) for trial in self.trials)
        require(inside, f"{FILE} has more comparisons than it says.")

    def go_on(self) -> bool:
        if len(self.trials) < self.most:
            return super().go_on()
        paused = [trial for trial in self.trials if trial.state == PAUSED]
        if self.running() or not paused:
            return False
        generation = min(trial.generation for trial in paused)
        members = [trial for trial in paused if trial.generation == generation]
        failed = [trial for trial in self.trials if trial.state == "failed" and self._has_begun(trial)]
        self._replace(members, failed, generation)
        for trial in members:
            trial.generation = generation + 1
        for trial in [*members, *(trial for trial in failed if trial.generation == generation + 1)]:
            self.let_go_on(trial)
        return True

    def changes(self, job: Job) -> list[str]:
        assert job.trial is not None
        trial = self.trials[job.trial]
        stop = self.stops[trial.generation]
        now = self.overrides_of(trial) if job.lineage else []
        return [*now, f"trainer.pause_at={'null' if stop == self.stops[-1] else stop}"]

    def finished(self) -> bool:
        return super().finished() and not any(trial.state in ("running", PAUSED) for trial in self.trials)

    # -- members take over others ----------------------------------------------------------------------------------

    def _replace(self, members: list[Trial], failed: list[Trial], generation: int) -> None:
        """Have the worst members, and those that failed, stand where one of the best does. What is decided depends on
        sweep.json alone, and is written there when all is copied: if this is ended in the middle, it is done again.
        """
        stop = self.stops[generation]
        ranked = sorted(members, key=lambda trial: -self.sign * trial.reported()[stop])
        count = min(math.ceil(self.settings.replaced * len(ranked)), len(ranked) // 2)
        best = ranked[: max(1, count)]
        rng = np.random.default_rng(np.random.SeedSequence([self.settings.seed, generation, 0x9B7]))
        decided = []
        for trial in sorted([*ranked[len(ranked) - count :], *failed], key=lambda trial: trial.number):
            parent = best[rng.integers(len(best))]
            values = {
                domain.name: perturbed(domain, parent.values[domain.name], self.settings.perturb, rng.random() < 0.5)
                for domain in self.domains
            }
            decided.append((trial, parent, values))
        for trial, parent, _ in decided:
            self._copy(parent, trial)
        for trial, parent, values in decided:
            (job,), (source,) = self.jobs_of(trial), self.jobs_of(parent)
            trial.values, trial.generation = values, generation + 1
            job.lineage.append({
                "at": source.result["env_steps"] if source.result else stop,
                "from": source.number,
                "overrides": self.overrides_of(trial),
            })  # fmt: skip

    def _copy(self, parent: Trial, trial: Trial) -> None:
        """The checkpoint of one member as that of another, and the metrics that led to it."""
        (source,), (job,) = self.jobs_of(parent), self.jobs_of(trial)
        theirs, ours = self.sweep.job_folder(source), self.sweep.job_folder(job)
        for folder in (theirs, ours):
            refuse_links(folder)
        with RunLock(ours), RunLock(theirs):
            for name in self._metrics(source):
                write_atomically(ours / name, read_bounded(theirs / name, METRICS_LIMIT, follow=False))
            CheckpointStore(theirs / "checkpoints").copy_latest(ours / "checkpoints")

    def _metrics(self, job: Job) -> list[str]:
        """The files of which a checkpoint knows the length."""
        cfg = self.configs.config(job)
        loggers = {} if cfg is None else cfg.logger
        names = [str(node.filename) for node in loggers.values() if "filename" in node]
        return [name for name in names if (self.sweep.job_folder(job) / name).is_file()]

    def _has_begun(self, trial: Trial) -> bool:
        return all((self.sweep.job_folder(job) / "config.yaml").is_file() for job in self.jobs_of(trial))

    # -- what has ended --------------------------------------------------------------------------------------------

    def compare(self, trial: Trial, job: Job, row: dict[str, Any], value: float) -> str | None:
        return None  # members are compared when all have paused

    def settle(self, trial: Trial) -> None:
        (job,) = self.jobs_of(trial)
        if job.state == "done" and job.result is not None and job.result["stop_reason"] == PAUSED:
            job.state = PAUSED
        value = self.objective(job) if job.state == PAUSED else None
        if value is None:
            super().settle(trial)
            return
        self.report(trial, self.stops[trial.generation], value)
        trial.state = PAUSED

    def best_overrides(self, best: Trial, overrides: list[str]) -> list[str]:
        drawn = tuple(f"{domain.key}=" for domain in self.domains)
        return [*(o for o in overrides if not o.startswith(drawn)), *self.overrides_of(best)]
