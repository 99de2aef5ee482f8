"""Periodic checkpoints. What one holds, and how it is written, is `rlx.checkpoint`'s business."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rlx.callbacks import crossed
from rlx.callbacks.bus import Callback

if TYPE_CHECKING:
    from rlx.trainers.trainer import Trainer


@dataclass
class CheckpointConfig:
    """How often: `trainer.checkpoint_interval`."""

    _target_: str = "rlx.callbacks.checkpoint.Checkpoint"


class Checkpoint(Callback):
    """Saves everything a resume needs, every `trainer.checkpoint_interval` steps and whenever the run ends."""

    order = 90  # last, so that it holds what all others have done at this step

    def __init__(self, cfg: CheckpointConfig):
        self.cfg = cfg
        self.last = 0  # steps at the last checkpoint
        self.saved = False  # this process or an earlier one wrote a checkpoint at `last`, and no evaluation came after

    def on_iteration(self, trainer: Trainer) -> None:
        if crossed(self.last, trainer.state.steps, trainer.plan.checkpoint_interval):
            self._save(trainer)

    def on_log(self, trainer: Trainer, row: dict[str, Any]) -> None:
        if row["kind"] == "eval":
            self.saved = False

    def on_run_end(self, trainer: Trainer) -> None:
        if not self.saved or trainer.state.steps != self.last:
            self._save(trainer)

    def state(self) -> dict[str, Any]:
        return {"last": self.last, "saved": self.saved}

    def load_state(self, state: dict[str, Any]) -> None:
        self.last = state["last"]
        self.saved = state["saved"]

    def _save(self, trainer: Trainer) -> None:
        # Noted first, because the checkpoint holds this callback's state too.
        self.last, self.saved = trainer.state.steps, True
        trainer.save("step")
