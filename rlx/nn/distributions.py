"""Action distributions as thin views on tensors: they sample, score and compare, and cost no more than that.

All of them treat the last dimension as one action:

    Categorical       one choice among K          action [B] int64
    MultiCategorical  independent choices         action [B, components] int64
    DiagGaussian      N(mean, diag(std^2))        action [B, dim(A)], unclipped
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from rlx.nn.fused import LOG_SQRT_2PI, is_recorded, noise_like, recorded_choice, recorded_gaussian, split, total


class Distribution(Protocol):
    """What an on-policy learner asks of a batch of action distributions."""

    def sample(self) -> Tensor: ...
    def mode(self) -> Tensor: ...
    def log_prob(self, action: Tensor) -> Tensor: ...  # [B]
    def entropy(self) -> Tensor: ...  # [B]
    def kl(self, other: Any) -> Tensor: ...  # KL(self | other) with another of its kind, [B]

    def score(self, action: Tensor, entropy: bool) -> tuple[Tensor, Tensor | None]:
        """log_prob, and the entropy if it is asked for; of a recorded network, recorded (see rlx.nn.fused)."""


class Categorical:
    """One choice among K, given by unnormalised logits [B, K]."""

    def __init__(self, logits: Tensor):
        self.logits = logits
        self._log_probs: Tensor | None = None

    @property
    def log_probs(self) -> Tensor:
        if self._log_probs is None:
            self._log_probs = self.logits.log_softmax(-1)
        return self._log_probs

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

    def score(self, action: Tensor, entropy: bool) -> tuple[Tensor, Tensor | None]:
        if is_recorded(self.logits):
            return recorded_choice(self.logits, action, entropy)
        return self.log_prob(action), self.entropy() if entropy else None


class MultiCategorical:
    """Independent choices: the logits [B, sum(sizes)] of all components side by side."""

    def __init__(self, logits: Tensor, sizes: Sequence[int]):
        self.parts = [Categorical(part) for part in split(logits, sizes)]

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

    def score(self, action: Tensor, entropy: bool) -> tuple[Tensor, Tensor | None]:
        pairs = zip(self.parts, action.unbind(-1), strict=True)
        log_probs, entropies = zip(*(part.score(a, entropy) for part, a in pairs), strict=True)
        return total(log_probs), total(entropies) if entropy else None


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

    def score(self, action: Tensor, entropy: bool) -> tuple[Tensor, Tensor | None]:
        if is_recorded(self.mean):
            return recorded_gaussian(self.mean, self.log_std, action, entropy)
        return self.log_prob(action), self.entropy() if entropy else None
