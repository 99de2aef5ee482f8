"""Which key of a file holds which column, and the sentences for keys that are missing or too many.

Observations of several parts, `pixels` and `state` for example, have an array for each: the keys `observations/pixels`
and `observations/state` are the columns `obs/pixels` and `obs/state`.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping
from typing import Any

from rlx.errors import UserError, nearest, shown

# column -> the names it goes by: ours first, then D4RL, d3rlpy, Minari, imitation
ALIASES: dict[str, tuple[str, ...]] = {
    "obs": ("obs", "observations", "observation", "states"),
    "action": ("action", "actions", "acts"),
    "reward": ("reward", "rewards", "rews"),
    "next_obs": ("next_obs", "next_observations", "next_observation", "next_states"),
    "terminated": ("terminated", "terminals", "terminations", "terminal"),
    "truncated": ("truncated", "timeouts", "truncations", "timeout"),
    "ends": ("ends", "episode_terminals", "episode_ends"),
    "starts": ("episode_starts",),
    "ids": ("episode_ids", "episode_id", "episode_index"),
}
OBSERVATIONS = ("obs", "next_obs")  # the columns that may have parts
OBSERVATION_KEYS = frozenset(name for column in OBSERVATIONS for name in ALIASES[column])
REQUIRED = ("obs", "action", "reward", "terminated")
MARKERS = ("ends", "starts", "ids")  # of boundaries, one of which stands in for `terminated`
LISTED = 12  # keys of a file that a sentence names
PARTS = 100  # that an observation may have
DEPTH = 8  # of dicts inside dicts


def kind_of(column: str) -> str:
    """The column that one is a part of: "obs" of "obs/pixels"."""
    return column.partition("/")[0]


def opened(arrays: Mapping[str, Any], depth: int = DEPTH) -> dict[str, Any]:
    """Dicts of arrays under the names of observations, part by part: `observations/pixels`."""
    flat: dict[str, Any] = {}
    for key, value in arrays.items():
        flat |= _flattened(str(key), value, depth) if key in OBSERVATION_KEYS else {str(key): value}
    return flat


def _flattened(key: str, value: Any, depth: int) -> dict[str, Any]:
    if not isinstance(value, Mapping) or not value or depth == 0:
        return {key: value}
    flat: dict[str, Any] = {}
    for part, inner in value.items():
        flat |= _flattened(f"{key}/{part}", inner, depth - 1)
    return flat


def map_keys(keys: Collection[str], source: str) -> dict[str, str]:
    """Column -> the key that holds it; exactly one key for each, and the required ones present.

    Observations have one key, or one for each of their parts.
    """
    parts = _keys_of_parts(keys, source)
    names: dict[str, str] = {}
    for column, aliases in ALIASES.items():
        present = [name for name in aliases if name in keys]
        present += [next(iter(parts[name].values())) for name in aliases if name in parts]
        if len(present) > 1:
            listed = " and ".join(f"'{name}'" for name in present)
            raise UserError(f"{source}: the keys {listed} both mean '{column}': expected one, so remove the others.")
        if present and present[0] in aliases:
            names[column] = present[0]
        elif present:
            names |= {f"{column}/{part}": key for part, key in parts[present[0].partition("/")[0]].items()}
    kinds = {kind_of(column) for column in names}
    for column in REQUIRED:
        if column not in kinds and (column != "terminated" or not kinds & set(MARKERS)):
            raise UserError(_missing(column, keys, source))
    _check_successors(names, source)
    return names


def _keys_of_parts(keys: Collection[str], source: str) -> dict[str, dict[str, str]]:
    """Name of an observation -> part -> key, parts in the order of their names."""
    parts: dict[str, dict[str, str]] = {}
    for key in keys:
        name, slash, part = key.partition("/")
        if not slash or name not in OBSERVATION_KEYS:
            continue
        check_part(key, source)
        parts.setdefault(name, {})[part] = key
        if len(parts[name]) > PARTS:
            raise UserError(f"{source}: '{name}' has more than {PARTS} parts: expected a few, such as '{name}/pixels'.")
    return {name: dict(sorted(found.items())) for name, found in parts.items()}


def check_part(key: str, source: str) -> None:
    """Refuse names of parts that could not be told in a sentence."""
    if not key.isprintable() or len(key) > 200 or not all(key.split("/")):
        raise UserError(
            f"{source}: key '{shown(key, 60)}' does not name a part of an observation: expected one such as "
            "'observations/pixels'."
        )


def _check_successors(names: Mapping[str, str], source: str) -> None:
    """next_obs, if it is there, has the parts of obs."""
    parts = {kind: [c.partition("/")[2] for c in names if kind_of(c) == kind] for kind in OBSERVATIONS}
    if not parts["next_obs"] or parts["next_obs"] == parts["obs"]:
        return
    keys = {kind: kind_of(next(key for c, key in names.items() if kind_of(c) == kind)) for kind in OBSERVATIONS}
    has, expected = listed_parts(parts["next_obs"]), listed_parts(parts["obs"])
    raise UserError(f"{source}: '{keys['next_obs']}' holds {has}, expected {expected} as in '{keys['obs']}'.")


def listed_parts(parts: Collection[str]) -> str:
    """What observations are made of, in words; one array is the part without a name."""
    some = ", ".join(shown(part, 60) for part in sorted(parts)[:LISTED])
    if not some:
        return "one array"
    return f"the part{'s' * (len(parts) > 1)} {some}{', ...' if len(parts) > LISTED else ''}"


def _missing(column: str, keys: Collection[str], source: str) -> str:
    if not keys:
        return f"{source}: holds no arrays: expected the keys obs, action, reward, terminated (or their usual names)."
    if column == "terminated" and {"done", "dones"} & set(keys):
        return (
            f"{source}: 'done' does not tell a terminal state from a time limit: expected 'terminated' and 'truncated' "
            "(or 'terminals' and 'timeouts'), so save those two instead."
        )
    aliases = ", ".join(f"'{name}'" for name in ALIASES[column])
    some = [shown(key, 60) for key in itertools.islice(keys, 100 * LISTED)]  # a file may have a million
    close = nearest(column, some)
    hint = f"; did you mean '{close}'" if close else ""
    return (
        f"{source}: no key for '{column}': expected one of {aliases}, found {', '.join(sorted(some)[:LISTED])}{hint}."
    )
