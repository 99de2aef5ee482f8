"""Do the tests notice a fault? Every mutant of `mutant_table.py` is made in a copy of the package, and the tests of its
algorithm run on it: they have to fail.

    python benchmarks/mutants.py               # all algorithms; goes on where it was stopped
    python benchmarks/mutants.py td3 iql       # some of them
    python benchmarks/mutants.py --jobs 2 --results mutants.json

Tests are the recorded runs of `tests/golden`, `tests/algos/test_<algo>.py` and those of the functions that algorithms
share; nothing that trains for long. They run in children of one process that has imported torch but not rlx, so that a
mutant costs a second or two. Results are kept by what they depend on, the package and the algorithm's tests, and are
made again once one of these changes.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported, since children are forked from here
os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"

import argparse
import compileall
import contextlib
import hashlib
import importlib
import json
import resource
import shutil
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from py_compile import PycInvalidationMode
from typing import Any, NamedTuple

from mutant_table import MUTANTS, Mutant

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "multirun_outputs" / "mutants.json"
GOLDEN = {"dqn": ("double_dqn",)}  # recorded runs that are not called as their algorithm
SHARED = (
    "tests/test_returns.py",
    "tests/test_losses.py",
    *(f"tests/nn/{path.name}" for path in sorted((ROOT / "tests" / "nn").glob("test_*.py"))),
)
CPU_SECONDS = 300  # a mutant that runs for ever is caught, too


class Task(NamedTuple):
    algo: str
    mutant: Mutant
    key: str  # changes with the mutant, the package and the tests


class Golden:
    """A plugin of pytest that keeps only the recorded runs of one algorithm."""

    def __init__(self, names: Iterable[str]):
        self.names = set(names)

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        def wanted(item: Any) -> bool:
            if item.path.parent.name != "golden":
                return True
            return hasattr(item, "callspec") and item.callspec.params.get("name") in self.names

        items[:] = [item for item in items if wanted(item)]


def golden_names(algo: str, root: Path = ROOT) -> list[str]:
    """Recorded runs of an algorithm: x and x_variant, but not those of another that begins with x_."""
    others = tuple(other for other in MUTANTS if other.startswith(f"{algo}_"))
    found = [path.stem for path in sorted((root / "tests" / "golden").glob("*.safetensors"))]
    own = [name for name in found if name == algo or name.startswith(f"{algo}_")]
    return [name for name in own if not name.startswith(others or ("\0",))] + list(GOLDEN.get(algo, ()))


def tests_of(algo: str, file: str) -> list[str]:
    """Quick and telling ones first: pytest stops at the first failure."""
    shared = [] if file.startswith("algos/") else [path for path in SHARED if Path(file).stem in path]
    return ["tests/golden", *shared, f"tests/algos/test_{algo}.py"]


def digest(paths: Iterable[Path]) -> str:
    total = hashlib.sha256()
    for path in sorted(paths):
        total.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return total.hexdigest()


def tasks_of(algo: str, package: str) -> list[Task]:
    tests = [ROOT / "tests" / "algos" / f"test_{algo}.py", *(ROOT / path for path in SHARED)]
    tests += [ROOT / "tests" / "golden" / f"{name}.safetensors" for name in golden_names(algo)]
    tests += (ROOT / "tests" / "golden").glob("*.py")
    base = package + digest(path for path in tests if path.exists())
    return [Task(algo, m, hashlib.sha256(repr((base, algo, *m[:3])).encode()).hexdigest()[:16]) for m in MUTANTS[algo]]


def check(mutant: Mutant, root: Path = ROOT) -> str | None:
    """What is wrong with a row of the table, if anything."""
    count = (root / "rlx" / mutant.file).read_text().count(mutant.old)
    if count != 1:
        return f"rlx/{mutant.file} has {count} times {mutant.old!r}, expected once: adapt benchmarks/mutant_table.py"
    return f"rlx/{mutant.file}: {mutant.old!r} is replaced by itself" if mutant.old == mutant.new else None


def copy_to(folder: Path) -> None:
    """What the tests need of the repository."""
    ignore = shutil.ignore_patterns("__pycache__")
    for part in ("rlx", "conf", "tests"):
        shutil.copytree(ROOT / part, folder / part, ignore=ignore)
    shutil.copy(ROOT / "pyproject.toml", folder)
    # by hash, since a mutant may follow another within one tick of the files' clock
    compileall.compile_dir(folder / "rlx", quiet=1, invalidation_mode=PycInvalidationMode.CHECKED_HASH)


def start(task: Task, folder: Path) -> int:
    """Fork a child that runs the tests on the mutant; its exit code is pytest's."""
    path = folder / "rlx" / task.mutant.file
    text = path.read_text()
    path.write_text(text.replace(task.mutant.old, task.mutant.new))
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        os._exit(run_tests(task, folder))
    return pid


def run_tests(task: Task | None, folder: Path, algo: str = "") -> int:
    """In a child: pytest on the package in `folder`."""
    import pytest

    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    output = os.open(folder / "output.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    algo, file = (task.algo, task.mutant.file) if task else (algo, "algos/")
    paths = [path for path in tests_of(algo, file) if Path(path).exists()]
    options = ["-x", "-q", "-p", "no:cacheprovider", f"--rootdir={folder}"]
    code = int(pytest.main([*options, *paths], plugins=[Golden(golden_names(algo, folder))]))
    import rlx

    (folder / "modules.json").write_text(json.dumps([*sys.modules]))
    return code if Path(rlx.__file__).is_relative_to(folder) else 99


def first_failure(folder: Path) -> str:
    lines = (folder / "output.txt").read_text(errors="replace").splitlines()
    return next((line for line in lines if line.startswith(("FAILED", "ERROR"))), lines[-1] if lines else "no output")


def save(path: Path, results: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(results, indent=1))
    partial.replace(path)


def run(tasks: list[Task], jobs: int, path: Path) -> dict[str, Any]:
    """Results by key, also of earlier calls: whether a mutant was caught, and by what."""
    results: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    left = [task for task in tasks if task.key not in results]
    running: dict[int, tuple[Task, Path]] = {}
    with tempfile.TemporaryDirectory(prefix="mutants_") as temp:
        free = [Path(temp).resolve() / str(i) for i in range(min(jobs, len(left)))]
        for folder in free:
            copy_to(folder)
        while left or running:
            while left and free:
                task, folder = left.pop(0), free.pop()
                running[start(task, folder)] = (task, folder)
            pid, status = os.wait()
            task, folder = running.pop(pid)
            shutil.copy(ROOT / "rlx" / task.mutant.file, folder / "rlx" / task.mutant.file)
            code = os.waitstatus_to_exitcode(status)
            if code not in (0, 1, 2) and code >= 0:  # 1: a test failed, 2: not even collected; below 0: killed
                sys.exit(f"The tests of {task.algo} could not run (code {code}):\n{first_failure(folder)}")
            by = first_failure(folder) if code > 0 else f"killed by signal {-code}" if code < 0 else None
            results[task.key] = {"algo": task.algo, "why": task.mutant.why, "caught": code != 0, "by": by}
            save(path, results)
            mark = "caught  " if code else "SURVIVED"
            print(f"{mark} {task.algo}: {task.mutant.why} ({task.mutant.file})", flush=True)
            free.append(folder)
    return results


def passes_unchanged(algos: list[str]) -> None:
    """Tests that fail anyway would catch everything."""
    with tempfile.TemporaryDirectory(prefix="mutants_") as temp:
        folder = Path(temp).resolve() / "unchanged"
        copy_to(folder)
        for algo in algos:
            sys.stdout.flush()
            pid = os.fork()
            if pid == 0:
                os._exit(run_tests(None, folder, algo))
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            if code:
                sys.exit(f"The tests of {algo} fail without any mutant:\n{first_failure(folder)}")
            warm_up(json.loads((folder / "modules.json").read_text()))


def warm_up(modules: list[str]) -> None:
    """Import what the tests import lazily, so that no child has to."""
    for name in modules:
        if name.startswith(("torch.", "sympy.", "hypothesis.", "safetensors.")) and name not in sys.modules:
            with contextlib.suppress(Exception):
                importlib.import_module(name)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("algos", nargs="*", metavar="algo", help="algorithms to look at; all if none is given")
    parser.add_argument("--jobs", type=int, default=1, help="mutants at a time")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where results are kept")
    args = parser.parse_args(argv)
    unknown = [algo for algo in args.algos if algo not in MUTANTS]
    if unknown:
        parser.error(f"no mutants of {', '.join(unknown)}; choose among {', '.join(MUTANTS)}")
    algos = args.algos or list(MUTANTS)
    problems = [problem for algo in algos for mutant in MUTANTS[algo] if (problem := check(mutant))]
    if problems:
        sys.exit("\n".join(problems))

    # imported once, for all children
    import gymnasium  # noqa: F401
    import hydra  # noqa: F401
    import pytest  # noqa: F401
    import torch

    torch.set_num_threads(1)
    package = digest((ROOT / "rlx").rglob("*.py"))
    tasks = {algo: tasks_of(algo, package) for algo in algos}
    kept = json.loads(args.results.read_text()) if args.results.exists() else {}
    passes_unchanged([algo for algo in algos if any(task.key not in kept for task in tasks[algo])])
    results = run([task for algo in algos for task in tasks[algo]], max(1, args.jobs), args.results)

    survivors = 0
    for algo in algos:
        alive = [task for task in tasks[algo] if not results[task.key]["caught"]]
        survivors += len(alive)
        print(f"{algo:14} {len(tasks[algo]) - len(alive):3} of {len(tasks[algo]):3} caught")
        for task in alive:
            print(f"    survivor: {task.mutant.why}: {task.mutant.file}: {task.mutant.old!r} -> {task.mutant.new!r}")
    total = sum(map(len, tasks.values()))
    print(f"{'all':14} {total - survivors:3} of {total:3} caught")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
