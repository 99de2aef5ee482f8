from __future__ import annotations

import json

import pytest

from rlx.callbacks.schedule import Schedules
from rlx.errors import UserError
from rlx.schedules import ScheduleConfig


def test_drives_the_learning_rate_of_every_optimizer(make_trainer):
    trainer = make_trainer({"schedules": Schedules(ScheduleConfig(kind="linear", end=0.2))}).start()
    seen = []
    for _ in range(4):
        seen.append({name: optimizer.scale for name, optimizer in trainer.learner.optimizers.items()})
        trainer.advance(50)
    expected = [1.0, 0.6, 0.2, 0.2]  # and it stays at the end
    assert [s["actor"] for s in seen] == pytest.approx(expected)
    assert [s["critic"] for s in seen] == pytest.approx(expected)


def test_drives_numbers_of_the_algorithm_and_of_the_trainer(make_trainer):
    targets = {
        "epsilon": {"kind": "linear", "start": 1.0, "end": 0.0, "unit": "env_steps", "horizon": 20},
        "horizon_steps": {"kind": "linear", "start": 10, "end": 20, "unit": "updates", "horizon": 40},
        "offline_batch_ratio": 0.25,
    }
    schedules = Schedules(ScheduleConfig(targets=targets))
    trainer = make_trainer({"schedules": schedules}).start()
    assert trainer.plan.phases["online"].offline_fraction == 0.25
    assert trainer.learner.cfg.epsilon == 1.0
    trainer.advance(5)
    assert trainer.learner.cfg.epsilon == 0.75
    assert trainer.learner.cfg.horizon_steps == 11  # 11.25, rounded for a field of whole numbers
    assert isinstance(trainer.learner.cfg.horizon_steps, int)
    assert schedules.used == {
        "schedule/lr": 1.0,
        "schedule/epsilon": 1.0,
        "schedule/horizon_steps": 10,
        "schedule/offline_batch_ratio": 0.25,
    }


def test_a_resume_within_an_iteration_keeps_the_value_of_that_iteration(make_trainer):
    first = make_trainer({"schedules": Schedules(ScheduleConfig(kind="linear"))}).start()
    first.advance(10)
    first.state.steps = 15  # interrupted while collecting
    state = json.loads(json.dumps(first.bus.state()))
    second = make_trainer({"schedules": Schedules(ScheduleConfig(kind="linear"))}, resumed=True)
    second.bus.load_state(state)
    second.state.steps = 15
    second.start()
    assert second.learner.optimizers["actor"].scale == first.learner.optimizers["actor"].scale == 0.9


@pytest.mark.parametrize(
    ("targets", "words"),
    [
        ({"epsilonn": 0.1}, "did you mean schedule.targets.epsilon"),
        ({"name": 0.1}, "names no number"),
        ({"lr": 0.1}, "the schedule itself multiplies.*can move here: epsilon, horizon_steps, offline_batch_ratio"),
        ({"discount": 0.1}, "not read again"),
        ({"alpha": 0.1}, "not read again"),
        ({"max_grad_norm": 0.1}, "not read again"),
        ({"train_frequency": 2}, "not read again"),
    ],
)
def test_targets_that_nobody_would_read_are_refused_at_the_start(make_trainer, targets, words):
    with pytest.raises(UserError, match=words):
        make_trainer({"schedules": Schedules(ScheduleConfig(targets=targets))}).start()


def test_the_mixture_moves_only_where_there_is_one(make_trainer):
    trainer = make_trainer({"schedules": Schedules(ScheduleConfig(targets={"offline_batch_ratio": 0.1}))})
    trainer.prior = None
    with pytest.raises(UserError, match="not read again"):
        trainer.start()


def test_a_resume_knows_what_the_iteration_before_was_run_with(make_trainer):
    first = make_trainer({"schedules": Schedules(ScheduleConfig(kind="linear"))}).start()
    first.advance(10)
    first.advance(10)
    second = make_trainer({"schedules": Schedules(ScheduleConfig(kind="linear"))}, resumed=True)
    second.bus.load_state(json.loads(json.dumps(first.bus.state())))
    second.state.steps = 20
    second.start()
    assert second.callbacks["schedules"].used == first.callbacks["schedules"].used == {"schedule/lr": 0.9}


def test_a_fraction_needs_a_budget(make_trainer):
    with pytest.raises(UserError, match="needs a budget"):
        make_trainer({"schedules": Schedules(ScheduleConfig(kind="linear"))}, total_steps=None).start()
    trainer = make_trainer(
        {"schedules": Schedules(ScheduleConfig(kind="linear", unit="updates", horizon=10))}, total_steps=None
    )
    trainer.start().advance(5)
    assert trainer.learner.optimizers["actor"].scale == 0.5
