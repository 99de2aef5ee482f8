"""Recorded runs of other implementations, and what our learners make of the same inputs.

A file holds the weights before and after N updates under our names, the batches and every random number, as README.md
beside it says. `compare` builds the learner, replays the updates and returns how far each tensor is from the reference.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from safetensors import safe_open
from torch import Tensor

from rlx.learner import AlgoConfig, Learner
from rlx.nn.encoders import EncoderFactory
from rlx.types import Batch, Rollout, Spec, Windows

FOLDER = Path(__file__).parent
KINDS = ("normal", "uniform", "permutation")


class Draw(NamedTuple):
    """Random numbers of one call: N(0, 1), uniform in [0, 1), or the order of a permutation."""

    kind: str
    values: Tensor


class Golden(NamedTuple):
    reference: str  # library, version or commit, inputs
    config: dict[str, Any]  # fields of our config that differ from their defaults
    spec: Spec
    initial: dict[str, Tensor]  # the learner's state_dict before the first update
    final: dict[str, Tensor]  # and after the last one
    batches: list[Any]  # one Batch, Rollout or Windows for each update
    draws: dict[str, list[Draw]]  # by name, in the order of their use


class Case(NamedTuple):
    """How our learner is held against a file."""

    learner: type[Learner]
    config: Callable[..., AlgoConfig]
    tolerance: float  # largest difference of any number
    draws: Sequence[Sequence[str]] = ((),)  # names of what update 1, 2, ... draws, in order; starts over at its end
    fixed: Sequence[str] = ()  # networks or parameters that the settings keep as they are
    encoder: EncoderFactory | None = None  # of pictures


def load(name: str) -> Golden:
    with safe_open(FOLDER / f"{name}.safetensors", "pt") as file:
        about = file.metadata()
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118  (not a dict)

    def group(prefix: str) -> dict[str, Tensor]:
        found = {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
        return {re.sub(r"^(target_)?actor\.", r"\1policy.", k): v for k, v in found.items()}  # their former names

    config = json.loads(about["config"])
    draws = {}
    for key, rows in group("random.").items():
        kind, _, label = key.partition(".")
        assert kind in KINDS, f"{name}: {key} is none of {KINDS}"
        draws[label] = [Draw(kind, row) for row in rows]
    return Golden(
        about["reference"],
        config,
        spec_of(json.loads(about["spec"])),
        group("initial."),
        group("final."),
        batches_of(group("batch."), config.get("discount", AlgoConfig.discount)),
        draws,
    )


def spec_of(sizes: dict[str, Any]) -> Spec:
    """{"obs": 4, "box": 2} or {"obs": 4, "discrete": 3}; {"image": [2, 16, 16], ...} for pictures."""
    shape = tuple(sizes["image"]) if "image" in sizes else (sizes["obs"],)
    dtype = "uint8" if "image" in sizes else "float32"
    if "discrete" in sizes:
        return Spec("golden", shape, dtype, "discrete", (), action_sizes=(sizes["discrete"],))
    n = sizes["box"]
    return Spec("golden", shape, dtype, "box", (n,), (-1.0,) * n, (1.0,) * n)


def batches_of(columns: dict[str, Tensor], discount: float) -> list[Any]:
    """Columns [N, ...] of N updates; time-first rollouts have `truncated`, windows `mask`, batches need neither."""
    if "mask" in columns:
        return [Windows(**{k: v[i] for k, v in columns.items()}) for i in range(len(columns["obs"]))]
    if "truncated" in columns:
        parts = [columns.pop(key) for key in sorted(columns) if key.startswith("carry.")]
        return [
            Rollout(**{k: v[i] for k, v in columns.items()}, carry=tuple(part[i] for part in parts))
            for i in range(len(columns["obs"]))
        ]
    columns.setdefault("discount", torch.full_like(columns["reward"], discount))
    return [Batch(**{k: v[i] for k, v in columns.items()}) for i in range(len(columns["obs"]))]


@contextmanager
def injected(queue: deque[Draw]) -> Iterator[None]:
    """Have torch's random functions return what is in the queue; anything else drawn is an error."""

    def take(kind: str, shape: Sequence[int]) -> Tensor:
        assert queue, f"more is drawn than the reference drew: {kind} numbers of shape {tuple(shape)}"
        draw = queue.popleft()
        assert draw.kind == kind, f"{kind} numbers are drawn where the reference drew {draw.kind} ones"
        assert draw.values.numel() == torch.Size(shape).numel(), f"{tuple(draw.values.shape)} for {tuple(shape)}"
        return draw.values.reshape(tuple(shape)).clone()

    def size(args: tuple[Any, ...]) -> tuple[int, ...]:
        return tuple(args[0]) if args and not isinstance(args[0], int) else args

    def normal(mean: Tensor, std: Tensor | float = 1.0, **_: Any) -> Tensor:
        return mean + std * take("normal", mean.shape)

    functions = {
        "randn": lambda *args, **_: take("normal", size(args)),
        "randn_like": lambda x, **_: take("normal", x.shape),
        "normal": normal,
        "rand": lambda *args, **_: take("uniform", size(args)),
        "rand_like": lambda x, **_: take("uniform", x.shape),
        "randperm": lambda n, **_: take("permutation", (n,)).long(),
    }
    methods = {
        "normal_": lambda x, mean=0.0, std=1.0, **_: x.copy_(mean + std * take("normal", x.shape)),
        "uniform_": lambda x, low=0.0, high=1.0, **_: x.copy_(low + (high - low) * take("uniform", x.shape)),
    }
    with patch.multiple(torch, **functions), patch.multiple(Tensor, **methods):
        yield


def replay(golden: Golden, learner: Learner, draws: Sequence[Sequence[str]]) -> None:
    """All updates of the reference, with its batches and its random numbers."""
    learner.load_state_dict(golden.initial)
    left = {name: deque(rows) for name, rows in golden.draws.items()}
    for batch, names in zip(golden.batches, cycle(draws), strict=False):
        queue = deque(left[name].popleft() for name in names)
        with injected(queue):
            learner.update(batch)
        assert not queue, f"{len(queue)} of {names} were not drawn"
    assert not any(left.values()), f"{[name for name, rows in left.items() if rows]} are left over"


def differences(a: dict[str, Tensor], b: dict[str, Tensor]) -> dict[str, float]:
    """The largest difference of every tensor; names and shapes are the same."""
    assert a.keys() == b.keys(), f"on one side only: {sorted(a.keys() ^ b.keys())}"
    assert all(a[k].shape == b[k].shape for k in a)
    return {k: (a[k].double() - b[k].double()).abs().max().item() for k in a}


def compare(name: str, case: Case) -> dict[str, float]:
    """How far our weights are from those of the reference, by name."""
    golden = load(name)
    learner = case.learner(case.config(**golden.config), golden.spec, *([case.encoder] if case.encoder else []))
    replay(golden, learner, case.draws)
    return differences(learner.state_dict(), golden.final)


def moved(name: str) -> dict[str, float]:
    """How far the reference went, by the first part of the names: a network that stays proves nothing."""
    golden = load(name)
    far: dict[str, float] = {}
    for key, distance in differences(golden.initial, golden.final).items():
        part = key.partition(".")[0]
        far[part] = max(distance, far.get(part, 0.0))
    return far


def check(name: str, case: Case) -> None:
    """The whole test of one file."""
    apart = compare(name, case)
    worst = max(apart, key=lambda key: apart[key])
    assert apart[worst] <= case.tolerance, f"{name}: {worst} is {apart[worst]:.2g} apart, at most {case.tolerance:.2g}"
    odd = [part for part, distance in moved(name).items() if (distance < 100 * case.tolerance) != (part in case.fixed)]
    assert not odd, f"{name}: {odd} hardly move in the reference, or move though they are said to be fixed"
