"""All gradients that are written by hand. Algorithms know nothing of them: they write losses and minimise them.

Autograd nodes, each next to the plain function that it computes:

    HandWrittenMLP      a whole network or ensemble: one node instead of one per operation, masks in place, and nothing
                        computed for weights that are frozen
    SquashedSample      a tanh-Gaussian action and its log-probability
    HandWrittenLearn    a batch-renormalised network in training

Functions that can also be `recorded`, for PPO and DQN, whose networks are so small that even a few nodes of autograd
cost as much as their arithmetic: networks, scores of actions, and what the losses of these algorithms are made of.

An exported policy takes the plain functions. Where the native nodes are on (see rlx/nn/native), networks and samples
are computed by those, and the functions here stand in where they decline or where torch compiles.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from rlx.nn.native import ACTIVATION_NUMBERS, NATIVE

LOG_STD_MIN, LOG_STD_MAX = -20.0, 2.0
NORM_EPS = 1e-5
LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)

aten = torch.ops.aten


class Layer(NamedTuple):
    """One linear layer, [in, out] or [members, in, out], and the gain and shift of a LayerNorm behind it, if any."""

    weight: Tensor
    bias: Tensor
    gain: Any = None
    shift: Any = None

    def each(self, function: Callable[[Tensor], Tensor]) -> Layer:
        return Layer(*(function(p) for p in self if p is not None))


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {  # in place where torch can
    "relu": torch.relu_,
    "tanh": torch.tanh_,
    "elu": F.elu_,
    "gelu": F.gelu,
}


# the gradient of an activation by its output; in place on a gradient that nobody else reads. The others are autograd's
relu_backward, tanh_backward = aten.threshold_backward.grad_input, aten.tanh_backward.grad_input
GRADIENTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "relu": lambda grad, y: relu_backward(grad, y, 0, grad_input=grad),
    "tanh": lambda grad, y: tanh_backward(grad, y, grad_input=grad),
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
    if weight.dim() == 2:
        if 1 < columns < FEW <= x.shape[0]:
            return torch.addmm(bias.unsqueeze(1), weight.mT, x.mT).mT
        return torch.addmm(bias, x, weight)
    if columns == 1:
        return torch.baddbmm(bias, weight.mT, x.mT).mT
    return torch.baddbmm(bias, x, weight)


def exported_linear(x: Tensor, layer: Layer) -> Tensor:
    """The same for any number of rows, of which an exported policy knows nothing."""
    narrow = layer.weight.shape[-1] == 1
    return ((x * layer.weight.mT).sum(-1, keepdim=True) if narrow else torch.matmul(x, layer.weight)) + layer.bias


def plain_mlp(
    x: Tensor, layers: Sequence[Layer], activation: str, dropout: float = 0.0, masks: Sequence[Tensor] = ()
) -> Tensor:
    """linear -> LayerNorm -> activation -> dropout, and a linear layer at the end; gradients by autograd.

    `masks` are those of dropout, of each hidden layer, where they have been drawn before.
    """
    apply = exported_linear if torch.compiler.is_exporting() else linear
    activate = ACTIVATIONS[activation]
    for i, layer in enumerate(layers[:-1]):
        x = apply(x, layer)
        if layer.gain is not None:
            x = torch.addcmul(layer.shift, F.layer_norm(x, x.shape[-1:], eps=NORM_EPS), layer.gain)
        x = activate(x)
        if masks:
            x = x * masks[i]
        elif dropout > 0.0:
            x = F.dropout(x, dropout)
    return apply(x, layers[-1])


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
            wanted = [*ctx.needs_input_grad[:2], *ctx.needs_input_grad[4:]]
            by_x, by_action, *others = differentiable_backward(
                grad, x, action, parameters, ctx.width, ctx.activation, (), wanted
            )
            return by_x, by_action, None, None, *others
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
    grad: Tensor,
    x: Tensor,
    action: Tensor | None,
    parameters: Sequence[Tensor],
    width: int,
    activation: str,
    masks: Sequence[Tensor],
    wanted: Sequence[bool],
) -> tuple[Tensor | None, ...]:
    """The gradients of x, of the action and of the parameters, as functions that can be differentiated again."""
    inputs: list[Any] = [x, action, *parameters]
    layers = unflatten(parameters, width)
    y = plain_mlp(join(x, action, layers[0].weight), layers, activation, masks=masks)
    asked = [tensor for tensor, needed in zip(inputs, wanted, strict=True) if needed]
    grads = iter(torch.autograd.grad(y, asked, grad, create_graph=True))
    return tuple(next(grads) if needed else None for needed in wanted)


def unflatten(parameters: Sequence[Tensor], width: int) -> list[Layer]:
    return [Layer(*parameters[i : i + width]) for i in range(0, len(parameters), width)]


def flatten(layers: Sequence[Layer]) -> list[Tensor]:
    return [p for layer in layers for p in layer if p is not None]


def drawn_mask(shape: Sequence[int], columns: int, dropout: float, rows_first: bool) -> Tensor:
    """A mask [*shape, columns] by the draws of F.dropout, which go by memory: outputs of `linear` with few columns lie
    there column by column, where no normalisation comes after them.
    """
    across = not rows_first and 1 < columns < FEW <= shape[0]
    mask = torch.empty(columns, *shape) if across else torch.empty(*shape, columns)
    mask.bernoulli_(1.0 - dropout).div_(1.0 - dropout)
    return mask.t().contiguous() if across else mask


def native_mlp(
    x: Tensor,
    action: Tensor | None,
    parameters: Sequence[Tensor],
    norm: bool,
    activation: str,
    dropout: float = 0.0,
    frozen: bool = False,
    members: Tensor | slice | None = None,
) -> Tensor | None:
    """`run_mlp` by the native node, for the network that the arguments of MLP.forward ask for; None: it declines."""
    width, masks = 4 if norm else 2, None
    if dropout > 0.0:
        fits = members is None and all(p.dtype is torch.float32 and p.is_contiguous() for p in parameters)
        if not fits or x.dtype is not torch.float32:
            return None  # before anything is drawn, which Python would draw again
        shape = x.shape[:-1] if parameters[0].dim() == x.dim() else (len(parameters[0]), *x.shape[:-1])
        sizes = [bias.shape[-1] for bias in parameters[1:-1:width]]
        masks = [drawn_mask(shape, n, dropout, norm or len(shape) > 1) for n in sizes]
    number = ACTIVATION_NUMBERS[activation]
    y: Tensor | None = NATIVE.on.mlp(x, action, parameters, width, number, frozen, members, masks, 1.0 - dropout)
    return y


def differentiate_again(
    grad: Tensor,
    x: Tensor,
    action: Tensor | None,
    parameters: Sequence[Tensor],
    width: int,
    activation: int,
    masks: Sequence[Tensor],
    wanted: Sequence[bool],
) -> tuple[Tensor | None, ...]:
    """`differentiable_backward` for the native node."""
    name = next(name for name, number in ACTIVATION_NUMBERS.items() if number == activation)
    return differentiable_backward(grad, x, action, parameters, width, name, masks, wanted)


def run_mlp(x: Tensor, action: Tensor | None, layers: Sequence[Layer], activation: str, dropout: float = 0.0) -> Tensor:
    """`plain_mlp` of `join(x, action)`, with gradients by hand where they are wanted and written."""
    if not torch.compiler.is_compiling() and NATIVE.on is not None:
        y = native_mlp(x, action, flatten(layers), layers[0].gain is not None, activation, dropout)
        if y is not None:
            return y
    by_hand = activation in GRADIENTS and dropout == 0.0 and not torch.compiler.is_exporting()
    if by_hand and torch.is_grad_enabled():
        width = 2 if layers[0].gain is None else 4
        return HandWrittenMLP.apply(x, action, activation, width, *flatten(layers))
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

    @classmethod
    def apply(cls, head: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        pair = NATIVE.on.squashed(head, noise) if NATIVE.on is not None else None
        return super().apply(head, noise) if pair is None else pair


def squash(head: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """An action and its log-probability [B] from the outputs of a network: `squashed_sample` in few operations."""
    by_node = torch.is_grad_enabled() or NATIVE.on is not None
    if by_node and not torch.compiler.is_exporting():
        return SquashedSample.apply(head, noise)
    return squashed_sample(*gaussian(head), noise)[:2]


# -- computations that are recorded and differentiated without autograd


class Step:
    """One function of a recorded computation: what it read, and how gradients go back through it.

    `backward(into, *grads)` takes the gradients of its outputs, writes those of parameters `into` their places, and
    returns those of the tensors that it read. The gradient of a mean is a plain number, the same for every row.
    """

    __slots__ = ("backward", "grads", "order", "sources")
    count = itertools.count()

    def __init__(self, backward: Callable[..., Sequence[Any]], sources: Sequence[Tensor], outputs: Sequence[Tensor]):
        self.backward = backward
        self.sources: list[tuple[Step, int] | None] = [x.made_by for x in sources]  # type: ignore[attr-defined]
        self.order = next(self.count)
        self.grads: list[Any] = [None] * len(outputs)
        for k, output in enumerate(outputs):
            output.made_by = (self, k)  # type: ignore[attr-defined]


class Places:
    """Where the gradients of parameters go: parts of one vector, so that clipping their norm takes few operations."""

    def __init__(self, params: Sequence[Tensor]):
        sizes = [p.numel() for p in params]
        self.vector = torch.zeros(sum(sizes), dtype=params[0].dtype, device=params[0].device)
        self.parts = [part.view_as(p) for part, p in zip(self.vector.split(sizes), params, strict=True)]
        self.written = 0  # parts that the last loss has reached
        self._of = {id(p): part for p, part in zip(params, self.parts, strict=True)}
        self._layers: dict[int, list[tuple[Tensor, Tensor]]] = {}

    def of(self, param: Tensor) -> Tensor:
        """The part of a parameter, to be written as a whole."""
        self.written += 1
        return self._of[id(param)]

    def of_layers(self, layers: Sequence[Layer]) -> list[tuple[Tensor, Tensor]]:
        """The parts of the weights and biases of a network."""
        self.written += 2 * len(layers)
        first = id(layers[0].weight)
        if first not in self._layers:
            self._layers[first] = [(self._of[id(layer.weight)], self._of[id(layer.bias)]) for layer in layers]
        return self._layers[first]


def recorded(x: Tensor) -> Tensor:
    """The input of networks whose gradients are to be taken by hand: for losses that are made of the functions below.

    A tensor that is made from a recorded one by these functions remembers it, and `Optimizer.minimize` finds its way
    back. Everything works without: where x itself has to be differentiated, since it comes from an encoder that learns,
    and where a network has no recorded form, autograd does it.
    """
    if isinstance(x, Tensor) and not x.requires_grad:
        x.made_by = None  # type: ignore[attr-defined]
    return x


def is_recorded(x: Tensor) -> bool:
    return hasattr(x, "made_by")


def go_back(loss: Tensor, into: Places) -> None:
    """Write the gradients of a recorded loss into their places."""
    into.written = 0
    last, _ = loss.made_by  # type: ignore[attr-defined]
    last.grads[0] = 1.0
    waiting = {last.order: last}
    while waiting:
        step = waiting.pop(max(waiting))  # whatever reads its outputs came after it, and has been here
        for source, grad in zip(step.sources, step.backward(into, *step.grads), strict=True):
            if source is not None:
                other, k = source
                before = other.grads[k]
                other.grads[k] = grad if before is None else before + grad
                waiting[other.order] = other
    if into.written != len(into.parts):
        raise RuntimeError("A recorded loss has to reach each parameter of its optimizer once.")


def small_mlp(x: Tensor, layers: Sequence[Layer], activation: str) -> list[Tensor]:
    """What each of the linear layers reads and, last, the output; of native nodes, the output alone."""
    if not torch.compiler.is_compiling() and NATIVE.on is not None:
        y = native_mlp(x, None, flatten(layers), False, activation)
        if y is not None:
            return [y]
    return each_of_small_mlp(x, layers, activation)


def each_of_small_mlp(x: Tensor, layers: Sequence[Layer], activation: str) -> list[Tensor]:
    """`plain_mlp` without its choices, for few rows and small layers, where to choose costs as much as to compute:
    what each of the linear layers reads and, last, the output.
    """
    activate = ACTIVATIONS[activation]
    found = [x]
    for layer in layers[:-1]:
        found.append(activate(torch.addmm(layer.bias, found[-1], layer.weight)))
    found.append(torch.addmm(layers[-1].bias, found[-1], layers[-1].weight))
    return found


def recorded_mlp(x: Tensor, layers: Sequence[Layer], activation: str) -> Tensor:
    """`small_mlp`, recorded; a gradient [B] of an output [B, 1] is taken as [B, 1]."""
    pair = NATIVE.on.record(x, flatten(layers), ACTIVATION_NUMBERS[activation]) if NATIVE.on is not None else None
    if pair is not None:
        return natively_recorded(x, layers, activation, *pair)
    slope, by_autograd = GRADIENTS[activation], torch.is_grad_enabled()
    try:
        torch._C._set_grad_enabled(False)  # a tenth of the time of torch.no_grad
        *inputs, y = each_of_small_mlp(x, layers, activation)
    finally:
        torch._C._set_grad_enabled(by_autograd)

    def backward(into: Places, grad: Tensor) -> Sequence[None]:
        places = into.of_layers(layers)
        grad = grad if grad.dim() == 2 else grad.unsqueeze(-1)
        for i in reversed(range(len(layers))):
            torch.mm(inputs[i].t(), grad, out=places[i][0])
            torch.sum(grad, 0, out=places[i][1])
            if i > 0:
                grad = slope(grad.mm(layers[i].weight.t()), inputs[i])
        return (None,)

    Step(backward, (x,), (y,))
    return y


def natively_recorded(x: Tensor, layers: Sequence[Layer], activation: str, y: Tensor, kept: Tensor) -> Tensor:
    """The output of a native pass, and the way back through it."""

    def backward(into: Places, grad: Tensor) -> Sequence[None]:
        places = [place for pair in into.of_layers(layers) for place in pair]
        NATIVE.on.go_back(x, kept, flatten(layers), ACTIVATION_NUMBERS[activation], grad, places)
        return (None,)

    Step(backward, (x,), (y,))
    return y


def column(x: Tensor) -> Tensor:
    """The output [B, 1] of a network as [B]."""
    y = x.squeeze(-1)
    if is_recorded(x):
        y.made_by = x.made_by  # type: ignore[attr-defined]
    return y


def split(x: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    """The parts of x [B, sum(sizes)], side by side."""
    parts = list(x.split(list(sizes), -1))
    if is_recorded(x):
        Step(lambda into, *grads: (torch.cat(grads, -1),), (x,), parts)
    return parts


def total(tensors: Sequence[Tensor]) -> Tensor:
    """The sum of several tensors [B]."""
    y = torch.stack(list(tensors)).sum(0)
    if is_recorded(tensors[0]):
        n = len(tensors)
        Step(lambda into, grad: [grad] * n, tensors, (y,))
    return y


def recorded_choice(logits: Tensor, action: Tensor, entropy: bool) -> tuple[Tensor, Tensor | None]:
    """log-probability and, if wanted, entropy [B] of choices [B] by logits [B, K]."""
    log_probs, action = logits.log_softmax(-1), action.unsqueeze(-1)
    log_prob = log_probs.gather(-1, action).squeeze(-1)
    mean = (log_probs.exp() * log_probs).sum(-1, keepdim=True) if entropy else None

    def backward(into: Places, by_log_prob: Tensor, by_entropy: float | None = None) -> Sequence[Tensor]:
        probs, weight = log_probs.exp(), by_log_prob.unsqueeze(-1)
        grad = (probs * -weight).scatter_add_(-1, action, weight)  # weight * (one_hot - probs)
        if by_entropy is not None and mean is not None:
            grad.addcmul_(probs, log_probs - mean, value=-by_entropy)
        return (grad,)

    if mean is None:
        Step(backward, (logits,), (log_prob,))
        return log_prob, None
    spread = mean.squeeze(-1).neg()
    Step(backward, (logits,), (log_prob, spread))
    return log_prob, spread


def recorded_gaussian(mean: Tensor, parameter: Tensor, action: Tensor, entropy: bool) -> tuple[Tensor, Tensor | None]:
    """log-probability and, if wanted, entropy [B] of actions [B, D] under N(mean [B, D], exp(parameter [D])^2)."""
    log_std = parameter.detach()
    inverse, total, d = (-log_std).exp(), log_std.sum(), mean.shape[-1]
    z = (action - mean).mul_(inverse)
    squares = z.square()
    outputs = [squares.sum(-1).mul_(-0.5).sub_(total).sub_(LOG_SQRT_2PI * d)]
    if entropy:
        outputs.append((total + (0.5 + LOG_SQRT_2PI) * d).expand(mean.shape[:-1]))

    def backward(into: Places, by_log_prob: Tensor, by_entropy: float | None = None) -> Sequence[Tensor]:
        by_log_std = torch.mv(squares.sub_(1.0).t(), by_log_prob, out=into.of(parameter))
        if by_entropy is not None:
            by_log_std += by_entropy * len(z)
        return (z.mul_(inverse).mul_(by_log_prob.unsqueeze(-1)),)

    Step(backward, (mean,), outputs)
    return outputs[0], outputs[1] if entropy else None


def clipped_surrogate(log_prob: Tensor, old_log_prob: Tensor, advantage: Tensor, clip_range: float) -> Tensor:
    """PPO's objective, to be minimised: -E[min(rho A, clip(rho, 1 - eps, 1 + eps) A)],  rho = pi / pi_old; all [B]."""
    if not is_recorded(log_prob):
        ratio = (log_prob - old_log_prob).exp()
        return -torch.minimum(ratio * advantage, ratio.clamp(1.0 - clip_range, 1.0 + clip_range) * advantage).mean()
    # min(rho A, clip(rho) A) = min(rho A, A + eps |A|), whose slope is rho A where the first is less
    free = (log_prob - old_log_prob).exp_().mul_(advantage)
    limit = torch.add(advantage, advantage.abs(), alpha=clip_range)
    loss = torch.minimum(free, limit).mean().neg_()

    def backward(into: Places, weight: float) -> Sequence[Tensor]:
        return (free.masked_fill_(free > limit, 0.0).mul_(-weight / len(free)),)

    Step(backward, (log_prob,), (loss,))
    return loss


def value_error(value: Tensor, old_value: Tensor, returns: Tensor, clip_range: float | None) -> Tensor:
    """Mean squared error of values [B]; with a clip range, of the worse of V and V kept near its old value."""
    error = value - returns
    stuck = None
    if clip_range is not None:
        moved = value - old_value
        bound = old_value + moved.clamp(-clip_range, clip_range) - returns
        stuck = (moved.abs() > clip_range) & (bound.abs() > error.abs())  # the worse one is the bound: it has no slope
    loss = (error if stuck is None else torch.where(stuck, bound.detach(), error)).square().mean()
    if is_recorded(value):

        def backward(into: Places, weight: float) -> Sequence[Tensor]:
            slope = error * (2.0 * weight / len(error))
            return (slope if stuck is None else slope.masked_fill_(stuck, 0.0),)

        Step(backward, (value,), (loss,))
    return loss


def dueling(head: Tensor) -> Tensor:
    """Q(s, .) = V + A - mean A [B, K] from V and A side by side [B, 1 + K]."""
    value, advantage = head[:, :1], head[:, 1:]
    q = value + advantage - advantage.mean(-1, keepdim=True)
    if is_recorded(head):

        def backward(into: Places, grad: Tensor) -> Sequence[Tensor]:
            return (torch.cat([grad.sum(-1, keepdim=True), grad - grad.mean(-1, keepdim=True)], -1),)

        Step(backward, (head,), (q,))
    return q


def chosen(q: Tensor, action: Tensor) -> Tensor:
    """Q(s, a) [B] of the actions [B] out of Q(s, .) [B, K]."""
    natively = NATIVE.on is not None and is_recorded(q)
    taken = NATIVE.on.chosen(q, action) if natively else None
    if taken is not None:
        Step(lambda into, grad: (NATIVE.on.chosen_back(action, grad, q.shape[-1]),), (q,), (taken,))
        return taken
    action = action.unsqueeze(-1)
    taken = q.gather(-1, action).squeeze(-1)
    if is_recorded(q):

        def backward(into: Places, grad: Tensor) -> Sequence[Tensor]:
            return (torch.zeros_like(q).scatter_(-1, action, grad.unsqueeze(-1)),)

        Step(backward, (q,), (taken,))
    return taken


def huber_loss(value: Tensor, target: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The mean of weight * huber(value - target), |value - target| [B], and the means of both."""
    natively = NATIVE.on is not None and is_recorded(value)
    made = NATIVE.on.huber(value, target, weight) if natively else None
    if made is not None:
        loss, error, slopes, mean, aim = made
        Step(lambda into, scale: (slopes if scale == 1.0 else slopes * scale,), (value,), (loss,))
        return loss, error, mean, aim
    error = value - target
    slope = error.clamp(-1.0, 1.0)
    each = slope * (error - 0.5 * slope)
    loss = (each if weight is None else weight * each).mean()
    if is_recorded(value):

        def backward(into: Places, scale: float) -> Sequence[Tensor]:
            return ((slope if weight is None else weight * slope) * (scale / len(slope)),)

        Step(backward, (value,), (loss,))
    return loss, error.detach().abs(), value.detach().mean(), target.mean()


def weighted_sum(*terms: tuple[float, Tensor]) -> Tensor:
    """The sum of coef * mean(term): a loss of several terms."""
    loss: Tensor | None = None
    known = 0  # recorded terms
    for coef, x in terms:
        mean = x.mean() if x.dim() else x
        loss = torch.add(loss, mean, alpha=coef) if loss is not None else mean if coef == 1.0 else coef * mean
        known += is_recorded(x)
    assert loss is not None
    if 0 < known < len(terms):
        raise RuntimeError("Some terms of this loss are recorded and some are not; make all of them by rlx.nn.fused.")
    if known:

        def backward(into: Places, weight: float) -> Sequence[float]:
            return [weight * coef / x.numel() for coef, x in terms]

        Step(backward, [x for _, x in terms], (loss,))
    return loss


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


def batched(x: Tensor, y: Tensor, to: Tensor | None = None) -> Tensor:
    """x [E, m, k] @ y [E, k, n], added to a tensor in place where one is given."""
    made: Tensor | None = NATIVE.on.batched(x, y, to) if NATIVE.on is not None else None
    if made is None:
        return torch.bmm(x, y) if to is None else to.baddbmm_(x, y)
    return made


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
            x = batched(x, weight).add_(bias)
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
            folded_grad = batched(x.mT, grad)
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
                grad = batched(grad, folded.mT, torch.addcmul(by_mean, x, by_square))
                grad = relu_backward(grad, x, 0, grad_input=grad)
        return None, None, None, *found
