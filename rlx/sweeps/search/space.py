"""What is searched: for each key an interval, a range or a choice, in Hydra's grammar.

interval(0.001, 0.1)               any number between
tag(log, interval(1e-5, 1e-2))     the same, by its logarithm
int(interval(1, 8))                any integer between
range(32, 257, 32)                 numbers at a distance
choice(relu, tanh), or relu,tanh   one of these
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from hydra.core.override_parser.types import IntervalSweep, RangeSweep

from rlx.config.compose import is_integer
from rlx.config.overrides import parse_override
from rlx.errors import UserError, shown

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

    from rlx.sweeps.settings import Dimension

DIGITS = 5  # of a number that was drawn: it can be read and typed again
Value = float | int | str


@dataclass(frozen=True)
class Domain:
    """The values that one key takes."""

    key: str  # as Hydra writes it
    kind: str  # float, int or choice
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    step: float | None = None
    choices: tuple[str, ...] = ()  # in Hydra's grammar

    @property
    def name(self) -> str:
        return self.key.lstrip("+")

    def distribution(self) -> BaseDistribution:
        """As Optuna has it."""
        from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

        if self.kind == "choice":
            return CategoricalDistribution(self.choices)
        if self.kind == "int":
            return IntDistribution(int(self.low), int(self.high), log=self.log, step=int(self.step or 1))
        return FloatDistribution(self.low, self.high, log=self.log, step=self.step)

    def value(self, drawn: Any) -> Value:
        """What is run for a value that was drawn."""
        if self.kind == "choice":
            return _number(str(drawn))
        if self.kind == "int":
            return int(min(max(round(drawn), self.low), self.high))
        return min(max(float(f"{drawn:.{DIGITS}g}"), self.low), self.high)

    def text(self, value: Value) -> str:
        """A value in Hydra's grammar."""
        if self.kind == "choice":
            return next(text for text in self.choices if _number(text) == value)
        return repr(value)

    def drawn(self, value: Value) -> Any:
        """A value as Optuna knows it."""
        return self.text(value) if self.kind == "choice" else value

    def values(self) -> list[Value]:
        """All of them, for a grid."""
        if self.kind == "choice":
            return [_number(text) for text in self.choices]
        if self.step is None:
            raise UserError(
                f"{self.name} is an interval, and search.sampler=grid tries every value; give it values "
                f"({self.name}=choice(...) or range(...)), or use another sampler."
            )
        count = math.floor((self.high - self.low) / self.step + 1e-9) + 1
        return [self.value(self.low + i * self.step) for i in range(count)]

    def written(self) -> dict[str, Any]:
        """For sweep.json."""
        return {**asdict(self), "choices": list(self.choices)}


def domains_of(dimensions: Sequence[Dimension]) -> list[Domain]:
    """What is searched, of all that was given."""
    return [_domain(dimension) for dimension in dimensions if dimension.swept]


def _domain(dimension: Dimension) -> Domain:
    read = parse_override(dimension.text)
    sweep: Any = None if read is None else read._value
    key, text = dimension.key, shown(dimension.text)
    if isinstance(sweep, IntervalSweep):
        low: Any = sweep.start
        high: Any = sweep.end
        whole = isinstance(low, int) and isinstance(high, int)
        if is_integer(key) and not whole:
            raise UserError(
                f"{key} is an integer, and {text} stands for any number; use {key}=int(interval({low:g},{high:g})), "
                "range(...) or choice(...)."
            )
        domain = Domain(key, "int" if whole else "float", low, high, "log" in sweep.tags, 1 if whole else None)
    elif isinstance(sweep, RangeSweep) and len(dimension.values) > 1:
        numbers = sorted(float(value) for value in dimension.values)
        whole = all(number.is_integer() for number in numbers) and isinstance(sweep.step, int)
        domain = Domain(key, "int" if whole else "float", numbers[0], numbers[-1], "log" in sweep.tags,
                        abs(sweep.step))  # fmt: skip
        if domain.log and not (whole and domain.step == 1):
            raise UserError(f"{text} has both a step and tag(log, ...); use tag(log, interval(...)).")
    else:
        return Domain(key, "choice", choices=tuple(dict.fromkeys(dimension.values)))
    if not math.isfinite(domain.low) or not math.isfinite(domain.high) or domain.low >= domain.high:
        raise UserError(f"{text} has no values between its ends; give a lower and a higher number.")
    if domain.log and domain.low <= 0:
        raise UserError(f"{text} goes by the logarithm and has to begin above 0.")
    return domain


def domains_from(values: Any) -> list[Domain]:
    """Domains as sweep.json keeps them, checked; ValueError and the like for what rlx has not written."""
    domains = []
    for name, written in values.items():
        choices = tuple(str(text) for text in written["choices"])
        step = None if written["step"] is None else float(written["step"])
        kind, low, high = str(written["kind"]), float(written["low"]), float(written["high"])
        domain = Domain(str(written["key"]), kind, low, high, bool(written["log"]), step, choices)
        bad = kind not in ("float", "int", "choice") or (not choices if kind == "choice" else not low < high)
        if bad or domain.name != name or (domain.log and low <= 0) or (step is not None and step <= 0):
            raise ValueError(f"{shown(name)} has no values")
        domains.append(domain)
    return domains


def _number(text: str) -> Value:
    """A text of the grammar as the number that it is, if it is one."""
    for kind in (int, float):
        try:
            number = kind(text)
        except ValueError:
            continue
        return number if math.isfinite(number) and "_" not in text else text
    return text
