"""BCQ: batch-constrained deep Q-learning (Fujimoto et al., 2019), arXiv:1812.02900.

A VAE proposes actions that the data might hold, a small perturbation improves them, the critics choose among them:

    candidates  a_n = clip(b_n + phi * xi(s, b_n)),  b_n = decode(s, z_n),  z_n ~ clipped N(0, 1)
    critic      y = r + discount * (1 - terminated) * max_n soft_i Q_i'(s', a_n),  soft = lam * min + (1 - lam) * max,
                a_n with the target xi'
    actor       max Q_1(s, a) over xi, for one candidate per state
    policy      the candidate with the largest Q_1

Deviation: evaluation draws its latents once, when the learner is made, and keeps them with the weights: the policy is
then a function of the observation. Online it chooses among `candidates` fresh ones and adds Gaussian noise.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from rlx.capturing import capturable
from rlx.fields import number
from rlx.learner import ActorCriticConfig, Learner
from rlx.losses import critic_loss, soft_min, with_noise
from rlx.nn import VAE, Adam, Critic, Deterministic, by_blocks, polyak, target_of, vae_loss
from rlx.nn.encoders import EncoderFactory
from rlx.returns import td_target
from rlx.types import Batch, Metrics, Spec


@dataclass
class BCQConfig(ActorCriticConfig):
    _target_: str = "rlx.algos.bcq.BCQ"
    name: str = "bcq"
    actor_lr: float = 1e-3
    critic_lr: float = 1e-3
    vae_lr: float = 1e-3
    vae_hidden: list[int] = field(default_factory=lambda: [750, 750])
    kl_weight: float = number(0.5, least=0)  # of the latent's divergence against the reconstruction
    phi: float = number(0.05, least=0, most=1)  # largest perturbation, in units of the largest action
    lam: float = number(0.75, least=0, most=1)  # weight of the smaller critic in a target
    candidates: int = number(10, least=1)  # actions per next state, and per state when collecting online
    eval_candidates: int = number(100, least=1, read_once=True)  # actions per state at evaluation
    tau: float = number(0.005, above=0, most=1)  # step of the target networks
    exploration_noise: float = number(0.1, least=0)  # std of the noise when collecting online


def perturbed(action: Tensor, perturbation: Tensor, phi: float) -> Tensor:
    """The proposed action, moved by at most `phi`, inside [-1, 1]."""
    return (action + phi * perturbation).clamp(-1.0, 1.0)


def bcq_loss(q: Tensor, perturbation: Tensor) -> tuple[Tensor, Metrics]:
    """-Q of the perturbed actions [B]; a metric says how much of its range the perturbation [B, dim(A)] uses."""
    loss = -q.mean()
    return loss, {"loss/actor": loss.detach(), "policy/perturbation": perturbation.detach().abs().mean()}


class BCQ(Learner):
    actions = ("box",)
    regimes = ("offline", "offline_to_online")
    ranks_actions = True
    cfg: BCQConfig
    eval_latents: Tensor  # [eval_candidates, dim(z)]

    def __init__(self, cfg: BCQConfig, spec: Spec, encoder: EncoderFactory | None = None):
        super().__init__(cfg, spec, encoder)
        obs_dim, action_dim = self.obs_width, spec.action_dim
        self.vae = VAE(obs_dim, action_dim, cfg.vae_hidden)
        self.policy = Deterministic(obs_dim + action_dim, action_dim, cfg.actor_layers)  # xi(s, b)
        self.critic = Critic(obs_dim, action_dim, cfg.critic_layers)
        self.target_policy, self.target_critic = target_of(self.policy), target_of(self.critic)
        self.register_buffer("eval_latents", self.vae.draw(cfg.eval_candidates))
        self.optimizers = {
            "vae": Adam(self.vae.parameters(), cfg.vae_lr),
            "actor": Adam(self.policy.parameters(), cfg.actor_lr),
            "critic": Adam(self.critic.parameters(), cfg.critic_lr),
        }

    @torch.no_grad()
    def act(self, obs: Tensor, explore: bool) -> Tensor:
        latents = self.vae.draw(self.cfg.candidates) if explore else self.eval_latents
        action = by_blocks(lambda block: self._best(block, latents), self.normalize(obs), len(latents))
        if explore:
            action = with_noise(action, self.cfg.exploration_noise)
        return action

    def _best(self, obs: Tensor, latents: Tensor) -> Tensor:
        """For every state the one candidate, of these latents, that the first critic likes best."""
        states = obs.shape[0]  # not len(): in an exported policy it is any number
        rows = obs.repeat(len(latents), 1)
        action, _ = self._propose(rows, latents.unsqueeze(1).expand(-1, states, -1).flatten(0, 1), self.policy)
        best = self.critic(rows, action, members=slice(1)).view(len(latents), -1).argmax(0)
        return action.view(len(latents), states, -1)[best, torch.arange(states, device=obs.device)]

    def _propose(self, obs: Tensor, latent: Tensor, actor: Deterministic) -> tuple[Tensor, Tensor]:
        """Perturbed actions of the behaviour model, and their perturbations in [-1, 1]."""
        with torch.no_grad():
            action = torch.tanh(self.vae.decode(obs, latent))
        perturbation = actor(torch.cat([obs, action], -1))
        return perturbed(action, perturbation, self.cfg.phi), perturbation

    def update(self, batch: Batch) -> Metrics:
        self.updates += 1
        return self._learn(self.normalized(batch))

    @capturable
    def _learn(self, batch: Batch) -> Metrics:
        loss, metrics = self._vae_loss(batch)
        self.optimizers["vae"].minimize(loss)
        loss, critic_metrics = self._critic_loss(batch)
        self.optimizers["critic"].minimize(loss)
        loss, actor_metrics = self._actor_loss(batch.obs)
        self.optimizers["actor"].minimize(loss)
        polyak(self.target_critic.parameters(), self.critic.parameters(), self.cfg.tau)
        polyak(self.target_policy.parameters(), self.policy.parameters(), self.cfg.tau)
        return metrics | critic_metrics | actor_metrics

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
        rows = next_obs.repeat(self.cfg.candidates, 1)
        action, _ = self._propose(rows, self.vae.draw(len(rows)), self.target_policy)
        return soft_min(self.target_critic(rows, action), self.cfg.lam).view(self.cfg.candidates, -1).amax(0)

    def _actor_loss(self, obs: Tensor) -> tuple[Tensor, Metrics]:
        action, perturbation = self._propose(obs, self.vae.draw(len(obs)), self.policy)
        q = self.critic(obs, action, frozen=True, members=slice(1))[0]
        return bcq_loss(q, perturbation)
