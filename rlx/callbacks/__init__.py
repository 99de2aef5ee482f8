"""Observers of a run: they collect metrics, evaluate, decide when to stop, show progress and save."""

from __future__ import annotations


def crossed(before: int, now: int, every: int) -> bool:
    """True if a multiple of `every` lies in (before, now]; never when `every` is 0.

    Counters may jump by more than one (vector envs, rollouts), so `now % every == 0` would miss some.
    """
    return every > 0 and now // every > before // every
