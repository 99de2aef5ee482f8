"""Runner: steps vector envs in the learner's units and can rebuild them exactly.

Each episode starts from a seed of its own, drawn from (run seed, env, episode number). The actions since then are the
journal: to resume, the env is reset with that seed and the actions are played again; a hash of the last observation
proves that the env is where it was. An env that does not replay exactly starts a new episode and the run says so.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from rlx.collectors.base import FinishedEpisode
from rlx.envs.actions import to_env_units
from rlx.envs.vector import Step, VectorEnv
from rlx.obs import map_obs, parts_of, set_rows, stack_obs, take_rows
from rlx.types import ObsArray


class Journal(NamedTuple):
    """Where the envs are, in terms that can be written down."""

    episodes: list[int]  # episodes started so far, per env
    hashes: list[str]  # sha256 of the current observation, per env
    actions: list[np.ndarray]  # actions since the episode began, per env


def episode_seed(seed: int, env: int, episode: int) -> int:
    return int(np.random.SeedSequence([seed, env, episode]).generate_state(1)[0])


def _hash(obs: ObsArray) -> str:
    return hashlib.sha256(b"".join(part.tobytes() for part in parts_of(obs))).hexdigest()


class Runner:
    """Vector envs that are always in the middle of an episode."""

    def __init__(self, envs: VectorEnv, seed: int):
        self.envs = envs
        self.num_envs = envs.num_envs
        self._seed = seed
        self._to_env = to_env_units(envs.action_space)
        self._episodes = [0] * self.num_envs
        self._tape: list[np.ndarray] = []  # actions of all envs, step by step, from `_first` on
        self._first = 0
        self._starts = [0] * self.num_envs  # where on the tape each env's episode begins
        self._return = np.zeros(self.num_envs)
        self._length = np.zeros(self.num_envs, np.int64)
        self.obs: ObsArray = stack_obs(list(self._begin(range(self.num_envs)).values()))  # what to act on next

    def _begin(self, indices: Iterable[int]) -> dict[int, Any]:
        """New episodes for these envs; their first observations."""
        indices = [int(i) for i in indices]
        for i in indices:
            self._starts[i] = self._first + len(self._tape)
            self._return[i] = 0.0
            self._length[i] = 0
            self._episodes[i] += 1
        return self.envs.reset({i: episode_seed(self._seed, i, self._episodes[i]) for i in indices})

    def step(self, action: np.ndarray) -> tuple[Step, list[FinishedEpisode]]:
        """Act in every env. `self.obs` moves on, past the reset where an episode ended."""
        step = self.envs.step(self._to_env(action))
        self._return += step.reward
        self._length += 1
        self._tape.append(action.copy())
        self.obs = map_obs(np.ndarray.copy, step.next_obs)
        ended = np.flatnonzero(step.terminated | step.truncated).tolist()
        if not ended:
            return step, []
        finished = [FinishedEpisode(float(self._return[i]), int(self._length[i]), step.infos[i]) for i in ended]
        infos = list(step.infos)
        for i, obs in self._begin(ended).items():
            set_rows(self.obs, i, obs)
        past = min(self._starts) - self._first
        if past > 1000:  # nobody's episode reaches back that far
            del self._tape[:past]
            self._first += past
        return step._replace(infos=infos), finished

    def journal(self) -> Journal:
        hashes = [_hash(take_rows(self.obs, i)) for i in range(self.num_envs)]
        tapes = [self._tape[start - self._first :] for start in self._starts]
        actions = [np.array([action[i] for action in tape]) for i, tape in enumerate(tapes)]
        return Journal(list(self._episodes), hashes, actions)

    def restore(self, journal: Journal) -> list[int]:
        """Play the journal; the envs that did not come back to where they were, and now start new episodes.

        The envs are stepped together and their journals differ in length, so each begins its replay when exactly
        its own number of steps is left, and takes idle steps before that.
        """
        lengths = np.array([len(actions) for actions in journal.actions])
        self._episodes = [n - 1 for n in journal.episodes]
        self.obs = stack_obs(list(self._begin(range(self.num_envs)).values()))
        for left in range(int(lengths.max()), 0, -1):
            self._rewind(np.flatnonzero(lengths == left))
            played = [actions[max(len(actions) - left, 0)] if len(actions) else None for actions in journal.actions]
            idle = next(a for a in played if a is not None)
            step = self.envs.step(self._to_env(np.stack([idle if a is None else a for a in played])))
            self._return += step.reward
            self._length += 1
            self.obs = map_obs(np.ndarray.copy, step.next_obs)
            waiting = (lengths < left) & (step.terminated | step.truncated)
            self._rewind(np.flatnonzero(waiting))
        self._rewind(np.flatnonzero(lengths == 0))
        lost = [i for i in range(self.num_envs) if _hash(take_rows(self.obs, i)) != journal.hashes[i]]
        self._retape(journal.actions)
        for i, obs in self._begin(lost).items() if lost else ():
            set_rows(self.obs, i, obs)
        return lost

    def _retape(self, actions: list[np.ndarray]) -> None:
        """The tape as it would be had these actions just been taken, episodes of different length flush at the end."""
        longest = max(len(a) for a in actions)
        filler = next((a[0] for a in actions if len(a)), None)
        rows = [[a[len(a) - left] if left <= len(a) else filler for a in actions] for left in range(longest, 0, -1)]
        self._tape, self._first = [np.array(row) for row in rows], 0
        self._starts = [longest - len(a) for a in actions]

    def _rewind(self, indices: np.ndarray) -> None:
        """Back to the beginning of the same episode."""
        for i in indices:
            self._episodes[i] -= 1
        for i, obs in self._begin(indices).items() if len(indices) else ():
            set_rows(self.obs, i, obs)
