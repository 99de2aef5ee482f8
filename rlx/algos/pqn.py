"""PQN: parallelised Q-network (Gallici et al., 2024), arXiv:2407.04811: Q-learning from rollouts of many envs, with
neither a replay nor a target network.

    return  G_t = r_t + discount * ((1 - lam) * max_a Q(s_{t+1}, a) + lam * G_{t+1}), backwards over a rollout,
            cut where an episode ends; 0 follows a terminated state, max_a Q(s', a) a truncated one
    loss    min (Q(s, a) - G)^2 / 2 over several epochs of minibatches, by RAdam, the gradient clipped to norm 10

A LayerNorm behind every layer but the last keeps the values from running away: behind those of the network and, for
images, behind the convolutions of its encoder and its features. Returns are computed once per rollout.

It wants many envs: 16 unless `env.num_envs` says otherwise, for rollouts of 32 steps; 128 in the paper. Epsilon falls
from `epsilon` to `epsilon_end` while the policy takes `epsilon_steps` env steps, as in DQN.

Deviations: a truncated episode bootstraps from its final observation; the authors take it for terminated. For the last
but one step of a rollout their code takes the value of the observation after the last one, one step too far.
LayerNorm's eps is 1e-5, not 1e-6, and layers start orthogonal.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rlx.algos.dqn import epsilon_greedy, linear_decay
from rlx.capturing import capturable
from rlx.fields import number
from rlx.learner import AlgoConfig, Learner
from rlx.losses import next_values
from rlx.nn import MLP, OBS_CLIP, RAdam, chosen, running_moments
from rlx.nn.encoders import EncoderFactory, with_layer_norm
from rlx.nn.heads import encoder_of, width_of
from rlx.obs import map_obs, take_rows
from rlx.returns import lambda_returns
from rlx.types import Metrics, Rollout, Spec


@dataclass
class PQNConfig(AlgoConfig):
    _target_: str = "rlx.algos.pqn.PQN"
    name: str = "pqn"
    lr: float = 2.5e-4
    batch_size: int = number(128, least=1)  # rows of a minibatch
    epochs: int = number(2, least=1)  # passes over each rollout
    hidden: list[int] = field(default_factory=lambda: [128, 128])
    q_lambda: float = number(0.65, least=0, most=1)  # how far returns look beyond the next step
    max_grad_norm: float = number(10.0, above=0)  # the gradient is clipped to this norm
    layer_norm: bool = True  # behind every layer but the last
    epsilon: float = number(1.0, least=0, most=1)  # probability of a random action at the start
    epsilon_end: float = number(0.001, least=0, most=1)  # and at the end
    epsilon_steps: int = number(10_000, least=0)  # env steps in between; 0: epsilon stays, or follows a schedule


class Rows(NamedTuple):
    """A rollout as rows, with what each of them should be worth."""

    obs: Any  # [T * N, ...], normalised; a dict of such where the Spec has several boxes
    action: Tensor  # [T * N]
    returns: Tensor  # [T * N]


def pqn_loss(q: Tensor, action: Tensor, returns: Tensor) -> tuple[Tensor, Metrics]:
    """The mean of (Q(s, a) - G)^2 / 2 for the values [B, A]."""
    taken = chosen(q, action)
    loss = 0.5 * (taken - returns).square().mean()
    return loss, {"loss/q": loss.detach(), "q/mean": taken.detach().mean()}


class PQN(Learner):
    actions = ("discrete",)
    regimes = ("on_policy",)
    images = True
    reads = Rollout
    obs_mean: Tensor
    obs_std: Tensor
    obs_count: Tensor  # observations in these statistics so far
    cfg: PQNConfig

    def __init__(self, cfg: PQNConfig, spec: Spec, encoder: EncoderFactory | None = None):
        super().__init__(cfg, spec, encoder)
        reads = self.make_encoder()
        if cfg.layer_norm and not isinstance(reads, int):
            reads = with_layer_norm(reads)
        sizes = [width_of(reads), *cfg.hidden, spec.action_dim]
        self.q = MLP(sizes, layer_norm=cfg.layer_norm, init="orthogonal", encoder=encoder_of(reads))
        if cfg.normalize_obs:
            self.register_buffer("obs_count", torch.zeros((), dtype=torch.int64))
        self.optimizers["q"] = RAdam(self.q.parameters(), cfg.lr)

    def normalize(self, obs: Tensor) -> Tensor:
        return super().normalize(obs).clamp(-OBS_CLIP, OBS_CLIP) if self.cfg.normalize_obs else obs

    @property
    def epsilon(self) -> float:
        cfg = self.cfg
        return linear_decay(cfg.epsilon, cfg.epsilon_end, cfg.epsilon_steps, self.explored)

    @torch.no_grad()
    def act(self, obs: Tensor, explore: bool) -> Tensor:
        action = self.q(self.normalize(obs)).argmax(-1)
        return epsilon_greedy(action, self.spec.action_dim, self.epsilon) if explore else action

    def update(self, rollout: Rollout) -> Metrics:
        self.updates += 1
        cfg = self.cfg
        rows = self._rows(rollout)
        steps = []
        for minibatch in self._minibatches(rows):
            steps.append(self._learn(minibatch))
        if cfg.normalize_obs:
            running_moments(rollout.obs.flatten(0, 1), self.obs_mean, self.obs_std, self.obs_count)
        means = {name: torch.stack([step[name] for step in steps]).mean() for name in steps[0]}
        return means | {"q/target": rows.returns.mean()}

    @torch.no_grad()
    def _rows(self, rollout: Rollout) -> Rows:
        obs = self.normalize(map_obs(lambda x: x.flatten(0, 1), rollout.obs))
        value = self._best(obs).view_as(rollout.reward)
        next_value = next_values(rollout, value, lambda obs: self._best(self.normalize(obs)))
        ends = rollout.terminated, rollout.truncated
        returns = lambda_returns(rollout.reward, next_value, *ends, self.cfg.discount, self.cfg.q_lambda)
        return Rows(obs, rollout.action.flatten(), returns.flatten())

    def _best(self, obs: Tensor) -> Tensor:
        """max_a Q(s, a) [B]."""
        return self.q(obs).amax(-1)

    def _minibatches(self, rows: Rows) -> Iterator[Rows]:
        size = self.cfg.batch_size
        for _ in range(self.cfg.epochs):
            order = torch.randperm(len(rows.action))
            shuffled = Rows(*(take_rows(x, order) for x in rows))  # one gather per field and epoch
            for start in range(0, len(order), size):
                yield Rows(*(take_rows(x, slice(start, start + size)) for x in shuffled))

    @capturable
    def _learn(self, rows: Rows) -> Metrics:
        loss, metrics = pqn_loss(self.q(rows.obs), rows.action, rows.returns)
        self.optimizers["q"].minimize(loss, max_grad_norm=self.cfg.max_grad_norm)
        return metrics
