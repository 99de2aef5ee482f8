"""The local collector: envs and policy in this process, one vector step at a time.

It is exact: a checkpoint holds the journal of its envs, the carry of its actor and the generator of its random actions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlx.agent import LearnerAgent
from rlx.collectors.base import RANDOM_STEPS, Steps
from rlx.collectors.runner import Journal, Runner
from rlx.envs.actions import random_actions
from rlx.envs.vector import LIFE_LOST, EnvFault, NonFiniteAction, VectorEnv, is_finite
from rlx.learner import Learner
from rlx.rewards import RewardTransform
from rlx.types import ObsArray


@dataclass
class LocalConfig:
    """Act in this process; exact."""

    _target_: str = "rlx.collectors.local.LocalCollector"
    explore: bool = True  # false: act as in evaluation


class LocalCollector:
    """Acts with the learner itself, whose weights are always the newest."""

    def __init__(
        self,
        cfg: LocalConfig,
        learner: Learner,
        make_envs: Callable[[], VectorEnv],
        reward: RewardTransform,
        seed: int,
    ):
        self.learner = learner
        self.reward = reward
        self.envs = make_envs()
        self.num_envs = self.envs.num_envs
        self.agent = LearnerAgent(learner, self.num_envs, explore=cfg.explore)
        self.lost: Sequence[int] = ()
        self._runner = Runner(self.envs, seed)
        self._rng = np.random.default_rng(np.random.SeedSequence([seed, 0xAC7]))  # random actions
        self._random_steps = 0  # env steps that are still to be random
        self._saved: dict[str, Any] = {}  # between `load_state` and `load_tensors`

    def load(self, weights: Callable[[], Mapping[str, Tensor]], version: int, knobs: Mapping[str, float]) -> None:
        self._random_steps = int(knobs[RANDOM_STEPS])

    def collect(self, n: int) -> Steps:
        """One vector step, whatever n is: an interrupt ends the run after the step under way."""
        runner, agent = self._runner, self.agent
        obs, carry = runner.obs, agent.carry
        if self._random_steps > 0:  # a policy with memory takes no notice of them
            self._random_steps -= self.num_envs
            action = random_actions(self.learner.spec, self.num_envs, self._rng)
            step, finished = runner.step(action)
        else:
            action = self._act(obs)
            step, finished = runner.step(action)
            if carry:
                agent.feedback(step.reward)
        reward = step.reward
        if not self.reward.identity:
            reward = self.reward(step.reward, step.terminated, step.truncated, infos=step.infos)
            if not is_finite(reward):
                raise EnvFault(f"The reward transform made {reward.tolist()} of the rewards {step.reward.tolist()}")
        if carry and finished:
            agent.begin(np.flatnonzero(step.terminated | step.truncated).tolist())
        terminated, lost_life = step.terminated, None
        lost = [i for i, info in enumerate(step.infos) if info and info.get(LIFE_LOST)]
        if lost:  # nothing is bootstrapped from what follows; to the envs and to whom remembers it is no end
            terminated = terminated.copy()
            terminated[lost] = True
            lost_life = terminated & ~(step.terminated | step.truncated)
        return Steps(obs, action, reward, step.next_obs, terminated, step.truncated, finished, carry, lost_life)

    def _act(self, obs: ObsArray) -> np.ndarray:
        action = self.agent.act(obs)
        if not is_finite(action):
            raise NonFiniteAction(action)
        if self.agent.explore:  # past the bookkeeping of nn.Module, which is for parameters
            object.__setattr__(self.learner, "explored", self.learner.explored + self.num_envs)
        return action

    # -- checkpoints -----------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        journal = self._runner.journal()
        return {"episodes": journal.episodes, "hashes": journal.hashes, "rng": self._rng.bit_generator.state}

    def tensors(self) -> dict[str, Tensor]:
        """The actions of every env since its episode began, and the carry."""
        actions = {str(i): torch.from_numpy(a) for i, a in enumerate(self._runner.journal().actions)}
        return actions | {f"carry.{i}": tensor for i, tensor in enumerate(self.agent.carry)}

    def load_state(self, state: dict[str, Any]) -> None:
        if len(state["episodes"]) != self.num_envs:
            raise ValueError(f"it is of {len(state['episodes'])} envs")
        returns = self.reward.state()
        for part in (returns, returns["running"] or {}):
            if len(part.get("returns") or state["episodes"]) != self.num_envs:
                raise ValueError("its returns are of another number of envs")
        self._saved = state
        self._rng.bit_generator.state = state["rng"]

    def load_tensors(self, saved: dict[str, Tensor]) -> None:
        actions = [saved[str(i)].numpy() for i in range(self.num_envs)]
        self.lost = self._runner.restore(Journal(self._saved["episodes"], self._saved["hashes"], actions))
        fresh = self.agent.carry
        carry = tuple(saved[f"carry.{i}"].to(tensor.device) for i, tensor in enumerate(fresh))
        for ours, theirs in zip(fresh, carry, strict=True):
            if ours.shape != theirs.shape or ours.dtype != theirs.dtype or not theirs.isfinite().all():
                raise ValueError("what its policy remembers is not of this policy")
        self.agent.carry = carry
        self.agent.begin(self.lost)

    def close(self) -> None:
        self.envs.close()
