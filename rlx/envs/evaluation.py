"""Whole episodes with a fixed policy, and evaluation: what they come to in the env's own reward."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from rlx.envs.runner import to_env_units
from rlx.envs.scores import normalized_score
from rlx.envs.vector import NonFiniteAction, Step, VectorEnv, is_finite

MOST_EPISODES = 10**6  # beyond which a number of episodes is a mistake


class Episodes(NamedTuple):
    """What each evaluation episode came to."""

    returns: np.ndarray  # [E] undiscounted, untransformed
    lengths: np.ndarray  # [E]
    successes: np.ndarray | None  # [E] 0 or 1, where the env reports `is_success`

    def metrics(self, env_id: str) -> dict[str, float]:
        """As they are logged; with a normalised score where a reference is known."""
        found = {
            "eval/return_mean": float(self.returns.mean()),
            "eval/return_std": float(self.returns.std()),
            "eval/length_mean": float(self.lengths.mean()),
        }
        if self.successes is not None:
            found["eval/success_rate"] = float(self.successes.mean())
        score = normalized_score(env_id, found["eval/return_mean"])
        if score is not None:
            found["eval/normalized_score"] = score
        return found


class Walked(NamedTuple):
    """One step of N envs on their way through a list of episodes."""

    obs: np.ndarray  # [N, ...] before the step; never written to again
    action: Any  # [N] in env units
    step: Step  # its arrays are reused by the next step
    running: list[tuple[int, int]]  # (env, episode) of those that count


def run_episodes(
    act: Callable[[np.ndarray], np.ndarray],
    envs: VectorEnv,
    episodes: int,
    seed: int,
    begin: Callable[[Sequence[int]], None] = lambda lanes: None,
) -> Episodes:
    """What each of `episodes` episodes came to; see `walk_episodes`."""
    returns, lengths = np.zeros(episodes), np.zeros(episodes, np.int64)
    success: list[float | None] = [None] * episodes
    for _, _, step, running in walk_episodes(act, envs, episode_seeds(seed, episodes), begin):
        for i, k in running:
            returns[k] += step.reward[i]
            lengths[k] += 1
            if "is_success" in step.infos[i]:
                success[k] = float(step.infos[i]["is_success"])
    known = [s for s in success if s is not None]
    return Episodes(returns, lengths, np.array(known) if len(known) == episodes else None)


def episode_seeds(seed: int, episodes: int) -> list[int]:
    """What each episode is reset with."""
    return [int(s) for s in np.random.SeedSequence(seed).generate_state(episodes)]


def walk_episodes(
    act: Callable[[np.ndarray], np.ndarray],
    envs: VectorEnv,
    seeds: Sequence[int],
    begin: Callable[[Sequence[int]], None] = lambda lanes: None,
) -> Iterator[Walked]:
    """Every step of one episode for each seed, as many at a time as there are envs.

    `act` maps raw observations [N, ...] to actions in the learner's units. An env with nothing left to do repeats
    its last episode, uncounted, until the others are through.
    """
    to_env = to_env_units(envs.action_space)
    episode = [i % len(seeds) for i in range(envs.num_envs)]  # which one each env is in
    counted = [i < len(seeds) for i in range(envs.num_envs)]
    upcoming = envs.num_envs
    first = envs.reset({i: seeds[k] for i, k in enumerate(episode)})
    obs = np.stack([first[i] for i in range(envs.num_envs)])
    while any(counted):
        chosen = act(obs)
        if not is_finite(chosen):
            raise NonFiniteAction(chosen)
        action = to_env(chosen)
        step = envs.step(action)
        yield Walked(obs, action, step, [(i, k) for i, k in enumerate(episode) if counted[i]])
        obs = step.next_obs.copy()
        again: dict[int, int] = {}
        for i in np.flatnonzero(step.terminated | step.truncated).tolist():
            counted[i] = counted[i] and upcoming < len(seeds)
            if counted[i]:
                episode[i], upcoming = upcoming, upcoming + 1
            again[i] = seeds[episode[i]]
        if again and any(counted):
            begin(list(again))
            for i, first_obs in envs.reset(again).items():
                obs[i] = first_obs
