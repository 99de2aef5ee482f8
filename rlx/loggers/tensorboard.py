"""TensorBoard event files: `tensorboard --logdir multirun_outputs`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlx.callbacks.bus import Callback
from rlx.errors import UserError
from rlx.run_folder import NAMES, refuse_link

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

    from rlx.trainers.trainer import Trainer


@dataclass
class TensorboardConfig:
    """Metrics as scalars over the steps of the regime's clock."""

    _target_: str = "rlx.loggers.tensorboard.Tensorboard"
    folder: str = "tensorboard"  # below the run folder


class Tensorboard(Callback):
    """Writes each metric as a scalar; a resume hides what came after its checkpoint."""

    order = 61
    critical = False

    def __init__(self, cfg: TensorboardConfig):
        if cfg.folder in ("", "..", *NAMES) or Path(cfg.folder).name != cfg.folder:
            raise UserError(
                f"logger.tensorboard.folder={cfg.folder} is not the name of a folder in the run folder; give one such "
                "as tensorboard."
            )
        self.cfg = cfg
        self._writer: SummaryWriter | None = None

    def check(self, trainer: Trainer) -> None:
        refuse_link(trainer.run_dir / self.cfg.folder)

    def on_run_start(self, trainer: Trainer) -> None:
        from torch.utils.tensorboard import SummaryWriter

        steps = trainer.state.steps
        purge = (steps + 1 if steps else 0) if trainer.resumed else None  # 0: begun again, without a checkpoint
        self._writer = SummaryWriter(str(trainer.run_dir / self.cfg.folder), purge_step=purge)

    def on_log(self, trainer: Trainer, row: dict[str, Any]) -> None:
        assert self._writer is not None, "a row came before run_start"
        for name, value in row.items():
            if "/" in name and math.isfinite(value):
                self._writer.add_scalar(name, value, trainer.state.steps)

    def on_checkpoint(self, trainer: Trainer, path: Any) -> None:
        if self._writer is not None:
            self._writer.flush()  # what a resume will not write again has to be on disk

    def on_run_end(self, trainer: Trainer) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def on_run_failed(self, trainer: Trainer, error: BaseException) -> None:
        self.on_run_end(trainer)
