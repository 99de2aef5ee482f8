"""Everything that Hydra's grammar offers becomes jobs, and all of them are checked before the first one starts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlx.cli import main
from rlx.sweeps.grid import add_jobs
from rlx.sweeps.manifest import Sweep
from rlx.sweeps.settings import first_job, read_dimension, read_plan


def values(override: str) -> list[str]:
    return read_dimension(override, [override]).values


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("seed=0,1", ["0", "1"]),
        ("seed=range(3)", ["0", "1", "2"]),
        ("seed=range(5,1,-2)", ["5", "3"]),
        ("algo.lr=range(0.5,1.5,0.5)", ["0.5", "1.0"]),
        ("seed=choice(4,2)", ["4", "2"]),
        ("seed=sort(3,1,2)", ["1", "2", "3"]),
        ("seed=sort(3,1,2,reverse=true)", ["3", "2", "1"]),
        ("algo=glob(td3*)", ["td3", "td3_bc"]),
        ("algo=glob([bc*,bear],exclude=bcq)", ["bc", "bear"]),
        ("+env.kwargs.g=1,2", ["1", "2"]),
        ("algo.hidden=[8],[8,8]", ["[8]", "[8,8]"]),
        ("algo.hidden=8,16", ["[8]", "[16]"]),
        ("trainer.max_env_steps=1e2,2e2", ["100", "200"]),
        ("dataset=null,minari", ["null", "minari"]),
        ("+env.kwargs.t='a,b','c'", ["'a,b'", "'c'"]),
    ],
)
def test_values_of_an_override(override: str, expected: list[str]) -> None:
    assert values(override) == expected


def test_choices_are_shown_without_quotes_and_escapes(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path)
    add_jobs(sweep, [read_dimension("+env.kwargs.t='a,b',c d,[1,2]", [])])
    assert [job.choices["env.kwargs.t"] for job in sweep.jobs] == ["a,b", "c d", "[1,2]"]
    assert [read_dimension(job.overrides[0], []).swept for job in sweep.jobs] == [False] * 3


def test_a_shuffled_override_has_the_same_values() -> None:
    assert sorted(values("seed=shuffle(range(20))"), key=int) == values("seed=range(20)")


@pytest.mark.parametrize("override", ["seed=[0,1]", "~callbacks.progress", "algo=sac", "algo.hidden=[8,8]"])
def test_one_value_is_not_a_sweep(override: str) -> None:
    dimension = read_dimension(override, [])
    assert not dimension.swept
    assert dimension.override(dimension.values[0]) == override


def test_jobs_are_all_combinations_in_the_order_typed(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path)
    add_jobs(sweep, [read_dimension(o, []) for o in ("algo=bc,sac", "+env.kwargs.t='a b'", "seed=range(2)")])
    assert [job.choices for job in sweep.jobs] == [
        {"algo": algo, "seed": seed} for algo in ("bc", "sac") for seed in ("0", "1")
    ]
    assert sweep.jobs[1].overrides == ["algo=bc", "+env.kwargs.t='a b'", "seed=1"]


# -- whole command lines -----------------------------------------------------------------------------------------------


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def dry(capsys: pytest.CaptureFixture, *arguments: str) -> list[str]:
    """The folders that --dry-run names."""
    assert main(["-m", "--dry-run", *arguments]) == 0, capsys.readouterr().err
    return [line.partition(" ")[0] for line in capsys.readouterr().out.splitlines()[:-1]]


def test_a_dry_run_writes_nothing(here: Path, capsys: pytest.CaptureFixture) -> None:
    names = dry(capsys, "algo=sac,td3", "seed=range(2)", "sweep=mine", "~callbacks.progress")
    assert names == ["000_algo=sac,seed=0", "001_algo=sac,seed=1", "002_algo=td3,seed=0", "003_algo=td3,seed=1"]
    assert not list(here.iterdir())
    assert main(["--dry-run", "algo=sac"]) == 2
    assert "add -m" in capsys.readouterr().err


def test_the_last_of_two_wins(here: Path, capsys: pytest.CaptureFixture) -> None:
    assert dry(capsys, "env=pendulum", "seed=0,1", "seed=7,8,9", "env=point_goal,pendulum", "seed=7") == [
        "000_env=point_goal", "001_env=pendulum",
    ]  # fmt: skip


def test_keys_that_only_the_swept_choices_have(here: Path, capsys: pytest.CaptureFixture) -> None:
    assert len(dry(capsys, "algo=bcq,bear", "algo.vae_hidden=[64,64]", "dataset=minari")) == 2


FOLDERS = {
    "experiment/a.yaml": "# @package _global_\nseed: 5\ntrainer:\n  max_env_steps: 30\n",
    "experiment/b.yaml": "# @package _global_\nseed: 6\n",
    "experiment/many.yaml": "# @package _global_\nhydra:\n  sweeper:\n    params:\n      algo: sac,td3\n"
                            "      seed: range(2)\n      algo.hidden: choice([8],[8,8])\n",
}  # fmt: skip


@pytest.fixture
def own(here: Path) -> Path:
    for name, text in FOLDERS.items():
        (here / "own" / name).parent.mkdir(parents=True, exist_ok=True)
        (here / "own" / name).write_text(text)
    return here / "own"


@pytest.mark.parametrize("way", ["--config-dir", "hydra.searchpath"])
def test_experiments_of_ones_own(way: str, own: Path, capsys: pytest.CaptureFixture) -> None:
    flag = ["--config-dir", "own"] if way == "--config-dir" else ["hydra.searchpath=[file://own]"]
    assert dry(capsys, *flag, "experiment=a,b") == ["000_experiment=a", "001_experiment=b"]


def test_a_sweep_from_a_yaml(own: Path, capsys: pytest.CaptureFixture) -> None:
    names = dry(capsys, "--config-dir", "own", "experiment=many", "algo=ddpg")
    assert names == [f"{i:03}_seed={i // 2},algo.hidden={h}" for i, h in enumerate(["_8", "_8,8"] * 2)], "typed wins"


def test_cfg_shows_the_first_job(here: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["-m", "--cfg", "job", "-p", "algo", "algo=bcq,bear", "dataset=minari", "algo.vae_hidden=[4]"]) == 0
    assert "name: bcq" in capsys.readouterr().out
    assert first_job(["algo=td3,sac", "hydra/launcher=basic"]) == ["algo=td3", "hydra/launcher=basic"]


REFUSED = {
    "algo=bcq,sac algo.vae_hidden=[64,64] dataset=minari": ("algo=sac", "algo.vae_hidden is not a key"),
    "algo=sac,bcq algo.vae_hidden=[64,64] dataset=minari": ("algo=sac", "algo.vae_hidden is not a key"),
    "algo=sac,nope": ("algo=nope", "Unknown algo"),
    "seed=0,-1": ("seed=-1", "at least 0"),
    "seed=0,x": ("seed=x", "integer"),
    "algo.actor_lr=interval(0.1,0.2)": ("interval(0.1,0.2)", "hydra/sweeper=optuna"),
    "algo=glob(zzz*)": ("algo=glob(zzz*)", "no value"),
    "seed=range(0)": ("seed=range(0)", "no value"),
    "seed=range(1000000)": ("seed=range(1000000)", "at most"),
    "seed=range(0.0,1.0,0)": ("range", "seed"),
    "algo=sac,dqn": ("algo=dqn", "discrete actions"),
    "algo=bc dataset=npz dataset.path=a.npz,b.npz": ("dataset.path=a.npz", "no such file"),
    "algo=bc dataset=minari dataset.id=no/such-v0,other/such-v0": ("dataset.id=no/such-v0", "is not in"),
    "algo=bc 'dataset.path=d${seed}.npz' dataset=npz seed=0,1": ("seed=0", "d0.npz"),
    "device=cpu,toaster": ("device=toaster", "device=cpu"),
    "env.id=Nope-v0,Pendulum-v1": ("env.id=Nope-v0", "Nope"),
    "hydra/launcher=locl seed=0,1": ("Unknown launcher 'locl'", "hydra/launcher=local"),
    "hydra/sweeper=nope seed=0,1": ("Unknown sweeper", "grid"),
    "hydra.launcher.jobs=0 seed=0,1": ("hydra.launcher.jobs", "at least 1"),
    "hydra.launcher.jobs=x seed=0,1": ("hydra.launcher.jobs", "integer"),
    "hydra.launcher.jobs=1,2 seed=0,1": ("hydra.launcher.jobs=1,2", "one value"),
    "hydra.launcher.nope=1 seed=0,1": ("hydra.launcher.nope", "not a key"),
    "hydra.launcher._target_=os.system seed=0,1": ("hydra/launcher=local", "not a launcher of rlx"),
    "hydra/launcher=basic hydra.launcher.timeout=3 seed=0,1": ("basic", "hydra/launcher=local"),
    "hydra.sweep.subdir=x seed=0,1": ("hydra.sweep.subdir", "number and what differs"),
    "run_dir=x seed=0,1": ("run_dir=x", "sweep=NAME"),
    "sweep=a/b seed=0,1": ("sweep=a/b", "names a folder"),
    "sweep=a sweep=b seed=0,1": ("one name", "sweep=NAME"),
    "sweep=a hydra.sweep.dir=b seed=0,1": ("sweep=a", "hydra.sweep.dir"),
}


@pytest.mark.parametrize("line", REFUSED)
def test_a_mistake_is_a_sentence_before_the_first_job(line: str, here: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["-m", *(word.strip("'") for word in line.split(" "))]) == 2
    err = capsys.readouterr().err
    assert len(err.splitlines()) == 1, err
    for words in REFUSED[line]:
        assert words in err
    assert not list(here.iterdir()), "nothing was written"


def test_envs_are_made_once_for_all_jobs_that_share_them(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import rlx.sweeps.grid as grid

    made = []
    original = grid.env_spec
    monkeypatch.setattr(grid, "env_spec", lambda cfg, trust: (made.append(cfg.id), original(cfg, trust))[1])
    assert main(["-m", "--dry-run", "algo=sac,td3", "env=pendulum,point_goal", "seed=range(3)"]) == 0
    assert sorted(made) == ["Pendulum-v1", "rlx/PointGoal-v0"]


def test_launcher_and_sweeper_are_read(here: Path) -> None:
    plan = read_plan(["seed=0,1", "hydra/launcher=basic", "hydra/sweeper=basic", "hydra.launcher.retries=2"])
    assert (plan.launcher, plan.sweeper, plan.limits.retries) == ("basic", "grid", 2)
    assert plan.folder.parent == Path("multirun_outputs/sweeps")
    assert read_plan(["sweep=x"]).folder == Path("multirun_outputs/sweeps/x")
    assert read_plan(["hydra.sweep.dir=a/b"]).folder == Path("a/b")


def test_a_manifest_names_what_was_swept(here: Path) -> None:
    tiny = ["algo.hidden=[8]", "trainer.max_env_steps=0", "trainer.eval_episodes=1", "env.max_episode_steps=5"]
    line = ["-m", "sweep=x", "algo=td3,sac", "seed=1", *tiny, "hydra/launcher=basic"]
    assert main(line) == 0
    values = json.loads(Path("multirun_outputs/sweeps/x/sweep.json").read_text())
    assert (values["launcher"], values["sweeper"], values["swept"]) == ("basic", "grid", ["algo"])
    assert values["overrides"] == [o for o in line[1:] if not o.startswith("sweep=")]
    assert values["command"] == "python -m rlx -m sweep=x algo=td3,sac seed=1 'algo.hidden=[8]' " + " ".join(
        [*tiny[1:], "hydra/launcher=basic"]
    )
    assert [job["choices"] for job in values["jobs"]] == [{"algo": "td3"}, {"algo": "sac"}]
    log = Path("multirun_outputs/sweeps/x/000_algo=td3/log.txt").read_text()
    assert "Run folder" in log
