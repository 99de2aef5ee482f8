"""REDQ: randomized ensembled double Q-learning (Chen et al., 2021), arXiv:2101.05982.

SAC with many updates per env step, kept unbiased enough by an ensemble:

    critic       y = r + discount * (1 - terminated) * (min_{i in M} Q_i'(s', a') - alpha * log pi(a'|s')),
                 M: `subset` of the `critics`, redrawn for every critic step
    actor        min alpha * log pi(a|s) - mean_i Q_i(s, a), with the temperature, on the last minibatch of an env step

The target entropy is -dim(A), except on MuJoCo, where the authors use MBPO's table (the tuned pairs have it). Networks
start by Xavier, without biases, as the authors' do.
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
class REDQConfig(ActorCriticConfig):
    _target_: str = "rlx.algos.redq.REDQ"
    name: str = "redq"
    actor_lr: float = 3e-4
    critic_lr: float = 3e-4
    alpha_lr: float = 3e-4
    alpha: float = number(1.0, above=0, read_once=True)  # the temperature, or its first value
    learn_alpha: bool = True  # move the temperature towards the target entropy
    target_entropy: float | None = number(None, read_once=True)  # None: -dim(A)
    tau: float = number(0.005, above=0, most=1)  # step of the target critics
    critics: int = number(10, least=1, read_once=True)  # size of the ensemble
    subset: int = number(2, least=1, most="critics")  # critics behind one target, drawn anew for every critic step
    policy_delay: int = number(20, least=1)  # critic steps per step of actor and temperature: the updates per env step


class REDQ(Learner):
    actions = ("box",)
    regimes = ("off_policy", "offline_to_online", "offline")
    images = True
    cfg: REDQConfig

    def __init__(self, cfg: REDQConfig, spec: Spec, encoder: EncoderFactory | None = None):
        super().__init__(cfg, spec, encoder)
        self.policy = SquashedGaussian(self.make_encoder(), spec.action_dim, cfg.actor_layers, init="xavier")
        self.critic = Critic(self.make_encoder(), spec.action_dim, cfg.critic_layers, cfg.critics, init="xavier")
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
        return self._learn(self.normalized(batch), self.due(self.cfg.policy_delay))

    @capturable
    def _learn(self, batch: Batch, improve: bool) -> Metrics:
        alpha = self.log_alpha.detach().exp()

        members = torch.randperm(self.cfg.critics)[: self.cfg.subset]
        loss, metrics = self._critic_loss(batch, alpha, members)
        self.optimizers["critic"].minimize(loss)
        polyak(self.targets, self.online, self.cfg.tau)

        if improve:
            loss, log_prob, actor_metrics = self._actor_loss(batch.obs, alpha)
            self.optimizers["actor"].minimize(loss)
            metrics |= actor_metrics | self._update_alpha(log_prob)
        return metrics

    def _critic_loss(self, batch: Batch, alpha: Tensor, members: Tensor) -> tuple[Tensor, Metrics]:
        with torch.no_grad():
            next_action, next_log_prob = self.policy.sample(batch.next_obs)
            smallest = self.target_critic(batch.next_obs, next_action, members=members).amin(0)
            next_value = smallest - alpha * next_log_prob
            target = td_target(batch.reward, batch.discount, batch.terminated, next_value)
        return critic_loss(self.critic(batch.obs, batch.action), target, coef=0.5)

    def _actor_loss(self, obs: Tensor, alpha: Tensor) -> tuple[Tensor, Tensor, Metrics]:
        action, log_prob = self.policy.sample(obs)
        q = self.critic(obs, action, frozen=True).mean(0)
        loss, metrics = soft_actor_loss(q, log_prob, alpha)
        return loss, log_prob.detach(), metrics

    def _update_alpha(self, log_prob: Tensor) -> Metrics:
        loss, metrics = alpha_loss(self.log_alpha, log_prob, self.target_entropy)
        if self.cfg.learn_alpha:
            self.optimizers["alpha"].minimize(loss)
        return metrics
