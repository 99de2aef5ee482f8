"""Whose code a config may run: that of rlx, and of the modules that the user trusts with trust=[module]."""

from __future__ import annotations

import importlib
import inspect
import math
import re
from collections.abc import Collection, Sequence
from dataclasses import is_dataclass
from typing import Any

from omegaconf import DictConfig, OmegaConf

from rlx.config.text import leaves
from rlx.errors import UserError, shown

PYTHON = "python:"  # how the id of an env begins that was given as a Python object, see rlx.given

KWARGS = "env.kwargs"  # what to trust for files in them

BEYOND = re.compile(r"[:/\\~]|^\.")  # in an env's keyword: a path, or a module

WRAPPED = 2**26  # what the integers of all wrappers of a saved env may come to, multiplied

GYMNASIUM = "gymnasium.wrappers."

# Wrappers of Gymnasium that a config may have: they read and write nothing, run no code of others, and what they
# remember begins anew with each episode.
WRAPPERS = frozenset(
    {
        "AddRenderObservation", "AddWhiteNoise", "AtariPreprocessing", "ClipAction", "ClipReward", "DelayObservation",
        "DiscretizeAction", "DiscretizeObservation", "DtypeObservation", "FilterObservation", "FlattenObservation",
        "FrameStackObservation", "GrayscaleObservation", "MaxAndSkipObservation", "ObstructView", "OrderEnforcing",
        "PassiveEnvChecker", "RepeatAction", "RescaleAction", "RescaleObservation", "ReshapeObservation",
        "ResizeObservation", "StickyAction", "TimeAwareObservation",
    }
)  # fmt: skip
FORMER_WRAPPERS = {"FrameStack": "FrameStackObservation", "GrayScaleObservation": "GrayscaleObservation"}


def trusted(target: str, trust: Sequence[str]) -> bool:
    """Is it part of rlx, or of a module in `trust`?"""
    modules = [name for name in trust if name != KWARGS and not OmegaConf.has_resolver(name)]
    return any(target == name or target.startswith(f"{name}.") for name in ("rlx", *modules))


def imported(target: str) -> Any:
    module, _, name = target.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(f"_target_={target} cannot be imported ({error}); give module.Class.") from error


def class_of(node: DictConfig, trust: Sequence[str]) -> Any:
    """What a config node would be made into, if that is part of rlx or trusted."""
    target = str(node._target_)
    if not trusted(target, trust):
        raise UserError(
            f"_target_={target} is not part of rlx; add trust=[{target.partition('.')[0]}] to allow code from it."
        )
    return imported(target)


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
    if "trust" in _parameters(factory):
        kwargs["trust"] = tuple(trust)
    if is_dataclass(OmegaConf.get_type(node)):
        return factory(OmegaConf.to_object(node), *args, **kwargs)
    values: Any = OmegaConf.to_container(node, resolve=True)
    own = {str(key): value for key, value in values.items() if key != "_target_"}
    kwargs |= own
    try:
        inspect.signature(factory).bind(*args, **kwargs)
    except TypeError as error:
        keys = f"; its config has the keys {', '.join(own)}" if own else ""
        raise UserError(f"_target_={target} does not take what it is given: {shown(error)}{keys}.") from error
    except ValueError:  # written in C, without a signature
        pass
    return factory(*args, **kwargs)


def _parameters(factory: Any) -> Collection[str]:
    try:
        return inspect.signature(factory).parameters.keys()
    except (TypeError, ValueError):  # it cannot be called, or is written in C
        return ()


def is_users_own(target: str, trust: Sequence[str]) -> bool:
    """Is it part of a module in `trust`, and not of rlx?"""
    return trusted(target, trust) and not trusted(target, ())


def module_names(trust: str | Sequence[str]) -> tuple[str, ...]:
    """trust="mine" as ("mine",)."""
    return (trust,) if isinstance(trust, str) else tuple(trust)


# -- envs ------------------------------------------------------------------------------------------------------------


def env_modules(cfg: DictConfig) -> list[str]:
    """The modules that the envs of a config are in (`env.id=module:Id`), beyond those that are trusted already."""
    modules = []
    for key, value in leaves(OmegaConf.to_container(cfg, resolve=True)):
        if f".{key}".endswith(".env.id") and ":" in str(value) and not str(value).startswith(PYTHON):
            modules.append(str(value).partition(":")[0])
    return sorted({module for module in modules if not trusted(module, cfg.trust)})


def refuse_foreign_env(cfg: DictConfig, trust: tuple[str, ...]) -> None:
    """An env id with a module in it would import that module: a saved config may not ask for this by itself."""
    module, colon, _ = str(cfg.env.id).partition(":")
    if colon and not str(cfg.env.id).startswith(PYTHON) and not trusted(module, trust):
        raise UserError(
            f"The saved config wants to import {module} for its env; add trust=[{module}] to allow code from it."
        )


def plain_wrapper(target: str) -> str:
    """The name of a wrapper of Gymnasium; other targets as they are."""
    name = target.removeprefix(GYMNASIUM)
    return FORMER_WRAPPERS.get(name, name)


def check_env_kwargs(kwargs: Any, place: str, replaced: Sequence[str], trust: Sequence[str]) -> None:
    """An env may read a file or import a module that its keywords name, and so may a wrapper."""
    if KWARGS in trust:
        return
    for key, value in leaves(kwargs, place):
        if isinstance(value, str) and BEYOND.search(value) and key not in replaced:
            raise UserError(
                f"The saved config has {shown(key)}={shown(value)}, which may be a file or a module; add "
                f"trust=[{KWARGS}] to allow it, or give it yourself when resuming ({shown(key)}=VALUE)."
            )


def check_wrapper_sizes(wrappers: Any, place: str, trust: Sequence[str]) -> None:
    """A wrapper stacks, resizes or repeats as often as its numbers say."""
    if KWARGS not in trust and _product(wrappers) > WRAPPED:
        raise UserError(
            f"The saved config has numbers in {place} whose product is more than {WRAPPED:,}, which may take all "
            f"of the memory; add trust=[{KWARGS}] to allow it."
        )


def _product(wrappers: Any) -> int:
    return math.prod(abs(value) for _, value in leaves(wrappers) if type(value) is int and value)


def needed_trust(cfg: DictConfig) -> tuple[str, ...]:
    """The modules that whoever uses the run has to trust, as its `_target_`s or its env come from them."""
    env: Any = OmegaConf.to_container(cfg.env, resolve=False)
    named = leaves({key: env.get(key) for key in ("kwargs", "training_kwargs", "wrappers")})
    files = any(isinstance(value, str) and BEYOND.search(value) for _, value in named)
    kwargs = [KWARGS] if files or _product(env.get("wrappers")) > WRAPPED else []
    beyond = [value for _, value in leaves(OmegaConf.to_container(cfg, resolve=False)) if isinstance(value, str)]
    resolvers = {"oc.env"} if any("${oc.env:" in value for value in beyond) else set()
    return tuple(dict.fromkeys((*cfg.trust, *env_modules(cfg), *kwargs, *resolvers)))
