"""Schedulers of a search: trials that pause and go on exactly, members that continue the runs of others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers import final, resumed, same_run, same_tensors
from trouble import TINY

import rlx
from rlx.checkpoint import CheckpointStore
from rlx.cli import main
from rlx.config import compose_config
from rlx.errors import UserError
from rlx.sweeps.manifest import Sweep
from rlx.sweeps.search.asha import rungs_of
from rlx.sweeps.search.population import Population, comparisons, perturbed
from rlx.sweeps.search.settings import SearchConfig
from rlx.sweeps.search.space import Domain

pytest.importorskip("optuna")

SEARCH = ("hydra/sweeper=optuna", "hydra/launcher=basic", *TINY, "trainer.eval_interval=20",
          "algo.actor_lr=tag(log,interval(1e-4,1e-2))", "algo.tau=interval(0.01,0.5)")  # fmt: skip
FOLDER = Path("multirun_outputs/sweeps")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def loaded(name: str) -> tuple[Sweep, list[dict[str, Any]]]:
    sweep = Sweep.load(FOLDER / name)
    assert sweep.search is not None
    return sweep, sweep.search["trials"]


# -- pausing -----------------------------------------------------------------------------------------------------------


def test_a_paused_run_has_its_whole_budget_ahead(folder: Path) -> None:
    """The schedule falls over 80 steps, not over the 40 until the pause; no evaluation is made twice."""
    more = (*TINY, "schedule=cosine")
    whole = rlx.train(*more, run_dir=folder / "whole", quiet=True)
    first = rlx.train(*more, "trainer.pause_at=40", run_dir=folder / "paused", quiet=True)
    assert (first.summary["stop_reason"], first.summary["env_steps"]) == ("paused", 40)
    same = rlx.resume(folder / "paused", trust=("trouble",), quiet=True)
    assert (same.summary["stop_reason"], same.summary["env_steps"]) == ("paused", 40), (
        "nothing changed, nothing is made"
    )
    resumed(folder / "paused", "trainer.pause_at=null", "trust=[trouble]")
    same_run(folder / "paused", folder / "whole")
    assert whole.summary["stop_reason"] == "max_env_steps"


# -- successive halving ------------------------------------------------------------------------------------------------


def test_rungs_are_where_evaluations_are() -> None:
    assert rungs_of(SearchConfig(), 9000, 500) == [1000, 3000, 9000]
    assert rungs_of(SearchConfig(rungs=2, factor=4), 1000, 100) == [300, 1000]
    with pytest.raises(UserError, match="budget in steps"):
        rungs_of(SearchConfig(), None, 500)


def test_promoted_trials_go_on_exactly_and_the_others_wait(folder: Path) -> None:
    asha = ["search.scheduler=asha", "search.factor=2", "schedule=cosine", "search.seeds=2"]
    assert main(["-m", "sweep=a", *SEARCH, *asha, "search.trials=4"]) == 0
    sweep, trials = loaded("a")
    levels = [len(trial["reports"]) for trial in trials]
    assert levels.count(3) == 1, "one in four runs to the end"
    assert levels.count(2) == 1
    assert sorted(job.state for job in sweep.jobs) == ["done"] * 2 + ["pruned"] * 6
    for trial, level in zip(trials, levels, strict=True):
        assert [int(step) for step, _ in trial["reports"]] == [20, 40, 80][:level]
        for number in trial["jobs"]:
            assert sweep.jobs[number].result["env_steps"] == [20, 40, 80][level - 1], "no step was made twice"
            assert sweep.jobs[number].attempts == level
    (winner,) = [trial for trial in trials if trial["state"] == "done"]
    for at, step in enumerate((20, 40)):
        reached = [trial["reports"][at][1] for trial in trials if len(trial["reports"]) > at]
        assert winner["reports"][at][1] >= sorted(reached)[len(reached) // 2], f"among the best at {step}"
    job = sweep.jobs[winner["jobs"][1]]
    rlx.train(*job.overrides, run_dir=folder / "whole", quiet=True)
    same_run(FOLDER / "a" / job.folder, folder / "whole")

    assert main(["resume", str(FOLDER / "a"), "search.trials=8", "trust=[trouble]"]) == 0
    more, grown = loaded("a")
    assert len(grown) == 8
    assert [trial["values"] for trial in grown[:4]] == [trial["values"] for trial in trials]
    assert sum(len(trial["reports"]) == 3 for trial in grown) == 2
    assert more.count("done") == 4


def test_the_best_of_too_few_runs_to_the_end() -> None:
    assert main(["-m", "sweep=a", *SEARCH, "search.scheduler=asha", "search.trials=2"]) == 2, "80 / 9 has no evaluation"
    more = ["search.scheduler=asha", "search.trials=2", "search.rungs=2"]
    assert main(["-m", "sweep=a", *SEARCH, *more]) == 0
    _, trials = loaded("a")
    assert sorted(trial["state"] for trial in trials) == ["done", "pruned"]
    done, pruned = sorted(trials, key=lambda trial: trial["state"])
    assert done["reports"][0][1] >= pruned["reports"][0][1]


# -- population based training -----------------------------------------------------------------------------------------


def test_comparisons_are_where_evaluations_are() -> None:
    assert comparisons(SearchConfig(), 1000, 100) == [*range(100, 1000, 100), 1000]
    assert comparisons(SearchConfig(interval=250), 1000, 100) == [300, 600, 900, 1000]


def test_perturbed_values_stay_in_their_interval() -> None:
    lr, share = Domain("lr", "float", 1e-4, 1e-2, log=True), Domain("share", "float", 0.0, 1.0)
    assert [perturbed(lr, 1e-3, 1.25, up) for up in (True, False)] == [0.00125, 0.0008]
    assert [perturbed(share, 0.5, 1.25, up) for up in (True, False)] == [0.75, 0.25]
    assert perturbed(lr, 9e-3, 1.25, True) == 1e-2
    assert perturbed(Domain("n", "int", 1, 9, log=True), 2, 1.2, True) == 3, "an integer moves at least by one"


def test_a_copied_checkpoint_continues_the_run_it_is_from(folder: Path) -> None:
    """Another run, of other values, takes over a checkpoint with the values of its source: the same from there on."""
    for name, lr in (("source", 1e-3), ("copy", 5e-3)):
        rlx.train(*TINY, f"algo.actor_lr={lr}", "trainer.pause_at=40", run_dir=folder / name, quiet=True)
    CheckpointStore(folder / "source" / "checkpoints").copy_latest(folder / "copy" / "checkpoints")
    (folder / "copy" / "metrics.jsonl").write_bytes((folder / "source" / "metrics.jsonl").read_bytes())
    names = {path.name for path in (folder / "copy" / "checkpoints").iterdir()}
    assert names == {"step_000000000040", "best_000000000040", "last", "best", "replay"}
    resumed(folder / "source", "trainer.pause_at=null", "trust=[trouble]")
    resumed(folder / "copy", "trainer.pause_at=null", "algo.actor_lr=1e-3", "trust=[trouble]")
    same_run(folder / "copy", folder / "source")


def test_a_copy_with_other_values_goes_on_with_them(folder: Path) -> None:
    for name in ("source", "copy"):
        rlx.train(*TINY, "trainer.pause_at=40", run_dir=folder / name, quiet=True)
    CheckpointStore(folder / "source" / "checkpoints").copy_latest(folder / "copy" / "checkpoints")
    resumed(folder / "source", "trainer.pause_at=null", "trust=[trouble]")
    changed = resumed(folder / "copy", "trainer.pause_at=null", "algo.actor_lr=5e-3", "trust=[trouble]")
    assert {g["lr"] for g in changed.learner.optimizers["actor"].param_groups} == {5e-3}
    with pytest.raises(AssertionError):
        same_tensors(final(folder / "copy"), final(folder / "source"))


def test_members_take_over_better_ones(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pbt = ["-m", *SEARCH, "search.scheduler=pbt", "search.trials=4", "search.interval=20"]
    assert main([*pbt, "sweep=a"]) == 0
    sweep, trials = loaded("a")
    assert [job.state for job in sweep.jobs] == ["done"] * 4
    assert all(job.result["exact"] and job.result["env_steps"] == 80 and job.attempts == 4 for job in sweep.jobs)
    steps = [(step["at"], job.number, step) for job in sweep.jobs for step in job.lineage]
    assert sorted(at for at, _, _ in steps) == [20, 40, 60], "one of four at each comparison"
    for at, number, step in steps:
        values = [dict(trial["reports"])[at] for trial in trials]
        assert values[number] == min(values)
        assert values[step["from"]] == max(values)
    last = max(steps, key=lambda step: step[0])
    job = sweep.jobs[last[1]]
    cfg = yaml.safe_load((FOLDER / "a" / job.folder / "config.yaml").read_text())
    assert [f"algo.{key}={cfg['algo'][key]}" for key in ("actor_lr", "tau")] == last[2]["overrides"]
    best = trials[sweep.search["best"]]
    experiment = compose_config([f"hydra.searchpath=[file://{folder / FOLDER / 'a'}]", "experiment=best"])
    assert {f"algo.{key}": experiment.algo[key] for key in ("actor_lr", "tau")} == best["values"]

    # Ended in the middle of taking over, after a checkpoint has been copied: it is done again, and nothing differs.
    copy, copied = Population._copy, []

    def copy_and_fail(self: Population, *members: Any) -> None:
        copy(self, *members)
        copied.append(members)
        if len(copied) == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Population, "_copy", copy_and_fail)
        assert main([*pbt, "sweep=b"]) == 130
    assert main(["resume", str(FOLDER / "b"), "trust=[trouble]"]) == 0
    again, same = loaded("b")
    assert same == trials
    assert [job.lineage for job in again.jobs] == [job.lineage for job in sweep.jobs]
    for ours, theirs in zip(again.jobs, sweep.jobs, strict=True):
        same_run(FOLDER / "b" / ours.folder, FOLDER / "a" / theirs.folder)


def test_a_member_that_failed_takes_over_another(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "armed").touch()
    monkeypatch.setenv("TROUBLE", str(folder / "armed"))
    settled = Population.settle

    def disarm(self: Population, trial: Any) -> None:
        settled(self, trial)
        (folder / "armed").unlink(missing_ok=True)

    monkeypatch.setattr(Population, "settle", disarm)
    faults = ["+env.kwargs.fault=raise", "+env.kwargs.at=15"]  # of the first member, which disarms the others
    assert (
        main(["-m", "sweep=a", *SEARCH, *faults, "search.scheduler=pbt", "search.trials=3", "search.interval=40"]) == 0
    )
    sweep, trials = loaded("a")
    assert [trial["state"] for trial in trials] == ["done"] * 3
    assert [(step["at"], step["from"] in (1, 2)) for step in sweep.jobs[0].lineage] == [(40, True)]
