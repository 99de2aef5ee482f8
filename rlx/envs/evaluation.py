"""Whole episodes with a fixed policy, and evaluation: what they come to in the env's own reward."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from rlx.agent import Agent, LearnerAgent
from rlx.envs.actions import to_env_units
from rlx.envs.scores import normalized_score
from rlx.envs.vector import NonFiniteAction, Step, VectorEnv, is_finite
from rlx.learner import Learner
from rlx.obs import copy_obs, set_rows, stack_obs
from rlx.rng import seeded
from rlx.types import ObsArray

MOST_EPISODES = 10**6  # beyond which a number of episodes is a mistake


class EvaluatedEpisodes(NamedTuple):
    """What each evaluation episode came to."""

    returns: np.ndarray  # [E] undiscounted, untransformed
    lengths: np.ndarray  # [E]
    successes: np.ndarray | None  # [E] 0 or 1, where the env reports `is_success`

    def metrics(self, env_id: str) -> dict[str, float]:
        """As they are logged; with a normalised score where a reference is known."""
        metrics = {
            "eval/return_mean": float(self.returns.mean()),
            "eval/return_std": float(self.returns.std()),
            "eval/length_mean": float(self.lengths.mean()),
        }
        if self.successes is not None:
            metrics["eval/success_rate"] = float(self.successes.mean())
        score = normalized_score(env_id, metrics["eval/return_mean"])
        if score is not None:
            metrics["eval/normalized_score"] = score
        return metrics


class EvaluationInterrupted(Exception):
    """An evaluation was left before its end."""


class EpisodeStep(NamedTuple):
    """One step of N envs on their way through a list of episodes."""

    obs: ObsArray  # [N, ...] before the step; never written to again
    action: Any  # [N] in env units
    step: Step  # its arrays are reused by the next step
    running: list[tuple[int, int]]  # (env, episode) of those that count


def never() -> bool:
    return False


def evaluate_learner(
    learner: Learner, envs: VectorEnv, episodes: int, seed: int, interrupted: Callable[[], bool] = never
) -> EvaluatedEpisodes:
    """Episodes of the deterministic policy; the global random state is as before afterwards."""
    agent = LearnerAgent(learner, envs.num_envs)
    training = learner.training
    learner.eval()
    try:
        with seeded(seed, next(iter(learner.parameters())).device):
            return run_episodes(agent, envs, episodes, seed, interrupted)
    finally:
        learner.train(training)


def run_episodes(
    agent: Agent, envs: VectorEnv, episodes: int, seed: int, interrupted: Callable[[], bool] = never
) -> EvaluatedEpisodes:
    """What each of `episodes` episodes came to; see `walk_episodes`. EvaluationInterrupted where it is told to end."""
    returns, lengths = np.zeros(episodes), np.zeros(episodes, np.int64)
    success: list[float | None] = [None] * episodes
    for _, _, step, running in walk_episodes(agent, envs, episode_seeds(seed, episodes)):
        if interrupted():
            raise EvaluationInterrupted
        for i, k in running:
            returns[k] += step.reward[i]
            lengths[k] += 1
            if "is_success" in step.infos[i]:
                success[k] = float(step.infos[i]["is_success"])
    known = [s for s in success if s is not None]
    return EvaluatedEpisodes(returns, lengths, np.array(known) if len(known) == episodes else None)


def episode_seeds(seed: int, episodes: int) -> list[int]:
    """What each episode is reset with."""
    return [int(s) for s in np.random.SeedSequence(seed).generate_state(episodes)]


def walk_episodes(agent: Agent, envs: VectorEnv, seeds: Sequence[int]) -> Iterator[EpisodeStep]:
    """Every step of one episode for each seed, as many at a time as there are envs.

    An env with nothing left to do repeats its last episode, uncounted, until the others are through.
    """
    to_env = to_env_units(envs.action_space)
    episode = [i % len(seeds) for i in range(envs.num_envs)]  # which one each env is in
    counted = [i < len(seeds) for i in range(envs.num_envs)]
    upcoming = envs.num_envs
    first = envs.reset({i: seeds[k] for i, k in enumerate(episode)})
    obs = stack_obs([first[i] for i in range(envs.num_envs)])
    agent.begin(range(envs.num_envs))
    while any(counted):
        chosen = agent.act(obs)
        if not is_finite(chosen):
            raise NonFiniteAction(chosen)
        action = to_env(chosen)
        step = envs.step(action)
        agent.feedback(step.reward)
        yield EpisodeStep(obs, action, step, [(i, k) for i, k in enumerate(episode) if counted[i]])
        obs = copy_obs(step.next_obs)
        again: dict[int, int] = {}
        for i in np.flatnonzero(step.terminated | step.truncated).tolist():
            counted[i] = counted[i] and upcoming < len(seeds)
            if counted[i]:
                episode[i], upcoming = upcoming, upcoming + 1
            again[i] = seeds[episode[i]]
        if again and any(counted):
            for i, first_obs in envs.reset(again).items():
                set_rows(obs, i, first_obs)
            agent.begin(list(again))
