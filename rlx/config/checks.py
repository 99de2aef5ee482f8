"""Does it fit together? What cannot work is refused before any work is done."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rlx.config.errors import explain
from rlx.config.schemas import GROUPS, learners, schemas
from rlx.config.trust import class_of
from rlx.errors import UserError, shown
from rlx.fields import check_numbers
from rlx.learner import Learner, check_algo
from rlx.nn.native.choose import check_native
from rlx.reporting import counted
from rlx.schedules import MIXTURE
from rlx.system import AUTO
from rlx.types import NO_ENV, Spec

MOST_THREADS = 1024
ONLINE = {"off_policy", "on_policy"}


def check(cfg: DictConfig) -> None:
    """Refuse what cannot work before any work is done."""
    try:
        validate(cfg)
        check_regime(cfg)
    except OmegaConfBaseException as error:  # a part of the user's own that lacks a key
        raise UserError(shown(explain(error, ()), 1000)) from error


def validate(cfg: DictConfig) -> None:
    """Numbers that no run can use."""
    for group in ("algo", "replay", "reward", "schedule", "trainer"):
        check_finite(group, OmegaConf.to_container(cfg[group], resolve=True))
    for group, config in config_objects(cfg):
        check_numbers(config, group)
    check_algo(OmegaConf.to_container(cfg.algo, resolve=True))  # type: ignore[arg-type]
    threads = cfg.threads
    if threads not in (None, AUTO) and not (isinstance(threads, int) and 1 <= threads <= MOST_THREADS):
        raise UserError(f"threads must be an integer from 1 to {MOST_THREADS}, or {AUTO} (threads={threads}).")
    check_native(cfg.native)
    check_seed(cfg.seed)
    if cfg.dataset is None and cfg.reward.get("normalize_return"):
        raise UserError("reward.normalize_return is fitted on a dataset and there is none; use reward=running_norm.")


def config_objects(cfg: DictConfig) -> Iterator[tuple[str, Any]]:
    """The dataclasses that the parts of a config are made from, by their places; parts of the user's own have none."""
    for group in GROUPS:
        nodes = {group: cfg[group]}
        if group in ("callbacks", "logger"):
            nodes = {f"{group}.{name}": node for name, node in (cfg[group] or {}).items()}
        for place, node in nodes.items():
            if isinstance(node, DictConfig) and is_dataclass(OmegaConf.get_type(node)):
                config: Any = OmegaConf.to_object(node)
                yield place, config
                for name, phase in getattr(config, "phases", {}).items():
                    yield f"{place}.phases.{name}", phase


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


def check_seed(seed: int) -> None:
    if not 0 <= seed < 2**63:
        raise UserError(f"seed must be at least 0 and below 2**63 (seed={seed}).")


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
    on_policy = any(phase.on_policy for phase in phases)
    if cfg.replay.get("prioritized") and not on_policy:
        mixes = cfg.dataset is not None and not MIXTURE.isdisjoint(cfg.schedule.targets)
        check_prioritized(name, cls, reads_data or mixes)
    if not any(phase.collect > 0 and not phase.on_policy for phase in phases):
        check_no_replay(cfg, on_policy)
    if cfg.replay.get("union"):
        check_union(cfg)
    if cfg.algo.normalize_obs and cfg.dataset is None and "on_policy" not in cls.regimes:
        raise UserError(
            f"algo.normalize_obs=true takes its statistics from a dataset under algo={name} and there is none; use "
            "algo.normalize_obs=false, or, where observations are vectors, add dataset=..."
        )
    if all(phase.updates == 0 for phase in phases):
        raise UserError("trainer.phases has no phase that does anything; choose a regime such as trainer=off_policy.")
    check_phases(cfg)
    lengths = {phase.collect for phase in phases if phase.on_policy}
    if len(lengths) > 1:
        raise UserError(
            f"All on-policy phases must collect the same number of steps, and trainer.phases has {sorted(lengths)}; "
            "set trainer.rollout_length, which is for all of them."
        )
    budgets = ("max_env_steps", "max_updates", "max_epochs", "max_seconds")
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
            f"trainer.max_updates={limit} ends the run before it goes online, after {counted(before, 'update')} on the "
            "dataset; give more, use trainer.max_env_steps as the budget (trainer.max_updates=null), or learn from the "
            "dataset alone with trainer=offline."
        )


def check_no_replay(cfg: DictConfig, on_policy: bool) -> None:
    """Refuse keys of a replay that is not there; a capacity is only a limit, and a dataset has n-step returns too."""
    for field in fields(schemas()["replay/replay"]):
        key = field.name
        value = cfg.replay.get(key, field.default)
        if key in ("_target_", "capacity") or (key == "n_step" and not on_policy) or value == field.default:
            continue
        switch = key in ("prioritized", "hindsight")
        raise UserError(
            f"algo={cfg.algo.name} under trainer={cfg.trainer.regime} keeps no replay, so replay.{key}="
            f"{shown(str(value).lower() if switch or key == 'union' else value)} has no effect; drop it"
            f"{', or use replay=uniform' if switch else ''}."
        )


def check_prioritized(name: str, cls: type[Learner], reads_data: bool) -> None:
    """Refuse what would leave the priorities of a replay without effect."""
    if not cls.prioritized:
        raise UserError(
            f"algo={name} does not weigh its loss, which a prioritized replay needs; use replay=uniform, or choose one "
            f"of {_choices(lambda c: c.prioritized and 'off_policy' in c.regimes)}."
        )
    if reads_data:
        raise UserError(
            "A prioritized replay draws from what the run collects and this run also draws from a dataset; use "
            "replay=uniform, or trainer=off_policy trainer.offline_batch_ratio=0."
        )


def check_union(cfg: DictConfig) -> None:
    """Refuse shares of a dataset beside a replay that holds it."""
    mixes = any(p.collect > 0 and p.offline_fraction > 0 for p in cfg.trainer.phases.values())
    if mixes or not MIXTURE.isdisjoint(cfg.schedule.targets):
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


def check_spec(cfg: DictConfig, spec: Spec) -> None:
    """Refuse an environment that the algorithm cannot handle."""
    name, cls, regime = cfg.algo.name, learner_class(cfg), cfg.trainer.regime
    regimes = ONLINE if regime in ONLINE else {regime}  # another algorithm online brings its own
    images = [box.shape for box in spec.obs.values() if box.is_image]
    vectors = not images and not spec.boxes
    if spec.action_kind not in cls.actions:
        able = _choices(lambda c: spec.action_kind in c.actions and regimes & {*c.regimes} and (vectors or c.images))
        place, other = (spec.env_id, "env") if spec.env_id != NO_ENV else ("the dataset", "dataset")
        raise UserError(
            f"algo={name} needs {' or '.join(cls.actions)} actions and {place} has {spec.action_kind} ones; "
            f"choose another {other}{f', or one of {able}' if able else ''}."
        )
    if not vectors and not cls.images:
        able = _choices(lambda c: c.images and spec.action_kind in c.actions and regimes & {*c.regimes})
        gives = f"images of shape {images[0]}" if images else f"the parts {', '.join(spec.obs)}"
        raise UserError(
            f"algo={name} reads vectors and {spec.env_id} gives {gives}; use an env with vector observations"
            f"{f', or one of {able}' if able else ''}."
        )


def _choices(fits: Any) -> str:
    return ", ".join(f"algo={name}" for name in sorted(learners()) if fits(learners()[name]))
