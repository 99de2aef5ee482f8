"""What `rlx list` shows: the choices of each config group, described by the first comment of their files.

Reads files only, so that it answers at once.
"""

from __future__ import annotations

from rlx.paths import conf_dir

FIRST = ("algo", "env", "dataset", "reward", "schedule")  # the five groups of the design come first


def groups() -> list[str]:
    """The config groups that have choices."""
    found = sorted(p.name for p in conf_dir().iterdir() if p.is_dir() and any(p.glob("*.yaml")))
    return [g for g in FIRST if g in found] + [g for g in found if g not in FIRST]


def describe(group: str) -> list[tuple[str, str]]:
    """Name and description of each choice of a group."""
    return [(path.stem, _comment(path.read_text())) for path in sorted((conf_dir() / group).glob("*.yaml"))]


def _comment(text: str) -> str:
    for line in text.splitlines():
        if line.startswith("#") and not line.startswith("# @package"):
            return line.lstrip("# ").strip()
    return ""
