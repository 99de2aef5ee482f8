"""TQC: truncated quantile critics (Kuznetsov et al., 2020), arXiv:2005.04269.

SAC whose critics give `quantiles` values of the return each; the largest of all of them are left out of the target:

    critic       Z(s', a') = all target quantiles, pooled and sorted, without the `critics * dropped` largest
                 y_j = r + discount * (1 - terminated) * (Z_j(s', a') - alpha * log pi(a'|s'))
                 min mean_ij |tau_i - 1(y_j < z_i)| * huber(y_j - z_i),  tau_i = (2i - 1) / (2 * quantiles)
    actor        min alpha * log pi(a|s) - mean of all quantiles at (s, a)

The loss is not summed pair by pair (z_i, y_j): the targets are sorted, so that prefix sums give it exactly.
Deviation: critics are as wide as the actor; the paper's are `critic_hidden: [512, 512, 512]`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rlx.capturing import capturable
from rlx.fields import number
from rlx.learner import ActorCriticConfig, Learner
from rlx.losses import alpha_loss, quantile_huber, soft_actor_loss
from rlx.nn import MLP, Adam, SquashedGaussian, polyak, target_of
from rlx.nn.encoders import EncoderFactory
from rlx.nn.heads import Reads, encoder_of, width_of
from rlx.returns import td_target
from rlx.types import Batch, Metrics, Spec


@dataclass
class TQCConfig(ActorCriticConfig):
    _target_: str = "rlx.algos.tqc.TQC"
    name: str = "tqc"
    actor_lr: float = 3e-4
    critic_lr: float = 3e-4
    alpha_lr: float = 3e-4
    alpha: float = number(1.0, above=0, read_once=True)  # the temperature, or its first value
    learn_alpha: bool = True  # move the temperature towards the target entropy
    target_entropy: float | None = number(None, read_once=True)  # None: -dim(A)
    tau: float = number(0.005, above=0, most=1)  # step of the target critics
    critics: int = number(5, least=1, read_once=True)  # size of the ensemble
    quantiles: int = number(25, least=1, read_once=True)  # values of each critic
    dropped: int = number(2, least=0, below="quantiles")  # of the quantiles, per critic: how pessimistic the target is


def without_largest(quantiles: Tensor, dropped: int) -> Tensor:
    """Quantiles [n, B, q] pooled and sorted, without the n * dropped largest: [B, n * (q - dropped)]."""
    n, _, q = quantiles.shape
    pooled = quantiles.transpose(0, 1).flatten(1)
    return pooled.sort(-1).values[:, : n * (q - dropped)]


def quantile_loss(quantiles: Tensor, target: Tensor) -> tuple[Tensor, Metrics]:
    """Quantile regression of all critics [n, B, q] against one set of sorted targets [B, m]."""
    loss = quantile_huber(quantiles, target).mean().float()
    return loss, {"loss/critic": loss.detach(), "q/mean": quantiles.detach().mean(), "q/target": target.mean()}


class QuantileCritic(MLP):
    """Z(s, a), `n` of them with `quantiles` each: [n, B, quantiles]."""

    def __init__(self, reads: Reads, action_dim: int, hidden: Sequence[int], n: int, quantiles: int):
        sizes = [width_of(reads) + action_dim, *hidden, quantiles]
        super().__init__(sizes, ensemble=n, encoder=encoder_of(reads))

    def forward(self, obs: Tensor, action: Tensor, frozen: bool = False) -> Tensor:  # type: ignore[override]
        return super().forward(obs, action, frozen)


class TQC(Learner):
    actions = ("box",)
    regimes = ("off_policy", "offline_to_online", "offline")
    images = True
    cfg: TQCConfig

    def __init__(self, cfg: TQCConfig, spec: Spec, encoder: EncoderFactory | None = None):
        super().__init__(cfg, spec, encoder)
        self.policy = SquashedGaussian(self.make_encoder(), spec.action_dim, cfg.actor_layers)
        self.critic = QuantileCritic(
            self.make_encoder(), spec.action_dim, cfg.critic_layers, cfg.critics, cfg.quantiles
        )
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
            kept = without_largest(self.target_critic(batch.next_obs, next_action), self.cfg.dropped)
            next_values = kept - (alpha * next_log_prob).unsqueeze(-1)
            reward, discount, terminated = (x[:, None] for x in (batch.reward, batch.discount, batch.terminated))
            target = td_target(reward, discount, terminated, next_values)  # [B, m], still in order
        return quantile_loss(self.critic(batch.obs, batch.action), target)

    def _actor_loss(self, obs: Tensor, alpha: Tensor) -> tuple[Tensor, Tensor, Metrics]:
        action, log_prob = self.policy.sample(obs)
        q = self.critic(obs, action, frozen=True).mean((0, 2))
        loss, metrics = soft_actor_loss(q, log_prob, alpha)
        return loss, log_prob.detach(), metrics

    def _update_alpha(self, log_prob: Tensor) -> Metrics:
        loss, metrics = alpha_loss(self.log_alpha, log_prob, self.target_entropy)
        if self.cfg.learn_alpha:
            self.optimizers["alpha"].minimize(loss)
        return metrics
