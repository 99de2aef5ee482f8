"""Numbers of a config: their range and whether a schedule may move them, said once, where the field is declared.

    tau: float = number(0.005, above=0, most=1)            # 0 < tau <= 1
    critics: int = number(10, least=1, read_once=True)     # a schedule cannot move it
    subset: int = number(2, least=1, most="critics")       # at most what another field of the same config says

`check_numbers` refuses values outside of their ranges, with one sentence for all of them; a schedule asks
`check_number` and `is_read_once` about the values that it is going to set.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import Field, field, fields, is_dataclass
from typing import Any, NamedTuple

from rlx.errors import UserError

RANGE, READ_ONCE = "range", "read_once"

Bound = float | str | None  # a number, the name of another field of the config, or no bound


class Range(NamedTuple):
    """Bounds of a number."""

    least: Bound = None  # value >= least
    above: Bound = None  # value > above
    most: Bound = None  # value <= most
    below: Bound = None  # value < below

    def within(self, config: Any) -> Range:
        """The same with numbers for the names of other fields; a field that is null is no bound."""
        return Range(*(getattr(config, bound) if isinstance(bound, str) else bound for bound in self))

    def holds(self, value: float) -> bool:
        """Is it finite and within the bounds, which have to be numbers?"""
        return (
            math.isfinite(value)
            and (self.least is None or value >= self.least)  # type: ignore[operator]
            and (self.above is None or value > self.above)  # type: ignore[operator]
            and (self.most is None or value <= self.most)  # type: ignore[operator]
            and (self.below is None or value < self.below)  # type: ignore[operator]
        )

    def __str__(self) -> str:
        """The end of "... must be"."""
        return self.sentence(_plain)

    def sentence(self, shown: Callable[[Bound], str]) -> str:
        if self.least is not None and self.most is not None:
            return f"between {shown(self.least)} and {shown(self.most)}"
        words = (("at least", self.least), ("above", self.above), ("at most", self.most), ("below", self.below))
        return " and ".join(f"{word} {shown(bound)}" for word, bound in words if bound is not None) or "finite"


def _plain(bound: Bound) -> str:
    return bound if isinstance(bound, str) else f"{bound:,}"


def number(
    default: Any,
    *,
    least: Bound = None,
    above: Bound = None,
    most: Bound = None,
    below: Bound = None,
    read_once: bool = False,
) -> Any:
    """A dataclass field with a range. `read_once`: it is only read when things are made, so no schedule can move it."""
    return field(default=default, metadata={RANGE: Range(least, above, most, below), READ_ONCE: read_once})


def range_of(config: Any, name: str) -> Range:
    """The declared range of a field; one without bounds where none is declared."""
    declared: Mapping[str, Field[Any]] = config.__dataclass_fields__
    bounds: Range = declared[name].metadata.get(RANGE, Range())
    return bounds


def is_read_once(config: Any, name: str) -> bool:
    declared: Mapping[str, Field[Any]] = config.__dataclass_fields__
    return bool(declared[name].metadata.get(READ_ONCE, False))


def check_numbers(config: Any, group: str) -> None:
    """Refuse the first number of a config dataclass that is outside of its range; null is always inside."""
    assert is_dataclass(config)
    for f in fields(config):
        if RANGE in f.metadata:
            check_number(config, f.name, getattr(config, f.name), group)


def check_number(config: Any, name: str, value: Any, group: str) -> None:
    """Refuse a value that the field `name` cannot have."""
    declared = range_of(config, name)
    allowed = declared.within(config)
    if value is None or allowed.holds(value):
        return
    usual = config.__dataclass_fields__[name].default
    example = (
        f", for example {group}.{name}={'null' if usual is None else usual}" if _is_example(usual, allowed) else ""
    )

    def shown(bound: Bound) -> str:
        return f"{group}.{bound}={getattr(config, bound)}" if isinstance(bound, str) else _plain(bound)

    raise UserError(f"{group}.{name} must be {declared.sentence(shown)}{example} ({group}.{name}={value}).")


def _is_example(usual: Any, allowed: Range) -> bool:
    return usual is None or (isinstance(usual, int | float) and allowed.holds(usual))
