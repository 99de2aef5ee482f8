"""PointGoal by hand."""

from __future__ import annotations

import gymnasium as gym
import numpy as np


def test_point_goal_by_hand() -> None:
    env = gym.make("rlx/PointGoal-v0").unwrapped
    obs, _ = env.reset(seed=0)
    assert 0.5 <= np.linalg.norm(obs["desired_goal"]) <= 1.0
    obs, reward, terminated, truncated, info = env.step(np.array([1.0, -5.0], np.float32))
    np.testing.assert_allclose(obs["observation"], [0.06, -0.06, 0.06, -0.06], rtol=1e-6)  # the force is clipped
    assert (reward, terminated, truncated, info) == (-1.0, False, False, {"is_success": False})
    achieved, desired = np.array([[0.0, 0.0], [0.0, 0.0]]), np.array([[0.05, 0.0], [0.2, 0.0]])
    assert env.compute_reward(achieved, desired, {}).tolist() == [0.0, -1.0]  # type: ignore[attr-defined]
