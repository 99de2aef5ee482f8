"""MLP: one network, or an ensemble of them as batched tensors (`[members, in, out]`, one product per layer)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise, zip_longest
from typing import Any

import torch
from torch import Tensor, nn

from rlx.errors import UserError
from rlx.nn.fused import ACTIVATIONS, GRADIENTS, Layer, flatten, is_recorded, native_mlp, recorded_mlp, run_mlp
from rlx.nn.native import NATIVE


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
        encoder: nn.Module | None = None,
    ):
        super().__init__()
        self.encoder = encoder  # of the observations that it reads; None: they are vectors
        if len(sizes) < 2 or min(sizes) < 1:
            raise UserError(f"A network needs sizes [in, hidden..., out], all positive; got {list(sizes)}.")
        if activation not in ACTIVATIONS:
            raise UserError(f"Unknown activation {activation!r}. Choices: {', '.join(ACTIVATIONS)}.")
        if not 0.0 <= dropout < 1.0:
            raise UserError(f"dropout must be at least 0 and below 1 (dropout={dropout}).")
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
        self.recordable = ensemble is None and not layer_norm and dropout == 0.0 and activation in GRADIENTS
        # Where they are kept, also after others have been put there: load_state_dict(assign=True), functional_call.
        # The lists and not their dicts, which torch.export would copy with the tensors that it traces.
        self._parts: tuple[Any, ...] = (self.weights, self.biases, self.gains, self.shifts)

    def _each(self) -> list[Layer]:
        weights, biases, gains, shifts = (part._parameters.values() for part in self._parts)
        if not gains:
            return list(map(Layer, weights, biases))
        return [Layer(*layer) for layer in zip_longest(weights, biases, gains, shifts)]

    def _flat(self) -> list[Tensor]:
        weights, biases, gains, _ = (part._parameters.values() for part in self._parts)
        if gains:
            return flatten(self._each())
        return [parameter for pair in zip(weights, biases, strict=True) for parameter in pair]

    def layers(self, frozen: bool = False, members: Tensor | slice | None = None) -> list[Layer]:
        """The parameters layer by layer: detached, and of some members only, where asked."""
        layers = self._each()
        if frozen:
            layers = [layer.each(lambda p: p.detach()) for layer in layers]
        if members is not None:
            layers = [layer.each(lambda p: p[members]) for layer in layers]
        return layers

    def encode(self, obs: Any, frozen: bool = False) -> Any:
        """Observations as the first layer reads them; no gradients for a frozen encoder."""
        if self.encoder is None:
            return obs
        with torch.set_grad_enabled(torch.is_grad_enabled() and not frozen):
            features: Tensor = self.encoder(obs)
        return features

    def forward(
        self,
        x: Any,
        action: Tensor | None = None,
        frozen: bool = False,
        members: Tensor | slice | None = None,
    ) -> Tensor:
        """Of `x`, or of `x` and `action` side by side. `frozen` lets gradients through to the inputs and computes none
        for the weights; `members` picks some of an ensemble, by index or slice, and spends no work on the others.
        """
        if self.encoder is not None:
            x = self.encode(x, frozen)
        if self.recordable and is_recorded(x) and action is None:
            return recorded_mlp(x, self._each(), self.activation)
        if x.dim() != 2 and self.ensemble is None:
            rows = action if action is None else action.reshape(-1, action.shape[-1])
            return MLP.forward(self, x.reshape(-1, x.shape[-1]), rows, frozen).reshape(*x.shape[:-1], -1)
        dropout = self.dropout if self.training else 0.0
        if not torch.compiler.is_compiling() and NATIVE.on is not None:
            norm = len(self.gains) > 0
            y = native_mlp(x, action, self._flat(), norm, self.activation, dropout, frozen, members)
            if y is not None:
                return y
        return run_mlp(x, action, self.layers(frozen, members), self.activation, dropout)


def initialize(weights: Iterable[Tensor], biases: Iterable[Tensor], init: str, final_gain: float | None) -> None:
    """ "uniform" is the default of torch.nn.Linear; "xavier" is uniform in +-sqrt(6 / (in + out)) with biases of 0;
    "orthogonal" has gain sqrt 2 and `final_gain` (1) at the end, with biases of 0.
    """
    weights, biases = list(weights), list(biases)
    if init not in ("uniform", "xavier", "orthogonal"):
        raise UserError(f"Unknown initialisation {init!r}. Choices: uniform, xavier, orthogonal.")
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
