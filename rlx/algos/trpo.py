"""TRPO (Schulman et al., 2015), arXiv:1502.05477.

    max  E[pi(a|s) / pi_old(a|s) A]   subject to   E[KL(pi_old | pi)] <= max_kl

The step is s = sqrt(2 max_kl / x'Fx) x with F x = g: g the gradient of the objective, F the Fisher matrix of the
policy, solved by conjugate gradients on Fisher-vector products (the Hessian of the KL, by double backward). A line
search shrinks the step until the KL holds and the objective has improved; if it never does, the policy stays as it was.
The value function is fitted on its own, by Adam, after the policy; its gradients never reach the policy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.utils import parameters_to_vector

from rlx.capturing import capturable
from rlx.fields import number
from rlx.learner import ActorCriticConfig, Learner
from rlx.losses import Experience, experience, explained_variance, standardized
from rlx.nn import OBS_CLIP, ActionHead, Adam, StateValue, running_moments
from rlx.nn.encoders import EncoderFactory
from rlx.obs import take_rows
from rlx.types import Metrics, Obs, Rollout, Spec


@dataclass
class TRPOConfig(ActorCriticConfig):
    _target_: str = "rlx.algos.trpo.TRPO"
    name: str = "trpo"
    lr: float = 1e-3  # of the value function
    batch_size: int = number(128, least=1)  # rows of a minibatch of the value function
    epochs: int = number(10, least=1)  # passes of the value function over each rollout
    hidden: list[int] = field(default_factory=lambda: [64, 64])
    activation: str = "tanh"  # relu, tanh, elu or gelu
    gae_lambda: float = number(0.95, least=0, most=1)
    max_kl: float = number(0.01, above=0)  # radius of the trust region
    cg_iterations: int = number(15, least=1)
    cg_damping: float = number(0.1, least=0)  # added to the diagonal of the Fisher matrix
    line_search_steps: int = number(10, least=1)
    line_search_shrink: float = number(0.8, above=0, most=1)
    normalize_advantage: bool = True  # over the rollout
    log_std_init: float | None = number(None, read_once=True)  # None: a std of 1 in the env's units, or less


def conjugate_gradient(
    product: Callable[[Tensor], Tensor], b: Tensor, iterations: int, tolerance: float = 1e-10
) -> Tensor:
    """x with A x = b, for a symmetric positive definite A that is known by its products alone."""
    x = torch.zeros_like(b)
    residual, direction = b.clone(), b.clone()
    squared = residual.dot(residual)
    for _ in range(iterations):
        if squared < tolerance:
            break
        image = product(direction)
        length = squared / direction.dot(image)
        x += length * direction
        residual -= length * image
        previous, squared = squared, residual.dot(residual)
        direction = residual + (squared / previous) * direction
    return x


class TRPO(Learner):
    actions = ("box", "discrete", "multi_discrete")
    regimes = ("on_policy",)
    images = True
    reads = Rollout
    obs_mean: Tensor
    obs_std: Tensor
    obs_count: Tensor  # observations in these statistics so far

    def __init__(self, cfg: TRPOConfig, spec: Spec, encoder: EncoderFactory | None = None):
        super().__init__(cfg, spec, encoder)
        self.cfg: TRPOConfig = cfg
        policy_reads, critic_reads = self.make_encoders(shared=False)
        self.policy = ActionHead(policy_reads, spec, cfg.actor_layers, cfg.activation, cfg.log_std_init)
        self.critic = StateValue(critic_reads, cfg.critic_layers, cfg.activation)
        if cfg.normalize_obs:
            self.register_buffer("obs_count", torch.zeros((), dtype=torch.int64))
        self.optimizers["critic"] = Adam(self.critic.parameters(), cfg.lr, eps=1e-5)

    def normalize(self, obs: Tensor) -> Tensor:
        return super().normalize(obs).clamp(-OBS_CLIP, OBS_CLIP) if self.cfg.normalize_obs else obs

    @torch.no_grad()
    def act(self, obs: Tensor, explore: bool) -> Tensor:
        return self.policy.act(self.normalize(obs), explore)

    def update(self, rollout: Rollout) -> Metrics:
        self.updates += 1
        cfg = self.cfg
        data = experience(rollout, self, cfg.gae_lambda)
        if cfg.normalize_advantage:
            data = data._replace(advantage=standardized(data.advantage))
        metrics = self._improve_policy(data) | self._fit_critic(data)
        if cfg.normalize_obs:
            running_moments(rollout.obs.flatten(0, 1), self.obs_mean, self.obs_std, self.obs_count)
        return metrics | {"explained_variance": explained_variance(data.value, data.returns)}

    def _improve_policy(self, data: Experience) -> Metrics:
        cfg, params = self.cfg, list(self.policy.parameters())
        old, new = self.policy.snapshot(data.obs), self.policy(data.obs)
        objective = ((new.log_prob(data.action) - data.log_prob).exp() * data.advantage).mean()
        gradient = flat_grad(objective, params, retain_graph=True)
        slope = flat_grad(old.kl(new).mean(), params, create_graph=True)

        def fisher(vector: Tensor) -> Tensor:
            return flat_grad(slope.dot(vector), params, retain_graph=True) + cfg.cg_damping * vector

        direction = conjugate_gradient(fisher, gradient, cfg.cg_iterations)
        curvature = direction.dot(fisher(direction))
        step = direction * (2.0 * cfg.max_kl / curvature.clamp_min(1e-12)).sqrt()
        return self._line_search(data, step, objective.detach()) | {"entropy": new.entropy().mean().detach()}

    @torch.no_grad()
    def _line_search(self, data: Experience, step: Tensor, objective: Tensor) -> Metrics:
        """The longest step that stays in the trust region and improves; none of them: the policy is put back."""
        cfg, params = self.cfg, list(self.policy.parameters())
        start, old = parameters_to_vector(params), self.policy.snapshot(data.obs)
        nothing = torch.zeros_like(objective)
        kl = gain = accepted = nothing
        for i in range(cfg.line_search_steps):
            assign(params, start + cfg.line_search_shrink**i * step)
            new = self.policy(data.obs)
            gain = ((new.log_prob(data.action) - data.log_prob).exp() * data.advantage).mean() - objective
            kl = old.kl(new).mean()
            if kl < cfg.max_kl and gain > 0:
                accepted = torch.ones_like(objective)
                break
        else:
            assign(params, start)
            kl = gain = nothing
        return {"loss/policy": -(objective + gain), "kl": kl, "step_accepted": accepted}

    def _fit_critic(self, data: Experience) -> Metrics:
        losses = []
        for _ in range(self.cfg.epochs):
            for rows in torch.randperm(len(data.action)).split(self.cfg.batch_size):
                losses.append(self._fit(take_rows(data.obs, rows), data.returns[rows]))
        return {"loss/value": torch.stack(losses).mean()}

    @capturable
    def _fit(self, obs: Obs, returns: Tensor) -> Tensor:
        """One step of the critic towards the returns [B]; its loss."""
        loss = (self.critic(obs) - returns).square().mean()
        self.optimizers["critic"].minimize(loss)
        return loss.detach()


def assign(params: Sequence[Tensor], vector: Tensor) -> None:
    """Copy a vector into the parameters. Parameters that were views of it would lie at odd addresses in memory, where
    matrix products may round otherwise than after a resume.
    """
    for param, part in zip(params, vector.split([p.numel() for p in params]), strict=True):
        param.copy_(part.view_as(param))


def flat_grad(y: Tensor, params: Sequence[Tensor], retain_graph: bool = False, create_graph: bool = False) -> Tensor:
    grads = torch.autograd.grad(y, params, retain_graph=retain_graph or create_graph, create_graph=create_graph)
    return torch.cat([g.reshape(-1) for g in grads])
