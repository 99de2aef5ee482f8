"""AWAC: advantage-weighted actor-critic (Nair et al., 2020), arXiv:2006.09359.

    critic  y = r + discount * (1 - terminated) * min_i Q_i'(s', a'),  a' ~ pi(s')
            min sum_i (Q_i(s, a) - y)^2
    actor   max w(A) * log pi(a|s),  A = min_i Q_i(s, a) - min_i Q_i(s, a~),  a~ ~ pi(s)
            w = min(exp(A / temperature), max_weight), or softmax over the batch of A / temperature, times its size

The policy is the authors': an unsquashed Gaussian with a tanh mean, one std for all states, log_std in [-6, 0] (by a
clamp; theirs by a sigmoid). Defaults and the tuned pairs for MuJoCo are CORL's: two layers of 256, batches of 256, exp.
experiment=awac_paper has the authors' (rlkit): a policy of four layers with weight decay, batches of 1024, softmax.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor

from rlx.capturing import capturable
from rlx.fields import number
from rlx.learner import ActorCriticConfig, Learner
from rlx.losses import critic_loss
from rlx.nn import Adam, BoundedGaussian, Critic, polyak, target_of
from rlx.nn.encoders import EncoderFactory
from rlx.obs import map_obs
from rlx.returns import td_target
from rlx.types import Batch, Metrics, Spec


class Weighting(Enum):
    """How an advantage becomes the weight of an action."""

    exp = "exp"  # clipped exponential
    softmax = "softmax"  # over the batch, so that the weights average 1


TEMPERATURES = {Weighting.exp: 1.0, Weighting.softmax: 0.5}


@dataclass
class AWACConfig(ActorCriticConfig):
    _target_: str = "rlx.algos.awac.AWAC"
    name: str = "awac"
    actor_lr: float = 3e-4
    critic_lr: float = 3e-4
    actor_weight_decay: float = number(0.0, least=0, read_once=True)  # of Adam (L2), as the authors' 1e-4
    weighting: Weighting = Weighting.exp
    temperature: float | None = number(None, above=0, read_once=True)  # None: 1.0 for exp, 0.5 for softmax
    max_weight: float = number(100.0, above=0)  # bound of the weights under exp
    tau: float = number(0.005, above=0, most=1)  # step of the target critics


def awac_weights(advantage: Tensor, temperature: float, weighting: Weighting, max_weight: float) -> Tensor:
    """Weights [B] of the data's actions by their advantages [B]."""
    if weighting is Weighting.softmax:
        return len(advantage) * torch.softmax(advantage / temperature, 0)
    return torch.exp(advantage / temperature).clamp(max=max_weight)


def awac_loss(log_prob: Tensor, weight: Tensor) -> tuple[Tensor, Metrics]:
    """Weighted negative log-likelihood of the data's actions; both [B]."""
    loss = -(weight * log_prob).mean()
    metrics = {"loss/actor": loss.detach(), "policy/log_prob": log_prob.detach().mean(), "policy/weight": weight.mean()}
    return loss, metrics


class AWAC(Learner):
    actions = ("box",)
    regimes = ("offline", "offline_to_online")
    images = True
    cfg: AWACConfig

    def __init__(self, cfg: AWACConfig, spec: Spec, encoder: EncoderFactory | None = None):
        super().__init__(cfg, spec, encoder)
        self.temperature = TEMPERATURES[cfg.weighting] if cfg.temperature is None else cfg.temperature
        self.policy = BoundedGaussian(self.make_encoder(), spec.action_dim, cfg.actor_layers, log_std_range=(-6.0, 0.0))
        self.critic = Critic(self.make_encoder(), spec.action_dim, cfg.critic_layers)
        self.target_critic = target_of(self.critic)
        self.online, self.targets = list(self.critic.parameters()), list(self.target_critic.parameters())
        self.optimizers = {
            "actor": Adam(self.policy.parameters(), cfg.actor_lr, weight_decay=cfg.actor_weight_decay),
            "critic": Adam(self.critic.parameters(), cfg.critic_lr),
        }

    def act(self, obs: Tensor, explore: bool) -> Tensor:
        return self.policy.act(self.normalize(obs), explore)

    def update(self, batch: Batch) -> Metrics:
        self.updates += 1
        return self._learn(self.normalized(batch))

    @capturable
    def _learn(self, batch: Batch) -> Metrics:
        loss, metrics = self._critic_loss(batch)
        self.optimizers["critic"].minimize(loss)
        loss, actor_metrics = self._actor_loss(batch.obs, batch.action)
        self.optimizers["actor"].minimize(loss)
        polyak(self.targets, self.online, self.cfg.tau)
        return metrics | actor_metrics

    def _critic_loss(self, batch: Batch) -> tuple[Tensor, Metrics]:
        with torch.no_grad():
            next_action = self.policy.act(batch.next_obs, explore=True)
            next_value = self.target_critic(batch.next_obs, next_action).amin(0)
            target = td_target(batch.reward, batch.discount, batch.terminated, next_value)
        return critic_loss(self.critic(batch.obs, batch.action), target)

    def _actor_loss(self, obs: Tensor, action: Tensor) -> tuple[Tensor, Metrics]:
        pi = self.policy(obs)
        with torch.no_grad():
            sampled = pi.sample().clamp_(-1.0, 1.0)
            twice = map_obs(lambda x: torch.cat([x, x]), obs)
            q, value = self.critic(twice, torch.cat([action, sampled])).amin(0).chunk(2)
            advantage = q - value
            weight = awac_weights(advantage, self.temperature, self.cfg.weighting, self.cfg.max_weight)
        loss, metrics = awac_loss(pi.log_prob(action), weight)
        return loss, metrics | {"q/advantage": advantage.mean()}
