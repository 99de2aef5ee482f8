"""What the driver of a sweep asks of a launcher."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import Protocol

from rlx.fields import number
from rlx.sweeps.job import Ended, Task


@dataclass
class LauncherConfig:
    """Fields that every launcher has; the driver sees to them."""

    _target_: str = ""
    retries: int = number(0, least=0)  # how often a failed job is taken up again from its last checkpoint
    timeout: float | None = number(None, above=0)  # seconds after which a job is stopped and counts as failed
    grace: float = number(10.0, least=0)  # seconds that a stopped job has to save its checkpoint


class Pool(Protocol):
    """Runs tasks; made as `Target(config, threads)`, where `threads` is how many a job computes with."""

    stoppable: bool  # does `stop` have an effect

    @property
    def slots(self) -> int:
        """How many tasks at once; may change."""

    def start(self, task: Task) -> None:
        """Begin a task; it may have ended when this returns."""

    def begun(self, number: int) -> bool:
        """Has a process taken up this task, so that its time counts?"""

    def wait(self, timeout: float) -> list[Ended]:
        """The tasks that have ended since; waits up to `timeout` seconds for the first one."""

    def stop(self, number: int, now: bool = False) -> None:
        """Have a task save a checkpoint and stop; with `now`, end it at once."""

    def close(self) -> None:
        """End whatever still runs, and free what the pool holds."""


def ended_by_signal(number: int, signum: int) -> Ended:
    """A job whose process was ended by a signal, with the exit code that a shell would give."""
    name = signal.Signals(signum).name if signum in signal.valid_signals() else f"signal {signum}"
    why = {
        "SIGKILL": "which is also what the system does when memory runs out",
        "SIGSEGV": "a crash in compiled code",
        "SIGABRT": "a crash in compiled code",
        "SIGBUS": "a crash in compiled code",
    }.get(name)
    return Ended(number, 128 + signum, f"Its process was ended by {name}{f', {why}' if why else ''}.")
