"""PPO (Schulman et al., 2017), arXiv:1707.06347, with the details of Huang et al. (2022) that matter.

    ratio    rho = pi(a|s) / pi_old(a|s)
    policy   max E[min(rho A, clip(rho, 1 - eps, 1 + eps) A)] + entropy_coef * H(pi(.|s)),  A by GAE
    value    min (V(s) - R)^2,  R = A + V_old(s)

Box actions are drawn from a Gaussian with a state-independent std and scored as drawn: the env layer clips them on
their way into the env, and log-probabilities are of the unclipped ones. Values and log-probabilities of a rollout are
computed here, in one batch, with the policy that collected it. A truncated episode bootstraps from the value of its
final observation. Where observations are images, policy and values share an encoder, which learns from both losses, or
have one each (`shared_encoder`); it starts orthogonal, as the networks do.

Deviations: observation statistics move between rollouts, not within them, so that acting and learning see the same
numbers; advantages are divided by the population std, so that a minibatch of one row gives zero and not nan.

Rewards are normalised by reward=running_norm.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rlx.capturing import capturable
from rlx.fields import number
from rlx.learner import ActorCriticConfig, Learner
from rlx.losses import Experience, approximate_kl, experience, explained_variance, standardized_in_parts
from rlx.nn import (
    OBS_CLIP,
    ActionHead,
    Adam,
    StateValue,
    clipped_surrogate,
    recorded,
    running_moments,
    value_error,
    weighted_sum,
)
from rlx.nn.encoders import EncoderFactory
from rlx.obs import take_rows
from rlx.types import Metrics, Rollout, Spec


@dataclass
class PPOConfig(ActorCriticConfig):
    _target_: str = "rlx.algos.ppo.PPO"
    name: str = "ppo"
    lr: float = 3e-4
    batch_size: int = number(64, least=1)  # rows of a minibatch
    epochs: int = number(10, least=1)  # passes over each rollout
    hidden: list[int] = field(default_factory=lambda: [64, 64])
    activation: str = "tanh"  # relu, tanh, elu or gelu
    shared_encoder: bool = True  # one encoder of images for policy and values, or one each
    gae_lambda: float = number(0.95, least=0, most=1)
    clip_range: float = number(0.2, above=0)  # how far the ratio may move before its gradient stops
    clip_range_value: float | None = number(None, above=0)  # the same for values, in units of the return; None: off
    normalize_advantage: bool = True  # per minibatch
    entropy_coef: float = 0.0
    value_coef: float = number(0.5, least=0)
    max_grad_norm: float = number(0.5, above=0)  # of policy and value function together
    target_kl: float | None = number(None, above=0)  # stop once KL(old | new) of a minibatch exceeds 1.5 times this
    log_std_init: float | None = number(None, read_once=True)  # None: a std of 1 in the env's units, or less


def ppo_loss(
    log_prob: Tensor, entropy: Tensor | None, value: Tensor, data: Experience, cfg: PPOConfig
) -> tuple[Tensor, Metrics]:
    """-E[min(rho A, clip(rho) A)] + value_coef * E[(V - R)^2] - entropy_coef * E[H]; no entropy: without this term."""
    policy = clipped_surrogate(log_prob, data.log_prob, data.advantage, cfg.clip_range)
    error = value_error(value, data.value, data.returns, cfg.clip_range_value)
    terms = [(1.0, policy), (cfg.value_coef, error)]
    loss = weighted_sum(*terms, *([(-cfg.entropy_coef, entropy)] if entropy is not None else []))
    return loss, {"loss/policy": policy.detach(), "loss/value": error.detach()}


class PPO(Learner):
    actions = ("box", "discrete", "multi_discrete")
    regimes = ("on_policy",)
    images = True
    reads = Rollout
    obs_mean: Tensor
    obs_std: Tensor
    obs_count: Tensor  # observations in these statistics so far

    def __init__(self, cfg: PPOConfig, spec: Spec, encoder: EncoderFactory | None = None):
        super().__init__(cfg, spec, encoder)
        self.cfg: PPOConfig = cfg
        policy_reads, critic_reads = self.make_encoders(cfg.shared_encoder)
        self.policy = ActionHead(policy_reads, spec, cfg.actor_layers, cfg.activation, cfg.log_std_init)
        self.critic = StateValue(critic_reads, cfg.critic_layers, cfg.activation)
        if cfg.normalize_obs:
            self.register_buffer("obs_count", torch.zeros((), dtype=torch.int64))
        params = [*self.policy.trainable(), *self.critic.parameters()]
        params += self.shared_encoder.parameters() if self.shared_encoder is not None else []
        self.optimizers["policy"] = Adam(params, cfg.lr, eps=1e-5)

    def normalize(self, obs: Tensor) -> Tensor:
        return super().normalize(obs).clamp(-OBS_CLIP, OBS_CLIP) if self.cfg.normalize_obs else obs

    @torch.no_grad()
    def act(self, obs: Tensor, explore: bool) -> Tensor:
        return self.policy.act(self.features(self.normalize(obs)), explore)

    def update(self, rollout: Rollout) -> Metrics:
        self.updates += 1
        cfg = self.cfg
        data = experience(rollout, self, cfg.gae_lambda)
        steps = []
        for minibatch in self._minibatches(data):
            metrics = self._learn(minibatch) if cfg.target_kl is None else self._learn_within(minibatch, cfg.target_kl)
            if metrics is None:
                break
            steps.append(metrics)
        if cfg.normalize_obs:
            running_moments(rollout.obs.flatten(0, 1), self.obs_mean, self.obs_std, self.obs_count)
        return self._report(data, steps)

    def _minibatches(self, data: Experience) -> Iterator[Experience]:
        size = self.cfg.batch_size
        for _ in range(self.cfg.epochs):
            order = torch.randperm(len(data.action))
            shuffled = Experience(*(take_rows(x, order) for x in data))  # one gather per field and epoch
            if self.cfg.normalize_advantage:
                shuffled = shuffled._replace(advantage=standardized_in_parts(shuffled.advantage, size))
            for start in range(0, len(order), size):
                rows = slice(start, start + size)
                yield Experience(*(take_rows(x, rows) for x in shuffled))

    @capturable
    def _learn(self, data: Experience) -> Metrics:
        loss, metrics, _ = self._loss(data)
        self.optimizers["policy"].minimize(loss, max_grad_norm=self.cfg.max_grad_norm)
        return metrics

    def _learn_within(self, data: Experience, target_kl: float) -> Metrics | None:
        """`_learn`, or no step and None if the policy has already moved too far."""
        kl, metrics = self._gather(data)
        if kl > 1.5 * target_kl:
            return None
        self._step_gathered()
        return metrics

    @capturable
    def _gather(self, data: Experience) -> tuple[Tensor, Metrics]:
        """The gradient of a minibatch, and how far the policy has moved from that of the rollout."""
        loss, metrics, log_prob = self._loss(data)
        self.optimizers["policy"].gather(loss)
        return approximate_kl(log_prob.detach(), data.log_prob), metrics

    @capturable
    def _step_gathered(self) -> None:
        self.optimizers["policy"].step_gathered(self.cfg.max_grad_norm)

    def _loss(self, data: Experience) -> tuple[Tensor, Metrics, Tensor]:
        """The loss of a minibatch, and the log-probabilities [B] of its actions."""
        cfg = self.cfg
        seen = recorded(self.features(data.obs))  # its networks are small: see rlx/nn/fused.py
        log_prob, entropy = self.policy(seen).score(data.action, entropy=cfg.entropy_coef != 0.0)
        loss, metrics = ppo_loss(log_prob, entropy, self.critic(seen), data, cfg)
        return loss, metrics, log_prob

    @torch.no_grad()
    def _report(self, data: Experience, steps: list[Metrics]) -> Metrics:
        """Mean losses of the steps taken, and how far the whole update moved the policy."""
        actions = self.policy(self.features(data.obs))
        log_prob = actions.log_prob(data.action)
        beyond = ((log_prob - data.log_prob).exp() - 1.0).abs() > self.cfg.clip_range
        return {
            "loss/policy": torch.stack([step["loss/policy"] for step in steps]).mean(),
            "loss/value": torch.stack([step["loss/value"] for step in steps]).mean(),
            "entropy": actions.entropy().mean(),
            "kl": approximate_kl(log_prob, data.log_prob),
            "clip_fraction": beyond.float().mean(),
            "explained_variance": explained_variance(data.value, data.returns),
            "gradient_steps": log_prob.new_tensor(len(steps)),
        }
