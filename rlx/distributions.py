"""Action distributions of the on-policy algorithms, and the networks that yield them.

A distribution is a thin view on tensors: it samples, scores and compares, and costs no more than these tensor
operations. All of them treat the last dimension as one action:

    Categorical       one choice among K          action [B] int64
    MultiCategorical  independent choices         action [B, components] int64
    DiagGaussian      N(mean, diag(std^2))        action [B, dim(A)], unclipped

On-policy networks are so small that autograd costs several times their arithmetic. So each piece also knows its own
gradient: `gradient` of a distribution, `trace` and `backward` of a `Perceptron`. Autograd works as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

from rlx.errors import UserError
from rlx.nn import MLP, noise_like
from rlx.types import Spec

LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)


class Distribution(Protocol):
    """What an on-policy learner asks of a batch of action distributions."""

    def sample(self) -> Tensor: ...
    def mode(self) -> Tensor: ...
    def log_prob(self, action: Tensor) -> Tensor: ...  # [B]
    def entropy(self) -> Tensor: ...  # [B]
    def kl(self, other: Any) -> Tensor: ...  # KL(self | other) with another of its kind, [B]

    def gradient(self, action: Tensor, weight: Tensor, entropy_weight: float) -> list[Tensor]:
        """Of sum_b weight_b log_prob_b + entropy_weight entropy_b, by the network's output and by log_std if any."""


class Categorical:
    """One choice among K, given by unnormalised logits [B, K]."""

    def __init__(self, logits: Tensor):
        self.logits = logits

    @cached_property
    def log_probs(self) -> Tensor:
        return self.logits.log_softmax(-1)

    def sample(self) -> Tensor:
        # Gumbel-max: -log of an Exp(1) variable is a Gumbel one, and argmax(logits + Gumbel) is a draw.
        return (self.logits - torch.empty_like(self.logits).exponential_().log_()).argmax(-1)

    def mode(self) -> Tensor:
        return self.logits.argmax(-1)

    def log_prob(self, action: Tensor) -> Tensor:
        return self.log_probs.gather(-1, action.unsqueeze(-1)).squeeze(-1)

    def entropy(self) -> Tensor:
        return -(self.log_probs.exp() * self.log_probs).sum(-1)

    def kl(self, other: Categorical) -> Tensor:
        return (self.log_probs.exp() * (self.log_probs - other.log_probs)).sum(-1)

    def gradient(self, action: Tensor, weight: Tensor, entropy_weight: float) -> list[Tensor]:
        probs, weight = self.log_probs.exp(), weight.unsqueeze(-1)
        grad = (probs * -weight).scatter_add_(-1, action.unsqueeze(-1), weight)  # weight * (one_hot - probs)
        if entropy_weight != 0.0:
            grad.addcmul_(probs, self.log_probs + self.entropy().unsqueeze(-1), value=-entropy_weight)
        return [grad]


class MultiCategorical:
    """Independent choices: the logits [B, sum(sizes)] of all components side by side."""

    def __init__(self, logits: Tensor, sizes: Sequence[int]):
        self.parts = [Categorical(part) for part in logits.split(list(sizes), -1)]

    def sample(self) -> Tensor:
        return torch.stack([part.sample() for part in self.parts], -1)

    def mode(self) -> Tensor:
        return torch.stack([part.mode() for part in self.parts], -1)

    def log_prob(self, action: Tensor) -> Tensor:
        return torch.stack([part.log_prob(a) for part, a in zip(self.parts, action.unbind(-1), strict=True)]).sum(0)

    def entropy(self) -> Tensor:
        return torch.stack([part.entropy() for part in self.parts]).sum(0)

    def kl(self, other: MultiCategorical) -> Tensor:
        return torch.stack([p.kl(q) for p, q in zip(self.parts, other.parts, strict=True)]).sum(0)

    def gradient(self, action: Tensor, weight: Tensor, entropy_weight: float) -> list[Tensor]:
        pairs = zip(self.parts, action.unbind(-1), strict=True)
        return [torch.cat([part.gradient(a, weight, entropy_weight)[0] for part, a in pairs], -1)]


class DiagGaussian:
    """Independent normals: mean [B, D] and a log standard deviation [D] that all rows share."""

    def __init__(self, mean: Tensor, log_std: Tensor):
        self.mean = mean
        self.log_std = log_std

    def sample(self) -> Tensor:
        return noise_like(self.mean).mul_(self.log_std.exp()).add_(self.mean)

    def mode(self) -> Tensor:
        return self.mean

    def log_prob(self, action: Tensor) -> Tensor:
        z = (action - self.mean) * (-self.log_std).exp()
        return -0.5 * z.square().sum(-1) - self.log_std.sum() - LOG_SQRT_2PI * self.mean.shape[-1]

    def entropy(self) -> Tensor:
        entropy = self.log_std.sum() + (0.5 + LOG_SQRT_2PI) * self.mean.shape[-1]
        return entropy.expand(self.mean.shape[:-1])

    def kl(self, other: DiagGaussian) -> Tensor:
        spread = (2 * self.log_std).exp() + (self.mean - other.mean).square()
        return (other.log_std - self.log_std + 0.5 * spread * (-2 * other.log_std).exp() - 0.5).sum(-1)

    def gradient(self, action: Tensor, weight: Tensor, entropy_weight: float) -> list[Tensor]:
        inverse = (-self.log_std).exp()
        z = (action - self.mean) * inverse
        return [weight.unsqueeze(-1) * z * inverse, weight @ (z.square() - 1.0) + entropy_weight * len(weight)]


class Perceptron(MLP):
    """An MLP, orthogonal at the start, that can also be differentiated without autograd."""

    GRADIENTS: ClassVar[dict[str, Callable[[Tensor, Tensor], Tensor]]] = {  # of an activation, by its output
        "tanh": torch.ops.aten.tanh_backward,
        "relu": lambda grad, y: torch.ops.aten.threshold_backward(grad, y, 0),
    }

    def __init__(self, sizes: Sequence[int], activation: str, final_gain: float):
        if activation not in self.GRADIENTS:
            raise UserError(f"activation={activation} is not possible here; choose {' or '.join(self.GRADIENTS)}.")
        super().__init__(sizes, activation=activation, init="orthogonal", final_gain=final_gain)
        self._pairs = tuple(zip(self.weights, self.biases, strict=True))
        self._activate = {"tanh": torch.tanh_, "relu": torch.relu_}[activation]
        self._slope = self.GRADIENTS[activation]

    def trace(self, x: Tensor) -> list[Tensor]:
        """What each layer reads and, last, the output; for use without gradients."""
        found = [x]
        for weight, bias in self._pairs[:-1]:
            found.append(self._activate(torch.addmm(bias, found[-1], weight)))
        weight, bias = self._pairs[-1]
        found.append(torch.addmm(bias, found[-1], weight))
        return found

    def backward(self, trace: list[Tensor], grad: Tensor, out: Sequence[Tensor]) -> None:
        """Write the gradients of all weights, then of all biases, into `out`; `grad` is that of the output."""
        depth = len(self._pairs)
        for i in reversed(range(depth)):
            torch.mm(trace[i].t(), grad, out=out[i])
            torch.sum(grad, 0, out=out[depth + i])
            if i > 0:
                grad = self._slope(grad.mm(self._pairs[i][0].t()), trace[i])


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


class Policy(nn.Module):
    """Observations [B, obs_dim] to a distribution over the actions of `spec`."""

    def __init__(self, spec: Spec, hidden: Sequence[int], activation: str = "tanh", log_std: float | None = None):
        super().__init__()
        sizes = [spec.obs_dim, *hidden, spec.action_dim]
        # The small last layer starts every state near the uniform (or zero-mean) policy.
        self.net = Perceptron(sizes, activation, final_gain=0.01)
        self.action_kind = spec.action_kind
        self.action_sizes = spec.action_sizes
        if spec.action_kind == "box":
            self.log_std = nn.Parameter(first_log_std(spec, log_std))

    def act(self, obs: Tensor, explore: bool) -> Tensor:
        """A draw to explore, else the mode; for use without gradients."""
        actions = self.distribution(self.net.trace(obs)[-1])
        return actions.sample() if explore else actions.mode()

    def forward(self, obs: Tensor) -> Distribution:
        return self.distribution(self.net(obs))

    @torch.no_grad()
    def snapshot(self, obs: Tensor) -> Distribution:
        """The distribution as it is now: no gradient reaches it and no later step moves it."""
        actions: Distribution = self(obs)
        return DiagGaussian(actions.mean, actions.log_std.clone()) if isinstance(actions, DiagGaussian) else actions

    def trainable(self) -> list[Tensor]:
        """The parameters, in the order of `backward`."""
        return [*self.net.parameters(), *([self.log_std] if self.action_kind == "box" else [])]

    def backward(self, trace: list[Tensor], grads: list[Tensor], out: Sequence[Tensor]) -> None:
        """Write the gradients of `trainable` into `out`; `grads` are those of the distribution."""
        self.net.backward(trace, grads[0], out)
        if self.action_kind == "box":
            out[-1].copy_(grads[1])

    def distribution(self, out: Tensor) -> Distribution:
        if self.action_kind == "box":
            return DiagGaussian(out, self.log_std)
        if self.action_kind == "discrete":
            return Categorical(out)
        return MultiCategorical(out, self.action_sizes)
