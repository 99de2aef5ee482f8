"""Evaluation: whole episodes with a fixed policy, counted in the env's own reward."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from rlx.envs.runner import to_env_units
from rlx.envs.scores import normalized_score
from rlx.envs.vector import VectorEnv


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


def run_episodes(act: Callable[[np.ndarray], np.ndarray], envs: VectorEnv, episodes: int, seed: int) -> Episodes:
    """Run `episodes` episodes, episode k from the seed (seed, k), as many at a time as there are envs.

    `act` maps raw observations [N, ...] to actions in the learner's units. An env with nothing left to do repeats
    its last episode, uncounted, until the others are through.
    """
    to_env = to_env_units(envs.action_space)
    seeds = [int(s) for s in np.random.SeedSequence(seed).generate_state(episodes)]
    returns, lengths = np.zeros(episodes), np.zeros(episodes, np.int64)
    success: list[float | None] = [None] * episodes
    running = [i % episodes for i in range(envs.num_envs)]  # which episode each env is in
    counted = [i < episodes for i in range(envs.num_envs)]
    upcoming = envs.num_envs
    first = envs.reset({i: seeds[k] for i, k in enumerate(running)})
    obs = np.stack([first[i] for i in range(envs.num_envs)])
    while any(counted):
        step = envs.step(to_env(act(obs)))
        obs = step.next_obs.copy()
        again: dict[int, int] = {}
        for i, k in enumerate(running):
            if counted[i]:
                returns[k] += step.reward[i]
                lengths[k] += 1
                if "is_success" in step.infos[i]:
                    success[k] = float(step.infos[i]["is_success"])
            if step.terminated[i] or step.truncated[i]:
                counted[i] = counted[i] and upcoming < episodes
                if counted[i]:
                    running[i], upcoming = upcoming, upcoming + 1
                again[i] = seeds[running[i]]
        if again and any(counted):
            for i, first_obs in envs.reset(again).items():
                obs[i] = first_obs
    known = [s for s in success if s is not None]
    return Episodes(returns, lengths, np.array(known) if len(known) == episodes else None)
