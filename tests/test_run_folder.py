"""Run folders: one writer at a time, a record that is not rewritten, and sentences where nothing can be written."""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers import final, resumed, same_run, same_tensors, snapshots, tiny

import rlx
from rlx.checkpoint import CheckpointStore
from rlx.cli import main
from rlx.config import compose_config
from rlx.errors import RunFailed, UserError
from rlx.run_folder import RunLock

ROOT = Path(__file__).parent.parent


@pytest.fixture(autouse=True)
def _log(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line takes the logger over; caplog needs it as it was."""
    monkeypatch.setattr(logging.getLogger("rlx"), "propagate", True)


def everything(folder: Path) -> dict[Path, tuple[bytes, int]]:
    return {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in folder.rglob("*") if p.is_file()}


# -- one writer ------------------------------------------------------------------------------------------------------


def test_a_lock_is_held_by_one(tmp_path: Path) -> None:
    with RunLock(tmp_path):
        with pytest.raises(UserError, match=rf"in use by process {os.getpid()} on .+ since 20"), RunLock(tmp_path):
            pass
        assert (tmp_path / ".lock").exists(), "who is refused does not take it away"
    assert not (tmp_path / ".lock").exists()
    with RunLock(tmp_path):
        pass


def test_a_lock_that_was_left_behind_is_free(tmp_path: Path) -> None:
    (tmp_path / ".lock").write_text("process 1 on somewhere since 2020-01-01T00:00:00+00:00\n")
    with RunLock(tmp_path):
        assert str(os.getpid()) in (tmp_path / ".lock").read_text()


def test_a_forked_process_does_not_keep_the_lock(tmp_path: Path) -> None:
    """Workers of async envs are forked while it is held, and may outlive the run."""
    ready, wait = os.pipe(), os.pipe()
    with RunLock(tmp_path):
        pid = os.fork()
        if pid == 0:
            os.write(ready[1], b"x")
            os.read(wait[0], 1)
            os._exit(0)
        os.read(ready[0], 1)
        assert not any(os.path.realpath(f"/proc/{pid}/fd/{fd}") == str(tmp_path.resolve() / ".lock")
                       for fd in os.listdir(f"/proc/{pid}/fd"))  # fmt: skip
        with pytest.raises(UserError, match="in use"), RunLock(tmp_path):
            pass
    with RunLock(tmp_path):
        os.write(wait[1], b"x")
    os.waitpid(pid, 0)


def test_a_file_of_the_users_is_not_taken_for_a_lock(tmp_path: Path) -> None:
    (tmp_path / ".lock").write_text("mine")
    with pytest.raises(UserError, match="not a file of rlx"), RunLock(tmp_path):
        pass
    assert (tmp_path / ".lock").read_text() == "mine"


def test_a_run_that_goes_on_cannot_be_resumed(tmp_path: Path) -> None:
    """Nor can another one be started there; reading is not blocked."""
    from rlx.callbacks.bus import CallbackBus

    seen: list[str] = []
    emit = CallbackBus.emit

    def interfering(self: CallbackBus, event: str, trainer: Any, *args: Any) -> None:
        emit(self, event, trainer, *args)
        if event == "checkpoint" and not seen:
            with pytest.raises(UserError, match=f"in use by process {os.getpid()}") as error:
                rlx.resume(tmp_path / "run")
            seen.append(str(error.value))
            with pytest.raises(UserError, match="already holds a run"):
                rlx.train(*tiny("off_policy"), run_dir=tmp_path / "run")
            assert rlx.evaluate(tmp_path / "run", episodes=1)["episodes"] == 1

    CallbackBus.emit = interfering  # type: ignore[method-assign]
    try:
        rlx.train(*tiny("off_policy"), run_dir=tmp_path / "run")
    finally:
        CallbackBus.emit = emit  # type: ignore[method-assign]
    assert seen
    assert not (tmp_path / "run" / ".lock").exists()
    resumed(tmp_path / "run", "trainer.max_env_steps=140")


def test_of_two_that_start_at_once_one_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second is past its first look at the folder when the first one begins to write."""
    import rlx.workflows as workflows

    build, inner = workflows.build, []

    def build_slowly(*args: Any) -> Any:
        if not inner:
            inner.append(True)
            rlx.train(*tiny("off_policy", "trainer.max_env_steps=60"), run_dir=tmp_path / "run")
        return build(*args)

    monkeypatch.setattr(workflows, "build", build_slowly)
    with pytest.raises(UserError, match=r"already holds a run|exists already"):
        rlx.train(*tiny("off_policy"), run_dir=tmp_path / "run")
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["env_steps"] == 60


def test_a_killed_run_with_async_envs_can_be_resumed_at_once(tmp_path: Path) -> None:
    """Also while its workers, which SIGKILL does not reach, are still there."""
    overrides = tiny("off_policy", "env.num_envs=2", "env.vectorization=async", "trainer.max_env_steps=400")
    command = [sys.executable, "-m", "rlx", *overrides, f"run_dir={tmp_path / 'run'}"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    workers: list[int] = []
    try:
        while process.poll() is None and not (tmp_path / "run" / "checkpoints" / "last").exists():
            time.sleep(0.005)
        workers = [int(p) for p in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
        for pid in workers:
            os.kill(pid, signal.SIGSTOP)  # so that they cannot notice and end
        assert len(workers) >= 2
        assert main(["resume", str(tmp_path / "run")]) == 2, "it is still there"
        process.kill()
        assert process.wait() == -signal.SIGKILL, process.communicate()[1]
        assert main(["resume", str(tmp_path / "run")]) == 0
    finally:
        process.kill()
        for pid in workers:
            with suppress(ProcessLookupError):  # they go with their parent where the system can see to that
                os.kill(pid, signal.SIGKILL)
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["env_steps"] == 400


# -- nothing to do ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("finished")
    for regime in ("off_policy", "offline"):
        rlx.train(*tiny(regime), run_dir=folder / regime)
    return {regime: folder / regime for regime in ("off_policy", "offline")}


@pytest.mark.parametrize(("regime", "override", "words"), [
    ("off_policy", "trainer.max_env_steps=100", r"finished \(130 env steps\); nothing to do\..*max_env_steps=260"),
    ("off_policy", "seed=0", r"finished \(130 env steps\)"),
    ("offline", "trainer.max_updates=20", r"finished \(60 updates\); nothing to do\..*trainer.max_updates=120"),
])  # fmt: skip
def test_a_finished_run_is_not_touched(
    regime: str, override: str, words: str, finished: dict[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished[regime], run, symlinks=True)
    before = everything(run)
    with caplog.at_level(logging.INFO, "rlx"):
        result = resumed(run, override)
    assert everything(run) == before
    assert any(re.search(words, r.getMessage()) for r in caplog.records)
    assert result.summary == json.loads((run / "summary.json").read_text())
    assert main(["resume", str(run), override]) == 0
    assert everything(run) == before


def test_a_rule_that_ended_a_run_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    overrides = tiny(
        "off_policy", "callbacks=[default,early_stopping]", "callbacks.early_stopping.patience=1",
        "callbacks.early_stopping.min_delta=1e9", "trainer.eval_interval=10", "trainer.max_env_steps=60",
    )  # fmt: skip
    rlx.train(*overrides, run_dir=tmp_path / "run")
    before = everything(tmp_path / "run")
    with caplog.at_level(logging.INFO, "rlx"):
        resumed(tmp_path / "run", "trainer.max_env_steps=100")
    assert everything(tmp_path / "run") == before
    assert any("ended by early_stopping" in r.getMessage() for r in caplog.records)


def test_every_resume_is_recorded(tmp_path: Path) -> None:
    overrides = tiny("off_policy", "trainer.max_env_steps=70")
    rlx.train(*overrides, run_dir=tmp_path / "run")
    assert not (tmp_path / "run" / "resumes.yaml").exists()
    resumed(tmp_path / "run", "trainer.max_env_steps=90", "trainer.log_interval=7")
    resumed(tmp_path / "run", "trainer.max_env_steps=80")  # trains nothing
    resumed(tmp_path / "run", "trainer.max_env_steps=100")
    entries = yaml.safe_load((tmp_path / "run" / "resumes.yaml").read_text())
    assert [(e["env_steps"], e["overrides"]) for e in entries] == [
        (70, ["trainer.max_env_steps=90", "trainer.log_interval=7"]), (90, ["trainer.max_env_steps=100"])
    ]  # fmt: skip
    assert yaml.safe_load((tmp_path / "run" / "overrides.yaml").read_text()) == list(overrides)


def test_a_config_that_is_not_the_checkpoints_is_said(
    finished: dict[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished["off_policy"], run, symlinks=True)
    text = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(text.replace("discount: 0.99", "discount: 0.89"))
    resumed(run, "trainer.max_env_steps=140")
    warnings = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert any("discount was 0.99 and is 0.89" in w for w in warnings), warnings


@pytest.mark.parametrize("data", [b"\xff\xfe", b"a: b\n" * 20_000_000], ids=["not_text", "huge"])
def test_a_config_that_cannot_be_read_is_said(data: bytes, finished: dict[str, Path], tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished["off_policy"], run, symlinks=True)
    (run / "config.yaml").write_bytes(data)
    with pytest.raises(UserError, match=r"config.yaml, the saved config, .*checkpoints/last/config.yaml"):
        resumed(run)


def test_lost_checkpoints_are_no_reason_to_begin_again(finished: dict[str, Path], tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished["off_policy"], run, symlinks=True)
    for path in (run / "checkpoints").glob("step_*"):
        shutil.rmtree(path)
    before = everything(run)
    with pytest.raises(UserError, match="gone"):
        resumed(run)
    assert everything(run) == before


# -- what cannot be written ------------------------------------------------------------------------------------------


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, int, int], list[str]]:
    """From the n-th file on whose name has a word in it, fsync fails: what a full disk or a bad one does."""

    def install(word: str, count: int, number: int) -> list[str]:
        fsync, seen = os.fsync, []

        def failing_fsync(fd: int) -> None:
            path = os.readlink(f"/proc/self/fd/{fd}")
            if word in path:
                seen.append(path)
                if len(seen) >= count:
                    raise OSError(number, os.strerror(number))
            fsync(fd)

        monkeypatch.setattr(os, "fsync", failing_fsync)
        return seen

    return install


@pytest.mark.parametrize(("word", "count", "number"), [
    ("learner.safetensors", 4, errno.ENOSPC), ("replay/.", 2, errno.EDQUOT), ("manifest.json", 3, errno.EIO),
    ("metrics.jsonl", 3, errno.EROFS), ("summary.json", 1, errno.EACCES),
])  # fmt: skip
def test_a_full_disk_costs_a_sentence_and_no_checkpoint(
    word: str, count: int, number: int, failing: Any, tmp_path: Path, capsys: pytest.CaptureFixture,
    monkeypatch: pytest.MonkeyPatch, finished: dict[str, Path],
) -> None:  # fmt: skip
    run = tmp_path / "run"
    failing(word, count, number)
    assert main([*tiny("off_policy"), f"run_dir={run}"]) == 1
    err = capsys.readouterr().err
    assert len(err.splitlines()) == 1, err
    for part in (word.strip("."), os.strerror(number), "step_0000000", f"python -m rlx resume {run}"):
        assert part in err
    assert not list((run / "checkpoints").glob("**/*.writing"))
    monkeypatch.undo()
    assert main(["resume", str(run)]) == 0
    same_run(run, finished["off_policy"])


def test_without_room_nothing_begins(
    failing: Any, tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing("config.yaml", 1, errno.ENOSPC)
    assert main([*tiny("off_policy"), f"run_dir={tmp_path / 'run'}"]) == 2
    err = capsys.readouterr().err
    assert len(err.splitlines()) == 1
    assert "config.yaml" in err
    assert "No space left" in err
    monkeypatch.undo()
    assert main([*tiny("off_policy"), f"run_dir={tmp_path / 'run'}"]) == 0, "the folder was not taken"


def test_a_folder_that_cannot_be_written_to(
    finished: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_only(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR) and str(path).startswith(str(tmp_path)):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        return opened(path, flags, *args, **kwargs)

    run = tmp_path / "run"
    shutil.copytree(finished["off_policy"], run, symlinks=True)
    before, opened = everything(run), os.open
    monkeypatch.setattr(os, "open", read_only)
    with pytest.raises(UserError, match=r"cannot be written to \(Read-only file system\)"):
        resumed(run, "trainer.max_env_steps=140")
    with pytest.raises(UserError, match=r"cannot be written to \(Read-only file system\)"):
        rlx.train(*tiny("off_policy"), run_dir=tmp_path / "new")
    assert rlx.evaluate(run, episodes=1)["episodes"] == 1
    assert everything(run) == before


def test_errors_of_others_keep_their_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An env that cannot open its own files is not a full disk."""

    def update(self: Any, batch: Any) -> Any:
        raise FileNotFoundError(errno.ENOENT, "No such file", "/somewhere/else")

    monkeypatch.setattr("rlx.algos.sac.SAC.update", update)
    with pytest.raises(FileNotFoundError):
        rlx.train(*tiny("off_policy"), run_dir=tmp_path / "run")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system for a checkpoint or two, where this process may mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=130k", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("no file system can be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_disk_that_is_really_full(small_disk: Path, finished: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises((RunFailed, UserError), match="No space left"):
        rlx.train(*tiny("off_policy"), run_dir=small_disk / "run")
    if CheckpointStore(small_disk / "run" / "checkpoints").steps():
        shutil.copytree(small_disk / "run", tmp_path / "run", symlinks=True)
        resumed(tmp_path / "run")
        same_run(tmp_path / "run", finished["off_policy"])


def test_a_limit_on_file_sizes(tmp_path: Path) -> None:
    """The metrics file meets it first, in the middle of a row; what was saved before can be resumed."""
    code = (
        "import resource, sys; from rlx.cli import main; resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000)); "
        "sys.exit(main(sys.argv[1:]))"
    )
    run = tmp_path / "run"
    overrides = tiny("off_policy", "trainer.log_interval=1", "trainer.max_env_steps=400", "algo.hidden=[4]",
                     "trainer.checkpoint_interval=20", "trainer.eval_interval=0")  # fmt: skip
    done = subprocess.run([sys.executable, "-c", code, *overrides, f"run_dir={run}"], cwd=ROOT, capture_output=True,
                          text=True)  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert "File too large" in done.stderr
    assert resumed(run).summary["env_steps"] == 400
    rlx.train(*overrides, run_dir=tmp_path / "whole")
    same_tensors(final(run), final(tmp_path / "whole"))


# -- paths -----------------------------------------------------------------------------------------------------------

ODD = ("a=b", "lr=0.1,seed=2", "with space", "a,b", "[x]", "{y: 1}", "ünï-日本", "it's", 'say "hi"', "$HOME", "a:b",
       "#1", "(z)", "50%", "a\\b", "~x", "null")  # fmt: skip


@pytest.mark.parametrize("name", ODD)
def test_a_folder_may_have_any_name(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through Python as it is, and from there on by every verb."""
    monkeypatch.chdir(tmp_path)
    rlx.train(*tiny("off_policy", "trainer.max_env_steps=60"), run_dir=tmp_path / name)
    assert main(["resume", str(tmp_path / name), "trainer.max_env_steps=70"]) == 0
    assert main(["evaluate", str(tmp_path / name), "episodes=1"]) == 0
    assert main(["evaluate", name, "episodes=1"]) == 0


@pytest.mark.parametrize("name", ODD)
def test_a_folder_with_any_name_on_the_command_line(name: str, tmp_path: Path) -> None:
    folder = tmp_path / name
    overrides = tiny("off_policy", "trainer.max_env_steps=20")
    assert main([*overrides, f"run_dir={folder}"]) == 0
    assert [p.name for p in tmp_path.iterdir()] == [name]
    assert yaml.safe_load((folder / "overrides.yaml").read_text()) == [*overrides, f"run_dir={folder}"]
    assert main(["evaluate", str(folder), "episodes=1"]) == 0


@pytest.mark.parametrize(("typed", "folder"), [
    ("'quoted, already'", "quoted, already"), ("${oc.env:RLX_TEST_FOLDER}", "of the environment"),
    ("back\\", "back\\"), ("\\'", "\\'"),
])  # fmt: skip
def test_quotes_and_interpolations_still_mean_something(
    typed: str, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLX_TEST_FOLDER", "of the environment")
    assert compose_config([f"run_dir={typed}"]).run_dir == folder


def test_a_value_is_not_taken_for_a_path(capsys: pytest.CaptureFixture) -> None:
    assert main(["resume", "trainer.max_env_steps=10"]) == 2
    assert "A path is missing" in capsys.readouterr().err
    assert main(["resume", "./a=b"]) == 2
    assert "not a run folder" in capsys.readouterr().err


def test_snapshots_of_a_running_run_can_be_resumed(tmp_path: Path) -> None:
    """A copy of a folder that is in use is not in use."""
    with snapshots(("checkpoint", 1), into=tmp_path) as taken:
        rlx.train(*tiny("off_policy"), run_dir=tmp_path / "whole")
    assert (taken["checkpoint", 1] / ".lock").exists()
    resumed(taken["checkpoint", 1])
    same_run(taken["checkpoint", 1], tmp_path / "whole")
