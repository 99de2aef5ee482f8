"""Imports go one way, and stand at the head of a file."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = sorted((ROOT / "rlx").rglob("*.py"))

# packages that are optional, or so heavy that only what needs them imports them
HEAVY = (
    "h5py", "minari", "wandb", "PIL", "imageio_ffmpeg", "rich", "ray", "tensorboard", "torch.utils.tensorboard",
    "torch._inductor", "onnx", "onnxruntime", "onnxscript", "ale_py", "dm_control", "optuna",
)  # fmt: skip

# from the lowest to the highest: a module imports from its own layer and from those before it
LAYERS = (
    ("rlx.errors", "rlx.fields", "rlx.files", "rlx.paths", "rlx.choices", "rlx.reporting", "rlx.types", "rlx.obs",
     "rlx.schedules", "rlx.rng", "rlx.cli"),
    ("rlx.system", "rlx.nn", "rlx.returns", "rlx.capturing"),
    ("rlx.learner", "rlx.losses"),
    ("rlx.algos", "rlx.config", "rlx.agent"),
    ("rlx.restoring", "rlx.run_folder", "rlx.rewards"),
    ("rlx.data", "rlx.envs", "rlx.policy", "rlx.checkpoint", "rlx.exports", "rlx.video"),
    ("rlx.callbacks", "rlx.loggers", "rlx.collectors"),
    ("rlx.trainers",),
    ("rlx.given", "rlx.summary"),
    ("rlx.build",),
    ("rlx.workflows",),
    ("rlx.commands", "rlx.sweeps", "rlx.report"),
)  # fmt: skip


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imported(node: ast.AST) -> list[str]:
    """The modules that a statement imports; `from rlx import build` is rlx.build."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module:
        return [f"rlx.{alias.name}" for alias in node.names] if node.module == "rlx" else [node.module]
    return []


def at_head(path: Path) -> Iterator[str]:
    """What is imported whenever the module is."""
    for node in ast.parse(path.read_text()).body:
        yield from imported(node)


def in_functions(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for inner in ast.walk(node):
                yield from imported(inner)


def layer(module: str) -> int:
    for i, names in enumerate(LAYERS):
        if any(module == name or module.startswith(f"{name}.") for name in names):
            return i
    raise AssertionError(f"{module} is in no layer; add it to LAYERS")


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_functions_import_nothing_but_heavy_packages(path: Path) -> None:
    for module in in_functions(path):
        heavy = any(module == name or module.startswith(f"{name}.") for name in HEAVY)
        assert heavy, f"{module} is imported inside a function"


@pytest.mark.parametrize("path", [p for p in FILES if name_of(p) not in ("rlx", "rlx.__main__")], ids=name_of)
def test_imports_go_one_way(path: Path) -> None:
    here = layer(name_of(path))
    for module in at_head(path):
        if module.startswith("rlx."):
            assert layer(module) <= here, f"{name_of(path)} imports {module}, which is above it"


def test_no_module_imports_itself_through_others() -> None:
    modules = {name_of(path): path for path in FILES}
    below = {name: {m for m in at_head(path) if m in modules} for name, path in modules.items()}
    while below:
        free = [name for name, needs in below.items() if not needs & (below.keys() - {name})]
        assert free, f"imports go in circles among {sorted(below)}"
        for name in free:
            del below[name]
