"""Noisy layers (Fortunato et al., 2018), arXiv:1706.10295, with factorised Gaussian noise.

    weight = mean + std * f(e_in) f(e_out)^T,   bias = mean + std * f(e_out),   f(x) = sign(x) * sqrt(|x|)

e_in and e_out are N(0, 1), one number for each input and each output of a layer. Means and stds both learn; the stds
start at sigma / sqrt(inputs). Noise is handed from call to call by those who drew it and kept nowhere: a checkpoint has
none to hold.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rlx.nn.fused import Layer

Noise = Sequence[tuple[Tensor, Tensor]]  # f(e_in) and f(e_out) of every layer


def rooted(x: Tensor) -> Tensor:
    """sign(x) * sqrt(|x|)."""
    return x.sign() * x.abs().sqrt()


class Stds(nn.Module):
    """The stds of the layers [in, out] of a network."""

    def __init__(self, layers: Sequence[Layer], sigma: float):
        super().__init__()
        start = [sigma / math.sqrt(len(layer.weight)) for layer in layers]
        pairs = list(zip(layers, start, strict=True))
        self.weights = nn.ParameterList([torch.full_like(layer.weight, std) for layer, std in pairs])
        self.biases = nn.ParameterList([torch.full_like(layer.bias, std) for layer, std in pairs])

    def draw(self) -> Noise:
        """Fresh noise for all layers."""
        sizes = [n for weight in self.weights for n in weight.shape]
        first = self.biases[0]
        parts = rooted(torch.randn(sum(sizes), dtype=first.dtype, device=first.device)).split(sizes)
        return list(zip(parts[::2], parts[1::2], strict=True))

    def applied(self, layers: Sequence[Layer], noise: Noise) -> list[Layer]:
        """The layers under the noise."""
        together = zip(layers, self.weights, self.biases, noise, strict=True)
        return [
            Layer(layer.weight + std * torch.outer(e_in, e_out), layer.bias + bias_std * e_out)
            for layer, std, bias_std, (e_in, e_out) in together
        ]
