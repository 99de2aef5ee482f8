from __future__ import annotations

import io
import logging
import random
import re
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from rlx.callbacks.evaluate import Evaluate, EvaluateConfig
from rlx.callbacks.progress import Progress, ProgressConfig, format_rate, format_seconds
from rlx.trainers.trainer import Phase


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("seconds", "text"), [(42.9, "42s"), (185, "3m05s"), (7620, "2h07m")])
def test_format_seconds(seconds, text):
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(("rate", "text"), [(162.4, "162"), (10.0, "10"), (0.44, "0.4"), (0.0, "0")])
def test_format_rate(rate, text):
    assert format_rate(rate) == text


def drive(trainer):
    trainer.start()
    trainer.bus.emit("phase_start", trainer, "online")
    for _ in range(2):
        trainer.advance(10)
    trainer.end("max_env_steps")


def test_plain_lines_where_there_is_no_terminal(make_trainer, caplog):
    callbacks = {"evaluate": Evaluate(EvaluateConfig()), "progress": Progress(ProgressConfig())}
    with caplog.at_level(logging.INFO, "rlx"):
        drive(make_trainer(callbacks, scores=[-3.0, -7.0]))
    lines = [record.getMessage() for record in caplog.records]
    assert lines[0] == "online: starts at 0 steps"
    assert lines[1].startswith("online: 10/100 steps, ")
    assert "return -3.00, best -3.00, ETA" in lines[1]
    assert "return -7.00, best -3.00, ETA" in lines[2]
    assert len(lines) == 3


@pytest.mark.parametrize("columns", [80, 100])
def test_steps_and_time_left_are_readable_on_a_terminal_of(columns, make_trainer, monkeypatch):
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(columns))
    trainer = make_trainer({"evaluate": Evaluate(EvaluateConfig()), "progress": Progress(ProgressConfig())},
                           scores=[-1003.0, -1007.0])  # fmt: skip
    trainer.total_steps = 200_000
    drive(trainer)
    last = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", screen.getvalue()).rstrip().splitlines()[-1]
    assert "20/200000" in last
    assert "return -1007.0" in last
    assert re.search(r"ETA \w+", last)


def test_a_bar_on_a_terminal(make_trainer, monkeypatch, caplog):
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    callbacks = {"evaluate": Evaluate(EvaluateConfig()), "progress": Progress(ProgressConfig())}
    with caplog.at_level(logging.INFO, "rlx"):
        drive(make_trainer(callbacks, scores=[-3.0, -7.0]))
    shown = screen.getvalue()
    for part in ("online", "20/100", "updates/s", "return -7.00", "best -3.00", "ETA"):
        assert part in shown
    assert caplog.records == []


class FakeHandle:
    def __init__(self):
        self.shown = []

    def update(self, data, raw):
        assert raw
        self.shown.append(data["text/plain"])


@pytest.mark.parametrize("notebook", [True, False])
def test_one_line_that_is_replaced_in_a_notebook(make_trainer, monkeypatch, caplog, notebook):
    handle = FakeHandle()
    shell = SimpleNamespace(kernel=object()) if notebook else SimpleNamespace()  # that of a terminal has no kernel
    display = SimpleNamespace(display=lambda data, raw, display_id: handle)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    callbacks = {"evaluate": Evaluate(EvaluateConfig()), "progress": Progress(ProgressConfig(refresh=0))}
    with caplog.at_level(logging.INFO, "rlx"):
        drive(make_trainer(callbacks, scores=[-3.0, -7.0]))
    assert bool(handle.shown) == notebook
    assert bool(caplog.records) != notebook
    if notebook:
        assert handle.shown[-1].startswith("online " + "━" * 8 + "─" * 32 + " 20/100 ")
        assert "return -7.00, best -3.00, ETA" in handle.shown[-1]


def test_generators_are_left_alone(make_trainer):
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    drive(make_trainer({"progress": Progress(ProgressConfig(every=0.0))}))
    assert (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()) == before


def test_an_unknown_budget_has_no_eta(make_trainer, caplog):
    with caplog.at_level(logging.INFO, "rlx"):
        drive(make_trainer({"progress": Progress(ProgressConfig(every=0.0))}, total_steps=None))
    assert "10/? steps" in caplog.text
    assert "ETA" not in caplog.text


class Clock:
    """Time that passes when it is told to."""

    def __init__(self, monkeypatch):
        self.now = 100.0
        monkeypatch.setattr("rlx.callbacks.progress.time.monotonic", lambda: self.now)

    def learn(self, trainer, steps, seconds):
        """Steps of one update each."""
        for _ in range(steps):
            self.now += seconds
            trainer.state.steps += 1
            trainer.state.updates += 1
            trainer.bus.emit("update", trainer, {})
            trainer.bus.emit("iteration", trainer)


def eta(progress, trainer):
    return progress._text(trainer).partition("ETA ")[2]


def test_the_time_left_is_told_from_learning_and_evaluating(make_trainer, monkeypatch):
    """Random steps take no time, learning 2 s a step, an evaluation 30 s; 70 steps and one evaluation are left."""
    clock, progress = Clock(monkeypatch), Progress(ProgressConfig())
    trainer = make_trainer({"progress": progress}).start()
    trainer.plan.eval_interval = 50
    trainer.bus.emit("phase_start", trainer, "online")
    clock.now += 1
    trainer.state.steps += 20
    trainer.bus.emit("iteration", trainer)
    assert eta(progress, trainer) == "", "how fast it learns is not known yet"
    clock.learn(trainer, 10, seconds=2)
    assert eta(progress, trainer) == "2m20s"
    clock.now += 30
    trainer.bus.emit("evaluated", trainer, {"eval/return_mean": 1.0})
    assert eta(progress, trainer) == "2m50s"


def test_speeds_are_those_of_the_latest_stretch_without_evaluations(make_trainer, monkeypatch):
    """10 steps of 2 s, an evaluation of 30 s; then 20 steps of 4 s: halfway from 0.5 to 0.25 a second."""
    clock, progress = Clock(monkeypatch), Progress(ProgressConfig(every=1e9))
    trainer = make_trainer({"progress": progress}).start()
    trainer.bus.emit("phase_start", trainer, "online")
    clock.learn(trainer, 10, seconds=2)
    clock.now += 30
    trainer.bus.emit("evaluated", trainer, {"eval/return_mean": 1.0})
    assert progress._rates == (0.5, 0.5)
    assert progress._text(trainer).startswith("0.5 steps/s, 0.5 updates/s, return 1.00")
    clock.learn(trainer, 20, seconds=4)
    progress._show(trainer)
    assert progress._rates == (0.375, 0.375)


@pytest.mark.parametrize(
    ("phase", "speeds"),
    [
        (Phase(collect=1), "20 steps/s, 5.0 updates/s"),
        (Phase(collect=8, on_policy=True), "20 steps/s"),
        (Phase(updates=50), "5.0 updates/s"),
    ],
)
def test_the_speeds_of_a_phase_are_those_of_what_it_does(make_trainer, phase, speeds):
    progress = Progress(ProgressConfig())
    trainer = make_trainer({"progress": progress}).start()
    trainer.plan.phases = {"here": phase}
    trainer.bus.emit("phase_start", trainer, "here")
    progress._rates = (20.0, 5.0)
    assert progress._text(trainer).partition(", ETA")[0] == speeds


def test_a_later_phase_is_told_by_its_updates(make_trainer, monkeypatch):
    """40 updates here at 1 s, then 100 env steps of two updates each."""
    clock, progress = Clock(monkeypatch), Progress(ProgressConfig())
    trainer = make_trainer({"progress": progress}, total_steps=150).start()
    trainer.plan.eval_interval, trainer.plan.max_env_steps = 0, 100
    trainer.plan.phases = {"pretrain": Phase(updates=50), "online": Phase(collect=1, updates_per_step=2.0)}
    trainer.bus.emit("phase_start", trainer, "pretrain")
    clock.learn(trainer, 10, seconds=1)
    assert eta(progress, trainer) == "4m00s"


def test_a_resumed_run_names_its_phase(make_trainer, caplog):
    trainer = make_trainer({"progress": Progress(ProgressConfig(every=0.0))})
    trainer.state.phase = "online"
    with caplog.at_level(logging.INFO, "rlx"):
        trainer.start()
        trainer.advance(10)
    assert caplog.records[0].getMessage().startswith("online: 10/100 steps")


def test_an_evaluation_that_takes_long_is_told(make_trainer, monkeypatch, caplog):
    """Every 30 s, however often there is something to tell; its time is not taken for that of steps."""
    clock, progress = Clock(monkeypatch), Progress(ProgressConfig())
    trainer = make_trainer({"progress": progress}).start()
    trainer.bus.emit("phase_start", trainer, "online")
    clock.learn(trainer, 10, seconds=2)
    with caplog.at_level(logging.INFO, "rlx"):
        for i in range(1, 8):
            clock.now += 10
            trainer.bus.emit("evaluating", trainer, f"{i}00 steps")
    lines = [record.getMessage() for record in caplog.records]
    assert lines == [f"online: 10/100 steps, evaluating ({i}00 steps)" for i in (1, 4, 7)]
    trainer.bus.emit("evaluated", trainer, {"eval/return_mean": 1.0})
    assert progress._rates == (0.5, 0.5)
