from __future__ import annotations

import math

from rlx.callbacks.bus import Callback
from rlx.callbacks.evaluate import Evaluate, EvaluateConfig


class Listener(Callback):
    def __init__(self) -> None:
        self.seen: list[tuple[int, float, float]] = []

    def on_evaluated(self, trainer, metrics):
        self.seen.append((trainer.state.steps, metrics["eval/return_mean"], trainer.state.best))


def test_evaluates_at_intervals_and_keeps_the_best(make_trainer):
    listener = Listener()
    trainer = make_trainer({"evaluate": Evaluate(EvaluateConfig()), "listener": listener}, scores=[1.0, 0.5, 3.0])
    trainer.start()
    for _ in range(8):
        trainer.advance(4)
    assert listener.seen == [(12, 1.0, 1.0), (20, 0.5, 1.0), (32, 3.0, 3.0)]
    assert trainer.saves == [("best", 12), ("best", 32)]
    assert [row["kind"] for row in trainer.rows] == ["eval"] * 3
    assert trainer.rows[0]["eval/episodes"] == 3


def test_evaluates_once_more_at_the_end_unless_just_done_or_interrupted(make_trainer):
    for steps, reason, evaluations in ((13, "max_env_steps", 2), (10, "max_env_steps", 1), (13, "interrupted", 1)):
        trainer = make_trainer({"evaluate": Evaluate(EvaluateConfig())}, scores=[1.0, 2.0]).start()
        trainer.advance(10)
        if steps > 10:
            trainer.advance(steps - 10)
        trainer.end(reason)
        assert len(trainer.rows) == evaluations


def test_interval_zero_evaluates_only_at_the_end(make_trainer):
    trainer = make_trainer({"evaluate": Evaluate(EvaluateConfig())}, scores=[1.0])
    trainer.plan.eval_interval = 0
    trainer.start().advance(50)
    assert trainer.rows == []
    trainer.end("max_updates")
    assert len(trainer.rows) == 1


def test_nan_is_never_the_best(make_trainer):
    trainer = make_trainer({"evaluate": Evaluate(EvaluateConfig())}, scores=[math.nan, -5.0]).start()
    trainer.advance(10)
    assert trainer.state.best is None
    trainer.advance(10)
    assert trainer.state.best == -5.0
    assert trainer.saves == [("best", 20)]


def test_a_resumed_run_does_not_repeat_an_evaluation(make_trainer):
    first = make_trainer({"evaluate": Evaluate(EvaluateConfig())}, scores=[1.0]).start()
    first.advance(10)
    second = make_trainer({"evaluate": Evaluate(EvaluateConfig())}, scores=[2.0], resumed=True)
    second.bus.load_state(first.bus.state())
    second.state.steps = 10
    second.start().advance(5)
    assert second.rows == []
    second.advance(5)
    assert second.rows[0]["steps"] == 20
