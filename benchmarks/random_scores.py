"""Mean return of uniformly random actions over 100 episodes: the zero of the normalised scores.

python benchmarks/random_scores.py Pendulum-v1 CartPole-v1
"""

import sys

import numpy as np

from rlx.envs import EnvConfig, make_env, make_vector_env, spec_of
from rlx.envs.evaluation import run_episodes

for env_id in sys.argv[1:]:
    cfg = EnvConfig(id=env_id)
    spec = spec_of(make_env(cfg), env_id)
    rng = np.random.default_rng(0)

    def act(obs, spec=spec, rng=rng):
        if spec.discrete:
            return rng.integers(0, spec.action_sizes[0], len(obs))
        return rng.uniform(-1, 1, (len(obs), spec.action_dim)).astype(np.float32)

    returns = run_episodes(act, make_vector_env(cfg, 10), 100, seed=0).returns
    print(f"{env_id}: {returns.mean():.1f} +- {returns.std():.1f}")
