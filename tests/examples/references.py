"""Loading a reference script, and its weights in the layout of the package."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor, nn

from rlx.types import Batch, Spec

EXAMPLES = Path(__file__).parents[2] / "examples"
PENDULUM = Spec("Pendulum-v1", (3,), "float32", "box", (1,), action_low=(-2.0,), action_high=(2.0,))


def load(name: str) -> ModuleType:
    """The script as a module, with its path in `__file__`."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def lines_of(script: ModuleType) -> int:
    return len(Path(str(script.__file__)).read_text().splitlines())


def weights_of(net: nn.Sequential) -> list[Tensor]:
    """As an `MLP` lists them: [in, out] weights, biases, gains and shifts of the LayerNorms."""
    linears = [m for m in net if isinstance(m, nn.Linear)]
    norms = [m for m in net if isinstance(m, nn.LayerNorm)]
    weights = [m.weight.T for m in linears] + [m.bias for m in linears]
    return [w.detach() for w in [*weights, *(m.weight for m in norms), *(m.bias for m in norms)]]


def stacked_weights_of(nets: nn.ModuleList) -> list[Tensor]:
    """As an ensemble lists them: [members, in, out] weights, and all vectors as [members, 1, n]."""
    stacks = [torch.stack(same) for same in zip(*(weights_of(net) for net in nets), strict=True)]
    return [w if w.dim() == 3 else w.unsqueeze(1) for w in stacks]


@torch.no_grad()
def copy_weights(ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> None:
    for p, q in zip(ours, theirs, strict=True):
        p.copy_(q)


def assert_same_weights(ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> None:
    for p, q in zip(ours, theirs, strict=True):
        torch.testing.assert_close(p.detach(), q, rtol=1e-4, atol=1e-5)


def largest_move(now: Sequence[Tensor], then: Sequence[Tensor]) -> float:
    return max((p.detach() - q).abs().max().item() for p, q in zip(now, then, strict=True))


def random_batch(rows: int) -> dict[str, Tensor]:
    """Transitions of which a fifth terminates."""
    return {
        "obs": torch.randn(rows, 3),
        "action": torch.rand(rows, 1) * 2 - 1,
        "reward": torch.randn(rows),
        "next_obs": torch.randn(rows, 3),
        "terminated": (torch.rand(rows) < 0.2).float(),
    }


def package_batch(batch: dict[str, Tensor], discount: float) -> Batch:
    return Batch(**batch, discount=torch.full_like(batch["reward"], discount))
