"""TensorBoard event files: `tensorboard --logdir multirun_outputs`.

A run is called as its folders are; the HParams tab has what was chosen and typed for each. Pretraining is drawn over
updates and everything else over env steps, so that it has a folder of its own below: a resume hides what came after its
checkpoint by the number of a step, whatever it counts.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlx.callbacks.bus import Callback
from rlx.config import resolved_values
from rlx.errors import UserError
from rlx.loggers.gif import as_gif
from rlx.loggers.identity import COUNTERS, clock_of, identity_of
from rlx.run_folder import NAMES, refuse_link

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

    from rlx.trainers.trainer import Trainer

log = logging.getLogger("rlx")


@dataclass
class TensorboardConfig:
    """Metrics as scalars over env steps, or over updates where there are none."""

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
        self._writers: dict[str, SummaryWriter] = {}  # by what goes before the names of metrics
        self._purge: dict[str, int] = {}  # of a resumed run: the first step to hide, by the clock
        self._counted: tuple[str, int] | None = None  # where the counters were last written

    def check(self, trainer: Trainer) -> None:
        refuse_link(trainer.run_dir / self.cfg.folder)

    def on_run_start(self, trainer: Trainer) -> None:
        if trainer.resumed:
            state = trainer.state
            begun = state.steps > 0  # without a checkpoint it begins again
            self._purge = {name: getattr(state, name) + 1 if begun else 0 for name in ("env_steps", "updates")}
        self._describe(trainer)

    def _writer(self, trainer: Trainer) -> tuple[SummaryWriter, int, str]:
        """Where to write now, at which step, and what goes before the name of a metric."""
        clock, before = clock_of(trainer)
        return self._open(trainer, before, clock), getattr(trainer.state, clock), before

    def _open(self, trainer: Trainer, before: str, clock: str) -> SummaryWriter:
        from torch.utils.tensorboard import SummaryWriter

        if before not in self._writers:
            folder = trainer.run_dir / self.cfg.folder / before
            self._writers[before] = SummaryWriter(str(folder), purge_step=self._purge.get(clock))
        return self._writers[before]

    def _describe(self, trainer: Trainer) -> None:
        """What the HParams tab shows of this run, in the same folder as its metrics.

        Every run tells its own; which of them differ, and between what, TensorBoard finds out from all.
        """
        from torch.utils.tensorboard.summary import hparams

        known = identity_of(trainer)
        values: dict[str, Any] = {"seed": resolved_values(trainer.cfg).get("seed"), **known.told, **known.values}
        values = {name: _number(value) for name, value in values.items() if value is not None}
        collects = any(phase.collect > 0 for phase in trainer.plan.phases.values())
        writer = self._open(trainer, "", "env_steps" if collects else "updates")
        _, started, _ = hparams(values, {})  # type: ignore[no-untyped-call]
        writer._get_file_writer().add_summary(started)  # type: ignore[no-untyped-call]

    def on_log(self, trainer: Trainer, row: dict[str, Any]) -> None:
        writer, step, before = self._writer(trainer)
        for name, value in row.items():
            if "/" in name and math.isfinite(value):
                writer.add_scalar(f"{before}{name}", value, step)
        if self._counted != (before, step):  # train and eval rows may share a step
            self._counted = before, step
            for name in COUNTERS:
                writer.add_scalar(f"{before}{name}", row[name], step)

    def on_video(self, trainer: Trainer, path: Path, fps: float) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        try:
            gif, (width, height) = as_gif(path, fps)
        except (ImportError, OSError, RuntimeError) as error:
            first = str(error).partition("\n")[0]
            log.warning("%s is not shown in TensorBoard, which takes a GIF: %s", path, first)
            return
        writer, step, before = self._writer(trainer)
        image = Summary.Image(height=height, width=width, colorspace=3, encoded_image_string=gif)
        value = Summary.Value(tag=f"{before}eval/video", image=image)
        writer._get_file_writer().add_summary(Summary(value=[value]), step)  # type: ignore[no-untyped-call]

    def on_checkpoint(self, trainer: Trainer, path: Any) -> None:
        for writer in self._writers.values():
            writer.flush()  # what a resume will not write again has to be on disk

    def on_run_end(self, trainer: Trainer) -> None:
        for writer in self._writers.values():
            writer.close()
        self._writers = {}

    def on_run_failed(self, trainer: Trainer, error: BaseException) -> None:
        self.on_run_end(trainer)


def _number(value: Any) -> Any:
    """A text as the number that it says, if it says one."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return str(value)
