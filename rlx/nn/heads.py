"""Heads: networks from observations to values, actions or action distributions."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rlx.nn.distributions import Categorical, DiagGaussian, Distribution, MultiCategorical
from rlx.nn.encoders import Encoder
from rlx.nn.fused import (
    column,
    gaussian,
    noise_like,
    run_mlp,
    small_mlp,
    squash,
    squashed_log_prob,
)
from rlx.nn.mlp import MLP
from rlx.types import Obs, Spec

Reads = Encoder | int  # what a head reads: observations through an encoder, or vectors of so many numbers

ACTION_LIMIT = 1.0 - 1e-5  # actions are clipped to this before any atanh


def width_of(reads: Reads) -> int:
    return reads if isinstance(reads, int) else reads.dim


def encoder_of(reads: Reads) -> Encoder | None:
    return None if isinstance(reads, int) else reads


class Critic(MLP):
    """Q(s, a), `n` of them: [n, B]."""

    def __init__(
        self,
        reads: Reads,
        action_dim: int,
        hidden: Sequence[int],
        n: int = 2,
        layer_norm: bool = False,
        dropout: float = 0.0,
        init: str = "uniform",
        final_gain: float | None = None,
    ):
        sizes = [width_of(reads) + action_dim, *hidden, 1]
        super().__init__(
            sizes, ensemble=n, layer_norm=layer_norm, dropout=dropout, init=init, final_gain=final_gain,
            encoder=encoder_of(reads),
        )  # fmt: skip

    def forward(  # type: ignore[override]
        self, obs: Obs, action: Tensor, frozen: bool = False, members: Tensor | slice | None = None
    ) -> Tensor:
        return super().forward(obs, action, frozen, members).squeeze(-1)


class StateValue(MLP):
    """V(s): [B]."""

    def __init__(
        self,
        reads: Reads,
        hidden: Sequence[int],
        activation: str = "relu",
        init: str = "orthogonal",
        final_gain: float | None = 1.0,
    ):
        sizes = [width_of(reads), *hidden, 1]
        super().__init__(sizes, activation=activation, init=init, final_gain=final_gain, encoder=encoder_of(reads))

    def forward(self, obs: Obs) -> Tensor:  # type: ignore[override]
        return column(super().forward(obs))


class ActionValues(MLP):
    """A number for each of the actions of a discrete space: [B, A], or [n, B, A]."""

    def __init__(
        self,
        reads: Reads,
        actions: int,
        hidden: Sequence[int],
        n: int | None = None,
        init: str = "uniform",
        final_gain: float | None = None,
    ):
        sizes = [width_of(reads), *hidden, actions]
        super().__init__(sizes, ensemble=n, init=init, final_gain=final_gain, encoder=encoder_of(reads))


class ChoiceCritic(ActionValues):
    """Q(s, a) of discrete actions [B], two of them: [2, B]."""

    def __init__(
        self, reads: Reads, actions: int, hidden: Sequence[int], init: str = "uniform", final_gain: float | None = None
    ):
        super().__init__(reads, actions, hidden, 2, init, final_gain)

    def forward(self, obs: Obs, action: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(obs).gather(-1, action.expand(2, -1).unsqueeze(-1)).squeeze(-1)


class SquashedGaussian(nn.Module):
    """The policy of SAC: a Gaussian with a state-dependent std, squashed by tanh into (-1, 1)."""

    def __init__(
        self,
        reads: Reads,
        action_dim: int,
        hidden: Sequence[int],
        layer_norm: bool = False,
        init: str = "uniform",
    ):
        super().__init__()
        self.net = MLP(
            [width_of(reads), *hidden, 2 * action_dim], layer_norm=layer_norm, init=init, encoder=encoder_of(reads)
        )

    def forward(self, obs: Obs) -> tuple[Tensor, Tensor]:
        """Mean and log_std before the squashing."""
        return gaussian(self.net(obs))

    def sample(self, obs: Obs) -> tuple[Tensor, Tensor]:
        """A reparametrised action and its log-probability [B]."""
        head = self.net(obs)
        noise = noise_like(head[..., head.shape[-1] // 2 :])
        return squash(head, noise)

    def mode(self, obs: Obs) -> Tensor:
        return torch.tanh(self(obs)[0])

    def log_prob(self, obs: Obs, action: Tensor) -> Tensor:
        mean, log_std = self(obs)
        raw = torch.atanh(action.clamp(-ACTION_LIMIT, ACTION_LIMIT))
        return squashed_log_prob(raw, (raw - mean) * torch.exp(-log_std), log_std)

    @torch.no_grad()
    def act(self, obs: Obs, explore: bool) -> Tensor:
        """A sample to explore, else the mode; without log-probabilities and gradients."""
        mean, log_std = self(obs)
        return torch.tanh(torch.normal(mean, log_std.exp()) if explore else mean)


class Deterministic(nn.Module):
    """tanh of an MLP: actions in (-1, 1)."""

    def __init__(self, reads: Reads, action_dim: int, hidden: Sequence[int], layer_norm: bool = False):
        super().__init__()
        self.net = MLP([width_of(reads), *hidden, action_dim], layer_norm=layer_norm, encoder=encoder_of(reads))

    def forward(self, obs: Obs) -> Tensor:
        return torch.tanh(self.net(obs))


class BoundedGaussian(nn.Module):
    """N(tanh(network), std) with one std for all states, cut off at the borders of the box when it acts.

    It is not squashed: an action on the border of the box has a density like any other.
    """

    def __init__(
        self,
        reads: Reads,
        action_dim: int,
        hidden: Sequence[int],
        log_std_range: tuple[float, float] = (-5.0, 2.0),
        dropout: float = 0.0,
        init: str = "uniform",
        final_gain: float | None = None,
    ):
        super().__init__()
        self.net = MLP(
            [width_of(reads), *hidden, action_dim],
            dropout=dropout,
            init=init,
            final_gain=final_gain,
            encoder=encoder_of(reads),
        )
        self.log_std = nn.Parameter(torch.zeros(action_dim))
        self.log_std_range = log_std_range

    def forward(self, obs: Obs) -> DiagGaussian:
        # the gradient passes the clamp, which would else hold a std for good that once stepped over its bound
        bounded = self.log_std + (self.log_std.clamp(*self.log_std_range) - self.log_std).detach()
        return DiagGaussian(torch.tanh(self.net(obs)), bounded)

    @torch.no_grad()
    def act(self, obs: Obs, explore: bool) -> Tensor:
        """A sample to explore, else the mean; never with dropout."""
        mean = torch.tanh(run_mlp(self.net.encode(obs), None, self.net.layers(), self.net.activation))
        if not explore:
            return mean
        return DiagGaussian(mean, self.log_std.clamp(*self.log_std_range)).sample().clamp_(-1.0, 1.0)


class DiscreteHead(nn.Module):
    """A categorical distribution for every component of a discrete action."""

    def __init__(
        self,
        reads: Reads,
        spec: Spec,
        hidden: Sequence[int],
        dropout: float = 0.0,
        init: str = "uniform",
        final_gain: float | None = None,
    ):
        super().__init__()
        sizes = [width_of(reads), *hidden, spec.action_dim]
        self.net = MLP(sizes, dropout=dropout, init=init, final_gain=final_gain, encoder=encoder_of(reads))
        self.sizes = spec.action_sizes if spec.action_kind == "multi_discrete" else None

    def forward(self, obs: Obs) -> Distribution:
        return self.distribution(self.net(obs))

    def distribution(self, logits: Tensor) -> Distribution:
        return Categorical(logits) if self.sizes is None else MultiCategorical(logits, self.sizes)

    @torch.no_grad()
    def act(self, obs: Obs, explore: bool) -> Tensor:
        """A draw to explore, else the most likely choice; never with dropout."""
        choice = self.distribution(run_mlp(self.net.encode(obs), None, self.net.layers(), self.net.activation))
        return choice.sample() if explore else choice.mode()


def first_log_std(spec: Spec, log_std: float | None) -> Tensor:
    """The log_std [dim(A)] that a Gaussian policy starts with, in the learner's units, where a box is [-1, 1].

    None is a std of 1 in the units of the env, as other libraries have it, and at most half the width of the box: noise
    of three times the width of what an env is made for teaches little, and so does noise that is clipped all the time.
    """
    if log_std is not None:
        return torch.full((spec.action_dim,), float(log_std))
    bounds = zip(spec.action_low, spec.action_high, strict=True)
    halves = [0.5 * (high - low) if math.isfinite(high - low) else 1.0 for low, high in bounds]  # see `box_scale`
    return torch.tensor([-math.log(max(1.0, half)) for half in halves or [1.0] * spec.action_dim])


class ActionHead(nn.Module):
    """Observations to a distribution over the actions of `spec`."""

    def __init__(
        self,
        reads: Reads,
        spec: Spec,
        hidden: Sequence[int],
        activation: str = "tanh",
        log_std: float | None = None,
    ):
        super().__init__()
        sizes = [width_of(reads), *hidden, spec.action_dim]
        # The small last layer starts every state near the uniform (or zero-mean) policy.
        self.net = MLP(sizes, activation=activation, init="orthogonal", final_gain=0.01, encoder=encoder_of(reads))
        self.action_kind = spec.action_kind
        self.action_sizes = spec.action_sizes
        if spec.action_kind == "box":
            self.log_std = nn.Parameter(first_log_std(spec, log_std))

    def act(self, obs: Obs, explore: bool) -> Tensor:
        """A draw to explore, else the mode; for use without gradients."""
        net = self.net
        actions = self.distribution(small_mlp(net.encode(obs), net.layers(), net.activation)[-1])
        return actions.sample() if explore else actions.mode()

    def forward(self, obs: Obs) -> Distribution:
        return self.distribution(self.net(obs))

    @torch.no_grad()
    def snapshot(self, obs: Obs) -> Distribution:
        """The distribution as it is now: no gradient reaches it and no later step moves it."""
        actions: Distribution = self(obs)
        return DiagGaussian(actions.mean, actions.log_std.clone()) if isinstance(actions, DiagGaussian) else actions

    def trainable(self) -> list[Tensor]:
        """The parameters, those of the network first."""
        return [*self.net.parameters(), *([self.log_std] if self.action_kind == "box" else [])]

    def distribution(self, out: Tensor) -> Distribution:
        if self.action_kind == "box":
            return DiagGaussian(out, self.log_std)
        if self.action_kind == "discrete":
            return Categorical(out)
        return MultiCategorical(out, self.action_sizes)
