"""Online algorithms make the updates of Stable-Baselines3 and of the authors' code, number by number."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import golden
import pytest
from golden import Case

import rlx.nn.fused
from rlx.algos.a2c import A2C, A2CConfig
from rlx.algos.c51 import C51, C51Config
from rlx.algos.crossq import CrossQ, CrossQConfig
from rlx.algos.ddpg import DDPG, DDPGConfig
from rlx.algos.discrete_sac import DiscreteSAC, DiscreteSACConfig
from rlx.algos.dqn import DQN, DQNConfig
from rlx.algos.drq_v2 import DrQV2, DrQV2Config
from rlx.algos.ppo import PPO, PPOConfig
from rlx.algos.ppo_lstm import PPOLSTM, PPOLSTMConfig
from rlx.algos.pqn import PQN, PQNConfig
from rlx.algos.qr_dqn import QRDQN, QRDQNConfig
from rlx.algos.redq import REDQ, REDQConfig
from rlx.algos.sac import SAC, SACConfig
from rlx.algos.td3 import TD3, TD3Config
from rlx.algos.tqc import TQC, TQCConfig
from rlx.algos.trpo import TRPO, TRPOConfig
from rlx.nn.encoders import DrqConfig, SmallConfig, drq, small

CROSSQ_DRAWS = [["next_action"], ["next_action"], ["next_action", "action"]]
SMALL_DRQ = partial(drq, DrqConfig(channels=4, dim=6))
SMALLEST = partial(small, SmallConfig(channels=4, dim=6))
CASES = {
    "sac": Case(SAC, SACConfig, 2e-6, [["next_action", "action"]]),
    "td3": Case(TD3, TD3Config, 8e-7, [["smoothing"]]),
    "ddpg": Case(DDPG, DDPGConfig, 8e-7),
    "dqn": Case(DQN, DQNConfig, 1.2e-7),
    "double_dqn": Case(DQN, DQNConfig, 1.2e-7),
    "c51": Case(C51, C51Config, 1.2e-7),
    "c51_rainbow": Case(C51, C51Config, 1.2e-7, [["online", "target"]]),
    "qr_dqn": Case(QRDQN, QRDQNConfig, 1.2e-7),
    "pqn": Case(PQN, PQNConfig, 1.2e-7, [["rows"] * 3]),
    "pqn_authors": Case(PQN, PQNConfig, 1e-5, [["rows"] * 3]),
    "drq_v2": Case(DrQV2, DrQV2Config, 1e-6, [["next_action", "action"]], encoder=SMALL_DRQ),
    "tqc": Case(TQC, TQCConfig, 8e-7, [["next_action", "action"]]),
    "a2c": Case(A2C, A2CConfig, 1.2e-6),
    "a2c_discrete": Case(A2C, A2CConfig, 1.2e-6),
    "ppo": Case(PPO, PPOConfig, 1e-5, [["rows"] * 4]),
    "ppo_discrete": Case(PPO, PPOConfig, 1e-5, [["rows"] * 4]),
    "a2c_pixels": Case(A2C, A2CConfig, 1.2e-6, encoder=SMALLEST),
    "ppo_pixels": Case(PPO, PPOConfig, 1e-6, [["rows"] * 3], encoder=SMALLEST),
    "ppo_lstm": Case(PPOLSTM, PPOLSTMConfig, 1e-6, [["lanes"] * 3]),
    "ppo_lstm_discrete": Case(PPOLSTM, PPOLSTMConfig, 1e-6, [["lanes"] * 3]),
    "ppo_lstm_shared": Case(PPOLSTM, PPOLSTMConfig, 1e-6, [["lanes"] * 3]),
    "trpo": Case(TRPO, TRPOConfig, 4e-5, [["rows"] * 3]),
    "trpo_discrete": Case(TRPO, TRPOConfig, 4e-6, [["rows"] * 3]),
    "redq": Case(REDQ, REDQConfig, 2e-6, [["members", "next_action"]] * 4 + [["members", "next_action", "action"]]),
    "discrete_sac": Case(DiscreteSAC, DiscreteSACConfig, 8e-7),
    "crossq": Case(CrossQ, CrossQConfig, 1e-6, CROSSQ_DRAWS),
    "crossq_renorm": Case(CrossQ, CrossQConfig, 1e-5, CROSSQ_DRAWS),
}


@pytest.mark.parametrize("name", CASES)
def test_the_weights_are_those_of_the_reference(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "crossq_renorm":  # where eps is small, so is the difference of the two formulas
        monkeypatch.setattr(rlx.nn.fused, "RENORM_EPS", 1e-20)
    if name == "pqn_authors":  # the eps of flax
        monkeypatch.setattr(rlx.nn.fused, "NORM_EPS", 1e-6)
    golden.check(name, CASES[name])


@pytest.mark.parametrize("path", sorted(golden.FOLDER.glob("*.safetensors")), ids=lambda path: path.stem)
def test_a_file_is_small_and_names_its_reference(path: Path) -> None:
    assert path.stat().st_size < 64_000
    reference = golden.load(path.stem).reference
    assert re.search(r"\d+\.\d+\.\d+|[0-9a-f]{7}", reference), f"no version or commit in {reference!r}"
