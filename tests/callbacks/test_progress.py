from __future__ import annotations

import io
import logging
import random
import sys

import numpy as np
import pytest
import torch

from rlx.callbacks.evaluate import Evaluate, EvaluateConfig
from rlx.callbacks.progress import Progress, ProgressConfig, format_seconds


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("seconds", "text"), [(42.9, "42s"), (185, "3m05s"), (7620, "2h07m")])
def test_format_seconds(seconds, text):
    assert format_seconds(seconds) == text


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
    assert "return -3.0, best -3.0, ETA" in lines[1]
    assert "return -7.0, best -3.0, ETA" in lines[2]
    assert len(lines) == 3


def test_a_bar_on_a_terminal(make_trainer, monkeypatch, caplog):
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    callbacks = {"evaluate": Evaluate(EvaluateConfig()), "progress": Progress(ProgressConfig())}
    with caplog.at_level(logging.INFO, "rlx"):
        drive(make_trainer(callbacks, scores=[-3.0, -7.0]))
    shown = screen.getvalue()
    for part in ("online", "20/100", "updates/s", "return -7.0", "best -3.0", "ETA"):
        assert part in shown
    assert caplog.records == []


def test_generators_are_left_alone(make_trainer):
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    drive(make_trainer({"progress": Progress(ProgressConfig(every=0.0))}))
    assert (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()) == before


def test_an_unknown_budget_has_no_eta(make_trainer, caplog):
    with caplog.at_level(logging.INFO, "rlx"):
        drive(make_trainer({"progress": Progress(ProgressConfig(every=0.0))}, total_steps=None))
    assert "10/? steps" in caplog.text
    assert "ETA" not in caplog.text
