"""The conditional VAE with which BCQ and BEAR model the behaviour policy of a dataset.

    encoder  q(z | s, a) = N(mean, std),  dim(z) = 2 dim(A),  log_std in [-4, 15]
    decoder  a = tanh(f(s, z))
    loss     |a - tanh(f(s, z))|^2 + kl_weight * KL(q(z | s, a) || N(0, 1)),  z = mean + std * noise

Latents drawn to act with are clipped to +-0.5, which keeps the decoder's actions likely; those of its training are not.
Many actions for one state are rows of one batch, candidate by candidate: row n * B + b is candidate n of state b.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from rlx.nn.fused import noise_like
from rlx.nn.mlp import MLP
from rlx.types import Metrics

LOG_STD_MIN, LOG_STD_MAX = -4.0, 15.0
LATENT_CLIP = 0.5
BLOCK_ROWS = 1024  # of one pass through the networks


def vae_loss(
    action: Tensor, reconstruction: Tensor, mean: Tensor, log_std: Tensor, kl_weight: float
) -> tuple[Tensor, Metrics]:
    """Squared error of the action and the divergence of the latent from N(0, 1), both as means over all entries."""
    error = (reconstruction - action).square().mean()
    kl = 0.5 * (mean.square() + (2.0 * log_std).exp() - 2.0 * log_std - 1.0).mean()
    loss = error + kl_weight * kl
    return loss, {"loss/vae": loss.detach(), "vae/reconstruction": error.detach(), "vae/kl": kl.detach()}


class VAE(nn.Module):
    """A model of p(a | s) that can be sampled from."""

    def __init__(self, obs_dim: int, action_dim: int, hidden: Sequence[int]):
        super().__init__()
        self.latent_dim = 2 * action_dim
        self.encoder = MLP([obs_dim + action_dim, *hidden, 2 * self.latent_dim])
        self.decoder = MLP([obs_dim + self.latent_dim, *hidden, action_dim])

    def forward(self, obs: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The reconstructed action, and mean and log_std of the latent it was decoded from."""
        mean, log_std = self.encode(obs, action)
        latent = mean + log_std.exp() * noise_like(mean)
        return torch.tanh(self.decode(obs, latent)), mean, log_std

    def encode(self, obs: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = self.encoder(torch.cat([obs, action], -1)).chunk(2, -1)
        return mean, log_std.clamp(LOG_STD_MIN, LOG_STD_MAX)

    def decode(self, obs: Tensor, latent: Tensor) -> Tensor:
        """The action before its tanh."""
        return self.decoder(torch.cat([obs, latent], -1))

    def draw(self, rows: int) -> Tensor:
        """Latents [rows, dim(z)] to act with."""
        latent = torch.randn(rows, self.latent_dim, device=self.decoder.weights[0].device)
        return latent.clamp_(-LATENT_CLIP, LATENT_CLIP)


def by_blocks(function: Callable[[Tensor], Tensor], obs: Tensor, candidates: int) -> Tensor:
    """`function` of the states `obs`, each of which it turns into many rows, on so few states at a time that the work
    stays in the cache: up to twice as quick, and in bounded memory. An exported policy, whose graph is the same for any
    number of states, takes all of them at once.
    """
    states = max(1, BLOCK_ROWS // candidates)
    if torch.compiler.is_exporting() or len(obs) <= states:
        return function(obs)
    return torch.cat([function(block) for block in obs.split(states)])
