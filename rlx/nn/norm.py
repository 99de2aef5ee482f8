"""Networks with Batch Renormalisation (Ioffe, 2017), arXiv:1702.03275, before every linear layer.

    learning   x' = ((x - mean_B) / std_B * r + d) * gain + shift
               r  = clip(std_B / std, 1 / R_MAX, R_MAX),  d = clip((mean_B - mean) / std, -D_MAX, D_MAX), no gradients
    in use     x' = (x - mean) / std * gain + shift

mean and std are running statistics, mean_B and std_B those of the batch; without `renorm`, r = 1 and d = 0: plain batch
normalisation. Either way x' = scale * x + offset, so the linear layer behind can do it:

    x' W + b = x (scale W) + (offset W + b)

and what is left to do on the activations is their mean and their variance. The gradients are written by hand on the
same terms: one autograd node for the network, which normalised activations never enter.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from rlx.nn.fused import HandWrittenLearn, Layer, Renorm, fold, inverse_std, run_mlp
from rlx.nn.mlp import initialize

MOMENTUM = 0.01  # of the running statistics
OBS_CLIP = 10.0  # observations that are normalised by running moments stay within +-OBS_CLIP


class RenormMLP(nn.Module):
    """`ensemble` networks of `sizes` = [in, hidden..., out] side by side, with ReLU: [B, in] -> [ensemble, B, out]."""

    def __init__(self, sizes: Sequence[int], ensemble: int):
        super().__init__()
        pairs = list(pairwise(sizes))
        self.weights = nn.ParameterList([torch.empty(ensemble, i, o) for i, o in pairs])
        self.biases = nn.ParameterList([torch.empty(ensemble, 1, o) for _, o in pairs])
        self.gains = nn.ParameterList([torch.ones(ensemble, 1, i) for i, _ in pairs])
        self.shifts = nn.ParameterList([torch.zeros(ensemble, 1, i) for i, _ in pairs])
        initialize(self.weights, self.biases, "uniform", None)
        for k, (i, _) in enumerate(pairs):
            self.register_buffer(f"mean_{k}", torch.zeros(ensemble, 1, i))
            self.register_buffer(f"var_{k}", torch.ones(ensemble, 1, i))

    def layers(self) -> list[Renorm]:
        parameters = zip(self.weights, self.biases, self.gains, self.shifts, strict=True)
        return [Renorm(*p, getattr(self, f"mean_{k}"), getattr(self, f"var_{k}")) for k, p in enumerate(parameters)]

    def forward(self, x: Tensor, action: Tensor | None = None) -> Tensor:
        """In use: normalised by the running statistics; gradients reach `x` and `action` and nothing else."""
        folded = []
        with torch.no_grad():
            for layer in self.layers():
                scale = layer.gain * inverse_std(layer.var)
                folded.append(Layer(*fold(layer, scale, layer.shift - scale * layer.mean)))
        return run_mlp(x, action, folded, "relu")

    def learn(self, x: Tensor, renorm: bool) -> Tensor:
        """Learning: normalised by the batch, which moves the running statistics; gradients reach the parameters."""
        layers = self.layers()
        x = x.expand(len(self.weights[0]), *x.shape)
        y, *moments = HandWrittenLearn.apply(x, renorm, len(layers), *(p for layer in layers for p in layer))
        with torch.no_grad():
            torch._foreach_lerp_([s for layer in layers for s in (layer.mean, layer.var)], moments, MOMENTUM)
        return y


@torch.no_grad()
def running_moments(x: Tensor, mean: Tensor, std: Tensor, count: Tensor) -> None:
    """Fold the rows of x [n, ...] into the running mean and std of `count` rows, in place (Chan et al., 1979)."""
    n, seen = len(x), count.clone()
    count += n
    var, batch_mean = torch.var_mean(x, 0, correction=0)
    shift = batch_mean - mean
    var = (std.square() * seen + var * n + shift.square() * (seen * n / count)) / count
    mean += shift * (n / count)
    std.copy_(var.sqrt().clamp_min_(1e-4))  # a constant feature is not blown up
