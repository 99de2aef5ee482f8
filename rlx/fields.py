"""Numbers of a config: their range and whether a schedule may move them, said once, where the field is declared.

    tau: float = number(0.005, above=0, most=1)            # 0 < tau <= 1
    critics: int = number(2, least=1, read_once=True)      # a schedule cannot move it

`check_numbers` refuses values outside of their ranges, with one sentence for all of them; a schedule asks `range_of`
and `is_read_once` about the values that it is going to set.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import Field, field, fields, is_dataclass
from typing import Any, NamedTuple

from rlx.errors import UserError

RANGE, READ_ONCE = "range", "read_once"


class Range(NamedTuple):
    """Bounds of a number; None: no bound."""

    least: float | None = None  # value >= least
    above: float | None = None  # value > above
    most: float | None = None  # value <= most
    below: float | None = None  # value < below

    def holds(self, value: float) -> bool:
        return (
            math.isfinite(value)
            and (self.least is None or value >= self.least)
            and (self.above is None or value > self.above)
            and (self.most is None or value <= self.most)
            and (self.below is None or value < self.below)
        )

    def __str__(self) -> str:
        """The end of "... must be"."""
        low, high = self._low(), self._high()
        if self.least is not None and self.most is not None:
            return f"between {self.least:,} and {self.most:,}"
        return " and ".join(part for part in (low, high) if part) or "finite"

    def _low(self) -> str:
        if self.least is not None:
            return f"at least {self.least:,}"
        return f"above {self.above:,}" if self.above is not None else ""

    def _high(self) -> str:
        if self.most is not None:
            return f"at most {self.most:,}"
        return f"below {self.below:,}" if self.below is not None else ""


def number(
    default: Any,
    *,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    below: float | None = None,
    read_once: bool = False,
) -> Any:
    """A dataclass field with a range. `read_once`: it is only read when things are made, so no schedule can move it."""
    return field(default=default, metadata={RANGE: Range(least, above, most, below), READ_ONCE: read_once})


def range_of(config: Any, name: str) -> Range:
    """The declared range of a field; one without bounds where none is declared."""
    declared: Mapping[str, Field[Any]] = config.__dataclass_fields__
    found: Range = declared[name].metadata.get(RANGE, Range())
    return found


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
    allowed = range_of(config, name)
    if value is None or allowed.holds(value):
        return
    usual = config.__dataclass_fields__[name].default
    example = (
        f", for example {group}.{name}={'null' if usual is None else usual}" if _is_example(usual, allowed) else ""
    )
    raise UserError(f"{group}.{name} must be {allowed}{example} ({group}.{name}={value}).")


def _is_example(usual: Any, allowed: Range) -> bool:
    return usual is None or (isinstance(usual, int | float) and allowed.holds(usual))
