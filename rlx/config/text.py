"""The text of a saved config: of a bounded size and depth, without aliases, tags and merge keys.

All of this is known before anything is built from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import yaml
from omegaconf._utils import get_yaml_loader

from rlx.errors import UserError, shown

CONFIG_LIMIT = 2**18  # characters: far more than rlx writes

DEPTH = 20  # of values within values

COUNT = 10_000  # keys and values; each of them becomes an object

LARGEST = 2**63  # of an integer


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
