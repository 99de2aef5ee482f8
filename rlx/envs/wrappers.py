"""Env wrappers by config: `env.wrappers` is a dict, and what is in it is wrapped around every env in that order.

    env.wrappers.time=TimeAwareObservation
    env.wrappers.stack={_target_: FrameStackObservation, stack_size: 4}
    env.wrappers.mine={_target_: my_module.MyWrapper, strength: 2} trust=[my_module]

Those of Gymnasium go by their class names. What a wrapper remembers has to begin anew with each episode, as it does in
all of `WRAPPERS`: then a resume, which replays the episode under way, brings it back.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import gymnasium as gym

from rlx.config import GYMNASIUM, WRAPPERS, imported, is_users_own, plain_wrapper
from rlx.errors import UserError, nearest, require, shown

# Wrappers of Gymnasium that a config cannot have, and what to do instead
REFUSED = {
    "Autoreset": "rlx resets envs itself; leave it out",
    "HumanRendering": "it opens a window; use `python -m rlx watch RUN`",
    "NormalizeObservation": "its statistics are no part of a policy; use algo.normalize_obs=true",
    "NormalizeReward": "its statistics are no part of a run; use reward=running_norm",
    "RecordEpisodeStatistics": "returns and lengths are in every run's metrics; leave it out",
    "RecordVideo": "it writes files wherever it is told to; use callbacks=[default,video]",
    "RenderCollection": "it keeps every frame in memory; use callbacks=[default,video]",
    "TimeLimit": "use env.max_episode_steps",
    "TransformAction": "it takes a function; write a wrapper of your own",
    "TransformObservation": "it takes a function; write a wrapper of your own",
    "TransformReward": "it takes a function; use reward=..., or write a wrapper of your own",
}


EXAMPLES = {  # values of arguments that wrappers need, for a sentence
    "stack_size": "4", "shape": "[84, 84]", "bins": "5", "delay": "2", "num_repeats": "4", "dtype": "float32",
    "filter_keys": "[position]", "repeat_action_probability": "0.25", "probability_of_noise_per_pixel": "0.1",
    "obstructed_pixels_ratio": "0.1", "obstruction_width": "2", "min_action": "-1", "max_action": "1", "min_obs": "-1",
    "max_obs": "1",
}  # fmt: skip


class Wrapping(NamedTuple):
    """A wrapper with its arguments."""

    place: str  # env.wrappers.NAME
    target: Any  # called with an env
    arguments: dict[str, Any]

    def around(self, env: gym.Env) -> gym.Env:
        self._check_arguments()
        try:
            wrapped = self.target(env, **self.arguments)
        except (gym.error.DependencyNotInstalled, ImportError) as error:
            raise UserError(f"{self.place} needs a package that is not installed ({shown(error)}).") from error
        except Exception as error:  # whatever it says about its arguments or about the env
            name = getattr(self.target, "__name__", self.target)
            text = shown(str(error) or type(error).__name__)
            raise UserError(f"{self.place} ({name}) does not fit the env or its arguments: {text}") from error
        if not isinstance(wrapped, gym.Env):
            raise UserError(f"{self.place} made a {type(wrapped).__name__}; a wrapper has to make a gymnasium.Env.")
        return wrapped

    def _check_arguments(self) -> None:
        """Refuse arguments that are missing or too many, where the wrapper tells which it takes."""
        try:
            parameters = list(inspect.signature(self.target).parameters.values())[1:]  # but for the env
        except (TypeError, ValueError):
            return
        named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        names = [p.name for p in named]
        name = getattr(self.target, "__name__", str(self.target))
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            for given in self.arguments:
                known = f"it has {', '.join(names)}" if names else "it has none"
                require(given in names, f"{self.place}.{shown(given)} is not an argument of {name}; {known}.")
        missing = [p.name for p in named if p.default is p.empty and p.name not in self.arguments]
        example = ", ".join(f"{key}: {EXAMPLES.get(key, '...')}" for key in missing)
        require(
            not missing,
            f"{self.place}: {name} needs {' and '.join(missing)}; for example "
            f'"{self.place}={{_target_: {self._typed()}, {example}}}".',
        )

    def _typed(self) -> str:
        module, name = getattr(self.target, "__module__", ""), getattr(self.target, "__name__", str(self.target))
        return name if module.startswith(GYMNASIUM.rstrip(".")) else f"{module}.{name}"


def make_wrappers(wrappers: Mapping[str, Any], trust: Sequence[str] = ()) -> list[Wrapping]:
    """What `env.wrappers` asks for, in its order; entries that are null are left out."""
    return [
        _wrapping(f"env.wrappers.{shown(name)}", node, trust) for name, node in wrappers.items() if node is not None
    ]


def wrap(env: gym.Env, wrappers: Mapping[str, Any], trust: Sequence[str] = ()) -> gym.Env:
    for wrapping in make_wrappers(wrappers, trust):
        env = wrapping.around(env)
    return env


def _wrapping(place: str, node: Any, trust: Sequence[str]) -> Wrapping:
    given = {"_target_": node} if isinstance(node, str) else node
    if not isinstance(given, Mapping) or not isinstance(given.get("_target_"), str):
        raise UserError(
            f"{place} does not name a wrapper; for example {place}=TimeAwareObservation, or "
            f"{place}={{_target_: FrameStackObservation, stack_size: 4}}."
        )
    arguments = {str(key): _frozen(value) for key, value in given.items() if key != "_target_"}
    return Wrapping(place, _class(place, given["_target_"], trust), arguments)


def _class(place: str, target: str, trust: Sequence[str]) -> Any:
    name = plain_wrapper(target)
    if name in WRAPPERS:
        if not hasattr(gym.wrappers, name):
            raise UserError(f"{place}: Gymnasium {gym.__version__} has no {name}; a newer version may.")
        return getattr(gym.wrappers, name)
    if name in REFUSED:
        raise UserError(f"{place} cannot be {name}: {REFUSED[name]}.")
    if is_users_own(target, trust):
        return imported(target)
    module, dot, _ = target.rpartition(".")
    if dot and not target.startswith(("rlx.", GYMNASIUM)):
        package = module.partition(".")[0]
        raise UserError(f"{place} is {shown(target)}; add trust=[{package}] to allow code from {package}.")
    guess = nearest(name, WRAPPERS)
    meant = f" Did you mean {guess}?" if guess else ""
    raise UserError(f"Unknown wrapper {shown(target)!r} in {place}.{meant} Choices: {', '.join(sorted(WRAPPERS))}.")


def _frozen(value: Any) -> Any:
    """Lists as tuples, which Gymnasium has for shapes."""
    return tuple(_frozen(child) for child in value) if isinstance(value, list) else value
