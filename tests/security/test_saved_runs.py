"""A run folder and a checkpoint are data: nothing in them runs, reads or writes elsewhere, or takes more than is there.

Every case of the corpus goes through every verb, in a process of its own that is forked from this one, with a bound on
its memory.
"""

from __future__ import annotations

import hashlib
import json
import os
import resource
import shutil
import signal
import sys
import traceback
from pathlib import Path
from typing import NamedTuple

import pytest
from corpus import ALL, CASES, Case
from helpers import tiny

import rlx
from rlx.cli import main

SECRET = "hunter2-canary"
MEMORY = 2**30  # bytes more than there are before the first verb
SECONDS = 120  # after which a case hangs; far more than any takes
EVIL = "import pathlib\npathlib.Path('pwned').touch()\n"
SHORT = ("trainer.eval_interval=0", "trainer.checkpoint_interval=0")


@pytest.fixture(scope="session")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("bases")
    online = tiny(
        "off_policy", "algo=td3", "trainer.max_env_steps=60", "trainer.learning_starts=50", "~algo_env", *SHORT
    )
    offline = tiny("offline", "dataset.size=60", "trainer.max_updates=5", *SHORT)
    found = {}
    for name, overrides in (("online", online), ("offline", offline)):
        found[name] = rlx.train(*overrides, run_dir=folder / name).run_dir
    return found


class Outcome(NamedTuple):
    codes: dict[str, int]
    output: str


def verbs(run: Path) -> dict[str, list[str]]:
    return {
        "evaluate": ["evaluate", str(run), "episodes=1"],
        "predict": ["predict", str(run), "--obs", "[1, 0, 0]"],
        "collect": ["collect", str(run), "id=test/x-v0", "episodes=1"],
        "inspect-data": ["inspect-data", str(run)],
        "resume": ["resume", str(run)],
    }


def in_a_child(folder: Path, run: Path, only: set[str] | None = None) -> Outcome:
    """All verbs on a run, in a child with bounded memory; exit codes, and all that was said."""
    (folder / "codes").mkdir()
    child = os.fork()
    if child == 0:
        _run_verbs(folder, run, only)
    _, status = os.waitpid(child, 0)
    output = (folder / "output").read_text(errors="replace")
    assert os.WIFEXITED(status), f"ended by signal {status}: {output[-2000:]}"
    assert os.WEXITSTATUS(status) == 0, output[-3000:]
    return Outcome({p.name: int(p.read_text()) for p in (folder / "codes").iterdir()}, output)


def _run_verbs(folder: Path, run: Path, only: set[str] | None) -> None:
    try:
        signal.alarm(SECONDS)
        fd = os.open(folder / "output", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(fd, 1)
        os.dup2(fd, 2)
        sys.stdout, sys.stderr = (os.fdopen(os.dup(n), "w", buffering=1) for n in (1, 2))
        os.chdir(folder)
        sys.path.insert(0, str(folder))
        os.environ |= {"SECRET": SECRET, "MINARI_DATASETS_PATH": str(folder / "minari"), "WANDB_MODE": "offline"}
        size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, size + MEMORY))
        for name, arguments in verbs(run).items():
            if only is None or name in only:
                (folder / "codes" / name).write_text(str(main(arguments)))
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def digest(folder: Path) -> str:
    parts = [f"{p.relative_to(folder)}:{p.read_bytes() if p.is_file() else ''}" for p in sorted(folder.rglob("*"))]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def lay_out(tmp_path: Path, base: Path) -> tuple[Path, Path]:
    """A working folder with a copy of the run, an evil module and a neighbour."""
    run, neighbour = tmp_path / "run", tmp_path / "neighbour"
    shutil.copytree(base, run, symlinks=True)
    (run / "summary.json").unlink()  # as if killed just before its end: a resume of a finished run has nothing to do
    neighbour.mkdir()
    (neighbour / "precious").write_text("line\n" * 10_000)
    (tmp_path / "evil_module").mkdir()
    for name in ("__init__", "deep"):
        (tmp_path / "evil_module" / f"{name}.py").write_text(EVIL)
    return run, neighbour


def applying(case: Case, run: Path, base: Path) -> set[str]:
    """The verbs that read what was changed: what only a resume reads is shown to one of those that act, too."""
    chosen = {"evaluate", "resume"} if case.refused == ("resume",) else set(ALL)
    files = [p for p in base.rglob("*") if p.name == "state.json" or p.suffix == ".safetensors"]
    same = all(p.read_bytes() == (run / p.relative_to(base)).read_bytes() for p in files)
    return chosen if same else chosen | {"inspect-data"}


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="bounds on memory are tested on Linux")
@pytest.mark.parametrize("name", CASES)
def test_a_saved_run_is_data(name: str, tmp_path: Path, bases: dict[str, Path]) -> None:
    case = CASES[name]
    run, neighbour = lay_out(tmp_path, bases[case.base])
    before = digest(neighbour)
    case.change(run)
    codes, output = in_a_child(tmp_path, run, applying(case, run, bases[case.base]))
    assert not list(tmp_path.rglob("pwned")), "code was run"
    assert digest(neighbour) == before, "something was written elsewhere"
    assert "Traceback" not in output, output[-3000:]
    assert set(codes.values()) <= {0, 2}, (codes, output[-2000:])
    assert SECRET not in output
    leaks = [p for p in tmp_path.rglob("*") if p.is_file() and SECRET.encode() in p.read_bytes()]
    assert not leaks
    assert "\x1b" not in output
    said = [line for line in output.splitlines() if line.startswith("rlx: ") and "was skipped" not in line]
    wrong = {verb for verb in case.refused if codes[verb] != 2}
    assert not wrong, (codes, output[-2000:])
    assert len([c for c in codes.values() if c == 2]) <= len(said)
    assert all(line.endswith((".", "?", "...")) for line in said), said


def test_the_runs_that_are_changed_are_whole(tmp_path: Path, bases: dict[str, Path]) -> None:
    """What the corpus shows would mean nothing if an unchanged run were refused, too."""
    run, _ = lay_out(tmp_path, bases["online"])
    codes, output = in_a_child(tmp_path, run)
    assert codes == dict.fromkeys((*ALL, "inspect-data"), 0), output
    assert json.loads((run / "summary.json").read_text())["env_steps"] == 60


def test_the_corpus_is_large() -> None:
    assert len(CASES) >= 60
