"""Early stopping: end a run when a metric no longer improves, or when it is good enough."""

from __future__ import annotations

import logging
import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from rlx.callbacks.bus import Callback
from rlx.errors import UserError, nearest
from rlx.fields import check_numbers, number

if TYPE_CHECKING:
    from rlx.trainers.trainer import Trainer

log = logging.getLogger("rlx")


@dataclass
class EarlyStoppingConfig:
    """Stop on no improvement (`patience`), on reaching a value (`threshold`), or on whichever comes first."""

    _target_: str = "rlx.callbacks.early_stopping.EarlyStopping"
    metric: str = "eval/return_mean"  # any metric of a train or eval row
    mode: str = "max"  # "max": higher is better; "min": lower is better
    patience: int | None = number(10, least=1)  # rows of this metric in a row without improvement; null: no limit
    min_delta: float = 0.0  # an improvement has to be larger than this
    min_steps: int = 0  # rows before this step of the regime's clock neither count nor stop
    threshold: float | None = None  # stop as soon as the metric is at least (mode min: at most) this


class EarlyStopping(Callback):
    """Asks the trainer to stop; the reason says which of the two rules it was."""

    order = 40

    def __init__(self, cfg: EarlyStoppingConfig):
        if cfg.mode not in ("max", "min"):
            raise UserError(f"callbacks.early_stopping.mode is {cfg.mode!r}; expected max or min.")
        check_numbers(cfg, "callbacks.early_stopping")
        if cfg.patience is None and cfg.threshold is None:
            raise UserError("Early stopping has no rule: set patience or threshold below callbacks.early_stopping.")
        self.cfg = cfg
        self.sign = 1.0 if cfg.mode == "max" else -1.0
        self.best: float | None = None
        self.bad_rows = 0  # rows since the last improvement
        self.stopped = ""  # the reason, once a rule has ended the run
        self._other: set[str] = set()  # names seen while the metric was not, for a helpful warning

    def on_log(self, trainer: Trainer, row: dict[str, Any]) -> None:
        if self.cfg.metric not in row:
            self._other.update(name for name in row if "/" in name)
            return
        value = float(row[self.cfg.metric])
        improved = not math.isnan(value) and (self.best is None or self.sign * (value - self.best) > self.cfg.min_delta)
        if improved:
            self.best, self.bad_rows = value, 0
        if trainer.state.steps < self.cfg.min_steps:
            return
        if not improved:
            self.bad_rows += 1
        if self.cfg.threshold is not None and self.sign * (value - self.cfg.threshold) >= 0:
            self._stop(trainer, "early_stopping: threshold_reached")
        elif self.cfg.patience is not None and self.bad_rows >= self.cfg.patience:
            self._stop(trainer, "early_stopping: no_improvement")

    def on_run_end(self, trainer: Trainer) -> None:
        if self.best is None and self._other:
            guess = nearest(self.cfg.metric, self._other)
            hint = f"did you mean {guess!r}?" if guess else f"logged were: {', '.join(sorted(self._other))}."
            log.warning("Early stopping never saw the metric %r; %s", self.cfg.metric, hint)

    def _stop(self, trainer: Trainer, reason: str) -> None:
        trainer.stop(reason)
        self.stopped = reason

    def upholds(self, state: dict[str, Any]) -> bool:
        """A rule that has changed since lets the run go on."""
        rule = asdict(self.cfg)
        return bool(state.get("rule", rule) == rule)  # older checkpoints have none

    def state(self) -> dict[str, Any]:
        rule = asdict(self.cfg)
        return {"best": self.best, "bad_rows": self.bad_rows, "stopped": self.stopped, "rule": rule}

    def load_state(self, state: dict[str, Any]) -> None:
        self.stopped = state["stopped"] if self.upholds(state) else ""
        rule = state.get("rule", {})  # older checkpoints have none
        if all(rule.get(name, now) == now for name, now in (("metric", self.cfg.metric), ("mode", self.cfg.mode))):
            self.best = state["best"]
            self.bad_rows = state["bad_rows"]
