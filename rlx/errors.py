"""Errors that are sentences: what the user can mend (exit code 2) and what ended a run (exit code 1)."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any


class UserError(Exception):
    """Bad configuration or input: says what was wrong, what was expected and what to type instead. Exit code 2."""


class RunFailed(Exception):
    """A run that cannot go on: says what happened and how to go on from its last checkpoint. Exit code 1."""


class Interrupted(KeyboardInterrupt):
    """A second signal while the first one waits for a step to end: the run ends at once, without a checkpoint."""

    def __init__(self, sentence: str, code: int):
        super().__init__(sentence)
        self.code = code  # what the process exits with


def nearest(word: str, choices: Iterable[str]) -> str | None:
    """The choice that `word` was probably meant to be, or None; capitals do not count unless all else is alike."""
    spelled = list(choices)
    lower = [choice.lower() for choice in spelled]
    alike = difflib.get_close_matches(word.lower(), lower, n=1, cutoff=0.5)
    same = [choice for choice, plain in zip(spelled, lower, strict=True) if plain in alike]
    return next(iter(difflib.get_close_matches(word, same, n=1, cutoff=0.0)), None)


def nearest_few(word: str, choices: Iterable[str], count: int = 5) -> list[str]:
    """The choices that are spelled most like `word`, the nearest first, whatever it is."""
    return difflib.get_close_matches(word, list(choices), n=count, cutoff=0.0)


def require(ok: bool, sentence: str) -> None:
    """Raise a `UserError` that says `sentence` unless `ok`."""
    if not ok:
        raise UserError(sentence)


def shown(value: Any, length: int = 200) -> str:
    """A value of a file for a sentence: one printable line of a bounded length."""
    text = str(value)
    line = "".join(c if c.isprintable() else " " for c in text[:length])
    return line if len(text) <= length else f"{line}..."
