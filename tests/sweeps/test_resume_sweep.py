"""`resume SWEEP` runs what is missing and nothing else; what a manifest asks for is data."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from helpers import same_run

from rlx.cli import main
from rlx.sweeps.manifest import FILE, Sweep

TINY = ("algo=sac", "env=pendulum", "algo.hidden=[8]", "algo.batch_size=8", "env.max_episode_steps=10",
        "trainer.max_env_steps=40", "trainer.learning_starts=10", "trainer.log_interval=10",
        "trainer.eval_interval=20", "trainer.eval_episodes=1", "logger=jsonl")  # fmt: skip
SWEEP = ("-m", "sweep=x", *TINY, "seed=0,1", "hydra.launcher.jobs=2")
FOLDER = Path("multirun_outputs/sweeps/x")


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def stamps() -> dict[str, int]:
    return {str(p): p.stat().st_mtime_ns for p in FOLDER.glob("*/*") if p.is_file()}


def test_a_finished_sweep_is_left_alone(capsys: pytest.CaptureFixture) -> None:
    assert main(list(SWEEP)) == 0
    before = stamps()
    for again in (SWEEP, ("resume", str(FOLDER)), (*SWEEP[:-1], "hydra/launcher=basic")):
        capsys.readouterr()
        assert main(list(again)) == 0
        assert "has finished (2 jobs); nothing to do." in capsys.readouterr().out
    assert stamps() == before
    assert main([*SWEEP, "algo.discount=0.9"]) == 2
    err = capsys.readouterr().err
    assert "holds another sweep" in err
    assert "resume" in err
    assert stamps() == before


def test_a_longer_budget_goes_on_with_all(capsys: pytest.CaptureFixture) -> None:
    assert main(list(SWEEP)) == 0
    assert main(["resume", str(FOLDER), "trainer.max_env_steps=70", "hydra/launcher=basic"]) == 0
    sweep = Sweep.load(FOLDER)
    assert [(job.number, job.state, job.attempts, job.result["env_steps"]) for job in sweep.jobs] == [
        (0, "done", 2, 70), (1, "done", 2, 70),
    ]  # fmt: skip
    whole = ["trainer.max_env_steps=70", "hydra.sweep.dir=whole"]
    assert main(["-m", *(o for o in SWEEP[2:] if "max_env" not in o), *whole]) == 0
    for job in sweep.jobs:
        same_run(FOLDER / job.folder, Path("whole") / job.folder)
    assert main(["resume", str(FOLDER), "trainer.max_env_stepss=90"]) == 2
    assert "did you mean trainer.max_env_steps" in capsys.readouterr().err
    assert Sweep.load(FOLDER).count("done") == 2, "a mistake changes nothing"


def unstarted(**changes: Any) -> None:
    """A sweep of which nothing was run yet, with a manifest that somebody has written to."""
    assert main(["-m", "--dry-run", *SWEEP[1:]]) == 0
    FOLDER.mkdir(parents=True)
    sweep = Sweep(FOLDER, "python -m rlx", ["seed=0,1"], swept=["seed"])
    for seed in "01":
        sweep.add_job([*TINY, f"seed={seed}"], {"seed": seed}, 2)
    sweep.save()
    values = json.loads((FOLDER / FILE).read_text())
    values |= {key: value for key, value in changes.items() if key != "job"}
    values["jobs"][1]["overrides"] += changes.get("job", [])
    (FOLDER / FILE).write_text(json.dumps(values))


def test_jobs_that_never_started_run_from_the_manifest() -> None:
    unstarted()
    assert main(["resume", str(FOLDER)]) == 0
    assert main(["-m", *SWEEP[2:], "hydra.sweep.dir=whole"]) == 0
    for job in Sweep.load(FOLDER).jobs:
        same_run(FOLDER / job.folder, Path("whole") / job.folder)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"job": ["algo._target_=os.system"]}, "os.system"),
        ({"job": ["trust=[os]", "reward._target_=os.system"]}, "os.system"),
        ({"job": ["env.id=evil:Evil-v0"]}, "trust=[evil]"),
        ({"job": ["hydra.searchpath=[pkg://evil]"]}, "trust=[evil]"),
        ({"job": ["algo.name=${oc.env:HOME}"]}, "oc.env"),
        ({"overrides": ["hydra.launcher._target_=os.system"]}, "not a launcher of rlx"),
        ({"overrides": ["hydra/launcher=nope"]}, "Unknown launcher"),
    ],
)
def test_a_manifest_is_data(
    changes: dict[str, Any], words: str, tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    (tmp_path / "evil").mkdir()
    (tmp_path / "evil" / "__init__.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    monkeypatch.syspath_prepend(str(tmp_path))
    unstarted(**changes)
    assert main(["resume", str(FOLDER)]) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "ran").exists()
    assert not list(FOLDER.glob("0*")), "no job has started"


def test_two_processes_do_not_share_a_sweep(capsys: pytest.CaptureFixture) -> None:
    from rlx.run_folder import RunLock

    unstarted()
    with RunLock(FOLDER):
        assert main(["resume", str(FOLDER)]) == 2
    assert f"in use by process {os.getpid()}" in capsys.readouterr().err
