"""Hydra's and OmegaConf's complaints as one sentence: what was wrong, what was expected, what to type instead."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from rlx.errors import nearest
from rlx.paths import conf_dir


def explain(error: BaseException, overrides: Sequence[str]) -> str:
    """One sentence for an error that composing a config raised."""
    chain = []
    e: BaseException | None = error
    while e is not None:
        chain.append(e)
        e = e.__cause__ or e.__context__
    text = "\n".join(str(e) for e in chain)
    return _choice(text) or _key(text, chain, overrides) or _value(text, chain) or _plain(text, overrides)


def choices(group: str) -> list[str]:
    """The names that `group=` takes."""
    return sorted(p.stem for p in (conf_dir() / group).glob("*.yaml"))


def _choice(text: str) -> str | None:
    """`algo=rlxx`: no such file in the group."""
    found = re.search(r"Could not find '([\w/]+)/([^'/]+)'", text)
    if found:
        group, word = found.groups()
        names = choices(group)
        if names:
            guess = nearest(word, names)
            meant = f"did you mean {group}={guess}? " if guess else ""
            return f"{group}={word} is not known; {meant}The choices are: {', '.join(names)}."
    found = re.search(r"Could not override '([\w@./]+)'\.\s*\n?No match in the defaults list", text)
    if found:
        group = found.group(1)
        guess = nearest(group, [p.name for p in conf_dir().iterdir() if p.is_dir()])
        return f"There is no config group {group!r}" + (f"; did you mean {guess}=...?" if guess else ".")
    return None


def _key(text: str, chain: list[BaseException], overrides: Sequence[str]) -> str | None:
    """`algo.lrr=1`: no such key in the schema."""
    found = re.search(r"Key '([^']+)' (?:not in '(\w+)'|is not in struct)", text)
    if not found:
        return None
    key, schema = found.groups()
    known = _fields_of(chain)
    full = re.search(r"Could not override '([^']+)'", text) or re.search(r"full_key: (\S+)", text)
    name = full.group(1) if full else key
    where = f" of {schema}" if schema else ""
    guess = nearest(key, known)
    prefix = name.rpartition(".")[0]
    if guess:
        hint = f"did you mean {f'{prefix}.' if prefix else ''}{guess}?"
    elif known:
        hint = f"there are: {', '.join(sorted(known))}."
    else:
        hint = "`python -m rlx --cfg job` shows every key."
    return f"{name} is not a key{where}; {hint}"


def _fields_of(chain: list[BaseException]) -> list[str]:
    """The keys of the config node that an error speaks of."""
    for error in chain:
        kind: Any = getattr(error, "object_type", None)
        if is_dataclass(kind):
            return [f.name for f in fields(kind) if not f.name.startswith("_")]
        node: Any = getattr(error, "parent_node", None)
        if node is not None and hasattr(node, "keys"):
            return [str(k) for k in node if not str(k).startswith("_")]
    return []


def _value(text: str, chain: list[BaseException]) -> str | None:
    """`trainer.max_env_steps=abc`: a value of the wrong type."""
    found = re.search(r"Value '(.*)' of type '(\w+)' could not be converted to (\w+)", text)
    if found:
        value, _, wanted = found.groups()
        kinds: list[Any] = [getattr(e, "object_type", None) for e in chain]
        schema = next((str(kind.__name__) for kind in kinds if isinstance(kind, type) and is_dataclass(kind)), None)
        key = re.search(r"full_key: (\S+)", text)
        name = key.group(1) if key else "a key"
        kind = {"Integer": "an integer", "Float": "a number", "Boolean": "true or false"}.get(wanted, wanted)
        return f"{name}={value} has the wrong type{f' for {schema}' if schema else ''}: expected {kind}."
    found = re.search(r"Value '(.*)' is not a valid bool", text)
    if found:
        key = re.search(r"full_key: (\S+)", text)
        return f"{key.group(1) if key else 'A key'}={found.group(1)} has the wrong type: expected true or false."
    found = re.search(r"Invalid value '(.*)', expected one of \[(.*)\]", text)
    if found:
        key = re.search(r"full_key: (\S+)", text)
        return f"{key.group(1) if key else 'A key'}={found.group(1)} is not known; choose one of {found.group(2)}."
    return None


def _plain(text: str, overrides: Sequence[str]) -> str:
    """Anything else: its first line, and what it was about."""
    first = next((line.strip() for line in text.splitlines() if line.strip()), "unknown error")
    return f"The configuration does not compose ({first.rstrip('.')}); given: {' '.join(overrides) or 'no overrides'}."
