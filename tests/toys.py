"""Toys that several tests share: envs of known length and a policy that remembers how far its episode is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from rlx.algos.ppo import PPO
from rlx.algos.td3_bc import TD3BC
from rlx.envs.vector import Step
from rlx.learner import Actor, AlgoConfig, Learner
from rlx.types import Acted, Box, Carry, Metrics, Obs, Rollout, Spec

SPEC = Spec("toy", (2,), "float32", "box", (1,), (-1.0,), (1.0,))
BOXES = SPEC._replace(obs_shape=(), boxes=(("place", Box((2,), "float32")), ("image", Box((1, 2, 2), "uint8"))))


class ToyEnvs:
    """Lane i terminates after lengths[i] steps; observations are (seed, steps so far), the reward is the action + i."""

    def __init__(self, *lengths: int, boxes: bool = False):
        self.num_envs = len(lengths)
        self.action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
        self._lengths = np.array(lengths)
        self._boxes = boxes
        self._seeds = np.zeros(self.num_envs, np.float32)
        self._at = np.zeros(self.num_envs, np.float32)

    def _seen(self) -> Any:
        place = np.stack([self._seeds, self._at], 1)
        image = np.repeat(self._at.astype(np.uint8), 4).reshape(-1, 1, 2, 2)
        return {"place": place, "image": image} if self._boxes else place

    def reset(self, seeds: dict[int, int]) -> dict[int, Any]:
        for i, seed in seeds.items():
            self._seeds[i], self._at[i] = seed % 1000, 0
        seen = self._seen()
        return {i: {k: v[i] for k, v in seen.items()} if self._boxes else seen[i] for i in seeds}

    def step(self, actions: Any) -> Step:
        self._at += 1
        reward = np.asarray(actions, np.float64)[:, 0] + np.arange(self.num_envs)
        ended = self._at >= self._lengths
        return Step(self._seen(), reward, ended, np.zeros(self.num_envs, bool), [{} for _ in ended])

    def close(self) -> None: ...


class CountingActor(Actor):
    """Remembers the steps of its episode and what they earned; acts by the first of these."""

    def initial(self, n: int) -> Carry:
        return torch.zeros(n), torch.zeros(n, 1)

    def act(self, obs: Obs, carry: Carry, explore: bool) -> Acted:
        steps, earned = carry
        return Acted((steps % 3 - 1)[:, None], (steps + 1, earned))

    def feedback(self, carry: Carry, reward: Tensor) -> Carry:
        return carry[0], carry[1] + reward[:, None]


@dataclass
class ToyConfig(AlgoConfig):
    name: str = "toy"


class ToyLearner(Learner):
    """Learns nothing; with memory or without."""

    def __init__(self, memory: bool = True, spec: Spec = SPEC):
        super().__init__(ToyConfig(), spec)
        self.weight = nn.Parameter(torch.zeros(1))
        self.memory = memory

    @property
    def actor(self) -> Actor:
        return CountingActor(self) if self.memory else Actor(self)

    def act(self, obs: Any, explore: bool) -> Tensor:
        return obs[:, 1:] % 3 - 1


class RememberingActor(CountingActor):
    """A policy without memory, with the count beside it."""

    def act(self, obs: Obs, carry: Carry, explore: bool) -> Acted:
        return Acted(self.learner.act(obs, explore), (carry[0] + 1, carry[1]))


class RememberingPPO(PPO):
    """PPO that reports the carry that its rollouts begin with."""

    @property
    def actor(self) -> Actor:
        return RememberingActor(self)

    def update(self, rollout: Rollout) -> Metrics:
        steps, earned = rollout.carry
        lanes = {f"carry/steps_{i}": n for i, n in enumerate(steps)}
        return super().update(rollout) | lanes | {"carry/earned": earned.mean()}


class RememberingTD3BC(TD3BC):
    """TD3+BC whose policy has a memory, of which it makes nothing."""

    @property
    def actor(self) -> Actor:
        return RememberingActor(self)
