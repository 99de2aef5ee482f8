"""Progress: a bar on a terminal or in a notebook, plain lines anywhere else.

Only looks, never touches metrics or generators.

The time left is what the steps that are left take at the rate of this phase, plus what the evaluations that are left
take. The rate is that of learning: random steps before the first update are so much faster that they tell nothing.
The speeds that are shown are those of the latest stretch, without the time of evaluations.
"""

from __future__ import annotations

import importlib
import logging
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rlx.callbacks.bus import Callback
from rlx.fields import number
from rlx.reporting import in_digits

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

    from rlx.trainers.trainer import Trainer

log = logging.getLogger("rlx")

NARROW = 100  # columns


@dataclass
class ProgressConfig:
    """How often progress is shown."""

    _target_: str = "rlx.callbacks.progress.Progress"
    refresh: float = number(0.25, least=0)  # seconds between two states of the bar
    every: float = number(30.0, least=0)  # seconds between two plain lines, besides one at each evaluation


def format_seconds(seconds: float) -> str:
    """'42s', '3m05s' or '2h07m'."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"


def format_rate(rate: float) -> str:
    """'162', or '0.4' where it is slow."""
    return f"{rate:.1f}" if 0.0 < rate < 10.0 else f"{rate:.0f}"


def display_handle() -> Any:
    """In a notebook, a piece of output that can be replaced; None anywhere else.

    IPython is what a notebook runs on. Rich's own bar would need ipywidgets besides, and shows nothing without.
    """
    if "IPython" not in sys.modules:
        return None
    ipython: Any = sys.modules["IPython"]
    if getattr(ipython.get_ipython(), "kernel", None) is None:  # a terminal, or no IPython session at all
        return None
    display: Any = importlib.import_module("IPython.display")
    return display.display({"text/plain": ""}, raw=True, display_id=True)


def drawn_bar(done: int, total: int | None, width: int = 40) -> str:
    """'━━━━━━──────' with the share that is done."""
    full = round(width * min(1.0, done / total)) if total else 0
    return "━" * full + "─" * (width - full)


class Progress(Callback):
    """Shows phase, steps, steps and updates per second, the latest and the best evaluation, and the time left."""

    order = 70
    critical = False

    def __init__(self, cfg: ProgressConfig):
        self.cfg = cfg
        self.phase = ""
        self.latest: float | None = None  # eval/return_mean
        self._bar: Bar | None = None
        self._narrow = False  # is the terminal too narrow for the bar and the best evaluation
        self._handle: Any = None  # of the output in a notebook
        self._task: TaskID | None = None
        self._due = 0.0  # when to show the next state
        self._seen = (0.0, 0, 0)  # time, steps and updates when it was last shown
        self._rates: tuple[float, float] | None = None  # steps and updates per second
        self._worked = 0.0  # when the latest update or iteration ended
        self._since = (0.0, 0, 0)  # time, steps and updates from which on the phase is at its own rate
        self._random = False  # has the phase been taking random steps until now
        self._evaluating = 0.0  # seconds of evaluation since then
        self._evaluations: list[float] = []  # how long each one took

    def on_run_start(self, trainer: Trainer) -> None:
        now = time.monotonic()
        self._seen = (now, trainer.state.steps, trainer.state.updates)
        self._begin(trainer, getattr(trainer.state, "phase", ""))  # of a resumed run, which is in the middle of it
        self._handle = display_handle()
        if self._handle is None and sys.stdout.isatty():
            self._start_bar(trainer)
        self._due = now + self._interval

    def on_phase_start(self, trainer: Trainer, phase: str) -> None:
        self._begin(trainer, phase)
        if not self._in_place:
            log.info("%s: starts at %s steps", phase, trainer.state.steps)

    def on_update(self, trainer: Trainer, metrics: dict[str, Any]) -> None:
        self._worked = time.monotonic()
        if self._random:
            self._random, self._evaluating = False, 0.0
            self._since = (self._worked, trainer.state.steps, trainer.state.updates)

    def on_iteration(self, trainer: Trainer) -> None:
        self._worked = time.monotonic()
        if self._worked >= self._due:
            self._show(trainer)

    def on_evaluating(self, trainer: Trainer, done: str) -> None:
        if time.monotonic() >= self._due:
            self._draw(trainer, f"evaluating ({done})")

    def on_evaluated(self, trainer: Trainer, metrics: dict[str, float]) -> None:
        self.latest = metrics["eval/return_mean"]
        took = time.monotonic() - self._worked
        self._evaluations.append(took)
        self._evaluating += took
        then, steps, updates = self._seen
        self._seen = (then + took, steps, updates)
        self._show(trainer)

    def on_run_end(self, trainer: Trainer) -> None:
        if self._in_place:
            self._show(trainer)
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def on_run_failed(self, trainer: Trainer, error: BaseException) -> None:
        if self._bar is not None:
            self._bar.stop()  # the terminal gets its cursor back
            self._bar = None

    @property
    def _in_place(self) -> bool:
        return self._bar is not None or self._handle is not None

    @property
    def _interval(self) -> float:
        return self.cfg.refresh if self._in_place else self.cfg.every

    def _start_bar(self, trainer: Trainer) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
        from rich.progress import Progress as Bar
        from rich.table import Column

        console = Console()
        self._narrow = console.width < NARROW
        columns = (
            TextColumn("{task.description}"),
            *([] if self._narrow else [BarColumn()]),
            MofNCompleteColumn(table_column=Column(no_wrap=True)),  # it is the bar that gives way
            TextColumn("{task.fields[text]}"),
        )
        # refreshed from the loop: no thread beside the learner
        self._bar = Bar(*columns, console=console, auto_refresh=False)
        self._bar.start()
        self._task = self._bar.add_task("", total=trainer.total_steps, completed=trainer.state.steps, text="")

    def _measure(self, trainer: Trainer) -> None:
        """Rates since the last look, smoothed: half of the old value remains."""
        then, steps, updates = self._seen
        now = time.monotonic()
        if now <= then:
            return
        new = (trainer.state.steps - steps) / (now - then), (trainer.state.updates - updates) / (now - then)
        old = self._rates or new
        self._rates = (old[0] + new[0]) / 2, (old[1] + new[1]) / 2
        self._seen = (now, trainer.state.steps, trainer.state.updates)

    def _begin(self, trainer: Trainer, phase: str) -> None:
        self.phase = phase
        self._worked = time.monotonic()
        self._since, self._evaluating = (self._worked, trainer.state.steps, trainer.state.updates), 0.0
        rules = trainer.plan.phases.get(phase)
        self._random = rules is not None and rules.collect > 0 and not rules.on_policy

    def _text(self, trainer: Trainer) -> str:
        rules, (steps, updates) = trainer.plan.phases.get(self.phase), self._rates or (0.0, 0.0)
        parts = [f"{format_rate(steps)} steps/s"] if rules is not None and rules.collect > 0 else []
        if rules is None or not rules.on_policy:  # where an update is a whole rollout
            parts.append(f"{format_rate(updates)} updates/s")
        if self.latest is not None:
            parts.append(f"return {in_digits(self.latest)}")
        if trainer.state.best is not None and not self._narrow:
            parts.append(f"best {in_digits(trainer.state.best)}")
        left = self._seconds_left(trainer)
        if left is not None:
            parts.append(f"ETA {format_seconds(left)}")
        return ", ".join(parts)

    def _seconds_left(self, trainer: Trainer) -> float | None:
        """None as long as there is nothing to tell it from."""
        state = trainer.state
        then, steps, updates = self._since
        seconds = time.monotonic() - then - self._evaluating
        if (
            not trainer.total_steps
            or state.steps <= steps
            or seconds <= 0
            or (self._random and state.updates == updates)
        ):
            return None
        left, later = max(0, trainer.total_steps - state.steps), self._later_steps(trainer)
        here = max(0, left - later)
        per_step, per_update = seconds / (state.steps - steps), seconds / max(1, state.updates - updates)
        phases = trainer.plan.phases
        ratio = max((p.updates_per_step for name, p in phases.items() if name in self._later(trainer)), default=1.0)
        evaluations = left // trainer.plan.eval_interval if trainer.plan.eval_interval else 0
        mean = sum(self._evaluations) / len(self._evaluations) if self._evaluations else 0.0
        return here * per_step + min(left, later) * ratio * per_update + evaluations * mean

    def _later(self, trainer: Trainer) -> list[str]:
        """The phases after this one."""
        names = list(trainer.plan.phases)
        return names[names.index(self.phase) + 1 :] if self.phase in names else []

    def _later_steps(self, trainer: Trainer) -> int:
        """Steps of the phases after this one, as far as they are known."""
        steps, later = 0, self._later(trainer)
        for phase in (trainer.plan.phases[name] for name in later):
            limits = (phase.updates, None) if phase.collect == 0 else (phase.env_steps, trainer.plan.max_env_steps)
            steps += next((x for x in limits if x is not None), 0)
        return steps

    def _show(self, trainer: Trainer) -> None:
        self._measure(trainer)
        self._draw(trainer, self._text(trainer))

    def _draw(self, trainer: Trainer, text: str) -> None:
        steps, total = trainer.state.steps, trainer.total_steps
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, description=self.phase, completed=steps, total=total, text=text, refresh=True)
        elif self._handle is not None:
            line = f"{self.phase} {drawn_bar(steps, total)} {steps}/{total or '?'} {text}"
            self._handle.update({"text/plain": line}, raw=True)
        else:
            log.info("%s: %s/%s steps, %s", self.phase, steps, total or "?", text)
        self._due = time.monotonic() + self._interval
