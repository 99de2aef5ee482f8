"""The loop of a sweep: asks a source for tasks, hands them to a launcher, writes down what happens, and shows it."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from omegaconf import DictConfig

from rlx.files import open_regular, read_bounded
from rlx.sweeps.job import Ended, Task
from rlx.sweeps.launchers.base import LauncherConfig, Pool
from rlx.sweeps.manifest import Job, Sweep, now
from rlx.system import INTERRUPTS, ONE_SIGNAL
from rlx.trainers.trainer import total_steps

POLL = 0.2  # seconds between two looks at the running jobs
SAVE = 1.0  # seconds between two writes of the manifest
CHUNK = 1 << 20  # bytes of metrics that are read at a time
RESULT = ("algo", "env", "seed", "eval_return_mean", "best_eval_return_mean", "env_steps", "updates", "wall_time_s",
          "stop_reason", "exact")  # fmt: skip  # what the manifest keeps of a summary
STOPPED = tuple(128 + number for number in INTERRUPTS)
BAD_INPUT = 2  # an exit code that trying again does not mend


class Source(Protocol):
    """Where tasks come from: a grid, or a search. A source adds its jobs to the sweep before it gives out a task."""

    configs: Any  # the configs of its jobs, see `rlx.sweeps.grid.Checked`

    def next(self) -> Task | None:
        """The next task; None where there is nothing to start now."""

    def finished(self) -> bool:
        """Will there never be anything to start again?"""

    def evaluated(self, job: Job, row: dict[str, Any]) -> str | None:
        """An evaluation of a running job, from its metrics.jsonl; those before a resume are told again. To answer
        "paused" or "pruned" has the job save a checkpoint and stop in that state.
        """

    def ended(self, job: Job, ended: Ended) -> None:
        """A job has ended, for good unless this source starts it again; its state and result may be changed here."""

    def planned(self) -> str:
        """What there is to do in all: '36 jobs'."""

    def left(self) -> str:
        """What there is still to do: '3 of 36 jobs left'."""

    def close(self) -> list[str]:
        """The sweep is over, for now; what there is to say besides its table."""


class View(Protocol):
    """Who watches a sweep."""

    def started(self, job: Job) -> None: ...
    def ended(self, job: Job, again: bool) -> None: ...
    def show(self, running: list[Running]) -> None: ...
    def close(self) -> None: ...


@dataclass
class Running:
    """A job that runs, and how far it has come."""

    job: Job
    task: Task
    tail: Tail
    began: float  # monotonic
    attempt: int
    begun: bool = False  # has a process taken it up
    share: float | None = None  # of its budget
    first_share: float = 0.0  # where this attempt began
    latest: float | None = None  # eval/return_mean
    best: float | None = None
    stopping: str | None = None  # the state it is to be left in
    kill_at: float | None = None  # when it has to be gone

    @property
    def seconds_left(self) -> float | None:
        if self.share is None or self.share <= self.first_share:
            return None
        return (time.monotonic() - self.began) * (1 - self.share) / (self.share - self.first_share)


class Tail:
    """The rows of a run's metrics.jsonl as they come. A resume cuts the file back; no evaluation is told twice."""

    def __init__(self, path: Path, cfg: DictConfig | None):
        self.path, self._offset, self._seen = path, 0, -1
        self._settings = None if cfg is None else cfg.trainer

    def rows(self) -> Iterator[dict[str, Any]]:
        """New rows, each once."""
        for line in self._lines():
            try:
                row = json.loads(line)
                clock = int(row["env_steps"]) + int(row["updates"])
            except (ValueError, LookupError, TypeError, RecursionError):
                continue  # half a line, of a file that was cut back meanwhile
            if row.get("kind") != "eval" or clock > self._seen:
                yield row
            if row.get("kind") == "eval":
                self._seen = max(self._seen, clock)

    def _lines(self) -> list[bytes]:
        try:
            with open(open_regular(self.path, follow=False), "rb") as file:
                if file.seek(0, 2) < self._offset:
                    self._offset = 0
                file.seek(self._offset)
                data = file.read(CHUNK)
        except OSError:  # not there yet
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        return whole.splitlines()

    def share(self, row: dict[str, Any]) -> float | None:
        """How much of the budget a row stands for."""
        if self._settings is None:
            return None
        s, env_steps, updates = self._settings, int(row["env_steps"]), int(row["updates"])
        offline = sum(phase.updates or 0 for phase in s.phases.values() if phase.collect == 0)
        online = any(phase.collect > 0 for phase in s.phases.values())
        steps = env_steps + min(updates, offline) if online else updates
        budgets = ((steps, total_steps(s)), (updates, s.max_updates), (row.get("wall_time"), s.max_seconds))
        shares = [made / limit for made, limit in budgets if limit and made is not None]
        return min(1.0, max(shares)) if shares else None


class Driver:
    """Runs the tasks of a source on a pool until there are none left, or until a signal ends the sweep."""

    def __init__(self, sweep: Sweep, source: Source, pool: Pool, limits: LauncherConfig, view: View, configs: Any):
        self.sweep, self.source, self.pool, self.limits, self.view = sweep, source, pool, limits, view
        self.configs = configs
        self.running: dict[int, Running] = {}
        self.signal: int | None = None  # that ended the sweep
        self._at_once = False
        self._again: list[tuple[Task, int]] = []  # failed, to be taken up again, with the attempts so far
        self._saved = 0.0

    def run(self) -> int:
        """The exit code of the sweep."""
        self.sweep.ended = None
        self.sweep.save()
        try:
            with self._signals():
                while self._start() or self.running:
                    self._look()
        finally:
            self._end()
        if self.signal is not None:
            return 128 + self.signal
        codes = [job.exit_code for job in self.sweep.jobs if job.state in ("failed", "interrupted")]
        return 0 if not codes else BAD_INPUT if all(code == BAD_INPUT for code in codes) else 1

    # -- starting --------------------------------------------------------------------------------------------------

    def _start(self) -> bool:
        """Fill the free slots; is there anything left to do?"""
        while self.signal is None and len(self.running) < self.pool.slots:
            if self._again:
                task, attempt = self._again.pop(0)
            else:
                following = self.source.next()
                if following is None:
                    break
                task, attempt = following, 0
            self._begin(task, attempt + 1)
            if not self.pool.stoppable:
                self._look()  # it has ended already
        return self.signal is None and (bool(self._again) or not self.source.finished())

    def _begin(self, task: Task, attempt: int) -> None:
        job = self.sweep.jobs[task.number]
        job.state, job.exit_code, job.reason, job.started, job.ended = "running", None, None, now(), None
        job.attempts += 1
        folder = self.sweep.job_folder(job)
        folder.mkdir(exist_ok=True)
        tails = [Tail(folder / "metrics.jsonl", self.configs.config(job)) for _ in range(2)]
        before = [tails[0].share(row) or 0.0 for row in tails[0].rows()]  # of a run that is resumed
        self.running[job.number] = Running(
            job, task, tails[1], time.monotonic(), attempt, first_share=max(before, default=0.0)
        )
        self._save(at_once=not self.pool.stoppable)
        self.view.started(job)
        self.pool.start(task)

    # -- looking ---------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        for ended in self.pool.wait(POLL if self.pool.stoppable else 0.0):
            self._ended(ended)
        for running in self.running.values():
            self._follow(running)
            self._hurry(running)
        self._save()
        self.view.show(list(self.running.values()))

    def _follow(self, running: Running) -> None:
        for row in running.tail.rows():
            running.share = running.tail.share(row)
            if row.get("kind") == "eval":
                self._evaluated(running, row)

    def _evaluated(self, running: Running, row: dict[str, Any]) -> None:
        value = row.get("eval/return_mean")
        if isinstance(value, int | float):
            running.latest = value
            running.best = value if running.best is None else max(value, running.best)
        state = self.source.evaluated(running.job, row)
        if state is not None and running.stopping is None:
            self._stop(running, state)

    def _hurry(self, running: Running) -> None:
        """Stop a job that takes too long, and end one that does not stop."""
        at = time.monotonic()
        if not running.begun:  # it may wait in somebody's queue, and no time counts there
            running.begun, running.began = self.pool.begun(running.job.number), at
        if self.limits.timeout is not None and running.stopping is None and at - running.began > self.limits.timeout:
            self._stop(running, "timeout")
        if running.kill_at is not None and at > running.kill_at:
            self.pool.stop(running.job.number, now=True)
            running.kill_at = None

    def _stop(self, running: Running, state: str) -> None:
        running.stopping = state
        if state != "interrupted":  # whoever interrupts a sweep may wait, or press again
            running.kill_at = time.monotonic() + self.limits.grace
        self.pool.stop(running.job.number)

    # -- ending ----------------------------------------------------------------------------------------------------

    def _ended(self, ended: Ended) -> None:
        running = self.running.get(ended.number)
        if running is None:
            return
        self._follow(running)
        del self.running[ended.number]
        job = running.job
        job.exit_code, job.reason, job.ended = ended.exit_code, ended.reason, now()
        job.result = read_result(self.sweep.job_folder(job))
        job.state = self._state(running, ended)
        if ended.exit_code in STOPPED and not self.pool.stoppable and self.signal is None:
            self.signal = ended.exit_code - 128  # it reached the job, which runs in this process
        again = (
            job.state == "failed"
            and ended.exit_code != BAD_INPUT
            and running.attempt <= self.limits.retries
            and self.signal is None
        )
        if again:
            self._again.append((running.task, running.attempt))
        else:
            self.source.ended(job, ended)
        self.view.ended(job, again)

    def _state(self, running: Running, ended: Ended) -> str:
        if ended.exit_code == 0:
            return "done"
        if running.stopping == "timeout":
            running.job.reason = f"It took longer than hydra.launcher.timeout={self.limits.timeout:g} seconds."
            return "failed"
        if running.stopping in ("paused", "pruned") and ended.exit_code in STOPPED:
            running.job.reason = None
            return running.stopping
        if ended.exit_code in STOPPED or running.stopping == "interrupted":
            return "interrupted"
        return "failed"

    def _end(self) -> None:
        self.pool.close()
        for running in self.running.values():  # an error of our own ended the sweep
            running.job.state, running.job.ended = "interrupted", now()
        self.running.clear()
        self.sweep.ended = now()
        self._save(at_once=True)
        self.view.close()

    def _save(self, at_once: bool = False) -> None:
        at = time.monotonic()
        if at_once or at - self._saved > SAVE:
            self.sweep.save()
            self._saved = at

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """SIGINT or SIGTERM once: running jobs save and stop. Twice: at once."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        first = 0.0

        def handle(number: int, frame: Any) -> None:
            nonlocal first
            if self.signal is None:
                self.signal, first = number, time.monotonic()
                for running in list(self.running.values()):
                    self._stop(running, "interrupted")
            elif time.monotonic() - first > ONE_SIGNAL:
                for running in list(self.running.values()):
                    self.pool.stop(running.job.number, now=True)

        before = {number: signal.signal(number, handle) for number in INTERRUPTS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def read_result(folder: Path) -> dict[str, Any] | None:
    """What the manifest keeps of a run's summary.json; None where it has none."""
    try:
        summary = json.loads(read_bounded(folder / "summary.json", follow=False))
        return {key: summary[key] for key in RESULT}
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None
