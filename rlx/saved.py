"""Configs that were read from a file: data, which may not reach beyond themselves.

    text            of a bounded size and depth, without aliases, tags and merge keys; known before anything is built
    interpolations  lead to other values of the same config, directly or through RESOLVERS; never to the environment
    targets         see `rlx.config.typed`: each is one of its group
    env.kwargs      name no files and no modules

What the user types on the command line is not bound by this: trust=[module], trust=[oc.env] and trust=[env.kwargs]
allow a file what it asks for.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf._utils import get_yaml_loader

from rlx.errors import UserError

CONFIG_LIMIT = 2**18  # characters: far more than rlx writes
DEPTH = 20  # of values within values
COUNT = 10_000  # keys and values; each of them becomes an object
REACH = 2**20  # characters and values that a config may come to, its interpolations resolved
CHAIN = 12  # interpolations one behind the other
LARGEST = 2**63  # of an integer
RESOLVERS = ("oc.select", "prior_share", "round")  # those that read nothing but the config
KWARGS = "env.kwargs"  # what to trust for files in them

KEY = r"[A-Za-z_]\w*(?:\.\w+)*"
REFERENCE = re.compile(rf"(?P<key>{KEY})\}}|(?P<resolver>[\w.]+):")  # what follows a "${"
BEYOND = re.compile(r"[:/\\~]|^\.")  # in an env's keyword: a path, or a module


def trusted(target: str, trust: Sequence[str]) -> bool:
    """Is it part of rlx, or of a module in `trust`?"""
    modules = [name for name in trust if name != KWARGS and not OmegaConf.has_resolver(name)]
    return any(target == name or target.startswith(f"{name}.") for name in ("rlx", *modules))


def shown(value: Any, length: int = 200) -> str:
    """A value of a file for a sentence: one printable line of a bounded length."""
    text = str(value)
    line = "".join(c if c.isprintable() else " " for c in text[:length])
    return line if len(text) <= length else f"{line}..."


# -- text ------------------------------------------------------------------------------------------------------------


def parse(text: str) -> Any:
    """The values of a saved config as plain containers; UserError unless it is the plain YAML that rlx writes."""
    if len(text) > CONFIG_LIMIT:
        raise UserError(f"The saved config has {len(text):,} characters and rlx reads up to {CONFIG_LIMIT:,}.")
    try:
        _check_events(text)
        values = yaml.load(text, Loader=get_yaml_loader())  # a SafeLoader that refuses duplicate keys
    except (yaml.YAMLError, ValueError) as error:  # ValueError: an integer of too many digits
        raise UserError(
            f"The saved config is not valid YAML ({shown(error)}); restore it from a checkpoint."
        ) from error
    for key, value in leaves(values):
        if isinstance(value, int) and abs(value) >= LARGEST:
            raise UserError(f"The saved config has an integer beyond 2**63 at {shown(key)}.")
    return values


def _check_events(text: str) -> None:
    depth = count = 0
    for event in yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            raise UserError("The saved config has a YAML alias, which rlx never writes; write the value out.")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        count += isinstance(event, yaml.ScalarEvent)
        if count > COUNT:
            raise UserError(f"The saved config has more than {COUNT:,} keys and values.")
        if depth > DEPTH:
            raise UserError(f"The saved config is nested more than {DEPTH} deep.")
        if getattr(event, "tag", None) is not None:
            raise UserError(f"The saved config has the YAML tag {shown(event.tag)}, which rlx never writes.")
        if isinstance(event, yaml.ScalarEvent) and event.value == "<<":
            raise UserError("The saved config has a YAML merge key (<<), which rlx never writes.")


def leaves(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Every value that is no container, with its dotted key."""
    children: Iterable[tuple[Any, Any]]
    if isinstance(value, Mapping):
        children = value.items()
    elif isinstance(value, list | tuple):
        children = enumerate(value)
    else:
        yield key, value
        return
    for name, child in children:
        yield from leaves(child, f"{key}.{name}" if key else str(name))


# -- interpolations --------------------------------------------------------------------------------------------------


def references(text: str, trust: Sequence[str] = ()) -> list[str] | None:
    """The keys of the config that a text refers to; None if it reaches beyond the config, or hides where it leads."""
    if "${" not in text:
        return []
    if "\\" in text:  # an escaped interpolation may be resolved later
        return None
    found = []
    for part in text.split("${")[1:]:
        match = REFERENCE.match(part)
        if match is None:
            return None
        if match["key"]:
            found.append(match["key"])
        elif match["resolver"] not in (*RESOLVERS, *trust):
            return None
        elif match["resolver"] == "oc.select":
            key = re.match(rf"\s*({KEY})\s*[,}}]", part[match.end() :])
            if key is None:
                return None
            found.append(key[1])
    return found


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


# -- envs ------------------------------------------------------------------------------------------------------------


def check_env_kwargs(kwargs: Any, place: str, replaced: Sequence[str], trust: Sequence[str]) -> None:
    """An env may read a file or import a module that its keywords name."""
    if KWARGS in trust:
        return
    for key, value in leaves(kwargs, f"{place}.kwargs"):
        if isinstance(value, str) and BEYOND.search(value) and key not in replaced:
            raise UserError(
                f"The saved config has {shown(key)}={shown(value)}, which may be a file or a module; add "
                f"trust=[{KWARGS}] to allow it, or give it yourself when resuming ({shown(key)}=VALUE)."
            )


# -- states ----------------------------------------------------------------------------------------------------------


@contextmanager
def restoring(path: Path) -> Iterator[None]:
    """To take back in what a checkpoint holds: whatever does not fit is the file's fault, and a sentence."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, AssertionError, RuntimeError) as error:
        text = shown(str(error).partition("\n")[0] or "empty")
        raise UserError(
            f"{path} does not hold what rlx writes ({type(error).__name__}: {text}); use another checkpoint of the run."
        ) from error


def check_like(saved: Any, fresh: Any, place: str) -> None:
    """ValueError unless a saved state has the types of a fresh one; null and numbers may change places."""
    if isinstance(fresh, bool) or isinstance(saved, bool):
        good = isinstance(fresh, bool) and isinstance(saved, bool)
    elif isinstance(fresh, int):
        good = saved is None or (isinstance(saved, int) and abs(saved) < LARGEST)
    elif isinstance(fresh, float):
        good = saved is None or isinstance(saved, int | float)
    elif isinstance(fresh, str):
        good = isinstance(saved, str)
    elif isinstance(fresh, Mapping):
        good = isinstance(saved, Mapping)
        for key, value in saved.items() if good else ():
            check_like(value, fresh.get(key), f"{place}.{key}")
    else:
        good = all(value is None or isinstance(value, int | float) for _, value in leaves(saved))
    if not good:
        raise ValueError(f"{place} is {shown(saved, 40)!r}")


def check_saved_spec(spec: Any) -> None:
    """ValueError unless a Spec of a checkpoint is one that an env could have."""

    def counts(values: Any, most: int) -> bool:
        return (
            isinstance(values, tuple) and len(values) <= most and all(type(n) is int and 0 < n < 2**31 for n in values)
        )

    def numbers(values: Any) -> bool:
        return isinstance(values, tuple) and all(type(n) in (int, float) for n in values)

    shape, box = spec.action_shape, spec.action_kind == "box"
    good = isinstance(spec.env_id, str) and counts(spec.obs_shape, 3) and math.prod(spec.obs_shape) < 2**31
    good = good and spec.obs_dtype in ("float32", "float64", "uint8") and counts(shape, 1)
    good = good and spec.action_kind in ("box", "discrete", "multi_discrete") and counts(spec.action_sizes, 2**16)
    good = good and len(shape) == (spec.action_kind != "discrete") and numbers(spec.action_low + spec.action_high)
    good = good and len(spec.action_low) == len(spec.action_high) == (shape[0] if box else 0)
    good = (
        good and len(spec.action_sizes) == (0 if box else shape[0] if shape else 1) and sum(spec.action_sizes) < 2**31
    )
    good = good and counts((spec.episode_limit or 1,), 1)
    if good and spec.goal is not None:
        ends = (spec.goal.dim, *spec.goal.achieved, *spec.goal.desired)
        good = len(ends) == 5 and all(type(n) is int and 0 <= n <= math.prod(spec.obs_shape) for n in ends)
    if not good:
        raise ValueError(f"there is no such env: {shown(spec)}")
