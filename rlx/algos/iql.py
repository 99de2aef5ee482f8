"""Implicit Q-learning (Kostrikov et al., 2021), arXiv:2110.06169.

    value   min L(min_i Q_i'(s, a) - V(s)),  L(u) = |expectile - 1(u < 0)| u^2
    actor   max min(exp(beta * A), max_weight) * log pi(a|s),  A = min_i Q_i'(s, a) - V(s)
    critic  min sum_i (Q_i(s, a) - r - discount * (1 - terminated) * V(s'))^2

in this order: actor and critic see the new V. No action outside of the data is ever valued. The policy is an unsquashed
Gaussian with a tanh mean, one std for all states and log_std >= -5; it is evaluated by its mean. Networks start
orthogonal with a gain of sqrt 2, the last layers too, and without biases, as the authors' do.

expectile / beta: 0.7 / 3 for locomotion (with reward=normalize_return), 0.9 / 10 for AntMaze (with reward=antmaze),
0.7 / 0.5 and dropout 0.1 for Adroit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rlx.capturing import capturable
from rlx.fields import number
from rlx.learner import ActorCriticConfig, Learner
from rlx.losses import critic_loss
from rlx.nn import Adam, BoundedGaussian, ChoiceCritic, Critic, DiscreteHead, StateValue, polyak, target_of
from rlx.nn.encoders import EncoderFactory
from rlx.obs import map_obs
from rlx.returns import td_target
from rlx.types import Batch, Metrics, Spec


@dataclass
class IQLConfig(ActorCriticConfig):
    _target_: str = "rlx.algos.iql.IQL"
    name: str = "iql"
    actor_lr: float = 3e-4
    critic_lr: float = 3e-4
    value_lr: float = 3e-4
    expectile: float = number(0.7, above=0, below=1)  # 0.5 values the behaviour policy, towards 1 its best actions
    beta: float = number(3.0, least=0)  # inverse temperature of the advantages; 0 is cloning
    max_weight: float = number(100.0, above=0)  # bound of the weights
    dropout: float = number(0.0, least=0, below=1, read_once=True)  # of the policy
    tau: float = number(0.005, above=0, most=1)  # step of the target critics
    actor_decay_updates: int | None = number(None, least=1)  # the actor's lr falls to 0 along a cosine; None: it stays


def expectile_loss(q: Tensor, value: Tensor, expectile: float) -> tuple[Tensor, Metrics]:
    """Asymmetric squared error of V(s) against Q(s, a), both [B]."""
    error = q - value
    weight = torch.where(error < 0.0, 1.0 - expectile, expectile)
    loss = (weight * error.square()).mean()
    return loss, {"loss/value": loss.detach(), "value/mean": value.detach().mean()}


def iql_actor_loss(log_prob: Tensor, advantage: Tensor, beta: float, max_weight: float) -> tuple[Tensor, Metrics]:
    """Likelihood of the data's actions, weighted by their advantages; both [B]."""
    weight = torch.exp(beta * advantage).clamp(max=max_weight)
    loss = -(weight * log_prob).mean()
    return loss, {
        "loss/actor": loss.detach(),
        "policy/log_prob": log_prob.detach().mean(),
        "policy/weight": weight.mean(),
        "q/advantage": advantage.mean(),
    }


def cosine_decay(updates: int, horizon: int | None) -> float:
    """1 before the first update, 0 at the horizon and after it; always 1 without a horizon."""
    return 1.0 if horizon is None else 0.5 * (1.0 + math.cos(math.pi * min(1.0, updates / horizon)))


class IQL(Learner):
    actions = ("box",)
    regimes = ("offline", "offline_to_online")
    images = True
    cfg: IQLConfig

    def __init__(self, cfg: IQLConfig, spec: Spec, encoder: EncoderFactory | None = None):
        super().__init__(cfg, spec, encoder)
        start: dict[str, Any] = {"init": "orthogonal", "final_gain": math.sqrt(2.0)}
        self.policy, self.critic = self._make_policy(start), self._make_critic(start)
        self.target_critic = target_of(self.critic)
        self.online, self.targets = list(self.critic.parameters()), list(self.target_critic.parameters())
        self.value = StateValue(self.make_encoder(), cfg.critic_layers, **start)
        self.optimizers = {
            "value": Adam(self.value.parameters(), cfg.value_lr),
            "actor": Adam(self.policy.parameters(), cfg.actor_lr),
            "critic": Adam(self.critic.parameters(), cfg.critic_lr),
        }

    def _make_policy(self, start: dict[str, Any]) -> BoundedGaussian | DiscreteHead:
        cfg, dim = self.cfg, self.spec.action_dim
        return BoundedGaussian(self.make_encoder(), dim, cfg.actor_layers, dropout=cfg.dropout, **start)

    def _make_critic(self, start: dict[str, Any]) -> Critic | ChoiceCritic:
        return Critic(self.make_encoder(), self.spec.action_dim, self.cfg.critic_layers, **start)

    def act(self, obs: Tensor, explore: bool) -> Tensor:
        return self.policy.act(self.normalize(obs), explore)

    def update(self, batch: Batch) -> Metrics:
        decay = cosine_decay(self.updates, self.cfg.actor_decay_updates)  # besides the schedule's multiplier
        self.optimizers["actor"].lr = self.cfg.actor_lr * decay
        self.updates += 1
        return self._learn(self.normalized(batch))

    @capturable
    def _learn(self, batch: Batch) -> Metrics:
        with torch.no_grad():
            q = self.target_critic(batch.obs, batch.action).amin(0)

        loss, metrics = self._value_loss(batch.obs, q)
        self.optimizers["value"].minimize(loss)
        with torch.no_grad():
            value, next_value = self.value(map_obs(lambda *both: torch.cat(both), batch.obs, batch.next_obs)).chunk(2)

        loss, actor_metrics = self._actor_loss(batch.obs, batch.action, q - value)
        self.optimizers["actor"].minimize(loss)

        loss, critic_metrics = self._critic_loss(batch, next_value)
        self.optimizers["critic"].minimize(loss)
        polyak(self.targets, self.online, self.cfg.tau)
        return metrics | actor_metrics | critic_metrics

    def _value_loss(self, obs: Tensor, q: Tensor) -> tuple[Tensor, Metrics]:
        return expectile_loss(q, self.value(obs), self.cfg.expectile)

    def _actor_loss(self, obs: Tensor, action: Tensor, advantage: Tensor) -> tuple[Tensor, Metrics]:
        return iql_actor_loss(self.policy(obs).log_prob(action), advantage, self.cfg.beta, self.cfg.max_weight)

    def _critic_loss(self, batch: Batch, next_value: Tensor) -> tuple[Tensor, Metrics]:
        target = td_target(batch.reward, batch.discount, batch.terminated, next_value)
        return critic_loss(self.critic(batch.obs, batch.action), target)
