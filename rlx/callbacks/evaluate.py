"""Evaluation during training: raw returns of the deterministic policy, and the best policy kept."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rlx.callbacks import crossed
from rlx.callbacks.bus import Callback
from rlx.envs.evaluation import EvaluationInterrupted
from rlx.system import INTERRUPTED

if TYPE_CHECKING:
    from rlx.trainers.trainer import Trainer


@dataclass
class EvaluateConfig:
    """How often and how long: `trainer.eval_interval` and `trainer.eval_episodes`."""

    _target_: str = "rlx.callbacks.evaluate.Evaluate"


class Evaluate(Callback):
    """Evaluates every `trainer.eval_interval` steps and at the end; saves the best policy."""

    order = 30

    def __init__(self, cfg: EvaluateConfig):
        self.cfg = cfg
        self.last = 0  # steps at the last evaluation
        self.pending = False  # the one that was due was interrupted

    def on_resumed(self, trainer: Trainer) -> None:
        if self.pending:
            self._evaluate(trainer)

    def on_iteration(self, trainer: Trainer) -> None:
        if crossed(self.last, trainer.state.steps, trainer.plan.eval_interval):
            self._evaluate(trainer)

    def on_run_end(self, trainer: Trainer) -> None:
        if trainer.state.steps > self.last and trainer.state.stop_reason not in INTERRUPTED:
            self._evaluate(trainer)

    def state(self) -> dict[str, Any]:
        return {"last": self.last, "pending": self.pending}

    def load_state(self, state: dict[str, Any]) -> None:
        self.last = state["last"]
        self.pending = state.get("pending", False)  # no earlier version had it

    def _evaluate(self, trainer: Trainer) -> None:
        try:
            metrics = trainer.evaluate(trainer.plan.eval_episodes)
        except EvaluationInterrupted:
            trainer.leave_evaluation()
            self.pending = True
            return
        self.last, self.pending = trainer.state.steps, False
        score = metrics["eval/return_mean"]
        best = trainer.state.best
        improved = not math.isnan(score) and (best is None or score > best)
        if improved:
            trainer.state.best = score
        trainer.log("eval", metrics)
        trainer.bus.emit("evaluated", trainer, metrics)
        if improved:
            trainer.save("best")
