from __future__ import annotations

import json
import logging

import pytest

from rlx.callbacks.early_stopping import EarlyStopping, EarlyStoppingConfig
from rlx.errors import UserError


def run(make_trainer, values, state=None, **kwargs):
    """Log the values one by one, ten steps apart; the trainer after the last one it accepted."""
    trainer = make_trainer({"stop": EarlyStopping(EarlyStoppingConfig(**kwargs))})
    if state is not None:
        trainer.bus.load_state(state)
    trainer.start()
    for value in values:
        trainer.advance(10)
        trainer.log("eval", {kwargs.get("metric", "eval/return_mean"): value})
        if trainer.state.should_stop:
            break
    return trainer


@pytest.mark.parametrize(
    ("values", "kwargs", "stopped_at", "reason"),
    [
        ([1, 2, 2, 2], {"patience": 2}, 40, "early_stopping: no_improvement"),
        ([1, 2, 2, 3, 3], {"patience": 2}, None, ""),
        ([3, 2, 1, 1, 1], {"patience": 2, "mode": "min"}, 50, "early_stopping: no_improvement"),
        ([0, 0.5, 1.0, 1.5], {"patience": 2, "min_delta": 1.0}, 30, "early_stopping: no_improvement"),
        ([1, 1, 1, 1, 1], {"patience": 2, "min_steps": 40}, 50, "early_stopping: no_improvement"),
        ([1, 5, 9], {"patience": None, "threshold": 5.0}, 20, "early_stopping: threshold_reached"),
        ([9, 5, 1], {"patience": None, "threshold": 5.0, "mode": "min"}, 20, "early_stopping: threshold_reached"),
        ([9, 9, 9], {"patience": None, "threshold": 5.0, "min_steps": 30}, 30, "early_stopping: threshold_reached"),
        ([float("nan")] * 3, {"patience": 2}, 20, "early_stopping: no_improvement"),
        ([0.3, 0.2, 0.2], {"patience": 1, "mode": "min", "metric": "loss/bc"}, 30, "early_stopping: no_improvement"),
    ],
)
def test_rules(make_trainer, values, kwargs, stopped_at, reason):
    trainer = run(make_trainer, values, **kwargs)
    assert trainer.state.stop_reason == reason
    assert trainer.state.should_stop == (stopped_at is not None)
    if stopped_at is not None:
        assert trainer.state.steps == stopped_at


def test_patience_survives_a_resume(make_trainer):
    first = run(make_trainer, [5, 4], patience=3)
    state = json.loads(json.dumps(first.bus.state()))
    second = run(make_trainer, [4, 4], state=state, patience=3)
    assert second.state.steps == 20
    assert second.state.stop_reason == "early_stopping: no_improvement"


def test_a_metric_that_never_came_is_reported(make_trainer, caplog):
    trainer = make_trainer({"stop": EarlyStopping(EarlyStoppingConfig(metric="eval/return_men"))}).start()
    trainer.log("eval", {"eval/return_mean": 1.0})
    with caplog.at_level(logging.WARNING, "rlx"):
        trainer.end("max_updates")
    assert "did you mean 'eval/return_mean'?" in caplog.text


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [({"mode": "up"}, "max or min"), ({"patience": 0}, "at least 1"), ({"patience": None}, "no rule")],
)
def test_senseless_rules_are_refused(kwargs, words):
    with pytest.raises(UserError, match=words):
        EarlyStopping(EarlyStoppingConfig(**kwargs))
