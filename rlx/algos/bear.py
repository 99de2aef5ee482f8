"""BEAR: bootstrapping error accumulation reduction (Kumar et al., 2019), arXiv:1906.00949.

The policy stays in the support of the data: a VAE models the behaviour policy, and the maximum mean discrepancy (MMD)
between a few actions of both, before their tanh, is held below `epsilon` by a Lagrange multiplier:

    critic      y = r + discount * (1 - terminated) * max_n soft_i Q_i'(s', a_n),  soft = lam * min + (1 - lam) * max,
                a_n ~ pi'(s')
    actor       max min_i Q_i(s, a) - multiplier * MMD(pi(s), VAE(s)),  a ~ pi(s); during the warm-up the MMD alone;
                the noise of these actions is clipped to +-0.5, as the latents of the VAE are: else matching the
                narrow set that such latents decode to would take the policy's std away
    multiplier  max multiplier * (MMD - epsilon) over log(multiplier) in [-5, 10]
    policy      among 10 samples the one with the largest Q_1

Deviations: the actor's value is that of one sample, not of all that the MMD uses; the warm-up is 5,000 updates unless a
tuned pair says otherwise (the authors make 20,000 of a million), and batches are of 256 (theirs of 100). Evaluation
draws the noise of its samples once, when the learner is made, and keeps it with the weights: the policy is then a
function of the observation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum

import torch
from torch import Tensor

from rlx.capturing import capturable
from rlx.fields import number
from rlx.learner import ActorCriticConfig, Learner
from rlx.losses import critic_loss, soft_min
from rlx.nn import VAE, Adam, Critic, SquashedGaussian, by_blocks, polyak, target_of, vae_loss
from rlx.nn.encoders import EncoderFactory
from rlx.returns import td_target
from rlx.types import Batch, Metrics, Spec

LOG_MULTIPLIER_MIN, LOG_MULTIPLIER_MAX = -5.0, 10.0


class Kernel(str, Enum):
    """How alike two actions are, from their distance."""

    laplacian = "laplacian"
    gaussian = "gaussian"


@dataclass
class BEARConfig(ActorCriticConfig):
    _target_: str = "rlx.algos.bear.BEAR"
    name: str = "bear"
    hidden: list[int] = field(default_factory=lambda: [400, 300])
    actor_lr: float = 1e-3
    critic_lr: float = 1e-3
    vae_lr: float = 1e-3
    multiplier_lr: float = 1e-3
    vae_hidden: list[int] = field(default_factory=lambda: [750, 750])
    kl_weight: float = number(0.5, least=0)  # of the latent's divergence against the reconstruction
    kernel: Kernel = Kernel.laplacian  # of the MMD: laplacian or gaussian
    sigma: float = number(20.0, above=0)  # width of the kernel; 10 for Hopper and HalfCheetah
    noise_clip: float | None = number(0.5, above=0)  # of the policy's actions in the actor's loss; None: not clipped
    mmd_samples: int = number(5, least=1)  # actions of the policy, and of the behaviour model, behind one MMD
    epsilon: float = number(0.05, above=0)  # MMD that the policy may have
    multiplier: float = number(1.0, above=0, read_once=True)  # first weight of the MMD
    warmup_updates: int = number(5_000, least=0)  # updates in which the policy follows the MMD alone
    lam: float = number(0.75, least=0, most=1)  # weight of the smaller critic in a target
    candidates: int = number(10, least=1)  # actions per next state
    eval_candidates: int = number(10, least=1, read_once=True)  # actions per state at evaluation
    tau: float = number(0.005, above=0, most=1)  # step of the target networks


def similarity(x: Tensor, y: Tensor, sigma: float, kernel: Kernel) -> Tensor:
    """Mean of the kernel over all pairs of x [N, B, dim(A)] and y [M, B, dim(A)], for every state: [B]."""
    difference = x.unsqueeze(1) - y
    distance = difference.abs() if kernel == Kernel.laplacian else difference.square()
    return (distance.sum(-1) / (-2.0 * sigma)).exp().mean((0, 1))


def mmd(x: Tensor, y: Tensor, sigma: float, kernel: Kernel = Kernel.laplacian) -> Tensor:
    """Maximum mean discrepancy [B] of two sets of actions per state, [N, B, dim(A)] and [M, B, dim(A)].

    Kernels: exp(-|x - y|_1 / (2 sigma)), or exp(-|x - y|^2 / (2 sigma)).
    """
    squared = similarity(x, x, sigma, kernel) - 2.0 * similarity(x, y, sigma, kernel) + similarity(y, y, sigma, kernel)
    return (squared + 1e-6).sqrt()


def bear_loss(q: Tensor | None, distance: Tensor, multiplier: Tensor) -> tuple[Tensor, Metrics]:
    """multiplier * MMD - Q, both [B]; the MMD alone where there is no Q."""
    loss = (multiplier * distance).mean()
    if q is not None:
        loss = loss - q.mean()
    return loss, {"loss/actor": loss.detach(), "policy/mmd": distance.detach().mean()}


def mmd_multiplier_loss(log_multiplier: Tensor, distance: Tensor, epsilon: float) -> tuple[Tensor, Metrics]:
    """Raises the multiplier while the MMD is above epsilon."""
    multiplier = log_multiplier.exp()
    loss = -multiplier * (distance.detach().mean() - epsilon)
    return loss, {"loss/multiplier": loss.detach(), "policy/multiplier": multiplier.detach()}


class BEAR(Learner):
    actions = ("box",)
    regimes = ("offline", "offline_to_online")
    ranks_actions = True
    cfg: BEARConfig
    eval_noise: Tensor  # [eval_candidates, 1, dim(A)]

    def __init__(self, cfg: BEARConfig, spec: Spec, encoder: EncoderFactory | None = None):
        super().__init__(cfg, spec, encoder)
        self.vae = VAE(self.obs_width, spec.action_dim, cfg.vae_hidden)
        self.policy = SquashedGaussian(self.obs_width, spec.action_dim, cfg.actor_layers)
        self.critic = Critic(self.obs_width, spec.action_dim, cfg.critic_layers)
        self.target_policy, self.target_critic = target_of(self.policy), target_of(self.critic)
        self.log_multiplier = torch.nn.Parameter(torch.tensor(math.log(cfg.multiplier)))
        self.register_buffer("eval_noise", torch.randn(cfg.eval_candidates, 1, spec.action_dim))
        self.optimizers = {
            "vae": Adam(self.vae.parameters(), cfg.vae_lr),
            "actor": Adam(self.policy.parameters(), cfg.actor_lr),
            "critic": Adam(self.critic.parameters(), cfg.critic_lr),
            "multiplier": Adam([self.log_multiplier], cfg.multiplier_lr),
        }

    @torch.no_grad()
    def act(self, obs: Tensor, explore: bool) -> Tensor:
        obs = self.normalize(obs)
        return self.policy.act(obs, explore=True) if explore else by_blocks(self._best, obs, self.cfg.eval_candidates)

    def _best(self, obs: Tensor) -> Tensor:
        """For every state the one sample that the first critic likes best."""
        mean, log_std = self.policy(obs)
        action = torch.tanh(mean + log_std.exp() * self.eval_noise)
        rows = obs.repeat(len(action), 1)
        best = self.critic(rows, action.flatten(0, 1), members=slice(1)).view(len(action), -1).argmax(0)
        return action[best, torch.arange(obs.shape[0], device=obs.device)]  # not len(): any number, once exported

    def update(self, batch: Batch) -> Metrics:
        self.updates += 1
        return self._learn(self.normalized(batch), self.updates > self.cfg.warmup_updates)

    @capturable
    def _learn(self, batch: Batch, warm: bool) -> Metrics:
        loss, metrics = self._vae_loss(batch)
        self.optimizers["vae"].minimize(loss)
        loss, critic_metrics = self._critic_loss(batch)
        self.optimizers["critic"].minimize(loss)
        loss, distance, actor_metrics = self._actor_loss(batch.obs, warm)
        self.optimizers["actor"].minimize(loss)
        metrics |= critic_metrics | actor_metrics | self._update_multiplier(distance)
        polyak(self.target_critic.parameters(), self.critic.parameters(), self.cfg.tau)
        polyak(self.target_policy.parameters(), self.policy.parameters(), self.cfg.tau)
        return metrics

    def _vae_loss(self, batch: Batch) -> tuple[Tensor, Metrics]:
        reconstruction, mean, log_std = self.vae(batch.obs, batch.action)
        return vae_loss(batch.action, reconstruction, mean, log_std, self.cfg.kl_weight)

    def _critic_loss(self, batch: Batch) -> tuple[Tensor, Metrics]:
        with torch.no_grad():
            next_value = by_blocks(self._next_value, batch.next_obs, self.cfg.candidates)
            target = td_target(batch.reward, batch.discount, batch.terminated, next_value)
        return critic_loss(self.critic(batch.obs, batch.action), target)

    def _next_value(self, next_obs: Tensor) -> Tensor:
        """First the soft minimum over the critics, then the maximum over the candidates."""
        n = self.cfg.candidates
        action = torch.tanh(samples(self.target_policy(next_obs), n)).flatten(0, 1)
        q = self.target_critic(next_obs.repeat(n, 1), action)
        return soft_min(q, self.cfg.lam).view(n, -1).amax(0)

    def _actor_loss(self, obs: Tensor, warm: bool) -> tuple[Tensor, Tensor, Metrics]:
        n = self.cfg.mmd_samples
        with torch.no_grad():
            rows = obs.repeat(n, 1)
            behaviour = self.vae.decode(rows, self.vae.draw(len(rows))).view(n, len(obs), -1)
        raw = samples(self.policy(obs), n, self.cfg.noise_clip)
        distance = mmd(raw, behaviour, self.cfg.sigma, self.cfg.kernel)
        q = self.critic(obs, torch.tanh(raw[0]), frozen=True).min(0).values if warm else None
        loss, metrics = bear_loss(q, distance, self.log_multiplier.detach().exp())
        return loss, distance.detach(), metrics

    def _update_multiplier(self, distance: Tensor) -> Metrics:
        loss, metrics = mmd_multiplier_loss(self.log_multiplier, distance, self.cfg.epsilon)
        self.optimizers["multiplier"].minimize(loss)
        with torch.no_grad():
            self.log_multiplier.clamp_(LOG_MULTIPLIER_MIN, LOG_MULTIPLIER_MAX)
        return metrics


def samples(gaussian: tuple[Tensor, Tensor], n: int, clip: float | None = None) -> Tensor:
    """n actions per state, before their tanh, of the policy's mean and log_std: [n, B, dim(A)]."""
    mean, log_std = gaussian
    noise = torch.randn(n, *mean.shape, device=mean.device)
    return mean + log_std.exp() * (noise if clip is None else noise.clamp_(-clip, clip))
