from __future__ import annotations

import math

import pytest

from rlx.loggers.tensorboard import Tensorboard, TensorboardConfig


@pytest.fixture
def scalars(tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")

    def read(name):
        found = accumulator.EventAccumulator(str(tmp_path / "tensorboard"), size_guidance={"scalars": 0})
        found.Reload()
        return [(event.step, event.value) for event in found.Scalars(name)]

    return read


def write(run, steps):
    logger = Tensorboard(TensorboardConfig())
    logger.on_run_start(run)
    for step in steps:
        run.state.steps = step
        logger.on_log(run, {"kind": "train", "wall_time": 1.0, "loss": 9.0, "eval/return_mean": step / 2})
    return logger


def test_metrics_are_scalars_over_steps(make_run, scalars):
    run = make_run()
    logger = write(run, [10, 20])
    logger.on_log(run, {"kind": "eval", "eval/return_mean": math.nan})
    logger.on_run_end(run)
    logger.on_checkpoint(run, run.run_dir)  # the last checkpoint comes after the end
    assert scalars("eval/return_mean") == [(10, 5.0), (20, 10.0)]


def test_a_run_that_begins_again_hides_everything(make_run, scalars):
    run = make_run()
    write(run, [0, 10]).on_checkpoint(run, run.run_dir)
    again = make_run(resumed=True)
    write(again, [5]).on_run_end(again)
    assert scalars("eval/return_mean") == [(5, 2.5)]


def test_a_resume_hides_what_came_after_its_checkpoint(make_run, scalars):
    run = make_run()
    write(run, [10, 20, 30, 40]).on_checkpoint(run, run.run_dir)
    again = make_run(steps=20, resumed=True)
    write(again, [30]).on_run_end(again)
    assert scalars("eval/return_mean") == [(10, 5.0), (20, 10.0), (30, 15.0)]
