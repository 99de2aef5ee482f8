"""Configs that were read from a file: data, which may not reach beyond themselves.

    text            see `rlx.config.text`: bounded, and plain YAML
    interpolations  see `rlx.config.interpolations`: they stay within the config
    targets         each is one of its group, see `with_schemas`
    env.kwargs      name no files and no modules, see `rlx.config.trust`

What the user types on the command line is not bound by this: trust=[module], trust=[oc.env] and trust=[env.kwargs]
allow a file what it asks for.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, cast

import hydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from rlx.config.errors import explain
from rlx.config.interpolations import as_written, check_reach, escaped, references
from rlx.config.schemas import GROUPS, REQUIRED, Config, node_of, register, targets
from rlx.config.text import leaves, parse
from rlx.config.trust import WRAPPERS, check_env_kwargs, check_wrapper_sizes, is_users_own, plain_wrapper
from rlx.errors import UserError, shown
from rlx.files import read_bounded

log = logging.getLogger("rlx")


def read_config(folder: Path) -> str:
    """The text of a run's config.yaml."""
    path = folder / "config.yaml"
    try:
        return read_bounded(path, follow=False).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"{path}, the saved config, cannot be read ({error}); replace it with checkpoints/last/config.yaml."
        ) from error


def load_config(
    text: str, overrides: Sequence[str] = (), trust: Sequence[str] = (), use: Sequence[str] | None = None
) -> DictConfig:
    """A config as it was saved, with values overridden; `trust` in the file itself is ignored.

    `use` names the groups that the caller is going to read, if not all: only these have to stay within the config.
    """
    register()
    values = parse(text)
    if not isinstance(values, dict) or not all(isinstance(values.get(group), dict) for group in REQUIRED):
        raise UserError(
            f"The saved config is incomplete: it needs {', '.join(REQUIRED)}. Restore it from a checkpoint."
        )
    values = {**values, "trust": list(trust)}
    _complete_phases(values["trainer"])
    _drop_former_keys(values["algo"])
    try:
        changes = OverridesParser.create().parse_overrides(list(overrides))
        replaced = _replaced(changes)
        used = [key for key in values if use is None or key in use]
        check_reach(values, used, replaced, trust)
        cfg = with_schemas(values, trust)
        OmegaConf.set_struct(cfg, True)
        for override in changes:
            key = override.key_or_group
            if "." not in key and key in GROUPS:
                raise UserError(
                    f"{override.input_line} selects another {key}; only values such as {key}.KEY=VALUE can change."
                )
            if override.is_delete():
                _remove(cfg, key)
            else:
                OmegaConf.update(cfg, key, override.value(), merge=True)
        for key in used:  # interpolations have to lead somewhere
            if isinstance(cfg[key], DictConfig):
                OmegaConf.to_container(cfg[key], resolve=True, throw_on_missing=True)
        for place, env in (("env", cfg.env), *(_envs(cfg.dataset, "dataset") if "dataset" in used else ())):
            values_of_env: Any = OmegaConf.to_container(env, resolve=True)
            for key in ("kwargs", "training_kwargs", "wrappers"):
                check_env_kwargs(values_of_env.get(key), f"{place}.{key}", replaced, trust)
            check_wrapper_sizes(values_of_env.get("wrappers"), f"{place}.wrappers", trust)
        if "dataset" in used:
            _check_root(cfg.dataset, "dataset", replaced)
    except (hydra.errors.HydraException, OmegaConfBaseException, ValueError, TypeError, RecursionError) as error:
        raise UserError(shown(explain(error, overrides), 1000)) from error
    return cfg


def _complete_phases(trainer: dict[str, Any]) -> None:
    """Phases of older configs do not have `min_buffer_size`, which the trainer had for them."""
    phases = trainer.get("phases")
    for phase in phases.values() if isinstance(phases, dict) else ():
        if isinstance(phase, dict) and "min_buffer_size" in trainer:
            phase.setdefault("min_buffer_size", "${trainer.min_buffer_size}")


def _drop_former_keys(algo: dict[str, Any]) -> None:
    """Older configs have `compile`; native nodes have taken its place."""
    if str(algo.get("_target_")).startswith("rlx.") and algo.pop("compile", False):
        log.warning("algo.compile is gone: native nodes took its place. Results may differ in the last bits.")


def with_schemas(values: dict[str, Any], trust: Sequence[str] = ()) -> DictConfig:
    """A config read from a file, with its schemas attached again.

    The file is data: a `_target_` is accepted only if it is the one of a schema of its group, or trusted by the caller.
    """
    parts = dict(values)
    for group in GROUPS:
        node = parts.get(group)
        if group in ("callbacks", "logger"):
            if not isinstance(node, dict | None):
                raise UserError(f"The saved config has {group}={shown(node)}; expected a mapping from names to parts.")
            nodes = {} if node is None else node
            parts[group] = {name: _part(n, group, f"{group}.{shown(name)}", trust) for name, n in nodes.items()}
        else:
            parts[group] = _part(node, group, group, trust)
    for key in parts.keys() - GROUPS.keys():
        _refuse_targets(parts[key], str(key), trust)
    cfg = OmegaConf.merge(OmegaConf.structured(Config), parts)
    assert isinstance(cfg, DictConfig)
    return cfg


REPLAY = "rlx.data.replay.Replay"
FORMER: dict[str, dict[str, Any]] = {  # `_target_` until 0.1 -> what says the same today
    "rlx.data.prioritized.PrioritizedReplay": {"_target_": REPLAY, "prioritized": True},
    "rlx.data.hindsight.HindsightReplay": {"_target_": REPLAY, "hindsight": True},
    "rlx.data.arrays.load_in_memory": {"_target_": "rlx.data.sources.load_in_memory"},
    "rlx.data.minari.load_minari": {"_target_": "rlx.data.sources.load_minari"},
    "rlx.data.mixing.load_mix": {"_target_": "rlx.data.sources.load_mix"},
}


def current_names(node: Mapping[str, Any]) -> dict[str, Any]:
    """A part of a saved config under the names of today."""
    return {**node, **FORMER.get(str(node.get("_target_")), {})}


def _part(node: Any, group: str, place: str, trust: Sequence[str]) -> Any:
    """One part of a saved config with its schema; null where there is none."""
    if node is None and group not in REQUIRED:
        return None
    if not isinstance(node, dict) or not isinstance(node.get("_target_"), str):
        raise _unknown_target(node.get("_target_") if isinstance(node, dict) else node, place)
    node = current_names(node)
    target, children = node["_target_"], dict(node)
    schema = targets()[group].get(target)
    if schema is None:
        if not is_users_own(target, trust):
            raise _unknown_target(target, place)
        fits = (cls for cls in targets()[group].values() if {f.name for f in fields(cls)} == set(node))
        schema = next(fits, None) if len(node) > 1 else None  # a class of the user's in the place of one of ours
    if group == "dataset" and isinstance(node.get("sources"), dict):
        children["sources"] = {
            name: _part(n, group, f"{place}.sources.{shown(name)}", trust) for name, n in node["sources"].items()
        }
    if group == "dataset" and isinstance(node.get("env"), dict):
        children["env"] = _part(node["env"], "env", f"{place}.env", trust)
    if group == "env":
        _check_wrappers(node.get("wrappers"), f"{place}.wrappers", trust)
    for name, child in children.items():
        checked = (group, name) in (("dataset", "sources"), ("env", "wrappers"))
        if not isinstance(child, DictConfig) and not checked:
            _refuse_targets(child, f"{place}.{shown(name)}", trust)
    return children if schema is None else OmegaConf.merge(node_of(schema), children)


def _check_wrappers(wrappers: Any, place: str, trust: Sequence[str]) -> None:
    """Wrappers of a saved env are those of Gymnasium that do no harm, or the user's own."""
    for name, node in wrappers.items() if isinstance(wrappers, dict) else ():
        target = node.get("_target_") if isinstance(node, dict) else node
        if target is None and not isinstance(node, dict):
            continue
        if plain_wrapper(str(target)) not in WRAPPERS and not is_users_own(str(target), trust):
            raise _unknown_target(target, f"{place}.{shown(name)}")
        for key, value in node.items() if isinstance(node, dict) else ():
            _refuse_targets(value, f"{place}.{shown(name)}.{shown(key)}", trust)


def _unknown_target(target: Any, place: str) -> UserError:
    return UserError(
        f"The saved config asks for {shown(target)} as {place}, which rlx does not have there; add trust=[MODULE] if "
        "it is a class of yours."
    )


def _refuse_targets(value: Any, place: str, trust: Sequence[str]) -> None:
    """Nothing here is made into an object; what asks for it all the same has to be trusted."""
    if isinstance(value, dict):
        target = value.get("_target_")
        if target is not None and not is_users_own(str(target), trust):
            raise _unknown_target(target, place)
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, child in children:
        _refuse_targets(child, f"{place}.{shown(name)}", trust)


def _replaced(changes: Sequence[Any]) -> list[str]:
    """The keys of a saved config of which nothing is left once the user's overrides are in."""
    keys: list[str] = []
    for change in changes:
        value = None if change.is_delete() else change.value()
        if isinstance(value, dict):  # it is merged into what is there
            keys += [f"{change.key_or_group}.{key}" for key, _ in leaves(value)]
        else:
            keys.append(str(change.key_or_group))
    return keys


def _remove(cfg: DictConfig, key: str) -> None:
    """`~callbacks.progress`: one entry of a dict goes."""
    parent, _, name = key.rpartition(".")
    node = OmegaConf.select(cfg, parent)
    if not isinstance(node, DictConfig) or name not in node:
        raise UserError(f"~{key} removes nothing: there is no {key}.")
    with open_dict(node):
        del node[name]


# -- datasets and their envs -----------------------------------------------------------------------------------------


def _envs(node: Any, place: str) -> Iterator[tuple[str, DictConfig]]:
    """The envs that a dataset of a saved config describes, with their places; those it only refers to are elsewhere."""
    if not isinstance(node, DictConfig):
        return
    if "env" in node and not OmegaConf.is_interpolation(node, "env") and isinstance(node.env, DictConfig):
        yield f"{place}.env", node.env
    for name, source in _sources(node):
        yield from _envs(source, f"{place}.sources.{name}")


def _sources(node: DictConfig) -> Iterator[tuple[str, Any]]:
    """The parts of a mix."""
    sources = node.sources if "sources" in node and not OmegaConf.is_interpolation(node, "sources") else None
    if isinstance(sources, DictConfig):
        yield from ((str(name), source) for name, source in sources.items())


def _is_there(root: str, name: str) -> bool:
    return (Path(root).expanduser() / name / "data").is_dir()


def _check_root(node: Any, place: str, replaced: Sequence[str]) -> None:
    """A Minari dataset that is not there is built or downloaded: not into a folder that a file has chosen."""
    if not isinstance(node, DictConfig):
        return
    root = node.root if "root" in node else None
    name = node.id if "id" in node else None
    if root is not None and f"{place}.root" not in replaced and not _is_there(str(root), str(name)):
        raise UserError(
            f"{shown(name)} is not in {shown(root)}, which the saved config has as {place}.root; give the folder "
            f"yourself ({place}.root={shown(root)}) to have the dataset made there."
        )
    for key, source in _sources(node):
        _check_root(source, f"{place}.sources.{key}", replaced)


# -- loggers ---------------------------------------------------------------------------------------------------------


def loggers(cfg: DictConfig) -> dict[str, Any]:
    """The nodes of the loggers; names in them stay as they were typed where they reach beyond the config."""
    text = as_written(cfg)
    nodes = {}
    for name, node in (cfg.logger or {}).items():
        nodes[str(name)] = copied = copy.deepcopy(node)
        if isinstance(node, DictConfig):
            values: Any = OmegaConf.to_container(text.logger[name], resolve=True)
            for key, value in values.items():
                is_name = not isinstance(node[key], int | float)  # numbers are shown nowhere
                if is_name and any("${" in str(leaf) for _, leaf in leaves(value)):
                    copied[key] = escaped(value)
    return nodes


# -- resuming --------------------------------------------------------------------------------------------------------


def refuse_change(saved: Any, cfg: DictConfig) -> None:
    """Some values belong to what a checkpoint holds and cannot change in the middle of a run."""
    rollouts = [f"trainer.phases.{name}.collect" for name, phase in cfg.trainer.phases.items() if phase.on_policy]
    for key in ("seed", "env.id", "env.num_envs", "replay.capacity", "trainer.rollout_length", *rollouts):
        before, now = OmegaConf.select(saved, key), OmegaConf.select(cfg, key)
        if before != now and not (isinstance(before, str) and references(before) is None):
            raise UserError(f"{key} was {before} and cannot become {now} in the middle of a run; start a new run.")
    old, new = (cast(dict[str, Any], OmegaConf.to_container(c.reward, resolve=False)) for c in (saved, cfg))
    for key, value in new.items():
        if old.get(key, value) != value:
            raise UserError(
                f"reward.{key} was {old[key]} and cannot become {value} in the middle of a run, which has learned from "
                "and kept rewards as they were transformed until now; start a new run."
            )


def tell_changes(folder: Path, text: str, saved: str) -> None:
    """Warn where config.yaml is not the config of the checkpoint: it was edited, damaged, or changed by a resume."""
    if text == saved:
        return
    ours, theirs = (dict(leaves(parse(t))) for t in (text, saved))
    keys = {key for key in ours.keys() | theirs.keys() if key.partition(".")[0] != "trust"}  # typed anew each time
    changed = sorted(key for key in keys if ours.get(key) != theirs.get(key))
    if changed:
        told = ", ".join(f"{shown(k)} was {shown(theirs.get(k))} and is {shown(ours.get(k))}" for k in changed[:5])
        more = f" and {len(changed) - 5} more" if len(changed) > 5 else ""
        log.warning("%s differs from the config of the checkpoint (%s%s); the run goes on with it.",
                    folder / "config.yaml", told, more)  # fmt: skip
