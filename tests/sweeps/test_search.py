"""Searches: what is drawn, what a trial comes to, pruning, kills, and the experiment that a search ends with."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from trouble import TINY

from rlx.cli import main
from rlx.config import compose_config
from rlx.errors import UserError
from rlx.sweeps.driver import Driver
from rlx.sweeps.job import Ended, Task
from rlx.sweeps.launchers.base import LauncherConfig
from rlx.sweeps.manifest import Sweep
from rlx.sweeps.search.sampling import draw, grid, importance
from rlx.sweeps.search.settings import SearchConfig, change_search, read_search, settings_from
from rlx.sweeps.search.space import Domain, domains_from, domains_of
from rlx.sweeps.search.trials import Trial, best_of, trials_from
from rlx.sweeps.settings import read_dimension, read_plan
from rlx.sweeps.start import make_source
from rlx.sweeps.table import Lines

pytest.importorskip("optuna")

HERE = Path(__file__).parent
LR, TAU = "algo.actor_lr=tag(log,interval(1e-4,1e-2))", "algo.tau=interval(0.01,0.5)"
SEARCH = ("hydra/sweeper=optuna", "hydra/launcher=basic", *TINY, LR, TAU)
DOMAINS = [Domain("algo.actor_lr", "float", 1e-4, 1e-2, log=True), Domain("algo.tau", "float", 0.01, 0.5)]
KEYS = {"sampler", "scheduler", "objective", "direction", "space", "trials", "best", "importance"}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def search(name: str) -> dict[str, Any]:
    written = Sweep.load(Path("multirun_outputs/sweeps") / name).search
    assert written is not None
    return written


# -- the space ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    {
        LR: Domain("algo.actor_lr", "float", 1e-4, 1e-2, True),
        "algo.batch_size=int(interval(8,64))": Domain("algo.batch_size", "int", 8, 64, False, 1),
        "algo.batch_size=range(32,257,32)": Domain("algo.batch_size", "int", 32, 256, False, 32),
        "algo.tau=range(0.1,0.35,0.1)": Domain("algo.tau", "float", 0.1, 0.30000000000000004, False, 0.1),
        "algo.hidden=[8],[16,16]": Domain("algo.hidden", "choice", choices=("[8]", "[16,16]")),
        "algo.tau=choice(0.1,0.2)": Domain("algo.tau", "choice", choices=("0.1", "0.2")),
    }.items(),
)
def test_hydras_grammar_as_domains(text: str, expected: Domain) -> None:
    (domain,) = domains_of([read_dimension(text, [])])
    assert domain == expected
    assert domains_from(json.loads(json.dumps({domain.name: domain.written()}))) == [domain]


def test_values_can_be_typed_again() -> None:
    lr, sizes = DOMAINS[0], Domain("x", "choice", choices=("8", "relu"))
    assert lr.text(lr.value(0.000123456789)) == "0.00012346"
    assert lr.value(1e-2 + 1e-9) == 1e-2, "rounding does not leave the interval"
    assert [sizes.value("8"), sizes.text(8), sizes.value("relu")] == [8, "8", "relu"]


BAD = {
    ("search.sampler=tpee", TAU): "Unknown sampler 'tpee'. Did you mean search.sampler=tpe?",
    ("search.pruner=x", TAU): "Unknown pruner 'x'. Choices: median, none.",
    ("search.objective=reward", TAU): "Unknown objective 'reward'",
    ("search.trialz=3", TAU): "did you mean search.trials?",
    ("search.trials=0", TAU): "search.trials must be at least 1",
    ("search.trials=many", TAU): "expected an integer",
    ("search.trials=2,3", TAU): "has one value",
    ("search.trials=null", TAU): "give a number of trials",
    ("search=nothing",): "Unknown search 'nothing'",
    ("seed=1",): "There is nothing to search",
    ("seed=range(3)", TAU): "use search.seeds=N",
    ("algo.batch_size=interval(8,64)",): "algo.batch_size is an integer",
    ("algo.tauu=interval(0.1,0.2)",): "did you mean algo.tau?",
    ("algo.tau=interval(0.2,0.1)",): "a lower and a higher number",
    ("algo.tau=tag(log,interval(0,0.1))",): "has to begin above 0",
    ("search.sampler=grid", TAU): "tries every value",
    ("search.sampler=cmaes", TAU): "at least two keys",
    ("search.scheduler=asha", "search.sampler=gp", TAU): "use tpe, random or grid",
    ("search.scheduler=asha", "search.objective=wall_time_s", TAU): "compares trials by their evaluations",
    ("search.scheduler=asha", "search.rungs=9", TAU): "lower trainer.eval_interval, or search.rungs",
    ("search.scheduler=pbt", "search.seeds=2", TAU): "leave out search.seeds",
    ("search.scheduler=pbt", "search.objective=best_eval_return_mean", TAU): "use search.objective=eval_return_mean",
    ("search.scheduler=pbt", "algo.hidden=[8],[16]"): "algo.hidden is a choice",
    ("search.scheduler=pbt", "search.interval=80", TAU): "lower trainer.eval_interval or search.interval",
}


@pytest.mark.parametrize("overrides", BAD, ids=" ".join)
def test_bad_input_is_a_sentence(overrides: tuple[str, ...], capfd: pytest.CaptureFixture) -> None:
    assert main(["-m", "hydra/sweeper=optuna", "sweep=bad", *TINY, *overrides]) == 2
    err = capfd.readouterr().err
    assert BAD[overrides] in err
    assert err.count("\n") == 1
    assert not Path("multirun_outputs").exists(), "nothing was written"


def test_a_search_without_its_sweeper(capfd: pytest.CaptureFixture) -> None:
    assert main(["-m", "search=sac_pendulum"]) == 2
    assert main(["search=sac_pendulum"]) == 2
    assert capfd.readouterr().err.count("hydra/sweeper=optuna") == 2


def test_without_optuna(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert main(["-m", *SEARCH]) == 2
    assert "pip install -e '.[search]' in a checkout of rlx." in capfd.readouterr().err


def test_settings_of_a_file_of_ones_own(folder: Path) -> None:
    (folder / "mine" / "search").mkdir(parents=True)
    (folder / "mine" / "search" / "x.yaml").write_text(
        "trials: 7\nfixed: {seed: 3}\nspace: {algo.tau: 'interval(0.1,0.2)'}"
    )
    settings = read_search(["search=x", "search.seeds=2"], [folder / "mine"])
    assert (settings.trials, settings.seeds, settings.fixed) == (7, 2, {"seed": 3})
    (folder / "mine" / "search" / "x.yaml").write_text("trails: 7")
    with pytest.raises(UserError, match="trails"):
        read_search(["search=x"], [folder / "mine"])


@pytest.mark.parametrize("name", ["sac_pendulum", "ppo_cartpole", "td3_bc_pendulum", "iql_pendulum"])
def test_the_searches_that_come_with_rlx(name: str) -> None:
    plan = read_plan(["hydra/sweeper=optuna", f"search={name}"])
    domains = domains_of(plan.dimensions)
    assert len(domains) >= 3
    assert all(domain.kind != "choice" or len(domain.choices) > 1 for domain in domains)
    algo = name.rpartition("_")[0]
    cfg = compose_config([d.override(d.values[0]) for d in plan.dimensions])
    assert cfg.algo.name == algo
    plain = compose_config([d.text for d in plan.dimensions if not d.swept])
    for domain in (d for d in domains if d.kind != "choice"):
        group, key = domain.name.split(".")
        assert domain.low <= plain[group][key] <= domain.high, "what we tuned by hand is part of the space"


# -- sampling ----------------------------------------------------------------------------------------------------------


def drawn(sampler: str, seed: int, count: int = 8) -> list[Trial]:
    """Trials whose value is best at a learning rate of 1e-3 and a tau of 0.1."""
    settings = change_search(SearchConfig(sampler=sampler, seed=seed, startup=4), ())
    trials: list[Trial] = []
    for number in range(count):
        values = draw(settings, DOMAINS, trials)
        lr, tau = float(values["algo.actor_lr"]), float(values["algo.tau"])
        worse = (lr / 1e-3 - 1) ** 2 + (tau / 0.1 - 1) ** 2
        trials.append(Trial(number, values, [number], -worse, "done"))
    return trials


@pytest.mark.parametrize("sampler", ["tpe", "cmaes", "gp", "random"])
def test_values_follow_from_the_seed_and_the_trials_before(sampler: str) -> None:
    trials = drawn(sampler, 0)
    assert trials == drawn(sampler, 0)
    assert trials != drawn(sampler, 1)
    assert len({json.dumps(trial.values) for trial in trials}) == len(trials), "none is drawn twice"
    settings = settings_from(json.loads(json.dumps(asdict(SearchConfig(sampler=sampler, startup=4)))))
    read = trials_from(json.loads(json.dumps([asdict(trial) for trial in trials])), DOMAINS, len(trials))
    assert draw(settings, DOMAINS, read[:5]) == trials[5].values, "also from what is on disk"


def test_a_grid_is_every_combination() -> None:
    domains = [Domain("a", "choice", choices=("x", "y")), Domain("b", "int", 1, 5, step=2)]
    assert [list(values.values()) for values in grid(domains)] == [[a, b] for a in ("x", "y") for b in (1, 3, 5)]


def test_the_key_that_matters_is_the_most_important() -> None:
    trials = drawn("random", 0, 20)
    for trial in trials:
        trial.value = -abs(float(trial.values["algo.tau"]) - 0.2)
    weights = importance(SearchConfig(), DOMAINS, trials)
    assert weights["algo.tau"] > 0.8
    assert sum(weights.values()) == pytest.approx(1, abs=1e-3)
    assert importance(SearchConfig(), DOMAINS, trials[:3]) == {}


def test_the_best_by_direction() -> None:
    trials = [Trial(0, {}, [0], 1.0, "done"), Trial(1, {}, [1], 2.0, "done"), Trial(2, {}, [2], 9.0, "pruned")]
    assert [best_of(trials, direction).number for direction in ("maximize", "minimize")] == [1, 0]
    assert best_of(trials[2:], "maximize") is None


# -- a search ----------------------------------------------------------------------------------------------------------


def test_a_search_over_seeds_and_its_experiment(capfd: pytest.CaptureFixture) -> None:
    arguments = ["-m", "sweep=a", *SEARCH, "search.trials=3", "search.seeds=2", "seed=5", "search.pruner=none"]
    assert main(arguments) == 0
    out = capfd.readouterr().out
    sweep, written = Sweep.load(Path("multirun_outputs/sweeps/a")), search("a")
    assert written.keys() >= KEYS
    assert (sweep.sweeper, sweep.swept) == ("optuna", ["algo.actor_lr", "algo.tau", "seed"])
    assert [(job.trial, job.choices["seed"]) for job in sweep.jobs] == [(t, s) for t in range(3) for s in "56"]
    for trial in written["trials"]:
        results = [sweep.jobs[number].result["best_eval_return_mean"] for number in trial["jobs"]]
        assert trial["value"] == pytest.approx(sum(results) / 2)
        assert trial["state"] == "done"
    best = max(written["trials"], key=lambda trial: trial["value"])
    assert written["best"] == best["number"]
    assert written["importance"] == {}, "three trials do not tell which of two keys matters"
    assert f"Best of 3 trials: trial {best['number']}" in out
    assert "python -m rlx -m --config-dir multirun_outputs/sweeps/a experiment=best 'seed=range(5)'" in out

    again = ["-m", "--config-dir", "multirun_outputs/sweeps/a", "experiment=best", "seed=5,6", "hydra/launcher=basic"]
    assert main([*again, "sweep=b"]) == 0
    ours = Sweep.load(Path("multirun_outputs/sweeps/b")).jobs
    theirs = [sweep.jobs[number] for number in best["jobs"]]
    same = ("eval_return_mean", "best_eval_return_mean", "updates")
    assert [[job.result[k] for k in same] for job in ours] == [[job.result[k] for k in same] for job in theirs]

    assert main(arguments) == 0
    assert "nothing to do" in capfd.readouterr().out
    assert search("a") == written


def test_dry_run_and_more_trials(capfd: pytest.CaptureFixture) -> None:
    arguments = ["-m", "sweep=a", *SEARCH, "search.sampler=grid", "search.trials=null", "algo.tau=0.1,0.2",
                 "algo.actor_lr=1e-3"]  # fmt: skip
    assert main([*arguments, "--dry-run"]) == 0
    assert "1 job" in capfd.readouterr().out
    assert not Path("multirun_outputs").exists()
    assert main([*arguments, "search.trials=1"]) == 0
    assert main(["resume", "multirun_outputs/sweeps/a", "search.trials=5", "trust=[trouble]"]) == 0
    trials = search("a")["trials"]
    assert [trial["values"] for trial in trials] == [{"algo.tau": 0.1}, {"algo.tau": 0.2}], "the grid has no more"
    for change, words in {"search.seeds=5": "not be the same search", "trainer.max_env_steps=90": "compared"}.items():
        capfd.readouterr()
        assert main(["resume", "multirun_outputs/sweeps/a", change, "trust=[trouble]"]) == 2
        assert words in capfd.readouterr().err


def test_storage_is_typed_and_not_read_from_the_manifest(folder: Path, capfd: pytest.CaptureFixture) -> None:
    import optuna

    url = f"sqlite:///{folder}/trials.db"
    assert main(["-m", "sweep=a", *SEARCH, "search.trials=1", f"search.storage='{url}'"]) == 0
    assert main(["resume", "multirun_outputs/sweeps/a", "search.trials=2", "trust=[trouble]"]) == 2
    assert "add search.storage=URL" in capfd.readouterr().err
    more = [f"search.storage='{url}'", "search.trials=2", "trust=[trouble]"]
    assert main(["resume", "multirun_outputs/sweeps/a", *more]) == 0
    (study,) = optuna.get_all_study_summaries(url)
    assert study.n_trials == 2
    assert not Path("multirun_outputs/sweeps/a/optuna.journal").exists()


def test_a_journal_that_is_gone_or_damaged(capfd: pytest.CaptureFixture) -> None:
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    assert main(["-m", "sweep=a", *SEARCH, "search.trials=1"]) == 0
    journal = Path("multirun_outputs/sweeps/a/optuna.journal")
    journal.write_bytes(b"{]\n" * 3)
    go_on = ["resume", "multirun_outputs/sweeps/a", "search.trials=2", "trust=[trouble]"]
    assert main(go_on) == 2
    assert "delete it" in capfd.readouterr().err
    journal.unlink()
    assert main(go_on) == 0
    with open(journal, "ab") as file:
        file.write(b'{"half')
    assert main([*go_on[:2], "search.trials=3", "trust=[trouble]"]) == 0
    (name,) = optuna.get_all_study_names(JournalStorage(JournalFileBackend(str(journal))))
    study = optuna.load_study(study_name=name, storage=JournalStorage(JournalFileBackend(str(journal))))
    values = [trial["value"] for trial in search("a")["trials"]]
    assert [trial.value for trial in study.trials if trial.state.name == "COMPLETE"] == values


def test_a_damaged_search_is_a_sentence(capfd: pytest.CaptureFixture) -> None:
    assert main(["-m", "sweep=a", *SEARCH, "search.trials=1"]) == 0
    path = Path("multirun_outputs/sweeps/a/sweep.json")
    whole = path.read_text()
    for part, value in {"trials": [{}], "space": {"x": {}}, "settings": {"trials": "x"}, "seeds": [0, 1]}.items():
        values = json.loads(whole)
        values["search"][part] = value
        path.write_text(json.dumps(values))
        capfd.readouterr()
        assert main(["resume", "multirun_outputs/sweeps/a", "trust=[trouble]"]) == 2
        assert capfd.readouterr().err.count("\n") == 1


def test_values_that_make_no_run_fail_alone(capfd: pytest.CaptureFixture) -> None:
    arguments = ["-m", "sweep=a", "hydra/sweeper=optuna", "hydra/launcher=basic", *TINY, "algo.discount=0.9,2.0,0.99"]
    assert main([*arguments, "search.sampler=grid"]) == 2
    sweep = Sweep.load(Path("multirun_outputs/sweeps/a"))
    assert [job.state for job in sweep.jobs] == ["done", "failed", "done"]
    assert "algo.discount" in str(sweep.jobs[1].reason)
    assert [trial["state"] for trial in search("a")["trials"]] == ["done", "failed", "done"]
    capfd.readouterr()
    assert main(["resume", "multirun_outputs/sweeps/a", "trust=[trouble]"]) == 2
    assert "nothing to do" in capfd.readouterr().out


# -- pruning -----------------------------------------------------------------------------------------------------------


class Pretended:
    """A launcher whose jobs only write evaluations: trial by trial the return that they are told."""

    slots, stoppable = 1, True

    def __init__(self, returns: list[float]):
        self.returns, self.stopped = returns, False
        self.task: Task | None = None
        self.evaluations = 0

    def start(self, task: Task) -> None:
        self.task, self.evaluations, self.stopped = task, 0, False

    def begun(self, number: int) -> bool:
        return True

    def wait(self, timeout: float) -> list[Ended]:
        task = self.task
        if task is None:
            return []
        if self.stopped or self.evaluations == 8:
            self.task = None
            (Path(task.folder) / "summary.json").write_text(json.dumps({
                "algo": "sac", "env": "x", "seed": 0, "eval_return_mean": self.returns[task.number],
                "best_eval_return_mean": self.returns[task.number], "env_steps": 10 * self.evaluations, "updates": 0,
                "wall_time_s": 1.0, "stop_reason": "terminated" if self.stopped else "max_env_steps", "exact": True,
            }))  # fmt: skip
            return [Ended(task.number, 143 if self.stopped else 0)]
        self.evaluations += 1
        row = {"kind": "eval", "env_steps": 10 * self.evaluations, "updates": 0, "wall_time": 0.1,
               "eval/return_mean": self.returns[task.number]}  # fmt: skip
        with open(Path(task.folder) / "metrics.jsonl", "a") as file:
            file.write(json.dumps(row) + "\n")
        return []

    def stop(self, number: int, now: bool = False) -> None:
        self.stopped = True

    def close(self) -> None:
        """Nothing runs."""


def pretend(name: str, returns: list[float], *overrides: str) -> Sweep:
    arguments = [f"sweep={name}", *SEARCH, f"search.trials={len(returns)}", "trainer.eval_interval=10", *overrides]
    plan = read_plan(arguments)
    sweep = Sweep(plan.folder, overrides=arguments, sweeper="optuna")
    source = make_source(plan, sweep)
    plan.folder.mkdir(parents=True)
    assert Driver(sweep, source, Pretended(returns), LauncherConfig(), Lines(sweep), source.configs).run() == 0
    source.close()
    sweep.save()
    return sweep


def test_worse_than_most_is_pruned_after_the_warmup() -> None:
    returns = [5.0, 6.0, 7.0, 8.0, 9.0, 1.0, 10.0]
    sweep = pretend("median", returns)
    states = [trial["state"] for trial in search("median")["trials"]]
    assert states == ["done"] * 5 + ["pruned", "done"]
    assert [job.state for job in sweep.jobs] == states
    assert len(search("median")["trials"][5]["reports"]) == 3, "evaluations 0 and 1 are within a quarter of 8"
    assert search("median")["best"] == 6
    assert [job.state for job in pretend("none", returns, "search.pruner=none").jobs] == ["done"] * 7


def test_less_is_better_if_one_says_so() -> None:
    pretend("less", [5.0, 6.0, 7.0, 8.0, 9.0, 99.0, 1.0], "search.direction=minimize")
    assert [t["state"] for t in search("less")["trials"]][5:] == ["pruned", "done"]
    assert search("less")["best"] == 6


# -- kills -------------------------------------------------------------------------------------------------------------


def test_a_killed_search_has_the_trials_of_one_that_was_not(folder: Path, capfd: pytest.CaptureFixture) -> None:
    arguments = ["-m", *SEARCH, "search.trials=6", "search.startup=2"]
    environment = {**os.environ, "PYTHONPATH": f"{HERE.parents[1]}:{HERE}"}
    command = [sys.executable, "-m", "rlx", *arguments, "sweep=killed"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
    killed = folder / "multirun_outputs/sweeps/killed"
    while len(list(killed.glob("003*/metrics.jsonl"))) == 0:
        assert process.poll() is None
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = Sweep.load(killed)
    assert 3 < len(before.jobs) <= 6
    assert main(["resume", str(killed), "trust=[trouble]"]) == 0
    assert main([*arguments, "sweep=whole"]) == 0
    ours, theirs = search("killed")["trials"], search("whole")["trials"]
    assert [trial["number"] for trial in ours] == list(range(6))
    assert ours == theirs
    assert len(Sweep.load(killed).jobs) == 6
    assert len([path for path in killed.iterdir() if path.name[:3].isdigit()]) == 6, "and no folder beside them"
