"""hydra/launcher=joblib, submitit_local and submitit_slurm: jobs through the plugins that Hydra's project publishes.

A plugin takes a list of jobs, composes each in a worker with Hydra's loader, and returns when all have ended; what
failed it says in values that nobody looks at. Here it is given one job at a time, from a thread of its own, and a
loader that composes nothing: what the worker runs is `supervise`, which composes and checks as everywhere, and tells
the sweep how the job has ended through a file.
"""

from __future__ import annotations

import importlib
import shutil
import signal
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydra._internal.callbacks import Callbacks
from hydra.conf import HydraConf
from hydra.core.utils import JobRuntime
from hydra.types import HydraContext
from omegaconf import DictConfig, OmegaConf

from rlx.errors import UserError, shown
from rlx.fields import number
from rlx.sweeps.job import Ended
from rlx.sweeps.launchers.remote import Order, RemoteConfig, RemotePool, missing, supervise
from rlx.system import usable_cpus

EXTRA = "sweeps"
LOOK = 0.05  # seconds between two looks at what the workers have said
PATIENCE = 5.0  # seconds that workers have to end when a sweep does


@dataclass
class JoblibConfig(RemoteConfig):
    """Jobs below the worker processes of joblib (loky) on this machine."""

    _target_: str = "rlx.sweeps.launchers.hydra_batch.JoblibPool"


@dataclass
class SubmititConfig(RemoteConfig):
    """What submitit is told, under its own names; null is left to it."""

    timeout_min: int = number(60, least=1)  # minutes after which the queue ends a job
    cpus_per_task: int | None = number(None, least=1)  # null: the threads of a job
    gpus_per_node: int | None = number(None, least=0)
    mem_gb: int | None = number(None, least=1)
    stderr_to_stdout: bool = False
    submitit_folder: str | None = None  # for its scripts, logs and pickles; null: below .submitit in the sweep


@dataclass
class SubmititLocalConfig(SubmititConfig):
    """Jobs below processes that submitit starts on this machine."""

    _target_: str = "rlx.sweeps.launchers.hydra_batch.SubmititLocalPool"


@dataclass
class SubmititSlurmConfig(SubmititConfig):
    """Jobs of a Slurm cluster."""

    _target_: str = "rlx.sweeps.launchers.hydra_batch.SubmititSlurmPool"
    partition: str | None = None
    qos: str | None = None
    comment: str | None = None
    constraint: str | None = None
    exclude: str | None = None
    gres: str | None = None
    cpus_per_gpu: int | None = number(None, least=1)
    gpus_per_task: int | None = number(None, least=0)
    mem_per_gpu: str | None = None
    mem_per_cpu: str | None = None
    account: str | None = None
    signal_delay_s: int = number(120, least=1)  # seconds before the end of timeout_min at which a job is told to save
    max_num_timeout: int = number(0, least=0)  # how often Slurm is asked to go on with a job whose minutes are over
    additional_parameters: dict[str, Any] = field(default_factory=dict)  # of sbatch
    setup: list[str] | None = None  # commands that a job runs first


class PluginPool(RemotePool):
    """One call of a plugin for each job, in a thread of its own."""

    name = ""  # of the launcher
    plugin = ""  # its class
    needs = ""  # the package below it, which it imports when it is used
    shares_workers = False  # does a worker that dies take jobs along that it has not taken up yet

    def __init__(self, cfg: RemoteConfig, slots: int):
        super().__init__(cfg)
        self.slots = slots
        self._calls: dict[str, tuple[threading.Thread, list[str]]] = {}  # by the key of an order
        module, _, name = self.plugin.rpartition(".")
        try:
            importlib.import_module(self.needs)
            self._launcher: Any = getattr(importlib.import_module(module), name)
        except ImportError as error:
            raise missing(self.name, EXTRA, error) from error
        JobRuntime.instance().set("name", "rlx")

    def parameters(self, order: Order) -> dict[str, Any]:
        """What the plugin's class is made with."""
        raise NotImplementedError

    def hand_over(self, order: Order) -> None:
        launcher = self._launcher(**self.parameters(order))
        context = HydraContext(config_loader=Packed(), callbacks=Callbacks())  # type: ignore[arg-type]
        config = Packed().load_sweep_config(None, [order.pack()])
        launcher.setup(hydra_context=context, task_function=run_packed, config=config)
        trouble: list[str] = []
        call = threading.Thread(target=_call, args=(launcher, order, trouble), daemon=True)
        self._calls[order.key] = (call, trouble)
        call.start()

    def wait(self, timeout: float) -> list[Ended]:
        end = time.monotonic() + timeout
        while True:
            ended = self.take_cancelled()
            for job, order in list(self._orders.items()):
                call, trouble = self._calls[order.key]
                over = not call.is_alive()
                told = order.post.end_of(order.key)
                why = trouble[0] if trouble else "it said nothing"
                if told is None and over and not (self.shares_workers or self.begun(job)):
                    del self._orders[job]
                    ended.append(Ended(job, 1, f"It could not be started: {why}"))
                elif told is not None or over:
                    ended += self.ended(job, told, why)
            if ended or time.monotonic() > end:
                self._calls = {key: call for key, call in self._calls.items() if call[0].is_alive()} | {
                    order.key: self._calls[order.key] for order in self._orders.values()
                }
                return ended
            time.sleep(LOOK)

    def close(self) -> None:
        super().close()
        end = time.monotonic() + PATIENCE
        for call, _ in self._calls.values():
            call.join(max(0.0, end - time.monotonic()))
        self._calls.clear()


class JoblibPool(PluginPool):
    """hydra/launcher=joblib."""

    name, needs, shares_workers = "joblib", "joblib", True
    plugin = "hydra_plugins.hydra_joblib_launcher.joblib_launcher.JoblibLauncher"

    def __init__(self, cfg: JoblibConfig, threads: int):
        super().__init__(cfg, cfg.jobs or max(1, usable_cpus() // threads))

    def parameters(self, order: Order) -> dict[str, Any]:
        return {"n_jobs": max(2, self.slots)}  # with one, joblib has no workers and runs the job here

    def close(self) -> None:
        super().close()
        loky = importlib.import_module("joblib.externals.loky.reusable_executor")
        if loky._executor is not None:
            loky._executor.shutdown(wait=True, kill_workers=True)


class SubmititPool(PluginPool):
    """What both have in common."""

    needs = "submitit"

    def __init__(self, cfg: SubmititConfig, threads: int, slots: int):
        super().__init__(cfg, slots)
        self._cfg, self._threads = cfg, threads

    def parameters(self, order: Order) -> dict[str, Any]:
        ours = set(RemoteConfig.__dataclass_fields__) | {"_target_", "submitit_folder"}
        given = {name: value for name, value in vars(self._cfg).items() if name not in ours}
        folder = self._cfg.submitit_folder or str(Path(order.task.folder).parent / ".submitit" / order.key)
        given["cpus_per_task"] = given["cpus_per_task"] or self._threads
        return {**given, "submitit_folder": folder, "name": "rlx", "nodes": 1, "tasks_per_node": 1}


class SubmititLocalPool(SubmititPool):
    """hydra/launcher=submitit_local."""

    name = "submitit_local"
    plugin = "hydra_plugins.hydra_submitit_launcher.submitit_launcher.LocalLauncher"

    def __init__(self, cfg: SubmititLocalConfig, threads: int):
        super().__init__(cfg, threads, cfg.jobs or max(1, usable_cpus() // threads))


class SubmititSlurmPool(SubmititPool):
    """hydra/launcher=submitit_slurm; the queue is Slurm's, `jobs` is how many are in it at a time."""

    name = "submitit_slurm"
    plugin = "hydra_plugins.hydra_submitit_launcher.submitit_launcher.SlurmLauncher"
    most = 256

    def __init__(self, cfg: SubmititSlurmConfig, threads: int):
        if shutil.which("sbatch") is None or shutil.which("srun") is None:
            raise UserError(
                "hydra/launcher=submitit_slurm needs Slurm's sbatch and srun, which are not on this machine; start the "
                "sweep where they are, or use hydra/launcher=local."
            )
        super().__init__(cfg, threads, cfg.jobs or self.most)


def _call(launcher: Any, order: Order, trouble: list[str]) -> None:
    """In a thread: launch one job and wait for the plugin to be done with it."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # in workers, too: the sweep tells them
    try:
        (returned,) = launcher.launch([[order.pack()]], initial_job_idx=order.task.number)
        if isinstance(returned._return_value, BaseException):
            trouble.append(shown(repr(returned._return_value), 400))
    except Exception as error:
        trouble.append(shown(f"{type(error).__name__}: {error}", 400))


class Packed:
    """In the place of Hydra's config loader: the only "override" of a job is its order, which is passed through."""

    def load_sweep_config(self, master_config: DictConfig | None, sweep_overrides: list[str]) -> DictConfig:
        (packed,) = sweep_overrides
        config = OmegaConf.create({"hydra": OmegaConf.structured(HydraConf), "order": packed})
        folder = Order.unpack(packed).task.folder
        config.hydra.sweep.dir, config.hydra.sweep.subdir = str(Path(folder).parent), Path(folder).name
        config.hydra.output_subdir = None
        config.hydra.job.name, config.hydra.job.chdir = "rlx", False
        config.hydra.hydra_logging = config.hydra.job_logging = {"root": None}  # leave logging as it is
        return config


def run_packed(config: DictConfig) -> None:
    """What a worker of a plugin runs."""
    supervise(str(config.order))
