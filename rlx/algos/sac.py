"""Soft actor-critic (Haarnoja et al., 2018), arXiv:1812.05905.

    critic       y = r + discount * (1 - terminated) * (min_i Q_i'(s', a') - alpha * log pi(a'|s')),  a' ~ pi(s')
                 min sum_i (Q_i(s, a) - y)^2 / 2
    actor        min alpha * log pi(a|s) - min_i Q_i(s, a),  a ~ pi(s)
    temperature  min -log(alpha) * (log pi(a|s) + target entropy)

n-step returns need no special handling: a batch holds its summed reward and its discount gamma**n.
Deviation: the temperature's loss is linear in log(alpha), not in alpha; Adam makes little difference between them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rlx.capturing import capturable
from rlx.fields import number
from rlx.learner import ActorCriticConfig, Learner
from rlx.losses import alpha_loss, critic_loss, soft_actor_loss
from rlx.nn import Adam, Critic, SquashedGaussian, polyak, target_of
from rlx.nn.encoders import EncoderFactory
from rlx.returns import td_target
from rlx.types import Batch, Metrics, Spec


@dataclass
class SACConfig(ActorCriticConfig):
    _target_: str = "rlx.algos.sac.SAC"
    name: str = "sac"
    actor_lr: float = 3e-4
    critic_lr: float = 3e-4
    alpha_lr: float = 3e-4
    alpha: float = number(1.0, above=0, read_once=True)  # the temperature, or its first value
    learn_alpha: bool = True  # move the temperature towards the target entropy
    target_entropy: float | None = number(None, read_once=True)  # None: -dim(A)
    tau: float = number(0.005, above=0, most=1)  # step of the target critics


class SAC(Learner):
    actions = ("box",)
    regimes = ("off_policy", "offline_to_online", "offline")
    images = True
    cfg: SACConfig

    def __init__(self, cfg: SACConfig, spec: Spec, encoder: EncoderFactory | None = None):
        super().__init__(cfg, spec, encoder)
        self.policy = SquashedGaussian(self.make_encoder(), spec.action_dim, cfg.actor_layers)
        self.critic = Critic(self.make_encoder(), spec.action_dim, cfg.critic_layers)
        self.target_critic = target_of(self.critic)
        self.online, self.targets = list(self.critic.parameters()), list(self.target_critic.parameters())
        self.log_alpha = torch.nn.Parameter(torch.tensor(math.log(cfg.alpha)))
        self.target_entropy = -float(spec.action_dim) if cfg.target_entropy is None else cfg.target_entropy
        self.optimizers = {
            "actor": Adam(self.policy.parameters(), cfg.actor_lr),
            "critic": Adam(self.critic.parameters(), cfg.critic_lr),
            "alpha": Adam([self.log_alpha], cfg.alpha_lr),
        }

    def act(self, obs: Tensor, explore: bool) -> Tensor:
        return self.policy.act(self.normalize(obs), explore)

    def update(self, batch: Batch) -> Metrics:
        self.updates += 1
        return self._learn(self.normalized(batch))

    @capturable
    def _learn(self, batch: Batch) -> Metrics:
        alpha = self.log_alpha.detach().exp()

        loss, metrics = self._critic_loss(batch, alpha)
        self.optimizers["critic"].minimize(loss)

        loss, log_prob, actor_metrics = self._actor_loss(batch.obs, alpha)
        self.optimizers["actor"].minimize(loss)

        metrics |= actor_metrics | self._update_alpha(log_prob)
        polyak(self.targets, self.online, self.cfg.tau)
        return metrics

    def _critic_loss(self, batch: Batch, alpha: Tensor) -> tuple[Tensor, Metrics]:
        with torch.no_grad():
            next_action, next_log_prob = self.policy.sample(batch.next_obs)
            next_value = self.target_critic(batch.next_obs, next_action).amin(0) - alpha * next_log_prob
            target = td_target(batch.reward, batch.discount, batch.terminated, next_value)
        return critic_loss(self.critic(batch.obs, batch.action), target, coef=0.5)

    def _actor_loss(self, obs: Tensor, alpha: Tensor) -> tuple[Tensor, Tensor, Metrics]:
        action, log_prob = self.policy.sample(obs)
        q = self.critic(obs, action, frozen=True).min(0).values  # cheaper gradients than amin
        loss, metrics = soft_actor_loss(q, log_prob, alpha)
        return loss, log_prob.detach(), metrics

    def _update_alpha(self, log_prob: Tensor) -> Metrics:
        loss, metrics = alpha_loss(self.log_alpha, log_prob, self.target_entropy)
        if self.cfg.learn_alpha:
            self.optimizers["alpha"].minimize(loss)
        return metrics
