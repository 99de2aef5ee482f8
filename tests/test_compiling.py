"""`algo.compile=true` in real runs, compiled to C++; what it computes is compared in the conformance suite."""

from __future__ import annotations

import shutil
import sysconfig
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import resumed, rows, same_run, snapshots, tiny
from torch._inductor.exc import InvalidCxxCompiler

import rlx
from rlx.compiling import check_compiler
from rlx.config import compose_config, instantiate
from rlx.errors import UserError
from rlx.types import Batch, Spec

HEADER = Path(sysconfig.get_paths()["include"]) / "Python.h"
compiles = pytest.mark.skipif(
    shutil.which("g++") is None or not HEADER.exists(), reason="there is no g++ with Python's headers to compile with"
)
SPEC = Spec("x", (3,), "float32", "box", (1,), (-1.0,), (1.0,))


def learner(*overrides: str) -> Any:
    torch.manual_seed(0)
    return instantiate(compose_config(["algo=ddpg", "algo.hidden=[8,8]", "algo.compile=true", *overrides]).algo, SPEC)


def batch(rows: int = 8) -> Batch:
    draw = torch.Generator().manual_seed(1)
    obs, next_obs, action = (torch.randn(rows, n, generator=draw) for n in (3, 3, 1))
    return Batch(obs, action, torch.ones(rows), next_obs, torch.zeros(rows), torch.full((rows,), 0.9))


@compiles
def test_a_compiled_run_learns_the_same_and_resumes_exactly(tmp_path: Path) -> None:
    plain = rlx.train(*tiny("off_policy", "algo=ddpg", "~algo_env"), run_dir=tmp_path / "plain")
    overrides = tiny("off_policy", "algo=ddpg", "~algo_env", "algo.compile=true")
    with snapshots(("checkpoint", 1), into=tmp_path) as taken:
        whole = rlx.train(*overrides, run_dir=tmp_path / "whole")
    for name, tensor in whole.learner.tensors().items():
        torch.testing.assert_close(tensor, plain.learner.tensors()[name], rtol=1e-3, atol=1e-4, msg=name)
    same_run(resumed(taken["checkpoint", 1]).run_dir, tmp_path / "whole")
    assert any("loss/critic" in row for row in rows(tmp_path / "whole"))


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The graphs that were made, without turning them into C++."""
    found: list[Any] = []
    real = torch.compile

    def backend(graph: Any, _: Any) -> Any:
        found.append(graph)
        return graph.forward

    monkeypatch.setattr(rlx.learner, "check_compiler", lambda: None)  # none is needed for that
    monkeypatch.setattr(
        torch, "compile", lambda f, fullgraph, options: real(f, backend=backend, fullgraph=fullgraph, options=options)
    )
    return found


def test_learning_rates_move_without_compiling_again(graphs: list[Any]) -> None:
    ours = learner()
    for scale in (1.0, 0.5, 0.25, 0.0):
        ours.optimizers["critic"].scale = ours.optimizers["actor"].scale = scale
        before = ours.policy.net.weights[0].detach().clone()
        ours.update(batch())
        assert torch.equal(before, ours.policy.net.weights[0]) == (scale == 0.0)
    assert len(graphs) == 1


def test_a_number_of_the_config_that_moves_is_noticed(graphs: list[Any]) -> None:
    ours = learner("algo.tau=1.0")
    ours.update(batch())
    assert torch.equal(ours.targets[0], ours.online[0])
    ours.cfg.tau = 1e-9
    kept = ours.targets[0].clone()
    ours.update(batch())
    assert torch.equal(ours.targets[0], kept)
    for tau in (0.1, 0.2, 0.3, 0.4):  # no longer a constant
        ours.cfg.tau = tau
        ours.update(batch())
    assert len(graphs) <= 3


def test_learners_do_not_meet(graphs: list[Any]) -> None:
    first, second = learner("algo.tau=1.0"), learner("algo.tau=1e-9")
    kept = second.targets[0].clone()
    first.update(batch())
    second.update(batch())
    assert torch.equal(first.targets[0], first.online[0])
    assert torch.equal(second.targets[0], kept)
    assert len(graphs) == 2


def test_a_machine_that_cannot_compile_is_told_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def none() -> str:
        raise InvalidCxxCompiler

    with monkeypatch.context() as patch:
        patch.setattr("torch._inductor.cpp_builder.get_cpp_compiler", none)
        with pytest.raises(
            UserError, match=r"C\+\+ compiler and there is none; install g\+\+, or use algo.compile=false"
        ):
            learner()
    with monkeypatch.context() as patch:
        patch.setattr("torch._inductor.cpp_builder.get_cpp_compiler", lambda: "g++")
        patch.setattr(sysconfig, "get_paths", lambda: {"include": str(tmp_path)})
        with pytest.raises(UserError, match="python3-dev"):
            check_compiler()
    with monkeypatch.context() as patch:
        patch.delattr(torch._dynamo.config, "trace_autograd_ops")
        with pytest.raises(UserError, match=r"needs torch 2\.13"):
            check_compiler()
