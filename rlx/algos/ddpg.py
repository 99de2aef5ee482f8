"""DDPG: deep deterministic policy gradient (Lillicrap et al., 2016), arXiv:1509.02971.

    critic  y = r + discount * (1 - terminated) * Q'(s', pi'(s')),  min (Q(s, a) - y)^2
    actor   max Q(s, pi(s))
    acting  pi(s) + noise, clipped to the box

Deviations, all of them the re-tuned DDPG of the TD3 paper: Gaussian noise in place of the Ornstein-Uhlenbeck process,
one learning rate and no weight decay, a faster target, the action as an input of the critic's first layer.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rlx.capturing import capturable
from rlx.fields import number
from rlx.learner import ActorCriticConfig, Learner
from rlx.losses import critic_loss, dpg_loss, with_noise
from rlx.nn import Adam, Critic, Deterministic, polyak, target_of
from rlx.nn.encoders import EncoderFactory
from rlx.returns import td_target
from rlx.types import Batch, Metrics, Spec


@dataclass
class DDPGConfig(ActorCriticConfig):
    _target_: str = "rlx.algos.ddpg.DDPG"
    name: str = "ddpg"
    actor_lr: float = 1e-3
    critic_lr: float = 1e-3
    tau: float = number(0.005, above=0, most=1)  # step of the target networks
    exploration_noise: float = number(0.1, least=0)  # std of the noise when collecting


class DDPG(Learner):
    actions = ("box",)
    regimes = ("off_policy", "offline_to_online", "offline")
    images = True
    cfg: DDPGConfig

    def __init__(self, cfg: DDPGConfig, spec: Spec, encoder: EncoderFactory | None = None):
        super().__init__(cfg, spec, encoder)
        self.policy = Deterministic(self.make_encoder(), spec.action_dim, cfg.actor_layers)
        self.critic = Critic(self.make_encoder(), spec.action_dim, cfg.critic_layers, n=1)
        self.target_policy, self.target_critic = target_of(self.policy), target_of(self.critic)
        self.online = [*self.policy.parameters(), *self.critic.parameters()]
        self.targets = [*self.target_policy.parameters(), *self.target_critic.parameters()]
        self.optimizers = {
            "actor": Adam(self.policy.parameters(), cfg.actor_lr),
            "critic": Adam(self.critic.parameters(), cfg.critic_lr),
        }

    @torch.no_grad()
    def act(self, obs: Tensor, explore: bool) -> Tensor:
        action = self.policy(self.normalize(obs))
        return with_noise(action, self.cfg.exploration_noise) if explore else action

    def update(self, batch: Batch) -> Metrics:
        self.updates += 1
        return self._learn(self.normalized(batch))

    @capturable
    def _learn(self, batch: Batch) -> Metrics:
        loss, metrics = self._critic_loss(batch)
        self.optimizers["critic"].minimize(loss)
        loss, actor_metrics = self._actor_loss(batch.obs)
        self.optimizers["actor"].minimize(loss)
        polyak(self.targets, self.online, self.cfg.tau)
        return metrics | actor_metrics

    def _critic_loss(self, batch: Batch) -> tuple[Tensor, Metrics]:
        with torch.no_grad():
            next_value = self.target_critic(batch.next_obs, self.target_policy(batch.next_obs))[0]
            target = td_target(batch.reward, batch.discount, batch.terminated, next_value)
        return critic_loss(self.critic(batch.obs, batch.action), target)

    def _actor_loss(self, obs: Tensor) -> tuple[Tensor, Metrics]:
        return dpg_loss(self.critic(obs, self.policy(obs), frozen=True)[0])
