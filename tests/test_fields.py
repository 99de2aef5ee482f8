"""Ranges of numbers, and what is said of a value outside of its own."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from rlx.errors import UserError
from rlx.fields import Range, check_number, check_numbers, is_read_once, number, range_of


@dataclass
class Numbers:
    tau: float = number(0.005, above=0, most=1)
    critics: int = number(10, least=1, read_once=True)
    subset: int = number(2, least=1, most="critics")
    clip: float | None = number(None, above=0)
    shift: float = number(0.0)
    plain: float = 1.0


@pytest.mark.parametrize(
    ("bounds", "inside", "outside"),
    [
        (Range(least=0), (0, 0.5, 1e9), (-1e-9,)),
        (Range(above=0), (1e-9, 3), (0, -1)),
        (Range(most=1), (1, -5), (1.0001,)),
        (Range(below=1), (0.999,), (1, 2)),
        (Range(least=0, most=1), (0, 1), (-0.1, 1.1)),
        (Range(), (-1e30, 0), ()),
    ],
)
def test_bounds(bounds: Range, inside: tuple[float, ...], outside: tuple[float, ...]) -> None:
    assert all(bounds.holds(value) for value in inside)
    assert not any(bounds.holds(value) for value in (*outside, float("nan"), float("inf"), float("-inf")))


@pytest.mark.parametrize(
    ("bounds", "words"),
    [
        (Range(least=0, most=1), "between 0 and 1"),
        (Range(least=1), "at least 1"),
        (Range(above=0), "above 0"),
        (Range(above=0, below=1), "above 0 and below 1"),
        (Range(most=10_000), "at most 10,000"),
        (Range(), "finite"),
    ],
)
def test_a_range_in_words(bounds: Range, words: str) -> None:
    assert str(bounds) == words


def test_what_is_declared_can_be_asked_for() -> None:
    config = Numbers()
    assert config.tau == 0.005
    assert range_of(config, "tau") == Range(above=0, most=1)
    assert range_of(config, "plain") == Range()
    assert [is_read_once(config, name) for name in ("tau", "critics", "plain")] == [False, True, False]


def test_good_numbers_and_null_pass() -> None:
    check_numbers(Numbers(), "algo")
    check_numbers(Numbers(tau=1.0, subset=10, clip=0.1), "algo")


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"tau": 0.0}, r"algo.tau must be above 0 and at most 1, for example algo.tau=0.005 \(algo.tau=0.0\)."),
        ({"critics": 0}, r"algo.critics must be at least 1, for example algo.critics=10 \(algo.critics=0\)."),
        ({"clip": -1.0}, r"algo.clip must be above 0, for example algo.clip=null \(algo.clip=-1.0\)."),
        ({"shift": float("inf")}, r"algo.shift must be finite, for example algo.shift=0.0 \(algo.shift=inf\)."),
        ({"subset": 11}, r"algo.subset must be between 1 and algo.critics=10, for example algo.subset=2 \(.*=11\)."),
        ({"subset": 2, "critics": 1}, r"algo.subset must be between 1 and algo.critics=1 \(algo.subset=2\)."),
    ],
)  # fmt: skip
def test_a_number_outside_of_its_range_is_refused_in_one_sentence(values: dict[str, float], sentence: str) -> None:
    with pytest.raises(UserError, match=f"^{sentence}$"):
        check_numbers(Numbers(**values), "algo")


def test_a_value_can_be_checked_before_it_is_set() -> None:
    config = Numbers()
    check_number(config, "tau", 0.5, "algo")
    with pytest.raises(UserError, match=r"algo.tau must be above 0"):
        check_number(config, "tau", 2.0, "algo")
    assert config.tau == 0.005
