"""Train rows: means of what learners and episodes reported since the last row.

A row depends on counters and values alone, never on wall-clock time, and pending values are part of the
checkpoint: a resumed run writes the rows of the uninterrupted one, bit for bit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rlx.callbacks import crossed
from rlx.callbacks.bus import Callback
from rlx.callbacks.schedule import Schedules
from rlx.system import INTERRUPTED
from rlx.types import Metrics

if TYPE_CHECKING:
    from rlx.trainers.trainer import Trainer


@dataclass
class TrainMetricsConfig:
    """Nothing to choose: `trainer.log_interval` says how often."""

    _target_: str = "rlx.callbacks.metrics.TrainMetrics"


def mean(values: list[float]) -> float:
    """Exactly rounded, hence the same however the values were gathered; inf and nan pass through."""
    if all(map(math.isfinite, values)):
        return math.fsum(values) / len(values)
    return sum(values) / len(values)


class TrainMetrics(Callback):
    """Writes a train row every `trainer.log_interval` steps and one at the end."""

    order = 10
    drain_at = 256  # updates kept as tensors before they become floats

    def __init__(self, cfg: TrainMetricsConfig):
        self.cfg = cfg
        self.last = 0  # steps at the last row
        self.values: dict[str, list[float]] = {}
        self._fresh: list[tuple[tuple[str, ...], Tensor]] = []  # names and values [n] of each update, still on device

    def on_update(self, trainer: Trainer, metrics: Metrics) -> None:
        if not metrics:
            return
        # Stacking copies, so that a metric which is a view of a live parameter keeps the value of this update.
        self._fresh.append((tuple(metrics), torch.stack(tuple(metrics.values()))))
        if len(self._fresh) >= self.drain_at:
            self._drain()

    def on_episode(self, trainer: Trainer, ret: float, length: int, info: dict[str, Any]) -> None:
        self._add("train/return_mean", ret)
        self._add("train/length_mean", length)
        if "transformed_return" in info:
            self._add("train/return_transformed_mean", info["transformed_return"])

    def on_iteration(self, trainer: Trainer) -> None:
        if crossed(self.last, trainer.state.steps, trainer.plan.log_interval):
            self._write(trainer)

    def on_run_end(self, trainer: Trainer) -> None:
        if trainer.state.stop_reason not in INTERRUPTED:
            self._write(trainer)

    def pending(self) -> dict[str, list[float]]:
        """What the next row will be made of: the values since the last one, by name."""
        self._drain()
        return self.values

    def state(self) -> dict[str, Any]:
        self._drain()
        return {"last": self.last, "values": {name: list(values) for name, values in self.values.items()}}

    def load_state(self, state: dict[str, Any]) -> None:
        self.last = state["last"]
        self.values = {name: [float(value) for value in values] for name, values in state["values"].items()}
        self._fresh = []

    def _add(self, name: str, value: float) -> None:
        self.values.setdefault(name, []).append(float(value))

    def _drain(self) -> None:
        """Bring all pending tensors over in one copy per set of names."""
        groups: dict[tuple[str, ...], list[Tensor]] = {}
        for names, values in self._fresh:
            groups.setdefault(names, []).append(values)
        for names, rows in groups.items():
            for name, column in zip(names, torch.stack(rows).T.tolist(), strict=True):
                self.values.setdefault(name, []).extend(column)
        self._fresh = []

    def _write(self, trainer: Trainer) -> None:
        self._drain()
        self.last = trainer.state.steps
        if not self.values:
            return
        row = {name: mean(values) for name, values in sorted(self.values.items())}
        for callback in trainer.bus.callbacks.values():
            if isinstance(callback, Schedules):
                row |= callback.used
        self.values = {}
        trainer.log("train", row)
