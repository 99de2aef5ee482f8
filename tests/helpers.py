"""What several tests need: tiny runs, snapshots of a run folder as a kill would leave it, and "is it the same run?"."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import rlx
from rlx.callbacks.bus import CallbackBus
from rlx.checkpoint import CheckpointStore, read_folder
from rlx.nn.native.build import load
from rlx.nn.native.choose import use_native
from rlx.trainers.trainer import Trainer
from rlx.workflows import Result

SMALL = (
    "threads=1",
    "logger=jsonl",
    "~callbacks.progress",
    "algo.hidden=[16,16]",
    "algo.batch_size=16",
    "env.max_episode_steps=30",
    "trainer.eval_episodes=2",
)
SMALL_TRANSFORMER = ("algo.context=5", "algo.width=16", "algo.layers=1", "algo.warmup_updates=4")
REGIMES = {
    "off_policy": (
        "trainer.max_env_steps=130", "trainer.learning_starts=50", "trainer.gradient_updates_per_step=2",
        "trainer.eval_interval=70", "trainer.checkpoint_interval=60", "trainer.log_interval=40",
    ),
    "on_policy": (
        "trainer.max_env_steps=150", "trainer.rollout_length=32", "trainer.eval_interval=64",
        "trainer.checkpoint_interval=64", "trainer.log_interval=32",
    ),
    "offline": (
        "dataset=random", "dataset.size=400", "trainer.max_updates=60", "trainer.eval_interval=30",
        "trainer.checkpoint_interval=25", "trainer.log_interval=10",
    ),
    "offline_to_online": (
        "dataset=random", "dataset.size=400", "trainer.max_env_steps=90", "trainer.learning_starts=20",
        "trainer.warmup_steps=20", "trainer.pretrain_updates=15", "trainer.gradient_updates_per_step=1",
        "trainer.eval_interval=50", "trainer.checkpoint_interval=40", "trainer.log_interval=20",
    ),
}  # fmt: skip
USUAL = {
    "off_policy": ("algo=sac", "env=pendulum"),
    "on_policy": ("algo=ppo", "env=cartpole", "~algo_env"),
    "offline": ("algo=td3_bc", "env=pendulum", "~algo_env"),
    "offline_to_online": ("algo=rlpd", "env=pendulum", "~algo_env"),
}


def tiny(regime: str, *more: str) -> tuple[str, ...]:
    """Overrides of a run of a second or less under a regime; later ones win."""
    return (*USUAL[regime], *SMALL, *REGIMES[regime], *more)


@contextmanager
def snapshots(*moments: tuple[str, int], into: Path) -> Iterator[dict[tuple[str, int], Path]]:
    """Copy the run folder right after the n-th occurrence of an event: what a kill at that moment leaves on disk."""
    taken: dict[tuple[str, int], Path] = {}
    seen: dict[str, int] = {}
    original = CallbackBus.emit

    def emit(self: CallbackBus, event: str, trainer: Trainer, *args: Any) -> None:
        original(self, event, trainer, *args)
        seen[event] = seen.get(event, 0) + 1
        moment = (event, seen[event])
        if moment in moments:
            taken[moment] = into / f"{event}_{seen[event]}"
            shutil.copytree(trainer.run_dir, taken[moment], symlinks=True)

    CallbackBus.emit = emit  # type: ignore[method-assign]
    try:
        yield taken
    finally:
        CallbackBus.emit = original  # type: ignore[method-assign]
    missed = set(moments) - set(taken)
    assert not missed, f"the run never came to {sorted(missed)}; it saw {seen}"


@contextmanager
def signalled(event: str, count: int, number: int = signal.SIGTERM) -> Iterator[None]:
    """Send this process a signal at the n-th occurrence of an event."""
    original = CallbackBus.emit
    seen = 0

    def emit(self: CallbackBus, name: str, trainer: Trainer, *args: Any) -> None:
        nonlocal seen
        original(self, name, trainer, *args)
        seen += name == event
        if name == event and seen == count:
            signal.raise_signal(number)

    CallbackBus.emit = emit  # type: ignore[method-assign]
    try:
        yield
    finally:
        CallbackBus.emit = original  # type: ignore[method-assign]
    assert seen >= count, f"the run had {seen} {event} events, so no signal was sent"


def do_without_native(why: str) -> None:
    """Skip a test of native nodes that cannot be built; on a machine of continuous integration, fail."""
    if os.environ.get("CI"):
        pytest.fail(f"{why}, and CI is set: the native nodes have to be tested.")
    pytest.skip(why)


@contextmanager
def native_nodes() -> Iterator[None]:
    """The native nodes of the cache folder compute."""
    load.cache_clear()
    use_native(True)
    try:
        yield
    finally:
        use_native(False)
        load.cache_clear()


def rows(run_dir: Path) -> list[dict[str, Any]]:
    """metrics.jsonl without its wall times."""
    found = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    for row in found:
        del row["wall_time"]
    return found


def final(run_dir: Path) -> dict[str, Tensor]:
    """Every tensor of the last checkpoint: learner with targets and optimizers, random states, journal, replay."""
    store = CheckpointStore(run_dir / "checkpoints")
    saved = store.latest()
    found = {f"{group}/{k}": v for group, tensors in saved.tensors.items() for k, v in tensors.items()}
    return found


def same_tensors(a: dict[str, Tensor], b: dict[str, Tensor]) -> None:
    assert a.keys() == b.keys()
    different = [k for k in a if not (a[k].dtype == b[k].dtype and torch.equal(a[k], b[k]))]
    assert not different, f"{len(different)} of {len(a)} tensors differ, first {different[0]}"


SUMMARY = ("algo", "env", "seed", "env_steps", "updates", "epoch", "stop_reason", "eval_return_mean")
SUMMARY += ("best_eval_return_mean", "exact", "threads", "native", "versions")


def same_run(ours: Path, reference: Path) -> None:
    """Bit-identical to the end: tensors of the last checkpoint and of the best one, counters, metrics, summary."""
    same_tensors(final(ours), final(reference))
    a, b = (read_folder(folder / "checkpoints" / "last").state for folder in (ours, reference))
    for state in (a, b):
        del state["trainer"]["wall_time"], state["callbacks"]["jsonl"]  # the length of a file with wall times in it
    assert a == b
    best = [(f / "checkpoints" / "best").resolve().name for f in (ours, reference)]
    assert best[0] == best[1]
    same_tensors(*(read_folder(f / "checkpoints" / "best").tensors["learner"] for f in (ours, reference)))
    assert rows(ours) == rows(reference)
    a, b = (json.loads((folder / "summary.json").read_text()) for folder in (ours, reference))
    assert {k: a[k] for k in SUMMARY} == {k: b[k] for k in SUMMARY}


def resumed(folder: Path, *overrides: str) -> Result:
    """Resume, from another random state than the run began with."""
    torch.manual_seed(12345)
    return rlx.resume(folder, *overrides)
