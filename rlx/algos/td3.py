"""TD3: twin delayed deep deterministic policy gradient (Fujimoto et al., 2018), arXiv:1802.09477.

    critic  y = r + discount * (1 - terminated) * min_i Q_i'(s', pi'(s') + clipped noise),  min sum_i (Q_i(s, a) - y)^2
    actor   max Q_1(s, pi(s)), and the targets follow, once in `policy_delay` critic updates
    acting  pi(s) + Gaussian noise, clipped to the box

Sizes and learning rates are those of the authors' later code: two layers of 256, batches of 256, Adam at 3e-4.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rlx.capturing import capturable
from rlx.fields import number
from rlx.learner import ActorCriticConfig, Learner
from rlx.losses import critic_loss, dpg_loss, smoothed, with_noise
from rlx.nn import Adam, Critic, Deterministic, polyak, target_of
from rlx.nn.encoders import EncoderFactory
from rlx.returns import td_target
from rlx.types import Batch, Metrics, Spec


@dataclass
class TD3Config(ActorCriticConfig):
    _target_: str = "rlx.algos.td3.TD3"
    name: str = "td3"
    actor_lr: float = 3e-4
    critic_lr: float = 3e-4
    policy_delay: int = number(2, least=1)  # critic updates per update of the actor and of all targets
    tau: float = number(0.005, above=0, most=1)  # step of the target networks
    target_noise: float = number(0.2, least=0)  # std of the noise on the target policy's action
    target_noise_clip: float = number(0.5, least=0)
    exploration_noise: float = number(0.1, least=0)  # std of the noise when collecting


class TD3(Learner):
    actions = ("box",)
    regimes = ("off_policy", "offline_to_online", "offline")
    images = True
    cfg: TD3Config

    def __init__(self, cfg: TD3Config, spec: Spec, encoder: EncoderFactory | None = None):
        super().__init__(cfg, spec, encoder)
        self.policy = Deterministic(self.make_encoder(), spec.action_dim, cfg.actor_layers)
        self.critic = Critic(self.make_encoder(), spec.action_dim, cfg.critic_layers)
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
        return self._learn(self.normalized(batch), self.due(self.cfg.policy_delay))

    @capturable
    def _learn(self, batch: Batch, improve: bool) -> Metrics:
        loss, metrics = self._critic_loss(batch)
        self.optimizers["critic"].minimize(loss)
        if improve:
            loss, actor_metrics = self._actor_loss(batch.obs)
            self.optimizers["actor"].minimize(loss)
            metrics |= actor_metrics
            polyak(self.targets, self.online, self.cfg.tau)
        return metrics

    def _critic_loss(self, batch: Batch) -> tuple[Tensor, Metrics]:
        with torch.no_grad():
            next_action = smoothed(
                self.target_policy(batch.next_obs), self.cfg.target_noise, self.cfg.target_noise_clip
            )
            next_value = self.target_critic(batch.next_obs, next_action).amin(0)
            target = td_target(batch.reward, batch.discount, batch.terminated, next_value)
        return critic_loss(self.critic(batch.obs, batch.action), target)

    def _actor_loss(self, obs: Tensor) -> tuple[Tensor, Metrics]:
        return dpg_loss(self.critic(obs, self.policy(obs), frozen=True, members=slice(1))[0])
