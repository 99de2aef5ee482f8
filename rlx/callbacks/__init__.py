"""Observers of a run: they collect metrics, evaluate, decide when to stop, show progress and save."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlx.errors import UserError

if TYPE_CHECKING:
    from rlx.learner import Learner


def crossed(before: int, now: int, every: int) -> bool:
    """True if a multiple of `every` lies in (before, now]; never when `every` is 0.

    Counters may jump by more than one (vector envs, rollouts), so `now % every == 0` would miss some.
    """
    return every > 0 and now // every > before // every


def refuse_memory(learner: Learner, callback: str) -> None:
    """Refuse a policy whose action does not follow from a single observation."""
    if learner.actor.remembers:
        raise UserError(
            f"callbacks.{callback} asks the policy about single observations and the policy of algo={learner.cfg.name} "
            f"remembers those before; remove it (~callbacks.{callback})."
        )
