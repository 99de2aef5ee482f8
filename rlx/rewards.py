"""Rewards as the learner sees them: one transform for dataset rows and for env steps alike.

The order of operations, each of them off by default:

    1. scale            r * scale
    2. shift            r + shift
    3. clip             into [clip_low, clip_high]
    4. sign             -1, 0 or 1
    5. step penalty     r - step_penalty
    6. terminal bonus   r + terminal_bonus where the episode terminated (not where it was truncated)
    7. success bonus    r + success_bonus where the env's info says so
    8. normalize_return r * return_range / (max - min) of the episode returns of a dataset, after 1-7 (IQL's rule)
    9. running_norm     r / std of the discounted return so far, after 1-7, clipped to +-running_clip (online only)

Evaluation never goes through here: it reports the raw return.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import numpy.typing as npt

from rlx.errors import UserError

if TYPE_CHECKING:
    from rlx.data.dataset import TransitionDataset

Array = npt.NDArray[Any]


@dataclass
class RewardConfig:
    """What happens to a reward before it is learned from; see the module for the order."""

    _target_: str = "rlx.rewards.RewardTransform"
    scale: float = 1.0  # factor on the env's reward
    shift: float = 0.0  # added after scaling
    clip_low: float | None = None  # lower bound after scale and shift; null: none
    clip_high: float | None = None  # upper bound after scale and shift; null: none
    sign: bool = False  # keep only the sign
    step_penalty: float = 0.0  # subtracted at every step
    terminal_bonus: float = 0.0  # added where the episode terminated; negative for a penalty
    success_bonus: float = 0.0  # added where info[success_key] is true
    success_key: str = "is_success"  # the env's name for success
    normalize_return: bool = False  # scale so that the dataset's episode returns span return_range
    return_range: float = 1000.0  # span of the returns under normalize_return
    running_norm: bool = False  # divide by the running std of the discounted return (online only)
    running_clip: float = 10.0  # bound of the reward under running_norm
    running_discount: float = 0.99  # discount of that return; use the algorithm's


class RunningReturn:
    """Mean and variance of the discounted return over all steps of all envs so far."""

    def __init__(self, discount: float):
        self.discount = discount
        self.count = 0
        self.mean = 0.0
        self.m2 = 0.0  # sum of squared deviations from the mean
        self.returns: Array | None = None  # [num_envs] discounted return of each env's episode

    @property
    def std(self) -> float:
        """1.0 until there are two values to compare."""
        return float(np.sqrt(self.m2 / self.count + 1e-8)) if self.count > 1 else 1.0

    def observe(self, reward: Array, ended: Array) -> None:
        """One step of every env; merged into the statistics by Chan's formula."""
        if self.returns is None:
            self.returns = np.zeros(len(reward))
        self.returns = self.returns * self.discount + reward
        n, mean = len(reward), float(self.returns.mean())
        total, delta = self.count + n, mean - self.mean
        self.m2 += float(((self.returns - mean) ** 2).sum()) + delta**2 * self.count * n / total
        self.mean += delta * n / total
        self.count = total
        self.returns[ended] = 0.0

    def state(self) -> dict[str, Any]:
        returns = None if self.returns is None else self.returns.tolist()
        return {"count": self.count, "mean": self.mean, "m2": self.m2, "returns": returns}

    def load_state(self, state: dict[str, Any]) -> None:
        self.count, self.mean, self.m2 = state["count"], state["mean"], state["m2"]
        self.returns = None if state["returns"] is None else np.array(state["returns"], np.float64)


class RewardTransform:
    """Maps raw rewards to those the learner sees. Dataset rows and env steps get the same bits."""

    def __init__(self, cfg: RewardConfig):
        if cfg.clip_low is not None and cfg.clip_high is not None and cfg.clip_low > cfg.clip_high:
            raise UserError(f"reward.clip_low ({cfg.clip_low}) is above reward.clip_high ({cfg.clip_high}).")
        if cfg.normalize_return and cfg.running_norm:
            raise UserError("reward.normalize_return and reward.running_norm exclude each other: choose one.")
        self.cfg = cfg
        neutral = ("_target_", "success_key", "return_range", "running_clip", "running_discount")
        self.identity = all(getattr(cfg, f.name) == f.default for f in fields(cfg) if f.name not in neutral)
        self.factor: float | None = None if cfg.normalize_return else 1.0  # of normalize_return, once fitted
        self.running = RunningReturn(cfg.running_discount) if cfg.running_norm else None
        self._returns: Array | None = None  # [num_envs] transformed return of each env's episode

    def fit(self, dataset: TransitionDataset) -> None:
        """Take what the transform has to know from a dataset; refuse what cannot apply to one."""
        if self.running is not None:
            raise UserError(
                "reward.running_norm follows the steps of an env and cannot apply to a dataset; "
                "use reward=normalize_return."
            )
        if not self.cfg.normalize_return:
            return
        shaped = self._shape(dataset.raw_reward, dataset.terminated, None)
        returns = np.add.reduceat(shaped, dataset.episodes[:, 0])
        low, high = float(returns.min()), float(returns.max())
        if not high > low:
            raise UserError(
                f"reward.normalize_return needs episodes with different returns, but all {len(returns)} of the dataset "
                f"have {low:g}; use reward=scale reward.scale=..."
            )
        self.factor = self.cfg.return_range / (high - low)

    def __call__(
        self,
        reward: Array,
        terminated: Array,
        truncated: Array | None = None,
        infos: Sequence[dict[str, Any]] | None = None,
    ) -> Array:
        """Transformed rewards [N], float32.

        Env steps also pass `truncated` and `infos`, one of each per env: running statistics learn from them, and the
        info of an episode that ends receives its "transformed_return".
        """
        shaped = self._shape(reward, terminated, infos)
        if self.factor is None:
            raise UserError(
                "reward.normalize_return is fitted on a dataset and there is none: add dataset=..., "
                "or use reward=running_norm."
            )
        ended = None if truncated is None else np.logical_or(terminated, truncated)
        shaped *= self.factor
        if self.running is not None:
            if ended is not None:
                self.running.observe(shaped, ended)
            shaped = np.clip(shaped / self.running.std, -self.cfg.running_clip, self.cfg.running_clip)
        transformed: Array = shaped.astype(np.float32)
        if ended is not None and infos is not None:
            self._note_returns(transformed, ended, infos)
        return transformed

    def state(self) -> dict[str, Any]:
        """For the checkpoint, as JSON; floats survive it exactly."""
        return {
            "factor": self.factor,
            "returns": None if self._returns is None else self._returns.tolist(),
            "running": None if self.running is None else self.running.state(),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        self.factor = state["factor"]
        self._returns = None if state["returns"] is None else np.array(state["returns"], np.float64)
        if self.running is not None:
            self.running.load_state(state["running"])

    def _shape(self, reward: Array, terminated: Array, infos: Sequence[dict[str, Any]] | None) -> Array:
        """Operations 1-7, in float64, on a copy."""
        cfg = self.cfg
        # Datasets hold float32, envs often give float64: through float32, equal rewards stay equal.
        r: Array = np.asarray(reward, np.float32).astype(np.float64)
        r = r * cfg.scale + cfg.shift
        if cfg.clip_low is not None or cfg.clip_high is not None:
            r = np.clip(r, cfg.clip_low, cfg.clip_high)
        if cfg.sign:
            r = np.sign(r)
        r -= cfg.step_penalty
        if cfg.terminal_bonus:
            r += cfg.terminal_bonus * np.asarray(terminated, np.float64)
        if cfg.success_bonus:
            if infos is None:
                raise UserError(
                    f"reward.success_bonus reads info[{cfg.success_key!r}] of an env, which datasets do not have; "
                    "use reward.terminal_bonus where success ends the episode."
                )
            r += cfg.success_bonus * np.array([bool(info.get(cfg.success_key, False)) for info in infos])
        return r

    def _note_returns(self, reward: Array, ended: Array, infos: Sequence[dict[str, Any]]) -> None:
        if self._returns is None:
            self._returns = np.zeros(len(reward))
        self._returns += reward
        for i in np.flatnonzero(ended).tolist():
            infos[i]["transformed_return"] = float(self._returns[i])
            self._returns[i] = 0.0


# Gymnasium wrappers, for envs outside of rlx runs.


class RewardScaleWrapper(gymnasium.RewardWrapper, gymnasium.utils.RecordConstructorArgs):
    """Multiplies rewards by `scale`."""

    def __init__(self, env: gymnasium.Env, scale: float):
        gymnasium.utils.RecordConstructorArgs.__init__(self, scale=scale)
        gymnasium.RewardWrapper.__init__(self, env)
        self.scale = scale

    def reward(self, reward: Any) -> Any:
        return reward * self.scale


class RewardShiftWrapper(gymnasium.RewardWrapper, gymnasium.utils.RecordConstructorArgs):
    """Adds `shift` to rewards."""

    def __init__(self, env: gymnasium.Env, shift: float):
        gymnasium.utils.RecordConstructorArgs.__init__(self, shift=shift)
        gymnasium.RewardWrapper.__init__(self, env)
        self.shift = shift

    def reward(self, reward: Any) -> Any:
        return reward + self.shift


class RewardClipWrapper(gymnasium.RewardWrapper, gymnasium.utils.RecordConstructorArgs):
    """Clips rewards into [low, high]; None leaves that side open."""

    def __init__(self, env: gymnasium.Env, low: float | None = -1.0, high: float | None = 1.0):
        if low is not None and high is not None and low > high:
            raise UserError(f"Cannot clip rewards into [{low}, {high}]: the lower bound is above the upper one.")
        gymnasium.utils.RecordConstructorArgs.__init__(self, low=low, high=high)
        gymnasium.RewardWrapper.__init__(self, env)
        self.low, self.high = low, high

    def reward(self, reward: Any) -> Any:
        if self.low is not None:
            reward = max(reward, self.low)
        return reward if self.high is None else min(reward, self.high)


def apply_reward_wrappers(
    env: gymnasium.Env,
    *,
    scale: float = 1.0,
    shift: float = 0.0,
    clip_low: float | None = None,
    clip_high: float | None = None,
) -> gymnasium.Env:
    """Wrap `env` in what is asked for, in the order of RewardTransform: scale, shift, clip."""
    if scale != 1.0:
        env = RewardScaleWrapper(env, scale)
    if shift != 0.0:
        env = RewardShiftWrapper(env, shift)
    if clip_low is not None or clip_high is not None:
        env = RewardClipWrapper(env, clip_low, clip_high)
    return env
