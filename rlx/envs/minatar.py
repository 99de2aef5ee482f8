"""rlx/MinAtar-GAME-v0: the five games of MinAtar (Young & Tian, 2019, arXiv:1903.03176), 10 x 10 pixels each.

An observation is [10, 10, channels] of uint8, 255 where an object is. Actions are repeated with probability `sticky`,
as in the paper, and all games have the same six actions unless `minimal_actions` leaves those out that do nothing.

MinAtar's own wrapper keeps the last action, which a sticky step repeats, across episodes; here every episode begins
without one, so that a seed and the actions since determine it. The modules of the games are loaded by themselves: the
package as a whole also imports what it draws with, which takes seconds. `render_mode="rgb_array"` draws as it does, in
other colours: every channel has one of its own, and of the objects in a place the one of the last channel is seen.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from functools import cache
from importlib.machinery import PathFinder
from types import ModuleType
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import register, registry
from omegaconf import MISSING

from rlx.envs.factory import EnvConfig, check_flags, check_name, check_sticky, make_vector_env
from rlx.envs.rendering import FRAMES, drawn_at, enlarged

__all__ = ["MinAtar", "MinatarConfig", "make_vector_env", "register_name"]

KEY = "env.game"
GAMES = ("asterix", "breakout", "freeway", "seaquest", "space_invaders")
NUM_ACTIONS = 6
MAX_STEPS = 10_000  # a good policy may never lose
COLORS = np.array(  # of nothing, and of the channels
    [
        (0, 0, 0), (255, 255, 255), (230, 75, 60), (125, 95, 60), (245, 205, 60), (70, 130, 240), (80, 200, 120),
        (190, 90, 220), (245, 145, 50), (90, 215, 230), (250, 160, 190),
    ],
    np.uint8,
)  # fmt: skip


@dataclass
class MinatarConfig(EnvConfig):
    """A game of MinAtar."""

    _target_: str = "rlx.envs.minatar.make_vector_env"
    game: str = MISSING  # asterix, breakout, freeway, seaquest or space_invaders


def register_name(name: str) -> None:
    """Have `gymnasium.make` know a game; UserError for a name that is none."""
    check_name(KEY, name, GAMES)
    env_id = f"rlx/MinAtar-{name}-v0"
    if env_id not in registry:
        register(env_id, f"{__name__}:MinAtar", kwargs={"game": name}, max_episode_steps=MAX_STEPS)


@cache
def _rules(game: str) -> ModuleType:
    """The module of a game; ImportError without MinAtar."""
    package = importlib.util.find_spec("minatar")
    folders = [f"{folder}/environments" for folder in (package and package.submodule_search_locations) or ()]
    spec = PathFinder.find_spec(game, folders)
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError("No module named 'minatar'")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class MinAtar(gym.Env[np.ndarray, np.int64]):
    """One game."""

    metadata = drawn_at(10)

    def __init__(
        self,
        game: str,
        sticky: float = 0.1,
        minimal_actions: bool = False,
        ramping: bool = True,
        render_mode: str | None = None,
    ):
        check_sticky(sticky)
        check_flags(minimal_actions=minimal_actions, ramping=ramping)
        self._game: Any = _rules(game).Env(ramping=ramping)
        self._sticky, self.render_mode = sticky, render_mode
        self._actions = self._game.minimal_action_set() if minimal_actions else list(range(NUM_ACTIONS))
        self._last = 0
        self.action_space = spaces.Discrete(len(self._actions))
        self.observation_space = spaces.Box(0, 255, tuple(self._game.state_shape()), np.uint8)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._game.random.seed(int(self.np_random.integers(2**31)))  # a new RandomState takes fifty times as long
        self._game.reset()
        self._last = 0
        return self._observe(), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        if self.np_random.random() >= self._sticky:
            self._last = self._actions[action]
        reward, over = self._game.act(self._last)
        return self._observe(), float(reward), bool(over), False, {}

    def _observe(self) -> np.ndarray:
        return np.asarray(np.negative(self._game.state().view(np.uint8)))  # -1 is 255

    def render(self) -> np.ndarray | None:
        if self.render_mode != FRAMES:
            return None
        state = self._game.state()
        return enlarged(COLORS[(state * np.arange(1, 1 + state.shape[2])).max(2)])
