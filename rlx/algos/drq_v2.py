"""DrQ-v2 (Yarats et al., 2022), arXiv:2107.09645: DDPG from pixels that are moved at random, with twin critics.

    critic   y = r + discount * (1 - terminated) * min_i Q_i'(h(s'), a'),  a' = pi(h(s')) + clipped noise
             min sum_i (Q_i(h(s), a) - y)^2 by the critics and by the encoder h
    actor    max min_i Q_i(h(s), pi(h(s)) + clipped noise), h as it is
    acting   pi(h(s)) + noise, cut off at the borders of the box

Policy and critics share the convolutions h, which learn by the critics' loss alone and have no target; each has a trunk
(a linear layer, LayerNorm, tanh) of its own behind them. The std of the noise falls from `std` to `std_end` while the
policy takes `std_steps` env steps (the random ones before do not count); `std_steps=0` keeps it at `std`, which
`schedule.targets.std` can then move. The authors take 100,000, 500,000 or 2,000,000 steps, by the difficulty of a task.
`algo=drq_v2` comes with encoder=drq, augment=shift, replay.n_step=3 and an update every other step; frames are stacked
and actions repeated by the env (`env=dmc`). From vectors, with encoder=auto augment=none, nothing is shared.
Networks start orthogonal and without biases.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from rlx.algos.dqn import linear_decay
from rlx.fields import number
from rlx.learner import ActorCriticConfig, Learner
from rlx.losses import critic_loss, dpg_loss
from rlx.nn import MLP, Adam, Critic, Deterministic, noise_like, polyak, target_of
from rlx.nn.encoders import EncoderFactory, orthogonal, split
from rlx.nn.heads import Reads
from rlx.obs import map_obs
from rlx.returns import td_target
from rlx.types import Batch, Metrics, Obs, Spec

INSIDE = 1.0 - 1e-6  # the largest action


@dataclass
class DrQV2Config(ActorCriticConfig):
    _target_: str = "rlx.algos.drq_v2.DrQV2"
    name: str = "drq_v2"
    hidden: list[int] = field(default_factory=lambda: [1024, 1024])
    actor_lr: float = 1e-4
    critic_lr: float = 1e-4  # of the encoder, too
    tau: float = number(0.01, above=0, most=1)  # step of the target critics
    std: float = number(1.0, least=0)  # of the noise on actions at the start
    std_end: float = number(0.1, least=0)  # and at the end
    std_steps: int = number(100_000, least=0)  # env steps in between; 0: std stays, or follows a schedule
    noise_clip: float = number(0.3, least=0)  # bound of the noise in updates; there is none when collecting


def truncated_normal(mean: Tensor, std: Tensor | float, clip: float | None = None) -> Tensor:
    """The mean under (clipped) noise, kept inside the box; the gradient passes as if nothing had been cut off."""
    noise = noise_like(mean) * std
    action = mean + (noise if clip is None else noise.clamp(-clip, clip))
    return action + (action.clamp(-INSIDE, INSIDE) - action).detach()


def start_orthogonal(network: nn.Module) -> None:
    """Start all layers of a network orthogonal, convolutions with the gain of ReLU, and without biases."""
    orthogonal(network, 1.0)
    for part in network.modules():
        if isinstance(part, MLP):
            for weight, bias in zip(part.weights, part.biases, strict=True):
                for member in weight if weight.dim() == 3 else [weight]:
                    nn.init.orthogonal_(member)
                nn.init.zeros_(bias)


class DrQV2(Learner):
    actions = ("box",)
    regimes = ("off_policy", "offline_to_online", "offline")
    images = True
    cfg: DrQV2Config

    def __init__(self, cfg: DrQV2Config, spec: Spec, encoder: EncoderFactory | None = None):
        super().__init__(cfg, spec, encoder)
        whole = self.make_encoder()
        self.encoder: nn.Module
        trunk: Reads
        self.encoder, trunk = (nn.Identity(), whole) if isinstance(whole, int) else split(whole)
        self.policy = Deterministic(copy.deepcopy(trunk), spec.action_dim, cfg.actor_layers)
        self.critic = Critic(trunk, spec.action_dim, cfg.critic_layers)
        for network in (self.encoder, self.policy, self.critic):
            start_orthogonal(network)
        self.target_critic = target_of(self.critic)
        self.online, self.targets = list(self.critic.parameters()), list(self.target_critic.parameters())
        self.optimizers = {
            "actor": Adam(self.policy.parameters(), cfg.actor_lr),
            "critic": Adam([*self.encoder.parameters(), *self.critic.parameters()], cfg.critic_lr),
        }

    @property
    def std(self) -> float:
        return linear_decay(self.cfg.std, self.cfg.std_end, self.cfg.std_steps, self.explored)

    @torch.no_grad()
    def act(self, obs: Tensor, explore: bool) -> Tensor:
        action = self.policy(self.encoder(self.normalize(obs)))
        return truncated_normal(action, self.std) if explore else action

    def update(self, batch: Batch) -> Metrics:
        self.updates += 1
        return self._learn(self.normalized(batch), torch.tensor(self.std, device=batch.reward.device))

    def _learn(self, batch: Batch, std: Tensor) -> Metrics:
        features = self.encoder(batch.obs)
        loss, metrics = self._critic_loss(features, batch, std)
        self.optimizers["critic"].minimize(loss)
        loss, actor_metrics = self._actor_loss(map_obs(Tensor.detach, features), std)
        self.optimizers["actor"].minimize(loss)
        polyak(self.targets, self.online, self.cfg.tau)
        return metrics | actor_metrics | {"policy/std": std}

    def _critic_loss(self, features: Obs, batch: Batch, std: Tensor) -> tuple[Tensor, Metrics]:
        with torch.no_grad():
            next_features = self.encoder(batch.next_obs)
            next_action = truncated_normal(self.policy(next_features), std, self.cfg.noise_clip)
            next_value = self.target_critic(next_features, next_action).amin(0)
            target = td_target(batch.reward, batch.discount, batch.terminated, next_value)
        return critic_loss(self.critic(features, batch.action), target)

    def _actor_loss(self, features: Obs, std: Tensor) -> tuple[Tensor, Metrics]:
        action = truncated_normal(self.policy(features), std, self.cfg.noise_clip)
        return dpg_loss(self.critic(features, action, frozen=True).min(0).values)  # cheaper gradients than amin
