"""Envs that take a memory: what an observation shows is not enough to act well.

rlx/Recall-v0: one of `cues` cues is shown in the first observation only; `delay` steps later, when the last number of
the observation is 1, the action has to be that cue. The right choice earns 1, and nothing else earns anything: the
optimum is 1, and a policy without memory gets 1 / cues. `render_mode="rgb_array"` draws a square for each cue and a bar
below them: white is what an observation shows, and at the end the cue is green and a wrong choice red.

rlx/CartPoleHidden-v0: CartPole-v1 without its velocities; the observation is the position of the cart and the angle of
the pole.
"""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

from rlx.envs.rendering import FRAMES, drawn_at, enlarged

POSITIONS = [0, 2]  # of CartPole's observation: x, velocity, angle, angular velocity
GREY, WHITE, GREEN, RED = (64, 64, 64), (255, 255, 255), (0, 255, 0), (255, 0, 0)


class Recall(gym.Env[np.ndarray, Any]):
    """See a cue, wait, choose it."""

    metadata = drawn_at(5)

    def __init__(self, cues: int = 4, delay: int = 8, render_mode: str | None = None) -> None:
        self.cues, self.delay, self.render_mode = cues, delay, render_mode
        self.observation_space = spaces.Box(0.0, 1.0, (cues + 1,), np.float32)
        self.action_space = spaces.Discrete(cues)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._cue = int(self.np_random.integers(self.cues))
        self._waited = 0
        obs = self._observe()
        obs[self._cue] = 1.0
        return obs, {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        chosen = self._waited == self.delay
        right = chosen and action == self._cue
        self._waited += 1
        self._action = int(action)
        return self._observe(), float(right), chosen, False, {"is_success": right} if chosen else {}

    def _observe(self) -> np.ndarray:
        obs = np.zeros(self.cues + 1, np.float32)
        obs[-1] = self._waited == self.delay
        return obs

    def render(self) -> np.ndarray | None:
        if self.render_mode != FRAMES:
            return None
        side = math.ceil(math.sqrt(self.cues))
        squares = np.zeros((2 * side + 3, 2 * side + 1, 3), np.uint8)  # with lines between them
        places = [(2 * (k // side) + 1, 2 * (k % side) + 1) for k in range(self.cues)]
        for place in places:
            squares[place] = GREY
        squares[-2, 1:-1] = WHITE if self._waited == self.delay else GREY
        if self._waited > self.delay:
            squares[places[self._action]] = RED
            squares[places[self._cue]] = GREEN
        elif self._waited == 0:
            squares[places[self._cue]] = WHITE
        return enlarged(squares)


class CartPoleHidden(gym.ObservationWrapper[np.ndarray, Any, Any]):
    """Balance a pole on a cart; velocities are not observed."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(CartPoleEnv(**kwargs))
        whole = self.env.observation_space
        assert isinstance(whole, spaces.Box)
        self.observation_space = spaces.Box(whole.low[POSITIONS], whole.high[POSITIONS], dtype=np.float32)

    def observation(self, observation: np.ndarray) -> np.ndarray:
        return observation[POSITIONS]
