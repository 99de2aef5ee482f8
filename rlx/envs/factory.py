"""From an EnvConfig to environments and to the Spec that shapes everything else."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec, load_env_creator
from omegaconf import MISSING

from rlx.choices import games_meant
from rlx.config import PYTHON, trusted
from rlx.envs.observations import FlattenGoal, boxes_of, with_arrays
from rlx.envs.vector import AsyncEnvs, EnvFault, NativeEnvs, SyncEnvs, VectorEnv, what_it_did
from rlx.envs.wrappers import wrap
from rlx.errors import UserError, nearest, nearest_few, require, shown
from rlx.fields import check_number, check_numbers, number
from rlx.system import usable_cpus
from rlx.types import Box, Goal, Spec

# What vectorization=auto goes by (benchmarks/env_throughput.py):
NATIVE_FROM = 8  # envs from which a native implementation is the faster one
WORKER_COST = 5e-4  # seconds per env step that a process of its own costs, at most

MOST_ENVS = {"sync": 2**16, "native": 2**20, "async": 2**10}  # beyond which a number of envs is a mistake

# Extras whose envs are registered by importing a package. A config names the extra, never the package, so that a saved
# one cannot have any other module imported.
REGISTERED_BY = {"robotics": "gymnasium_robotics"}

# Ids that begin so and end in -v0 have the name of a game or a task in between. They are registered one by one, by
# `register_name` of the module, which then imports what it needs.
NAMED = {"rlx/Atari-": "rlx.envs.atari", "rlx/MinAtar-": "rlx.envs.minatar", "rlx/DMC-": "rlx.envs.dmc"}

FEW = 12  # names that a sentence lists all of


@dataclass
class EnvConfig:
    """An environment: any registered Gymnasium id."""

    _target_: str = "rlx.envs.factory.make_vector_env"
    id: str = MISSING  # a registered id, or module:Id to import the module first
    kwargs: dict[str, Any] = field(default_factory=dict)  # passed to gymnasium.make
    training_kwargs: dict[str, Any] = field(default_factory=dict)  # besides, for the envs that a run learns in alone
    wrappers: dict[str, Any] = field(default_factory=dict)  # around every env, in this order; see rlx.envs.wrappers
    num_envs: int = number(1, least=1)  # environments stepped together
    vectorization: str = "auto"  # sync: in this process, async: a process each, native: the env's own, auto: the faster
    step_timeout: float | None = number(None, above=0)  # seconds for a step or a reset of an async env; null: no limit
    max_episode_steps: int | None = number(None, least=1)  # another time limit than the registered one
    dataset_id: str | None = None  # the Minari dataset that dataset=minari means for this env
    suite: str | None = None  # the family that it belongs to, see conf/env/suite; tuned pairs can be for all of one
    extra: str | None = None  # the extra of rlx that brings its dependencies


def from_python(cfg: EnvConfig) -> gym.Env:
    """An env that was given as a Python object, or made by a function that was."""
    make = getattr(cfg, "factory", None)
    if make is None:
        raise UserError(
            f"{cfg.id} was given from Python and cannot be made from its name; give it again from Python: env=..., as "
            "in rlx.evaluate(RUN, env=make_env)."
        )
    if cfg.kwargs or cfg.training_kwargs:
        given = {**cfg.kwargs, **cfg.training_kwargs}
        raise UserError(f"env.kwargs={given} go to gymnasium.make; pass them in the function given as env.")
    env: gym.Env = make()
    return gym.wrappers.TimeLimit(env, cfg.max_episode_steps) if cfg.max_episode_steps else env


def make_env(cfg: EnvConfig, trust: Sequence[str] = (), **kwargs: Any) -> gym.Env:
    """One environment, with observations as arrays; `trust` are the modules that an id may have imported."""
    if cfg.id.startswith(PYTHON):
        return with_arrays(wrap(from_python(cfg), cfg.wrappers, trust))
    if not re.fullmatch(r"([\w.]+:)?[\w./-]+", cfg.id):
        raise UserError(f"env.id={cfg.id!r} is not an environment id; an example is env.id=Pendulum-v1.")
    module, colon, _ = cfg.id.partition(":")
    if colon and not trusted(module, trust):
        raise UserError(
            f"env.id={cfg.id} imports {module}, which is not trusted; add trust=[{module}] to allow code from it."
        )
    try:
        with keys_as_typed(cfg):
            _register(cfg)
            steps = time_limit(cfg)
            limit = {"max_episode_steps": steps} if steps else {}
            env = gym.make(cfg.id, disable_env_checker=True, **limit, **{**cfg.kwargs, **kwargs})
    except UserError:
        raise
    except (gym.error.UnregisteredEnv, gym.error.DeprecatedEnv) as error:
        raise UserError(_unknown(cfg.id, error)) from error
    except (gym.error.DependencyNotInstalled, ImportError) as error:
        top = module.partition(".")[0]
        if cfg.extra:
            hint = f"pip install -e '.[{cfg.extra}]' in a checkout of rlx"
        elif colon and getattr(error.__cause__, "name", None) == top:
            hint = f"start from the folder where {top} is, or install it"
        else:
            hint = "install the package that provides it"
        raise UserError(f"env.id={cfg.id} needs a package that is not installed ({error}): {hint}.") from error
    except TypeError as error:
        raise _unfit(cfg, error) from error
    except (AssertionError, AttributeError) as error:
        if cfg.extra is None:
            raise _broken(cfg, error) from error
        raise UserError(  # a simulator that is newer than the env knows of
            f"{cfg.id} does not work with the packages that are installed ({error!r}); those that it "
            f"was tested with come with pip install -e '.[{cfg.extra}]' in a checkout of rlx."
        ) from error
    except gym.error.Error as error:
        raise UserError(
            f"env.id={cfg.id} cannot be made ({shown(error)}); an id that can is env.id=Pendulum-v1."
        ) from error
    except Exception as error:
        raise _broken(cfg, error) from error
    return with_arrays(wrap(env, cfg.wrappers, trust))


def _register(cfg: EnvConfig) -> None:
    """Have Gymnasium know the env, where that takes more than a look into its registry."""
    if cfg.extra in REGISTERED_BY:
        importlib.import_module(REGISTERED_BY[cfg.extra])
    suite = suite_of(cfg.id)
    if suite is None:
        return
    suite.register_name(name_of(cfg.id))
    if cfg.id not in gym.registry:
        raise UserError(f"env.id={cfg.id} is not a registered environment; did you mean env.id={cfg.id}-v0?")
    for name in cfg.kwargs:
        if name in gym.registry[cfg.id].kwargs:
            raise UserError(f"env.kwargs.{name} follows from {suite.KEY} and cannot be set; give {suite.KEY} alone.")


def time_limit(cfg: EnvConfig) -> int | None:
    """Steps of an episode where they are not as registered: as configured, or as a suite has it for these keywords."""
    suite = suite_of(cfg.id)
    if cfg.max_episode_steps or not hasattr(suite, "max_steps"):
        return cfg.max_episode_steps
    steps: int = suite.max_steps(cfg.kwargs)
    return steps


def suite_of(env_id: str) -> Any:
    """The module of an id with a name in it, see NAMED; None for all others."""
    module = next((module for prefix, module in NAMED.items() if env_id.startswith(prefix)), None)
    return module and importlib.import_module(module)


def name_of(env_id: str) -> str:
    """The game or the task of an id with a name in it."""
    prefix = next(prefix for prefix in NAMED if env_id.startswith(prefix))
    return env_id.removeprefix(prefix).removesuffix("-v0")


def check_name(key: str, name: str, names: Sequence[str]) -> None:
    """Refuse a name that is not among those of a suite."""
    if name not in names:
        guess = nearest(name, names)
        few = nearest_few(name, names)
        others = f"choose one of {', '.join(names)}." if len(names) <= FEW else f"some of them are {', '.join(few)}."
        meant = f"did you mean {key}={guess}?" if guess else others
        raise UserError(f"{key}={shown(name)} is not one of the {len(names)} choices; {meant}")


def check_whole(**numbers: Any) -> None:
    for name, value in numbers.items():
        good = type(value) is int and 1 <= value <= 2**10
        require(good, f"env.kwargs.{name} must be an integer from 1 to 1024 (it is {shown(value)}).")


def check_stack(stack: int, size: int, channels: int = 1) -> None:
    """A stack of as many channels as pixels in a row could be either, see `rlx.nn.encoders.is_channels_last`."""
    count = stack * channels
    require(
        count != size,
        f"env.kwargs.stack={stack} makes {count} channels of {size} x {size} pixels, which cannot be told from rows; "
        "use another env.kwargs.stack or env.kwargs.size.",
    )


def check_sticky(value: Any) -> None:
    good = type(value) in (int, float) and 0 <= value < 1
    require(good, f"env.kwargs.sticky must be at least 0 and below 1 (it is {shown(value)}).")


def check_flags(**flags: Any) -> None:
    for name, value in flags.items():
        require(isinstance(value, bool), f"env.kwargs.{name} must be true or false (it is {shown(value)}).")


def for_training(cfg: EnvConfig) -> EnvConfig:
    """The config of the envs that a run learns in; those that it is evaluated in have `kwargs` alone.

    `training_kwargs` stay, so that an error can name the key that was typed.
    """
    return replace(cfg, kwargs={**cfg.kwargs, **cfg.training_kwargs})


@contextmanager
def keys_as_typed(cfg: EnvConfig) -> Iterator[None]:
    """Have errors about env.kwargs.KEY name env.training_kwargs.KEY, where that is what was typed."""
    try:
        yield
    except UserError as error:
        sentence = _as_typed(str(error), cfg)
        if sentence == str(error):
            raise
        raise UserError(sentence) from error


def _as_typed(sentence: str, cfg: EnvConfig) -> str:
    names = [name for name, value in cfg.training_kwargs.items() if name in cfg.kwargs and cfg.kwargs[name] is value]
    for name in names:
        sentence = re.sub(rf"\benv\.kwargs\.{re.escape(str(name))}\b", f"env.training_kwargs.{name}", sentence)
    return sentence


def _broken(cfg: EnvConfig, error: Exception) -> EnvFault:
    """An env whose own constructor fails."""
    return EnvFault(f"{cfg.id} cannot be made: it {what_it_did(error)}.", traceback.format_exc())


def probe(env: gym.Env, cfg: EnvConfig) -> None:
    """One step, because an env may look at its keywords (if there are any) only then, and so may a wrapper."""
    if not cfg.kwargs and not cfg.wrappers:
        return
    try:
        env.reset(seed=0)
        env.action_space.seed(0)
        env.step(env.action_space.sample())
    except (TypeError, ValueError, AttributeError, LookupError, ArithmeticError) as error:
        raise _unfit(cfg, error) from error
    except Exception:
        return  # a fault of the env itself, which the run will report with its lane


def _unfit(cfg: EnvConfig, error: Exception) -> UserError:
    extra = re.search(r"got an unexpected keyword argument '(\w+)'", str(error))
    if extra and extra.group(1) in cfg.kwargs and cfg.id in gym.registry:
        known = [name for name in _keywords(gym.registry[cfg.id]) if name not in gym.registry[cfg.id].kwargs]
        said = f"env.kwargs.{extra.group(1)} is not a keyword of {cfg.id}; it has {', '.join(known) or 'none'}."
        return UserError(_as_typed(said, cfg))
    parts = {"env.kwargs": ", ".join(map(str, cfg.kwargs)) or "none given", "env.wrappers": ", ".join(cfg.wrappers)}
    told = " or ".join(f"{key} ({shown(names)})" for key, names in parts.items() if names)  # no values: may be secret
    return UserError(f"{told} do not fit {cfg.id}: {shown(error).rstrip('.')}.")


def _keywords(spec: EnvSpec) -> list[str]:
    """What the constructor of an env can be given by name."""
    entry: Any = spec.entry_point
    creator = load_env_creator(entry) if isinstance(entry, str) else entry
    parameters = inspect.signature(creator).parameters.values() if callable(creator) else ()
    return [
        p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and p.name != "render_mode"
    ]


def _unknown(env_id: str, error: Exception) -> str:
    module = env_id.partition(":")[0] if ":" in env_id else ""
    if module and importlib.util.find_spec(module) is None:
        return f"env.id={env_id} names the module {module!r}, which cannot be imported; install it or correct the name."
    guess = nearest(env_id, gym.registry.keys())
    guesses = games_meant(env_id) or ([f"env.id={guess}"] if guess else [])
    meant = f"did you mean {' or '.join(guesses)}?" if guesses else "`python -m rlx list env` shows the presets."
    return f"env.id={env_id} is not a registered environment ({error}); {meant}"


def spec_of(env: gym.Env, env_id: str) -> Spec:
    """Read the Spec off an environment made by `make_env`."""
    obs_space, action_space = env.observation_space, env.action_space
    if not isinstance(obs_space, spaces.Box | spaces.Dict):
        raise UserError(
            f"{env_id} has the observation space {obs_space}, which cannot be flattened to a vector; wrap it so that "
            "it has a Box, Discrete, MultiDiscrete, MultiBinary, Tuple or Dict observation space."
        )
    boxes = boxes_of(obs_space)
    single = boxes if isinstance(boxes, Box) else Box((), "float32")
    common: dict[str, Any] = {
        "env_id": env_id,
        "obs_shape": single.shape,
        "obs_dtype": single.dtype,
        "boxes": tuple(boxes.items()) if isinstance(boxes, dict) else (),
        "episode_limit": getattr(env.spec, "max_episode_steps", None),
        "goal": _goal_of(env),
    }
    if isinstance(action_space, spaces.Box):
        low, high = action_space.low.ravel(), action_space.high.ravel()
        return Spec(
            action_kind="box",
            action_shape=(low.size,),
            action_low=tuple(low.tolist()),
            action_high=tuple(high.tolist()),
            **common,
        )
    if isinstance(action_space, spaces.Discrete):
        return Spec(action_kind="discrete", action_shape=(), action_sizes=(int(action_space.n),), **common)
    if isinstance(action_space, spaces.MultiDiscrete) and action_space.nvec.ndim == 1:
        sizes = tuple(int(n) for n in action_space.nvec)
        return Spec(action_kind="multi_discrete", action_shape=(len(sizes),), action_sizes=sizes, **common)
    raise UserError(
        f"{env_id} has the action space {action_space}, which no algorithm of rlx can use; "
        "wrap it so that it has a Box, Discrete or MultiDiscrete action space."
    )


def _goal_of(env: gym.Env) -> Goal | None:
    if not isinstance(env, FlattenGoal):
        return None
    parts: Any = env.env.observation_space
    start = int(np.prod(parts["observation"].shape))
    dim = int(np.prod(parts["desired_goal"].shape))
    return Goal(dim=dim, achieved=(start, start + dim), desired=(start + dim, start + 2 * dim))


def make_vector_env(cfg: EnvConfig, num_envs: int | None = None, trust: Sequence[str] = ()) -> VectorEnv:
    """`num_envs` environments (default: as configured) behind one interface; `trust` as in `make_env`."""
    check_numbers(cfg, "env")
    n = cfg.num_envs if num_envs is None else num_envs
    check_number(cfg, "num_envs", n, "env")
    kind, limit = cfg.vectorization, cfg.step_timeout
    most = MOST_ENVS.get(kind, max(MOST_ENVS.values()))
    if n > most:
        raise UserError(f"env.num_envs must be at most {most:,} with env.vectorization={kind} (env.num_envs={n}).")
    if limit is not None:
        require(
            kind in ("async", "auto"),
            f"env.step_timeout={limit} needs env.vectorization=async: only a process of its own can be ended.",
        )
        kind = "async"
    suite = suite_of(cfg.id)
    if kind == "native" and hasattr(suite, "make_native") and not cfg.wrappers:
        with keys_as_typed(cfg):
            _register(cfg)
            made: VectorEnv = suite.make_native(cfg, n)
        return made
    if kind in ("native", "auto"):
        native = _native(cfg, n) if kind == "native" or n >= NATIVE_FROM else None
        if native is not None:
            return native
        if kind == "native":
            what = "env.wrappers" if cfg.wrappers else f"{cfg.id}"
            raise UserError(f"{what} cannot be run by a native vector env; use env.vectorization=sync.")
        few = n <= MOST_ENVS["async"]
        kind = "async" if few and _workers_pay(cfg, n, trust) else "sync"
    if n > MOST_ENVS.get(kind, n):
        raise UserError(f"env.num_envs must be at most {MOST_ENVS[kind]:,} for {cfg.id} (env.num_envs={n}).")
    kinds: dict[str, Callable[..., VectorEnv]] = {"sync": SyncEnvs, "async": partial(AsyncEnvs, timeout=limit)}
    if kind not in kinds:
        raise UserError(f"Unknown env.vectorization {kind!r}. Choices: sync, async, native, auto.")
    allowed = tuple(trust)
    return kinds[kind]([lambda: make_env(cfg, allowed)] * n, cfg.id)


def _workers_pay(cfg: EnvConfig, n: int, trust: Sequence[str]) -> bool:
    """Is a step of this env so slow that processes of their own save more time than they cost?"""
    at_once = min(n, usable_cpus())
    return at_once > 1 and _step_seconds(cfg, trust) * (1 - 1 / at_once) > WORKER_COST


def _step_seconds(cfg: EnvConfig, trust: Sequence[str], steps: int = 5) -> float:
    """The fastest of some steps."""
    envs = SyncEnvs([lambda: make_env(cfg, trust)], cfg.id)
    envs.reset({0: 0})
    envs.action_space.seed(0)
    seconds = []
    for _ in range(steps):
        start = time.perf_counter()
        step = envs.step([envs.action_space.sample()])
        seconds.append(time.perf_counter() - start)
        if step.terminated[0] or step.truncated[0]:
            envs.reset({0: 0})
    envs.envs[0].close()
    return min(seconds)


def _native(cfg: EnvConfig, n: int) -> VectorEnv | None:
    """The env's own vector implementation, where it has one that can be reset env by env."""
    spec = gym.registry.get(cfg.id)
    if cfg.wrappers or spec is None or spec.vector_entry_point is None or "jax" in str(spec.vector_entry_point).lower():
        return None
    kwargs = dict(cfg.kwargs)
    limit = cfg.max_episode_steps or spec.max_episode_steps
    if limit is not None:
        kwargs["max_episode_steps"] = limit
    env = gym.make_vec(cfg.id, num_envs=n, vectorization_mode="vector_entry_point", **kwargs)
    return NativeEnvs(env, cfg.id) if NativeEnvs.fits(env) else None
