"""Discrete BCQ (Fujimoto et al., 2019), arXiv:1910.01708: double DQN among the actions that the data favour.

    allowed  a with G(a|s) / max_b G(b|s) > threshold
    target   y = r + discount * (1 - terminated) * Q'(s', argmax_{a allowed} Q(s', a))
    loss     huber(Q(s, a) - y) - log G(a|s) + logit_penalty * mean(logits of G^2)

G imitates the behaviour. `threshold=0` is double DQN, towards 1 it is cloning. Q and G share the encoder of images,
which learns by the sum of both losses; Q' has a copy of it. Epsilon only matters when fine-tuning.
Deviations: the authors' two networks share the convolutions and not the linear layer behind them; there is no epsilon
in evaluations (theirs is 0.001).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rlx.algos.dqn import dqn_loss, epsilon_greedy
from rlx.capturing import capturable
from rlx.fields import number
from rlx.learner import AlgoConfig, Learner
from rlx.nn import MLP, ActionValues, Adam, polyak, target_of
from rlx.nn.encoders import EncoderFactory
from rlx.nn.fused import run_mlp
from rlx.nn.heads import width_of
from rlx.returns import td_target
from rlx.types import Batch, Metrics, Obs, Spec


@dataclass
class DiscreteBCQConfig(AlgoConfig):
    _target_: str = "rlx.algos.discrete_bcq.DiscreteBCQ"
    name: str = "discrete_bcq"
    lr: float = 3e-4
    adam_eps: float = number(1e-8, above=0, read_once=True)  # added to the root of Adam's mean square
    threshold: float = number(0.3, least=0, below=1)  # actions that are less likely, relative to the best, are left out
    logit_penalty: float = number(0.01, least=0)  # weight of the squared logits of G
    target_interval: int = number(1, least=1)  # updates between two moves of Q'
    tau: float = number(0.005, above=0, most=1)  # how far Q' then moves; 1 copies Q
    epsilon: float = number(0.05, least=0, most=1)  # probability of a random action when fine-tuning


def best_allowed(q: Tensor, logits: Tensor, threshold: float) -> Tensor:
    """The action [B] of the largest value [B, A] among those that are likely enough by the logits [B, A]."""
    likelihood = (logits - logits.amax(-1, keepdim=True)).exp()  # relative to the most likely one
    return q.masked_fill(likelihood <= threshold, -torch.inf).argmax(-1)


def behaviour_loss(logits: Tensor, action: Tensor, penalty: float) -> tuple[Tensor, Metrics]:
    """Negative log-likelihood of the data's actions [B] by the logits [B, A], which are kept small."""
    log_prob = logits.log_softmax(-1).gather(-1, action.unsqueeze(-1))
    loss = -log_prob.mean()
    return loss + penalty * logits.square().mean(), {"loss/behaviour": loss.detach()}


class DiscreteBCQ(Learner):
    actions = ("discrete",)
    regimes = ("offline", "offline_to_online")
    images = True
    cfg: DiscreteBCQConfig

    def __init__(self, cfg: DiscreteBCQConfig, spec: Spec, encoder: EncoderFactory | None = None):
        super().__init__(cfg, spec, encoder)
        reads = self.make_encoder()
        self.q = ActionValues(reads, spec.action_dim, cfg.hidden)
        self.behaviour = MLP([width_of(reads), *cfg.hidden, spec.action_dim])  # reads what the encoder of Q gives
        self.target_q = target_of(self.q)
        learned = [*self.q.parameters(), *self.behaviour.parameters()]
        self.optimizers = {"q": Adam(learned, cfg.lr, eps=cfg.adam_eps)}

    def values_and_logits(self, obs: Obs) -> tuple[Tensor, Tensor]:
        """Q(s, .) and the logits of G(.|s), both [B, A]."""
        features = self.q.encode(obs)
        return run_mlp(features, None, self.q.layers(), self.q.activation), self.behaviour(features)

    @torch.no_grad()
    def act(self, obs: Tensor, explore: bool) -> Tensor:
        action = best_allowed(*self.values_and_logits(self.normalize(obs)), self.cfg.threshold)
        return epsilon_greedy(action, self.spec.action_dim, self.cfg.epsilon) if explore else action

    def update(self, batch: Batch) -> Metrics:
        self.updates += 1
        return self._learn(self.normalized(batch), self.due(self.cfg.target_interval))

    @capturable
    def _learn(self, batch: Batch, follow: bool) -> Metrics:
        loss, metrics = self._loss(batch)
        self.optimizers["q"].minimize(loss)
        if follow:
            polyak(self.target_q.parameters(), self.q.parameters(), self.cfg.tau)
        return metrics

    def _loss(self, batch: Batch) -> tuple[Tensor, Metrics]:
        with torch.no_grad():
            choice = best_allowed(*self.values_and_logits(batch.next_obs), self.cfg.threshold)
            next_value = self.target_q(batch.next_obs).gather(-1, choice.unsqueeze(-1)).squeeze(-1)
            target = td_target(batch.reward, batch.discount, batch.terminated, next_value)
        q, logits = self.values_and_logits(batch.obs)
        loss, _, metrics = dqn_loss(q, batch.action, target, None)
        imitation, behaviour_metrics = behaviour_loss(logits, batch.action, self.cfg.logit_penalty)
        return loss + imitation, metrics | behaviour_metrics
