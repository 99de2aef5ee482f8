"""Asynchronous successive halving (Li et al., 2020, arXiv:1810.05934) that pauses runs instead of ending them.

Rungs are budgets that grow by `search.factor`, up to the whole one. A trial runs to its next rung and pauses there with
a checkpoint. Of the trials that have reached a rung, the best 1 / factor may go on, from where they are: no step is
trained twice, and a run that reaches the end has the bits of one that was never paused. A free slot goes to the highest
rung from which a trial may go on, or else to a new trial. When there is nothing else to do and no trial has run to the
end, the best of the highest rung goes on.
"""

from __future__ import annotations

import math
from typing import Any

from rlx.errors import UserError, require
from rlx.sweeps.manifest import FILE, Job
from rlx.sweeps.search.settings import SearchConfig
from rlx.sweeps.search.source import Search
from rlx.sweeps.search.trials import Trial
from rlx.system import PAUSED


def rungs_of(settings: SearchConfig, steps: int | None, eval_interval: int) -> list[int]:
    """The steps at which trials are compared; each has an evaluation, and the last is the end of a run."""
    if steps is None:
        raise UserError("search.scheduler=asha needs a budget in steps, such as trainer.max_env_steps=10000.")
    shares = [steps / settings.factor**i for i in reversed(range(settings.rungs))]
    rungs = [math.ceil(share / eval_interval) * eval_interval for share in shares[:-1]]
    rungs = [*sorted({rung for rung in rungs if rung < steps}), steps]
    if len(rungs) < settings.rungs:
        raise UserError(
            f"{settings.rungs} rungs of {steps:,} steps need evaluations in between, and there is one every "
            f"{eval_interval:,} steps; lower trainer.eval_interval, or search.rungs."
        )
    return rungs


class Asha(Search):
    """Trials that pause at rungs; `reports` of a trial are the rungs that it has reached."""

    def prepare(self) -> None:
        self.rungs = rungs_of(self.settings, self.steps, self.eval_interval)
        require(
            all(len(trial.reports) <= len(self.rungs) for trial in self.trials), f"{FILE} has more rungs than it says."
        )

    def resume_trial(self, trial: Trial) -> None:
        if trial.state == "pruned":  # more trials may yet let it go on
            trial.state = PAUSED
        super().resume_trial(trial)

    # -- what goes on ----------------------------------------------------------------------------------------------

    def promotable(self) -> Trial | None:
        """The trial that may go on from the highest rung."""
        for level in reversed(range(1, len(self.rungs))):
            reached = [trial for trial in self.trials if len(trial.reports) >= level]
            ranked = sorted(reached, key=lambda trial: -self.sign * trial.reports[level - 1][1])
            for trial in ranked[: len(reached) // self.settings.factor]:
                if trial.state == PAUSED and len(trial.reports) == level:
                    return trial
        return self._last_resort()

    def _last_resort(self) -> Trial | None:
        """The best of the highest rung, where nothing else is left to do and no trial has run to its end."""
        busy = len(self.trials) < self.most or any(trial.state in ("running", "done") for trial in self.trials)
        paused = [] if busy else [trial for trial in self.trials if trial.state == PAUSED]
        return max(paused, key=lambda t: (len(t.reports), self.sign * t.reports[-1][1]), default=None)

    def go_on(self) -> bool:
        trial = self.promotable()
        if trial is None:
            return super().go_on()
        self.let_go_on(trial)
        return True

    def changes(self, job: Job) -> list[str]:
        assert job.trial is not None
        level = len(self.trials[job.trial].reports)
        last = level >= len(self.rungs) - 1
        return [f"trainer.pause_at={'null' if last else self.rungs[level]}"]

    def finished(self) -> bool:
        return super().finished() and self.promotable() is None and not self.running()

    # -- what has ended --------------------------------------------------------------------------------------------

    def compare(self, trial: Trial, job: Job, row: dict[str, Any], value: float) -> str | None:
        return None  # trials are compared at rungs

    def settle(self, trial: Trial) -> None:
        jobs = self.jobs_of(trial)
        for job in jobs:
            if job.result is not None and job.state == "done" and job.result["stop_reason"] == PAUSED:
                job.state = PAUSED
        level = len(trial.reports)
        states = {job.state for job in jobs}
        if PAUSED in states and states <= {PAUSED, "done"}:
            values = [value for value in (self.objective(job) for job in jobs) if value is not None]
            if len(values) == len(jobs):
                self.report(trial, self.rungs[level], math.fsum(values) / len(values))
                trial.state = PAUSED
                return
        super().settle(trial)
        if trial.state == "done" and trial.value is not None:
            self.report(trial, self.rungs[-1], trial.value)

    def close(self) -> list[str]:
        self.open()
        if self.finished():
            for trial in self.trials:
                if trial.state == PAUSED:
                    trial.state = "pruned"
                    self.study.end(trial)
                    for job in self.jobs_of(trial):
                        job.state = "pruned"
        return super().close()
