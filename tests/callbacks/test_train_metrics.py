from __future__ import annotations

import json
import math

import torch

from rlx.callbacks import crossed
from rlx.callbacks.metrics import TrainMetrics, TrainMetricsConfig, mean
from rlx.callbacks.schedule import Schedules
from rlx.schedules import ScheduleConfig


def through_json(value):
    return json.loads(json.dumps(value))


def test_crossed_sees_multiples_that_a_jump_passes_over():
    assert crossed(9, 10, 10)
    assert crossed(8, 25, 10)
    assert not crossed(10, 19, 10)
    assert not crossed(0, 5, 0)


def test_mean_is_exact_and_lets_inf_and_nan_through():
    assert mean([1e16, 1.0, -1e16]) == 1.0 / 3.0
    assert mean([math.inf, 1.0]) == math.inf
    assert math.isnan(mean([math.inf, -math.inf]))


def test_a_row_holds_means_since_the_last_row(make_trainer):
    trainer = make_trainer({"metrics": TrainMetrics(TrainMetricsConfig())}).start()
    trainer.bus.emit("update", trainer, {"loss/critic": torch.tensor(1.0), "loss/actor": torch.tensor(4.0)})
    trainer.bus.emit("update", trainer, {"loss/critic": torch.tensor(2.0)})
    trainer.bus.emit("episode", trainer, -10.0, 5, {"transformed_return": -1.0})
    trainer.bus.emit("episode", trainer, -20.0, 7, {"transformed_return": -2.0})
    trainer.advance(9)
    assert trainer.rows == []
    trainer.advance(1)
    assert trainer.rows == [
        {
            "kind": "train",
            "steps": 10,
            "loss/actor": 4.0,
            "loss/critic": 1.5,
            "train/length_mean": 6.0,
            "train/return_mean": -15.0,
            "train/return_transformed_mean": -1.5,
        }
    ]
    trainer.bus.emit("update", trainer, {"loss/critic": torch.tensor(8.0)})
    trainer.advance(10)
    assert trainer.rows[1] == {"kind": "train", "steps": 20, "loss/critic": 8.0}


def test_a_metric_that_is_a_view_of_a_parameter_keeps_its_value(make_trainer):
    trainer = make_trainer({"metrics": TrainMetrics(TrainMetricsConfig())}).start()
    alpha = torch.tensor(1.0)
    trainer.bus.emit("update", trainer, {"alpha": alpha})
    alpha.fill_(5.0)
    trainer.advance(10)
    assert trainer.rows[0]["alpha"] == 1.0


def test_a_resume_within_an_interval_writes_the_same_row(make_trainer):
    values = torch.randn(600, generator=torch.Generator().manual_seed(0))

    def feed(trainer, part):
        for v in part:
            trainer.bus.emit("update", trainer, {"loss": v, **({"odd": v * 3} if v > 0 else {})})

    whole = make_trainer({"metrics": TrainMetrics(TrainMetricsConfig())}).start()
    feed(whole, values)
    whole.advance(10)

    first = make_trainer({"metrics": TrainMetrics(TrainMetricsConfig())}).start()
    feed(first, values[:301])
    saved = through_json(first.bus.state())
    second = make_trainer({"metrics": TrainMetrics(TrainMetricsConfig())}, resumed=True)
    second.bus.load_state(saved)
    feed(second.start(), values[301:])
    second.advance(10)
    assert second.rows == whole.rows
    assert whole.rows[0]["loss"] == math.fsum(values.tolist()) / 600


def test_what_remains_is_written_at_the_end_but_not_on_interruption(make_trainer):
    for reason, rows in (("max_updates", 1), ("interrupted", 0), ("terminated", 0)):
        trainer = make_trainer({"metrics": TrainMetrics(TrainMetricsConfig())}).start()
        trainer.bus.emit("update", trainer, {"loss": torch.tensor(2.0)})
        trainer.advance(3)
        trainer.end(reason)
        assert len(trainer.rows) == rows
        assert bool(trainer.bus.state()["metrics"]["values"]) == (rows == 0)


def test_rows_hold_the_schedule_that_the_iteration_was_run_with(make_trainer):
    callbacks = {"metrics": TrainMetrics(TrainMetricsConfig()), "schedules": Schedules(ScheduleConfig(kind="linear"))}
    trainer = make_trainer(callbacks).start()
    for _ in range(2):
        trainer.bus.emit("update", trainer, {"loss": torch.tensor(2.0)})
        trainer.advance(10)
    assert [row["schedule/lr"] for row in trainer.rows] == [1.0, 0.9]
