"""CrossQ (Bhatt et al., 2024), arXiv:1902.05605: SAC without target networks, made stable by batch normalisation.

    critic       [Q_i(s, a), Q_i(s', a')] = Q_i([s, s'], [a, a']) in one pass over both, a' ~ pi(s')
                 y = r + discount * (1 - terminated) * (min_i Q_i(s', a') - alpha * log pi(a'|s')), without gradient
                 min sum_i (Q_i(s, a) - y)^2 / 2
    actor        min alpha * log pi(a|s) - min_i Q_i(s, a),  a ~ pi(s);  every `policy_delay` updates

So the statistics of a batch are those of both actions, which is what lets the target networks go. a' and the Q of the
actor's loss use the running statistics (see rlx/nn/norm.py). Wide critics, a large learning rate and a small beta1 of
Adam (of actor and critics; the temperature has the usual one) belong to the method.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rlx.capturing import capturable
from rlx.fields import number
from rlx.learner import ActorCriticConfig, Learner
from rlx.losses import alpha_loss, critic_loss, soft_actor_loss
from rlx.nn import Adam, RenormMLP, SquashedSample, gaussian, noise_like, squashed_sample
from rlx.nn.encoders import EncoderFactory
from rlx.returns import td_target
from rlx.types import Batch, Metrics, Spec


@dataclass
class CrossQConfig(ActorCriticConfig):
    _target_: str = "rlx.algos.crossq.CrossQ"
    name: str = "crossq"
    batch_size: int = number(256, least=2)  # the statistics of a batch need two rows
    critic_hidden: list[int] | None = field(default_factory=lambda: [2048, 2048])  # None: as `hidden`
    actor_lr: float = 1e-3
    critic_lr: float = 1e-3
    alpha_lr: float = 1e-3
    beta1: float = number(0.5, least=0, below=1, read_once=True)  # of Adam, for the actor and the critics
    alpha: float = number(1.0, above=0, read_once=True)  # the temperature, or its first value
    learn_alpha: bool = True  # move the temperature towards the target entropy
    target_entropy: float | None = number(None, read_once=True)  # None: -dim(A)
    policy_delay: int = number(3, least=1)  # updates of the critics per update of the actor and the temperature
    renorm_warmup: int = number(100_000, least=0)  # passes with plain batch normalisation before renormalisation


class RenormGaussian(torch.nn.Module):
    """A tanh-Gaussian policy on a batch-renormalised network."""

    def __init__(self, obs_dim: int, action_dim: int, hidden: list[int]):
        super().__init__()
        self.net = RenormMLP([obs_dim, *hidden, 2 * action_dim], ensemble=1)

    def sample(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """An action and its log-probability [B], by the running statistics."""
        return self._squash(self.net(obs).squeeze(0))

    def learn(self, obs: Tensor, renorm: bool) -> tuple[Tensor, Tensor]:
        """The same by the statistics of the batch, reparametrised."""
        return self._squash(self.net.learn(obs, renorm).squeeze(0))

    def _squash(self, head: Tensor) -> tuple[Tensor, Tensor]:
        noise = noise_like(head.chunk(2, -1)[0])
        if head.requires_grad:
            return SquashedSample.apply(head, noise)
        return squashed_sample(*gaussian(head), noise)[:2]

    @torch.no_grad()
    def act(self, obs: Tensor, explore: bool) -> Tensor:
        mean, log_std = gaussian(self.net(obs).squeeze(0))
        return torch.tanh(torch.normal(mean, log_std.exp()) if explore else mean)


class CrossQ(Learner):
    actions = ("box",)
    regimes = ("off_policy", "offline_to_online", "offline")
    cfg: CrossQConfig

    def __init__(self, cfg: CrossQConfig, spec: Spec, encoder: EncoderFactory | None = None):
        super().__init__(cfg, spec, encoder)
        self.policy = RenormGaussian(self.obs_width, spec.action_dim, cfg.actor_layers)
        self.critic = RenormMLP([self.obs_width + spec.action_dim, *cfg.critic_layers, 1], ensemble=2)
        self.log_alpha = torch.nn.Parameter(torch.tensor(math.log(cfg.alpha)))
        self.target_entropy = -float(spec.action_dim) if cfg.target_entropy is None else cfg.target_entropy
        betas = (cfg.beta1, 0.999)
        self.optimizers = {
            "actor": Adam(self.policy.parameters(), cfg.actor_lr, betas),
            "critic": Adam(self.critic.parameters(), cfg.critic_lr, betas),
            "alpha": Adam([self.log_alpha], cfg.alpha_lr),
        }

    def act(self, obs: Tensor, explore: bool) -> Tensor:
        return self.policy.act(self.normalize(obs), explore)

    def update(self, batch: Batch) -> Metrics:
        self.updates += 1
        # each network warms up by passes of its own, of which the delayed actor makes fewer
        passes = (self.updates, self.updates // self.cfg.policy_delay)
        critic_renorm, actor_renorm = (n > self.cfg.renorm_warmup for n in passes)
        return self._learn(self.normalized(batch), critic_renorm, actor_renorm, self.due(self.cfg.policy_delay))

    @capturable
    def _learn(self, batch: Batch, critic_renorm: bool, actor_renorm: bool, improve: bool) -> Metrics:
        alpha = self.log_alpha.detach().exp()

        loss, metrics = self._critic_loss(batch, alpha, critic_renorm)
        self.optimizers["critic"].minimize(loss)

        if improve:
            loss, log_prob, actor_metrics = self._actor_loss(batch.obs, alpha, actor_renorm)
            self.optimizers["actor"].minimize(loss)
            loss, alpha_metrics = alpha_loss(self.log_alpha, log_prob, self.target_entropy)
            if self.cfg.learn_alpha:
                self.optimizers["alpha"].minimize(loss)
            metrics |= actor_metrics | alpha_metrics
        return metrics

    def _critic_loss(self, batch: Batch, alpha: Tensor, renorm: bool) -> tuple[Tensor, Metrics]:
        with torch.no_grad():
            next_action, next_log_prob = self.policy.sample(batch.next_obs)
            now = torch.cat([batch.obs, batch.action], -1)
            both = torch.cat([now, torch.cat([batch.next_obs, next_action], -1)])
        q, next_q = self.critic.learn(both, renorm).squeeze(-1).chunk(2, 1)  # [2, B] each
        next_value = next_q.detach().amin(0) - alpha * next_log_prob
        target = td_target(batch.reward, batch.discount, batch.terminated, next_value)
        return critic_loss(q, target, coef=0.5)

    def _actor_loss(self, obs: Tensor, alpha: Tensor, renorm: bool) -> tuple[Tensor, Tensor, Metrics]:
        action, log_prob = self.policy.learn(obs, renorm)
        q = self.critic(obs, action).squeeze(-1).min(0).values
        loss, metrics = soft_actor_loss(q, log_prob, alpha)
        return loss, log_prob.detach(), metrics
