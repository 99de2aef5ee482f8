"""What launchers have in common whose jobs run below workers that others start: Ray, joblib and submitit.

Such a worker may run many jobs, one after the other, or die with others of its kind. So it runs `supervise`, which
gives each job a process of its own as hydra/launcher=local does. The sweep and the workers, maybe on other machines,
talk through small files in the folder of the sweep, which all of them have to see. A job that loses its worker is taken
up by another one from its last checkpoint.
"""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import re
import secrets
import socket
import sys
import time
import types
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rlx.errors import UserError, shown
from rlx.fields import number
from rlx.files import read_bounded, remove, write_atomically
from rlx.reporting import counted
from rlx.run_folder import in_use
from rlx.sweeps.job import Ended, Task
from rlx.sweeps.launchers.base import LauncherConfig
from rlx.sweeps.launchers.local import THREADS, LocalConfig, LocalPool

log = logging.getLogger("rlx")

LOOK = 0.2  # seconds between two looks of a worker at what it is told
MOST_TOLD = 1 << 16  # bytes of how a job has ended
LEASE = 120.0  # seconds to wait for a folder that a lost machine holds: a file server frees it after about 90
TERMINATED = 143
NEVER_BEGAN = "It was stopped before a worker took it up."


@dataclass
class RemoteConfig(LauncherConfig):
    """Fields that these launchers have."""

    jobs: int | None = number(None, least=1)  # at a time
    moves: int = number(5, least=0)  # how often a job that has lost its worker is taken up elsewhere


@dataclass(frozen=True)
class Post:
    """Where a sweep and its workers talk: each word about a job is an empty file, how it has ended is one with text."""

    folder: str
    host: str
    process: int  # of the sweep

    @classmethod
    def open(cls, sweep: Path) -> Post:
        """A folder of its own in that of the sweep; what sweeps that were killed have left behind goes."""
        for left in sweep.iterdir():
            if re.fullmatch(r"\.launcher-[0-9a-f]{8}", left.name):
                remove(left)
        folder = sweep / f".launcher-{secrets.token_hex(4)}"
        folder.mkdir()
        return cls(str(folder), socket.gethostname(), os.getpid())

    def close(self) -> None:
        with suppress(OSError):  # a worker may be writing; the next sweep removes what is left
            remove(Path(self.folder))

    def say(self, key: str, word: str) -> None:
        with suppress(OSError):  # the sweep may be gone
            (Path(self.folder) / f"{key}.{word}").touch()

    def hears(self, key: str, word: str) -> bool:
        return (Path(self.folder) / f"{key}.{word}").exists()

    def tell_end(self, key: str, ended: Ended) -> None:
        with suppress(OSError):
            write_atomically(Path(self.folder) / f"{key}.ended", json.dumps(asdict(ended)).encode())

    def end_of(self, key: str) -> Ended | None:
        """How a job has ended, once its worker has said so."""
        try:
            return read_ended(read_bounded(Path(self.folder) / f"{key}.ended", MOST_TOLD, follow=False))
        except OSError:
            return None

    @property
    def abandoned(self) -> bool:
        """Has the sweep ended, as far as one can see from here?"""
        if not Path(self.folder).is_dir():
            return True
        if self.host != socket.gethostname():
            return False
        try:
            os.kill(self.process, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            pass
        return False


def read_ended(data: bytes | str) -> Ended | None:
    """What a worker has written, if it has the form of it."""
    try:
        told = json.loads(data)
        job, code, reason = told["number"], told["exit_code"], told["reason"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
    fits = isinstance(job, int) and isinstance(code, int) and (reason is None or isinstance(reason, str))
    return Ended(job, code, reason) if fits else None


@dataclass(frozen=True)
class Order:
    """A task in the hands of a worker. Its key is new whenever it is handed over, so that what a worker does that was
    believed to be lost is not taken for what its successor does.
    """

    task: Task
    post: Post
    key: str
    cwd: str
    path: tuple[str, ...]  # where Python looks for modules
    threads: dict[str, str | None]  # environment variables about threads, which workers set as they please

    @property
    def is_off(self) -> bool:
        """Is it not wanted any more?"""
        return self.post.abandoned or self.post.hears(self.key, "stop") or self.post.hears(self.key, "now")

    def pack(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def unpack(cls, text: str) -> Order:
        values: dict[str, Any] = json.loads(text)
        given = values.pop("task").items()
        task: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in given}
        post, path = Post(**values.pop("post")), tuple(values.pop("path"))
        return cls(task=Task(**task), post=post, path=path, **values)


class RemotePool:
    """Keeps count of what was handed to workers; launchers derive from it and say how that is done."""

    stoppable = True

    def __init__(self, cfg: RemoteConfig):
        self._most_moves = cfg.moves
        self._post: Post | None = None
        self._orders: dict[int, Order] = {}
        self._moves: dict[int, int] = {}
        self._cancelled: list[Ended] = []
        self._stopped: set[int] = set()

    def hand_over(self, order: Order) -> None:
        """Have a worker call `supervise`."""
        raise NotImplementedError

    def start(self, task: Task) -> None:
        self._moves[task.number] = 0
        self._stopped.discard(task.number)
        self._order(task)

    def _order(self, task: Task) -> None:
        if self._post is None:
            self._post = Post.open(Path(task.folder).parent)
        order = Order(task, self._post, f"{task.number}-{secrets.token_hex(4)}", os.getcwd(),
                      tuple(os.path.abspath(entry) for entry in sys.path),
                      {name: os.environ.get(name) for name in THREADS})  # fmt: skip
        self._orders[task.number] = order
        self.hand_over(order)

    def begun(self, number: int) -> bool:
        order = self._orders.get(number)
        return order is not None and order.post.hears(order.key, "begun")

    def stop(self, number: int, now: bool = False) -> None:
        order = self._orders.get(number)
        if order is None:
            return
        self._stopped.add(number)
        order.post.say(order.key, "now" if now else "stop")
        if not order.post.hears(order.key, "begun"):  # and if it begins after all, it hears that it shall not
            del self._orders[number]
            self._cancelled.append(Ended(number, TERMINATED, NEVER_BEGAN))

    def ended(self, number: int, ended: Ended | None, why: str) -> list[Ended]:
        """A worker is done with a task; if it does not say how the job has ended, it is lost and so is the job."""
        order = self._orders.pop(number, None)
        if order is None:
            return []
        if ended is not None and ended.number == number:
            return [ended]
        if number in self._stopped:
            return [Ended(number, TERMINATED, f"Its worker was lost while it stopped ({why}).")]
        if self._moves[number] >= self._most_moves:
            times = counted(self._moves[number] + 1, "worker")
            return [Ended(number, 1, f"It has lost {times}, the last one by: {why}.")]
        self._moves[number] += 1
        log.warning("%s has lost its worker (%s); another one takes it up.", Path(order.task.folder).name, why)
        self._order(order.task)
        return []

    def take_cancelled(self) -> list[Ended]:
        cancelled, self._cancelled = self._cancelled, []
        return cancelled

    def close(self) -> None:
        for running in list(self._orders):
            self.stop(running, now=True)
        if self._post is not None:
            self._post.close()
            self._post = None


def missing(launcher: str, extra: str, error: ImportError) -> UserError:
    return UserError(
        f"hydra/launcher={launcher} needs a package that is not installed ({shown(error)}): "
        f"pip install -e '.[{extra}]' in a checkout of rlx."
    )


# -- in a worker -------------------------------------------------------------------------------------------------------


def supervise(packed: str) -> str:
    """Run a job in a process of its own below this one, as the sweep tells; how it has ended, as JSON."""
    order = Order.unpack(packed)
    os.chdir(order.cwd)
    sys.path.extend(entry for entry in order.path if entry not in sys.path)
    for name, value in order.threads.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value
    ended = _supervise(order)
    order.post.tell_end(order.key, ended)
    return json.dumps(asdict(ended))


def _supervise(order: Order) -> Ended:
    number, post, key = order.task.number, order.post, order.key
    post.say(key, "begun")
    end = time.monotonic() + LEASE
    while in_use(Path(order.task.folder)) and time.monotonic() < end and not order.is_off:
        time.sleep(LOOK)
    if order.is_off:
        return Ended(number, TERMINATED, NEVER_BEGAN)
    pool = LocalPool(LocalConfig(jobs=1), 1)
    with plain_worker():
        pool.start(order.task)
    asked = False
    try:
        while True:
            for ended in pool.wait(LOOK):
                return ended
            if post.hears(key, "now"):
                pool.stop(number, now=True)
            elif not asked and order.is_off:
                pool.stop(number)
                asked = True
    finally:
        pool.close()


@contextmanager
def plain_worker() -> Iterator[None]:
    """Hide from a new process what it would take over from this one: the main module, which it would import again, and
    all of Ray with it, and joblib's own way to start processes.
    """
    main, method = sys.modules["__main__"], multiprocessing.get_start_method(allow_none=True)
    sys.modules["__main__"] = types.ModuleType("__main__")
    multiprocessing.set_start_method("forkserver", force=True)
    try:
        yield
    finally:
        multiprocessing.set_start_method(method, force=True)
        sys.modules["__main__"] = main
