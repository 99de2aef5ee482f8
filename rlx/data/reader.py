"""Reader: what a learner learns from, be it a replay, a dataset, a mixture of both, windows or a rollout."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from rlx.types import Batch, Rollout, Windows


class Reader(Protocol):
    """A view on a store or on a dataset."""

    @property
    def ready(self) -> bool:
        """Is there anything to read?"""

    def sample(self, batch_size: int, n_batches: int) -> Iterator[Batch | Windows | Rollout]:
        """What `n_batches` updates learn from."""

    def state(self) -> dict[str, Any]:
        """Counters and random states for a checkpoint."""

    def load_state(self, state: dict[str, Any]) -> None: ...
