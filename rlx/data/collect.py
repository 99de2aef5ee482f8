"""Rolling a policy out into episodes that can be written as a dataset."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from rlx.data.minari import Episode
from rlx.envs.evaluation import episode_seeds, walk_episodes
from rlx.envs.runner import box_scale
from rlx.envs.vector import VectorEnv
from rlx.policy import unscaled
from rlx.types import Spec

if TYPE_CHECKING:
    from rlx.data.replay import Replay


def collect_episodes(
    act: Callable[[np.ndarray], np.ndarray], envs: VectorEnv, spec: Spec, episodes: int, noise: float, seed: int
) -> list[Episode]:
    """`episodes` whole episodes, episode k from the seed (seed, k).

    `noise` is the std of Gaussian noise on box actions (in units of [-1, 1]), or the share of random discrete ones.
    """
    rng = np.random.default_rng(seed)
    seeds = episode_seeds(seed, episodes)
    tapes: list[list[tuple]] = [[] for _ in seeds]
    last: list[np.ndarray] = [np.empty(0)] * episodes  # what was seen after the latest step of each
    for obs, action, step, running in walk_episodes(lambda obs: _noisy(act(obs), spec, noise, rng), envs, seeds):
        for i, k in running:
            tapes[k].append((obs[i], action[i], step.reward[i], step.terminated[i], step.truncated[i]))
            last[k] = step.next_obs[i].copy()
    return [_episode(*parts) for parts in zip(tapes, last, seeds, strict=True)]


def _noisy(action: np.ndarray, spec: Spec, noise: float, rng: np.random.Generator) -> np.ndarray:
    if noise == 0.0:
        return action
    if spec.action_kind == "box":
        _, _, limit = box_scale(np.array(spec.action_low), np.array(spec.action_high))
        return np.clip(action + noise * rng.standard_normal(action.shape), -limit, limit).astype(np.float32)
    random = rng.integers(0, spec.action_sizes, (len(action), len(spec.action_sizes))).reshape(action.shape)
    chosen = rng.random(len(action)) < noise
    return np.where(chosen.reshape(-1, *[1] * (action.ndim - 1)), random, action)


def _episode(tape: list[tuple], last: np.ndarray, seed: int) -> Episode:
    obs, action, reward, terminated, truncated = (np.array(column) for column in zip(*tape, strict=True))
    return Episode(np.concatenate([obs, last[None]]), action, reward, terminated, truncated, seed)


def episodes_of_rows(replay: Replay) -> list[Episode]:
    """What a replay holds, as episodes in env units; the running ones are cut. Rewards are as the learner saw them."""
    layout, spec = replay.layout, replay.layout.spec
    found = []
    for lane in (replay.store.history(i) for i in range(replay.lanes)):
        parts = replay.store.take(lane)
        batch, truncated = layout.batch(*parts), layout.column(parts.rows, "truncated").numpy() > 0
        terminated = batch.terminated.numpy() > 0
        stops = np.flatnonzero(terminated | truncated) + 1
        bounds = [0, *stops.tolist(), *([len(lane)] if not len(stops) or stops[-1] < len(lane) else [])]
        action = unscaled(batch.action.numpy(), spec)
        for start, stop in itertools.pairwise(bounds):
            rows = slice(start, stop)
            cut = truncated[rows].copy()
            cut[-1] = not terminated[stop - 1]
            obs = np.concatenate([batch.obs[rows].numpy(), batch.next_obs[stop - 1 : stop].numpy()])
            found.append(Episode(obs, action[rows], batch.reward[rows].numpy(), terminated[rows], cut))
    return found
