"""Actions from the learner's units to those of the env."""

from __future__ import annotations

import numpy as np
from gymnasium import spaces

from rlx.envs.actions import to_env_units


def test_box_actions_are_scaled_and_clipped() -> None:
    scale = to_env_units(spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 10.0], np.float32)))
    np.testing.assert_allclose(scale(np.array([[-1.0, -1.0], [0.0, 0.5], [3.0, -9.0]])), [[-2, 0], [0, 7.5], [2, 0]])
    free = to_env_units(spaces.Box(-np.inf, np.inf, (1,)))
    np.testing.assert_array_equal(free(np.array([[5.0]])), [[5.0]])
