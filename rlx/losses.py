"""Losses that several algorithms share, and the small pure functions around them.

A loss takes tensors and returns `(loss, metrics)`. What only one algorithm needs stands in its own file.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from rlx.learner import AlgoConfig
from rlx.nn import ActionHead, StateValue, noise_like
from rlx.nn.native import NATIVE
from rlx.obs import map_obs, take_rows
from rlx.returns import gae
from rlx.types import Metrics, Rollout

# -- critics


def critic_loss(q: Tensor, target: Tensor, coef: float = 1.0) -> tuple[Tensor, Metrics]:
    """Squared error of all critics [n, B] against one target [B], summed over the critics; SAC takes half of it."""
    if NATIVE.on is not None:
        made = NATIVE.on.critic_loss(q, target, coef)
        if made is not None:
            loss, mean, aim = made
            return loss, {"loss/critic": loss.detach(), "q/mean": mean, "q/target": aim}
    loss = coef * len(q) * F.mse_loss(q, target.expand_as(q))
    return loss, {"loss/critic": loss.detach(), "q/mean": q.detach().mean(), "q/target": target.mean()}


def soft_min(q: Tensor, lam: float) -> Tensor:
    """lam * min + (1 - lam) * max over the critics, which come first."""
    return torch.lerp(q.amax(0), q.amin(0), lam)


def smoothed(action: Tensor, std: float, clip: float) -> Tensor:
    """The target policy's action under clipped noise, inside [-1, 1]."""
    noise = (noise_like(action) * std).clamp(-clip, clip)
    return (action + noise).clamp(-1.0, 1.0)


def half_squared_excess(x: Tensor, y: Tensor) -> Tensor:
    """sum_j max(x - y_j, 0)^2 / 2 for every x [B, k] over the *sorted* y [B, m] of its row.

    A binary search counts the y_j below x, prefix sums hold their sum and their sum of squares.
    """
    count = torch.searchsorted(y, x.detach())
    sums = F.pad(y.cumsum(-1), (1, 0)).gather(1, count)
    squares = F.pad(y.square().cumsum(-1), (1, 0)).gather(1, count)
    return x * (0.5 * count.to(x.dtype) * x - sums) + 0.5 * squares


def quantile_huber(quantiles: Tensor, target: Tensor) -> Tensor:
    """The mean over j of |tau_i - 1(y_j < z_i)| * huber(y_j - z_i), for each z_i of z [n, B, q] and *sorted* y [B, m].

    [B, n * q] in float64, in the order of the quantiles' sizes. With E(x) = `half_squared_excess`, the targets below
    z_i add huber's E(z_i) - E(z_i - 1), and those above it E(z_i + 1) - E(z_i) + sum_j (y_j - z_i - 1/2): no pair is
    ever formed. float64, as these are small differences.
    """
    n, rows, q = quantiles.shape
    y = target.double()
    # in order, neighbours take the same way through the binary search: three times as fast
    z, order = quantiles.transpose(0, 1).reshape(rows, n * q).sort(-1)
    z, tau = z.double(), ((order % q).double() + 0.5) / q
    lower, middle, upper = half_squared_excess(torch.cat([z - 1.0, z, z + 1.0], -1), y).chunk(3, -1)
    below = middle - lower
    above = upper - middle + y.sum(-1, keepdim=True) - y.shape[-1] * (z + 0.5)
    return torch.lerp(below, above, tau) / y.shape[-1]


# -- policies


def dpg_loss(q: Tensor) -> tuple[Tensor, Metrics]:
    """The deterministic policy gradient: climb the value [B] of the policy's actions."""
    loss = -q.mean()
    return loss, {"loss/actor": loss.detach()}


def soft_actor_loss(q: Tensor, log_prob: Tensor, alpha: Tensor) -> tuple[Tensor, Metrics]:
    """alpha * log pi - Q, for one value [B] of the policy's actions."""
    if NATIVE.on is not None:
        made = NATIVE.on.soft_actor_loss(q, log_prob, alpha)
        if made is not None:
            return made[0], {"loss/actor": made[0].detach(), "policy/entropy": made[1]}
    loss = (alpha * log_prob - q).mean()
    return loss, {"loss/actor": loss.detach(), "policy/entropy": -log_prob.detach().mean()}


def alpha_loss(log_alpha: Tensor, log_prob: Tensor, target_entropy: float) -> tuple[Tensor, Metrics]:
    """Raises alpha while the policy's entropy, the mean of -log_prob, is below its target."""
    loss = -log_alpha * (log_prob.detach().mean() + target_entropy)
    return loss, {"loss/alpha": loss.detach(), "policy/alpha": log_alpha.detach().exp()}


def bc_loss(pi: Tensor, action: Tensor) -> tuple[Tensor, Metrics]:
    """Mean squared error of box actions [B, dim(A)]."""
    loss = (pi - action).square().mean()
    return loss, {"loss/bc": loss.detach()}


def bc_nll_loss(log_prob: Tensor) -> tuple[Tensor, Metrics]:
    """Negative log-likelihood of the data's actions, from their log-probabilities [B]."""
    loss = -log_prob.mean()
    return loss, {"loss/bc": loss.detach()}


def with_noise(action: Tensor, std: float) -> Tensor:
    """The action under Gaussian noise, inside [-1, 1]."""
    return (action + std * torch.randn_like(action)).clamp_(-1.0, 1.0)


# -- rollouts


class ActorCritic(Protocol):
    """What `experience` asks of a learner."""

    policy: ActionHead
    critic: StateValue

    @property
    def cfg(self) -> AlgoConfig: ...

    def normalize(self, obs: Tensor) -> Tensor: ...

    def features(self, obs: Any) -> Any: ...


class Experience(NamedTuple):
    """A rollout as rows, with everything that the policy which collected it says of them."""

    obs: Any  # [T * N, ...], normalised; a dict of such where the Spec has several boxes
    action: Tensor  # [T * N, ...]
    log_prob: Tensor  # [T * N], as are the rest
    value: Tensor
    advantage: Tensor
    returns: Tensor


def next_values(rollout: Rollout, value: Tensor, value_of: Callable[[Any], Tensor]) -> Tensor:
    """V(s') of every row from V(s), both [T, N]: that of the following row, except at the end of the rollout and where
    an episode was truncated. A terminated row has no successor and gets some number.
    """
    own = rollout.truncated > rollout.terminated
    own[-1] = True
    successor = value_of(take_rows(rollout.next_obs, own))
    return torch.cat([value[1:], value[-1:]]).masked_scatter_(own, successor)


@torch.no_grad()
def experience(rollout: Rollout, learner: ActorCritic, lam: float) -> Experience:
    """Values, log-probabilities and advantages of a rollout, by the policy that collected it."""
    critic, discount = learner.critic, learner.cfg.discount
    obs = learner.normalize(map_obs(lambda x: x.flatten(0, 1), rollout.obs))
    action = rollout.action.flatten(0, 1)
    seen = learner.features(obs)
    value = critic(seen).view_as(rollout.reward)
    next_value = next_values(rollout, value, lambda obs: critic(learner.features(learner.normalize(obs))))
    advantage, returns = gae(rollout.reward, value, next_value, rollout.terminated, rollout.truncated, discount, lam)
    log_prob = learner.policy(seen).log_prob(action)
    return Experience(obs, action, log_prob, value.flatten(), advantage.flatten(), returns.flatten())


def standardized(advantage: Tensor) -> Tensor:
    std, mean = torch.std_mean(advantage, correction=0)
    return (advantage - mean) / (std + 1e-8)


def approximate_kl(log_prob: Tensor, old_log_prob: Tensor) -> Tensor:
    """KL(old | new) from samples of old: E[rho - 1 - log rho], never negative (Schulman, 2020)."""
    log_ratio = log_prob - old_log_prob
    return (log_ratio.exp() - 1.0 - log_ratio).mean()


def standardized_in_parts(advantage: Tensor, size: int) -> Tensor:
    """Parts of `size` rows, each standardised by itself; the rest at the end is a part of its own."""
    whole = len(advantage) // size * size
    if whole == 0:
        return standardized(advantage)
    parts = advantage[:whole].view(-1, size)
    std, mean = torch.std_mean(parts, 1, correction=0, keepdim=True)
    parts = ((parts - mean) / (std + 1e-8)).flatten()
    return parts if whole == len(advantage) else torch.cat([parts, standardized(advantage[whole:])])


def explained_variance(value: Tensor, returns: Tensor) -> Tensor:
    """1: the values predict the returns; 0: no better than a constant."""
    return 1.0 - (returns - value).var(correction=0) / returns.var(correction=0).clamp_min(1e-8)
