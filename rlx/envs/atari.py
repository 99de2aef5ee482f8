"""rlx/Atari-GAME-v0: Atari 2600 games, after the protocol of Machado et al. (2018), arXiv:1709.06009.

    frames    an action holds for `frame_skip` frames; the larger of each pixel's last two greys, `size` x `size`, and
              the newest `stack` of such pictures: [stack, size, size] of uint8
    sticky    on every frame the action before it is repeated with this probability
    episodes  whole games, of at most 108,000 frames: 30 minutes, 27,000 steps of four frames each

`fire_reset` presses FIRE where a life begins, for games that wait for it: after a reset, and at the end of the step
that lost a life, which then lasts for twice as many frames. The picture of that step is the one after FIRE, so that
every step adds one picture to the stack, and a policy never sees a life that waits. `episodic_life` has the learner
stop bootstrapping where a life is lost; the game goes on, so that returns are those of whole games. It is an option of
the envs that a run learns in (`env.training_kwargs`).

The emulator has no randomness of its own: sticky actions are drawn here, so that a seed and the actions since determine
an episode. Every one of them begins with the same state of the console. A reset of the emulator alone does not bring
that back in every game, and neither does a restored state; a reset and a restored state in that order do.

Pictures are scaled down by area, in whole numbers, so that they are the same to the bit everywhere. ALE's vector env
(`env.vectorization=native`) scales in its own way: it is faster on several cores, and gives other pixels.

`render_mode="rgb_array"` gives the console's own screen in colours, as it is after the last frame of a step.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import register, registry
from omegaconf import MISSING

from rlx.envs.factory import (
    EnvConfig,
    check_flags,
    check_name,
    check_stack,
    check_sticky,
    check_whole,
    make_vector_env,
    time_limit,
)  # fmt: skip
from rlx.envs.rendering import FRAMES, drawn_at
from rlx.envs.vector import LIFE_LOST, Lanes, Step
from rlx.errors import require
from rlx.types import ObsArray

__all__ = ["Atari", "AtariConfig", "AtariEnvs", "make_native", "make_vector_env", "register_name"]

log = logging.getLogger("rlx")

KEY = "env.game"
MAX_FRAMES = 108_000  # of an episode: 30 minutes
FRAME_SKIP = 4
FPS = 60  # of the console


@dataclass
class AtariConfig(EnvConfig):
    """An Atari game."""

    _target_: str = "rlx.envs.atari.make_vector_env"
    game: str = MISSING  # Pong, Breakout, SpaceInvaders, ...


def _games() -> dict[str, str]:
    """What ALE calls the ROM of every game that it can run, by the game's name."""
    import ale_py

    gym.register_envs(ale_py)  # ALE's own envs, which is how it tells which games it can run
    ids = [env_id for env_id in registry if env_id.startswith("ALE/") and env_id.endswith("-v5")]
    return {env_id[4:-3]: str(registry[env_id].kwargs["game"]) for env_id in ids}


def register_name(name: str) -> None:
    """Have `gymnasium.make` know a game; UserError for a name that is none, ImportError without ALE."""
    games = _games()
    check_name(KEY, name, sorted(games))
    env_id = f"rlx/Atari-{name}-v0"
    if env_id not in registry:
        register(env_id, f"{__name__}:Atari", kwargs={"rom": games[name]}, max_episode_steps=MAX_FRAMES // FRAME_SKIP)


def max_steps(kwargs: Mapping[str, Any]) -> int:
    """Steps of an episode with these keywords."""
    frame_skip = kwargs.get("frame_skip", FRAME_SKIP)
    check_whole(frame_skip=frame_skip)
    return MAX_FRAMES // int(frame_skip)


def area_weights(n: int, size: int) -> np.ndarray:
    """[size, n] how much of each of n pixels falls into each of `size` larger ones, in units that make it whole."""
    common = int(np.gcd(n, size))
    into, out_of = np.arange(size)[:, None] * (n // common), np.arange(n)[None] * (size // common)
    overlap = np.minimum(into + n // common, out_of + size // common) - np.maximum(into, out_of)
    return np.asarray(np.maximum(overlap, 0))


class Shrink:
    """Pictures [height, width] of uint8 as [size, size], by area.

    Every pixel is a sum of few. To gather them takes half the time of two products of matrices on one thread, and
    numpy's products take all cores.
    """

    def __init__(self, height: int, width: int, size: int):
        rows, columns = area_weights(height, size), area_weights(width, size)
        whole = int(rows[0].sum()) * int(columns[0].sum())  # of a pixel
        kind = np.uint16 if 255 * whole + whole // 2 < 2**16 else np.uint32
        self._whole, self._half = kind(whole), kind(whole // 2)
        (self._rows, self._row_weights), (self._columns, self._column_weights) = (
            _terms(weights.astype(kind)) for weights in (rows, columns)
        )

    def __call__(self, picture: np.ndarray) -> np.ndarray:
        kind = self._whole.dtype
        sums = (picture[self._rows] * self._row_weights).sum(0, dtype=kind)  # [size, width]
        sums = (sums.T[self._columns] * self._column_weights).sum(0, dtype=kind)  # [size, size], columns first
        sums += self._half
        sums //= self._whole
        return np.asarray(sums.T, np.uint8, order="C")


def _terms(weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of [size, n] weights those that matter: which of the n [k, size], and their weights [k, size, 1]."""
    size, n = weights.shape
    k = int((weights > 0).sum(1).max())
    terms = np.minimum((weights > 0).argmax(1), n - k) + np.arange(k)[:, None]
    return terms, weights[np.arange(size), terms][..., None]


class Atari(gym.Env[np.ndarray, np.int64]):
    """One game."""

    metadata = drawn_at(FPS / FRAME_SKIP)

    def __init__(
        self,
        rom: str,
        frame_skip: int = FRAME_SKIP,
        sticky: float = 0.25,
        size: int = 84,
        stack: int = 4,
        fire_reset: bool = False,
        full_actions: bool = False,
        episodic_life: bool = False,
        render_mode: str | None = None,
    ):
        import ale_py
        from ale_py import roms

        check_frames(frame_skip, sticky, size, stack)
        check_flags(fire_reset=fire_reset, full_actions=full_actions, episodic_life=episodic_life)
        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
        self._ale = ale = ale_py.ALEInterface()
        ale.setFloat("repeat_action_probability", 0.0)
        ale.setInt("random_seed", 1)
        ale.loadROM(str(roms.get_rom_path(rom)))
        ale.reset_game()
        self._frame_skip, self._sticky, self._stack = frame_skip, sticky, stack
        self._actions = ale.getLegalActionSet() if full_actions else ale.getMinimalActionSet()
        self._fire = ale_py.Action.FIRE if fire_reset and ale_py.Action.FIRE in self._actions else None
        self._noop = ale_py.Action.NOOP
        self._episodic_life, self.render_mode = episodic_life, render_mode
        self.metadata = drawn_at(FPS / frame_skip)
        shape = ale.getScreenDims()
        self._screens = np.zeros((2, *shape), np.uint8)  # the last two
        self._shrink = Shrink(shape[0], shape[1], size)
        ale.getScreenGrayscale(self._screens[0])
        self._first = self._shrink(self._screens[0])
        self._beginning = ale.cloneState(include_rng=True)
        self._frames = np.zeros((stack, size, size), np.uint8)
        self.observation_space = spaces.Box(0, 255, (stack, size, size), np.uint8)
        self.action_space = spaces.Discrete(len(self._actions))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._ale.reset_game()
        self._ale.restoreState(self._beginning)
        self._held = self._noop
        self._frames[:] = self._first
        if self._fire is not None:
            self._act(self._fire)
            self._push()
        self._lives = self._ale.lives()
        return self._frames.copy(), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        reward = self._act(self._actions[action])
        lost = self._ale.lives() < self._lives
        if lost and self._fire is not None and not self._ale.game_over():
            reward += self._act(self._fire)
        self._push()
        over, self._lives = self._ale.game_over(), self._ale.lives()
        lost = lost and not over
        return self._frames.copy(), reward, over, False, {LIFE_LOST: True} if lost and self._episodic_life else {}

    def _act(self, action: Any) -> float:
        """Hold an action for `frame_skip` frames; the sum of the rewards."""
        ale, reward, repeated = self._ale, 0, self.np_random.random(self._frame_skip) < self._sticky
        for i, again in enumerate(repeated.tolist()):
            if not again:
                self._held = action
            reward += ale.act(self._held)
            if ale.game_over():  # there are no further frames
                ale.getScreenGrayscale(self._screens[0])
                self._screens[1] = self._screens[0]
                break
            if i >= self._frame_skip - 2:
                ale.getScreenGrayscale(self._screens[i % 2])
        return float(reward)

    def _push(self) -> None:
        """The picture of the last two frames joins the stack."""
        first, second = self._screens
        screen = np.maximum(first, second, out=second) if self._frame_skip > 1 else first
        self._frames[:-1] = self._frames[1:]  # numpy moves what overlaps as if it had copied it before
        self._frames[-1] = self._shrink(screen)

    def render(self) -> np.ndarray | None:
        return np.asarray(self._ale.getScreenRGB()) if self.render_mode == FRAMES else None


def check_frames(frame_skip: int, sticky: float, size: int, stack: int) -> None:
    check_whole(frame_skip=frame_skip, size=size, stack=stack)
    check_stack(stack, size)
    check_sticky(sticky)


# -- ALE's own vector env --------------------------------------------------------------------------------------------


class AtariEnvs:
    """All games in ALE's own threads."""

    def __init__(self, envs: Any, name: str, limit: int | None, episodic_life: bool):
        self._envs = envs
        self.num_envs = n = envs.num_envs
        self.action_space = envs.single_action_space
        self._lanes = Lanes(name, n)
        self._limit, self._episodic_life = limit, episodic_life
        self._lives, self._length = np.zeros(n, np.int64), np.zeros(n, np.int64)

    def reset(self, seeds: dict[int, int]) -> dict[int, ObsArray]:
        self._lanes.begin(seeds)
        mask, lanes = np.zeros(self.num_envs, bool), sorted(seeds)
        mask[lanes] = True
        every = np.array([seeds[i] % 2**31 for i in lanes])
        obs, info = self._envs.reset(seed=every, options=None if mask.all() else {"reset_mask": mask})
        self._length[lanes], self._lives[lanes] = 0, info["lives"][lanes]
        return {i: obs[i].copy() for i in lanes}

    def step(self, actions: Sequence[Any]) -> Step:
        self._lanes.step()
        obs, reward, terminated, truncated, info = self._envs.step(np.asarray(actions, np.int64))
        self._length += 1
        lives = info["lives"].astype(np.int64)
        lost = (lives < self._lives) & ~terminated & self._episodic_life
        self._lives = lives
        if self._limit is not None:
            truncated = truncated | (self._length >= self._limit) & ~terminated
        return Step(
            obs, reward.astype(np.float64), terminated, truncated, [{LIFE_LOST: True} if x else {} for x in lost]
        )

    def close(self) -> None:
        self._envs.close()


def make_native(cfg: EnvConfig, n: int) -> AtariEnvs:
    """ALE's vector env with the same keywords."""
    from ale_py.vector_env import AtariVectorEnv

    given = {**registry[cfg.id].kwargs, **cfg.kwargs}
    rom, life = given.pop("rom"), given.pop("episodic_life", False)
    require(
        not given.pop("fire_reset", False),
        "env.vectorization=native does not press FIRE after a life was lost; use env.vectorization=sync, or "
        "env.kwargs.fire_reset=false.",
    )
    known = {"frame_skip": FRAME_SKIP, "sticky": 0.25, "size": 84, "stack": 4, "full_actions": False}
    for name in given:
        require(
            name in known,
            f"env.kwargs.{name} is not a keyword of {cfg.id} with env.vectorization=native; it has {', '.join(known)}.",
        )
    skip, sticky, size, stack, full = ({**known, **given}[name] for name in known)
    check_frames(skip, sticky, size, stack)
    check_flags(full_actions=full, episodic_life=life)
    log.info("ALE's own vector env scales pictures differently, and a resume is exact only as far as its games replay.")
    envs = AtariVectorEnv(
        rom, n, frameskip=skip, repeat_action_probability=sticky, img_height=size, img_width=size, stack_num=stack,
        full_action_space=full, noop_max=0, use_fire_reset=False, reward_clipping=False, maxpool=True,
        max_num_frames_per_episode=2**31 - 1,
    )  # fmt: skip
    return AtariEnvs(envs, cfg.id, time_limit(cfg), life)
