"""From overrides to the config of a run: what Hydra composes, and a sentence where it cannot."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import hydra
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from rlx.choices import by_name, choices, suite_of
from rlx.config.errors import check_choices, explain
from rlx.config.overrides import config_folders, field_kinds, fitted, kind_of
from rlx.config.schemas import (
    DEFAULT_ALGO,
    DEFAULT_ENV,
    GROUPS,
    PRIORITY_FIELDS,
    REQUIRED,
    Config,
    register,
    schemas,
)
from rlx.errors import UserError
from rlx.paths import conf_dir

SUITE_PAIR = "algo_env@_global_"  # the entry for pairs of a whole suite, see conf/config.yaml
SETTLED_BY_CHOICE = ("reward", "schedule")  # groups of which tuned pairs have no say where a choice was typed

# What Hydra raises for overrides that it cannot use; some of it by accident, as for names too long for a file
UNREADABLE = (
    hydra.errors.HydraException, OmegaConfBaseException, YAMLError, ValueError, TypeError, AssertionError,
    RecursionError, OSError,
)  # fmt: skip


def compose_config(overrides: Sequence[str], hydra_too: bool = False) -> DictConfig:
    """The config of one run; UserError if the overrides do not fit the tree. With `hydra_too`, also Hydra's own."""
    for group in REQUIRED:
        if {f"{group}=null", f"~{group}"} & set(overrides):
            raise UserError(f"A run needs {group}=...; choices: {', '.join(choices(group))}.")
    register()
    prepared = for_hydra(overrides)
    folders = config_folders(prepared)
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        try:
            check_choices(prepared, folders)
            cfg = compose("config", overrides=prepared, return_hydra_config=True)
            _refuse_added(cfg, prepared)
            _keep_choices(cfg, prepared)
            cfg.choices = _named_choices(cfg.hydra.runtime.choices, prepared)
            if not hydra_too:
                with open_dict(cfg):
                    del cfg["hydra"]
                OmegaConf.to_container(cfg, resolve=True)  # interpolations have to lead somewhere
        except UNREADABLE as error:
            raise UserError(explain(error, overrides, known_keys(overrides), folders)) from error
    return cfg


def _named_choices(known: Mapping[str, str | None], overrides: Sequence[str]) -> dict[str, str]:
    """What was chosen of each group, by name; an env that was given by its id alone is called by it."""
    chosen = {group: known[group] for group in (*GROUPS, "experiment") if known.get(group)}
    given = dict(override.partition("=")[::2] for override in overrides)
    if "env" not in given and given.get("env.id", DEFAULT_ENV) != DEFAULT_ENV:
        chosen["env"] = given["env.id"]
    return {group: str(name) for group, name in chosen.items()}


def _refuse_added(cfg: DictConfig, overrides: Sequence[str]) -> None:
    """`+algo.KEY=...` adds a key that nothing reads, where the schema has none of that name; raises what Hydra says of
    it without the +.
    """
    for override in (o for o in overrides if o.startswith("+")):
        key = override.partition("=")[0].lstrip("+").split(".")
        for i in range(1, len(key)):
            node = OmegaConf.select(cfg, ".".join(key[:i]))
            schema: Any = OmegaConf.get_type(node) if OmegaConf.is_config(node) else None
            if is_dataclass(schema) and key[i] not in {f.name for f in fields(schema)}:
                compose("config", overrides=[o.lstrip("+") if o is override else o for o in overrides])


def _keep_choices(cfg: DictConfig, overrides: Sequence[str]) -> None:
    """`reward=identity` is that of the group, though the tuned pair of algo and env may have a reward of its own.

    Nor do its numbers for priorities count where the replay is not prioritized, as with `replay=uniform`.
    """
    pairs = ("algo_env", SUITE_PAIR)
    chosen = [group for group in SETTLED_BY_CHOICE if any(override.startswith(f"{group}=") for override in overrides)]
    uniform = OmegaConf.select(cfg, "replay.prioritized") is False
    usual = {f.name: f.default for f in fields(schemas()["replay/replay"])}
    unread = [name for name in PRIORITY_FIELDS if uniform and cfg.replay.get(name) != usual[name]]
    if not (chosen or unread) or not any(cfg.hydra.runtime.choices.get(pair) for pair in pairs):
        return
    others = [override for override in overrides if override.lstrip("~").partition("=")[0] not in pairs]
    plain = compose("config", overrides=[*others, *(f"~{pair}" for pair in pairs)])
    for group in chosen:
        cfg[group] = plain[group]
    for name in unread:
        cfg.replay[name] = plain.replay[name]


def for_hydra(overrides: Sequence[str], sweep: bool = False) -> list[str]:
    """Overrides as Hydra takes them.

    `dataset=null` is `~dataset`, `env=atari/pong` is `env=atari env.game=Pong`, `trainer.max_env_steps=1e5` is 100000,
    `algo_env=NAME` and `~algo_env` are about both kinds of pairs, and `env.id=X` alone is about X: how the default env
    was tuned, and its dataset, have no say.
    """
    groups = {f"{group}=null": f"~{group}" for group in (*GROUPS, "experiment", "algo_env")}
    overrides = [part for override in overrides for part in _named(override, overrides)]
    overrides = fit_numbers([groups.get(override, quoted_run_dir(override)) for override in overrides], sweep)
    given = {key.lstrip("+~"): value for key, _, value in (o.partition("=") for o in overrides)}
    if not given.keys() & {"env", "experiment"} and given.get("env.id", DEFAULT_ENV) != DEFAULT_ENV:
        other = {"algo_env": "~algo_env", "env.dataset_id": "env.dataset_id=null", "env.suite": "env.suite=null"}
        overrides += [override for key, override in other.items() if key not in given]
    return [prepared for override in overrides for prepared in _pairs(override, config_folders(overrides))]


def _named(override: str, overrides: Sequence[str]) -> list[str]:
    """`env=atari/pong` as the preset and the key that says which game it is."""
    key, _, value = override.partition("=")
    parts = by_name(value, config_folders(overrides)) if key == "env" and "/" in value else None
    return [f"env={parts[0]}", f"env.{parts[1]}={parts[2]}"] if parts else [override]


def _pairs(override: str, folders: Sequence[Path]) -> list[str]:
    """`algo_env=iql_hopper` as both of the pairs that algo=iql env=hopper has: of the env's suite, and its own."""
    key, _, name = override.partition("=")
    if key == "~algo_env":
        return [f"~{SUITE_PAIR}", override]
    if key != "algo_env":
        return [override]
    env = max((env for env in choices("env", folders) if name.endswith(f"_{env}")), key=len, default=None)
    suite = suite_of(env, folders) if env is not None else None
    of_suite = f"{name.removesuffix(f'_{env}')}_{suite}"
    there = choices("algo_env", folders)
    if of_suite not in there:
        return [f"~{SUITE_PAIR}", override]
    return [f"{SUITE_PAIR}={of_suite}", override if name in there else "~algo_env"]


def fit_numbers(overrides: Sequence[str], sweep: bool = False) -> list[str]:
    """Numbers as the fields they are for want them, see `rlx.config.overrides.fitted`."""
    return [fitted(override, _kinds(), sweep) for override in overrides]


def is_integer(key: str) -> bool:
    """Is this key an integer, as far as the schemas of its group agree?"""
    return kind_of(key, _kinds()) == "int"


@functools.cache
def _kinds() -> dict[str, dict[str, str]]:
    return field_kinds(schemas(), Config)


def quoted_run_dir(override: str) -> str:
    """`run_dir=a,b=[c]` with quotes, so that Hydra takes any name of a folder as it is; other overrides unchanged."""
    key, _, value = override.partition("=")
    if key != "run_dir" or value in ("", "null") or value[0] in "'\"":
        return override
    value = re.sub(r"(\\*)'", r"\1\1\'", value)  # a backslash means itself, except before a quote
    value = re.sub(r"(\\+)$", r"\1\1", value)
    return f"run_dir='{value}'"


def known_keys(overrides: Sequence[str]) -> set[str]:
    """The keys that these choices have, as far as the schemas tell: what a wrong key may have been meant to be."""
    named = dict(o.partition("=")[::2] for o in overrides)
    algo = f"algo/{named.get('algo', DEFAULT_ALGO)}"
    keys = {f.name for f in fields(Config)}
    for name, cls in schemas().items():
        group = name.partition("/")[0]
        if group in ("callbacks", "logger") or (group == "algo" and algo in schemas() and name != algo):
            continue
        keys |= {f"{group}.{f.name}" for f in fields(cls) if not f.name.startswith("_")}
    return keys
