"""Weights & Biases: `logger=wandb`, offline unless asked (`logger.wandb.mode=online`).

The run id is part of the checkpoint, so that a resumed run goes on under the id it had. The config is sent as it was
composed, interpolations unresolved, and so are names and tags: what `${oc.env:...}` stands for stays on this machine.
"""

from __future__ import annotations

import os
import re
import socket
import urllib.parse
import urllib.request
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from omegaconf import OmegaConf

from rlx.callbacks.bus import Callback
from rlx.errors import UserError
from rlx.run_folder import refuse_link

if TYPE_CHECKING:
    import wandb

    from rlx.trainers.trainer import Trainer

PATIENCE = 3600.0  # seconds for wandb's own process to start, on however busy a machine
MODES = ("offline", "online", "disabled")


@dataclass
class WandbConfig:
    """Where the run appears on W&B."""

    _target_: str = "rlx.loggers.wandb.Wandb"
    mode: str = "offline"  # "offline" (upload later with `wandb sync`), "online" or "disabled"
    project: str = "rlx"
    entity: str | None = None  # user or team; null: your default
    group: str | None = None  # runs of one group are averaged in the charts
    name: str | None = None  # null: the name of the run folder
    tags: list[str] = field(default_factory=list)
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


class Wandb(Callback):
    """Sends each row to W&B, or records it below the run folder for `wandb sync`."""

    order = 62
    critical = False

    def __init__(self, cfg: WandbConfig):
        if cfg.mode not in MODES:
            raise UserError(f"logger.wandb.mode is {cfg.mode!r}; expected one of {', '.join(MODES)}.")
        self.cfg = cfg
        self.run_id = uuid.uuid4().hex[:12]  # uuid4 reads the system's entropy, not the run's generators
        self._run: wandb.Run | None = None

    def check(self, trainer: Trainer) -> None:
        refuse_link(trainer.run_dir / "wandb")

    def on_run_start(self, trainer: Trainer) -> None:
        import wandb

        if self.cfg.mode == "online":
            check_reachable(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai"), self.cfg.timeout)
        config = OmegaConf.to_container(trainer.cfg, resolve=False)
        self._run = wandb.init(
            mode=self.cfg.mode,  # type: ignore[arg-type]  # checked above
            project=self.cfg.project,
            entity=self.cfg.entity,
            group=self.cfg.group,
            name=self.cfg.name or trainer.run_dir.name,
            tags=list(self.cfg.tags),
            id=self.run_id,
            resume="allow" if self.cfg.mode == "online" else None,
            dir=str(trainer.run_dir),
            config=config,  # type: ignore[arg-type]
            settings=wandb.Settings(
                console="off",  # our output is the progress bar and the log file
                silent=True,
                reinit="create_new",
                **{k: v for k, v in self._limits().items() if k in wandb.Settings.model_fields},
            ),
        )

    def _limits(self) -> dict[str, Any]:
        """How long wandb may take. Only a server is not waited for: rows that go to a file are never dropped."""
        if self.cfg.mode == "online":
            return {"init_timeout": self.cfg.timeout, "finish_timeout": self.cfg.timeout}
        return {"init_timeout": PATIENCE, "x_service_wait": PATIENCE}  # and no limit at the end

    def on_log(self, trainer: Trainer, row: dict[str, Any]) -> None:
        assert self._run is not None, "a row came before run_start"
        self._run.log({name: value for name, value in row.items() if name != "kind"}, step=trainer.state.steps)

    def on_run_end(self, trainer: Trainer) -> None:
        if self._run is not None:
            self._run.finish()
            self._run = None

    def on_run_failed(self, trainer: Trainer, error: BaseException) -> None:
        if self._run is not None:
            self._run.finish(exit_code=1)
            self._run = None

    def state(self) -> dict[str, Any]:
        return {"id": self.run_id}

    def load_state(self, state: dict[str, Any]) -> None:
        if not re.fullmatch(r"[0-9a-zA-Z_-]{1,64}", state["id"]):  # it becomes part of a file name
            raise ValueError(f"{state['id']!r} is not the id of a run")
        self.run_id = state["id"]
