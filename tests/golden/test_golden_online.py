"""Online algorithms make the updates of Stable-Baselines3 and of the authors' code, number by number."""

from __future__ import annotations

import golden
import pytest
from golden import Case

from rlx.algos.sac import SAC, SACConfig

CASES = {
    "sac": Case(SAC, SACConfig, 2e-6, [["next_action", "action"]]),
}


@pytest.mark.parametrize("name", CASES)
def test_the_weights_are_those_of_the_reference(name: str) -> None:
    golden.check(name, CASES[name])
