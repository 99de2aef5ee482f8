"""hydra/launcher=basic: one job after the other in this process, for debuggers and for machines with one core."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from rlx.errors import UserError
from rlx.sweeps.job import LOG, Ended, Task, run_job
from rlx.sweeps.launchers.base import LauncherConfig

log = logging.getLogger("rlx")


@dataclass
class BasicConfig(LauncherConfig):
    """Jobs in this process, one after the other."""

    _target_: str = "rlx.sweeps.launchers.inline.InlinePool"


class InlinePool:
    """Runs each task where it is started."""

    slots = 1
    stoppable = False  # a signal reaches the job itself

    def __init__(self, cfg: BasicConfig, threads: int):
        if cfg.timeout is not None:
            raise UserError(
                "hydra/launcher=basic runs jobs in this process, which cannot stop itself; leave out "
                "hydra.launcher.timeout, or use hydra/launcher=local."
            )
        self._ended: list[Ended] = []

    def start(self, task: Task) -> None:
        copy = logging.FileHandler(Path(task.folder) / LOG, encoding="utf-8", errors="backslashreplace")
        log.addHandler(copy)
        try:
            self._ended.append(run_job(task))
        finally:
            log.removeHandler(copy)
            copy.close()

    def begun(self, number: int) -> bool:
        return True

    def wait(self, timeout: float) -> list[Ended]:
        ended, self._ended = self._ended, []
        return ended

    def stop(self, number: int, now: bool = False) -> None:
        """Nothing runs while the driver does."""

    def close(self) -> None:
        """Nothing is held."""
