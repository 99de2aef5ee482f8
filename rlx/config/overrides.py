"""Overrides before Hydra reads them: Python values in Hydra's grammar, and numbers as their fields want them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any, get_args, get_type_hints

import numpy as np
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, Quote, QuotedString
from hydra.errors import HydraException

from rlx.errors import UserError

PLAIN = re.compile(r"[A-Za-z_][\w./:@-]*")  # words that Hydra reads as the strings they are
WORDS = {"null", "true", "false", "nan", "inf"}  # and these, in any case, as something else
WHOLE = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
SEARCH = "hydra.searchpath"

Kinds = Mapping[str, Mapping[str, str]]  # group -> field -> "int" or "list[int]"; fields of the root are in group ""


# -- from Python -----------------------------------------------------------------------------------------------------


def from_values(values: Mapping[str, Any], groups: Sequence[str]) -> list[str]:
    """Keywords as overrides: seed=1, env="pendulum", trainer={"max_env_steps": 500}, **{"algo.hidden": [64, 64]}."""
    made = []
    for key, value in values.items():
        if key in groups and isinstance(value, Mapping):
            made += from_values({f"{key}.{name}": child for name, child in value.items()}, ())
        else:
            made.append(f"{key}={literal(value, key)}")
    return made


def literal(value: Any, key: str = "") -> str:
    """A Python value in Hydra's grammar; strings stay strings whatever is in them."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Enum):
        return literal(value.name)
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str | Path):
        text = str(value)
        plain = PLAIN.fullmatch(text) and text.lower() not in WORDS
        return text if plain else QuotedString(text, Quote.single).with_quotes()
    if isinstance(value, list | tuple):
        return f"[{','.join(literal(child, key) for child in value)}]"
    if isinstance(value, Mapping):
        return f"{{{','.join(f'{_dict_key(name)}:{literal(child, key)}' for name, child in value.items())}}}"
    raise UserError(
        f"{key} is a {type(value).__name__}, which a config cannot hold; give numbers, strings, booleans, None, or "
        "lists and dicts of them."
    )


def _dict_key(key: Any) -> str:
    """Keys of a dict cannot be quoted in Hydra's grammar, but characters can be escaped."""
    return re.sub(r"([\\()\[\]{}:=, \t])", r"\\\1", str(key))


# -- numbers as their fields want them -------------------------------------------------------------------------------


def field_kinds(schemas: Mapping[str, type], root: type) -> dict[str, dict[str, str]]:
    """Which fields are integers, and which are lists of them, wherever all schemas of a group agree."""
    seen: dict[str, dict[str, set[str]]] = {}

    def look(group: str, cls: type) -> None:
        hints = get_type_hints(cls)
        for f in fields(cls):
            hint = hints[f.name]
            seen.setdefault(group, {}).setdefault(f.name, set()).add(_kind(hint))
            for inner in get_args(hint):  # dict[str, Phase]
                if is_dataclass(inner) and isinstance(inner, type):
                    look(group, inner)

    look("", root)
    for name, cls in schemas.items():
        look(name.partition("/")[0], cls)
    return {
        group: {name: next(iter(kinds)) for name, kinds in names.items() if len(kinds) == 1}
        for group, names in seen.items()
    }


def _kind(hint: Any) -> str:
    return str(hint.__name__ if isinstance(hint, type) and not get_args(hint) else hint).removesuffix(" | None")


def kind_of(key: str, kinds: Kinds) -> str | None:
    """What the field of a key holds; None for a key that is not known, or not the same everywhere."""
    group, _, rest = key.lstrip("+").partition(".")
    return kinds.get(group if rest else "", {}).get((rest or group).rpartition(".")[2])


def fitted(override: str, kinds: Kinds, sweep: bool = False) -> str:
    """`trainer.max_env_steps=1e5` as 100000 and `algo.hidden=256` as [256]; in a sweep each value of the list."""
    key, equals, text = override.partition("=")
    kind = kind_of(key, kinds)
    if kind not in ("int", "list[int]") or not equals:
        return override
    parts = text.split(",") if sweep else [text]
    whole = [_whole(part.strip()) for part in parts]
    if any(part is None for part in whole):
        return override
    return f"{key}={','.join(f'[{part}]' if kind != 'int' else str(part) for part in whole)}"


def _whole(text: str) -> int | None:
    """The integer that a number is, or None; exact beyond what a float can hold."""
    if not WHOLE.fullmatch(text) or len(text) > 30:
        return None
    number = Decimal(text)
    return int(number) if abs(number) < 10**30 and number == number.to_integral_value() else None


# -- folders of configs ----------------------------------------------------------------------------------------------


def parse_override(override: str) -> Override | None:
    """As Hydra reads it; None for what it cannot read."""
    try:
        return OverridesParser.create().parse_override(override)
    except (HydraException, ValueError, RecursionError):
        return None


def search_path(overrides: Sequence[str]) -> list[str]:
    """What `hydra.searchpath=[...]` names."""
    named: list[str] = []
    for override in overrides:
        if override.lstrip("+").startswith(f"{SEARCH}="):
            read = parse_override(override)
            value = read.value() if read is not None and not read.is_sweep_override() else None
            if not isinstance(value, list):
                raise UserError(
                    f"{override} is not a list; for example {SEARCH}=[file://FOLDER], or --config-dir FOLDER."
                )
            named = [str(entry) for entry in value]
    return named


def config_folders(overrides: Sequence[str]) -> list[Path]:
    """The folders among them; a UserError for one that does not exist."""
    folders = []
    for entry in search_path(overrides):
        if entry.startswith("pkg://"):
            continue
        folder = Path(entry.removeprefix("file://")).expanduser()
        if not folder.is_dir():
            raise UserError(f"{folder} is not a folder; the config folder has to exist (--config-dir FOLDER).")
        folders.append(folder)
    return folders


def with_config_dir(overrides: Sequence[str], folder: str | Path | None) -> list[str]:
    """`--config-dir FOLDER` as an entry of the search path, beside those that are named there."""
    if folder is None:
        return list(overrides)
    entries = [*search_path(overrides), f"file://{Path(folder).expanduser().absolute()}"]
    others = [o for o in overrides if not o.lstrip("+").startswith(f"{SEARCH}=")]
    return [*others, f"{SEARCH}={literal(entries)}"]


def take_trust(arguments: list[str]) -> tuple[str, ...]:
    """Remove trust=[a,b] from the arguments; what it names."""
    modules: list[str] = []
    for argument in [a for a in arguments if a.startswith("trust=")]:
        arguments.remove(argument)
        modules += [m.strip() for m in argument.removeprefix("trust=").strip("[]").split(",") if m.strip()]
    return tuple(modules)
