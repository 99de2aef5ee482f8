"""What parts of this package were called in the configs of earlier versions, so that their runs can be resumed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

REPLAY = "rlx.data.replay.Replay"
FORMER: dict[str, dict[str, Any]] = {  # `_target_` until 0.1 -> what says the same today
    "rlx.data.prioritized.PrioritizedReplay": {"_target_": REPLAY, "prioritized": True},
    "rlx.data.hindsight.HindsightReplay": {"_target_": REPLAY, "hindsight": True},
}


def current_names(node: Mapping[str, Any]) -> dict[str, Any]:
    """A part of a saved config under the names of today."""
    return {**node, **FORMER.get(str(node.get("_target_")), {})}
