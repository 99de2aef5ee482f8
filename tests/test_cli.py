"""The command line: exit codes, one sentence for every mistake, and what lands in the run folder."""

from __future__ import annotations

import gc
import hashlib
import io
import json
import logging
import math
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from helpers import rows, signalled, tiny

import rlx
from rlx.algos.dqn import DQN, DQNConfig
from rlx.checkpoint import seal
from rlx.cli import BLAS_THREADS, main, quick_imports
from rlx.errors import UserError
from rlx.files import write_atomically
from rlx.policy import as_box
from rlx.types import Box, Spec

TINY = tiny("off_policy")


@pytest.fixture(autouse=True)
def _logging() -> Iterator[None]:
    """The command line sets the logger up for a process of its own; put it back."""
    log = logging.getLogger("rlx")
    before = log.handlers[:], log.level, log.propagate
    yield
    log.handlers, log.level, log.propagate = before


def test_a_python_without_what_rlx_needs_says_which_one_to_use() -> None:
    code = "import sys; sys.modules['hydra'] = None; from rlx.cli import main; sys.exit(main(['algo=sac']))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 2
    assert ran.stderr.startswith(f"rlx: {sys.executable} has no hydra, which rlx needs; use the Python that ")
    assert len(ran.stderr.splitlines()) == 1


def test_imports_are_not_interrupted_by_collections() -> None:
    frozen = gc.get_freeze_count()
    try:
        with quick_imports("no_such_module"):
            assert not gc.isenabled()
        assert gc.isenabled()
        assert gc.get_freeze_count() > frozen  # what is there by now is left out of later collections
        with pytest.raises(ImportError), quick_imports("no_such_module"):
            raise ImportError
        assert gc.isenabled()
        with quick_imports("rlx.cli"):  # imported long ago: nothing to gain
            assert gc.isenabled()
    finally:
        gc.unfreeze()


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="counts the threads of a process on Linux")
@pytest.mark.parametrize(("given", "expected"), [({}, "1"), ({"OMP_NUM_THREADS": "2"}, None)])
def test_numpy_has_one_thread_unless_told_otherwise(given: dict[str, str], expected: str | None) -> None:
    code = (
        "import os, sys; from rlx.cli import main; main(['list', 'algo']); assert 'numpy' not in sys.modules; "
        "import numpy; numpy.ones((500, 500)) @ numpy.ones((500, 500)); "
        "print(len(os.listdir('/proc/self/task')), os.environ.get('OPENBLAS_NUM_THREADS'))"
    )
    env = {key: value for key, value in os.environ.items() if key not in BLAS_THREADS} | given
    ran = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    threads, variable = ran.stdout.split()[-2:]
    assert variable == str(expected)
    assert threads == "1" or given


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run."""
    folder = tmp_path_factory.mktemp("cli") / "run"
    rlx.train(*TINY, run_dir=folder)
    return folder


# -- one sentence for every mistake ----------------------------------------------------------------------------------

BAD = {
    "algo=rlxx": "algo=",
    "algo.lrr=1": "SACConfig",
    "+algo.lrr=1": "algo.lrr is not a key of SACConfig",
    "++trainer.learning_start=5": "learning_starts",
    "+algo.lr.x=1": "algo.actor_lr",
    "algo=ppo dataset=minari": "on-policy",
    "algo=td3_bc": "dataset=minari",
    "algo=td3_bc dataset=null": "dataset=minari",
    "env=cartpole": "box",
    "env=pendulumm": "pendulum",
    "env.id=Pendulum-v9": "Pendulum",
    "env.id=nosuchmodule:Env-v0": "nosuchmodule",
    "env.id=NoSuchThing-v0": "not a registered",
    "+env.kwargs.nonsense=3": "nonsense",
    "env.num_envs=0": "num_envs",
    "env.vectorization=threads": "sync",
    "env.max_episode_steps=0": "max_episode_steps",
    "env.max_episode_steps=-5": "max_episode_steps",
    "trainer.max_env_steps=abc": "integer",
    "trainer.max_env_steps=-1": "max_env_steps",
    "trainer.max_env_steps=null": "budget",
    "trainer.eval_episodes=0": "eval_episodes",
    "trainer.offline_batch_ratio=1.5": "offline_batch_ratio",
    "trainer.gradient_updates_per_step=0": "gradient_updates_per_step",
    "trainer.gradient_updates_per_step=nan": "gradient_updates_per_step",
    "trainer.gradient_updates_per_step=inf": "gradient_updates_per_step",
    "trainer.keep_checkpoints=0": "keep_checkpoints",
    "trainer.max_seconds=nan": "finite",
    "algo.alpha=inf": "finite",
    "algo.target_entropy=nan": "finite",
    "algo.actor_lr=nan": "algo.actor_lr",
    "algo.critic_lr=0": "algo.critic_lr=3e-4",
    "algo=crossq algo.critic_hidden=[0]": "critic_hidden",
    "algo=ppo algo.target_kl=0": "algo.target_kl=null",
    "algo=ppo algo.value_coef=-1": "value_coef",
    "algo=ppo replay=hindsight": "replay=uniform",
    "algo=ppo trainer.rollout_length=9999999999999": "try trainer.rollout_length",
    "algo=a2c algo.square_decay=1": "square_decay",
    "algo=rlpd dataset=random algo.critics=0": "algo.critics=10",
    "replay=prioritized replay.alpha=inf": "finite",
    "trainer=on_policy": "trainer=",
    "trainer.learning_start=5": "learning_starts",
    "algo.batch_size=0": "batch_size",
    "algo.discount=1.1": "discount",
    "algo.normalize_obs=true": "dataset=",
    "algo._target_=rlx.algos.sac.Nope": "Nope",
    "replay._target_=rlx.nope.X": "rlx.nope",
    "algo.tau=0": "tau",
    "algo.hidden=[0]": "hidden",
    "algo.hidden=[-3,2]": "hidden",
    "algo.hidden=wide": "hidden",
    "seed=-1": "seed",
    "seed=99999999999999999999": "seed",
    "seed=one": "integer",
    "threads=0": "threads",
    "device=cuda:99": "device=cpu",
    "device=toaster": "device=cpu",
    "device=meta": "device=cpu",
    "replay.capacity=0": "capacity",
    "replay.capacity=99999999999999 trainer.max_env_steps=99999999999999": "GiB",
    "replay.n_step=0": "n_step",
    "reward=normalize_return": "dataset",
    "reward=nonsense": "Unknown reward 'nonsense'",
    "reward.clip_low=2 reward.clip_high=1": "clip_low",
    "schedule=zigzag": "Unknown schedule 'zigzag'",
    "+schedule.targets.tauu={kind: linear}": "tau",
    "schedule=linear trainer.max_env_steps=null trainer.max_updates=5": "trainer.max_env_steps where it collects",
    "callbacks.early_stopping.patience=3": "early_stopping",
    "callbacks=[default,fitted_q]": "dataset=",
    "callbacks=[default,q_values]": "dataset=",
    "callbacks=[default,make_data] callbacks.make_data.prefix=rlx/x reward=clip_1": "reward=identity",
    "algo=ppo callbacks=[default,make_data] callbacks.make_data.prefix=rlx/x": "off-policy",
    "algo=tqc dataset=random callbacks=[default,q_values]": "tqc",
    "algo=crossq dataset=random callbacks=[default,q_values]": "crossq",
    "logger.jsonl.filename=a/b.jsonl": "metrics.jsonl",
    "dataset=mix dataset.sources.prior=null": "dataset.sources.prior",
    "-m run_dir=somewhere seed=0,1": "hydra.sweep.dir",
    "~callbacks.nonsense": "nonsense",
    "algoo=sac": "algo",
    "env=null": "env=",
    "algo=null": "algo=",
    "dataset=npz dataset.path=/no/such/file.npz": "/no/such/file.npz",
    "dataset=npz": "path",
    "algo._target_=os.system": "trust",
    "reward._target_=subprocess.Popen": "trust",
    "algo=[sac": "algo",
    "nonsense": "verb",
    "rezume x": "resume",
    "resume": "path",
    "resume /no/such/run": "/no/such/run",
    "evaluate": "path",
    "evaluate /no/such/run": "/no/such/run",
    "predict": "path",
    "predict /no/such/run --obs [1]": "/no/such/run",
    "list algos": "algo",
    "collect": "path",
    "inspect-data /no/such/file.npz": "/no/such/file.npz",
}


@pytest.mark.parametrize("line", BAD)
def test_a_mistake_costs_one_sentence(
    line: str, tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["rlx"])  # which sweeps set
    arguments = line.split(" ") if "{" not in line else [line]
    trains = "=" in arguments[0] or arguments[0][0] in "~+"
    short = ["trainer.max_env_steps=3", f"run_dir={tmp_path / 'run'}"]  # in case it does run
    assert main([*short, *arguments] if trains else arguments) == 2
    out, err = capsys.readouterr()
    said = [text for text in err.splitlines() if text.strip()]
    assert len(said) == 1, err
    assert said[0].startswith("rlx: ")
    assert said[0].endswith((".", "?", "...")) or "type: python -m rlx" in said[0]
    assert BAD[line] in said[0]
    assert "Traceback" not in out + err
    assert not (tmp_path / "run").exists(), "a refused run leaves no folder behind"


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["evaluate", "RUN", "episodes=0"], "episodes"),
        (["evaluate", "RUN", "episodes=many"], "episodes"),
        (["evaluate", "RUN", "--jsn"], "--jsn"),
        (["evaluate", "RUN", "target_return=many"], "target_return must be a number"),
        (["evaluate", "RUN", "target_return=3"], "has no option target_return"),
        (["evaluate", "RUN", "seed=-1"], "seed=-1"),
        (["evaluate", "RUN", "seed=99999999999999999999999"], "seed"),
        (["collect", "RUN", "id=rlx/x-v0", "seed=-1"], "seed=-1"),
        (["predict", "RUN"], "--obs"),
        (["predict", "RUN", "--obs", "[1, 2"], "JSON"),
        (["predict", "RUN", "--obs", "[1, 2]"], "shape"),
        (["predict", "RUN", "--obs", "3"], "shape"),
        (["predict", "RUN", "--obs", '["a", "b", "c"]'], "numbers"),
        (["predict", "RUN", "--obs", '{"a": 1}'], "Pendulum-v1 has observations without parts; give numbers in lists"),
        (["predict", "RUN", "--obs", "[[1, 2, 3], [4]]"], "numbers"),
        (["predict", "RUN", "--obs", "[1, 2, NaN]"], "NaN"),
        (["resume", "RUN", "algo=td3"], "selects another"),
        (["resume", "RUN", "algo.lrr=1"], "lrr"),
        (["resume", "RUN", "trainer.max_env_steps=x"], "max_env_steps"),
        (["resume", "RUN", "~callbacks.nonsense"], "nonsense"),
        (["resume", "RUN", "env.num_envs=2"], "num_envs"),
        (["resume", "RUN", "reward.running_norm=true"], "reward.running_norm"),
        (["resume", "RUN", "reward.scale=2"], "reward.scale"),
    ],
)
def test_a_mistake_about_a_run(arguments: list[str], word: str, run_dir: Path, capsys: pytest.CaptureFixture) -> None:
    assert main([str(run_dir) if a == "RUN" else a for a in arguments]) == 2
    err = capsys.readouterr().err
    assert len(err.splitlines()) == 1
    assert word in err


def test_a_run_folder_that_is_a_file(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "file").write_text("mine")
    assert main([*TINY, f"run_dir={tmp_path / 'file'}"]) == 2
    assert main([*TINY, f"run_dir={tmp_path / 'file' / 'below'}"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 2
    assert (tmp_path / "file").read_text() == "mine"


def test_what_rlx_itself_does_wrong_has_a_traceback_and_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlx.algos.sac.SAC.update", lambda self, batch: 1 / 0)
    assert main([*TINY, f"run_dir={tmp_path / 'run'}"]) == 1
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_a_refused_run_can_be_corrected(tmp_path: Path) -> None:
    """What callbacks refuse is refused before the folder is claimed."""
    there = f"run_dir={tmp_path / 'run'}"
    assert main([*TINY, there, "callbacks=[default,fitted_q]"]) == 2
    assert main([*TINY, there]) == 0


def test_null_takes_a_callback_or_a_logger_away(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    assert main([*TINY, f"run_dir={folder}", "callbacks.evaluate=null", "logger.jsonl=null"]) == 0
    assert not (folder / "metrics.jsonl").exists()
    assert json.loads((folder / "summary.json").read_text())["eval_return_mean"] is None
    assert main(["resume", str(folder), "callbacks.checkpoint=null"]) == 0


def test_a_second_run_in_the_same_folder_is_refused(run_dir: Path, capsys: pytest.CaptureFixture) -> None:
    before = {p: p.stat().st_mtime_ns for p in run_dir.rglob("*")}
    assert main([*TINY, f"run_dir={run_dir}"]) == 2
    assert "resume" in capsys.readouterr().err
    assert {p: p.stat().st_mtime_ns for p in run_dir.rglob("*")} == before


# -- the verbs -------------------------------------------------------------------------------------------------------


def test_help(capsys: pytest.CaptureFixture) -> None:
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    for verb in ("resume", "evaluate", "predict", "list"):
        assert f"python -m rlx {verb}" in out


def test_training_ends_with_a_table(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["train", *TINY, f"run_dir={tmp_path / 'run'}"]) == 0
    out, err = capsys.readouterr()
    assert not err
    for word in (
        "max_env_steps",
        "python -m rlx evaluate",
        "python -m rlx resume",
        "tensorboard",
        str(tmp_path / "run"),
    ):
        assert word in out.replace("\n", "")


def test_the_run_folder_keeps_its_contract(run_dir: Path) -> None:
    assert {"config.yaml", "overrides.yaml", "metrics.jsonl", "summary.json", "checkpoints"} <= {
        p.name for p in run_dir.iterdir()
    }
    names = {p.name for p in (run_dir / "checkpoints").iterdir()}
    assert {"last", "best", "replay"} <= names
    assert len([n for n in names if n.startswith("step_")]) == 2
    summary = json.loads((run_dir / "summary.json").read_text())
    assert set(summary) >= {
        "algo", "env", "seed", "env_steps", "updates", "epoch", "stop_reason", "eval_return_mean",
        "best_eval_return_mean", "wall_time_s", "resumed", "exact", "threads", "native", "versions",
    }  # fmt: skip
    assert (summary["algo"], summary["env"], summary["env_steps"]) == ("sac", "Pendulum-v1", 130)
    assert summary["updates"] == 160  # two for each of the 80 steps that were not random
    assert summary["versions"].keys() >= {"python", "torch", "gymnasium", "numpy", "hydra-core", "rlx"}
    assert yaml.safe_load((run_dir / "overrides.yaml").read_text()) == list(TINY)
    for line in (run_dir / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        assert list(row)[:5] == ["kind", "env_steps", "updates", "epoch", "wall_time"]
        assert row["kind"] in ("train", "eval")
        if row["kind"] == "eval":
            assert {"eval/return_mean", "eval/return_std", "eval/length_mean"} <= set(row)
        else:
            assert ("loss/critic" in row) == (row["updates"] > 0)
    evaluations = [r for r in rows(run_dir) if r["kind"] == "eval"]
    assert [r["env_steps"] for r in evaluations] == [70, 130]
    assert summary["eval_return_mean"] == evaluations[-1]["eval/return_mean"]
    assert summary["best_eval_return_mean"] == max(r["eval/return_mean"] for r in evaluations)


def test_evaluate_as_json(run_dir: Path, capsys: pytest.CaptureFixture) -> None:
    answers = []
    for arguments in (["--json"], ["--json"], ["seed=1", "--json"]):
        assert main(["evaluate", str(run_dir), "episodes=3", *arguments]) == 0
        out = capsys.readouterr().out
        answers.append(json.loads(out))
    assert answers[0] == answers[1]
    assert answers[0]["returns"] != answers[2]["returns"]
    found = answers[0]
    assert len(found["returns"]) == found["episodes"] == 3
    assert math.isclose(found["eval/return_mean"], sum(found["returns"]) / 3)
    assert found["checkpoint"] == str((run_dir / "checkpoints" / "best").resolve())
    assert found["eval/length_mean"] == 30


def test_evaluate_in_words(run_dir: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["evaluate", str(run_dir / "checkpoints" / "last"), "episodes=2"]) == 0
    assert "sac on Pendulum-v1: return" in capsys.readouterr().out


def test_predict(run_dir: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["predict", str(run_dir), "--obs", "[1.0, 0.0, 0.5]"]) == 0
    action = json.loads(capsys.readouterr().out)
    assert len(action) == 1
    assert -2.0 <= action[0] <= 2.0
    assert action == rlx.load(run_dir).act([1.0, 0.0, 0.5]).tolist()
    assert main(["predict", str(run_dir), "--obs", "[[1.0, 0.0, 0.5], [0, 1, 0]]"]) == 0
    assert json.loads(capsys.readouterr().out)[0] == pytest.approx(action)


def test_predict_reads_a_file_or_standard_input(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "[1.0, 0.0, 0.5]"
    (tmp_path / "obs.json").write_text(text)
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    for given in (text, f"@{tmp_path / 'obs.json'}", "-"):
        assert main(["predict", str(run_dir), "--obs", given]) == 0
    assert len(set(capsys.readouterr().out.splitlines())) == 1
    assert main(["predict", str(run_dir), "--obs", f"@{tmp_path / 'none.json'}"]) == 2
    assert "none.json cannot be read (No such file" in capsys.readouterr().err


@pytest.mark.parametrize("pixel", [0.5, 256.0, -1.0, float("nan")])
def test_pixels_are_not_rounded(pixel: float) -> None:
    """A picture that was scaled to [0, 1] would be black."""
    box = Box((2, 2, 1), "uint8")
    with pytest.raises(UserError, match="whole numbers from 0 to 255; multiply those from 0 to 1 by 255"):
        as_box([[[pixel], [0]], [[1], [255]]], box)
    assert as_box([[[7.0], [0]], [[1], [255]]], box).flatten().tolist() == [7, 0, 1, 255]


@pytest.mark.parametrize(
    ("values", "dtype", "message"),
    [
        ([300, 1], "uint8", r"Pixels must be whole numbers from 0 to 255\.$"),
        ([-1, 1], "uint8", r"Pixels must be whole numbers from 0 to 255\.$"),
        ([None, 1], "float32", r"must be numbers in lists, of shape \(2,\)\.$"),
        (["1", "2"], "float32", "must be numbers in lists"),
        ({"pixels": [1, 2]}, "uint8", "must be numbers in lists"),
        ([[1, 2], [3]], "float32", r"must be numbers in lists of equal lengths, of shape \(2,\)\.$"),
    ],
)
def test_what_is_no_observation_is_told_in_plain_words(values: Any, dtype: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        as_box(values, Box((2,), dtype))


@pytest.mark.parametrize(
    ("pixels", "state", "message"),
    [
        ((16, 16, 3), (3,), r"^The part 'state' of the observation has shape \(3,\); .* expects \(4,\), or a batch"),
        ((3, 16, 16), (4,), r"^The part 'pixels' of the observation has shape \(3, 16, 16\); .* expects \(16, 16, 3\)"),
        ((2, 16, 16, 3), (4,), r"have the shapes 'pixels' \(2, 16, 16, 3\), 'state' \(4,\); give equally many of each"),
        ((16, 16, 3), (1, 4), "give equally many of each"),
        ((2, 16, 16, 3), (1, 4), "give equally many of each"),
    ],
)
def test_parts_that_do_not_fit_are_told(pixels: tuple[int, ...], state: tuple[int, ...], message: str) -> None:
    boxes = (("pixels", Box((16, 16, 3), "uint8")), ("state", Box((4,), "float32")))
    spec = Spec("x", (), "float32", "discrete", (), action_sizes=(4,), boxes=boxes)
    policy = rlx.Policy(DQN(DQNConfig(hidden=[4]), spec))
    with pytest.raises(UserError, match=message):
        policy.act({"pixels": np.zeros(pixels, int), "state": np.zeros(state)})
    for many in ((), (1,), (3,)):
        action = policy.act({"pixels": np.zeros((*many, 16, 16, 3), int), "state": np.zeros((*many, 4))})
        assert np.shape(action) == many


def test_list_shows_every_choice(capsys: pytest.CaptureFixture) -> None:
    assert main(["list"]) == 0
    out = capsys.readouterr().out
    for word in ("algo=sac", "env=pendulum", "dataset=minari", "reward=identity", "schedule=cosine", "logger=wandb"):
        assert word in out
    assert "callbacks=[default,early_stopping]" in out
    assert main(["list", "algo"]) == 0
    out = capsys.readouterr().out
    assert "algo=ppo" in out
    assert "env=pendulum" not in out


def test_every_choice_is_described() -> None:
    from rlx.choices import describe, groups

    silent = [f"{group}={name}" for group in groups() for name, text in describe(group) if len(text) < 10]
    assert not silent


def test_resume_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    folder = tmp_path / "run"
    with signalled("update", 5, signal.SIGTERM):
        assert main([*TINY, f"run_dir={folder}"]) == 143
    assert "terminated" in capsys.readouterr().out
    assert main(["resume", str(folder), "trainer.max_env_steps=140"]) == 0
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["env_steps"], summary["resumed"], summary["stop_reason"]) == (140, True, "max_env_steps")


# -- Hydra's own flags -----------------------------------------------------------------------------------------------


def test_the_composed_config_can_be_shown(tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["--cfg", "job", "algo=sac", "seed=7"]) == 0
    shown = yaml.safe_load(capsys.readouterr().out)
    assert shown["seed"] == 7
    assert shown["algo"]["name"] == "sac"
    assert not list(tmp_path.iterdir()), "looking creates nothing"


def test_a_sweep_makes_one_folder_per_job(tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["-m", *TINY, "seed=1,2"]) == 0
    (sweep,) = (tmp_path / "multirun_outputs" / "sweeps").iterdir()
    jobs = sorted(p for p in sweep.iterdir() if p.is_dir())
    assert [p.name for p in jobs] == ["000_seed=1", "001_seed=2"]
    seeds = [json.loads((job / "summary.json").read_text())["seed"] for job in jobs]
    assert seeds == [1, 2]
    assert "seed=2" in (jobs[1] / "overrides.yaml").read_text()
    assert {p.name for p in tmp_path.iterdir()} == {"multirun_outputs"}
    assert capsys.readouterr().out.count("started") == 2
    assert all("run folder" in (job / "log.txt").read_text() for job in jobs)


def test_a_sweep_is_checked_before_its_first_job(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["-m", *TINY, "algo.discount=0.9,1.5"]) == 2
    assert "discount=1.5" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_sweep_is_checked_against_its_envs(tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["-m", *TINY, "env=pendulum,cartpole"]) == 2
    out, err = capsys.readouterr()
    assert len(err.splitlines()) == 1
    assert "The job env=cartpole" in err
    assert "CartPole-v1" in err
    assert "Traceback" not in out + err
    assert not list(tmp_path.iterdir())


def test_an_interrupt_ends_the_whole_sweep(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    with signalled("update", 5, signal.SIGINT):
        assert main(["-m", *TINY, "seed=1,2", "hydra/launcher=basic"]) == 130
    (summary,) = tmp_path.rglob("summary.json")
    assert json.loads(summary.read_text())["stop_reason"] == "interrupted"


def test_a_hydra_flag_does_not_move_the_run_folder(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    assert main(["--config-dir", str(tmp_path / "mine"), *TINY, f"run_dir={tmp_path / 'run'}"]) == 0
    assert (tmp_path / "run" / "summary.json").exists()
    assert {p.name for p in tmp_path.iterdir()} == {"mine", "run"}


def test_runs_without_a_folder_land_below_multirun_outputs(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    for env in ("pendulum", "point_goal"):
        assert main([*TINY, f"env={env}", "trainer.max_env_steps=60"]) == 0
    names = sorted(p.name for p in (tmp_path / "multirun_outputs" / "runs").iterdir())
    assert len(names) == 2, "an id with a slash in it is no subfolder"
    assert names[0].startswith("sac__Pendulum-v1__seed0__")
    assert {p.name for p in tmp_path.iterdir()} == {"multirun_outputs"}


# -- secrets and strangers -------------------------------------------------------------------------------------------


def test_secrets_are_never_written(tmp_path: Path, monkeypatch: Any) -> None:
    folder = tmp_path / "run"
    monkeypatch.setenv("MY_GRAVITY", "9.8125")
    secret = "+env.kwargs.g='${oc.decode:${oc.env:MY_GRAVITY}}'"
    assert main([*tiny("off_policy", "logger=default"), secret, f"run_dir={folder}"]) == 0
    assert "${oc.decode:${oc.env:MY_GRAVITY}}" in (folder / "config.yaml").read_text()
    files = [p for p in folder.rglob("*") if p.is_file()]
    assert len(files) > 10
    assert not [p for p in files if b"9.8125" in p.read_bytes()]
    for use in (rlx.evaluate, rlx.resume):  # a file may not read the environment by itself
        with pytest.raises(rlx.UserError, match=r"env\.kwargs\.g=.*trust=\[oc\.decode,oc\.env\]"):
            use(folder)
    trust = ("oc.env", "oc.decode")
    assert rlx.evaluate(folder, episodes=1, trust=trust)["episodes"] == 1
    assert rlx.resume(folder, "trainer.max_env_steps=140", trust=trust).summary["env_steps"] == 140
    assert not [p for p in folder.rglob("*") if p.is_file() and b"9.8125" in p.read_bytes()]


def rewrite(folder: Path, change: Any) -> None:
    """Change a saved config as an attacker would, manifest and all."""
    for path in [folder / "config.yaml", *folder.rglob("checkpoints/*/config.yaml")]:
        values = yaml.safe_load(path.read_text())
        change(values)
        write_atomically(path, yaml.safe_dump(values).encode())
        manifest = path.parent / "manifest.json"
        if manifest.exists():
            content = json.loads(manifest.read_text())
            data = path.read_bytes()
            content["files"]["config.yaml"] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}
            write_atomically(manifest, seal(content))


def put(key: str, value: Any) -> Any:
    def change(values: dict) -> None:
        *path, last = key.split(".")
        node = values
        for part in path:
            node = node[part]
        node[last] = value
        values["trust"] = ["evil", "os", "subprocess", "builtins"]  # whom the file trusts does not count

    return change


STRANGERS = {
    "algo": put("algo._target_", "evil.Learner"),
    "builtin": put("algo._target_", "builtins.exec"),
    "callback": put("callbacks.own", {"_target_": "evil.Callback"}),
    "rlx_but_no_component": put("callbacks.own", {"_target_": "rlx.cli.main"}),
    "rlx_import_of_others": put("callbacks.own", {"_target_": "rlx.files.os.system", "command": "touch pwned"}),
    "reward": put("reward", {"_target_": "os.system", "command": "touch pwned"}),
    "list_as_target": put("reward", {"_target_": ["os.system"]}),
    "nested": put("trainer.phases.online.own", {"_target_": "evil.Phase"}),
    "in_kwargs": put("env.kwargs.own", {"_target_": "evil.Thing"}),
    "env_module": put("env.id", "evil:Env-v0"),
}


@pytest.mark.parametrize("kind", STRANGERS)
def test_a_checkpoint_cannot_bring_code(
    kind: str, run_dir: Path, tmp_path: Path, monkeypatch: Any, capsys: pytest.CaptureFixture
) -> None:
    (tmp_path / "evil.py").write_text("import pathlib\npathlib.Path('pwned').touch()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "run"
    shutil.copytree(run_dir, folder, symlinks=True)
    rewrite(folder, STRANGERS[kind])
    for arguments in (["resume", str(folder), "trainer.max_env_steps=140"], ["evaluate", str(folder), "episodes=1"]):
        assert main(arguments) == 2
        assert "trust=[" in capsys.readouterr().err
    if kind != "env_module":  # acting takes no env
        assert main(["predict", str(folder), "--obs", "[1, 0, 0]"]) == 2
    assert not (tmp_path / "pwned").exists()


def test_a_module_can_be_trusted_by_the_user(run_dir: Path, tmp_path: Path, monkeypatch: Any) -> None:
    text = "import gymnasium\ngymnasium.register('Mine-v0', ENTRY, max_episode_steps=30)\n"
    (tmp_path / "mine_envs.py").write_text(text.replace("ENTRY", "'gymnasium.envs.classic_control:PendulumEnv'"))
    monkeypatch.syspath_prepend(str(tmp_path))
    folder = tmp_path / "run"
    shutil.copytree(run_dir, folder, symlinks=True)
    rewrite(folder, put("env.id", "mine_envs:Mine-v0"))
    assert main(["evaluate", str(folder), "episodes=1"]) == 2
    assert main(["evaluate", str(folder), "episodes=1", "trust=[mine_envs]"]) == 0


@pytest.mark.parametrize("text", ["", "- 1\n", "a: [1", "algo: 3\n", "just words"])
def test_a_broken_config_file_is_said(text: str, run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    folder = tmp_path / "run"
    shutil.copytree(run_dir, folder, symlinks=True)
    (folder / "config.yaml").write_text(text)
    assert main(["resume", str(folder)]) == 2
    err = capsys.readouterr().err
    assert len(err.splitlines()) == 1
    assert "config" in err.lower()
