"""Normalised scores: 0 is a random policy, 100 an expert. The references are data, with their sources."""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path
from typing import Any


@functools.cache
def references() -> dict[str, dict[str, Any]]:
    """Reference returns by env id."""
    known: dict[str, dict[str, Any]] = json.loads((Path(__file__).parent / "reference_scores.json").read_text())
    return known


def normalized_score(env_id: str, ret: float) -> float | None:
    """100 * (ret - random) / (expert - random), or None where there is no reference; v4 shares the scale of v5."""
    known = references()
    reference = known.get(env_id) or known.get(re.sub(r"-v4$", "-v5", env_id))
    if reference is None:
        return None
    random, expert = float(reference["random"]), float(reference["expert"])
    return 100.0 * (ret - random) / (expert - random)
