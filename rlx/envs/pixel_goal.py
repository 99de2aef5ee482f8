"""rlx/PixelGoal-v0, rlx/PixelMemory-v0 and rlx/PixelState-v0: move a square to another one, seen as 16 x 16 pixels.

The picture has 8 x 8 cells of 2 x 2 pixels; the agent (red) and the goal (green) begin in two different ones.
Actions: up, down, left, right, one cell each; with `continuous=True` a step of at most one cell along each axis.
Every step costs 1/32 and the goal, where the episode ends, gives 1. After 32 steps it is cut off.

So an episode that misses the goal returns -1, and the best return is known: 1 - d / 32, where d is the number of
cells between agent and goal, along the axes (d = 16/3 on average, which makes 5/6) or, with `continuous=True`, the
larger of the two distances.

PixelMemory shows the goal, one of the four corners, in the first picture of an episode alone: a policy has to remember
it. The agent begins in one of the four cells in the middle and stands still in the first step, or the place to which it
moves would tell where the goal is. So the best return is 0.75 (d = 7 and that step) and without a memory 0.45: a tour
of the corners, which are reached after 7, 14, 21 and 28 steps.

PixelState gives a dict: `pixels` shows the goal alone, and `state` has the agent's place and its last move, in
[-1, 1]. Neither is enough without the other.

`render_mode="rgb_array"` draws both, whatever is observed; a goal that PixelMemory has stopped showing is darker.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rlx.envs.rendering import FRAMES, drawn_at, enlarged

SIZE = 16  # pixels along each axis
CELL = 2  # pixels along each axis of a cell
CELLS = SIZE // CELL
FAR = SIZE - CELL  # the largest coordinate of a cell
MAX_STEPS = 32
MOVES = ((0, -CELL), (0, CELL), (-CELL, 0), (CELL, 0))  # up, down, left, right; x grows to the right, y downwards
RED, GREEN = 0, 1
DARKER = 96  # the green of a goal that is hidden


class PixelGoal(gym.Env[Any, Any]):
    """Move to the goal; the observation is a picture of both."""

    metadata = drawn_at(5)

    def __init__(self, continuous: bool = False, render_mode: str | None = None):
        self._continuous, self.render_mode = continuous, render_mode
        self.observation_space: spaces.Space[Any] = spaces.Box(0, 255, (SIZE, SIZE, 3), np.uint8)
        self.action_space: spaces.Space[Any] = (
            spaces.Box(-1.0, 1.0, (2,), np.float32) if continuous else spaces.Discrete(len(MOVES))
        )

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        start, goal = self._draw()
        self._x, self._y = (float(CELL * k) for k in divmod(start, CELLS))
        self._goal_x, self._goal_y = (CELL * k for k in divmod(goal, CELLS))
        self._move = (0.0, 0.0)
        self._picture = np.zeros((SIZE, SIZE, 3), np.uint8)
        self._picture[self._goal_y : self._goal_y + CELL, self._goal_x : self._goal_x + CELL, GREEN] = 255
        return self._observe(), {}

    def _draw(self) -> tuple[int, int]:
        """The cells of the agent and of the goal."""
        start = int(self.np_random.integers(CELLS**2))
        return start, (start + 1 + int(self.np_random.integers(CELLS**2 - 1))) % CELLS**2  # any other cell

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        x, y = self._x, self._y
        if self._continuous:
            dx, dy = (CELL * min(max(float(a), -1.0), 1.0) for a in action)
        else:
            dx, dy = MOVES[action]
        self._x, self._y = min(max(x + dx, 0.0), FAR), min(max(y + dy, 0.0), FAR)
        self._move = (self._x - x, self._y - y)
        reached = abs(self._x - self._goal_x) < CELL and abs(self._y - self._goal_y) < CELL  # the squares overlap
        return self._observe(), float(reached) - 1 / MAX_STEPS, reached, False, {"is_success": reached}

    def _observe(self) -> Any:
        picture = self._picture.copy()
        column, row = round(self._x), round(self._y)
        picture[row : row + CELL, column : column + CELL, RED] = 255
        return picture

    def render(self) -> np.ndarray | None:
        if self.render_mode != FRAMES:
            return None
        picture = np.zeros((SIZE, SIZE, 3), np.uint8)
        green = 255 if self._picture.any() else DARKER
        for color, value, x, y in ((GREEN, green, self._goal_x, self._goal_y), (RED, 255, self._x, self._y)):
            column, row = round(x), round(y)
            picture[row : row + CELL, column : column + CELL, color] = value
        return enlarged(picture)


class PixelMemory(PixelGoal):
    """Move to the corner that the first picture of an episode shows and no other."""

    def _draw(self) -> tuple[int, int]:
        column, row, right, down = (int(k) for k in self.np_random.integers(2, size=4))
        middle, last = CELLS // 2 - 1, CELLS - 1
        return CELLS * (middle + column) + middle + row, CELLS * last * right + last * down

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self._picture[:, :, GREEN].any():  # the first step
            self._picture[:, :, GREEN] = 0
            return self._observe(), -1 / MAX_STEPS, False, False, {"is_success": False}
        return super().step(action)


class PixelState(PixelGoal):
    """Move to the goal; the picture shows the goal, the vector the agent."""

    def __init__(self, continuous: bool = False, render_mode: str | None = None):
        super().__init__(continuous, render_mode)
        state = spaces.Box(-1.0, 1.0, (4,), np.float32)
        self.observation_space = spaces.Dict({"pixels": self.observation_space, "state": state})

    def _observe(self) -> Any:
        place = (2 * self._x / FAR - 1, 2 * self._y / FAR - 1)
        move = (self._move[0] / CELL, self._move[1] / CELL)
        return {"pixels": self._picture.copy(), "state": np.array(place + move, np.float32)}
