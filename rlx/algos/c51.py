"""C51 (Bellemare et al., 2017), arXiv:1707.06887: DQN that learns the distribution of the return on fixed values.

    Q(s, a)  = sum_i z_i p_i(s, a),  p = softmax of the network,  z_i = `atoms` values from v_min to v_max
    target   each r + discount * (1 - terminated) * z_j, kept within [v_min, v_max], has the probability p'_j(s', a');
             it is shared out between the two atoms around it, the nearer one gets more
    loss     min weight * -sum_i target_i * log p_i(s, a),  a' = argmax_a Q'(s', a), by Q with `double`

The loss of a row, before its weight, is its priority. Returns beyond v_min and v_max cannot be told apart: choose them
for the rewards, or the rewards for them (`reward.scale`).

All flags of DQN go with it, and `algo=rainbow` (Hessel et al., 2018, arXiv:1710.02298) is made of them: double,
dueling on distributions, noisy, returns over 3 steps and prioritized replay; the loss is the priority there, too.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rlx.algos.dqn import DistributionalDQN, DQNConfig
from rlx.fields import number
from rlx.nn.encoders import EncoderFactory
from rlx.returns import td_target
from rlx.types import Batch, Metrics, Spec


@dataclass
class C51Config(DQNConfig):
    _target_: str = "rlx.algos.c51.C51"
    name: str = "c51"
    adam_eps: float = number(3.125e-4, above=0, read_once=True)  # added to the root of Adam's mean square: 0.01 / 32
    atoms: int = number(51, least=2, read_once=True)  # values of the return that have a probability
    v_min: float = number(-10.0, below="v_max", read_once=True)  # the smallest of them
    v_max: float = number(10.0, above="v_min", read_once=True)  # the largest of them


def projected(returns: Tensor, probs: Tensor, support: Tensor) -> Tensor:
    """The distribution on `support` [K] that is nearest to one on `returns` [B, K] with `probs` [B, K]."""
    low, high = support[0], support[-1]
    last = len(support) - 1
    place = (returns - low) * (last / (high - low))
    below = place.floor().clamp(0, last - 1)  # so that a return on the last atom is wholly on the upper of two
    share = (place - below).clamp(0.0, 1.0)  # returns beyond the support are wholly on its ends
    index = below.long()
    found = torch.zeros_like(probs).scatter_add(-1, index, probs * (1.0 - share))
    return found.scatter_add(-1, index + 1, probs * share)


def c51_loss(logits: Tensor, target: Tensor, weight: Tensor | None, support: Tensor) -> tuple[Tensor, Tensor, Metrics]:
    """The mean of weight * cross-entropy of the taken actions [B, K], and the cross-entropies [B]."""
    log_probs = logits.log_softmax(-1)
    error = -(target * log_probs).sum(-1)
    loss = (error if weight is None else weight * error).mean()
    mean = (log_probs.detach().exp() @ support).mean()
    metrics = {"loss/q": loss.detach(), "q/mean": mean, "q/target": (target @ support).mean()}
    return loss, error.detach(), metrics


class C51(DistributionalDQN):
    cfg: C51Config
    support: Tensor

    def __init__(self, cfg: C51Config, spec: Spec, encoder: EncoderFactory | None = None):
        super().__init__(cfg, spec, encoder)
        self.register_buffer("support", torch.linspace(cfg.v_min, cfg.v_max, cfg.atoms), persistent=False)

    @property
    def values(self) -> int:
        return self.cfg.atoms

    def expected(self, q: Tensor) -> Tensor:
        return q.softmax(-1) @ self.support

    def _target(self, next_values: Tensor, batch: Batch) -> Tensor:
        reward, discount, terminated = (x[:, None] for x in (batch.reward, batch.discount, batch.terminated))
        returns = td_target(reward, discount, terminated, self.support)
        return projected(returns, next_values.softmax(-1), self.support)

    def _distance(self, values: Tensor, target: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor, Metrics]:
        return c51_loss(values, target, weight, self.support)
