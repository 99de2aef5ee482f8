"""PPO (Schulman et al., 2017), arXiv:1707.06347, with the details of Huang et al. (2022) that decide.

    ratio    rho = pi(a|s) / pi_old(a|s)
    policy   max E[min(rho A, clip(rho, 1 - eps, 1 + eps) A)] + entropy_coef * H(pi(.|s)),  A by GAE
    value    min (V(s) - R)^2,  R = A + V_old(s)

Box actions are drawn from a Gaussian with a state-independent std and scored as drawn: the env layer clips them on
their way into the env, the log-probability never knows. Values and log-probabilities of a rollout are computed here, in
one batch, with the policy that collected it. A truncated episode bootstraps from the value of its final observation.

Deviations: observation statistics move between rollouts, not within them, so that acting and learning see the same
numbers; advantages are divided by the population std, so that a minibatch of one row gives zero and not nan.

Rewards are normalised by reward=running_norm.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rlx.compiling import compilable
from rlx.fields import number
from rlx.learner import ActorCriticConfig, Learner
from rlx.losses import Experience, approximate_kl, experience, explained_variance, standardized
from rlx.nn import OBS_CLIP, ActionHead, Adam, Perceptron, running_moments
from rlx.types import Metrics, Rollout, Spec


@dataclass
class PPOConfig(ActorCriticConfig):
    _target_: str = "rlx.algos.ppo.PPO"
    name: str = "ppo"
    lr: float = 3e-4
    batch_size: int = number(64, least=1)  # rows of a minibatch
    epochs: int = number(10, least=1)  # passes over each rollout
    hidden: list[int] = field(default_factory=lambda: [64, 64])
    activation: str = "tanh"
    gae_lambda: float = number(0.95, least=0, most=1)
    clip_range: float = number(0.2, above=0)  # how far the ratio may move before its gradient stops
    clip_range_value: float | None = number(None, above=0)  # the same for values, in units of the return; None: none
    normalize_advantage: bool = True  # per minibatch
    entropy_coef: float = 0.0
    value_coef: float = number(0.5, least=0)
    max_grad_norm: float = number(0.5, above=0)  # of policy and value function together
    target_kl: float | None = number(None, above=0)  # stop once KL(old | new) of a minibatch exceeds 1.5 times this
    log_std_init: float | None = number(None, read_once=True)  # None: a std of 1 in the env's units, or less


def policy_loss(log_prob: Tensor, old_log_prob: Tensor, advantage: Tensor, clip_range: float) -> tuple[Tensor, Tensor]:
    """The clipped surrogate, to be minimised, and its gradient by log_prob.

    min(rho A, clip(rho, 1 - eps, 1 + eps) A) = min(rho A, A + eps |A|), whose slope is rho A where the first is less.
    """
    free = (log_prob - old_log_prob).exp_().mul_(advantage)
    limit = torch.add(advantage, advantage.abs(), alpha=clip_range)
    return -torch.minimum(free, limit).mean(), torch.where(free <= limit, free, 0.0).div_(-len(free))


def value_loss(value: Tensor, old_value: Tensor, returns: Tensor, clip_range: float | None) -> tuple[Tensor, Tensor]:
    """Mean squared error and its gradient; with a clip range, of the worse of V and V kept near its old value."""
    error = value - returns
    if clip_range is None:
        return error.square().mean(), error * (2.0 / len(error))
    moved = value - old_value
    bound = old_value + moved.clamp(-clip_range, clip_range) - returns
    stuck = (moved.abs() > clip_range) & (bound.abs() > error.abs())  # the worse one is the bound: it has no slope
    return torch.where(stuck, bound, error).square().mean(), error.masked_fill(stuck, 0.0).mul_(2.0 / len(error))


class PPO(Learner):
    actions = ("box", "discrete", "multi_discrete")
    regimes = ("on_policy",)
    reads = Rollout
    obs_mean: Tensor
    obs_std: Tensor
    obs_count: Tensor  # observations in these statistics so far

    def __init__(self, cfg: PPOConfig, spec: Spec):
        super().__init__(cfg, spec)
        self.cfg: PPOConfig = cfg
        self.policy = ActionHead(spec, cfg.actor_layers, cfg.activation, cfg.log_std_init)
        self.critic = Perceptron([spec.obs_dim, *cfg.critic_layers, 1], cfg.activation, final_gain=1.0)
        if cfg.normalize_obs:
            self.register_buffer("obs_count", torch.zeros((), dtype=torch.int64))
        params = [*self.policy.trainable(), *self.critic.parameters()]
        self.optimizers["policy"] = Adam(params, cfg.lr, eps=1e-5)
        # All gradients lie in one vector, so that clipping their norm takes three operations.
        self._grad = torch.zeros(sum(p.numel() for p in params))
        parts = self._grad.split([p.numel() for p in params])
        self._grads = [part.view_as(p) for part, p in zip(parts, params, strict=True)]
        self._split = len(self.policy.trainable())

    def normalize(self, obs: Tensor) -> Tensor:
        return super().normalize(obs).clamp(-OBS_CLIP, OBS_CLIP) if self.cfg.normalize_obs else obs

    @torch.no_grad()
    def act(self, obs: Tensor, explore: bool) -> Tensor:
        return self.policy.act(self.normalize(obs).flatten(1), explore)

    def update(self, rollout: Rollout) -> Metrics:
        self.updates += 1
        cfg = self.cfg
        data = experience(rollout, self, cfg.gae_lambda)
        losses = []
        for minibatch in self._minibatches(data):
            step = self._improve(minibatch)
            if step is None:
                break
            losses.append(step)
        if cfg.normalize_obs:
            running_moments(rollout.obs.flatten(0, 1), self.obs_mean, self.obs_std, self.obs_count)
        return self._report(data, losses)

    def _minibatches(self, data: Experience) -> Iterator[Experience]:
        for _ in range(self.cfg.epochs):
            order = torch.randperm(len(data.obs))
            shuffled = [x[order].split(self.cfg.batch_size) for x in data]  # one gather per field and epoch
            yield from map(Experience._make, zip(*shuffled, strict=True))

    def _improve(self, minibatch: Experience) -> tuple[Tensor, Tensor] | None:
        """One gradient step on policy and critic; None, and no step, if the policy has already moved too far."""
        surrogate, error, kl = self._differentiate(minibatch)
        if kl is not None and self.cfg.target_kl is not None and kl > 1.5 * self.cfg.target_kl:
            return None
        self.optimizers["policy"].step(self._grads)
        return surrogate, error

    @compilable
    @torch.no_grad()
    def _differentiate(self, minibatch: Experience) -> tuple[Tensor, Tensor, Tensor | None]:
        """The losses of a minibatch; their clipped gradient is left in `_grads`."""
        cfg = self.cfg
        obs, action, old_log_prob, old_value, advantage, returns = minibatch
        trace, values = self.policy.net.trace(obs), self.critic.trace(obs)
        actions = self.policy.distribution(trace[-1])
        log_prob = actions.log_prob(action)
        if cfg.normalize_advantage:
            advantage = standardized(advantage)
        surrogate, slope = policy_loss(log_prob, old_log_prob, advantage, cfg.clip_range)
        error, value_slope = value_loss(values[-1].squeeze(-1), old_value, returns, cfg.clip_range_value)
        by_output = actions.gradient(action, slope, -cfg.entropy_coef / len(obs))
        self.policy.backward(trace, by_output, self._grads[: self._split])
        self.critic.backward(values, value_slope.mul_(cfg.value_coef).unsqueeze(-1), self._grads[self._split :])
        self._grad.mul_((cfg.max_grad_norm / (self._grad.norm() + 1e-6)).clamp_(max=1.0))
        return surrogate, error, None if cfg.target_kl is None else approximate_kl(log_prob, old_log_prob)

    @torch.no_grad()
    def _report(self, data: Experience, losses: list[tuple[Tensor, Tensor]]) -> Metrics:
        """Mean losses of the steps taken, and how far the whole update moved the policy."""
        actions = self.policy(data.obs)
        log_prob = actions.log_prob(data.action)
        beyond = ((log_prob - data.log_prob).exp() - 1.0).abs() > self.cfg.clip_range
        means = torch.stack([torch.stack(step) for step in losses]).mean(0)
        return {
            "loss/policy": means[0],
            "loss/value": means[1],
            "entropy": actions.entropy().mean(),
            "kl": approximate_kl(log_prob, data.log_prob),
            "clip_fraction": beyond.float().mean(),
            "explained_variance": explained_variance(data.value, data.returns),
            "gradient_steps": means.new_tensor(len(losses)),
        }
