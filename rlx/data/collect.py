"""Rolling a policy out into episodes that can be written as a dataset."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from rlx.agent import Agent
from rlx.data.minari import Episode
from rlx.envs.actions import box_scale, random_actions, unscaled
from rlx.envs.evaluation import episode_seeds, walk_episodes
from rlx.envs.vector import VectorEnv
from rlx.obs import copy_obs, map_obs, stack_obs, take_rows
from rlx.types import ObsArray, Spec

if TYPE_CHECKING:
    from rlx.data.replay import Replay


class NoisyAgent:
    """An agent whose actions are disturbed; what it remembers is of the actions that it meant to take."""

    def __init__(self, agent: Agent, spec: Spec, noise: float, rng: np.random.Generator):
        self._agent, self._spec, self._noise, self._rng = agent, spec, noise, rng

    def act(self, obs: ObsArray) -> np.ndarray:
        action = self._agent.act(obs)
        return add_noise(action, self._spec, self._noise, self._rng) if self._noise else action

    def begin(self, lanes: Sequence[int]) -> None:
        self._agent.begin(lanes)

    def feedback(self, reward: np.ndarray) -> None:
        self._agent.feedback(reward)


def add_noise(action: np.ndarray, spec: Spec, noise: float, rng: np.random.Generator) -> np.ndarray:
    if spec.action_kind == "box":
        _, _, limit = box_scale(np.array(spec.action_low), np.array(spec.action_high))
        return np.clip(action + noise * rng.standard_normal(action.shape), -limit, limit).astype(np.float32)
    random = random_actions(spec, len(action), rng)
    chosen = rng.random(len(action)) < noise
    return np.where(chosen.reshape(-1, *[1] * (action.ndim - 1)), random, action)


def collect_episodes(
    agent: Agent, envs: VectorEnv, spec: Spec, episodes: int, noise: float, seed: int
) -> list[Episode]:
    """`episodes` whole episodes, episode k from the seed (seed, k).

    `noise` is the std of Gaussian noise on box actions (in units of [-1, 1]), or the share of random discrete ones.
    """
    rng = np.random.default_rng(seed)
    seeds = episode_seeds(seed, episodes)
    tapes: list[list[tuple[Any, ...]]] = [[] for _ in seeds]
    last: list[ObsArray] = [np.empty(0)] * episodes  # what was seen after the latest step of each
    for obs, action, step, running in walk_episodes(NoisyAgent(agent, spec, noise, rng), envs, seeds):
        for i, k in running:
            tapes[k].append((take_rows(obs, i), action[i], step.reward[i], step.terminated[i], step.truncated[i]))
            last[k] = copy_obs(take_rows(step.next_obs, i))
    return [_episode(*parts) for parts in zip(tapes, last, seeds, strict=True)]


def _episode(tape: list[tuple[Any, ...]], last: ObsArray, seed: int) -> Episode:
    seen, *rest = zip(*tape, strict=True)
    action, reward, terminated, truncated = (np.array(column) for column in rest)
    return Episode(stack_obs([*seen, last]), action, reward, terminated, truncated, seed)


def episodes_of_rows(replay: Replay) -> list[Episode]:
    """What a replay holds, as episodes in env units; the running ones are cut. Rewards are as the learner saw them."""
    layout, spec = replay.layout, replay.layout.spec
    episodes = []
    for lane in (replay.store.history(i) for i in range(replay.lanes)):
        parts = replay.store.take(lane)
        batch, truncated = layout.batch(*parts), layout.column(parts.rows, "truncated").numpy() > 0
        terminated = batch.terminated.numpy() > 0
        stops = np.flatnonzero(terminated | truncated) + 1
        bounds = [0, *stops.tolist(), *([len(lane)] if not len(stops) or stops[-1] < len(lane) else [])]
        action = unscaled(batch.action.numpy(), spec)
        for start, stop in itertools.pairwise(bounds):
            rows = slice(start, stop)
            ends = truncated[rows].copy()
            ends[-1] = not terminated[stop - 1]
            last = take_rows(batch.next_obs, slice(stop - 1, stop))
            obs = map_obs(lambda *parts: torch.cat(parts).numpy(), take_rows(batch.obs, rows), last)
            episodes.append(Episode(obs, action[rows], batch.reward[rows].numpy(), terminated[rows], ends))
    return episodes
