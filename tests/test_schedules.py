from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlx.config import compose_config, instantiate
from rlx.errors import UserError
from rlx.schedules import Kind, ScheduleSpec, Unit, check_schedule, parse_target, resolve_schedule_value

HALF = math.sqrt(0.5)  # cos(pi / 4)


@pytest.mark.parametrize(
    ("spec", "points"),
    [
        ({"kind": "constant", "start": 0.7}, {0: 0.7, 50: 0.7, 500: 0.7}),
        ({"kind": "linear", "start": 1.0, "end": 0.0}, {0: 1.0, 25: 0.75, 100: 0.0, 500: 0.0}),
        ({"kind": "linear", "start": 0.0, "end": 4.0}, {0: 0.0, 25: 1.0, 100: 4.0}),
        ({"kind": "cosine", "start": 1.0, "end": 0.0}, {0: 1.0, 25: (1 + HALF) / 2, 50: 0.5, 100: 0.0, 500: 0.0}),
        ({"kind": "cosine", "start": 2.0, "end": 1.0}, {0: 2.0, 50: 1.5, 100: 1.0}),
        (
            {"kind": "warmup_linear", "warmup": 20, "start": 2.0, "end": 1.0},
            {0: 0.0, 5: 0.5, 20: 2.0, 60: 1.5, 100: 1.0, 500: 1.0},
        ),
        (
            {"kind": "warmup_cosine", "warmup": 20, "start": 2.0, "end": 0.0},
            {0: 0.0, 10: 1.0, 20: 2.0, 40: 1 + HALF, 60: 1.0, 100: 0.0},
        ),
        ({"kind": "warmup_linear", "warmup": 0}, {0: 1.0, 50: 0.5}),
        ({"kind": "linear", "warmup": 20}, {0: 1.0, 50: 0.5}),  # a warm-up belongs to warmup_* alone
        ({"kind": "step", "step_size": 30, "gamma": 0.1, "start": 10.0}, {0: 10.0, 29: 10.0, 30: 1.0, 60: 0.1}),
    ],
)
@pytest.mark.parametrize("unit", ["updates", "env_steps"])
def test_values_by_hand(spec, points, unit):
    made = ScheduleSpec(**{"unit": unit, "horizon": 100, **spec})
    found = {t: resolve_schedule_value(made, **{unit: t}) for t in points}
    assert found == pytest.approx(points)


def test_a_fraction_follows_the_budget():
    spec = ScheduleSpec(kind=Kind.linear, horizon=0.5)
    found = [resolve_schedule_value(spec, updates=999, env_steps=999, fraction=f) for f in (0.0, 0.25, 0.5, 1.0)]
    assert found == [1.0, 0.5, 0.0, 0.0]
    with pytest.raises(UserError, match="needs a budget"):
        resolve_schedule_value(spec, updates=1)


@given(
    kind=st.sampled_from(["linear", "cosine", "warmup_linear", "warmup_cosine"]),
    t=st.integers(0, 300),
    warmup=st.integers(0, 99),
    start=st.floats(0, 10),
    end=st.floats(0, 10),
)
def test_values_stay_between_zero_start_and_end(kind, t, warmup, start, end):
    spec = ScheduleSpec(kind=kind, unit="updates", horizon=100, warmup=warmup, start=start, end=end)
    low = 0.0 if kind.startswith("warmup") else min(start, end)
    assert low - 1e-9 <= resolve_schedule_value(spec, updates=t) <= max(start, end) + 1e-9


def test_targets_are_numbers_or_fields():
    assert parse_target("x", 2) == ScheduleSpec(kind=Kind.constant, start=2.0)
    made = parse_target("x", {"kind": "step", "unit": "updates", "step_size": 10})
    assert made == ScheduleSpec(kind=Kind.step, unit=Unit.updates, step_size=10)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("fast", "expected a number or fields"),
        (True, "expected a number or fields"),
        ({"knd": "linear"}, "did you mean 'kind'"),
        ({"kind": "liner"}, "Unknown schedule kind 'liner'"),
        ({"unit": "hours"}, "Unknown schedule unit 'hours'"),
        ({"start": "high"}, "start is 'high'"),
    ],
)
def test_targets_that_mean_nothing_are_refused(value, words):
    with pytest.raises(UserError, match=words):
        parse_target("x", value)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"kind": "linear", "horizon": 0}, "horizon is 0"),
        ({"kind": "warmup_cosine", "warmup": 1.0}, "less than"),
        ({"kind": "warmup_linear", "warmup": -0.1}, "at least 0"),
        ({"kind": "step", "step_size": 0}, "step_size is 0"),
        ({"kind": "cosine", "horizon": 1000}, "unit=updates"),
    ],
)
def test_schedules_that_mean_nothing_are_refused(fields, words):
    with pytest.raises(UserError, match=words):
        check_schedule(ScheduleSpec(**fields), "schedule")


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ("constant", [1.0, 1.0, 1.0]),
        ("linear", [1.0, 0.5, 0.0]),
        ("cosine", [1.0, 0.5, 0.0]),
        ("warmup_linear", [0.0, 1 - 0.45 / 0.95, 0.0]),
        ("warmup_cosine", [0.0, (1 + math.cos(math.pi * 0.45 / 0.95)) / 2, 0.0]),
        ("step", [1.0, 0.25, 0.0625]),
    ],
)
def test_presets_at_the_start_the_middle_and_the_end(choice, expected):
    spec = instantiate(compose_config([f"schedule={choice}"]).schedule).lr
    assert [resolve_schedule_value(spec, fraction=f) for f in (0.0, 0.5, 1.0)] == pytest.approx(expected)


def test_targets_come_through_the_command_line():
    override = "+schedule.targets.offline_batch_ratio={kind: linear, start: 0.5, unit: env_steps, horizon: 100}"
    targets = instantiate(compose_config([override]).schedule).targets
    expected = ScheduleSpec(kind=Kind.linear, start=0.5, unit=Unit.env_steps, horizon=100)
    assert targets == {"offline_batch_ratio": expected}
