"""Offline algorithms make the updates of their authors' code, number by number."""

from __future__ import annotations

from typing import Any

import golden
import pytest
from golden import Case

from rlx.algos.awac import AWAC, AWACConfig, Weighting
from rlx.algos.bc import BC, BCConfig
from rlx.algos.bcq import BCQ, BCQConfig
from rlx.algos.bear import BEAR, BEARConfig
from rlx.algos.cal_ql import CalQL, CalQLConfig
from rlx.algos.cql import CQL, CQLConfig
from rlx.algos.discrete_bcq import DiscreteBCQ, DiscreteBCQConfig
from rlx.algos.discrete_cql import DiscreteCQL, DiscreteCQLConfig
from rlx.algos.discrete_iql import DiscreteIQL, DiscreteIQLConfig
from rlx.algos.dt import DT, Activation, DTConfig
from rlx.algos.iql import IQL, IQLConfig
from rlx.algos.rlpd import RLPD, RLPDConfig
from rlx.algos.td3_bc import TD3BC, TD3BCConfig


def awac(weighting: str, **fields: Any) -> AWACConfig:
    return AWACConfig(weighting=Weighting(weighting), **fields)


def dt(activation: str, **fields: Any) -> DTConfig:
    return DTConfig(activation=Activation(activation), **fields)


BEAR_DRAWS = [["vae", "next_action", "latents", "action"]]
RLPD_STEPS = 3 * [["members", "next_action"]]  # and one that moves the policy, too
CASES = {
    "awac": Case(AWAC, awac, 2e-6, [["next_action", "action"]]),
    "awac_softmax": Case(AWAC, awac, 2e-6, [["next_action", "action"]]),
    "bc": Case(BC, BCConfig, 4e-7),
    "bc_gaussian": Case(BC, BCConfig, 2e-6),
    "bcq": Case(BCQ, BCQConfig, 2e-6, [["vae", "next_latents", "latents"]], fixed=["eval_latents"]),
    "bear": Case(BEAR, BEARConfig, 2e-6, BEAR_DRAWS, fixed=["eval_noise"]),
    "bear_gaussian": Case(BEAR, BEARConfig, 2e-6, BEAR_DRAWS, fixed=["eval_noise"]),
    "cal_ql": Case(CalQL, CalQLConfig, 2e-6, [["next_actions", "uniform", "drawn", "action"]]),
    "cql": Case(CQL, CQLConfig, 2e-6, [["next_action", "uniform", "drawn", "action"]]),
    "cql_lagrange": Case(CQL, CQLConfig, 2e-6, [["next_actions", "uniform", "drawn", "action"]]),
    "discrete_bcq": Case(DiscreteBCQ, DiscreteBCQConfig, 4e-7),
    "discrete_cql": Case(DiscreteCQL, DiscreteCQLConfig, 1.2e-7),
    "discrete_iql": Case(DiscreteIQL, DiscreteIQLConfig, 1.2e-6),
    "dt": Case(DT, dt, 5e-7, fixed=["obs_mean", "obs_std", "best_return"]),
    "iql": Case(IQL, IQLConfig, 3e-6),
    "rlpd": Case(RLPD, RLPDConfig, 5e-6, [*RLPD_STEPS, [*RLPD_STEPS[0], "action"]]),
    "td3_bc": Case(TD3BC, TD3BCConfig, 8e-7, [["target_noise"]], fixed=["obs_mean", "obs_std"]),
}


@pytest.mark.parametrize("name", CASES)
def test_the_weights_are_those_of_the_reference(name: str) -> None:
    golden.check(name, CASES[name])
