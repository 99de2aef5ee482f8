"""Rolling a policy out into episodes that can be written as a dataset."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from rlx.data.minari import Episode
from rlx.envs.runner import to_env_units
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
    to_env = to_env_units(envs.action_space)
    seeds = [int(s) for s in np.random.SeedSequence(seed).generate_state(episodes)]
    finished: dict[int, Episode] = {}
    upcoming = min(envs.num_envs, episodes)
    running = list(range(upcoming)) + [-1] * (envs.num_envs - upcoming)  # which episode each env is in; -1: none
    first = envs.reset({i: seeds[max(k, 0)] for i, k in enumerate(running)})
    obs = np.stack([first[i] for i in range(envs.num_envs)])
    tapes: list[list[tuple]] = [[] for _ in running]
    starts = obs.copy()
    while len(finished) < episodes:
        action = _noisy(act(obs), spec, noise, rng)
        in_env_units = to_env(action)
        step = envs.step(in_env_units)
        obs = step.next_obs.copy()
        again: dict[int, int] = {}
        for i, k in enumerate(running):
            ended = bool(step.terminated[i] or step.truncated[i])
            if k >= 0:
                tapes[i].append((in_env_units[i], step.reward[i], step.terminated[i], step.truncated[i], obs[i].copy()))
            if ended:
                if k >= 0:
                    finished[k] = _episode(starts[i], tapes[i], seeds[k])
                running[i], upcoming = (upcoming, upcoming + 1) if upcoming < episodes else (-1, upcoming)
                again[i] = seeds[max(running[i], 0)]
        for i, first_obs in envs.reset(again).items() if again else ():
            obs[i] = starts[i] = first_obs
            tapes[i] = []
    return [finished[k] for k in range(episodes)]


def _noisy(action: np.ndarray, spec: Spec, noise: float, rng: np.random.Generator) -> np.ndarray:
    if noise == 0.0:
        return action
    if spec.action_kind == "box":
        return np.clip(action + noise * rng.standard_normal(action.shape), -1.0, 1.0).astype(np.float32)
    random = rng.integers(0, spec.action_sizes, (len(action), len(spec.action_sizes))).reshape(action.shape)
    chosen = rng.random(len(action)) < noise
    return np.where(chosen.reshape(-1, *[1] * (action.ndim - 1)), random, action)


def _episode(start: np.ndarray, tape: list[tuple], seed: int) -> Episode:
    action, reward, terminated, truncated, next_obs = (np.array(column) for column in zip(*tape, strict=True))
    return Episode(np.concatenate([start[None], next_obs]), action, reward, terminated, truncated, seed)


def episodes_of_rows(replay: Replay) -> list[Episode]:
    """What a replay holds, as episodes in env units; the running ones are cut. Rewards are as the learner saw them."""
    layout, spec = replay.layout, replay.layout.spec
    stream = np.arange(replay.total - len(replay), replay.total)
    found = []
    for env in range(replay.num_envs):
        lane = stream[stream % replay.num_envs == env]
        parts = replay.take(lane % replay.capacity)
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
