"""Hindsight experience replay (Andrychowicz et al., 2017), arXiv:1707.01495, with the `future` strategy.

A share of the sampled transitions is relabelled: the desired goal, in obs and next_obs, becomes the goal that the same
episode achieved at a step from then on (that of its next_obs), and the reward is computed anew by the env's
`compute_reward` from the transition's own next achieved goal. Only finished episodes are sampled, and only those of
which no row has been overwritten yet. `terminated` stays as the env gave it. Works with every learner that reads a
replay.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from rlx.data.replay import Gathered, Replay, UniformConfig, whole
from rlx.errors import UserError, require
from rlx.rewards import RewardTransform
from rlx.types import Spec

log = logging.getLogger(__name__)


@dataclass
class HindsightConfig(UniformConfig):
    """Replay that relabels goals in hindsight."""

    _target_: str = "rlx.data.hindsight.HindsightReplay"
    relabel_fraction: float = 0.8  # share of the samples that gets a goal the episode achieved later


def vectorised_reward(env: gym.Env, goal_dim: int) -> Callable[..., Any]:
    """The env's `compute_reward`, once it has shown that it can judge many goals at once."""
    compute: Any = getattr(env.unwrapped, "compute_reward", None)
    goals = np.zeros((2, goal_dim), np.float32)
    try:
        found = "there is none" if compute is None else f"two goals give {np.shape(compute(goals, goals, {}))}"
    except Exception as error:  # a user's code, which was perhaps written for one goal
        found = f"it fails at two goals ({error})"
    if found != "two goals give (2,)":
        raise UserError(
            f"Hindsight asks the env's compute_reward(achieved, desired, info) for the rewards of many goals at once, "
            f"[n, {goal_dim}] -> [n], but {found}; have it work along the last axis, or use replay=uniform."
        )
    return compute


class HindsightReplay(Replay):
    """Rows of episodes that have ended, with goals from their own future."""

    def __init__(self, cfg: HindsightConfig, spec: Spec, num_envs: int, discount: float, seed: int, **layout: bool):
        if spec.goal is None:
            raise UserError(
                f"Hindsight needs a goal env and {spec.env_id} is none; try env=point_goal, or replay=uniform."
            )
        fraction = cfg.relabel_fraction
        require(0.0 <= fraction <= 1.0, f"replay.relabel_fraction={fraction} is a share; give 0 to 1, as 0.8.")
        require(cfg.n_step == 1, f"replay.n_step={cfg.n_step} does not go with hindsight; use replay.n_step=1.")
        super().__init__(cfg, spec, num_envs, discount, seed, **layout)
        self.fraction = fraction
        self.goal = spec.goal
        self._starts = list(range(num_envs))  # stream position of the first row of each env's running episode
        self._begin = np.full(self.capacity, -1)  # by row: stream position of the first row of its episode ...
        self._end = np.full(self.capacity, -1)  # ... and of the last; -1 while the episode goes on
        self._latest = -1  # of all episodes that have ended, where the one begins that began last
        self._compute_reward: Callable[..., Any] | None = None
        self._transform: RewardTransform | None = None
        room, limit = self.capacity // num_envs, spec.episode_limit
        if limit is not None and room < limit:
            log.warning(
                "Episodes of %s last up to %d steps and the replay keeps %d of each env: longer ones are never learned "
                "from, as hindsight needs them whole; give replay.capacity and trainer.max_env_steps at least %d.",
                spec.env_id, limit, room, limit * num_envs,
            )  # fmt: skip

    @property
    def nbytes(self) -> int:
        return super().nbytes + self.capacity * 16  # where episodes begin and end

    def connect(self, env: gym.Env, reward: RewardTransform) -> None:
        bonus = reward.cfg.success_bonus
        if bonus:
            raise UserError(
                f"reward.success_bonus={bonus} reads the env's info, which a relabelled goal does not have; use "
                "reward.success_bonus=0, as the env's compute_reward rewards success already."
            )
        self._compute_reward = vectorised_reward(env, self.goal.dim)
        self._transform = reward

    @property
    def ready(self) -> bool:
        """Has an episode ended that is still whole?"""
        return self._latest >= max(0, self.total - len(self))

    def add(self, obs: np.ndarray, action: np.ndarray, reward: np.ndarray, next_obs: np.ndarray,
            terminated: np.ndarray, truncated: np.ndarray, mc_return: np.ndarray | None = None) -> None:  # fmt: skip
        first = self.total
        super().add(obs, action, reward, next_obs, terminated, truncated, mc_return)
        at = np.arange(first, self.total)
        self._end[at % self.capacity] = -1
        for k in at[np.logical_or(terminated, truncated)]:
            self._close(int(k))

    def _close(self, last: int) -> None:
        """The episode whose last row is `last` has ended."""
        env = last % self.num_envs
        oldest = last - self.capacity + self.num_envs  # of the rows of this env that are still there
        rows = np.arange(max(self._starts[env], oldest), last + 1, self.num_envs)
        self._begin[rows % self.capacity] = self._starts[env]
        self._end[rows % self.capacity] = last
        self._latest = max(self._latest, self._starts[env])  # it is overwritten last
        self._starts[env] = last + self.num_envs

    def cut_off(self, envs: Sequence[int]) -> None:
        super().cut_off(envs)
        for env in envs if self.total else ():
            newest = self.total - self.num_envs + env
            if self._starts[env] <= newest:
                self._close(newest)

    def indices(self, batch_size: int, n_batches: int) -> np.ndarray:
        """Uniform over the rows of whole, finished episodes, by rejection."""
        oldest = self.total - len(self)
        index = self._rng.integers(0, len(self), batch_size * n_batches)
        while True:
            bad = np.flatnonzero((self._end[index] < 0) | (self._begin[index] < oldest))
            if not bad.size:
                return index
            index[bad] = self._rng.integers(0, len(self), bad.size)

    def gather(self, batch_size: int, n_batches: int) -> Gathered:
        index = self.indices(batch_size, n_batches)
        taken = self.take(index)
        self._relabel(taken, index)
        return taken

    def _relabel(self, taken: Gathered, index: np.ndarray) -> None:
        """Give some of the gathered rows, in place, goals from the future of their episodes."""
        chosen = np.flatnonzero(self._rng.random(len(index)) < self.fraction)
        if not chosen.size:
            return
        if self._compute_reward is None or self._transform is None:
            raise RuntimeError("A hindsight replay has to be connected to an env before it is sampled.")
        oldest = self.total - len(self)
        stream = oldest + (index[chosen] - oldest) % self.capacity
        steps_left = (self._end[index[chosen]] - stream) // self.num_envs
        ahead = (self._rng.random(len(chosen)) * (steps_left + 1)).astype(np.int64)
        future = (stream + ahead * self.num_envs) % self.capacity
        achieved, desired = slice(*self.goal.achieved), slice(*self.goal.desired)
        goals = self._next_obs(future)[:, achieved]
        rows, slices = taken.rows.numpy(), self.layout.slices
        if taken.outside is None:
            obs, next_obs = rows[:, slices["obs"]], rows[:, slices["next_obs"]]
        else:
            obs, next_obs = (part.numpy() for part in taken.outside)
        obs[chosen, desired] = goals
        next_obs[chosen, desired] = goals
        raw = np.asarray(self._compute_reward(next_obs[chosen, achieved], goals, {}))
        terminated = rows[chosen, slices["terminated"].start]
        rows[chosen, slices["reward"].start] = self._transform(raw, terminated)

    def _next_obs(self, index: np.ndarray) -> np.ndarray:
        if self._outside is not None:
            return np.asarray(self._outside[1][index])
        return self._tensor[torch.from_numpy(index), self.layout.slices["next_obs"]].numpy()

    # -- checkpoints: where episodes begin and end is in the rows, except for what was overwritten -----------------

    def state(self) -> dict:
        oldest = self.total - len(self)
        begins = [int(self._begin[(oldest + i) % self.capacity]) for i in range(min(self.num_envs, len(self)))]
        return {**super().state(), "starts": list(self._starts), "oldest_begins": begins}

    def load_state(self, state: dict) -> None:
        super().load_state(state)
        starts, begins = [whole(n) for n in state["starts"]], state["oldest_begins"]
        if len(starts) != self.num_envs or max(starts) > self.total + self.num_envs or len(begins) > self.num_envs:
            raise ValueError("episodes begin where there are no rows")
        if any(type(n) is not int or not -1 <= n <= self.total for n in begins):
            raise ValueError("episodes begin where there are no rows")
        oldest = self.total - len(self)
        slices = self.layout.slices
        ended = self._rows[:, slices["terminated"].start] + self._rows[:, slices["truncated"].start] > 0
        self._begin[:], self._end[:] = -1, -1
        for lane, begin in enumerate(begins):
            first = oldest + lane
            self._starts[first % self.num_envs] = begin if begin >= 0 else first
        for k in np.arange(oldest, self.total):
            if ended[k % self.capacity]:
                self._close(int(k))
        self._starts = starts
