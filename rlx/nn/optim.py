"""Optimizers, and the slow copies of networks that they leave behind.

`Adam` is one fused call over all its parameters, `polyak` one foreach call.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd import Variable

from rlx.errors import UserError
from rlx.nn.fused import Places, go_back, is_recorded
from rlx.nn.native import NATIVE

M = TypeVar("M", bound=nn.Module)


def differentiate(loss: Tensor, params: Sequence[Tensor], retain_graph: bool = False) -> Sequence[Tensor]:
    """`torch.autograd.grad`, without its checks of the arguments, which cost as much as a small layer."""
    grads: Sequence[Tensor] = Variable._execution_engine.run_backward(
        (loss,), (torch.ones_like(loss),), retain_graph, False, tuple(params), False, accumulate_grad=False
    )
    return grads


def clip(vector: Tensor, max_norm: float) -> Tensor:
    """Scale a vector to a norm of at most `max_norm`; the norm that it had."""
    norm: Tensor | None = NATIVE.on.clip(vector, max_norm) if NATIVE.on is not None else None
    if norm is None:
        norm = torch.linalg.vector_norm(vector)
        vector.mul_((max_norm / (norm + 1e-6)).clamp_(max=1.0))
    return norm


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
        self._places: Places | None = None  # of gradients that lie side by side

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_places": None}  # it knows parameters by their ids, and those of a copy are others

    def minimize(self, loss: Tensor, retain_graph: bool = False, max_grad_norm: float | None = None) -> None:
        """One step down the gradient of `loss`, which reaches these parameters and no others.

        `max_grad_norm` clips this step, on one vector of all gradients, which takes few operations.
        """
        if not is_recorded(loss) and max_grad_norm is None:
            return self.step(differentiate(loss, self.params, retain_graph))
        self.gather(loss, retain_graph)
        self.step_gathered(max_grad_norm)

    def gather(self, loss: Tensor, retain_graph: bool = False) -> None:
        """The first half of `minimize`: the gradients of `loss`, side by side in one vector that stays the same."""
        if self._places is None:
            self._places = Places(self.params)
        by_autograd = torch.is_grad_enabled()
        try:
            torch._C._set_grad_enabled(False)  # a tenth of the time of torch.no_grad
            if is_recorded(loss):
                go_back(loss, self._places)
            else:
                torch._foreach_copy_(self._places.parts, list(differentiate(loss, self.params, retain_graph)))
        finally:
            torch._C._set_grad_enabled(by_autograd)

    def step_gathered(self, max_grad_norm: float | None = None) -> None:
        """The second half: one step down the gradients that were gathered last."""
        assert self._places is not None
        by_autograd = torch.is_grad_enabled()
        try:
            torch._C._set_grad_enabled(False)
            if max_grad_norm is not None:
                self.grad_norm = clip(self._places.vector, max_grad_norm)
            self._move(self._places.parts)
        finally:
            torch._C._set_grad_enabled(by_autograd)

    @torch.no_grad()
    def step(self, grads: Sequence[Tensor]) -> None:
        grads = [g.contiguous() for g in grads]
        if self.max_grad_norm is not None:
            self.grad_norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads)))
            # not in place: one tensor may be the gradient of two parameters
            grads = list(torch._foreach_mul(grads, (self.max_grad_norm / (self.grad_norm + 1e-6)).clamp(max=1.0)))
        self._move(grads)

    def _move(self, grads: list[Tensor]) -> None:
        raise NotImplementedError(f"{type(self).__name__} does not define _move")

    def tensors(self) -> dict[str, Tensor]:
        """The optimizer's state by name; live tensors, not copies."""
        raise NotImplementedError(f"{type(self).__name__} does not define tensors")


class Adam(Optimizer):
    """Adam (Kingma & Ba, 2015), one fused call per step."""

    rectified = False

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
        self._counts = [self.steps] * len(self.params)

    def _move(self, grads: list[Tensor]) -> None:
        if NATIVE.on is not None and self._move_natively(grads):
            return
        self.steps += 1
        torch._fused_adam_(
            self.params,
            grads,
            self.exp_avg,
            self.exp_avg_sq,
            [],
            self._counts,
            lr=self.lr * self.scale,
            beta1=self.betas[0],
            beta2=self.betas[1],
            weight_decay=self.weight_decay,
            eps=self.eps,
            amsgrad=False,
            maximize=False,
        )

    def _move_natively(self, grads: list[Tensor]) -> bool:
        """The same step by one native call, which looks up the learning rate; False where it declines."""
        return bool(
            NATIVE.on.adam(
                self.params, grads, self.exp_avg, self.exp_avg_sq, self.steps, self, *self.betas, self.eps,
                self.weight_decay, self.rectified,
            )
        )  # fmt: skip

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

    def _move(self, grads: list[Tensor]) -> None:
        torch._foreach_mul_(self.params, 1.0 - self.lr * self.scale * self.decay)
        super()._move(grads)


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
        if NATIVE.on is not None and NATIVE.on.rmsprop(self.params, grads, self.square, self, self.decay, self.eps):
            return
        torch._foreach_mul_(self.square, self.decay)
        torch._foreach_addcmul_(self.square, grads, grads, value=1.0 - self.decay)
        root = torch._foreach_sqrt(self.square)
        torch._foreach_add_(root, self.eps)
        torch._foreach_addcdiv_(self.params, grads, root, value=-self.lr * self.scale)

    def tensors(self) -> dict[str, Tensor]:
        return {f"square.{i}": square for i, square in enumerate(self.square)}


class RAdam(Adam):
    """Rectified Adam (Liu et al., 2020), arXiv:1908.03265: first steps do not trust a mean square of few gradients.

    With rho_inf = 2 / (1 - beta2) - 1 and rho = rho_inf - 2 t beta2^t / (1 - beta2^t) at step t: where rho > 5, a step
    is Adam's times sqrt((rho - 4) (rho - 2) rho_inf / ((rho_inf - 4) (rho_inf - 2) rho)). Before that, five steps by
    default, it is the learning rate times the mean gradient.
    """

    rectified = True

    def __init__(self, params: Iterable[Tensor], lr: float, max_grad_norm: float | None = None):
        super().__init__(params, lr, max_grad_norm=max_grad_norm)
        self.steps = torch.zeros((), dtype=torch.float32, device="cpu")  # so that nobody waits for a device to read it

    def _rates(self, step: float) -> tuple[float, float]:
        """Learning rates of the mean gradient and of the mean gradient over the root of the mean square; one is 0."""
        beta1, beta2 = self.betas
        limit, left = 2.0 / (1.0 - beta2) - 1.0, beta2**step
        rho = limit - 2.0 * step * left / (1.0 - left)
        rate = self.lr * self.scale / (1.0 - beta1**step)
        if rho <= 5.0:
            return rate, 0.0
        rectified = ((rho - 4.0) * (rho - 2.0) * limit / ((limit - 4.0) * (limit - 2.0) * rho)) ** 0.5
        return 0.0, rate * rectified * (1.0 - left) ** 0.5

    def _move(self, grads: list[Tensor]) -> None:
        if NATIVE.on is not None and self._move_natively(grads):
            return
        self.steps += 1
        torch._foreach_lerp_(self.exp_avg, grads, 1.0 - self.betas[0])
        torch._foreach_mul_(self.exp_avg_sq, self.betas[1])
        torch._foreach_addcmul_(self.exp_avg_sq, grads, grads, value=1.0 - self.betas[1])
        plain, rectified = self._rates(self.steps.item())
        if plain:
            torch._foreach_add_(self.params, self.exp_avg, alpha=-plain)
        else:
            size = torch._foreach_add(torch._foreach_sqrt(self.exp_avg_sq), self.eps)
            torch._foreach_addcdiv_(self.params, self.exp_avg, size, value=-rectified)


@torch.no_grad()
def polyak(targets: Iterable[Tensor], online: Iterable[Tensor], tau: float) -> None:
    """target <- (1 - tau) * target + tau * online."""
    targets, online = list(targets), list(online)
    if NATIVE.on is not None and NATIVE.on.follow(targets, online, tau):
        return
    torch._foreach_lerp_(targets, online, tau)


def target_of(module: M) -> M:
    """A copy to be moved by `polyak`; its parameters take no gradients."""
    return copy.deepcopy(module).requires_grad_(False)
