"""What comes back from a checkpoint is data: checked against what rlx writes before it is used."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rlx.config.text import LARGEST, leaves
from rlx.errors import UserError, shown


@contextmanager
def restoring(path: Path) -> Iterator[None]:
    """Restore from a checkpoint in this context: what does not fit becomes a sentence about the file."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, AssertionError, RuntimeError) as error:
        text = shown(str(error).partition("\n")[0] or "empty")
        raise UserError(
            f"{path} does not hold what rlx writes ({type(error).__name__}: {text}); use another checkpoint of the run."
        ) from error


def check_like(saved: Any, fresh: Any, place: str) -> None:
    """ValueError unless a saved state has the types of a fresh one; null and numbers may change places."""
    if isinstance(fresh, bool) or isinstance(saved, bool):
        good = isinstance(fresh, bool) and isinstance(saved, bool)
    elif isinstance(fresh, int):
        good = saved is None or (isinstance(saved, int) and abs(saved) < LARGEST)
    elif isinstance(fresh, float):
        good = saved is None or isinstance(saved, int | float)
    elif isinstance(fresh, str):
        good = isinstance(saved, str)
    elif isinstance(fresh, Mapping):
        good = isinstance(saved, Mapping)
        for key, value in saved.items() if good else ():
            check_like(value, fresh.get(key), f"{place}.{key}")
    else:
        good = all(value is None or isinstance(value, int | float) for _, value in leaves(saved))
    if not good:
        raise ValueError(f"{place} is {shown(saved, 40)!r}")


def check_saved_spec(spec: Any) -> None:
    """ValueError unless a Spec of a checkpoint is one that an env could have."""

    def counts(values: Any, most: int) -> bool:
        return (
            isinstance(values, tuple) and len(values) <= most and all(type(n) is int and 0 < n < 2**31 for n in values)
        )

    def numbers(values: Any) -> bool:
        return isinstance(values, tuple) and all(type(n) in (int, float) for n in values)

    shape, box = spec.action_shape, spec.action_kind == "box"
    parts = ((spec.obs_shape, spec.obs_dtype), *(part for _, part in spec.boxes))
    good = isinstance(spec.env_id, str) and spec.env_id.isprintable()  # it is part of sentences
    good = good and all(isinstance(name, str) for name, _ in spec.boxes)
    good = good and all(counts(size, 3) and dtype in ("float32", "float64", "uint8") for size, dtype in parts)
    good = good and sum(math.prod(size) for size, _ in parts) < 2**31 and not (spec.boxes and spec.obs_shape)
    good = good and counts(shape, 1)
    good = good and spec.action_kind in ("box", "discrete", "multi_discrete") and counts(spec.action_sizes, 2**16)
    good = good and len(shape) == (spec.action_kind != "discrete") and numbers(spec.action_low + spec.action_high)
    good = good and len(spec.action_low) == len(spec.action_high) == (shape[0] if box else 0)
    good = (
        good and len(spec.action_sizes) == (0 if box else shape[0] if shape else 1) and sum(spec.action_sizes) < 2**31
    )
    good = good and counts((spec.episode_limit or 1,), 1)
    if good and spec.goal is not None:
        ends = (spec.goal.dim, *spec.goal.achieved, *spec.goal.desired)
        good = len(ends) == 5 and all(type(n) is int and 0 <= n <= math.prod(spec.obs_shape) for n in ends)
    if not good:
        raise ValueError(f"there is no such env: {shown(spec)}")
