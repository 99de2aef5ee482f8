"""What there is to choose from: the choices of each config group, described by the first comment of their files.

Reads files only, so that `rlx list` answers at once.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from rlx.paths import conf_dir

SUITE = re.compile(r"^ *- override /env/suite@_global_\.env: (\w+)", re.MULTILINE)  # in the defaults of an env
NAME_KEY = re.compile(r"^id:.*\$\{env\.(\w+)\}", re.M)  # what the id of an env is made of
BY_NAME = re.compile(r"(\w+)/([\w-]+)")
GAMES = {  # those that are typed without their preset most often
    "minatar": ("asterix", "breakout", "freeway", "seaquest", "space_invaders"),
    "atari": ("asterix", "breakout", "freeway", "pong", "qbert", "seaquest", "space_invaders"),
}
GAME_ID = re.compile(r"(?:(ALE|MinAtar)/)?(\w+?)(NoFrameskip|Deterministic)?-v\d+")  # of Gymnasium's registry
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
    picked = SUITE.search(_env_text(env, folders))
    return picked.group(1) if picked else None


def by_name(env: str, folders: Sequence[Path] = ()) -> tuple[str, str, str] | None:
    """`atari/space_invaders` as a preset of many games or tasks, the key that says which, and its name:
    ("atari", "game", "SpaceInvaders"). None for anything else.

    Names are written as the one in the preset: where that has a capital, `space_invaders` is SpaceInvaders.
    """
    parts = BY_NAME.fullmatch(env)
    text = _env_text(parts.group(1), folders) if parts else ""
    key = NAME_KEY.search(text)
    if parts is None or key is None:
        return None
    preset, name = parts.groups()
    if re.search(rf"^{key.group(1)}: *[A-Z]", text, re.MULTILINE):
        name = "".join(f"{part[:1].upper()}{part[1:]}" for part in name.split("_"))
    return preset, key.group(1), name


def games_meant(word: str) -> list[str]:
    """Overrides for `pong`, and for what others call a game, such as `ALE/Pong-v5` and `PongNoFrameskip-v4`."""
    named = GAME_ID.fullmatch(word)
    if named is None:
        return [f"env={suite}/{word.lower()}" for suite, names in GAMES.items() if word.lower() in names]
    package, game, variant = named.groups()
    known = {name.replace("_", ""): name for names in GAMES.values() for name in names}.get(game.lower())
    if package == "MinAtar":
        return [f"env=minatar env.game={known or game.lower()}"]
    return [f"env=atari env.game={game}"] if package or variant or known in GAMES["atari"] else []


def _env_text(env: str, folders: Sequence[Path]) -> str:
    files = (folder / "env" / f"{env}.yaml" for folder in (conf_dir(), *folders))
    return next((_text(path) for path in files if path.is_file()), "")


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
