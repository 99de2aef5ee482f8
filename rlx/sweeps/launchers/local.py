"""hydra/launcher=local, the default: each job in a process of its own on this machine.

The processes are forked from a server that has torch and rlx imported and runs no threads, so that a job starts in a
fraction of a second and inherits no lock that a thread holds. A job is in a process group of its own: Ctrl-C reaches
the sweep alone, which passes it on. Where the system can tell (Linux), a job whose sweep was killed saves and stops.
"""

from __future__ import annotations

import ctypes
import json
import logging
import multiprocessing
import os
import signal
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from rlx.fields import number
from rlx.reporting import set_up_logging
from rlx.sweeps.job import LOG, Ended, Task, run_job
from rlx.sweeps.launchers.base import LauncherConfig, ended_by_signal
from rlx.system import usable_cpus

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")  # of libraries that start them when imported
PRELOAD = ["rlx.sweeps.preload"]
PR_SET_PDEATHSIG = 1


@dataclass
class LocalConfig(LauncherConfig):
    """Jobs in processes of their own on this machine."""

    _target_: str = "rlx.sweeps.launchers.local.LocalPool"
    jobs: int | None = number(None, least=1)  # at a time; null: as many as cores / threads of a job


class LocalPool:
    """Processes from a fork server, one for each task."""

    stoppable = True

    def __init__(self, cfg: LocalConfig, threads: int):
        self.slots = cfg.jobs or max(1, usable_cpus() // threads)
        self._processes: dict[int, tuple[ForkServerProcess, Connection]] = {}
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(PRELOAD)

    def start(self, task: Task) -> None:
        receiver, sender = self._context.Pipe(duplex=False)
        process = self._context.Process(target=run_in_process, args=(task, dict(os.environ), sender), daemon=False)
        before = {name: os.environ.get(name) for name in THREADS}
        os.environ.update(dict.fromkeys(THREADS, "1"))  # for the server, which starts with its first process
        try:
            process.start()
        finally:
            for name, value in before.items():
                os.environ.pop(name)
                if value is not None:
                    os.environ[name] = value
        sender.close()
        self._processes[task.number] = (process, receiver)

    def begun(self, number: int) -> bool:
        return True

    def wait(self, timeout: float) -> list[Ended]:
        if not self._processes:
            time.sleep(timeout)
            return []
        numbers: dict[Any, int] = {process.sentinel: n for n, (process, _) in self._processes.items()}
        return [self._collect(numbers[sentinel]) for sentinel in wait(list(numbers), timeout)]

    def _collect(self, number: int) -> Ended:
        process, receiver = self._processes.pop(number)
        process.join()
        code = process.exitcode or 0
        try:
            told = json.loads(receiver.recv_bytes(1 << 16)) if receiver.poll() else None
        except (EOFError, OSError, ValueError):
            told = None
        receiver.close()
        process.close()
        if told is not None:
            return Ended(**told)
        if code < 0:
            return ended_by_signal(number, -code)
        return Ended(number, code or 1, f"Its process ended with exit code {code} and said nothing.")

    def stop(self, number: int, now: bool = False) -> None:
        process, _ = self._processes.get(number, (None, None))
        if process is None or process.pid is None:
            return
        with suppress(ProcessLookupError):  # it has ended by now
            os.kill(process.pid, signal.SIGKILL if now else signal.SIGTERM)
        if now:
            with suppress(ProcessLookupError, PermissionError):  # it had not made its group yet
                os.killpg(process.pid, signal.SIGKILL)  # and what its env has started

    def close(self) -> None:
        for task in list(self._processes):
            self.stop(task, now=True)
            self._collect(task)


# -- in the process of a job -------------------------------------------------------------------------------------------


def run_in_process(task: Task, environment: dict[str, str], sender: Connection) -> None:
    """The life of a job's process: what it prints goes to log.txt, how it ended to the pool."""
    os.setpgid(0, 0)
    die_with_parent()
    os.environ.clear()
    os.environ.update(environment)
    print_to(Path(task.folder) / LOG)
    set_up_logging()
    ended = run_job(task)
    with suppress(OSError):  # the sweep may be gone
        sender.send_bytes(json.dumps(asdict(ended)).encode())
    leave(ended.exit_code)


def die_with_parent() -> None:
    """Have the system send SIGTERM when the server ends, which it does with the sweep."""
    if sys.platform == "linux":
        prctl = getattr(ctypes.CDLL(None), "prctl", None)
        if prctl is not None:
            prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def print_to(path: Path) -> None:
    """Append what this process prints, also from compiled code, to a file."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o666)
    for stream in (1, 2):
        os.dup2(fd, stream)
    os.close(fd)
    for stream, name in ((1, "stdout"), (2, "stderr")):
        setattr(sys, name, os.fdopen(os.dup(stream), "w", buffering=1, encoding="utf-8", errors="backslashreplace"))


def leave(code: int) -> None:
    """End this process, whatever threads and processes its env has left behind."""
    logging.shutdown()
    for child in multiprocessing.active_children():
        child.kill()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(min(code, 255))
