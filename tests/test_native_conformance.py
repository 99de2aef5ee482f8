"""What every algorithm has to do with native nodes, too: compute what it computes without, and resume to its bits."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import native_nodes, resumed, same_run
from test_conformance import clone, every_algorithm, fresh, trained

from rlx.nn.native.choose import is_native, use_native

__all__ = ["trained"]  # the fixture: here its runs take native nodes


@pytest.fixture(scope="module", autouse=True)
def _natively(native_cache: Path) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RLX_NATIVE", "true")
        patch.setenv("XDG_CACHE_HOME", str(native_cache))
        with native_nodes():
            yield


@pytest.fixture(autouse=True)
def _in_the_cache(native_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(native_cache))


@every_algorithm
def test_a_killed_run_resumes_to_the_same_bits(name: str, trained: Any, tmp_path: Path) -> None:
    run = trained(name)
    folder = tmp_path / "killed"
    shutil.copytree(run.killed, folder, symlinks=True)
    assert resumed(folder).summary["native"]
    assert is_native()
    same_run(folder, run.run_dir)


@every_algorithm
def test_updates_compute_what_they_compute_in_python(name: str, trained: Any) -> None:
    run, learners = trained(name), []
    for on in (False, True):
        use_native(on)
        learner = fresh(run)
        torch.manual_seed(3)
        for optimizer in learner.optimizers.values():
            optimizer.eps = 1e-3  # else gradients that are zero but for rounding become steps of a whole learning rate
        updates = 4
        if hasattr(learner.cfg, "cg_iterations"):  # each of them multiplies what was rounded before
            learner.cfg.cg_iterations, updates = 2, 1
        for batch in run.batches[:updates]:
            learner.update(clone(batch))
        learners.append(learner.tensors())
    for key, tensor in learners[0].items():
        torch.testing.assert_close(learners[1][key], tensor, rtol=1e-4, atol=1e-5, msg=key)


APART = {  # whose updates are not captured, and why
    "ppo_lstm": "sequences of changing lengths",
    "dt": "a transformer",
    "drq_v2": "pictures",
    "trpo": "conjugate gradients; the steps of its critic are captured",
}


@every_algorithm
def test_captured_updates_are_those_of_single_operations(name: str, trained: Any) -> None:
    """To the bit: weights, targets, optimizers and metrics."""
    run, found = trained(name), []
    use_native(True)
    for captures in (False, True):
        learner = fresh(run)
        learner.captures = captures
        torch.manual_seed(3)
        metrics = [learner.update(clone(run.batches[i % len(run.batches)])) for i in range(7)]
        found.append((learner, metrics))
    (alone, told), (captured, told_again) = found
    for key, tensor in alone.tensors().items():
        assert torch.equal(captured.tensors()[key], tensor), key
    for row, again in zip(told, told_again, strict=True):
        assert row.keys() == again.keys()
        for key in row:
            assert torch.equal(row[key], again[key]), key
    states = captured.captured.values()
    assert all(state.why_not is None for state in states)
    assert any(state.programs for state in states) == (name not in APART or name == "trpo")
