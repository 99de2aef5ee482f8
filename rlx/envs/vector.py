"""Vector environments that never reset by themselves.

Gymnasium's vector envs can reset on the next step, on the same step or never. We take "never": the caller sees the real
final observation of every episode, and starts the next one from a seed of its own, which is what makes an exact resume
possible. No reset transition can enter a buffer, because there is none.

What an env gives is checked here, where it enters: an env that raises, hangs, dies or gives numbers that are not finite
ends in an `EnvFault`, a sentence that names it.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode
from gymnasium.vector.async_vector_env import AsyncState

from rlx.envs.observations import boxes_of
from rlx.errors import RunFailed, UserError
from rlx.obs import map_obs, row_like, rows_of, take_rows, zeros_obs
from rlx.types import ObsArray

PR_SET_PDEATHSIG = 1  # of Linux's prctl: the signal to get when the parent ends
FLOAT32_MAX = float(np.finfo(np.float32).max)
LIFE_LOST = "life_lost"  # in the info of a step: bootstrapping stops here although the episode goes on
PATIENCE = 600.0  # seconds for a process that is ending to be gone


class EnvFault(RunFailed):
    """An env that failed: a sentence that names it, and the env's own traceback where there is one."""

    def __init__(self, sentence: str, trace: str = ""):
        super().__init__(sentence)
        self.trace = trace


class NonFiniteAction(RunFailed):
    """A policy gave actions that no env should see."""

    def __init__(self, action: np.ndarray):
        super().__init__(f"The policy's actions are not finite: {_shown(action)}.")


def is_finite(x: ObsArray) -> bool:
    """Are all numbers finite as float32, in which buffers keep them? The sum of squares tells, unless it is large."""
    if isinstance(x, dict):
        return all(is_finite(part) for part in x.values())
    return x.dtype.kind != "f" or bool(np.vdot(x, x) < FLOAT32_MAX) or bool((np.abs(x) <= FLOAT32_MAX).all())


def what_it_did(error: BaseException) -> str:
    """An env's error in one line that continues "the env ...": its kind, its message and where it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    if isinstance(error, SystemExit):
        return f"called sys.exit({error.code!r}){where}"
    words = " ".join(str(error).split())
    return f"raised {type(error).__name__}{': ' if words else ''}{words}{where}"


@contextmanager
def env_faults_explained(name: str) -> Iterator[None]:
    """Use a single env in this context: whatever it raises becomes an EnvFault, in a sentence."""
    try:
        yield
    except (UserError, RunFailed):
        raise
    except (Exception, SystemExit) as error:
        raise EnvFault(f"{name} {what_it_did(error)}.", traceback.format_exc()) from error


class Lanes:
    """Where each of N envs is, so that a fault can be located and reproduced."""

    def __init__(self, name: str, n: int):
        self.name = name
        self._seeds = [0] * n  # of the episodes under way
        self._first = [0] * n  # vector steps before each of them
        self._steps = 0  # vector steps so far

    def begin(self, seeds: dict[int, int]) -> None:
        for i, seed in seeds.items():
            self._seeds[i], self._first[i] = seed, self._steps

    def step(self) -> None:
        self._steps += 1

    def fault(self, lane: int, problem: str, trace: str = "") -> EnvFault:
        """A sentence such as "Pendulum-v1, lane 0: step 7 of the episode with seed 3 raised ValueError: ..."."""
        step = self._steps - self._first[lane]
        call = f"step {step}" if step else "the reset"
        return EnvFault(
            f"{self.name}, lane {lane}: {call} of the episode with seed {self._seeds[lane]} {problem}", trace
        )

    def check_first(self, obs: dict[int, Any]) -> dict[int, Any]:
        for lane, first in obs.items():
            if not is_finite(first):
                raise self.fault(lane, f"gave the observation {_bad_part(first)}")
        return obs

    def check(self, step: Step) -> Step:
        obs, reward = step.next_obs, step.reward
        if isinstance(obs, np.ndarray) and obs.dtype.kind == "f":
            small = np.vdot(obs, obs) + reward.dot(reward) < FLOAT32_MAX  # nearly always, and quick to see
        else:
            small = False
        if small or (is_finite(obs) and is_finite(reward)):
            return step
        lane = next(i for i in range(len(reward)) if not (is_finite(take_rows(obs, i)) and is_finite(reward[i])))
        seen = take_rows(obs, lane)
        what = f"reward {reward[lane]}" if is_finite(seen) else f"observation {_bad_part(seen)}"
        raise self.fault(lane, f"gave the {what}")


def _bad_part(obs: ObsArray) -> str:
    """The observation, or the first part of it, that is not finite."""
    if not isinstance(obs, dict):
        return _shown(obs)
    return next(f"{name}={_shown(part)}" for name, part in obs.items() if not is_finite(part))


def _shown(array: np.ndarray) -> str:
    """An array on one line, its middle left out where it is long."""
    return " ".join(np.array2string(array, threshold=8, edgeitems=3, separator=", ").split())


class Step(NamedTuple):
    """What one step of N envs gave. The arrays are reused by the next step: copy what you keep."""

    next_obs: ObsArray  # [N, *shape] of every part; final observations where an episode ended
    reward: np.ndarray  # [N] float64, raw
    terminated: np.ndarray  # [N] bool
    truncated: np.ndarray  # [N] bool
    infos: Sequence[dict[str, Any]]


class VectorEnv(Protocol):
    """N environments, stepped together, reset one by one."""

    num_envs: int
    action_space: gym.Space[Any]  # of one env

    def reset(self, seeds: dict[int, int]) -> dict[int, ObsArray]:
        """Reset env i with seed seeds[i]; their first observations, which are the caller's to keep."""

    def step(self, actions: Sequence[Any]) -> Step:
        """One action for each env, in env units."""

    def close(self) -> None: ...


class SyncEnvs:
    """All environments in this process: the fastest choice for cheap envs."""

    def __init__(self, makers: Sequence[Callable[[], gym.Env]], name: str = "env"):
        self.envs = [make() for make in makers]
        self.num_envs = n = len(self.envs)
        self._lanes = Lanes(name, n)
        self.action_space = self.envs[0].action_space
        self._obs = zeros_obs(boxes_of(self.envs[0].observation_space), n)
        self._rows = rows_of(self._obs)
        self._reward = np.zeros(n)
        self._terminated = np.zeros(n, bool)
        self._truncated = np.zeros(n, bool)
        self._infos: list[dict[str, Any]] = [{} for _ in range(n)]
        self._step = Step(self._obs, self._reward, self._terminated, self._truncated, self._infos)

    def reset(self, seeds: dict[int, int]) -> dict[int, ObsArray]:
        self._lanes.begin(seeds)
        first = {}
        for i, seed in seeds.items():
            try:
                first[i] = row_like(self._obs, self.envs[i].reset(seed=seed)[0])
            except (Exception, SystemExit) as error:
                raise self._lanes.fault(i, what_it_did(error), traceback.format_exc()) from error
        return self._lanes.check_first(first)

    def step(self, actions: Sequence[Any]) -> Step:
        self._lanes.step()
        i = 0
        try:
            for i, env in enumerate(self.envs):
                self._rows[i], self._reward[i], self._terminated[i], self._truncated[i], self._infos[i] = env.step(
                    actions[i]
                )
        except (Exception, SystemExit) as error:
            raise self._lanes.fault(i, what_it_did(error), traceback.format_exc()) from error
        return self._lanes.check(self._step)

    def close(self) -> None:
        for env in self.envs:
            env.close()


class WorkerError(Exception):
    """What went wrong in a worker, in words that can be sent: problem and traceback."""


class SendableErrors(gym.Wrapper):
    """An env in a worker, whose errors can all be sent to the trainer; exceptions of unknown classes could not."""

    def reset(self, **kwargs: Any) -> Any:
        return self._call(self.env.reset, **kwargs)

    def step(self, action: Any) -> Any:
        return self._call(self.env.step, action)

    def _call(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        try:
            return call(*args, **kwargs)
        except (Exception, SystemExit) as error:
            raise WorkerError(what_it_did(error), traceback.format_exc()) from None


class LaneError(Exception):
    """A lane that failed: lane, problem and traceback."""


class Workers(AsyncVectorEnv):
    """Gymnasium's processes, which report the lane that failed. They ignore SIGTERM, so SIGKILL ends them."""

    def _raise_if_errors(self, successes: Iterable[bool]) -> None:
        if all(successes):
            return
        try:
            lane, kind, value, trace = self.error_queue.get(timeout=PATIENCE)
        except queue.Empty:
            raise LaneError(list(successes).index(False), "failed and did not say why", "") from None
        if isinstance(value, WorkerError):
            raise LaneError(lane, *value.args)
        raise LaneError(lane, f"raised {kind.__name__}: {value}", trace)  # by what Gymnasium does with an observation

    def close_extras(self, timeout: float | None = None, terminate: bool = False) -> None:
        if terminate or self._state != AsyncState.DEFAULT:  # a call that is under way may never end
            terminate, self._state = True, AsyncState.DEFAULT
            for process in self.processes:
                process.kill()
        super().close_extras(timeout, terminate)


class AsyncEnvs:
    """One process for each environment: pays for envs that take a millisecond or more.

    Ctrl-C, and a scheduler that ends a job, signal all processes at once. The trainer still needs its envs then, to end
    the step under way: the workers ignore such signals, and end with the trainer, however it ends.
    """

    def __init__(self, makers: Sequence[Callable[[], gym.Env]], name: str = "env", timeout: float | None = None):
        home = os.getpid()
        in_main = threading.current_thread() is threading.main_thread()
        worker_makers = [lambda make=make: _in_worker(make, home, in_main) for make in makers]
        self.num_envs = len(makers)
        self._lanes = Lanes(name, self.num_envs)
        self._timeout = timeout  # seconds for a step or a reset
        self._failed = False
        try:
            self._envs = Workers(worker_makers, copy=False, autoreset_mode=AutoresetMode.DISABLED, daemon=True)
        except (EOFError, OSError) as error:
            raise EnvFault(f"{name}: a process ended while it made its env ({error!r})") from error
        for process in self._envs.processes:  # by which the interpreter's exit would end them
            process._popen.terminate = process._popen.kill  # type: ignore[attr-defined]
        self.action_space = self._envs.single_action_space
        self._obs = zeros_obs(boxes_of(self._envs.single_observation_space), self.num_envs)

    def reset(self, seeds: dict[int, int]) -> dict[int, ObsArray]:
        self._lanes.begin(seeds)
        mask = np.zeros(self.num_envs, bool)
        mask[list(seeds)] = True
        every = [seeds.get(i) for i in range(self.num_envs)]
        obs, _ = self._answered("reset", every, {"reset_mask": mask})
        return self._lanes.check_first({i: row_like(self._obs, take_rows(obs, i)) for i in seeds})

    def step(self, actions: Sequence[Any]) -> Step:
        self._lanes.step()
        obs, reward, terminated, truncated, infos = self._answered("step", np.stack([np.asarray(a) for a in actions]))
        infos = _per_env(infos, self.num_envs)
        map_obs(np.copyto, self._obs, obs)  # out of the shared memory, where the next reset writes
        return self._lanes.check(Step(self._obs, reward, terminated, truncated, infos))

    def _answered(self, call: str, *args: Any) -> Any:
        """What all workers answer to a call; a fault of the first one that does not."""
        try:
            getattr(self._envs, f"{call}_async")(*args)
            return getattr(self._envs, f"{call}_wait")(self._timeout)
        except LaneError as error:
            self._failed = True
            lane, problem, trace = error.args
            raise self._lanes.fault(lane, problem, trace) from None
        except multiprocessing.TimeoutError as error:
            self._failed = True
            silent = (i for i, pipe in enumerate(self._envs.parent_pipes) if not pipe.poll())
            took = f"took longer than env.step_timeout={self._timeout:g} seconds"
            raise self._lanes.fault(next(silent, 0), took) from error
        except (EOFError, OSError) as error:  # the other end of a pipe is gone
            self._failed = True
            raise self._lanes.fault(*self._dead()) from error

    def _dead(self) -> tuple[int, str]:
        """The first worker that ended, and how."""
        processes = self._envs.processes
        ended = wait([process.sentinel for process in processes], PATIENCE)
        lane = next((i for i, process in enumerate(processes) if process.sentinel in ended), 0)
        processes[lane].join(PATIENCE)  # its end of the pipe is closed a moment before it is gone
        code = processes[lane].exitcode
        if code is not None and code < 0:
            return lane, f"did not end: its process was killed by {signal.Signals(-code).name}"
        return lane, f"did not end: its process exited with code {code}"

    def close(self) -> None:
        try:
            self._envs.close(terminate=self._failed)
        except (OSError, EOFError):  # a worker is gone, and with it the other end of its pipe
            self._envs.close(terminate=True)


def _in_worker(make: Callable[[], gym.Env], home: int, in_main: bool) -> gym.Env:
    """An env for a worker; Gymnasium also makes one in the process that starts them."""
    if os.getpid() == home:
        return make()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    _end_with_parent(in_main)
    return SendableErrors(make())


def _end_with_parent(in_main: bool) -> None:
    """Have this process end when its parent does, also when that one is killed.

    Linux can do it, even where an env never comes back to Python; but by "parent" it means the thread that started
    this process, so that only a main thread will do. Elsewhere a thread of ours looks every second.
    """
    parent = os.getppid()
    if in_main and sys.platform == "linux" and ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL) == 0:
        if os.getppid() != parent:  # it ended before we asked
            os._exit(1)
        return

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


class NativeEnvs:
    """An env's own vectorised implementation, all envs in one numpy expression.

    Works with those whose episodes can be begun one by one: a `state` with a column per env, `steps`, `prev_done` and
    the bounds `low` and `high` of a uniform first state, as Gymnasium's CartPole has them.
    """

    PARTS = ("state", "steps", "prev_done", "low", "high")

    def __init__(self, env: Any, name: str = "env"):
        self._env = env
        self.num_envs = env.num_envs
        self._lanes = Lanes(name, self.num_envs)
        self.action_space = env.single_action_space
        env.reset(seed=0)
        self._first_size = env.unwrapped.state.shape[0]

    @classmethod
    def fits(cls, env: gym.vector.VectorEnv) -> bool:
        env.reset(seed=0)
        vectors = isinstance(env.single_observation_space, spaces.Box) and len(env.single_observation_space.shape) == 1
        return vectors and all(hasattr(env.unwrapped, part) for part in cls.PARTS)

    def reset(self, seeds: dict[int, int]) -> dict[int, ObsArray]:
        self._lanes.begin(seeds)
        inner: Any = self._env.unwrapped
        for i, seed in seeds.items():  # the draw that the single env makes
            generator, _ = gym.utils.seeding.np_random(seed)
            inner.state[:, i] = generator.uniform(inner.low, inner.high, self._first_size)
            inner.steps[i] = 0
            inner.prev_done[i] = False
        return {i: inner.state[:, i].astype(np.float32) for i in seeds}

    def step(self, actions: Sequence[Any]) -> Step:
        self._lanes.step()
        obs, reward, terminated, truncated, _ = self._env.step(np.asarray(actions))
        return self._lanes.check(Step(obs, reward, terminated, truncated, [{} for _ in range(self.num_envs)]))

    def close(self) -> None:
        self._env.close()


def _per_env(infos: dict[str, Any], n: int) -> list[dict[str, Any]]:
    """Gymnasium's dict of arrays with `_key` masks, or of such dicts in turn, as one dict per env."""
    each_env: list[dict[str, Any]] = [{} for _ in range(n)]
    for key, values in infos.items():
        mask = infos.get(f"_{key}")
        if mask is None:
            continue
        parts = _per_env(values, n) if isinstance(values, dict) else values
        for i in np.flatnonzero(mask):
            each_env[i][key] = parts[i]
    return each_env
