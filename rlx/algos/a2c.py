"""A2C, the synchronous form of A3C (Mnih et al., 2016), arXiv:1602.01783.

    policy   max E[A log pi(a|s)] + entropy_coef * H(pi(.|s)),  A = R - V(s)
    value    min (R - V(s))^2,  R the n-step return with n the length of the rollout (GAE with lambda = 1)

One step of RMSprop on each rollout, which is short, so that learning follows the newest policy closely. Where
observations are images, policy and values share an encoder, which learns from both losses, or have one each
(`shared_encoder`); it starts orthogonal, as the networks do.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from rlx.capturing import capturable
from rlx.fields import number
from rlx.learner import ActorCriticConfig, Learner
from rlx.losses import Experience, experience, explained_variance, standardized
from rlx.nn import OBS_CLIP, ActionHead, RMSprop, StateValue, running_moments
from rlx.nn.encoders import EncoderFactory
from rlx.types import Metrics, Rollout, Spec


@dataclass
class A2CConfig(ActorCriticConfig):
    _target_: str = "rlx.algos.a2c.A2C"
    name: str = "a2c"
    lr: float = 7e-4
    hidden: list[int] = field(default_factory=lambda: [64, 64])
    activation: str = "tanh"  # relu, tanh, elu or gelu
    shared_encoder: bool = True  # one encoder of images for policy and values, or one each
    gae_lambda: float = number(1.0, least=0, most=1)  # 1: n-step returns
    normalize_advantage: bool = False  # over the rollout
    entropy_coef: float = 0.0
    value_coef: float = number(0.5, least=0)
    max_grad_norm: float = number(0.5, above=0, read_once=True)  # of policy and value function together
    square_decay: float = number(0.99, least=0, below=1, read_once=True)  # of RMSprop: memory of the mean square
    eps: float = number(1e-5, above=0, read_once=True)  # added to the root of the mean square
    log_std_init: float | None = number(None, read_once=True)  # None: a std of 1 in the env's units, or less


def a2c_loss(
    log_prob: Tensor, entropy: Tensor, value: Tensor, advantage: Tensor, returns: Tensor, cfg: A2CConfig
) -> tuple[Tensor, Metrics]:
    policy = -(advantage * log_prob).mean()
    error = (value - returns).square().mean()
    entropy = entropy.mean()
    loss = policy + cfg.value_coef * error - cfg.entropy_coef * entropy
    return loss, {"loss/policy": policy.detach(), "loss/value": error.detach(), "entropy": entropy.detach()}


class A2C(Learner):
    actions = ("box", "discrete", "multi_discrete")
    regimes = ("on_policy",)
    images = True
    reads = Rollout
    obs_mean: Tensor
    obs_std: Tensor
    obs_count: Tensor  # observations in these statistics so far

    def __init__(self, cfg: A2CConfig, spec: Spec, encoder: EncoderFactory | None = None):
        super().__init__(cfg, spec, encoder)
        self.cfg: A2CConfig = cfg
        policy_reads, critic_reads = self.make_encoders(cfg.shared_encoder)
        self.policy = ActionHead(policy_reads, spec, cfg.actor_layers, cfg.activation, cfg.log_std_init)
        self.critic = StateValue(critic_reads, cfg.critic_layers, cfg.activation)
        if cfg.normalize_obs:
            self.register_buffer("obs_count", torch.zeros((), dtype=torch.int64))
        self.optimizers["policy"] = RMSprop(self.parameters(), cfg.lr, cfg.square_decay, cfg.eps, cfg.max_grad_norm)

    def normalize(self, obs: Tensor) -> Tensor:
        return super().normalize(obs).clamp(-OBS_CLIP, OBS_CLIP) if self.cfg.normalize_obs else obs

    @torch.no_grad()
    def act(self, obs: Tensor, explore: bool) -> Tensor:
        return self.policy.act(self.features(self.normalize(obs)), explore)

    def update(self, rollout: Rollout) -> Metrics:
        self.updates += 1
        cfg = self.cfg
        data = experience(rollout, self, cfg.gae_lambda)
        advantage = standardized(data.advantage) if cfg.normalize_advantage else data.advantage
        metrics: Metrics = self._learn(data._replace(advantage=advantage))
        if cfg.normalize_obs:
            running_moments(rollout.obs.flatten(0, 1), self.obs_mean, self.obs_std, self.obs_count)
        return metrics | {"explained_variance": explained_variance(data.value, data.returns)}

    @capturable
    def _learn(self, data: Experience) -> Metrics:
        seen = self.features(data.obs)
        actions, value = self.policy(seen), self.critic(seen)
        log_prob, entropy = actions.log_prob(data.action), actions.entropy()
        loss, metrics = a2c_loss(log_prob, entropy, value, data.advantage, data.returns, self.cfg)
        self.optimizers["policy"].minimize(loss)
        return metrics
