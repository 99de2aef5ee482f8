"""Interpolations of configs that were read from a file: they lead to other values of the same config, directly or
through RESOLVERS, and never to the environment.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any

from omegaconf import DictConfig, OmegaConf

from rlx.errors import UserError, shown

RESOLVERS = ("oc.select", "prior_share", "round")  # those that read nothing but the config

REACH = 2**20  # characters and values that a config may come to, its interpolations resolved

CHAIN = 12  # interpolations one behind the other

KEY = r"[A-Za-z_]\w*(?:\.\w+)*"

REFERENCE = re.compile(rf"(?P<key>{KEY})\}}|(?P<resolver>[\w.]+):")  # what follows a "${"


def references(text: str, trust: Sequence[str] = ()) -> list[str] | None:
    """The keys of the config that a text refers to; None if it reaches beyond the config, or hides where it leads."""
    if "${" not in text:
        return []
    if "\\" in text:  # an escaped interpolation may be resolved later
        return None
    keys = []
    for part in text.split("${")[1:]:
        match = REFERENCE.match(part)
        if match is None:
            return None
        if match["key"]:
            keys.append(match["key"])
        elif match["resolver"] not in (*RESOLVERS, *trust):
            return None
        elif match["resolver"] == "oc.select":
            key = re.match(rf"\s*({KEY})\s*[,}}]", part[match.end() :])
            if key is None:
                return None
            keys.append(key[1])
    return keys


def check_reach(
    values: Mapping[str, Any], groups: Iterable[str], replaced: Sequence[str], trust: Sequence[str]
) -> None:
    """Refuse interpolations in these groups that lead out of the config, in circles, or to more than a config can be.

    `replaced` are keys that the user has given other values.
    """
    resolvers = [name for name in trust if OmegaConf.has_resolver(name)]
    given = [tuple(key.split(".")) for key in replaced]
    sizes: dict[tuple[str, ...], int] = {}  # by path, as a key may have dots in it

    def size(value: Any, path: tuple[str, ...], chain: int) -> int:
        if any(path[: len(key)] == key for key in given):
            return 1
        if path not in sizes:
            sizes[path] = checked(value, path, chain)
        return sizes[path]

    def checked(value: Any, path: tuple[str, ...], chain: int) -> int:
        total, key = 1, ".".join(path)
        if isinstance(value, Mapping):
            for name, child in value.items():
                if isinstance(name, str) and "${" in name:
                    raise UserError(f"The saved config has an interpolation as a key ({shown(name)}).")
                total += size(child, (*path, str(name)), chain)
        elif isinstance(value, list | tuple):
            for i, child in enumerate(value):
                total += size(child, (*path, str(i)), chain)
        elif isinstance(value, str):
            total += len(value)
            to = references(value, resolvers)
            if to is None:
                raise UserError(_beyond(key, value))
            if to and chain >= CHAIN:
                raise UserError(f"The interpolation at {shown(key)} of the saved config goes in circles.")
            for other in to:
                there, place = _at(values, tuple(other.split(".")))
                total += size(there, place, chain + 1)
        if total > REACH:
            raise UserError(f"The interpolations at {shown(key)} of the saved config come to more than rlx reads.")
        return total

    for group in groups:
        size(values.get(group), (group,), 0)


def _at(values: Any, path: tuple[str, ...]) -> tuple[Any, tuple[str, ...]]:
    """What a path leads to, or as far as it leads without resolving anything."""
    for n, name in enumerate(path):
        if isinstance(values, Mapping) and name in values:
            values = values[name]
        elif isinstance(values, list) and name.isdigit() and int(name) < len(values):
            values = values[int(name)]
        else:
            return (values, path[:n]) if n else (None, path)
    return values, path


def _beyond(key: str, text: str) -> str:
    names = [name for name in re.findall(r"\$\{\s*([\w.]+)\s*:", text) if name not in RESOLVERS]
    known = sorted({name for name in names if OmegaConf.has_resolver(name)})
    allow = f", or add trust=[{','.join(known)}] to allow it" if known and "\\" not in text else ""
    return (
        f"The saved config has {shown(key)}={shown(text)}, which reaches beyond the config; when resuming, give the "
        f"value itself ({shown(key)}=VALUE){allow}."
    )


def as_text(values: Any) -> Any:
    """The same containers, with interpolations that reach beyond the config escaped: they stay what was typed."""
    return _mapped(values, lambda text: escaped(text) if references(text) is None else text)


def escaped(values: Any) -> Any:
    """Texts that OmegaConf resolves to these texts, also within containers."""
    return _mapped(values, lambda text: re.sub(r"(\\*)\$\{", lambda match: f"{match[1] * 2}\\${{", text))


def _mapped(values: Any, function: Callable[[str], str]) -> Any:
    if isinstance(values, Mapping):
        return {key: _mapped(value, function) for key, value in values.items()}
    if isinstance(values, list | tuple):
        return [_mapped(value, function) for value in values]
    return function(values) if isinstance(values, str) and not isinstance(values, Enum) else values


def as_written(cfg: DictConfig) -> DictConfig:
    """The config for what is written and shown: what `${oc.env:...}` stands for stays on this machine."""
    text = OmegaConf.create(as_text(OmegaConf.to_container(cfg, resolve=False)))
    assert isinstance(text, DictConfig)
    return text


def resolved_values(cfg: DictConfig) -> dict[str, Any]:
    """The config as plain values for others to see, with its interpolations resolved.

    What reaches beyond the config stays as it was typed, and so does whatever depends on it.
    """
    typed: dict[str, Any] = OmegaConf.to_container(cfg, resolve=False, enum_to_str=True)  # type: ignore[assignment]

    def reaches_beyond(value: Any, chain: int = 0) -> bool:
        if isinstance(value, Mapping):
            return any(reaches_beyond(child, chain) for child in value.values())
        if isinstance(value, list):
            return any(reaches_beyond(child, chain) for child in value)
        to = references(value) if isinstance(value, str) else []
        if to is None or chain > CHAIN:
            return True
        return any(reaches_beyond(_at(typed, tuple(key.split(".")))[0], chain + 1) for key in to)

    def resolved(value: Any, node: Any, key: Any) -> Any:
        if isinstance(value, Mapping):
            return {name: resolved(child, node[key], name) for name, child in value.items()}
        if isinstance(value, list):
            return [resolved(child, node[key], i) for i, child in enumerate(value)]
        if not isinstance(value, str) or "${" not in value or reaches_beyond(value):
            return value
        there = node[key]
        if OmegaConf.is_config(there):
            return OmegaConf.to_container(there, resolve=True, enum_to_str=True)
        return there.name if isinstance(there, Enum) else there

    return {name: resolved(value, cfg, name) for name, value in typed.items()}
