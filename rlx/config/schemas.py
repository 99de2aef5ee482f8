"""The config tree: the root schema and the schemas of every group.

Schemas are the dataclasses with a `_target_` that stand next to what they configure. They are found by looking through
the modules below and stored in Hydra's ConfigStore as `schema/<group>/<name>`; YAML files in `conf/` select them.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from types import ModuleType
from typing import Any

from hydra.core.config_store import ConfigNode, ConfigStore
from hydra.core.plugins import Plugins
from omegaconf import OmegaConf

from rlx.learner import Learner

# where the schemas of a group live; a package stands for all its modules
GROUPS = {
    "algo": ("rlx.algos",),
    "env": ("rlx.envs.factory", "rlx.envs.atari", "rlx.envs.minatar", "rlx.envs.dmc"),
    "dataset": ("rlx.data.sources",),
    "replay": ("rlx.data.replay",),
    "encoder": ("rlx.nn.encoders",),
    "augment": ("rlx.data.augment",),
    "reward": ("rlx.rewards",),
    "schedule": ("rlx.schedules",),
    "trainer": ("rlx.trainers.trainer",),
    "collector": ("rlx.collectors.local",),
    "callbacks": ("rlx.callbacks",),
    "logger": ("rlx.loggers",),
}

HYDRA = {  # groups of Hydra's own
    "hydra/launcher": ("rlx.sweeps.launchers",),
    "hydra/sweeper": ("rlx.sweeps.grid", "rlx.sweeps.search.sweeper"),
}

DEFAULT_ENV = "Pendulum-v1"
DEFAULT_ALGO = "sac"

PRIORITY_FIELDS = ("alpha", "beta", "beta_end", "beta_batches", "eps")  # that only a prioritized replay reads

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
    encoder: Any = None  # null: auto
    augment: Any = None  # null: none
    trainer: Any = None
    collector: Any = None  # null: local
    callbacks: Any = field(default_factory=dict)
    logger: Any = field(default_factory=dict)
    seed: int = 0  # of everything
    device: str = "cpu"  # where the learner lives
    threads: int | str | None = None  # of torch; null: one, auto: as many as are measured to pay
    native: Any = "auto"  # true, false or auto: nodes in C++, where they have been built
    run_dir: str | None = None  # null: multirun_outputs/runs/<algo>__<EnvId>__seed<seed>__<stamp>
    trust: list[str] = field(default_factory=list)  # modules besides rlx whose `_target_`s may be instantiated
    choices: dict[str, str] = field(default_factory=dict)  # of each group, by name; filled in, see `compose_config`


def _modules(name: str) -> Iterator[ModuleType]:
    module = importlib.import_module(name)
    yield module
    for info in pkgutil.iter_modules(getattr(module, "__path__", ())):
        yield importlib.import_module(f"{name}.{info.name}")


def _snake(name: str) -> str:
    """EarlyStopping -> early_stopping, QValues -> q_values."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def _schemas_in(names: Sequence[str]) -> Iterator[tuple[ModuleType, type]]:
    """The dataclasses with a `_target_` of some modules; a base of others has none."""
    for module in (m for name in names for m in _modules(name)):
        for cls in vars(module).values():
            own = inspect.isclass(cls) and cls.__module__ == module.__name__ and is_dataclass(cls)
            if own and getattr(cls, "_target_", None):
                yield module, cls


def _choice(cls: type) -> str:
    return _snake(cls.__name__.removesuffix("Config"))


@functools.cache
def schemas() -> dict[str, type]:
    """Every schema dataclass by its `group/name`."""
    by_name: dict[str, type] = {}
    for group, names in GROUPS.items():
        for module, cls in _schemas_in(names):
            name = module.__name__.rpartition(".")[2] if group == "algo" else _choice(cls)
            by_name[f"{group}/{name}"] = cls
    return by_name


@functools.cache
def targets() -> dict[str, dict[str, type]]:
    """By group, the schema of each `_target_`."""
    by_target: dict[str, dict[str, type]] = {group: {} for group in GROUPS}
    for name, cls in schemas().items():
        by_target[name.partition("/")[0]].setdefault(cls()._target_, cls)
    return by_target


@functools.cache
def learners() -> dict[str, type[Learner]]:
    """Every algorithm's learner class by the name of its YAML."""
    classes = {}
    for name, cls in schemas().items():
        group, _, algo = name.partition("/")
        if group == "algo":
            module, _, attribute = cls()._target_.rpartition(".")
            classes[algo] = getattr(importlib.import_module(module), attribute)
    return classes


@functools.cache
def node_of(cls: type) -> Any:
    """The schema as a node of a config; its free-form dicts take keys without a `+`."""
    node = OmegaConf.structured(cls)
    for name in [f.name for f in fields(cls) if str(f.type).startswith("dict[str")]:
        OmegaConf.set_struct(node[name], False)
    return node


class SchemaNode(ConfigNode):
    """A schema in Hydra's store, of which the config node is made when it is asked for: a run uses a few of them."""

    def __init__(self, group: str, choice: str, cls: type):
        self.name, self.group, self.package, self.provider = f"{choice}.yaml", group, None, "rlx"
        self._cls = cls

    @property
    def node(self) -> Any:
        return self.__dict__.get("node") or node_of(self._cls)

    @node.setter
    def node(self, value: Any) -> None:  # Hydra sets it in the copy that it takes
        self.__dict__["node"] = value


@functools.cache
def register() -> None:
    """Put the root and every schema into Hydra's ConfigStore."""
    OmegaConf.register_new_resolver("prior_share", lambda target: 0.0 if target == "none" else 0.5, replace=True)
    OmegaConf.register_new_resolver("round", lambda x: max(1, round(x)), replace=True)
    store = ConfigStore.instance()
    store.store(name="root_schema", node=Config)
    for name, cls in schemas().items():
        group, _, choice = name.partition("/")
        kept = store.repo.setdefault("schema", {}).setdefault(group, {})
        kept[f"{choice}.yaml"] = SchemaNode(f"schema/{group}", choice, cls)
    Plugins.instance()  # Hydra's own launchers and sweepers come first: ours replace those of the same name
    for group, names in HYDRA.items():
        for _, cls in _schemas_in(names):
            store.store(group=group, name=_choice(cls), node=cls, provider="rlx")
