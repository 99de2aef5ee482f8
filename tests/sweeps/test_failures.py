"""Failure is local: whatever a job does to itself, the others finish, it is named, and `resume` completes it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from helpers import same_run
from trouble import TINY

from rlx.cli import main
from rlx.sweeps.manifest import Job, Sweep

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


@pytest.fixture
def trouble(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """As long as this file is there, envs do what they are told."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TROUBLE", str(tmp_path / "armed"))
    (tmp_path / "armed").touch()
    return tmp_path / "armed"


def jobs(name: str) -> list[Job]:
    return Sweep.load(Path("multirun_outputs/sweeps") / name).jobs


FAULTS = ("hang", "raise", "exit", "kill", "none")
CODES = {"raise": 1, "exit": 1, "kill": 128 + signal.SIGKILL, "none": 0}


def test_four_ways_to_fail(trouble: Path, capfd: pytest.CaptureFixture) -> None:
    sweep = ["-m", "sweep=four", *TINY, f"+env.kwargs.fault={','.join(FAULTS)}", "hydra.launcher.grace=0.2",
             "hydra.launcher.jobs=3"]  # fmt: skip
    assert main([*sweep, "hydra.launcher.timeout=20"]) == 1
    out, err = capfd.readouterr()
    ended = dict(zip(FAULTS, jobs("four"), strict=True))
    assert [job.state for job in ended.values()] == ["failed"] * 4 + ["done"]
    assert {fault: ended[fault].exit_code for fault in CODES} == CODES
    for fault, words in {"raise": "ZeroDivisionError", "exit": "sys.exit(7)",
                         "kill": "SIGKILL", "hang": "timeout=20"}.items():  # fmt: skip
        assert words in ended[fault].reason
        assert f"{ended[fault].folder} failed" in err
        assert f"{ended[fault].folder} failed" in out.partition("┓")[2], "again at the end, below the table"
    assert "python -m rlx resume multirun_outputs/sweeps/four" in out
    assert all(job.attempts == 1 for job in ended.values())

    trouble.unlink()
    assert main(["resume", "multirun_outputs/sweeps/four", "trust=[trouble]"]) == 0
    again = jobs("four")
    assert [(job.state, job.attempts) for job in again] == [("done", 2)] * 4 + [("done", 1)]
    assert main(["-m", "sweep=whole", *sweep[2:]]) == 0
    for job in again:
        same_run(Path("multirun_outputs/sweeps/four") / job.folder, Path("multirun_outputs/sweeps/whole") / job.folder)


def test_retries_go_on_from_the_checkpoint(trouble: Path) -> None:
    """Checkpoints are 20 steps apart and each process lives for 25: every attempt comes 20 steps further."""
    sweep = ["-m", "sweep=again", *TINY, "+env.kwargs.fault=segfault", "+env.kwargs.at=25", "hydra.launcher.retries=2"]
    assert main(sweep) == 1
    (job,) = jobs("again")
    assert (job.state, job.attempts, job.exit_code) == ("failed", 3, 128 + signal.SIGSEGV)
    assert main(sweep) == 0, "the same again goes on with it"
    (job,) = jobs("again")
    assert (job.state, job.attempts, job.result["env_steps"]) == ("done", 4, 80)
    resumes = yaml.safe_load(Path("multirun_outputs/sweeps/again", job.folder, "resumes.yaml").read_text())
    assert [resume["env_steps"] for resume in resumes] == [20, 40, 60]


def test_what_cannot_be_mended_is_not_tried_again(trouble: Path) -> None:
    lock = Path("multirun_outputs/sweeps/bad/000_seed=0/.lock")
    lock.mkdir(parents=True)
    assert main(["-m", "sweep=bad", *TINY, "seed=0,1", "hydra.launcher.retries=2", "hydra.launcher.jobs=2"]) == 2
    assert [(job.state, job.attempts) for job in jobs("bad")] == [("failed", 1), ("done", 1)]


def start(*arguments: str, armed: Path) -> subprocess.Popen:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{HERE}", "TROUBLE": str(armed)}
    command = [sys.executable, "-m", "rlx", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)


def wait_for(condition: Callable[[], bool], process: subprocess.Popen) -> None:
    while not condition():
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.02)


def children(process: subprocess.Popen) -> list[int]:
    """The processes that run the jobs of a sweep: those that the server has forked."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            parents[int(stat.parent.name)] = int(fields[1])
    return [pid for pid, parent in parents.items() if parents.get(parent) == process.pid]


LONGER = (
    *TINY,
    "trainer.max_env_steps=600",
    "trainer.checkpoint_interval=50",
    "seed=range(3)",
    "hydra.launcher.jobs=2",
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep that nothing disturbed."""
    folder = tmp_path_factory.mktemp("whole") / "sweep"
    assert main(["-m", *LONGER, f"hydra.sweep.dir={folder}"]) == 0
    return folder


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_kill_minus_nine_of_the_sweep(trouble: Path, whole: Path) -> None:
    folder = trouble.parent / "killed"
    process = start("-m", *LONGER, f"hydra.sweep.dir={folder}", armed=trouble)
    wait_for(lambda: len(list(folder.glob("*/checkpoints/step_*"))) >= 2 and len(children(process)) == 2, process)
    orphans = children(process)
    process.kill()
    process.wait()
    assert Sweep.load(folder).count("running") == 2, "as it was when it was killed"
    resumed = start("resume", str(folder), "trust=[trouble]", armed=trouble)
    out = resumed.communicate()[0]
    assert resumed.returncode == 0, out
    assert not [pid for pid in orphans if Path(f"/proc/{pid}").exists()], "the jobs ended with their sweep"
    sweep = Sweep.load(folder)
    assert [job.state for job in sweep.jobs] == ["done"] * 3
    for job in sweep.jobs:
        same_run(folder / job.folder, whole / job.folder)
    assert (folder / "results.csv").read_text() == (whole / "results.csv").read_text()


def test_ctrl_c_saves_and_stops(trouble: Path, whole: Path) -> None:
    folder = trouble.parent / "stopped"
    process = start("-m", *LONGER, f"hydra.sweep.dir={folder}", armed=trouble)
    wait_for(lambda: len(list(folder.glob("*/metrics.jsonl"))) == 2, process)
    process.send_signal(signal.SIGINT)
    out = process.communicate()[0]
    assert process.returncode == 130, out
    assert "python -m rlx resume" in out
    states = [job.state for job in Sweep.load(folder).jobs]
    assert states == ["interrupted", "interrupted", "waiting"]
    again = ["-m", *LONGER, f"hydra.sweep.dir={folder}"]
    assert main(again) == 0
    for job in Sweep.load(folder).jobs:
        same_run(folder / job.folder, whole / job.folder)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_ctrl_c_twice_ends_at_once(trouble: Path) -> None:
    folder = trouble.parent / "twice"
    more = ["+env.kwargs.fault=hang", f"hydra.sweep.dir={folder}", "seed=0,1", "hydra.launcher.jobs=2"]
    process = start("-m", *TINY, *more, armed=trouble)
    wait_for(lambda: len(list(folder.glob("*/checkpoints/step_000000000040"))) == 2, process)
    process.send_signal(signal.SIGINT)
    time.sleep(1.0)  # more than what counts as one signal
    assert process.poll() is None, "the jobs hang, and nobody was impatient yet"
    process.send_signal(signal.SIGINT)
    out = process.communicate()[0]
    assert process.returncode == 130, out
    assert [job.state for job in Sweep.load(folder).jobs] == ["interrupted"] * 2
