"""Transitions of random actions, collected from the env when a run starts."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlx.config import PYTHON
from rlx.data.columns import Array
from rlx.data.dataset import TransitionDataset
from rlx.data.sources.base import DatasetConfig, finish
from rlx.envs.factory import EnvConfig, make_env
from rlx.envs.observations import boxes_of
from rlx.envs.vector import env_faults_explained
from rlx.errors import UserError
from rlx.obs import map_obs, parts_of
from rlx.system import enough_memory
from rlx.types import Box, Spec

ROW_COST = 500  # bytes of a transition's Python objects besides its observations, roughly


@dataclass
class RandomConfig(DatasetConfig):
    """Transitions of uniformly random actions, collected from the env at the start."""

    _target_: str = "rlx.data.sources.load_random"
    size: int = 10_000  # transitions
    env: Any = "${env}"  # the run's own, with its kwargs and its time limit


def load_random(cfg: RandomConfig, spec: Spec, seed: int = 0, trust: Sequence[str] = ()) -> TransitionDataset:
    env = cfg.env if isinstance(cfg.env, EnvConfig) else spec.env_id  # outside of a run there is the id alone
    if spec.env_id.startswith(PYTHON):
        raise UserError(
            "dataset=random makes envs by their id and this one was given from Python; register it and use "
            "env.id=module:Id, or give the data themselves, as dataset={...}."
        )
    return finish(roll_out_random(env, cfg.size, seed, trust), cfg, spec)


def _as_seen(part: Array, box: Box) -> Array:
    return part.astype(box.dtype, copy=False) if part.dtype == np.uint8 else part


def roll_out_random(env_or_id: EnvConfig | str, size: int, seed: int, trust: Sequence[str] = ()) -> TransitionDataset:
    """`size` transitions of uniformly random actions; the same for the same seed."""
    cfg = EnvConfig(id=env_or_id) if isinstance(env_or_id, str) else env_or_id
    if size < 1:
        raise UserError(f"dataset.size must be at least 1 (dataset.size={size}).")
    columns: dict[str, list[Any]] = {
        name: [] for name in ("obs", "action", "reward", "next_obs", "terminated", "truncated")
    }
    with closing(make_env(cfg, trust)) as env, env_faults_explained(cfg.id):
        env.action_space.seed(seed)
        obs, _ = env.reset(seed=seed)
        nbytes = sum(np.asarray(part).nbytes for part in parts_of(obs))
        needed = size * (4 * nbytes + ROW_COST)  # as they come, and as arrays
        with enough_memory(needed, f"A dataset of {size:,} transitions", lambda k: f"try dataset.size={int(size * k)}"):
            for _ in range(size):
                action = env.action_space.sample()
                next_obs, reward, terminated, truncated, _ = env.step(action)
                row = (obs, action, reward, next_obs, terminated, truncated)
                for column, value in zip(columns.values(), row, strict=True):
                    column.append(value)
                obs = env.reset()[0] if terminated or truncated else next_obs
            arrays = {name: map_obs(lambda *rows: np.asarray(rows), *values) for name, values in columns.items()}
            for name in ("obs", "next_obs"):  # bytes that are no image are numbers of a vector
                arrays[name] = map_obs(_as_seen, arrays[name], boxes_of(env.observation_space))
    dataset = TransitionDataset.from_dict(arrays, source=f"random actions in {cfg.id}", env_id=cfg.id)
    dataset.recorded = True
    return dataset
