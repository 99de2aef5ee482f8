"""Behaviour cloning: supervised learning of the actions in a dataset.

    deterministic   min |pi(s) - a|^2,          pi = tanh(network)
    gaussian        min -log N(a; pi(s), std),  one std for all states
    discrete        min -log pi(a|s),           cross entropy; the sum over the components of a multi-discrete action

`GaussianPolicy` is also the policy of IQL and AWAC, which are cloning with weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rlx.compiling import compilable
from rlx.distributions import Categorical, DiagGaussian, Distribution, MultiCategorical
from rlx.learner import AlgoConfig, Learner
from rlx.nn import MLP, Adam, DeterministicActor, plain_mlp
from rlx.types import Batch, Metrics, Spec


@dataclass
class BCConfig(AlgoConfig):
    _target_: str = "rlx.algos.bc.BC"
    name: str = "bc"
    lr: float = 1e-3
    gaussian: bool = False  # box actions: likelihood under a Gaussian instead of the squared error


def bc_loss(pi: Tensor, action: Tensor) -> tuple[Tensor, Metrics]:
    """Mean squared error of box actions [B, dim(A)]."""
    loss = (pi - action).square().mean()
    return loss, {"loss/bc": loss.detach()}


def bc_nll_loss(log_prob: Tensor) -> tuple[Tensor, Metrics]:
    """Negative log-likelihood of the data's actions, from their log-probabilities [B]."""
    loss = -log_prob.mean()
    return loss, {"loss/bc": loss.detach()}


class GaussianPolicy(nn.Module):
    """N(tanh(network), std) with one std for all states, cut off at the borders of the box when it acts.

    It is not squashed: an action on the border of the box has a density like any other.
    """

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        hidden: Sequence[int],
        log_std_range: tuple[float, float] = (-5.0, 2.0),
        dropout: float = 0.0,
        init: str = "uniform",
        final_gain: float | None = None,
    ):
        super().__init__()
        self.net = MLP([obs_dim, *hidden, action_dim], dropout=dropout, init=init, final_gain=final_gain)
        self.log_std = nn.Parameter(torch.zeros(action_dim))
        self.log_std_range = log_std_range

    def forward(self, obs: Tensor) -> DiagGaussian:
        # the gradient passes the clamp, which would else hold a std for good that once stepped over its bound
        bounded = self.log_std + (self.log_std.clamp(*self.log_std_range) - self.log_std).detach()
        return DiagGaussian(torch.tanh(self.net(obs)), bounded)

    @torch.no_grad()
    def act(self, obs: Tensor, explore: bool) -> Tensor:
        """A sample to explore, else the mean; never with dropout."""
        mean = torch.tanh(plain_mlp(obs, self.net.layers(), self.net.activation))
        if not explore:
            return mean
        return DiagGaussian(mean, self.log_std.clamp(*self.log_std_range)).sample().clamp_(-1.0, 1.0)


class DiscretePolicy(nn.Module):
    """A categorical distribution for every component of a discrete action."""

    def __init__(self, spec: Spec, hidden: Sequence[int]):
        super().__init__()
        self.net = MLP([spec.obs_dim, *hidden, spec.action_dim])
        self.sizes = spec.action_sizes if spec.action_kind == "multi_discrete" else None

    def forward(self, obs: Tensor) -> Distribution:
        logits = self.net(obs)
        return Categorical(logits) if self.sizes is None else MultiCategorical(logits, self.sizes)

    @torch.no_grad()
    def act(self, obs: Tensor, explore: bool) -> Tensor:
        choice = self(obs)
        return choice.sample() if explore else choice.mode()


class BC(Learner):
    actions = ("box", "discrete", "multi_discrete")
    regimes = ("offline",)
    cfg: BCConfig

    def __init__(self, cfg: BCConfig, spec: Spec):
        super().__init__(cfg, spec)
        self.policy: DiscretePolicy | GaussianPolicy | DeterministicActor
        if spec.discrete:
            self.policy = DiscretePolicy(spec, cfg.hidden)
        elif cfg.gaussian:
            self.policy = GaussianPolicy(spec.obs_dim, spec.action_dim, cfg.hidden)
        else:
            self.policy = DeterministicActor(spec.obs_dim, spec.action_dim, cfg.hidden)
        self.optimizers = {"actor": Adam(self.policy.parameters(), cfg.lr)}

    @torch.no_grad()
    def act(self, obs: Tensor, explore: bool) -> Tensor:
        obs = self.normalize(obs)
        if isinstance(self.policy, DeterministicActor):
            return self.policy(obs)
        return self.policy.act(obs, explore)

    def update(self, batch: Batch) -> Metrics:
        self.updates += 1
        return self._learn(self.normalize(batch.obs), batch.action)

    @compilable
    def _learn(self, obs: Tensor, action: Tensor) -> Metrics:
        loss, metrics = self._loss(obs, action)
        self.optimizers["actor"].minimize(loss)
        return metrics

    def _loss(self, obs: Tensor, action: Tensor) -> tuple[Tensor, Metrics]:
        pi = self.policy(obs)
        return bc_loss(pi, action) if isinstance(pi, Tensor) else bc_nll_loss(pi.log_prob(action))
