from __future__ import annotations

import json
import math

import pytest

from rlx.errors import UserError
from rlx.loggers.jsonl import Jsonl, JsonlConfig


def write(run, logger, *values):
    for value in values:
        logger.on_log(run, {"kind": "train", "loss": value})


def rows(run):
    return [json.loads(line)["loss"] for line in (run.run_dir / "metrics.jsonl").read_text().splitlines()]


def started(run, state=None):
    logger = Jsonl(JsonlConfig())
    if state is not None:
        logger.load_state(state)
    logger.check(run)
    logger.on_run_start(run)
    return logger


def test_rows_are_on_disk_as_they_come(make_run):
    run = make_run()
    logger = started(run)
    write(run, logger, 1.0, 2.5)
    assert rows(run) == [1.0, 2.5]


def test_lines_are_valid_json_whatever_the_value(make_run):
    run = make_run()
    logger = started(run)
    write(run, logger, math.nan, math.inf, -math.inf, 0.1)

    def refuse(name):
        raise AssertionError(f"{name} is not JSON")

    lines = (run.run_dir / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line, parse_constant=refuse)["loss"] for line in lines] == [None, None, None, 0.1]


def test_a_resume_neither_repeats_nor_drops_a_row(make_run):
    run = make_run()
    logger = started(run)
    write(run, logger, 1.0, 2.0)
    state = json.loads(json.dumps(logger.state()))
    write(run, logger, 3.0)
    with open(run.run_dir / "metrics.jsonl", "ab") as file:
        file.write(b'{"kind": "tra')  # killed while writing

    again = make_run(steps=10, resumed=True)
    logger = started(again, state)
    write(again, logger, 3.0, 4.0)
    assert rows(again) == [1.0, 2.0, 3.0, 4.0]


def test_the_last_checkpoint_knows_the_whole_file(make_run):
    run = make_run()
    logger = started(run)
    write(run, logger, 1.0)
    logger.on_run_end(run)
    assert logger.state() == {"offset": (run.run_dir / "metrics.jsonl").stat().st_size}


def test_a_second_run_is_not_mixed_in(make_run):
    write(make_run(), started(make_run()), 1.0)
    with pytest.raises(UserError, match="exists already"):
        started(make_run())


def test_a_file_that_lost_rows_is_noticed(make_run):
    run = make_run()
    logger = started(run)
    write(run, logger, 1.0)
    state = logger.state()
    (run.run_dir / "metrics.jsonl").write_text("")
    with pytest.raises(UserError, match="shorter"):
        started(make_run(steps=5, resumed=True), state)


def test_rows_from_before_the_logger_was_left_out_are_kept(make_run):
    write(make_run(), started(make_run()), 1.0)
    run = make_run(steps=10, resumed=True)
    write(run, started(run), 2.0)
    assert rows(run) == [1.0, 2.0]
    run = make_run(steps=0, resumed=True)  # nothing was saved: the run starts over
    write(run, started(run), 5.0)
    assert rows(run) == [5.0]
