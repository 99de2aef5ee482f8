"""What there is to choose from: the choices of each config group, described by the first comment of their files.

Reads files only, so that `rlx list` answers at once.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from rlx.paths import conf_dir

SUITE = re.compile(r"^ *- override /env/suite@_global_\.env: (\w+)", re.MULTILINE)  # in the defaults of an env
FIRST = ("algo", "env", "dataset", "reward", "schedule")  # the groups that most runs choose from


def groups(folders: Sequence[Path] = ()) -> list[str]:
    """The config groups that have choices, here or in the user's own config folders."""
    places = [p for folder in (conf_dir(), *folders) for p in folder.iterdir()]
    names = sorted({p.name for p in places if p.is_dir() and any(p.glob("*.yaml"))})
    return [g for g in FIRST if g in names] + [g for g in names if g not in FIRST]


def choices(group: str, folders: Sequence[Path] = ()) -> list[str]:
    """The names that `group=` takes."""
    return sorted({p.stem for folder in (conf_dir(), *folders) for p in (folder / group).glob("*.yaml")})


def describe(group: str, folders: Sequence[Path] = ()) -> list[tuple[str, str]]:
    """Name and description of each choice of a group; where two files have one name, the first folder wins."""
    files = {p.stem: p for folder in (*reversed(folders), conf_dir()) for p in (folder / group).glob("*.yaml")}
    return [(name, _comment(_text(path))) for name, path in sorted(files.items())]


def suite_of(env: str, folders: Sequence[Path] = ()) -> str | None:
    """The suite that the file of an env picks, if any."""
    files = (folder / "env" / f"{env}.yaml" for folder in (conf_dir(), *folders))
    text = next((_text(path) for path in files if path.is_file()), "")
    picked = SUITE.search(text)
    return picked.group(1) if picked else None


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError as error:
        return f"# cannot be read ({error.strerror})"


def _comment(text: str) -> str:
    for line in text.splitlines():
        if line.startswith("#") and not line.startswith("# @package"):
            return line.lstrip("# ").strip()
    return ""
