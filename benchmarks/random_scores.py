"""Mean return of uniformly random actions over 100 episodes: the zero of the normalised scores.

python benchmarks/random_scores.py Pendulum-v1 CartPole-v1
"""

import sys

import numpy as np

from rlx.envs import EnvConfig, make_env, make_vector_env, spec_of
from rlx.envs.actions import random_actions
from rlx.envs.evaluation import run_episodes


class RandomAgent:
    def __init__(self, spec):
        self.spec, self.rng = spec, np.random.default_rng(0)

    def act(self, obs):
        return random_actions(self.spec, len(obs), self.rng)

    def begin(self, lanes): ...

    def feedback(self, reward): ...


for env_id in sys.argv[1:]:
    cfg = EnvConfig(id=env_id)
    agent = RandomAgent(spec_of(make_env(cfg), env_id))
    returns = run_episodes(agent, make_vector_env(cfg, 10), 100, seed=0).returns
    print(f"{env_id}: {returns.mean():.1f} +- {returns.std():.1f}")
