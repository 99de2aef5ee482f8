"""The guard: weights that are no longer finite end a run before they reach a checkpoint.

What is poisoned stays poisoned: no optimizer step turns a nan weight into a number again. So the trainer looks at log
intervals, and before every checkpoint and evaluation; an update costs nothing, and the first bad loss is found after
the fact, among the values that wait for the next row of metrics. Only weights, what optimizers keep, and losses are
judged: other metrics may be nan for good reasons, such as a mean over nothing.

Weights beyond `LARGEST` count as lost, too: float32 numbers of that size are 8 apart, so that steps at any learning
rate worth having do not move them, and what they compute is about to overflow.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from rlx.learner import Learner
from rlx.types import Metrics

LARGEST = 1e8  # of all weights that can still learn


def is_loss(name: str) -> bool:
    return name.startswith("loss/")


def flaw(value: Tensor, largest: float = math.inf) -> str | None:
    """What is wrong with the numbers of a tensor, as the end of a sentence; None if nothing is."""
    if value.isnan().any():
        return "is nan"
    if value.isinf().any():
        return "is infinite"
    size = float(value.abs().max()) if value.numel() else 0.0
    return f"has grown to {size:.0e}" if size > largest else None


def seem_fine(weights: list[Tensor], others: list[Tensor]) -> bool:
    """A quick look: one pass over memory, one number to wait for. False may be a sum that overflows, and no flaw."""
    norms = torch.stack([torch.linalg.vector_norm(t) for t in weights])  # no weight is larger than the norm of all
    sums = torch.stack([t.sum() for t in others]) if others else norms.new_zeros(1)
    return bool((norms.amax() < LARGEST) & sums.isfinite().all())


class Guard:
    """Knows when a learner was last all finite. `history` gives the metrics of the updates up to now, by name."""

    def __init__(self, learner: Learner, history: Callable[[], dict[str, list[float]]] = dict):
        self._learner = learner
        self._history = history
        self._last: Metrics = {}  # of the latest update
        self._good = -1  # updates when all was finite; -1: not looked yet

    def note(self, metrics: Metrics) -> None:
        self._last = metrics

    def problem(self, updates: int, anew: bool = False) -> str | None:
        """What is no longer finite after so many updates, and since when; None if all is well.

        `anew` looks even where nothing was updated since: an update that raised is not counted.
        """
        if updates == self._good and not anew:
            return None
        weights = {f"model.{name}": p.detach() for name, p in self._learner.named_parameters()}
        others = {n: t for n, t in self._learner.tensors().items() if t.is_floating_point() and n not in weights}
        losses = {n: t for n, t in self._last.items() if is_loss(n)}
        flaws: list[str] = []
        if not seem_fine([*weights.values()], [*others.values(), *losses.values()]):
            limits = [(weights, LARGEST), (others, math.inf), (losses, math.inf)]
            judged = ((name, flaw(t, limit)) for group, limit in limits for name, t in group.items())
            flaws = [f"{name} {text}" for name, text in judged if text is not None]
        if not flaws:
            self._good = updates
            return None
        loss = self._first_bad_loss(updates)
        if loss is not None:
            return loss if is_loss(flaws[0]) else f"{loss}, and {flaws[0]}"
        if self._good < 0:
            return f"{flaws[0]} before the first update of this session"
        return f"{flaws[0]} since an update between {self._good + 1} and {max(updates, self._good + 1)}"

    def _first_bad_loss(self, updates: int) -> str | None:
        losses = {name: values for name, values in self._history().items() if is_loss(name)}
        made = max(map(len, losses.values()), default=0)
        every = {name: values for name, values in losses.items() if len(values) == made}  # others skip updates
        for i in range(made):
            for name, values in every.items():
                if not math.isfinite(values[i]):
                    kind = "nan" if math.isnan(values[i]) else "infinite"
                    return f"{name} is {kind} since update {updates - made + i + 1}"
        return None
