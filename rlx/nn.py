"""Networks and optimizers that all learners share, built for small networks on few cores.

An `MLP` is one network or an ensemble of them as batched tensors (`[members, in, out]`, one product per layer). Its
gradients are written by hand: one autograd node instead of one per operation, masks in place, and nothing computed for
weights that are `frozen`. `Adam` is one fused call over all its parameters, `polyak` one foreach call.
"""

from __future__ import annotations

import copy
import ctypes
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise, zip_longest
from typing import Any, NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from rlx.errors import UserError

LOG_STD_MIN, LOG_STD_MAX = -20.0, 2.0
ACTION_LIMIT = 1.0 - 1e-5  # actions are clipped to this before any atanh
NORM_EPS = 1e-5

M = TypeVar("M", bound=nn.Module)
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


class MLP(nn.Module):
    """A network of `sizes` = [in, hidden..., out], or `ensemble` of them side by side.

    [..., in] -> [..., out]. An ensemble takes one input for all, [B, in], or one for each, [E, B, in] -> [E, B, out].
    """

    def __init__(
        self,
        sizes: Sequence[int],
        *,
        ensemble: int | None = None,
        activation: str = "relu",
        layer_norm: bool = False,
        dropout: float = 0.0,
        init: str = "uniform",
        final_gain: float | None = None,
    ):
        super().__init__()
        if len(sizes) < 2 or min(sizes) < 1:
            raise UserError(f"A network needs sizes [in, hidden..., out], all positive; got {list(sizes)}.")
        if activation not in ACTIVATIONS:
            raise UserError(f"There is no activation {activation!r}; choose one of {', '.join(ACTIVATIONS)}.")
        if not 0.0 <= dropout < 1.0:
            raise UserError(f"dropout is a probability in [0, 1); got {dropout}.")
        self.activation, self.dropout, self.ensemble = activation, dropout, ensemble
        lead = () if ensemble is None else (ensemble,)
        row = () if ensemble is None else (ensemble, 1)
        pairs = list(pairwise(sizes))
        self.weights = nn.ParameterList([torch.empty(*lead, i, o) for i, o in pairs])
        self.biases = nn.ParameterList([torch.empty(*row, o) for _, o in pairs])
        hidden = sizes[1:-1] if layer_norm else ()
        self.gains = nn.ParameterList([torch.ones(*row, n) for n in hidden])
        self.shifts = nn.ParameterList([torch.zeros(*row, n) for n in hidden])
        initialize(self.weights, self.biases, init, final_gain)
        self._layers = [Layer(*p) for p in zip_longest(self.weights, self.biases, self.gains, self.shifts)]

    def layers(self, frozen: bool = False, members: Tensor | slice | None = None) -> list[Layer]:
        """The parameters layer by layer: detached, and of some members only, where asked."""
        layers = self._layers
        if frozen:
            layers = [layer.each(lambda p: p.detach()) for layer in layers]
        if members is not None:
            layers = [layer.each(lambda p: p[members]) for layer in layers]
        return layers

    def forward(
        self,
        x: Tensor,
        action: Tensor | None = None,
        frozen: bool = False,
        members: Tensor | slice | None = None,
    ) -> Tensor:
        """Of `x`, or of `x` and `action` side by side. `frozen` lets gradients through to the inputs and computes none
        for the weights; `members` picks some of an ensemble, by index or slice, and spends no work on the others.
        """
        if x.dim() != 2 and self.ensemble is None:
            rows = [None if y is None else y.reshape(-1, y.shape[-1]) for y in (x, action)]
            return self(*rows, frozen).reshape(*x.shape[:-1], -1)
        dropout = self.dropout if self.training else 0.0
        return run_mlp(x, action, self.layers(frozen, members), self.activation, dropout)


def initialize(weights: Iterable[Tensor], biases: Iterable[Tensor], init: str, final_gain: float | None) -> None:
    """ "uniform" is the default of torch.nn.Linear; "xavier" is uniform in +-sqrt(6 / (in + out)) with biases of 0;
    "orthogonal" has gain sqrt 2 and `final_gain` (1) at the end, with biases of 0.
    """
    weights, biases = list(weights), list(biases)
    if init not in ("uniform", "xavier", "orthogonal"):
        raise UserError(f"There is no initialisation {init!r}; choose uniform, xavier or orthogonal.")
    if init != "orthogonal" and final_gain is not None:
        raise UserError("final_gain belongs to init=orthogonal; drop it or choose that initialisation.")
    with torch.no_grad():
        for i, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
            if init == "uniform":
                bound = 1.0 / math.sqrt(weight.shape[-2])
                weight.uniform_(-bound, bound)
                bias.uniform_(-bound, bound)
                continue
            bias.zero_()
            if init == "xavier":
                bound = math.sqrt(6.0 / sum(weight.shape[-2:]))
                weight.uniform_(-bound, bound)
                continue
            last = i == len(weights) - 1
            gain = (1.0 if final_gain is None else final_gain) if last else math.sqrt(2.0)
            for member in weight if weight.dim() == 3 else [weight]:
                nn.init.orthogonal_(member, gain)


class Critic(MLP):
    """Q(s, a), `n` of them: [n, B]."""

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        hidden: Sequence[int],
        n: int = 2,
        layer_norm: bool = False,
        dropout: float = 0.0,
        init: str = "uniform",
        final_gain: float | None = None,
    ):
        sizes = [obs_dim + action_dim, *hidden, 1]
        super().__init__(sizes, ensemble=n, layer_norm=layer_norm, dropout=dropout, init=init, final_gain=final_gain)

    def forward(  # type: ignore[override]
        self, obs: Tensor, action: Tensor, frozen: bool = False, members: Tensor | slice | None = None
    ) -> Tensor:
        return super().forward(obs, action, frozen, members).squeeze(-1)


class GaussianActor(nn.Module):
    """The policy of SAC: a Gaussian with a state-dependent std, squashed by tanh into (-1, 1)."""

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        hidden: Sequence[int],
        layer_norm: bool = False,
        init: str = "uniform",
    ):
        super().__init__()
        self.net = MLP([obs_dim, *hidden, 2 * action_dim], layer_norm=layer_norm, init=init)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log_std before the squashing."""
        return gaussian(self.net(obs))

    def sample(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """A reparametrised action and its log-probability [B]."""
        head = self.net(obs)
        noise = noise_like(head[..., head.shape[-1] // 2 :])
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            return SquashedSample.apply(head, noise)
        return squashed_sample(*gaussian(head), noise)[:2]

    def mode(self, obs: Tensor) -> Tensor:
        return torch.tanh(self(obs)[0])

    def log_prob(self, obs: Tensor, action: Tensor) -> Tensor:
        mean, log_std = self(obs)
        raw = torch.atanh(action.clamp(-ACTION_LIMIT, ACTION_LIMIT))
        return squashed_log_prob(raw, (raw - mean) * torch.exp(-log_std), log_std)

    @torch.no_grad()
    def act(self, obs: Tensor, explore: bool) -> Tensor:
        """A sample to explore, else the mode; without log-probabilities and gradients."""
        mean, log_std = self(obs)
        return torch.tanh(torch.normal(mean, log_std.exp()) if explore else mean)


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


class DeterministicActor(nn.Module):
    """tanh of an MLP: actions in (-1, 1)."""

    def __init__(self, obs_dim: int, action_dim: int, hidden: Sequence[int], layer_norm: bool = False):
        super().__init__()
        self.net = MLP([obs_dim, *hidden, action_dim], layer_norm=layer_norm)

    def forward(self, obs: Tensor) -> Tensor:
        return torch.tanh(self.net(obs))


class Optimizer:
    """Steps down the gradients of a fixed list of parameters; all of its state is in `tensors`."""

    def __init__(self, params: Iterable[Tensor], lr: float, max_grad_norm: float | None = None):
        self.params = list(params)
        if not self.params:
            raise ValueError("An optimizer needs at least one parameter.")
        if lr <= 0.0:
            raise UserError(f"A learning rate has to be positive; got {lr}.")
        self.lr = lr
        self.scale = 1.0  # a schedule's multiplier of lr
        self.max_grad_norm = max_grad_norm
        self.grad_norm: Tensor | None = None  # of the last step, when gradients are clipped

    def minimize(self, loss: Tensor, retain_graph: bool = False) -> None:
        """One step down the gradient of `loss`, which reaches these parameters and no others."""
        self.step(torch.autograd.grad(loss, self.params, retain_graph=retain_graph))

    @torch.no_grad()
    def step(self, grads: Sequence[Tensor]) -> None:
        grads = [g.contiguous() for g in grads]
        if self.max_grad_norm is not None:
            self.grad_norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads)))
            # not in place: one tensor may be the gradient of two parameters
            grads = list(torch._foreach_mul(grads, (self.max_grad_norm / (self.grad_norm + 1e-6)).clamp(max=1.0)))
        self._move(grads)

    def prepare(self) -> None:
        """Set what a compiled step reads and does not compute; see rlx.compiling."""

    def _move(self, grads: list[Tensor]) -> None:
        raise NotImplementedError(f"{type(self).__name__} does not define _move")

    def tensors(self) -> dict[str, Tensor]:
        """The optimizer's state by name; live tensors, not copies."""
        raise NotImplementedError(f"{type(self).__name__} does not define tensors")


class Adam(Optimizer):
    """Adam (Kingma & Ba, 2015), one fused call per step."""

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        max_grad_norm: float | None = None,
    ):
        super().__init__(params, lr, max_grad_norm)
        self.betas, self.eps, self.weight_decay = betas, eps, weight_decay
        self.exp_avg = [torch.zeros_like(p, requires_grad=False) for p in self.params]
        self.exp_avg_sq = [torch.zeros_like(p, requires_grad=False) for p in self.params]
        self.steps = torch.zeros((), dtype=torch.float32, device=self.params[0].device)
        self._numbers = torch.zeros(2, device=self.params[0].device)  # step size and correction of a compiled step

    def _move(self, grads: list[Tensor]) -> None:
        self.steps += 1
        if torch.compiler.is_compiling():
            return self._move_compiled(grads)
        torch._fused_adam_(
            self.params,
            grads,
            self.exp_avg,
            self.exp_avg_sq,
            [],
            [self.steps] * len(self.params),
            lr=self.lr * self.scale,
            beta1=self.betas[0],
            beta2=self.betas[1],
            weight_decay=self.weight_decay,
            eps=self.eps,
            amsgrad=False,
            maximize=False,
        )

    def prepare(self) -> None:
        step = self.steps.item() + 1.0  # compiled code would compute these numbers anew for each weight
        self._numbers[0] = self.lr * self.scale / (1.0 - self.betas[0] ** step)
        self._numbers[1] = (1.0 - self.betas[1] ** step) ** 0.5

    def _move_compiled(self, grads: list[Tensor]) -> None:
        """The same step in operations that a compiler can merge with those around them."""
        step_size, correction = self._numbers.unbind()
        for param, grad, mean, square in zip(self.params, grads, self.exp_avg, self.exp_avg_sq, strict=True):
            if self.weight_decay:
                grad = grad + self.weight_decay * param
            mean.lerp_(grad, 1.0 - self.betas[0])
            square.lerp_(grad * grad, 1.0 - self.betas[1])
            param.sub_(step_size * mean / (square.sqrt() / correction + self.eps))

    def tensors(self) -> dict[str, Tensor]:
        found = {"step": self.steps}
        for i, (mean, square) in enumerate(zip(self.exp_avg, self.exp_avg_sq, strict=True)):
            found |= {f"exp_avg.{i}": mean, f"exp_avg_sq.{i}": square}
        return found


class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov & Hutter, 2019): before each step, parameters shrink by the factor
    1 - lr * weight_decay.
    """

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float,
        weight_decay: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        max_grad_norm: float | None = None,
    ):
        super().__init__(params, lr, betas, eps, max_grad_norm=max_grad_norm)
        self.decay = weight_decay  # not Adam's weight_decay, which is part of the gradient
        self._kept = torch.ones((), device=self.params[0].device)  # the factor of a compiled step

    def _move(self, grads: list[Tensor]) -> None:
        compiling = torch.compiler.is_compiling()
        torch._foreach_mul_(self.params, self._kept if compiling else self._factor())
        super()._move(grads)

    def _factor(self) -> float:
        return 1.0 - self.lr * self.scale * self.decay

    def prepare(self) -> None:
        super().prepare()
        self._kept.fill_(self._factor())


class RMSprop(Optimizer):
    """RMSprop (Tieleman & Hinton, 2012) as torch has it: the mean square starts at zero and is not corrected for that.

    The first steps are therefore long, 1 / sqrt(1 - decay) times the learning rate, where Adam's are as all the others.
    """

    def __init__(
        self, params: Iterable[Tensor], lr: float, decay: float, eps: float, max_grad_norm: float | None = None
    ):
        super().__init__(params, lr, max_grad_norm)
        self.decay, self.eps = decay, eps
        self.square = [torch.zeros_like(p, requires_grad=False) for p in self.params]

    def _move(self, grads: list[Tensor]) -> None:
        torch._foreach_mul_(self.square, self.decay)
        torch._foreach_addcmul_(self.square, grads, grads, value=1.0 - self.decay)
        root = torch._foreach_sqrt(self.square)
        torch._foreach_add_(root, self.eps)
        torch._foreach_addcdiv_(self.params, grads, root, value=-self.lr * self.scale)

    def tensors(self) -> dict[str, Tensor]:
        return {f"square.{i}": square for i, square in enumerate(self.square)}


@torch.no_grad()
def polyak(targets: Iterable[Tensor], online: Iterable[Tensor], tau: float) -> None:
    """target <- (1 - tau) * target + tau * online."""
    torch._foreach_lerp_(list(targets), list(online), tau)


def target_of(module: M) -> M:
    """A copy to be moved by `polyak`; its parameters take no gradients."""
    return copy.deepcopy(module).requires_grad_(False)


def keep_freed_memory() -> None:
    """Have glibc keep freed blocks for the next update instead of giving them back and faulting them in again.

    Every update allocates and frees the same hidden layers, some hundred kilobytes each, and the defaults return just
    these to the system. Worth a tenth of an update, and more with two threads; without glibc it does nothing.
    """
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # other C libraries have none
    if mallopt is not None:
        mallopt(-3, 32 << 20)  # M_MMAP_THRESHOLD: blocks below 32 MB come from the heap
        mallopt(-1, 256 << 20)  # M_TRIM_THRESHOLD: and the heap shrinks from 256 MB of free top on only
