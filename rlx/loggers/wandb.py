"""Weights & Biases: `logger=wandb`, offline unless asked (`logger.wandb.mode=online`).

The run id is part of the checkpoint, so that a resumed run goes on under the id it had. The config is sent resolved,
but for what `${oc.env:...}` stands for: that stays on this machine, and so does whatever depends on it.
"""

from __future__ import annotations

import os
import shutil
import socket
import urllib.parse
import urllib.request
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlx.callbacks.bus import Callback
from rlx.config import resolved_values
from rlx.errors import UserError
from rlx.loggers.identity import COUNTERS, clock_of, identity_of
from rlx.loggers.jsonl import rows_of
from rlx.loggers.lineage import dataset_lineage
from rlx.loggers.wandb_files import RUN_ID, last_row, latest_id, sessions, wait_for_end
from rlx.run_folder import refuse_link

if TYPE_CHECKING:
    import wandb

    from rlx.trainers.trainer import Trainer

PATIENCE = 3600.0  # seconds for wandb's own process to start, on however busy a machine
MODES = ("offline", "online", "disabled")
LONGEST_TAG = 64  # characters that W&B takes


@dataclass
class WandbConfig:
    """Where the run appears on W&B."""

    _target_: str = "rlx.loggers.wandb.Wandb"
    mode: str = "offline"  # "offline" (upload later with `wandb sync`), "online" or "disabled"
    project: str = "rlx"
    entity: str | None = None  # user or team; null: your default
    group: str | None = None  # runs of one group are averaged in the charts; null: the name of the sweep
    name: str | None = None  # null: what differs from the other runs of its sweep, or the name of the run folder
    job_type: str = "train"
    tags: list[str] = field(default_factory=list)  # besides the choices, such as algo=sac
    artifact: bool = True  # add the best checkpoint when the run ends
    timeout: float = 10.0  # seconds to wait for the server before training goes on without it


def check_reachable(url: str, timeout: float) -> None:
    """Raise ConnectionError at once where wandb itself would try for most of a minute."""
    target = urllib.parse.urlsplit(url)
    if target.scheme in urllib.request.getproxies():
        return  # only the proxy can tell
    port = target.port or (443 if target.scheme == "https" else 80)
    try:
        socket.create_connection((target.hostname or "", port), timeout).close()
    except OSError as error:
        raise ConnectionError(f"{url} cannot be reached ({error}); use logger.wandb.mode=offline") from error


def new_id() -> str:
    """The id that the agent of a W&B sweep has given to this process, or one of our own."""
    given = os.environ.get("WANDB_RUN_ID", "") if os.environ.get("WANDB_SWEEP_ID") else ""
    return given if RUN_ID.fullmatch(given) else uuid.uuid4().hex[:12]  # of the system's entropy, not of the run's


class Wandb(Callback):
    """Sends each row to W&B, or records it below the run folder for `wandb sync`."""

    order = 62
    critical = False

    def __init__(self, cfg: WandbConfig):
        if cfg.mode not in MODES:
            raise UserError(f"logger.wandb.mode is {cfg.mode!r}; expected one of {', '.join(MODES)}.")
        self.cfg = cfg
        self.run_id = new_id()
        self._restored = False
        self._run: wandb.Run | None = None
        self._recorded: tuple[int, set[str]] = (-1, set())  # the last row of the sessions before this one
        self._drawn: set[str] = set()  # metrics whose axis is known

    def check(self, trainer: Trainer) -> None:
        refuse_link(trainer.run_dir / "wandb")

    def on_run_start(self, trainer: Trainer) -> None:
        import wandb

        if self.cfg.mode == "online":
            check_reachable(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai"), self.cfg.timeout)
        folder = trainer.run_dir / "wandb"
        if trainer.resumed:
            if not self._restored:  # ended before its first checkpoint
                self.run_id = latest_id(folder) or self.run_id
            self._recorded = last_row(folder, self.run_id)
        resumed_here = bool(sessions(folder, self.run_id))  # the files may have been uploaded and deleted
        known = identity_of(trainer)
        tags = [tag for tag in (*self.cfg.tags, *known.tags) if 0 < len(tag) <= LONGEST_TAG]
        self._run = wandb.init(
            mode=self.cfg.mode,  # type: ignore[arg-type]  # checked above
            project=self.cfg.project,
            entity=self.cfg.entity,
            group=self.cfg.group or known.group,
            job_type=self.cfg.job_type,
            name=self.cfg.name or known.name,
            tags=list(dict.fromkeys(tags)),
            id=self.run_id,
            resume="allow" if self.cfg.mode == "online" or trainer.resumed else None,
            dir=str(trainer.run_dir),
            config=resolved_values(trainer.cfg),
            settings=wandb.Settings(
                console="off",  # our output is the progress bar and the log file
                silent=True,
                reinit="create_new",
                **{k: v for k, v in self._limits().items() if k in wandb.Settings.model_fields},
            ),
        )
        self._drawn = set(COUNTERS)
        for name in COUNTERS:
            self._run.define_metric(name)
        if resumed_here:
            self._catch_up(trainer)

    def _catch_up(self, trainer: Trainer) -> None:
        """Write the rows before the checkpoint that the session before this one did not get to disk.

        W&B's own process writes every few seconds, and none of its last rows if the run is killed.
        """
        state = trainer.state
        first = next(iter(trainer.plan.phases))
        offline = state.steps - state.env_steps  # updates that counted as steps
        for row in rows_of(trainer):
            online = row["env_steps"] > 0
            metrics = {name: value for name, value in row.items() if value is not None}
            phase, step = (state.phase, row["env_steps"] + offline) if online else (first, row["updates"])
            self._write(metrics, step, *clock_of(trainer, phase))

    def _limits(self) -> dict[str, Any]:
        """How long wandb may take. Only a server is not waited for: rows that go to a file are never dropped."""
        if self.cfg.mode == "online":
            return {"init_timeout": self.cfg.timeout, "finish_timeout": self.cfg.timeout}
        return {"init_timeout": PATIENCE, "x_service_wait": PATIENCE}  # and no limit at the end

    def on_log(self, trainer: Trainer, row: dict[str, Any]) -> None:
        self._write(row, trainer.state.steps, *clock_of(trainer))

    def _write(self, row: dict[str, Any], step: int, clock: str, before: str) -> None:
        """Send a row, unless a session before this one has recorded it."""
        assert self._run is not None, "a row came before run_start"
        metrics = {name if name in COUNTERS else f"{before}{name}": v for name, v in row.items() if name != "kind"}
        last, names = self._recorded
        if step == last:  # a session that was killed may have recorded a part of it
            metrics = {name: value for name, value in metrics.items() if name in COUNTERS or name not in names}
        if step < last or metrics.keys() <= set(COUNTERS):
            return
        for name in [name for name in metrics if name not in self._drawn]:
            self._run.define_metric(name, step_metric=clock)
            self._drawn.add(name)
        self._run.log(metrics, step=step)

    def on_evaluated(self, trainer: Trainer, metrics: dict[str, float]) -> None:
        if self._run is not None:
            found = {"best": trainer.state.best, "last": trainer.state.last_eval}
            self._run.summary.update({name: value for name, value in found.items() if value is not None})

    def on_video(self, trainer: Trainer, path: Path, fps: float) -> None:
        import wandb

        if self._run is not None:
            counters = {name: getattr(trainer.state, name) for name in COUNTERS}
            video = wandb.Video(str(path))
            self._write({**counters, "eval/video": video}, trainer.state.steps, *clock_of(trainer))

    def on_run_end(self, trainer: Trainer) -> None:
        if self._run is not None:
            if self.cfg.artifact and self.cfg.mode != "disabled":
                self._add_best(trainer, self._run)
            self._finish(self._run)

    def on_run_failed(self, trainer: Trainer, error: BaseException) -> None:
        if self._run is not None:
            self._finish(self._run, exit_code=1)

    def _finish(self, run: wandb.Run, exit_code: int = 0) -> None:
        run.finish(exit_code=exit_code)
        if self.cfg.mode != "disabled":  # a resume reads which rows are there
            wait_for_end(Path(run.dir).parent / f"run-{self.run_id}.wandb")
        self._run = None

    def _add_best(self, trainer: Trainer, run: wandb.Run) -> None:
        """The best checkpoint as an artifact.

        A copy in the folder of this session: `wandb sync` comes later, and a resume may have replaced the checkpoint.
        """
        import wandb

        best = (trainer.run_dir / "checkpoints" / "best").resolve()
        if not best.is_dir():
            return
        copy = Path(run.dir).parent / best.name
        shutil.copytree(best, copy)
        artifact = wandb.Artifact(
            f"best-{self.run_id}",
            type="model",
            description="The best policy of a run of rlx; `rlx.load(FOLDER)` reads it.",
            metadata={
                "return": trainer.state.best,
                "steps": int(best.name.rpartition("_")[2]),
                "choices": identity_of(trainer).choices,
                "dataset": dataset_lineage(trainer),
            },
        )
        for path in sorted(copy.iterdir()):  # add_dir would tell the terminal about it
            artifact.add_file(str(path), path.name, policy="immutable", skip_cache=True)
        run.log_artifact(artifact, aliases=["best"])

    def state(self) -> dict[str, Any]:
        return {"id": self.run_id}

    def load_state(self, state: dict[str, Any]) -> None:
        if not RUN_ID.fullmatch(state["id"]):
            raise ValueError(f"{state['id']!r} is not the id of a run")
        self.run_id, self._restored = state["id"], True
