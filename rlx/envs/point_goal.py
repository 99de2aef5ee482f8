"""rlx/PointGoal-v0: a point mass that has to reach a goal in the plane; the reward is sparse.

Observation: a dict with `observation` (position and velocity), `achieved_goal` (position) and `desired_goal`.
Action: a force in [-1, 1]^2. Reward: 0 within `TOLERANCE` of the goal, else -1. Episodes last 50 steps.
`render_mode="rgb_array"` draws the plane from above: the point red, and green what is within `TOLERANCE` of the goal.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rlx.envs.rendering import FRAMES, SIDE, drawn_at

TOLERANCE = 0.1
DAMPING, FORCE = 0.7, 0.06
EDGE = 1.5  # the largest coordinate
RADIUS = 0.05  # of the point in a picture


class PointGoal(gym.Env):
    """Push a point to a goal; sparse reward, 2-D."""

    metadata = drawn_at(15)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        box: dict[str, spaces.Space[Any]] = {
            "observation": spaces.Box(-np.inf, np.inf, (4,), np.float32),
            "achieved_goal": spaces.Box(-np.inf, np.inf, (2,), np.float32),
            "desired_goal": spaces.Box(-np.inf, np.inf, (2,), np.float32),
        }
        self.observation_space = spaces.Dict(box)
        self.action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        super().reset(seed=seed)
        self._position = np.zeros(2, np.float32)
        self._velocity = np.zeros(2, np.float32)
        angle = self.np_random.uniform(0, 2 * np.pi)
        radius = self.np_random.uniform(0.5, 1.0)
        self._goal = np.array([radius * np.cos(angle), radius * np.sin(angle)], np.float32)
        return self._observe(), {}

    def step(self, action: np.ndarray) -> tuple[dict[str, np.ndarray], float, bool, bool, dict[str, Any]]:
        force = np.clip(np.asarray(action, np.float32), -1.0, 1.0)
        self._velocity = DAMPING * self._velocity + FORCE * force
        self._position = np.clip(self._position + self._velocity, -EDGE, EDGE)
        reward = float(self.compute_reward(self._position, self._goal, {}))
        return self._observe(), reward, False, False, {"is_success": reward == 0.0}

    def compute_reward(self, achieved_goal: np.ndarray, desired_goal: np.ndarray, info: Any) -> np.ndarray:
        """0 where the goal is reached, else -1; vectorised over leading dimensions."""
        distance = np.linalg.norm(np.asarray(achieved_goal) - np.asarray(desired_goal), axis=-1)
        return np.where(distance <= TOLERANCE, 0.0, -1.0).astype(np.float32)

    def _observe(self) -> dict[str, np.ndarray]:
        return {
            "observation": np.concatenate([self._position, self._velocity]),
            "achieved_goal": self._position.copy(),
            "desired_goal": self._goal.copy(),
        }

    def render(self) -> np.ndarray | None:
        if self.render_mode != FRAMES:
            return None
        x = np.linspace(-EDGE - TOLERANCE, EDGE + TOLERANCE, SIDE, dtype=np.float32)
        plane = np.stack(np.meshgrid(x, -x), -1)  # [SIDE, SIDE, 2], y grows upwards
        picture = np.zeros((SIDE, SIDE, 3), np.uint8)
        for color, place, radius in (((0, 255, 0), self._goal, TOLERANCE), ((255, 0, 0), self._position, RADIUS)):
            picture[np.linalg.norm(plane - place, axis=-1) <= radius] = color
        return picture
