"""Behaviour cloning: supervised learning of the actions in a dataset.

    deterministic   min |pi(s) - a|^2,          pi = tanh(network)
    gaussian        min -log N(a; pi(s), std),  one std for all states
    discrete        min -log pi(a|s),           cross entropy; the sum over the components of a multi-discrete action

IQL and AWAC have the same Gaussian policy; they are cloning with weights.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rlx.capturing import capturable
from rlx.learner import AlgoConfig, Learner
from rlx.losses import bc_loss, bc_nll_loss
from rlx.nn import Adam, BoundedGaussian, Deterministic, DiscreteHead
from rlx.nn.encoders import EncoderFactory
from rlx.types import Batch, Metrics, Spec


@dataclass
class BCConfig(AlgoConfig):
    _target_: str = "rlx.algos.bc.BC"
    name: str = "bc"
    lr: float = 1e-3
    gaussian: bool = False  # box actions: likelihood under a Gaussian instead of the squared error


class BC(Learner):
    actions = ("box", "discrete", "multi_discrete")
    regimes = ("offline",)
    images = True
    cfg: BCConfig

    def __init__(self, cfg: BCConfig, spec: Spec, encoder: EncoderFactory | None = None):
        super().__init__(cfg, spec, encoder)
        self.policy: DiscreteHead | BoundedGaussian | Deterministic
        if spec.discrete:
            self.policy = DiscreteHead(self.make_encoder(), spec, cfg.hidden)
        elif cfg.gaussian:
            self.policy = BoundedGaussian(self.make_encoder(), spec.action_dim, cfg.hidden)
        else:
            self.policy = Deterministic(self.make_encoder(), spec.action_dim, cfg.hidden)
        self.optimizers = {"actor": Adam(self.policy.parameters(), cfg.lr)}

    @torch.no_grad()
    def act(self, obs: Tensor, explore: bool) -> Tensor:
        obs = self.normalize(obs)
        if isinstance(self.policy, Deterministic):
            return self.policy(obs)
        return self.policy.act(obs, explore)

    def update(self, batch: Batch) -> Metrics:
        self.updates += 1
        return self._learn(self.normalize(batch.obs), batch.action)

    @capturable
    def _learn(self, obs: Tensor, action: Tensor) -> Metrics:
        loss, metrics = self._loss(obs, action)
        self.optimizers["actor"].minimize(loss)
        return metrics

    def _loss(self, obs: Tensor, action: Tensor) -> tuple[Tensor, Metrics]:
        pi = self.policy(obs)
        return bc_loss(pi, action) if isinstance(pi, Tensor) else bc_nll_loss(pi.log_prob(action))
