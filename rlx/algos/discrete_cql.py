"""Discrete CQL (Kumar et al., 2020), arXiv:2006.04779: double DQN whose values are pushed down outside of the data.

    loss   huber(Q(s, a) - y) + weight * (log sum_b exp Q(s, b) - Q(s, a)),  y as in double DQN

where a is the action of the data. Everything else is DQN's, flags included; epsilon only matters when fine-tuning.
Deviation: the authors' code for Atari regresses quantiles (QR-DQN) with the same second term.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from rlx.algos.dqn import DQN, DQNConfig, dqn_loss
from rlx.fields import number
from rlx.types import Batch, Metrics


@dataclass
class DiscreteCQLConfig(DQNConfig):
    _target_: str = "rlx.algos.discrete_cql.DiscreteCQL"
    name: str = "discrete_cql"
    batch_size: int = number(256, least=1)
    hidden: list[int] = field(default_factory=lambda: [256, 256])
    lr: float = 3e-4
    double: bool = True  # choose the next action by Q, value it by Q'
    epsilon: float = number(0.05, least=0, most=1)  # probability of a random action when fine-tuning, at the start
    epsilon_steps: int = number(0, least=0)  # env steps until epsilon_end; 0: epsilon stays, or follows a schedule
    weight: float = number(1.0, least=0)  # of the second term; 0 is DQN


def conservative_loss(q: Tensor, action: Tensor) -> tuple[Tensor, Metrics]:
    """How far the values [B, A] of all actions lie above those of the data's actions [B]: logsumexp Q - Q(s, a)."""
    gap = (q.logsumexp(-1) - q.gather(-1, action.unsqueeze(-1)).squeeze(-1)).mean()
    return gap, {"loss/conservative": gap.detach()}


class DiscreteCQL(DQN):
    regimes = ("offline", "offline_to_online")
    cfg: DiscreteCQLConfig

    def _loss(self, batch: Batch) -> tuple[Tensor, Tensor, Metrics]:
        noise = self.q.noise()
        target = self._td_target(batch, noise)
        q = self.q(batch.obs, noise)
        loss, error, metrics = dqn_loss(q, batch.action, target, batch.weight)
        gap, gap_metrics = conservative_loss(q, batch.action)
        return torch.add(loss, gap, alpha=self.cfg.weight), error, metrics | gap_metrics
