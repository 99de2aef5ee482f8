"""hydra/launcher=ray: jobs on a Ray of our own on this machine, or on a cluster (hydra.launcher.address=auto).

Each job is a Ray task that asks for its resources and supervises the job's process. Ray is told not to try again: which
jobs are lost with a node, and how often they are taken up elsewhere, is decided and said here.
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlx.errors import UserError, shown
from rlx.fields import number
from rlx.sweeps.job import Ended
from rlx.sweeps.launchers.remote import Order, RemoteConfig, RemotePool, missing, read_ended, supervise
from rlx.system import usable_cpus

LONGEST_TEMP = 30  # characters: a path of Ray's sockets has about 70 more, and a socket takes 107
OBJECTS = 80 * 2**20  # bytes of shared memory, the least that Ray takes: nothing of ours lies there
COUNT = 2.0  # seconds between two counts of what the cluster has
AUTH = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")


@dataclass
class RayConfig(RemoteConfig):
    """Jobs as Ray tasks."""

    _target_: str = "rlx.sweeps.launchers.ray.RayPool"
    address: str | None = None  # of a cluster, or auto; null: a Ray of our own, which ends with the sweep
    num_cpus: float | None = number(None, above=0)  # of a job; null: its threads
    num_gpus: float = number(0.0, least=0)  # of a job


class RayPool(RemotePool):
    """One Ray task for each job."""

    def __init__(self, cfg: RayConfig, threads: int):
        super().__init__(cfg)
        if cfg.address is None and "ray" not in sys.modules:
            keep_to_itself()
        try:
            import ray
        except ImportError as error:
            raise missing("ray", "ray", error) from error
        self._ray: Any = ray
        self._jobs = cfg.jobs
        self._needs = {"CPU": cfg.num_cpus or float(threads), "GPU": cfg.num_gpus}
        self._references: dict[Any, Order] = {}
        self._counted, self._room = float("-inf"), 1
        self._temp: Path | None = None
        if ray.is_initialized():
            raise UserError("This process uses Ray already; run the sweep in a process of its own.")
        try:
            with _signals_kept():
                self._connect(cfg)
        except BaseException:
            self.close()
            raise
        self._task = ray.remote(supervise).options(
            num_cpus=self._needs["CPU"], num_gpus=self._needs["GPU"], max_retries=0
        )

    def _connect(self, cfg: RayConfig) -> None:
        quiet = {"log_to_driver": False, "logging_level": logging.WARNING, "configure_logging": True}
        if cfg.address is not None:
            try:
                self._ray.init(address=cfg.address, **quiet)
            except (ConnectionError, ValueError, RuntimeError, OSError) as error:
                raise UserError(
                    f"hydra.launcher.address={shown(cfg.address)}: there is no Ray to join ({shown(error)}); start one "
                    "with `ray start --head`, or leave the address out."
                ) from error
            return
        cpus = usable_cpus() if cfg.jobs is None else max(1, round(cfg.jobs * self._needs["CPU"]))
        self._temp = Path(tempfile.mkdtemp(prefix="rlx-", dir=short_temp()))
        self._ray.init(address="local", num_cpus=cpus, include_dashboard=False, object_store_memory=OBJECTS,
                       _temp_dir=str(self._temp), **quiet)  # fmt: skip
        if not self._capacity():
            has = self._ray.cluster_resources()
            wants = ", ".join(f"{amount:g} {name}" for name, amount in self._needs.items() if amount)
            raise UserError(
                f"A job asks for {wants} (hydra.launcher.num_cpus, num_gpus), and this machine has "
                f"{has.get('CPU', 0):g} CPU, {has.get('GPU', 0):g} GPU; ask for less."
            )

    @property
    def slots(self) -> int:
        """As many jobs as the nodes have room for, which may come and go; a cluster may grow for what waits."""
        if self._jobs is not None:
            return self._jobs
        if time.monotonic() - self._counted > COUNT:
            self._room, self._counted = max(1, self._capacity()), time.monotonic()
        return self._room

    def _capacity(self) -> int:
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        needs = [(name, amount) for name, amount in self._needs.items() if amount]
        return sum(min(int(node.get(name, 0) / amount + 1e-6) for name, amount in needs) for node in nodes)

    def hand_over(self, order: Order) -> None:
        self._references[self._task.remote(order.pack())] = order

    def wait(self, timeout: float) -> list[Ended]:
        cancelled = self.take_cancelled()
        references = list(self._references)
        if not references:
            if not cancelled:
                time.sleep(timeout)
            return cancelled
        ready, _ = self._ray.wait(references, num_returns=len(references), timeout=0)
        if not ready and not cancelled:
            ready, _ = self._ray.wait(references, num_returns=1, timeout=timeout)
        return cancelled + [ended for reference in ready for ended in self._collect(reference)]

    def _collect(self, reference: Any) -> list[Ended]:
        order = self._references.pop(reference)
        job = order.task.number
        if self._orders.get(job) is not order:  # it was stopped before a worker took it up
            return []
        try:
            return self.ended(job, read_ended(self._ray.get(reference)), "it said nothing that can be read")
        except self._ray.exceptions.RayTaskError as error:
            del self._orders[job]
            return [Ended(job, 1, f"Its worker failed: {shown(error.cause, 400)}")]
        except self._ray.exceptions.RayError as error:
            return self.ended(job, None, f"{type(error).__name__}, as Ray calls it")

    def close(self) -> None:
        for reference in self._references:
            with suppress(Exception):  # whatever Ray has to say: it is shut down
                self._ray.cancel(reference, force=True)
        self._references.clear()
        super().close()
        with _signals_kept():
            self._ray.shutdown()
        if self._temp is not None:
            shutil.rmtree(self._temp, ignore_errors=True)
            self._temp = None


def keep_to_itself() -> None:
    """Have a Ray of our own report to nobody, and take a token from us instead of writing one to the home folder. Ray
    reads this when it is imported.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if not any(name in os.environ for name in AUTH):
        os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(32))


def short_temp() -> str:
    """A folder for Ray's sockets, whose paths have to be short."""
    folder = tempfile.gettempdir()
    return folder if len(folder) <= LONGEST_TEMP else "/tmp"


@contextmanager
def _signals_kept() -> Iterator[None]:
    """Ray handles SIGTERM in its own way; a sweep has its own."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
