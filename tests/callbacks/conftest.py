from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rlx.callbacks.bus import Callback, CallbackBus
from rlx.fields import number
from rlx.trainers.trainer import Phase


@dataclass
class Plan:
    eval_interval: int = 10
    eval_episodes: int = 3
    checkpoint_interval: int = 10
    log_interval: int = 10
    offline_batch_ratio: float = 0.5
    train_frequency: int = 1
    phases: dict[str, Phase] = field(default_factory=lambda: {"online": Phase(collect=1)})


@dataclass
class AlgoSettings:
    epsilon: float = 1.0
    horizon_steps: int = 4
    lr: float = 1e-3
    discount: float = number(0.99, read_once=True)
    alpha: float = number(0.5, read_once=True)
    max_grad_norm: float = number(0.5, read_once=True)
    name: str = "fake"


class FakeLearner:
    """Takes any numbers."""

    def __init__(self, cfg: AlgoSettings, spec: None = None):
        self.cfg, self.spec = cfg, spec
        self.optimizers: dict[str, Any] = {}


class Recorder(Callback):
    """Keeps every row."""

    order = 60

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def on_log(self, trainer: Any, row: dict[str, Any]) -> None:
        self.rows.append(row)


@dataclass
class FakeTrainer:
    """The part of a trainer that callbacks see, stepped by hand."""

    callbacks: dict[str, Callback]
    scores: list[float] = field(default_factory=list)  # what successive evaluations return
    total_steps: int | None = 100
    resumed: bool = False
    run_dir: Path = Path()

    def __post_init__(self) -> None:
        self.plan = Plan()
        self.state = SimpleNamespace(
            steps=0, env_steps=0, updates=0, epoch=0, best=None, should_stop=False, stop_reason="", wall_time=0.0
        )
        optimizers = {"actor": SimpleNamespace(scale=1.0), "critic": SimpleNamespace(scale=1.0)}
        self.learner = FakeLearner(AlgoSettings())
        self.learner.optimizers = optimizers
        self.prior = object()
        self.saves: list[tuple[str, int]] = []
        self.recorder = Recorder()
        self.bus = CallbackBus({**self.callbacks, "recorder": self.recorder})

    @property
    def rows(self) -> list[dict[str, Any]]:
        return self.recorder.rows

    def log(self, kind: str, metrics: dict[str, float]) -> None:
        self.bus.emit("log", self, {"kind": kind, "steps": self.state.steps, **metrics})

    def stop(self, reason: str) -> None:
        if not self.state.should_stop:
            self.state.should_stop, self.state.stop_reason = True, reason

    def evaluate(self, episodes: int) -> dict[str, float]:
        return {"eval/return_mean": self.scores.pop(0), "eval/episodes": episodes}

    def save(self, name: str) -> Path:
        self.saves.append((name, self.state.steps))
        return self.run_dir / name

    def advance(self, steps: int) -> None:
        """One iteration that moves every counter by `steps`."""
        for name in ("steps", "env_steps", "updates"):
            setattr(self.state, name, getattr(self.state, name) + steps)
        self.bus.emit("iteration", self)

    def start(self) -> FakeTrainer:
        self.bus.check(self)
        self.bus.emit("run_start", self)
        return self

    def end(self, reason: str) -> None:
        self.stop(reason)
        self.bus.emit("run_end", self)


@pytest.fixture
def make_trainer() -> type[FakeTrainer]:
    return FakeTrainer
