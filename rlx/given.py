"""Python objects in the place of configs: an env or a function that makes envs, and a dataset in memory.

A config names them (`env.id: python:MyEnv`, `dataset: in_memory`) and cannot make them: evaluating and resuming such a
run takes the same objects again, from Python.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import gymnasium as gym
from omegaconf import DictConfig, OmegaConf

from rlx.config import PYTHON
from rlx.data.dataset import TransitionDataset
from rlx.data.sources import InMemoryConfig, as_dataset
from rlx.envs.factory import EnvConfig
from rlx.errors import UserError, require

EnvLike = gym.Env | Callable[[], gym.Env]  # an env, or a function (or class) that makes one
DataLike = TransitionDataset | Mapping[str, Any]  # a dataset, or a dict of arrays


class Borrowed(gym.Wrapper):
    """An env that belongs to the caller: closing it is theirs to do."""

    def close(self) -> None:
        pass


@dataclass
class GivenEnvConfig(EnvConfig):
    """An EnvConfig whose envs come from a function."""

    factory: Callable[[], gym.Env] | None = None


class GivenEnv:
    """Where envs come from that no id stands for."""

    def __init__(self, source: EnvLike):
        self.single = isinstance(source, gym.Env)  # there is this one and no other
        require(
            self.single or callable(source),
            f"env is a {type(source).__name__}; give a choice such as 'pendulum', or a function that makes an env.",
        )
        self.source: Any = source
        env = self.make()
        self.id = f"{PYTHON}{type(env.unwrapped).__name__}"
        env.close()

    def make(self) -> gym.Env:
        if self.single:
            return Borrowed(self.source)
        env = self.source()
        if not isinstance(env, gym.Env):
            raise UserError(f"The function given as env made a {type(env).__name__}; it has to make a gymnasium.Env.")
        return env

    def config(self, cfg: EnvConfig) -> GivenEnvConfig:
        values = {f.name: getattr(cfg, f.name) for f in fields(EnvConfig)}
        return GivenEnvConfig(**{**values, "id": self.id}, factory=self.make)


@dataclass(frozen=True)
class Given:
    """What was given from Python, if anything."""

    env: GivenEnv | None = None
    dataset: TransitionDataset | None = None

    @classmethod
    def of(cls, env: EnvLike | None, dataset: DataLike | None) -> Given:
        return cls(
            GivenEnv(env) if env is not None else None,
            as_dataset(dataset) if dataset is not None else None,
        )

    def overrides(self, others: Sequence[str]) -> list[str]:
        """How a config names what was given; beside them, no other choice can be made."""
        made = []
        for name, given in (("env", self.env), ("dataset", self.dataset)):
            twice = next(
                (o for o in others if given is not None and o.lstrip("+~").startswith((f"{name}=", f"{name}.id="))),
                None,
            )
            require(twice is None, f"{name} is given twice, as {twice} and as a Python object; leave one out.")
        if self.env is not None:
            made.append(f"env.id={self.env.id}")
        if self.dataset is not None:
            made += ["dataset=in_memory", f"dataset.rows={len(self.dataset)}"]
        return made

    def env_config(self, cfg: DictConfig) -> EnvConfig:
        """The EnvConfig of a run, whose envs come from what was given."""
        plain: EnvConfig = OmegaConf.to_object(cfg.env)  # type: ignore[assignment]
        return plain if self.env is None else self.env.config(plain)


NOTHING = Given()


def objects_of(cfg: DictConfig) -> tuple[str, ...]:
    """What the run of a config was given from Python: 'env', 'dataset', both or nothing."""
    needs = {
        "env": str(cfg.env.id).startswith(PYTHON),
        "dataset": cfg.dataset is not None and cfg.dataset.get("_target_") == InMemoryConfig()._target_,
    }
    return tuple(name for name, needed in needs.items() if needed)


def check_given(cfg: DictConfig, given: Given, run_dir: Path) -> None:
    """A run goes on with the objects that it began with."""
    needs = objects_of(cfg)
    again = ", ".join(f"{name}=..." for name in needs)
    for name in ("env", "dataset"):
        there = getattr(given, name) is not None
        if name in needs and not there:
            raise UserError(
                f"The {name} of {run_dir} was given from Python and is not part of the run; resume it from Python and "
                f"give it again: rlx.resume({str(run_dir)!r}, {again})."
            )
        if there and name not in needs:
            raise UserError(
                f"{run_dir} was not begun with {'an env' if name == 'env' else 'a dataset'} given from Python; leave "
                f"{name}=... out to resume it, or start a new run."
            )
    if given.env is not None and given.env.id != cfg.env.id:
        raise UserError(f"{run_dir} was trained in {cfg.env.id} and {given.env.id} was given; give the same env again.")
