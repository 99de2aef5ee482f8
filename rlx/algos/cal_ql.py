"""Cal-QL: calibrated Q-learning (Nakamoto et al., 2023), arXiv:2303.05479.

CQL, except that the values of the policy's actions enter the gap as

    max(Q_i(s, a), Monte-Carlo return of the data from s),  a ~ pi(s) or pi(s')

so that they are not pushed below what the behaviour policy is known to reach, and fine-tuning does not begin by
unlearning. The uniform actions stay as they are. Rows that are collected online get the return of their episode when it
ends; until then it is -inf, which does not bound. As in the authors' code, returns are cut at truncations, so that with
negative rewards the last rows before a time limit are bounded too high, except where an episode never met its sparse
goal; see `rlx.returns.going_on`.

As in the authors' code, the target is that of the best of `n_actions`, max_a min_i Q_i'(s', a), where CQL's own
`max_q_backup` takes min_i max_a; and a multiplier, which starts at e, weighs weight * (gap - threshold), where CQL's
threshold is not weighted. Their policies start with a std of 1 / e and with last layers scaled by 0.01, ours do not.

AntMaze, as the authors: lagrange_threshold=0.8, actor_hidden=[256, 256], critic_hidden=[256, 256, 256, 256], rewards
times 10 less 5 (experiment=cal_ql_paper).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rlx.algos.cql import CQL, CQLConfig
from rlx.errors import UserError
from rlx.fields import number
from rlx.types import Batch, Metrics


@dataclass
class CalQLConfig(CQLConfig):
    _target_: str = "rlx.algos.cal_ql.CalQL"
    name: str = "cal_ql"
    max_q_backup: bool = True  # bootstrap from the best of n_actions
    bc_updates: int = number(0, least=0)  # updates of imitation before the policy follows the critics


def calibrated(q: Tensor, mc_return: Tensor) -> tuple[Tensor, Metrics]:
    """Values [n, B, K] bounded from below by the returns [B] of the data, and the share that is."""
    bound = mc_return.unsqueeze(-1)
    return torch.maximum(q, bound), {"q/bounded": (q.detach() < bound).float().mean()}


class CalQL(CQL):
    """A subclass of CQL, because only a few lines differ."""

    needs_mc_return = True
    first_log_multiplier = 1.0
    cfg: CalQLConfig

    def _bounded(self, q: Tensor, batch: Batch) -> tuple[Tensor, Metrics]:
        if batch.mc_return is None:
            raise UserError(
                "algo=cal_ql bounds values by the Monte-Carlo returns of the data and this batch has none; call "
                "dataset.with_mc_returns(discount) on the dataset it is drawn from."
            )
        return calibrated(q, batch.mc_return)

    def _best(self, q: Tensor) -> Tensor:
        return q.amin(0).amax(-1)

    def _threshold(self, threshold: float) -> float:
        return self.cfg.weight * threshold
