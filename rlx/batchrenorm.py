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
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from rlx.nn import Layer, initialize, run_mlp

EPS = 1e-3
MOMENTUM = 0.01
R_MAX, D_MAX = 3.0, 5.0

aten = torch.ops.aten


class Renorm(NamedTuple):
    """One linear layer [E, in, out] and the normalisation of what it reads, [E, 1, in]."""

    weight: Tensor
    bias: Tensor
    gain: Tensor
    shift: Tensor
    mean: Tensor
    var: Tensor


def moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance over the rows of [E, B, n], both [E, 1, n]."""
    mean = x.mean(1, keepdim=True)
    return mean, (x - mean).square_().mean(1, keepdim=True)


def corrections(mean: Tensor, rstd: Tensor, layer: Renorm) -> tuple[Tensor, Tensor]:
    """r and d of a batch."""
    running = torch.rsqrt(layer.var + EPS)
    r = (running / rstd).clamp(1.0 / R_MAX, R_MAX)
    return r, ((mean - layer.mean) * running).clamp(-D_MAX, D_MAX)


def affine(mean: Tensor, rstd: Tensor, layer: Renorm, renorm: bool) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """scale and offset of a batch; r / std_B, which is their slope, and d."""
    slope, d = rstd, None
    if renorm:
        r, d = corrections(mean.detach(), rstd.detach(), layer)
        slope = r * rstd
    scale = layer.gain * slope
    offset = torch.addcmul(layer.shift, scale, mean, value=-1.0)
    return scale, offset if d is None else torch.addcmul(offset, layer.gain, d), slope, d


def fold(layer: Renorm, scale: Tensor, offset: Tensor) -> tuple[Tensor, Tensor]:
    """Weight and bias of the linear layer that also normalises."""
    return layer.weight * scale.mT, torch.baddbmm(layer.bias, offset, layer.weight)


def learn(x: Tensor, layers: Sequence[Renorm], renorm: bool) -> tuple[Tensor, list[Tensor]]:
    """The output for a batch normalised by itself, and the moments of what each layer read; gradients by autograd."""
    found = []
    for i, layer in enumerate(layers):
        if i > 0:
            x = torch.relu(x)
        mean, var = moments(x)
        scale, offset, _, _ = affine(mean, torch.rsqrt(var + EPS), layer, renorm)
        weight, bias = fold(layer, scale, offset)
        x = torch.bmm(x, weight) + bias
        found += [mean.detach(), var.detach()]
    return x, found


class HandWrittenLearn(torch.autograd.Function):
    """`learn` as one autograd node whose backward pass is written out below."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, renorm: bool, depth: int, *parameters: Tensor) -> tuple[Tensor, ...]:
        saved: list[Tensor | None] = []
        found = []
        for i in range(depth):
            layer = Renorm(*parameters[6 * i : 6 * i + 6])
            mean, var = moments(x)
            rstd = torch.rsqrt(var + EPS)
            scale, offset, slope, d = affine(mean, rstd, layer, renorm)
            weight, bias = fold(layer, scale, offset)
            saved += [x, mean, rstd, slope, d, scale, offset, weight, layer.weight]
            found += [mean, var]
            x = torch.bmm(x, weight).add_(bias)
            if i < depth - 1:
                x.relu_()
        ctx.save_for_backward(*saved)
        ctx.mark_non_differentiable(*found)
        ctx.depth = depth
        return x, *found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        saved, rows = ctx.saved_tensors, grad.shape[1]
        found: list[Tensor | None] = []
        for i in reversed(range(ctx.depth)):
            x, mean, rstd, slope, d, scale, offset, folded, weight = saved[9 * i : 9 * i + 9]
            folded_grad = torch.bmm(x.mT, grad)
            bias_grad = grad.sum(1, keepdim=True)
            offset_grad = torch.bmm(bias_grad, weight.mT)
            scale_grad = (folded_grad * weight).sum(-1).unsqueeze(1).addcmul_(mean, offset_grad, value=-1.0)
            gain_grad = scale_grad * slope
            if d is not None:
                gain_grad.addcmul_(offset_grad, d)
            weight_grad = (folded_grad * scale.mT).baddbmm_(offset.mT, bias_grad)
            found = [weight_grad, bias_grad, gain_grad, offset_grad, None, None, *found]
            if i > 0:
                # x reaches the output directly, and through the variance and the mean of the batch
                by_square = scale_grad * scale * rstd.square() / -rows
                by_mean = torch.addcmul(offset_grad * scale / -rows, by_square, mean, value=-1.0)
                grad = torch.addcmul(by_mean, x, by_square).baddbmm_(grad, folded.mT)
                grad = aten.threshold_backward.grad_input(grad, x, 0, grad_input=grad)
        return None, None, None, *found


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
                scale = layer.gain * torch.rsqrt(layer.var + EPS)
                folded.append(Layer(*fold(layer, scale, layer.shift - scale * layer.mean)))
        return run_mlp(x, action, folded, "relu")

    def learn(self, x: Tensor, renorm: bool) -> Tensor:
        """Learning: normalised by the batch, which moves the running statistics; gradients reach the parameters."""
        layers = self.layers()
        x = x.expand(len(self.weights[0]), *x.shape)
        if torch.compiler.is_compiling():
            y, found = learn(x, layers, renorm)
        else:
            y, *found = HandWrittenLearn.apply(x, renorm, len(layers), *(p for layer in layers for p in layer))
        with torch.no_grad():
            torch._foreach_lerp_([s for layer in layers for s in (layer.mean, layer.var)], found, MOMENTUM)
        return y
