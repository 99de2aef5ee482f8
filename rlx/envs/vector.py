"""Vector environments that never reset by themselves.

Gymnasium's vector envs can reset on the next step, on the same step or never. We take "never": the caller sees the real
final observation of every episode, and starts the next one from a seed of its own, which is what makes an exact resume
possible. No reset transition can enter a buffer, because there is none.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import gymnasium as gym
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode


class Step(NamedTuple):
    """What one step of N envs gave. The arrays are reused by the next step: copy what you keep."""

    next_obs: np.ndarray  # [N, *obs_shape]; final observations where an episode ended
    reward: np.ndarray  # [N] float64, raw
    terminated: np.ndarray  # [N] bool
    truncated: np.ndarray  # [N] bool
    infos: Sequence[dict[str, Any]]


class VectorEnv(Protocol):
    """N environments, stepped together, reset one by one."""

    num_envs: int
    action_space: gym.Space  # of one env

    def reset(self, seeds: dict[int, int]) -> dict[int, np.ndarray]:
        """Reset env i with seed seeds[i]; the first observations."""

    def step(self, actions: Sequence[Any]) -> Step:
        """One action for each env, in env units."""

    def close(self) -> None: ...


class SyncEnvs:
    """All environments in this process: the fastest choice for cheap envs."""

    def __init__(self, makers: Sequence[Callable[[], gym.Env]]):
        self.envs = [make() for make in makers]
        self.num_envs = n = len(self.envs)
        self.action_space = self.envs[0].action_space
        space = self.envs[0].observation_space
        dtype = np.uint8 if space.dtype == np.uint8 and len(space.shape or ()) == 3 else np.float32
        self._obs = np.zeros((n, *(space.shape or ())), dtype)
        self._reward = np.zeros(n)
        self._terminated = np.zeros(n, bool)
        self._truncated = np.zeros(n, bool)
        self._infos: list[dict[str, Any]] = [{} for _ in range(n)]

    def reset(self, seeds: dict[int, int]) -> dict[int, np.ndarray]:
        return {i: np.asarray(self.envs[i].reset(seed=seed)[0], self._obs.dtype) for i, seed in seeds.items()}

    def step(self, actions: Sequence[Any]) -> Step:
        for i, env in enumerate(self.envs):
            self._obs[i], self._reward[i], self._terminated[i], self._truncated[i], self._infos[i] = env.step(
                actions[i]
            )
        return Step(self._obs, self._reward, self._terminated, self._truncated, self._infos)

    def close(self) -> None:
        for env in self.envs:
            env.close()


class AsyncEnvs:
    """One process for each environment: pays for envs that take a millisecond or more.

    Ctrl-C, and a scheduler that ends a job, signal all processes at once. The trainer still needs its envs then, to end
    the step under way: the workers ignore such signals, and end with the trainer.
    """

    def __init__(self, makers: Sequence[Callable[[], gym.Env]]):
        home = os.getpid()
        sturdy = [lambda make=make: _without_signals(make, home) for make in makers]
        self._envs = AsyncVectorEnv(sturdy, autoreset_mode=AutoresetMode.DISABLED, daemon=True)
        for process in self._envs.processes:  # by which Gymnasium and the interpreter's exit would end them
            process._popen.terminate = process._popen.kill  # type: ignore[attr-defined]
        self.num_envs = len(makers)
        self.action_space = self._envs.single_action_space
        space = self._envs.single_observation_space
        self._dtype = np.uint8 if space.dtype == np.uint8 and len(space.shape or ()) == 3 else np.float32

    def reset(self, seeds: dict[int, int]) -> dict[int, np.ndarray]:
        mask = np.zeros(self.num_envs, bool)
        mask[list(seeds)] = True
        every = [seeds.get(i) for i in range(self.num_envs)]
        obs, _ = self._envs.reset(seed=every, options={"reset_mask": mask})
        return {i: np.asarray(obs[i], self._dtype) for i in seeds}

    def step(self, actions: Sequence[Any]) -> Step:
        obs, reward, terminated, truncated, infos = self._envs.step(np.stack([np.asarray(a) for a in actions]))
        return Step(np.asarray(obs, self._dtype), reward, terminated, truncated, _per_env(infos, self.num_envs))

    def close(self) -> None:
        try:
            self._envs.close()
        except (OSError, EOFError):  # a worker is gone, and with it the other end of its pipe
            self._envs.close(terminate=True)


def _without_signals(make: Callable[[], gym.Env], home: int) -> gym.Env:
    """An env for a worker; Gymnasium also makes one in the process that starts them."""
    if os.getpid() != home:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
    return make()


class NativeEnvs:
    """An env's own vectorised implementation, all envs in one numpy expression.

    Works with those whose episodes can be begun one by one: a `state` with a column per env, `steps`, `prev_done` and
    the bounds `low` and `high` of a uniform first state, as Gymnasium's CartPole has them.
    """

    PARTS = ("state", "steps", "prev_done", "low", "high")

    def __init__(self, env: Any):
        self._env = env
        self.num_envs = env.num_envs
        self.action_space = env.single_action_space
        env.reset(seed=0)
        self._first_size = env.unwrapped.state.shape[0]

    @classmethod
    def fits(cls, env: gym.vector.VectorEnv) -> bool:
        env.reset(seed=0)
        return all(hasattr(env.unwrapped, part) for part in cls.PARTS)

    def reset(self, seeds: dict[int, int]) -> dict[int, np.ndarray]:
        inner: Any = self._env.unwrapped
        for i, seed in seeds.items():  # the draw that the single env makes
            generator, _ = gym.utils.seeding.np_random(seed)
            inner.state[:, i] = generator.uniform(inner.low, inner.high, self._first_size)
            inner.steps[i] = 0
            inner.prev_done[i] = False
        return {i: inner.state[:, i].astype(np.float32) for i in seeds}

    def step(self, actions: Sequence[Any]) -> Step:
        obs, reward, terminated, truncated, _ = self._env.step(np.asarray(actions))
        return Step(obs, reward, terminated, truncated, [{} for _ in range(self.num_envs)])

    def close(self) -> None:
        self._env.close()


def _per_env(infos: dict[str, Any], n: int) -> list[dict[str, Any]]:
    """Gymnasium's dict of arrays with `_key` masks, or of such dicts in turn, as one dict per env."""
    found: list[dict[str, Any]] = [{} for _ in range(n)]
    for key, values in infos.items():
        mask = infos.get(f"_{key}")
        if mask is None:
            continue
        each = _per_env(values, n) if isinstance(values, dict) else values
        for i in np.flatnonzero(mask):
            found[i][key] = each[i]
    return found
