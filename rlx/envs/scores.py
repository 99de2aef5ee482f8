"""Normalised scores: 0 is a random policy, 100 an expert. The references are data, with their sources."""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path


@functools.cache
def references() -> dict[str, dict]:
    """Reference returns by env id."""
    return json.loads((Path(__file__).parent / "reference_scores.json").read_text())


def normalized_score(env_id: str, ret: float) -> float | None:
    """100 * (ret - random) / (expert - random), or None where there is no reference; v4 shares the scale of v5."""
    known = references()
    found = known.get(env_id) or known.get(re.sub(r"-v4$", "-v5", env_id))
    if found is None:
        return None
    return 100.0 * (ret - found["random"]) / (found["expert"] - found["random"])
