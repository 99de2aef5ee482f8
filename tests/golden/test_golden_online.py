"""Online algorithms make the updates of Stable-Baselines3 and of the authors' code, number by number."""

from __future__ import annotations

import golden
import pytest
from golden import Case

from rlx.algos.a2c import A2C, A2CConfig
from rlx.algos.ddpg import DDPG, DDPGConfig
from rlx.algos.dqn import DQN, DQNConfig
from rlx.algos.ppo import PPO, PPOConfig
from rlx.algos.sac import SAC, SACConfig
from rlx.algos.td3 import TD3, TD3Config
from rlx.algos.tqc import TQC, TQCConfig
from rlx.algos.trpo import TRPO, TRPOConfig

CASES = {
    "sac": Case(SAC, SACConfig, 2e-6, [["next_action", "action"]]),
    "td3": Case(TD3, TD3Config, 8e-7, [["smoothing"]]),
    "ddpg": Case(DDPG, DDPGConfig, 8e-7),
    "dqn": Case(DQN, DQNConfig, 1.2e-7),
    "tqc": Case(TQC, TQCConfig, 8e-7, [["next_action", "action"]]),
    "a2c": Case(A2C, A2CConfig, 1.2e-6),
    "a2c_discrete": Case(A2C, A2CConfig, 1.2e-6),
    "ppo": Case(PPO, PPOConfig, 1e-5, [["rows"] * 4]),
    "ppo_discrete": Case(PPO, PPOConfig, 1e-5, [["rows"] * 4]),
    "trpo": Case(TRPO, TRPOConfig, 4e-5, [["rows"] * 3]),
    "trpo_discrete": Case(TRPO, TRPOConfig, 4e-6, [["rows"] * 3]),
}


@pytest.mark.parametrize("name", CASES)
def test_the_weights_are_those_of_the_reference(name: str) -> None:
    golden.check(name, CASES[name])
