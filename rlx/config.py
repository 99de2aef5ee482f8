"""The config tree: the root schema, the schemas of every group, one way to compose and one way to instantiate.

Schemas are the dataclasses with a `_target_` that stand next to what they configure. They are found by looking through
the modules below and stored in Hydra's ConfigStore as `schema/<group>/<name>`; YAML files in `conf/` select them.
"""

from __future__ import annotations

import copy
import functools
import importlib
import inspect
import math
import pkgutil
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import hydra
from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from rlx.config_errors import check_choices, choices, explain
from rlx.data.former import current_names
from rlx.envs.evaluation import MOST_EPISODES
from rlx.errors import UserError, require
from rlx.learner import Learner, check_algo
from rlx.overrides import config_folders, field_kinds, fitted
from rlx.paths import conf_dir
from rlx.saved import as_written, check_env_kwargs, check_reach, escaped, leaves, parse, shown, trusted
from rlx.threads import AUTO
from rlx.types import Spec

# where the schemas of a group live; a package stands for all its modules
GROUPS = {
    "algo": ("rlx.algos",),
    "env": ("rlx.envs.factory",),
    "dataset": ("rlx.data.sources", "rlx.data.minari", "rlx.data.mixing", "rlx.data.arrays"),
    "replay": ("rlx.data.replay",),
    "reward": ("rlx.rewards",),
    "schedule": ("rlx.schedules",),
    "trainer": ("rlx.trainers.trainer",),
    "callbacks": ("rlx.callbacks",),
    "logger": ("rlx.loggers",),
}
DEFAULT_ENV = "Pendulum-v1"
MOST_THREADS = 1024
DEFAULT_ALGO = "sac"
REQUIRED = ("algo", "env", "replay", "reward", "schedule", "trainer")  # groups that a run cannot do without


@dataclass
class Config:
    """A whole run."""

    algo: Any = None
    env: Any = None
    dataset: Any = None
    reward: Any = None
    schedule: Any = None
    replay: Any = None
    trainer: Any = None
    callbacks: Any = field(default_factory=dict)
    logger: Any = field(default_factory=dict)
    seed: int = 0  # of everything
    device: str = "cpu"  # where the learner lives
    threads: int | str | None = None  # of torch; null: one, auto: as many as are measured to pay
    run_dir: str | None = None  # null: multirun_outputs/runs/<algo>__<EnvId>__seed<seed>__<stamp>
    trust: list[str] = field(default_factory=list)  # modules besides rlx whose `_target_`s may be instantiated


def _modules(name: str) -> Iterator[ModuleType]:
    module = importlib.import_module(name)
    yield module
    for info in pkgutil.iter_modules(getattr(module, "__path__", ())):
        yield importlib.import_module(f"{name}.{info.name}")


def _snake(name: str) -> str:
    """EarlyStopping -> early_stopping, QValues -> q_values."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


@functools.cache
def schemas() -> dict[str, type]:
    """Every schema dataclass by its `group/name`."""
    found: dict[str, type] = {}
    for group, names in GROUPS.items():
        for module in (m for name in names for m in _modules(name)):
            for cls in vars(module).values():
                own = inspect.isclass(cls) and cls.__module__ == module.__name__ and is_dataclass(cls)
                if not own or not getattr(cls, "_target_", ""):  # a base of others has none
                    continue
                name = (
                    module.__name__.rpartition(".")[2]
                    if group == "algo"
                    else _snake(cls.__name__.removesuffix("Config"))
                )
                found[f"{group}/{name}"] = cls
    return found


def _open_dicts(cls: type) -> Any:
    """The schema as a node whose free-form dicts take keys without a `+`."""
    node = OmegaConf.structured(cls)
    for f in fields(cls):
        if str(f.type).startswith("dict[str"):
            OmegaConf.set_struct(node[f.name], False)
    return node


@functools.cache
def register() -> None:
    """Put the root and every schema into Hydra's ConfigStore."""
    OmegaConf.register_new_resolver("prior_share", lambda target: 0.0 if target == "none" else 0.5, replace=True)
    OmegaConf.register_new_resolver("round", lambda x: max(1, round(x)), replace=True)
    store = ConfigStore.instance()
    store.store(name="root_schema", node=Config)
    for name, cls in schemas().items():
        group, _, choice = name.partition("/")
        store.store(group=f"schema/{group}", name=choice, node=_open_dicts(cls))


# What Hydra raises for overrides that it cannot use; some of it by accident, as for names too long for a file
UNREADABLE = (
    hydra.errors.HydraException, OmegaConfBaseException, YAMLError, ValueError, TypeError, AssertionError,
    RecursionError, OSError,
)  # fmt: skip


@functools.cache
def _kinds() -> dict[str, dict[str, str]]:
    return field_kinds(schemas(), Config)


def compose_config(overrides: Sequence[str]) -> DictConfig:
    """The config of one run; UserError if the overrides do not fit the tree."""
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
            cfg = compose("config", overrides=prepared)
            OmegaConf.to_container(cfg, resolve=True)  # interpolations have to lead somewhere
        except UNREADABLE as error:
            raise UserError(explain(error, overrides, known_keys(overrides), folders)) from error
    return cfg


def fit_numbers(overrides: Sequence[str], sweep: bool = False) -> list[str]:
    """Numbers as the fields they are for want them, see `rlx.overrides.fitted`."""
    return [fitted(override, _kinds(), sweep) for override in overrides]


def for_hydra(overrides: Sequence[str], sweep: bool = False) -> list[str]:
    """Overrides as Hydra takes them.

    `dataset=null` is `~dataset`, `trainer.max_env_steps=1e5` is 100000, and `env.id=X` alone is about X: how the
    default env was tuned, and its dataset, have no say.
    """
    groups = {f"{group}=null": f"~{group}" for group in (*GROUPS, "experiment", "algo_env")}
    overrides = fit_numbers([groups.get(override, quoted_run_dir(override)) for override in overrides], sweep)
    given = {key.lstrip("+~"): value for key, _, value in (o.partition("=") for o in overrides)}
    if given.keys() & {"env", "experiment"} or given.get("env.id", DEFAULT_ENV) == DEFAULT_ENV:
        return overrides
    other = {"algo_env": "~algo_env", "env.dataset_id": "env.dataset_id=null"}
    return [*overrides, *(override for key, override in other.items() if key not in given)]


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


def quoted_run_dir(override: str) -> str:
    """`run_dir=a,b=[c]` with quotes, so that Hydra takes any name of a folder as it is; other overrides unchanged."""
    key, _, value = override.partition("=")
    if key != "run_dir" or value in ("", "null") or value[0] in "'\"":
        return override
    value = re.sub(r"(\\*)'", r"\1\1\'", value)  # a backslash means itself, except before a quote
    value = re.sub(r"(\\+)$", r"\1\1", value)
    return f"run_dir='{value}'"


def imported(target: str) -> Any:
    module, _, name = target.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(f"_target_={target} cannot be imported ({error}); give module.Class.") from error


def instantiate(node: Any, *args: Any, trust: Sequence[str] = (), **kwargs: Any) -> Any:
    """The only way from a config node to an object: `Target(config dataclass, *args)`.

    Only targets in rlx, or in modules that the user trusts on the command line, are followed; what makes further parts
    has a parameter `trust` and is told of them. A node without a schema (a user's own class) is called with its keys as
    keywords.
    """
    target = str(node.get("_target_", "")) if isinstance(node, DictConfig) else ""
    if not target:
        raise UserError(f"This part of the config has no _target_: {shown(node)!r}; name a class.")
    if not trusted(target, trust):
        package = target.partition(".")[0]
        raise UserError(f"_target_={target} is not part of rlx; add trust=[{package}] to allow code from {package}.")
    factory = imported(target)
    if is_dataclass(OmegaConf.get_type(node)):
        if "trust" in inspect.signature(factory).parameters:
            kwargs["trust"] = tuple(trust)
        return factory(OmegaConf.to_object(node), *args, **kwargs)
    values = OmegaConf.to_container(node, resolve=True)
    assert isinstance(values, dict)
    values.pop("_target_")
    return factory(*args, **{str(k): v for k, v in values.items()}, **kwargs)


@functools.cache
def targets() -> dict[str, dict[str, type]]:
    """By group, the schema of each `_target_`."""
    found: dict[str, dict[str, type]] = {group: {} for group in GROUPS}
    for name, cls in schemas().items():
        found[name.partition("/")[0]].setdefault(cls()._target_, cls)
    return found


def typed(values: dict[str, Any], trust: Sequence[str] = ()) -> DictConfig:
    """A config read from a file, with its schemas attached again.

    The file is data: a `_target_` is accepted only if it is the one of a schema of its group, or trusted by the caller.
    """
    parts = dict(values)
    for group in GROUPS:
        node = parts.get(group)
        if group in ("callbacks", "logger"):
            if not isinstance(node, dict | None):
                raise UserError(f"The saved config has {group}={shown(node)}; expected names with what each one is.")
            nodes = {} if node is None else node
            parts[group] = {name: _part(n, group, f"{group}.{shown(name)}", trust) for name, n in nodes.items()}
        else:
            parts[group] = _part(node, group, group, trust)
    for key in parts.keys() - GROUPS.keys():
        _refuse_targets(parts[key], str(key), trust)
    cfg = OmegaConf.merge(OmegaConf.structured(Config), parts)
    assert isinstance(cfg, DictConfig)
    return cfg


def _part(node: Any, group: str, place: str, trust: Sequence[str]) -> Any:
    """One part of a saved config with its schema; null where there is none."""
    if node is None and group not in REQUIRED:
        return None
    if not isinstance(node, dict) or not isinstance(node.get("_target_"), str):
        raise _stranger(node.get("_target_") if isinstance(node, dict) else node, place)
    node = current_names(node)
    target, children = node["_target_"], dict(node)
    schema = targets()[group].get(target)
    if schema is None:
        if not _is_users_own(target, trust):
            raise _stranger(target, place)
        fits = (cls for cls in targets()[group].values() if {f.name for f in fields(cls)} == set(node))
        schema = next(fits, None) if len(node) > 1 else None  # a class of the user's in the place of one of ours
    if group == "dataset" and isinstance(node.get("sources"), dict):
        children["sources"] = {
            name: _part(n, group, f"{place}.sources.{shown(name)}", trust) for name, n in node["sources"].items()
        }
    if group == "dataset" and isinstance(node.get("env"), dict):
        children["env"] = _part(node["env"], "env", f"{place}.env", trust)
    for name, child in children.items():
        if not isinstance(child, DictConfig) and not (group == "dataset" and name == "sources"):
            _refuse_targets(child, f"{place}.{shown(name)}", trust)
    return children if schema is None else OmegaConf.merge(_open_dicts(schema), children)


def _is_users_own(target: str, trust: Sequence[str]) -> bool:
    return trusted(target, trust) and not trusted(target, ())


def _stranger(target: Any, place: str) -> UserError:
    return UserError(
        f"The saved config asks for {shown(target)} as {place}, which is no such part of rlx; add trust=[MODULE] if it "
        "is a class of yours."
    )


def _refuse_targets(value: Any, place: str, trust: Sequence[str]) -> None:
    """Nothing here is made into an object; what asks for it all the same has to be trusted."""
    if isinstance(value, dict):
        target = value.get("_target_")
        if target is not None and not _is_users_own(str(target), trust):
            raise _stranger(target, place)
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, child in children:
        _refuse_targets(child, f"{place}.{shown(name)}", trust)


def load_config(
    text: str, overrides: Sequence[str] = (), trust: Sequence[str] = (), use: Sequence[str] | None = None
) -> DictConfig:
    """A config as it was saved, with values overridden; whom the file trusts does not count.

    `use` names the groups that the caller is going to read, if not all: only these have to stay within the config.
    """
    register()
    values = parse(text)
    if not isinstance(values, dict) or not all(isinstance(values.get(group), dict) for group in REQUIRED):
        raise UserError(f"The saved config is not whole; it needs {', '.join(REQUIRED)}. Restore it from a checkpoint.")
    values = {**values, "trust": list(trust)}
    try:
        changes = OverridesParser.create().parse_overrides(list(overrides))
        replaced = _replaced(changes)
        used = [key for key in values if use is None or key in use]
        check_reach(values, used, replaced, trust)
        cfg = typed(values, trust)
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
            check_env_kwargs(OmegaConf.to_container(env, resolve=True).get("kwargs"), place, replaced, trust)  # type: ignore[union-attr]
        if "dataset" in used:
            _check_root(cfg.dataset, "dataset", replaced)
    except (hydra.errors.HydraException, OmegaConfBaseException, ValueError, TypeError, RecursionError) as error:
        raise UserError(shown(explain(error, overrides), 1000)) from error
    return cfg


def _replaced(changes: Sequence[Any]) -> list[str]:
    """The keys of a saved config of which nothing is left once the user's overrides are in."""
    found: list[str] = []
    for change in changes:
        value = None if change.is_delete() else change.value()
        if isinstance(value, dict):  # it is merged into what is there
            found += [f"{change.key_or_group}.{key}" for key, _ in leaves(value)]
        else:
            found.append(str(change.key_or_group))
    return found


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


def loggers(cfg: DictConfig) -> dict[str, Any]:
    """The nodes of the loggers; names in them stay as they were typed where they reach beyond the config."""
    text = as_written(cfg)
    found = {}
    for name, node in (cfg.logger or {}).items():
        found[str(name)] = copied = copy.deepcopy(node)
        if isinstance(node, DictConfig):
            values: Any = OmegaConf.to_container(text.logger[name], resolve=True)
            for key, value in values.items():
                is_name = not isinstance(node[key], int | float)  # numbers are shown nowhere
                if is_name and any("${" in str(leaf) for _, leaf in leaves(value)):
                    copied[key] = escaped(value)
    return found


def _remove(cfg: DictConfig, key: str) -> None:
    """`~callbacks.progress`: one entry of a dict goes."""
    parent, _, name = key.rpartition(".")
    node = OmegaConf.select(cfg, parent)
    if not isinstance(node, DictConfig) or name not in node:
        raise UserError(f"~{key} removes nothing: there is no {key}.")
    with open_dict(node):
        del node[name]


# -- does it fit together? -------------------------------------------------------------------------------------------


@functools.cache
def learners() -> dict[str, type[Learner]]:
    """Every algorithm's learner class by the name of its YAML."""
    found = {}
    for name, cls in schemas().items():
        group, _, algo = name.partition("/")
        if group == "algo":
            module, _, attribute = cls()._target_.rpartition(".")
            found[algo] = getattr(importlib.import_module(module), attribute)
    return found


def _choices(fits: Any) -> str:
    return ", ".join(f"algo={name}" for name in sorted(learners()) if fits(learners()[name]))


def check_regime(cfg: DictConfig) -> None:
    """Refuse combinations of algorithm, regime and dataset that cannot work, before anything is built."""
    name, regime = cfg.algo.name, cfg.trainer.regime
    cls = learner_class(cfg)
    if regime not in cls.regimes:
        raise UserError(
            f"algo={name} cannot run under trainer={regime}; it runs under "
            f"{' or '.join(f'trainer={r}' for r in cls.regimes)}, and trainer={regime} is for "
            f"{_choices(lambda c: regime in c.regimes)}."
        )
    phases = cfg.trainer.phases.values()
    reads_data = any(p.collect == 0 or p.offline_fraction > 0 for p in phases if p.updates != 0)
    if cfg.dataset is None and reads_data:
        raise UserError(
            f"algo={name} with trainer={regime} learns from a dataset and none is given; add dataset=minari, or "
            "dataset=npz dataset.path=FILE (`python -m rlx list dataset` shows all)."
        )
    if cfg.dataset is not None and regime == "on_policy":
        raise UserError(
            f"algo={name} learns on-policy and cannot use a dataset; drop dataset=..., or choose one of "
            f"{_choices(lambda c: 'on_policy' not in c.regimes)}."
        )
    class_of(cfg.replay, cfg.trust)
    if cfg.replay.get("prioritized"):
        mixes = cfg.dataset is not None and "offline_batch_ratio" in cfg.schedule.targets
        check_prioritized(name, cls, reads_data or mixes)
    for key in ("prioritized", "hindsight", "union"):
        require(
            not cfg.replay.get(key) or any(p.collect > 0 and not p.on_policy for p in phases),
            f"algo={name} under trainer={regime} keeps no replay, so replay.{key}=true has no effect; drop it, or use "
            "replay=uniform.",
        )
    if cfg.replay.get("union"):
        check_union(cfg)
    if cfg.algo.normalize_obs and cfg.dataset is None and "on_policy" not in cls.regimes:
        raise UserError(
            f"algo.normalize_obs=true takes its statistics from a dataset under algo={name} and there is none; use "
            "algo.normalize_obs=false, or add dataset=..."
        )
    if all(phase.updates == 0 for phase in phases):
        raise UserError("trainer.phases has no phase that does anything; choose a regime such as trainer=off_policy.")
    check_phases(cfg)
    budgets = ("max_env_steps", "max_updates", "max_epochs", "max_seconds")
    for key in budgets:
        value = cfg.trainer[key]
        if value is not None and value < 0:
            raise UserError(f"trainer.{key} must be at least 0 (trainer.{key}={value}).")
    if all(cfg.trainer[key] is None for key in budgets):
        raise UserError(f"The run has no budget; set one of {', '.join(f'trainer.{b}' for b in budgets)}.")


def check_phases(cfg: DictConfig) -> None:
    """Refuse a budget that ends before the run goes online."""
    limit, before = cfg.trainer.max_updates, 0
    for phase in cfg.trainer.phases.values():
        if phase.collect > 0:
            break
        before += phase.updates or 0
    else:
        return  # nothing is collected
    if limit is not None and before and limit <= before:
        raise UserError(
            f"trainer.max_updates={limit} ends the run before it goes online, after {before} updates on the dataset; "
            "give more, use trainer.max_env_steps as the budget (trainer.max_updates=null), or learn from the dataset "
            "alone with trainer=offline."
        )


def check_seed(seed: int) -> None:
    if not 0 <= seed < 2**63:
        raise UserError(f"seed must be at least 0 and below 2**63 (seed={seed}).")


def check_prioritized(name: str, cls: type[Learner], reads_data: bool) -> None:
    """Refuse what would leave the priorities of a replay without effect."""
    if not cls.prioritized:
        raise UserError(
            f"algo={name} does not weigh its loss, which a prioritized replay needs; use replay=uniform, or choose one "
            f"of {_choices(lambda c: c.prioritized)}."
        )
    if reads_data:
        raise UserError(
            "A prioritized replay draws from what the run collects and this run also draws from a dataset; use "
            "replay=uniform, or trainer=off_policy trainer.offline_batch_ratio=0."
        )


def check_union(cfg: DictConfig) -> None:
    """Refuse shares of a dataset beside a replay that holds it."""
    mixes = any(p.collect > 0 and p.offline_fraction > 0 for p in cfg.trainer.phases.values())
    if mixes or "offline_batch_ratio" in cfg.schedule.targets:
        raise UserError(
            "replay.union=true draws from the dataset and from what the run collects as from one, and this run also "
            "mixes shares of both; add trainer.offline_batch_ratio=0, or drop replay.union."
        )


def learner_class(cfg: DictConfig) -> type[Learner]:
    cls = class_of(cfg.algo, cfg.trust)
    if not (inspect.isclass(cls) and issubclass(cls, Learner)):
        raise UserError(
            f"algo._target_={cfg.algo._target_} is not an algorithm; give a subclass of rlx.learner.Learner."
        )
    return cls


def class_of(node: DictConfig, trust: Sequence[str]) -> Any:
    """What a config node would be made into, if that is part of rlx or trusted."""
    target = str(node._target_)
    if not trusted(target, trust):
        raise UserError(
            f"_target_={target} is not part of rlx; add trust=[{target.partition('.')[0]}] to allow code from it."
        )
    return imported(target)


def check_spec(cfg: DictConfig, spec: Spec) -> None:
    """Refuse an environment that the algorithm cannot handle."""
    name, cls = cfg.algo.name, learner_class(cfg)
    if spec.action_kind not in cls.actions:
        raise UserError(
            f"algo={name} needs {' or '.join(cls.actions)} actions and {spec.env_id} has {spec.action_kind} ones; "
            f"choose another env, or one of {_choices(lambda c: spec.action_kind in c.actions)}."
        )
    if len(spec.obs_shape) == 3 and not cls.images:
        able = _choices(lambda c: c.images)
        raise UserError(
            f"algo={name} reads vectors and {spec.env_id} gives images of shape {spec.obs_shape}; use an env with "
            f"vector observations{f', or one of {able}' if able else ' (no algorithm supports images yet)'}."
        )


def check_finite(key: str, value: Any) -> None:
    """Refuse inf and nan, also within dicts and lists."""
    if isinstance(value, dict):
        for name, child in value.items():
            check_finite(f"{key}.{name}", child)
    elif isinstance(value, list):
        for child in value:
            check_finite(key, child)
    elif isinstance(value, float) and not math.isfinite(value):
        raise UserError(f"{key} must be finite ({key}={value}).")


def validate(cfg: DictConfig) -> None:
    """Numbers that no run can use."""
    for group in ("algo", "replay", "reward", "schedule", "trainer"):
        check_finite(group, OmegaConf.to_container(cfg[group], resolve=True))
    trainer = cfg.trainer
    at_least_one = ("eval_episodes", "log_interval", "epoch_length", "train_frequency", "rollout_length")
    for key in (*at_least_one, "keep_checkpoints"):
        if trainer[key] < 1:
            raise UserError(f"trainer.{key} must be at least 1 (trainer.{key}={trainer[key]}).")
    for key in ("eval_interval", "checkpoint_interval", "learning_starts", "warmup_steps", "min_buffer_size"):
        if trainer[key] < 0:
            raise UserError(f"trainer.{key} must be at least 0 (trainer.{key}={trainer[key]}).")
    if not 0 <= trainer.offline_batch_ratio <= 1:
        share = trainer.offline_batch_ratio
        raise UserError(f"trainer.offline_batch_ratio must be between 0 and 1 (trainer.offline_batch_ratio={share}).")
    ratio = trainer.gradient_updates_per_step
    if ratio <= 0:
        raise UserError(
            f"trainer.gradient_updates_per_step must be above 0 (trainer.gradient_updates_per_step={ratio})."
        )
    check_algo(OmegaConf.to_container(cfg.algo, resolve=True))  # type: ignore[arg-type]
    threads = cfg.threads
    if threads not in (None, AUTO) and not (isinstance(threads, int) and 1 <= threads <= MOST_THREADS):
        raise UserError(f"threads must be an integer from 1 to {MOST_THREADS}, or {AUTO} (threads={threads}).")
    if trainer.eval_episodes > MOST_EPISODES:
        episodes = trainer.eval_episodes
        raise UserError(f"trainer.eval_episodes must be at most {MOST_EPISODES:,} (trainer.eval_episodes={episodes}).")
    check_seed(cfg.seed)
    limit = cfg.env.max_episode_steps
    if limit is not None and limit < 1:
        raise UserError(f"env.max_episode_steps must be at least 1, or null for the env's own ({limit} was given).")
    if cfg.dataset is None and cfg.reward.get("normalize_return"):
        raise UserError("reward.normalize_return is fitted on a dataset and there is none; use reward=running_norm.")
