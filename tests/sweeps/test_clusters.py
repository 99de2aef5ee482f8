"""Jobs below workers of Ray, joblib and submitit: failures stay local, lost workers cost nothing, bits are the same."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers import same_run
from test_failures import CODES, FAULTS, HERE, ROOT, wait_for
from trouble import TINY

from rlx.cli import main
from rlx.sweeps.job import Ended, Task
from rlx.sweeps.launchers import hydra_batch
from rlx.sweeps.launchers.ray import short_temp
from rlx.sweeps.launchers.remote import Order, Post, RemoteConfig, RemotePool, read_ended
from rlx.sweeps.manifest import Job, Sweep

FOLDER = Path("multirun_outputs/sweeps")
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
RAY = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs ray (pip install -e '.[ray]')")
PLUGINS = pytest.mark.skipif(
    importlib.util.find_spec("hydra_plugins.hydra_submitit_launcher") is None
    or importlib.util.find_spec("hydra_plugins.hydra_joblib_launcher") is None,
    reason="needs Hydra's launchers (pip install -e '.[sweeps]')",
)


@pytest.fixture(autouse=True)
def armed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """As long as this file is there, envs do what they are told."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TROUBLE", str(tmp_path / "armed"))
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{HERE}")
    (tmp_path / "armed").touch()
    return tmp_path / "armed"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sweeps that nothing disturbed, on the local launcher."""
    return tmp_path_factory.mktemp("whole")


def undisturbed(whole: Path, fault: str, *overrides: str) -> Path:
    """The folder of such a sweep, which is run once."""
    folder = whole / fault.replace(",", "")
    if not folder.exists():
        sweep = [*TINY, f"+env.kwargs.fault={fault}", *overrides, f"hydra.sweep.dir={folder}", "hydra.launcher.jobs=2"]
        assert main(["-m", *sweep]) == 0
    return folder


def start(*arguments: str) -> subprocess.Popen:
    """A sweep in a process group of its own, as one that a shell has started."""
    return subprocess.Popen(
        [sys.executable, "-m", "rlx", *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip


def jobs(name: str) -> list[Job]:
    return Sweep.load(FOLDER / name).jobs


def until_lost(process: subprocess.Popen) -> str:
    """What a sweep says until it has noticed a lost worker, whose job may live on for a moment."""
    said = ""
    for line in process.stdout:
        said += line
        if "has lost its worker" in line:
            break
    return said


def stopped(name: str) -> bool:
    """Was a sweep of three jobs stopped during the first two? One that was quicker than the signal may have ended."""
    *begun, last = [job.state for job in jobs(name)]
    return set(begun) <= {"interrupted", "done"} and last == "waiting"


def four_ways_to_fail(armed: Path, whole: Path, *launcher: str) -> None:
    sweep = ["-m", "sweep=four", *TINY, f"+env.kwargs.fault={','.join(FAULTS)}", "hydra.launcher.grace=0.2",
             "hydra.launcher.timeout=40", *launcher]  # fmt: skip
    process = start(*sweep)
    out = process.communicate()[0]
    assert process.returncode == 1, out
    ended = dict(zip(FAULTS, jobs("four"), strict=True))
    assert [job.state for job in ended.values()] == ["failed"] * 4 + ["done"], out
    assert {fault: ended[fault].exit_code for fault in CODES} == CODES
    for fault, words in {"raise": "ZeroDivisionError", "exit": "sys.exit(7)",
                         "kill": "SIGKILL", "hang": "timeout=40"}.items():  # fmt: skip
        assert words in ended[fault].reason
        assert f"{ended[fault].folder} failed" in out.partition("┓")[2], "again at the end, below the table"
    assert not list((FOLDER / "four").glob(".launcher-*")), "nothing is left of the talk with the workers"
    armed.unlink()
    assert main(["resume", str(FOLDER / "four"), "hydra/launcher=local", "trust=[trouble]"]) == 0
    reference = undisturbed(whole, ",".join(FAULTS))
    for job in jobs("four"):
        assert (job.state, job.attempts) == ("done", 1 if "none" in job.folder else 2)
        same_run(FOLDER / "four" / job.folder, reference / job.folder)


@PLUGINS
@pytest.mark.parametrize("launcher", ["joblib", "submitit_local"])
def test_four_ways_to_fail(launcher: str, armed: Path, whole: Path) -> None:
    four_ways_to_fail(armed, whole, f"hydra/launcher={launcher}", "hydra.launcher.jobs=2")


def begun(name: str) -> int:
    """How many jobs have come to the step at which they wait."""
    return len(list((FOLDER / name).glob("*/checkpoints/step_000000000040")))


WAITING = (*TINY, "+env.kwargs.fault=wait", "seed=0,1,2")


def finish(name: str, whole: Path) -> None:
    reference = undisturbed(whole, "wait", "seed=0,1,2")
    for job in jobs(name):
        assert job.state == "done"
        same_run(FOLDER / name / job.folder, reference / job.folder)


def workers(process: subprocess.Popen) -> list[int]:
    """The processes of joblib's workers."""
    mine = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            if parent == process.pid and b"popen_loky_posix" in (stat.parent / "cmdline").read_bytes():
                mine.append(int(stat.parent.name))
        except OSError:  # it has ended
            continue
    return mine


@PLUGINS
@LINUX
def test_a_worker_of_joblib_is_killed(armed: Path, whole: Path) -> None:
    process = start("-m", "sweep=lost", *WAITING, "hydra/launcher=joblib", "hydra.launcher.jobs=2")
    wait_for(lambda: begun("lost") == 2, process)
    os.kill(workers(process)[0], signal.SIGKILL)
    out = until_lost(process)
    armed.unlink()
    out += process.communicate()[0]
    assert process.returncode == 0, out
    assert "has lost its worker" in out
    finish("lost", whole)


@PLUGINS
def test_ctrl_c_reaches_the_sweep_alone(armed: Path, whole: Path) -> None:
    """A terminal sends SIGINT to the whole group, joblib's workers included."""
    process = start("-m", "sweep=stopped", *WAITING, "hydra/launcher=joblib", "hydra.launcher.jobs=2")
    wait_for(lambda: begun("stopped") == 2, process)
    os.killpg(process.pid, signal.SIGINT)
    armed.unlink()
    out = process.communicate()[0]
    assert process.returncode == 130, out
    assert stopped("stopped")
    assert main(["resume", str(FOLDER / "stopped"), "hydra/launcher=local", "trust=[trouble]"]) == 0
    finish("stopped", whole)


@pytest.fixture
def two_nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen]:
    """A Ray cluster of two nodes with one core each."""
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "0123456789abcdef" * 4)
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    temp = tempfile.mkdtemp(prefix="rlx-", dir=short_temp())
    monkeypatch.setenv("RAY_TMPDIR", temp)  # where address=auto finds it
    (Path(temp) / "ray").mkdir()
    cluster = subprocess.Popen(
        [sys.executable, str(HERE / "two_nodes.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert cluster.stdout.readline() == "ready\n"
        yield cluster
    finally:
        cluster.stdin.close()
        cluster.wait()
        shutil.rmtree(temp, ignore_errors=True)


@RAY
def test_a_node_of_ray_is_killed(armed: Path, whole: Path, two_nodes: subprocess.Popen) -> None:
    ray = ("hydra/launcher=ray", "hydra.launcher.address=auto")
    process = start("-m", "sweep=nodes", *WAITING, *ray)
    wait_for(lambda: begun("nodes") == 2, process)  # one on each node
    two_nodes.stdin.write("\n")
    two_nodes.stdin.flush()
    assert two_nodes.stdout.readline() == "gone\n"
    out = until_lost(process)
    armed.unlink()
    out += process.communicate()[0]
    assert process.returncode == 0, out
    assert out.count("has lost its worker") == 1, out
    finish("nodes", whole)
    armed.touch()
    four_ways_to_fail(armed, whole, *ray)


@RAY
def test_a_ray_of_our_own_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, armed: Path, whole: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    with tempfile.TemporaryDirectory(dir=short_temp()) as temp:
        monkeypatch.setenv("TMPDIR", temp)
        process = start("-m", "sweep=own", *WAITING, "hydra/launcher=ray", "hydra.launcher.jobs=2")
        wait_for(lambda: begun("own") == 2, process)
        assert [path.name[:4] for path in Path(temp).glob("rlx-*")] == ["rlx-"]
        os.killpg(process.pid, signal.SIGINT)
        armed.unlink()
        out = process.communicate()[0]
        assert process.returncode == 130, out
        assert stopped("own")
        assert not list(Path(temp).glob("rlx-*"))
        assert not (tmp_path / "home" / ".ray").exists()
    assert main(["resume", str(FOLDER / "own"), "hydra/launcher=local", "trust=[trouble]"]) == 0
    finish("own", whole)


# -- Slurm, which is played by scripts ---------------------------------------------------------------------------------


SBATCH = """#!/bin/sh
cp "$1" {folder}/batch.sh
SLURM_JOB_ID=4711 SLURM_NTASKS=1 SLURM_JOB_NUM_NODES=1 SLURM_NODEID=0 SLURM_PROCID=0 SLURM_LOCALID=0 \
    sh {folder}/batch.sh > {folder}/slurm.log 2>&1 &
echo "Submitted batch job 4711"
"""
SRUN = """#!/bin/sh
while [ "${1#-}" != "$1" ]; do
    case "$1" in --output|--error) shift;; esac
    shift
done
exec "$@"
"""
SACCT = """#!/bin/sh
echo "JobID|State|NodeList"
echo "4711|RUNNING|here"
"""


@PLUGINS
def test_slurm_is_asked_for_what_was_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, armed: Path) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    for name, text in {"sbatch": SBATCH.replace("{folder}", str(tmp_path)), "srun": SRUN, "sacct": SACCT}.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    process = start("-m", "sweep=queue", *TINY, "hydra/launcher=submitit_slurm",
                    "hydra.launcher.partition=short", "hydra.launcher.mem_gb=3", "hydra.launcher.timeout_min=7",
                    "+hydra.launcher.additional_parameters.nice=5")  # fmt: skip
    out = process.communicate()[0]
    assert process.returncode == 0, out
    assert [job.state for job in jobs("queue")] == ["done"]
    batch = (tmp_path / "batch.sh").read_text()
    for line in ("partition=short", "mem=3GB", "time=7", "cpus-per-task=1", "nice=5", "job-name=rlx"):
        assert f"#SBATCH --{line}\n" in batch


@PLUGINS
def test_a_queue_that_refuses_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    for name in ("sbatch", "srun"):
        (tmp_path / name).write_text("#!/bin/sh\necho 'invalid partition specified: nope' >&2; exit 1\n")
        (tmp_path / name).chmod(0o755)
    assert main(["-m", "sweep=refused", *TINY, "hydra/launcher=submitit_slurm", "hydra.launcher.partition=nope"]) == 1
    (job,) = jobs("refused")
    assert (job.state, job.exit_code) == ("failed", 1)
    assert job.reason.startswith("It could not be started")
    assert "invalid partition" in job.reason


@PLUGINS
def test_where_there_is_no_slurm(capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert main(["-m", *TINY, "hydra/launcher=submitit_slurm"]) == 2
    assert "needs Slurm's sbatch and srun" in capsys.readouterr().err


# -- without workers ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("launcher", "package", "extra"),
    [("ray", "ray", "ray"), ("joblib", "joblib", "sweeps"), ("submitit_local", "submitit", "sweeps")],
)
def test_a_missing_extra_is_named(
    launcher: str, package: str, extra: str, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    assert main(["-m", *TINY, f"hydra/launcher={launcher}"]) == 2
    err = capsys.readouterr().err
    assert f"hydra/launcher={launcher} needs a package that is not installed" in err
    assert f"pip install -e '.[{extra}]'" in err
    assert len(err.strip().splitlines()) == 1
    assert not FOLDER.exists()


class Hands(RemotePool):
    """Hands orders to nobody."""

    def __init__(self, moves: int = 1):
        super().__init__(RemoteConfig(moves=moves))
        self.orders: list[Order] = []

    def hand_over(self, order: Order) -> None:
        self.orders.append(Order.unpack(order.pack()))


def task(tmp_path: Path) -> Task:
    return Task(3, str(tmp_path / "003_seed=0"), ("algo=sac", "seed=0"), trust=("trouble",))


def test_what_is_handed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    pool = Hands()
    pool.start(task(tmp_path))
    (order,) = pool.orders
    assert order == pool._orders[3], "it comes out of JSON as it went in"
    assert (order.task, order.cwd) == (task(tmp_path), str(tmp_path))
    assert order.threads["OMP_NUM_THREADS"] == "3"
    assert not order.post.abandoned
    pool.close()
    assert order.post.abandoned
    assert not list(tmp_path.glob(".launcher-*"))


def test_a_sweep_that_was_killed_is_abandoned(tmp_path: Path) -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    post = Post.open(tmp_path)
    assert Post(post.folder, post.host, process.pid).abandoned
    assert not Post(post.folder, "elsewhere", process.pid).abandoned, "nobody can tell from here"
    again = Post.open(tmp_path)
    assert post.abandoned, "the next sweep in the folder takes over"
    assert not again.abandoned


def test_a_lost_job_is_handed_over_again_but_not_for_ever(tmp_path: Path) -> None:
    pool = Hands(moves=1)
    pool.start(task(tmp_path))
    assert pool.ended(3, None, "the node is gone") == []
    first, second = pool.orders
    assert first.task == second.task
    assert first.key != second.key
    (ended,) = pool.ended(3, None, "the node is gone")
    assert (ended.number, ended.exit_code) == (3, 1)
    assert "2 workers, the last one by: the node is gone" in ended.reason
    assert pool.ended(3, Ended(3, 0), "") == [], "it is nobody's any more"


def test_a_job_that_waits_in_a_queue_is_stopped_without_it(tmp_path: Path) -> None:
    pool = Hands()
    pool.start(task(tmp_path))
    (order,) = pool.orders
    assert not pool.begun(3)
    pool.stop(3)
    (ended,) = pool.take_cancelled()
    assert (ended.number, ended.exit_code) == (3, 143)
    assert order.post.hears(order.key, "stop"), "should it come up after all"
    pool.start(task(tmp_path))
    order.post.say(pool.orders[-1].key, "begun")
    assert pool.begun(3)
    pool.stop(3, now=True)
    assert pool.take_cancelled() == [], "it has a worker, which is going to tell"
    assert order.post.hears(pool.orders[-1].key, "now")


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "3", '{"number": 3}', '{"number": "3", "exit_code": 0, "reason": null}']
)
def test_what_a_worker_writes_is_data(text: str, tmp_path: Path) -> None:
    post = Post.open(tmp_path)
    Path(post.folder, "3-x.ended").write_text(text)
    assert post.end_of("3-x") is None
    assert read_ended(text) is None
    post.tell_end("3-x", Ended(3, 1, "why"))
    assert post.end_of("3-x") == Ended(3, 1, "why")


@PLUGINS
def test_settings_reach_submitit_under_its_own_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And only such that the published plugin knows."""
    from hydra_plugins.hydra_submitit_launcher import config

    monkeypatch.setattr(shutil, "which", lambda name: name)
    known: Any
    for cfg, pool, known in (
        (hydra_batch.SubmititLocalConfig(), hydra_batch.SubmititLocalPool, config.LocalQueueConf),
        (hydra_batch.SubmititSlurmConfig(), hydra_batch.SubmititSlurmPool, config.SlurmQueueConf),
    ):
        hands = Hands()
        hands.start(task(tmp_path))
        given = pool(cfg, 2).parameters(hands.orders[0])
        assert set(given) <= set(known.__dataclass_fields__)
        assert (given["cpus_per_task"], given["nodes"], given["tasks_per_node"]) == (2, 1, 1)
