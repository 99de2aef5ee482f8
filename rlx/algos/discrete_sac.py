"""Discrete SAC (Christodoulou, 2019), arXiv:1910.07207: SAC whose expectations over actions are exact sums.

    critic       y = r + discount * (1 - terminated) * sum_a pi(a|s') (min_i Q_i'(s', a) - alpha * log pi(a|s'))
                 min sum_i weight * (Q_i(s, a) - y)^2 / 2
    actor        min sum_a pi(a|s) (alpha * log pi(a|s) - min_i Q_i(s, a))
    temperature  min log(alpha) * (entropy of pi(.|s) - target entropy)

The target entropy is a share of log|A|, the entropy of a uniform policy; the paper takes 0.98 for Atari, which keeps a
policy with two actions close to random. The temperature's loss is linear in log(alpha), as in our SAC.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rlx.capturing import capturable
from rlx.fields import number
from rlx.learner import ActorCriticConfig, Learner
from rlx.losses import alpha_loss
from rlx.nn import ActionValues, Adam, polyak, target_of
from rlx.nn.encoders import EncoderFactory
from rlx.returns import td_target
from rlx.types import Batch, Metrics, Spec


@dataclass
class DiscreteSACConfig(ActorCriticConfig):
    _target_: str = "rlx.algos.discrete_sac.DiscreteSAC"
    name: str = "discrete_sac"
    actor_lr: float = 3e-4
    critic_lr: float = 3e-4
    alpha_lr: float = 3e-4
    adam_eps: float = number(1e-4, above=0, read_once=True)  # of the actor and the critics
    alpha: float = number(1.0, above=0, read_once=True)  # the temperature, or its first value
    learn_alpha: bool = True  # move the temperature towards the target entropy
    target_entropy_scale: float = number(0.5, least=0, below=1, read_once=True)  # target entropy as a share of log|A|
    tau: float = number(0.005, above=0, most=1)  # step of the target critics


def weighted_critic_loss(q: Tensor, target: Tensor, weight: Tensor | None = None) -> tuple[Tensor, Metrics]:
    """Squared error of both critics [2, B] against one target [B], summed over the critics."""
    error = (q - target).square()
    loss = 0.5 * len(q) * (error if weight is None else weight * error).mean()
    return loss, {"loss/critic": loss.detach(), "q/mean": q.detach().mean(), "q/target": target.mean()}


def expected_actor_loss(log_pi: Tensor, q: Tensor, alpha: Tensor) -> tuple[Tensor, Tensor, Metrics]:
    """Expected alpha * log pi - Q over the actions [B, A], and the mean entropy."""
    pi = log_pi.exp()
    loss = (pi * (alpha * log_pi - q)).sum(-1).mean()
    entropy = -(pi * log_pi).detach().sum(-1).mean()
    return loss, entropy, {"loss/actor": loss.detach(), "policy/entropy": entropy}


class DiscreteSAC(Learner):
    actions = ("discrete",)
    regimes = ("off_policy", "offline_to_online", "offline")
    images = True
    prioritized = True
    cfg: DiscreteSACConfig

    def __init__(self, cfg: DiscreteSACConfig, spec: Spec, encoder: EncoderFactory | None = None):
        super().__init__(cfg, spec, encoder)
        self.policy = ActionValues(self.make_encoder(), spec.action_dim, cfg.actor_layers)  # logits
        self.critic = ActionValues(self.make_encoder(), spec.action_dim, cfg.critic_layers, n=2)
        self.target_critic = target_of(self.critic)
        self.log_alpha = torch.nn.Parameter(torch.tensor(math.log(cfg.alpha)))
        self.target_entropy = cfg.target_entropy_scale * math.log(spec.action_dim)
        self.optimizers = {
            "actor": Adam(self.policy.parameters(), cfg.actor_lr, eps=cfg.adam_eps),
            "critic": Adam(self.critic.parameters(), cfg.critic_lr, eps=cfg.adam_eps),
            "alpha": Adam([self.log_alpha], cfg.alpha_lr),
        }

    @torch.no_grad()
    def act(self, obs: Tensor, explore: bool) -> Tensor:
        logits = self.policy(self.normalize(obs))
        if explore:  # Gumbel-max: -log of an Exp(1) variable is a Gumbel one
            logits -= torch.empty_like(logits).exponential_().log_()
        return logits.argmax(-1)

    def update(self, batch: Batch) -> Metrics:
        self.updates += 1
        self.td_error, metrics = self._learn(self.normalized(batch))
        return metrics

    @capturable
    def _learn(self, batch: Batch) -> tuple[Tensor | None, Metrics]:
        alpha = self.log_alpha.detach().exp()

        loss, td_error, metrics = self._critic_loss(batch, alpha)
        self.optimizers["critic"].minimize(loss)

        loss, entropy, actor_metrics = self._actor_loss(batch.obs, alpha)
        self.optimizers["actor"].minimize(loss)

        loss, alpha_metrics = alpha_loss(self.log_alpha, -entropy, self.target_entropy)
        if self.cfg.learn_alpha:
            self.optimizers["alpha"].minimize(loss)
        polyak(self.target_critic.parameters(), self.critic.parameters(), self.cfg.tau)
        return td_error, metrics | actor_metrics | alpha_metrics

    def _critic_loss(self, batch: Batch, alpha: Tensor) -> tuple[Tensor, Tensor | None, Metrics]:
        with torch.no_grad():
            log_pi = self.policy(batch.next_obs).log_softmax(-1)
            next_q = self.target_critic(batch.next_obs).amin(0)
            next_value = (log_pi.exp() * (next_q - alpha * log_pi)).sum(-1)
            target = td_target(batch.reward, batch.discount, batch.terminated, next_value)
        q = self.critic(batch.obs)  # [2, B, A]
        q = q.gather(-1, batch.action.expand(2, -1).unsqueeze(-1)).squeeze(-1)
        loss, metrics = weighted_critic_loss(q, target, batch.weight)
        return loss, None if batch.index is None else (q.detach() - target).abs().mean(0), metrics

    def _actor_loss(self, obs: Tensor, alpha: Tensor) -> tuple[Tensor, Tensor, Metrics]:
        with torch.no_grad():
            q = self.critic(obs).amin(0)
        return expected_actor_loss(self.policy(obs).log_softmax(-1), q, alpha)
