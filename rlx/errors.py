"""Errors that cost a sentence and no traceback: those that are the user's to mend, and what ends a run from outside."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """Bad configuration or input: says what was wrong, what was expected and what to type instead. Exit code 2."""


class RunFailed(Exception):
    """A run that cannot go on although nothing is wrong with its config: says why, and what is kept. Exit code 1."""


def nearest(word: str, choices: Iterable[str]) -> str | None:
    """The choice that `word` was probably meant to be, or None."""
    found = difflib.get_close_matches(word, list(choices), n=1, cutoff=0.5)
    return found[0] if found else None


def require(ok: bool, sentence: str) -> None:
    """Raise a `UserError` that says `sentence` unless `ok`."""
    if not ok:
        raise UserError(sentence)
