"""Env steps per second of each vectorization, through the Runner that training uses.

    python benchmarks/env_throughput.py [EnvId ...]
    python benchmarks/env_throughput.py --cpu [EnvId ...]

Interleaved rounds, best of rounds; the last column is the choice of env.vectorization=auto.

With --cpu: steps per second of processor time, all threads counted, of one env under random actions, resets included;
the env as `make_env` makes it, and through the Runner.
"""

import sys
import time
from collections.abc import Callable, Sequence

import numpy as np

from rlx.collectors.runner import Runner
from rlx.envs import EnvConfig, make_env, make_vector_env, spec_of
from rlx.errors import UserError

ROUNDS, SECONDS = 3, 0.5


def steps_per_second(runner: Runner, action: np.ndarray) -> float:
    steps, start = 0, time.perf_counter()
    while time.perf_counter() - start < SECONDS:
        for _ in range(20):
            runner.step(action)
        steps += 20 * runner.num_envs
    return steps / (time.perf_counter() - start)


def bare_steps(env_id: str) -> Callable[[int], None]:
    """Takes that many steps of an env."""
    env = make_env(EnvConfig(id=env_id))
    env.action_space.seed(0)
    env.reset(seed=0)

    def steps(count: int) -> None:
        for _ in range(count):
            _, _, terminated, truncated, _ = env.step(env.action_space.sample())
            if terminated or truncated:
                env.reset()

    return steps


def runner_steps(env_id: str) -> Callable[[int], None]:
    """The same through the Runner."""
    runner = Runner(make_vector_env(EnvConfig(id=env_id, vectorization="sync")), seed=0)
    space = runner.envs.action_space
    space.seed(0)

    def steps(count: int) -> None:
        for _ in range(count):
            runner.step(np.asarray(space.sample())[None])

    return steps


def per_cpu_second(steps: Callable[[int], None]) -> float:
    """The best of rounds of about a second each."""
    best = 0.0
    for _ in range(ROUNDS):
        count, start, used = 0, time.perf_counter(), time.process_time()
        while time.perf_counter() - start < 2 * SECONDS:
            steps(100)
            count += 100
        best = max(best, count / (time.process_time() - used))
    return best


def print_cpu(env_ids: Sequence[str]) -> None:
    print(f"{'env':30} {'env alone':>10} {'Runner':>10}   steps per CPU second")
    for env_id in env_ids:
        alone, through = (per_cpu_second(make(env_id)) for make in (bare_steps, runner_steps))
        print(f"{env_id:30} {alone:10,.0f} {through:10,.0f}", flush=True)


def main() -> None:
    if "--cpu" in sys.argv:
        print_cpu([word for word in sys.argv[1:] if word != "--cpu"])
        return
    print(f"{'env':28} {'envs':>4} {'sync':>10} {'async':>10} {'native':>10}   auto")
    for env_id in sys.argv[1:] or ["CartPole-v1", "Pendulum-v1", "Hopper-v5"]:
        spec = spec_of(make_env(EnvConfig(id=env_id)), env_id)
        for n in (1, 2, 4, 8, 16):
            runners, best = {}, {"sync": 0.0, "async": 0.0, "native": 0.0}
            for kind in best:
                try:
                    cfg = EnvConfig(id=env_id, num_envs=n, vectorization=kind)
                    runners[kind] = Runner(make_vector_env(cfg), seed=0)
                except UserError:
                    continue
            action = np.zeros((n, *spec.action_shape), np.float32 if not spec.discrete else np.int64)
            for _ in range(ROUNDS):
                for kind, runner in runners.items():
                    best[kind] = max(best[kind], steps_per_second(runner, action))
            auto = type(make_vector_env(EnvConfig(id=env_id, num_envs=n))).__name__
            print(f"{env_id:28} {n:4} " + " ".join(f"{best[k]:10,.0f}" for k in best) + f"   {auto}", flush=True)
            for runner in runners.values():
                runner.envs.close()


if __name__ == "__main__":
    main()
