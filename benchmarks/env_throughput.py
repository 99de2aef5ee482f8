"""Env steps per second of each vectorization, through the Runner that training uses.

    python benchmarks/env_throughput.py [EnvId ...]

Interleaved rounds, best of rounds; the last column is the choice of env.vectorization=auto.
"""

import sys
import time

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


def main() -> None:
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
