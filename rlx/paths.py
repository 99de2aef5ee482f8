"""Where the config tree is, in a checkout and in an installed wheel."""

from __future__ import annotations

from pathlib import Path


def conf_dir() -> Path:
    """`conf/` inside the installed package, else beside it in a checkout."""
    package = Path(__file__).parent
    inside = package / "conf"
    return inside if inside.is_dir() else package.parent / "conf"
