"""Progress: a bar on a terminal, plain lines anywhere else. Only looks, never touches metrics or generators."""

from __future__ import annotations

import logging
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlx.callbacks.bus import Callback

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

    from rlx.trainers.trainer import Trainer

log = logging.getLogger("rlx")


@dataclass
class ProgressConfig:
    """How often progress is shown."""

    _target_: str = "rlx.callbacks.progress.Progress"
    refresh: float = 0.25  # seconds between two states of the bar
    every: float = 30.0  # seconds between two plain lines, besides one at each evaluation


def format_seconds(seconds: float) -> str:
    """'42s', '3m05s' or '2h07m'."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"


class Progress(Callback):
    """Shows phase, steps, updates per second, the latest and the best evaluation, and the time left."""

    order = 70
    critical = False

    def __init__(self, cfg: ProgressConfig):
        self.cfg = cfg
        self.phase = ""
        self.latest: float | None = None  # eval/return_mean
        self._bar: Bar | None = None
        self._task: TaskID | None = None
        self._due = 0.0  # when to show the next state
        self._seen = (0.0, 0, 0)  # time, steps and updates when it was last shown
        self._step_rate = 0.0
        self._update_rate = 0.0

    def on_run_start(self, trainer: Trainer) -> None:
        now = time.monotonic()
        self._seen = (now, trainer.state.steps, trainer.state.updates)
        if sys.stdout.isatty():
            self._start_bar(trainer)
        self._due = now + self._interval

    def on_phase_start(self, trainer: Trainer, phase: str) -> None:
        self.phase = phase
        if self._bar is None:
            log.info("%s: starts at %s steps", phase, trainer.state.steps)

    def on_iteration(self, trainer: Trainer) -> None:
        if time.monotonic() >= self._due:
            self._show(trainer)

    def on_evaluated(self, trainer: Trainer, metrics: dict[str, float]) -> None:
        self.latest = metrics["eval/return_mean"]
        self._show(trainer)

    def on_run_end(self, trainer: Trainer) -> None:
        if self._bar is not None:
            self._show(trainer)
            self._bar.stop()
            self._bar = None

    def on_run_failed(self, trainer: Trainer, error: BaseException) -> None:
        if self._bar is not None:
            self._bar.stop()  # the terminal gets its cursor back
            self._bar = None

    @property
    def _interval(self) -> float:
        return self.cfg.refresh if self._bar is not None else self.cfg.every

    def _start_bar(self, trainer: Trainer) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
        from rich.progress import Progress as Bar

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[text]}"),
        )
        self._bar = Bar(*columns, auto_refresh=False)  # refreshed from the loop: no thread beside the learner
        self._bar.start()
        self._task = self._bar.add_task("", total=trainer.total_steps, completed=trainer.state.steps, text="")

    def _measure(self, trainer: Trainer) -> None:
        """Rates since the last look, smoothed: half of the old value remains."""
        then, steps, updates = self._seen
        now = time.monotonic()
        if now <= then:
            return
        old = 0.5 if self._step_rate else 0.0
        self._step_rate = old * self._step_rate + (1 - old) * (trainer.state.steps - steps) / (now - then)
        self._update_rate = old * self._update_rate + (1 - old) * (trainer.state.updates - updates) / (now - then)
        self._seen = (now, trainer.state.steps, trainer.state.updates)

    def _text(self, trainer: Trainer) -> str:
        parts = [f"{self._update_rate:.0f} updates/s"]
        if self.latest is not None:
            parts.append(f"return {self.latest:.1f}")
        if trainer.state.best is not None:
            parts.append(f"best {trainer.state.best:.1f}")
        if trainer.total_steps and self._step_rate > 0:
            parts.append(f"ETA {format_seconds(max(0, trainer.total_steps - trainer.state.steps) / self._step_rate)}")
        return ", ".join(parts)

    def _show(self, trainer: Trainer) -> None:
        self._measure(trainer)
        steps, total, text = trainer.state.steps, trainer.total_steps, self._text(trainer)
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, description=self.phase, completed=steps, total=total, text=text, refresh=True)
        else:
            log.info("%s: %s/%s steps, %s", self.phase, steps, total or "?", text)
        self._due = time.monotonic() + self._interval
