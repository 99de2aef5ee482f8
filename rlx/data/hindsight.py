"""Hindsight experience replay (Andrychowicz et al., 2017), arXiv:1707.01495, with the `future` strategy.

A share of the sampled transitions is relabelled: the desired goal, in obs and next_obs, becomes the goal that the same
episode achieved at a step from then on (that of its next_obs), and the reward is computed anew by the env's
`compute_reward` from the transition's own next achieved goal. Of n-step transitions, the rewards of all n steps are
computed anew for the same goal. Only finished episodes are sampled, and only those of which no row has been overwritten
yet. `terminated` stays as the env gave it.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from rlx.data.n_step import Ahead, sum_rewards
from rlx.data.store import Gathered, Store, whole
from rlx.envs.vector import EnvFault, is_finite, what_it_did
from rlx.errors import UserError
from rlx.reporting import counted
from rlx.rewards import RewardTransform
from rlx.types import Goal

BYTES = 16  # per row: where its episode begins and ends


def vectorised_reward(env: gym.Env[Any, Any], goal_dim: int) -> Callable[..., Any]:
    """The env's `compute_reward`, once it has shown that it can judge many goals at once."""
    compute: Callable[..., Any] | None = getattr(env.unwrapped, "compute_reward", None)
    goals = np.zeros((2, goal_dim), np.float32)
    try:
        answer = "there is none" if compute is None else f"two goals give {np.shape(compute(goals, goals, {}))}"
    except Exception as error:  # a user's code, which was perhaps written for one goal
        answer = f"it fails at two goals ({error})"
    if answer != "two goals give (2,)":
        raise UserError(
            f"Hindsight asks the env's compute_reward(achieved, desired, info) for the rewards of many goals at once, "
            f"[n, {goal_dim}] -> [n], but {answer}; have it work along the last axis, or use replay=uniform."
        )
    assert compute is not None
    return compute


class EpisodeIndex:
    """Which rows of a store belong to finished episodes that are still whole. Positions are step * lanes + lane."""

    def __init__(self, store: Store):
        self.store = store
        self._starts = list(range(store.lanes))  # position of the first row of each lane's running episode
        self._begin = np.full(store.capacity, -1)  # by place: position of the first row of its episode ...
        self._end = np.full(store.capacity, -1)  # ... and of the last; -1 while the episode goes on
        self._latest = np.full(store.lanes, -1)  # of the finished episodes of each lane, where the last one begins

    @property
    def any(self) -> bool:
        """Has an episode ended that is still whole?"""
        return bool((self._latest >= self._oldest()).any())

    def _oldest(self) -> np.ndarray:
        """[lanes] positions of the oldest rows."""
        store = self.store
        steps = np.maximum(0, store.counts() - store.slots)
        return np.asarray(steps * store.lanes + np.arange(store.lanes))

    def usable(self, place: np.ndarray) -> np.ndarray:
        """Which of these rows can be drawn?"""
        store = self.store
        oldest = store.oldest if store.side_by_side else self._oldest()[place % store.lanes]
        return np.asarray((self._end[place] >= 0) & (self._begin[place] >= oldest))

    def steps_left(self, place: np.ndarray) -> np.ndarray:
        """Steps of the same episode after these rows."""
        return np.asarray((self._end[place] - self.store.position(place)) // self.store.lanes)

    def broken_by(self, position: np.ndarray) -> np.ndarray:
        """Where the episodes are whose first rows are about to be overwritten by rows at these positions."""
        lanes, capacity = self.store.lanes, self.store.capacity
        place = position % capacity
        first = place[(self._end[place] >= 0) & (self._begin[place] == position - capacity)]
        spans = [np.arange(self._begin[p], self._end[p] + 1, lanes) % capacity for p in first]
        return np.concatenate([np.zeros(0, np.int64), *spans])

    def add(self, position: np.ndarray, ends: np.ndarray) -> np.ndarray:
        """Take note of new rows; where the episodes are that they have finished."""
        self._end[position % self.store.capacity] = -1
        finished = [self.close(int(k)) for k in position[ends]]
        return np.concatenate([np.zeros(0, np.int64), *finished])

    def close(self, last: int) -> np.ndarray:
        """The episode ends with the row at position `last`. Where its rows are, if all of them are there."""
        lanes, capacity = self.store.lanes, self.store.capacity
        lane = last % lanes
        begin, oldest = self._starts[lane], last - capacity + lanes  # of the rows of this lane that are still there
        place = np.arange(max(begin, oldest), last + 1, lanes) % capacity
        self._begin[place], self._end[place] = begin, last
        self._latest[lane] = begin
        self._starts[lane] = last + lanes
        return place if begin >= oldest else place[:0]

    def end_running(self, position: np.ndarray) -> np.ndarray:
        """The running episodes end with the rows at these positions. Where the rows are that can now be drawn."""
        running = [int(k) for k in position if self._starts[k % self.store.lanes] <= k]
        return np.concatenate([np.zeros(0, np.int64), *(self.close(k) for k in running)])

    # -- checkpoints: where episodes begin and end is in the rows, except for what was overwritten -----------------

    def state(self) -> dict[str, Any]:
        store = self.store
        has = np.flatnonzero(store.counts() > 0)
        oldest = np.sort(self._oldest()[has])
        begins = [int(self._begin[p % store.capacity]) for p in oldest]
        return {"starts": list(self._starts), "oldest_begins": begins}

    def load_state(self, state: dict[str, Any]) -> None:
        store = self.store
        starts, begins = [whole(n) for n in state["starts"]], state["oldest_begins"]
        oldest = np.sort(self._oldest()[store.counts() > 0])
        limits = store.counts() * store.lanes + np.arange(store.lanes)
        if len(starts) != store.lanes or len(begins) != len(oldest) or (np.array(starts) > limits).any():
            raise ValueError("episodes begin where there are no rows")
        if any(type(n) is not int or not -1 <= n <= limits.max() for n in begins):
            raise ValueError("episodes begin where there are no rows")
        slices = store.layout.slices
        ended = store.rows[:, slices["terminated"].start] + store.rows[:, slices["truncated"].start] > 0
        self._begin[:], self._end[:], self._latest[:] = -1, -1, -1
        self._starts = list(range(store.lanes))
        for first, begin in zip(oldest.tolist(), begins, strict=True):
            self._starts[first % store.lanes] = begin if begin >= 0 else first
        for lane in range(store.lanes):
            place = store.history(lane)
            for k in store.position(place[ended[place]]):
                self.close(int(k))
        self._starts = starts


class Hindsight:
    """Gives transitions of a store goals from the future of their episodes."""

    def __init__(self, store: Store, goal: Goal, fraction: float):
        self.episodes = EpisodeIndex(store)
        self.store = store
        self.goal = goal
        self.fraction = fraction
        self._compute_reward: Callable[..., Any] | None = None
        self._transform: RewardTransform | None = None

    def attach_env(self, env: gym.Env[Any, Any], reward: RewardTransform) -> None:
        """Rewards are computed by this env and go through this transform."""
        bonus = reward.cfg.success_bonus
        if bonus:
            raise UserError(
                f"reward.success_bonus={bonus} reads the env's info, which a relabelled goal does not have; use "
                "reward.success_bonus=0, as the env's compute_reward rewards success already."
            )
        self._compute_reward = vectorised_reward(env, self.goal.dim)
        self._transform = reward

    def draw(self, rng: np.random.Generator, count: int) -> np.ndarray:
        """Uniform over the rows of whole, finished episodes, by rejection."""
        store = self.store
        place = store.place(rng.integers(0, len(store), count))
        while (bad := np.flatnonzero(~self.episodes.usable(place))).size:
            place[bad] = store.place(rng.integers(0, len(store), bad.size))
        return place

    def relabel(self, gathered: Gathered, place: np.ndarray, ahead: Ahead | None, rng: np.random.Generator) -> None:
        """Give some of the transitions from these rows, in place, goals from the future of their episodes.

        `ahead`: the steps that each of them sums the rewards of, if there are several.
        """
        chosen = np.flatnonzero(rng.random(len(place)) < self.fraction)
        if not chosen.size:
            return
        if self._transform is None:
            raise RuntimeError("A hindsight replay needs an env before it is sampled: call attach_env.")
        store, layout = self.store, self.store.layout
        achieved, desired = slice(*self.goal.achieved), slice(*self.goal.desired)
        left = self.episodes.steps_left(place[chosen])
        later = (rng.random(len(chosen)) * (left + 1)).astype(np.int64)
        future = (place[chosen] + later * store.lanes) % store.capacity
        goals = store.next_obs(future, achieved)
        batch = layout.batch(*gathered)
        for obs in (batch.obs, batch.next_obs):
            obs.numpy()[chosen, desired] = goals
        if ahead is None:
            raw = self._rewards(batch.next_obs.numpy()[chosen, achieved], goals)
            batch.reward.numpy()[chosen] = self._transform(raw, batch.terminated.numpy()[chosen])
            return
        places = ahead.places[chosen]
        reached, wanted = store.next_obs(places.ravel(), achieved), np.repeat(goals, places.shape[1], axis=0)
        raw = self._rewards(reached, wanted)
        reward = self._transform(raw, store.numbers(places, "terminated").numpy().ravel())
        total, _ = sum_rewards(torch.from_numpy(reward.reshape(places.shape)), ahead.steps[chosen], store.discount)
        batch.reward.numpy()[chosen] = total.numpy()

    def _rewards(self, achieved: np.ndarray, desired: np.ndarray) -> np.ndarray:
        """What the env gives for goals [n, dim]; a fault of its `compute_reward` ends the run in a sentence."""
        assert self._compute_reward is not None
        what = f"{self.store.layout.spec.env_id}: compute_reward of {counted(len(desired), 'goal')}"
        try:
            reward = np.asarray(self._compute_reward(achieved, desired, {}))
        except (Exception, SystemExit) as error:
            raise EnvFault(f"{what} {what_it_did(error)}", traceback.format_exc()) from error
        if reward.shape != (len(desired),) or reward.dtype.kind not in "fiub":
            raise EnvFault(f"{what} gave {reward.dtype} of shape {reward.shape}, not one reward for each")
        if not is_finite(reward):
            raise EnvFault(f"{what} gave rewards that are not finite")
        return reward
