"""Conservative Q-learning (Kumar et al., 2020), arXiv:2006.04779: the variant CQL(H) on top of SAC.

    critic       sum_i (Q_i(s, a) - y)^2 + weight * gap_i,  y = r + discount * (1 - terminated) * min_i Q_i'(s', a')
    gap_i        log sum_a exp(Q_i(s, a) - log density(a)) - Q_i(s, data's action), over `n_actions` each of
                 uniform actions, of a ~ pi(s) and of a ~ pi(s'); all of them valued at s
    multiplier   where `lagrange_threshold` is set: multiplier * (weight * gap - threshold) instead of weight * gap,
                 with max over the multiplier in [0, 1e6]
    actor        min alpha * log pi(a|s) - min_i Q_i(s, a), after `bc_updates` of min alpha * log pi(a|s) - log pi(data)
    temperature  as in SAC, with target entropy -dim(A)

The backup is deterministic (no entropy), or with `max_q_backup` the best of `n_actions` for every critic, then the
smaller critic. As in the authors' code, the logsumexp is not divided by the number of actions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rlx.capturing import capturable
from rlx.errors import require
from rlx.fields import number
from rlx.learner import ActorCriticConfig, Learner
from rlx.losses import alpha_loss, critic_loss, soft_actor_loss
from rlx.nn import Adam, Critic, SquashedGaussian, polyak, squashed_sample, target_of
from rlx.nn.encoders import EncoderFactory
from rlx.returns import td_target
from rlx.types import Batch, Metrics, Spec

MAX_MULTIPLIER = 1e6


@dataclass
class CQLConfig(ActorCriticConfig):
    _target_: str = "rlx.algos.cql.CQL"
    name: str = "cql"
    actor_lr: float = 1e-4
    critic_lr: float = 3e-4
    alpha_lr: float = 1e-4
    alpha: float = number(1.0, above=0, read_once=True)  # first value of the temperature
    tau: float = number(0.005, above=0, most=1)  # step of the target critics
    weight: float = number(5.0, least=0)  # of the conservative gap; 5 or 10 for locomotion
    n_actions: int = number(10, least=1)  # of each of the three kinds of actions in the gap
    lagrange_threshold: float | None = number(None, least=0)  # gap that a learned multiplier allows; None: weight alone
    max_q_backup: bool = False  # bootstrap from the best of n_actions
    backup_entropy: bool = False  # entropy bonus in the target
    bc_updates: int = number(1_000, least=0)  # updates of imitation first; paper: 40,000 of a million


def cql_loss(
    candidates: Tensor, data: Tensor, weight: float, multiplier: Tensor | float = 1.0, threshold: float = 0.0
) -> tuple[Tensor, Tensor, Metrics]:
    """Conservative loss, summed over the critics, and their gaps [n].

    `candidates` [n, B, K] are values less the log-density of their actions, `data` [n, B] values of the data's actions.
    """
    gap = (torch.logsumexp(candidates, -1) - data).mean(-1)
    loss = (multiplier * (weight * gap - threshold)).sum()
    return loss, gap.detach(), {"loss/conservative": loss.detach(), "q/gap": gap.detach().mean()}


def gap_multiplier_loss(log_multiplier: Tensor, gap: Tensor, weight: float, threshold: float) -> tuple[Tensor, Metrics]:
    """Raises the multiplier while the weighted gap is above its threshold."""
    multiplier = log_multiplier.exp().clamp(max=MAX_MULTIPLIER)
    loss = -multiplier * (weight * gap - threshold).mean()
    return loss, {"loss/multiplier": loss.detach(), "q/multiplier": multiplier.detach()}


def values(critic: Critic, obs: Tensor, actions: Tensor) -> Tensor:
    """Q [n, B, K] of several actions [B, K, dim(A)] for each observation, in one call."""
    k = actions.shape[1]
    return critic(obs.repeat_interleave(k, 0), actions.flatten(0, 1)).unflatten(-1, (len(obs), k))


class CQL(Learner):
    actions = ("box",)
    regimes = ("offline", "offline_to_online")
    first_log_multiplier = 0.0
    cfg: CQLConfig

    def __init__(self, cfg: CQLConfig, spec: Spec, encoder: EncoderFactory | None = None):
        super().__init__(cfg, spec, encoder)
        require(
            not (cfg.max_q_backup and cfg.backup_entropy),
            "algo.max_q_backup bootstraps from values alone; drop it, or set algo.backup_entropy=false.",
        )
        threshold = cfg.lagrange_threshold
        self.policy = SquashedGaussian(self.make_encoder(), spec.action_dim, cfg.actor_layers)
        self.critic = Critic(self.make_encoder(), spec.action_dim, cfg.critic_layers)
        self.target_critic = target_of(self.critic)
        self.online, self.targets = list(self.critic.parameters()), list(self.target_critic.parameters())
        self.log_alpha = torch.nn.Parameter(torch.tensor(math.log(cfg.alpha)))
        self.target_entropy = -float(spec.action_dim)
        self.optimizers = {
            "actor": Adam(self.policy.parameters(), cfg.actor_lr),
            "critic": Adam(self.critic.parameters(), cfg.critic_lr),
            "alpha": Adam([self.log_alpha], cfg.alpha_lr),
        }
        if threshold is not None:
            self.log_multiplier = torch.nn.Parameter(torch.tensor(self.first_log_multiplier))
            self.optimizers["multiplier"] = Adam([self.log_multiplier], cfg.critic_lr)

    def act(self, obs: Tensor, explore: bool) -> Tensor:
        return self.policy.act(self.normalize(obs), explore)

    def update(self, batch: Batch) -> Metrics:
        self.updates += 1
        return self._learn(self.normalized(batch), self.updates <= self.cfg.bc_updates)

    @capturable
    def _learn(self, batch: Batch, imitate: bool) -> Metrics:
        alpha = self.log_alpha.detach().exp()

        loss, gap, metrics = self._critic_loss(batch, alpha)
        self.optimizers["critic"].minimize(loss)
        if self.cfg.lagrange_threshold is not None:
            threshold = self._threshold(self.cfg.lagrange_threshold)
            loss, multiplier_metrics = gap_multiplier_loss(self.log_multiplier, gap, self.cfg.weight, threshold)
            self.optimizers["multiplier"].minimize(loss)
            metrics |= multiplier_metrics

        loss, log_prob, actor_metrics = self._actor_loss(batch, alpha, imitate)
        self.optimizers["actor"].minimize(loss)

        loss, alpha_metrics = alpha_loss(self.log_alpha, log_prob, self.target_entropy)
        self.optimizers["alpha"].minimize(loss)
        polyak(self.targets, self.online, self.cfg.tau)
        return metrics | actor_metrics | alpha_metrics

    def _critic_loss(self, batch: Batch, alpha: Tensor) -> tuple[Tensor, Tensor, Metrics]:
        n, d = self.cfg.n_actions, self.spec.action_dim
        with torch.no_grad():
            target = td_target(batch.reward, batch.discount, batch.terminated, self._next_value(batch.next_obs, alpha))
            uniform = 2.0 * torch.rand(len(batch.obs), n, d, device=batch.obs.device) - 1.0
            # of pi(s) and of pi(s'), side by side: [B, 2n, d] and [B, 2n]
            drawn, log_prob = (
                torch.cat(x.chunk(2), 1) for x in self._sample(torch.cat([batch.obs, batch.next_obs]), n)
            )
            actions = torch.cat([batch.action.unsqueeze(1), uniform, drawn], 1)
        data, uniform_q, drawn_q = values(self.critic, batch.obs, actions).split([1, n, 2 * n], -1)
        data = data.squeeze(-1)
        loss, metrics = critic_loss(data, target)
        drawn_q, bounded = self._bounded(drawn_q, batch)
        candidates = torch.cat([uniform_q + d * math.log(2.0), drawn_q - log_prob], -1)  # uniform density: 0.5 ** d
        conservative, gap, gap_metrics = cql_loss(candidates, data, self.cfg.weight, *self._constraint())
        return loss + conservative, gap, metrics | gap_metrics | bounded

    def _bounded(self, q: Tensor, batch: Batch) -> tuple[Tensor, Metrics]:
        """The values [n, B, 2K] of the policy's actions as they enter the gap; Cal-QL bounds them from below."""
        return q, {}

    def _best(self, q: Tensor) -> Tensor:
        """One value [B] of the next state from those of several actions [n, B, K], under `max_q_backup`."""
        return q.amax(-1).amin(0)

    def _threshold(self, threshold: float) -> float:
        """What the weighted gap may be; Cal-QL weighs the threshold, too."""
        return threshold

    def _constraint(self) -> tuple[Tensor | float, float]:
        """The multiplier of the weighted gap and the threshold that is taken off it."""
        if self.cfg.lagrange_threshold is None:
            return 1.0, 0.0
        multiplier = self.log_multiplier.detach().exp().clamp(max=MAX_MULTIPLIER)
        return multiplier, self._threshold(self.cfg.lagrange_threshold)

    def _sample(self, obs: Tensor, n: int) -> tuple[Tensor, Tensor]:
        """Actions [B, n, dim(A)] of the policy and their log-probabilities [B, n]."""
        mean, log_std = (x.unsqueeze(1) for x in self.policy(obs))
        noise = torch.randn(len(obs), n, self.spec.action_dim, device=obs.device)
        action, log_prob, _ = squashed_sample(mean, log_std, noise)
        return action, log_prob

    def _next_value(self, next_obs: Tensor, alpha: Tensor) -> Tensor:
        if self.cfg.max_q_backup:
            action, _ = self._sample(next_obs, self.cfg.n_actions)
            return self._best(values(self.target_critic, next_obs, action))
        action, log_prob = self.policy.sample(next_obs)
        value = self.target_critic(next_obs, action).amin(0)
        return value - alpha * log_prob if self.cfg.backup_entropy else value

    def _actor_loss(self, batch: Batch, alpha: Tensor, imitate: bool) -> tuple[Tensor, Tensor, Metrics]:
        action, log_prob = self.policy.sample(batch.obs)
        if imitate:
            score = self.policy.log_prob(batch.obs, batch.action)
        else:
            score = self.critic(batch.obs, action, frozen=True).min(0).values
        loss, metrics = soft_actor_loss(score, log_prob, alpha)
        return loss, log_prob.detach(), metrics
