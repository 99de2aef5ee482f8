"""QR-DQN (Dabney et al., 2018), arXiv:1710.10044: DQN that learns quantiles of the return.

    Q(s, a)  = mean_i z_i(s, a),  z_i for the quantile tau_i = (2i - 1) / (2 * quantiles)
    target   y_j = r + discount * (1 - terminated) * z'_j(s', a'),  a' = argmax_a Q'(s', a), by Q with `double`
    loss     min weight * sum_i mean_j |tau_i - 1(y_j < z_i)| * huber(y_j - z_i)

The loss of a row, before its weight, is its priority. As in TQC it is not summed pair by pair (z_i, y_j): the targets
are sorted, so that prefix sums give it exactly. All flags of DQN go with it.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from rlx.algos.dqn import DistributionalDQN, DQNConfig
from rlx.fields import number
from rlx.losses import quantile_huber
from rlx.returns import td_target
from rlx.types import Batch, Metrics


@dataclass
class QRDQNConfig(DQNConfig):
    _target_: str = "rlx.algos.qr_dqn.QRDQN"
    name: str = "qr_dqn"
    adam_eps: float = number(3.125e-4, above=0, read_once=True)  # added to the root of Adam's mean square: 0.01 / 32
    quantiles: int = number(50, least=1, read_once=True)  # numbers for each action; 200 in the paper


def qr_loss(quantiles: Tensor, target: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor, Metrics]:
    """Quantile regression of the taken actions [B, q] against targets [B, m]; its mean, and the losses of rows [B]."""
    error = quantile_huber(quantiles.unsqueeze(0), target.sort(-1).values).sum(-1).float()
    loss = (error if weight is None else weight * error).mean()
    metrics = {"loss/q": loss.detach(), "q/mean": quantiles.detach().mean(), "q/target": target.mean()}
    return loss, error.detach(), metrics


class QRDQN(DistributionalDQN):
    cfg: QRDQNConfig

    @property
    def values(self) -> int:
        return self.cfg.quantiles

    def expected(self, q: Tensor) -> Tensor:
        return q.mean(-1)

    def _target(self, next_values: Tensor, batch: Batch) -> Tensor:
        reward, discount, terminated = (x[:, None] for x in (batch.reward, batch.discount, batch.terminated))
        return td_target(reward, discount, terminated, next_values)

    def _distance(self, values: Tensor, target: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor, Metrics]:
        return qr_loss(values, target, weight)
