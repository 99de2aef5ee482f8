"""Deep Q-network (Mnih et al., 2015), with double Q-learning (arXiv:1509.06461), dueling heads (arXiv:1511.06581) and
noisy layers (arXiv:1706.10295).

    plain    y = r + discount * (1 - terminated) * max_a Q'(s', a)
    double   y = r + discount * (1 - terminated) * Q'(s', argmax_a Q(s', a))
    loss     min weight * huber(Q(s, a) - y), the gradient clipped to norm 10
    dueling  Q(s, a) = V(s) + A(s, a) - mean_a A(s, a)

Q' is a copy of Q, renewed every `target_interval` updates. n-step returns and importance weights come with the batch.
Epsilon falls from `epsilon` to `epsilon_end` while the policy takes `epsilon_steps` env steps (the random ones before
do not count); `epsilon_steps=0` keeps it at `epsilon`, which `schedule.targets.epsilon` can then move. With `noisy`
there is no epsilon: the noise explores, drawn anew at every act, one for all envs, and for Q and Q' at every update.
Without exploration the means of the weights act.
Deviations: the dueling heads are linear in the features of one shared network; encoders of images have no noise, so
that in a network without `hidden` layers only the last one has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rlx.capturing import capturable
from rlx.fields import number
from rlx.learner import AlgoConfig, Learner
from rlx.nn import MLP, Adam, chosen, dueling, huber_loss, initialize, polyak, recorded, small_mlp, target_of
from rlx.nn.encoders import EncoderFactory
from rlx.nn.fused import run_mlp
from rlx.nn.heads import Reads, encoder_of, width_of
from rlx.nn.noisy import Noise, Stds
from rlx.returns import td_target
from rlx.types import Batch, Metrics, Spec


@dataclass
class DQNConfig(AlgoConfig):
    _target_: str = "rlx.algos.dqn.DQN"
    name: str = "dqn"
    batch_size: int = number(32, least=1)
    hidden: list[int] = field(default_factory=lambda: [64, 64])
    lr: float = 5e-4
    adam_eps: float = number(1e-8, above=0, read_once=True)  # added to the root of Adam's mean square
    max_grad_norm: float = number(10.0, above=0)  # the gradient is clipped to this norm
    double: bool = False  # choose the next action by Q, value it by Q'
    dueling: bool = False  # Q as a value and advantages
    noisy: bool = False  # explore by noise on the weights of all layers behind the encoder, without epsilon
    sigma: float = number(0.5, above=0, read_once=True)  # std of this noise at the start, times sqrt(inputs of a layer)
    target_interval: int = number(500, least=1)  # updates between two moves of Q'
    tau: float = number(1.0, above=0, most=1)  # how far Q' then moves; 1 copies Q
    epsilon: float = number(1.0, least=0, most=1)  # probability of a random action at the start
    epsilon_end: float = number(0.05, least=0, most=1)  # and at the end
    epsilon_steps: int = number(10_000, least=0)  # env steps in between; 0: epsilon stays, or follows a schedule


def dqn_loss(q: Tensor, action: Tensor, target: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor, Metrics]:
    """The mean of weight * huber(Q(s, a) - y) for the values [B, A], and the absolute TD errors [B]."""
    loss, error, mean, aim = huber_loss(chosen(q, action), target, weight)
    return loss, error, {"loss/q": loss.detach(), "q/mean": mean, "q/target": aim}


def linear_decay(start: float, end: float, steps: int, at: int) -> float:
    """From `start` to `end` over `steps`; `start` for ever where `steps` is 0."""
    return start + (end - start) * min(1.0, at / steps) if steps else start


def epsilon_greedy(action: Tensor, choices: int, epsilon: float) -> Tensor:
    """The actions [N], each replaced by a random one with probability `epsilon`."""
    at_random = torch.rand(len(action), device=action.device) < epsilon
    return torch.where(at_random, torch.randint_like(action, choices), action)


class QNetwork(MLP):
    """Q(s, .) [B, A], with one head or dueling ones; with `values`, so many numbers for each action [B, A, values]."""

    def __init__(
        self,
        reads: Reads,
        actions: int,
        hidden: Sequence[int],
        dueling: bool,
        values: int | None = None,
        sigma: float | None = None,
    ):
        # weights are drawn twice, and the second ones stay: a seed gives the same network as ever
        sizes = [width_of(reads), *hidden, (actions + dueling) * (values or 1)]
        super().__init__(sizes, init="orthogonal", encoder=encoder_of(reads))
        initialize(self.weights, self.biases, "uniform", None)
        self.dueling, self.values = dueling, values
        self.stds = None if sigma is None else Stds(self.layers(), sigma)

    def noise(self) -> Noise | None:
        """Fresh noise for a pass; None for a network without."""
        return None if self.stds is None else self.stds.draw()

    def forward(self, obs: Tensor, noise: Noise | None = None) -> Tensor:  # type: ignore[override]
        head = self._head(obs, noise)
        if self.values is not None:
            rows = head.unflatten(-1, (-1, self.values))
            return rows[:, :1] + rows[:, 1:] - rows[:, 1:].mean(1, keepdim=True) if self.dueling else rows
        return dueling(head) if self.dueling else head

    def _head(self, obs: Tensor, noise: Noise | None) -> Tensor:
        if noise is not None and self.stds is not None:
            return run_mlp(self.encode(obs), None, self.stds.applied(self.layers(), noise), self.activation)
        if torch.is_grad_enabled() or torch.compiler.is_exporting():
            return super().forward(obs)
        return small_mlp(self.encode(obs), self.layers(), self.activation)[-1]


class DQN(Learner):
    actions = ("discrete",)
    regimes: tuple[str, ...] = ("off_policy", "offline_to_online", "offline")
    images = True
    prioritized = True
    cfg: DQNConfig

    def __init__(self, cfg: DQNConfig, spec: Spec, encoder: EncoderFactory | None = None):
        super().__init__(cfg, spec, encoder)
        sigma = cfg.sigma if cfg.noisy else None
        self.q = QNetwork(self.make_encoder(), spec.action_dim, cfg.hidden, cfg.dueling, self.values, sigma)
        self.target_q = target_of(self.q)
        self.optimizers = {"q": Adam(self.q.parameters(), cfg.lr, eps=cfg.adam_eps)}

    @property
    def values(self) -> int | None:
        """How many numbers the network gives for each action; None: one, its value."""
        return None

    @property
    def epsilon(self) -> float:
        cfg = self.cfg
        return 0.0 if cfg.noisy else linear_decay(cfg.epsilon, cfg.epsilon_end, cfg.epsilon_steps, self.explored)

    @torch.no_grad()
    def act(self, obs: Tensor, explore: bool) -> Tensor:
        noise = self.q.noise() if explore else None
        action = self.expected(self.q(self.normalize(obs), noise)).argmax(-1)
        if not explore or self.cfg.noisy:
            return action
        return epsilon_greedy(action, self.spec.action_dim, self.epsilon)

    def expected(self, q: Tensor) -> Tensor:
        """The values [B, A] of all actions by what the network says of them."""
        return q

    def update(self, batch: Batch) -> Metrics:
        self.updates += 1
        self.td_error, metrics = self._learn(self.normalized(batch), self.due(self.cfg.target_interval))
        return metrics

    @capturable
    def _learn(self, batch: Batch, follow: bool) -> tuple[Tensor, Metrics]:
        loss, error, metrics = self._loss(batch)
        self.optimizers["q"].minimize(loss, max_grad_norm=self.cfg.max_grad_norm)
        if follow:
            polyak(self.target_q.parameters(), self.q.parameters(), self.cfg.tau)
        return error, metrics

    def _loss(self, batch: Batch) -> tuple[Tensor, Tensor, Metrics]:
        noise = self.q.noise()
        target = self._td_target(batch, noise)
        q = self.q(recorded(batch.obs), noise)  # a small network: see rlx/nn/fused.py
        return dqn_loss(q, batch.action, target, batch.weight)

    @torch.no_grad()
    def _td_target(self, batch: Batch, noise: Noise | None) -> Tensor:
        """What Q(s, a) should be [B]."""
        next_q = self.target_q(batch.next_obs, self.target_q.noise())
        if self.cfg.double:
            next_value = next_q.gather(-1, self.q(batch.next_obs, noise).argmax(-1, keepdim=True)).squeeze(-1)
        else:
            next_value = next_q.amax(-1)
        return td_target(batch.reward, batch.discount, batch.terminated, next_value)


class DistributionalDQN(DQN):
    """What C51 and QR-DQN share: a network that gives several numbers for each action, which make up a distribution."""

    def _loss(self, batch: Batch) -> tuple[Tensor, Tensor, Metrics]:
        noise, target_noise = self.q.noise(), self.target_q.noise()
        with torch.no_grad():
            next_q = self.target_q(batch.next_obs, target_noise)
            judge = self.q(batch.next_obs, noise) if self.cfg.double else next_q
            target = self._target(of_action(next_q, self.expected(judge).argmax(-1)), batch)
        return self._distance(of_action(self.q(batch.obs, noise), batch.action), target, batch.weight)

    def _target(self, next_values: Tensor, batch: Batch) -> Tensor:
        """What the taken actions should have led to, by what the best next ones lead to [B, values]."""
        raise NotImplementedError(f"{type(self).__name__} does not define _target")

    def _distance(self, values: Tensor, target: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor, Metrics]:
        """The loss of the taken actions [B, values], and the errors [B] that priorities are made of."""
        raise NotImplementedError(f"{type(self).__name__} does not define _distance")


def of_action(q: Tensor, action: Tensor) -> Tensor:
    """The rows [B, values] of the actions [B] out of [B, A, values]."""
    return q.gather(1, action[:, None, None].expand(-1, 1, q.shape[-1])).squeeze(1)
