"""All gradients that are written by hand, as autograd nodes, each next to the plain function that it computes.

    HandWrittenMLP      a whole network or ensemble: one node instead of one per operation, masks in place, and nothing
                        computed for weights that are frozen
    SquashedSample      a tanh-Gaussian action and its log-probability
    HandWrittenLearn    a batch-renormalised network in training

Small networks on few cores spend as much on autograd as on arithmetic. Algorithms know nothing of this: they write
losses. Compiled code takes the plain functions, which a compiler merges by itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

LOG_STD_MIN, LOG_STD_MAX = -20.0, 2.0
NORM_EPS = 1e-5

aten = torch.ops.aten


class Layer(NamedTuple):
    """One linear layer, [in, out] or [members, in, out], and the gain and shift of a LayerNorm behind it, if any."""

    weight: Tensor
    bias: Tensor
    gain: Any = None
    shift: Any = None

    def each(self, function: Callable[[Tensor], Tensor]) -> Layer:
        return Layer(*(function(p) for p in self if p is not None))


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": torch.relu_, "tanh": torch.tanh_, "elu": F.elu_}


# the gradient of an activation by its output; in place on a gradient that nobody else reads
GRADIENTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "relu": lambda grad, y: aten.threshold_backward.grad_input(grad, y, 0, grad_input=grad),
    "tanh": lambda grad, y: aten.tanh_backward.grad_input(grad, y, grad_input=grad),
}


FEW = 16  # columns below which BLAS is up to ten times as fast at the transposed product


def product(x: Tensor, y: Tensor) -> Tensor:
    """x @ y for two matrices or two stacks of them, without what matmul spends to find out which."""
    columns = y.shape[-1]
    if y.dim() == 2:  # the actions of actors
        return torch.mm(y.mT, x.mT).mT if 1 < columns < FEW <= x.shape[0] else torch.mm(x, y)
    if x.shape[-1] == 1:  # columns times rows
        return x * y
    if columns == 1:  # the values of critics
        return torch.bmm(y.mT, x.mT).mT
    return torch.bmm(x, y)


def linear(x: Tensor, layer: Layer) -> Tensor:
    """x @ weight + bias, by the same choices as `product`."""
    weight, bias = layer.weight, layer.bias
    columns = weight.shape[-1]
    if torch.compiler.is_compiling():  # merges the sum with what follows
        return ((x * weight.mT).sum(-1, keepdim=True) if columns == 1 else torch.matmul(x, weight)) + bias
    if weight.dim() == 2:
        if 1 < columns < FEW <= x.shape[0]:
            return torch.addmm(bias.unsqueeze(1), weight.mT, x.mT).mT
        return torch.addmm(bias, x, weight)
    if columns == 1:
        return torch.baddbmm(bias, weight.mT, x.mT).mT
    return torch.baddbmm(bias, x, weight)


def plain_mlp(x: Tensor, layers: Sequence[Layer], activation: str, dropout: float = 0.0) -> Tensor:
    """linear -> LayerNorm -> activation -> dropout, and a linear layer at the end; gradients by autograd."""
    for layer in layers[:-1]:
        x = linear(x, layer)
        if layer.gain is not None:
            x = torch.addcmul(layer.shift, F.layer_norm(x, x.shape[-1:], eps=NORM_EPS), layer.gain)
        x = ACTIVATIONS[activation](x)
        if dropout > 0.0:
            x = F.dropout(x, dropout)
    return linear(x, layers[-1])


def join(x: Tensor, action: Tensor | None, weight: Tensor) -> Tensor:
    """What the first layer reads: the columns of both side by side, one copy for each member of an ensemble."""
    if action is not None:
        x = torch.cat([x, action], -1)
    return x.expand(weight.shape[0], *x.shape) if weight.dim() > x.dim() else x


class HandWrittenMLP(torch.autograd.Function):
    """`plain_mlp` of `join(x, action)` as one autograd node whose backward pass is written out below.

    Most critics are differentiated by the action alone, and then the columns of `x` cost nothing. `width` is the number
    of parameters of each layer but the last: 4 with LayerNorm, else 2.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, action: Tensor | None, activation: str, width: int, *parameters: Tensor) -> Tensor:
        layers = unflatten(parameters, width)
        y = join(x, action, layers[0].weight)
        inputs, norms = [y], []  # what every layer reads; what LayerNorm leaves for its gradient
        for layer in layers[:-1]:
            y = linear(y, layer)
            if layer.gain is not None:
                normal, mean, rstd = torch.native_layer_norm(y, y.shape[-1:], None, None, NORM_EPS)
                norms += [normal, y, mean, rstd]
                y = torch.addcmul(layer.shift, normal, layer.gain)
            y = ACTIVATIONS[activation](y)
            inputs.append(y)
        ctx.activation, ctx.width, ctx.sizes = activation, width, (len(parameters), len(inputs))
        ctx.save_for_backward(*parameters, *inputs, *norms, x, action)
        return linear(y, layers[-1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        *saved, x, action = ctx.saved_tensors
        n, depth = ctx.sizes
        parameters, inputs, norms = saved[:n], saved[n : n + depth], saved[n + depth :]
        if torch.is_grad_enabled():  # create_graph=True asks for gradients of gradients: autograd knows them
            return differentiable_backward(ctx, grad, x, action, parameters)
        layers = unflatten(parameters, ctx.width)
        found: list[Tensor | None] = []
        stacked = grad.dim() == 3
        for i in reversed(range(depth)):
            layer = layers[i]
            wanted = ctx.needs_input_grad[4 + ctx.width * i :]
            extra: list[Tensor | None] = []
            if i < depth - 1:
                grad = GRADIENTS[ctx.activation](grad, inputs[i + 1])
                if layer.gain is not None:
                    normal, y, mean, rstd = norms[4 * i : 4 * i + 4]
                    extra = [
                        (grad * normal).sum(-2, keepdim=stacked) if wanted[2] else None,
                        grad.sum(-2, keepdim=stacked) if wanted[3] else None,
                    ]
                    grad = aten.native_layer_norm_backward(
                        grad.mul_(layer.gain), y, y.shape[-1:], mean, rstd, None, None, [True, False, False]
                    )[0]
            weight_grad = product(inputs[i].mT, grad) if wanted[0] else None
            bias_grad = grad.sum(-2, keepdim=stacked) if wanted[1] else None
            found = [weight_grad, bias_grad, *extra, *found]
            if i > 0:
                grad = product(grad, layer.weight.mT)
        return *input_grads(ctx, grad, layers[0].weight, x), None, None, *found


def input_grads(ctx: Any, grad: Tensor, weight: Tensor, x: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """The gradients of x and of the action, where they are wanted, from that behind the first layer."""

    def of(columns: Tensor) -> Tensor:
        found = torch.matmul(columns, grad.mT).mT  # transposed, since observations and actions have few columns
        return found.sum(0) if grad.dim() > x.dim() else found

    n, (by_x, by_action) = x.shape[-1], ctx.needs_input_grad[:2]
    return of(weight[..., :n, :]) if by_x else None, of(weight[..., n:, :]) if by_action else None


def differentiable_backward(
    ctx: Any, grad: Tensor, x: Tensor, action: Tensor | None, parameters: Sequence[Tensor]
) -> tuple[Tensor | None, ...]:
    """The same gradients as functions that can be differentiated again."""
    wanted = [i for i, needed in enumerate(ctx.needs_input_grad) if needed]
    inputs: list[Any] = [x, action, None, None, *parameters]
    layers = unflatten(parameters, ctx.width)
    y = plain_mlp(join(x, action, layers[0].weight), layers, ctx.activation)
    grads = torch.autograd.grad(y, [inputs[i] for i in wanted], grad, create_graph=True)
    found: list[Tensor | None] = [None] * len(inputs)
    for i, g in zip(wanted, grads, strict=True):
        found[i] = g
    return tuple(found)


def unflatten(parameters: Sequence[Tensor], width: int) -> list[Layer]:
    return [Layer(*parameters[i : i + width]) for i in range(0, len(parameters), width)]


def run_mlp(x: Tensor, action: Tensor | None, layers: Sequence[Layer], activation: str, dropout: float = 0.0) -> Tensor:
    """`plain_mlp` of `join(x, action)`, with gradients by hand where they are wanted and written."""
    by_hand = activation in GRADIENTS and dropout == 0.0 and not torch.compiler.is_compiling()
    if by_hand and torch.is_grad_enabled():
        width = 2 if layers[0].gain is None else 4
        parameters = [p for layer in layers for p in layer if p is not None]
        return HandWrittenMLP.apply(x, action, activation, width, *parameters)
    return plain_mlp(join(x, action, layers[0].weight), layers, activation, dropout)


def noise_like(x: Tensor) -> Tensor:
    """Normal noise of the shape of x, the same draws wherever the numbers of x lie in memory."""
    return torch.randn(x.shape, dtype=x.dtype, device=x.device)


def gaussian(head: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and clamped log_std from the outputs of a network."""
    mean, log_std = head.chunk(2, -1)
    return mean, log_std.clamp(LOG_STD_MIN, LOG_STD_MAX)


def squashed_sample(mean: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The action tanh(mean + std * noise), its log-probability [B], and std * noise."""
    deviation = log_std.exp() * noise
    raw = mean + deviation
    return torch.tanh(raw), squashed_log_prob(raw, noise, log_std), deviation


def squashed_log_prob(raw: Tensor, noise: Tensor, log_std: Tensor) -> Tensor:
    """log-probability [B] of tanh(raw) with raw = mean + std * noise.

    log(1 - tanh(x)^2) = 2 log 2 - 2 log(e^x + e^-x), which does not lose its digits for large |x|.
    """
    each = torch.addcmul(log_std, noise, noise, value=0.5) - 2.0 * torch.logaddexp(raw, -raw)
    return -each.sum(-1) - (0.5 * math.log(2.0 * math.pi) + 2.0 * math.log(2.0)) * raw.shape[-1]


class SquashedSample(torch.autograd.Function):
    """`squashed_sample` as one autograd node: d log_prob / d raw = 2 tanh(raw), d raw / d log_std = deviation."""

    @staticmethod
    def forward(ctx: Any, head: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = gaussian(head)
        action, log_prob, deviation = squashed_sample(mean, log_std, noise)
        ctx.save_for_backward(head, log_std, action, deviation)
        return action, log_prob

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, action_grad: Tensor, log_prob_grad: Tensor) -> tuple[Tensor, None]:
        head, log_std, action, deviation = ctx.saved_tensors
        log_prob_grad = log_prob_grad.unsqueeze(-1)
        raw_grad = aten.tanh_backward(action_grad, action).addcmul_(action, log_prob_grad, value=2.0)
        log_std_grad = (raw_grad * deviation).sub_(log_prob_grad)
        log_std_grad.mul_(log_std == head.chunk(2, -1)[1])  # nothing where log_std was clamped
        return torch.cat([raw_grad, log_std_grad], -1), None


# -- batch renormalisation; the formulas are those of norm.py

RENORM_EPS = 1e-3
R_MAX, D_MAX = 3.0, 5.0


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


def inverse_std(var: Tensor) -> Tensor:
    return torch.rsqrt(var + RENORM_EPS)


def corrections(mean: Tensor, rstd: Tensor, layer: Renorm) -> tuple[Tensor, Tensor]:
    """r and d of a batch."""
    running = inverse_std(layer.var)
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
        scale, offset, _, _ = affine(mean, inverse_std(var), layer, renorm)
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
            rstd = inverse_std(var)
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
