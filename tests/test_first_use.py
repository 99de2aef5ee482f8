"""A first-time user: own configs, own objects, wrong guesses, and no input that ends in a traceback."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import re
import runpy
import shlex
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
import yaml
from helpers import same_run, snapshots, tiny
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

import rlx
from rlx.cli import main
from rlx.config import compose_config
from rlx.config.errors import OTHER_NAMES
from rlx.config.overrides import from_values, literal, parse_override
from rlx.data.sources import as_dataset
from rlx.errors import UserError
from rlx.reporting import closing_lines, counted, in_digits, muted, showing
from rlx.system import choose_threads, usable_cpus
from rlx.workflows import Result

ROOT = Path(__file__).parent.parent
TINY = tiny("off_policy")


@pytest.fixture(autouse=True)
def _logging() -> Iterator[None]:
    log = logging.getLogger("rlx")
    before = log.handlers[:], log.level, log.propagate
    yield
    log.handlers, log.level, log.propagate = before


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A config folder of one's own, in the working folder."""
    monkeypatch.chdir(tmp_path)
    files = {
        "env/mine.yaml": "# My env.\ndefaults:\n  - /schema/env/env@_here_\n  - _self_\nid: MountainCarContinuous-v0\n",
        "experiment/mine.yaml": "# @package _global_\n# Mine.\ndefaults:\n  - override /env: mine\nseed: 7\n",
    }
    for name, text in files.items():
        path = tmp_path / "my conf" / name
        path.parent.mkdir(parents=True)
        path.write_text(text)
    return tmp_path / "my conf"


# -- a config folder of one's own ------------------------------------------------------------------------------------


@pytest.mark.parametrize("sweep", [False, True])
@pytest.mark.parametrize("way", ["--config-dir", "-cd", "hydra.searchpath"])
def test_choices_of_ones_own(way: str, sweep: bool, own: Path) -> None:
    flag = [f"{way}=['file://my conf']"] if way.startswith("hydra") else [way, "my conf"]
    small = [o for o in tiny("off_policy", "trainer.max_env_steps=60") if not o.startswith("env=")]
    more = ["-m", "seed=7,8"] if sweep else ["run_dir=run"]
    assert main([*more, *flag, *small, "experiment=mine"]) == 0
    summaries = [json.loads(p.read_text()) for p in sorted(own.parent.rglob("summary.json"))]
    assert [(s["env"], s["seed"]) for s in summaries] == [("MountainCarContinuous-v0", 7 + i) for i in range(1 + sweep)]


def test_from_python_too(own: Path) -> None:
    small = [o for o in tiny("off_policy", "trainer.max_env_steps=60") if not o.startswith("env=")]
    result = rlx.train(*small, env="mine", config_dir="my conf", run_dir="run", quiet=True)
    assert result.summary["env"] == "MountainCarContinuous-v0"


def test_list_shows_them(own: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["list", "env", "--config-dir", "my conf"]) == 0
    out = capsys.readouterr().out
    assert "env=mine" in out
    assert "My env." in out
    assert "env=pendulum" in out


def test_they_are_among_the_choices_that_are_named(own: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["--config-dir", "my conf", "env=mien"]) == 2
    assert "Did you mean env=mine?" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [["--config-dir", "nope"], ["hydra.searchpath=[file://nope]"], ["list", "-cd", "nope"]]
)
def test_a_folder_that_is_not_there(arguments: list[str], own: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(arguments) == 2
    assert "nope is not a folder" in capsys.readouterr().err


# -- Hydra's flags, and ours -----------------------------------------------------------------------------------------

SHOWN = {
    "--version": r"^rlx \S+ \(torch .*gymnasium .*Python",
    "--help": "--config-dir FOLDER",
    "-h": "python -m rlx list",
    "help evaluate": "--json",
    "evaluate --help": "trust=\\[MODULE",
    "list -h": "--config-dir",
    "train --help": "example:",
    "--hydra-help": "Hydra",
    "--info searchpath": "main",
    "--info defaults": "algo",
    "--cfg job --package trainer.phases --resolve": "random_steps: 500",
    "-c job -p env": "id: Pendulum-v1",
    "--cfg hydra --package hydra.run": "dir: .",
    "--cfg job algo=td3_bc": "td3_bc",
    "-sc install=bash": "hydra_bash_completion",
}


@pytest.mark.parametrize("line", SHOWN)
def test_flags_that_show_something(
    line: str, tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("rlx.workflows.run", lambda *a, **k: pytest.fail("nothing is to be run"))
    assert main(line.split(" ")) == 0
    assert re.search(SHOWN[line], capsys.readouterr().out)
    assert not list(tmp_path.iterdir())


REFUSED = {
    "--config-name foo": "experiment=NAME",
    "--config-path foo": "experiment=NAME",
    "--experimental-rerun x.pickle": "resume RUN",
    "--package trainer": "--cfg job --package",
    "--cfg job --package trainr": "did you mean trainer?",
    "--cfg nonsense": "job",
    "--nonsense": "--nonsense",
    "-sc nonsense=bash": "install",
    "hydra.run.dir=foo": "run_dir=foo",
    "hydra.verbose=true": "-m",
    "resume x --flag": "--flag",
    "evaluate x episodes=2.5": "episodes must be an integer",
    "evaluate x nonsense=1": "nonsense",
    "collect x id=a-v0 noise=loud": "noise must be a number",
    "help nonsense": "nonsense",
    "trian": "python -m rlx train",
    "algo sac": "write algo=NAME (`python -m rlx list algo`)",
    "--seed 3": "values are set without dashes, as seed=VALUE",
    "algo=sac --seed 3": "values are set without dashes, as seed=3; `python -m rlx --help`",
    "algo=sac --total-timesteps=10": "values are set without dashes, as total_timesteps=10;",
    "-m seed=0,1 --dryrun": "did you mean --dry-run? `python -m rlx --help`",
    "Evaluate x": "python -m rlx evaluate",
    "algo=SAC": "Unknown algo 'SAC'. Did you mean algo=sac? Choices: ",
    "algo=[1,2]": "algo=NAME",
    "algo={a: 1}": "algo=NAME",
    "env=pendulum-v1": "env=pendulum?",
    "env=Pendulum-v1": "env.id=Pendulum-v1",
    "env.id=pendulum": "env.id=Pendulum-v1",
    "env=pong": "Did you mean env=atari/pong?",
    "env=Breakout": "Did you mean env=minatar/breakout or env=atari/breakout?",
    "env=ALE/Pong-v5": "Did you mean env=atari env.game=Pong?",
    "env=Pong-v5": "Did you mean env=atari env.game=Pong? Choices",
    "env.id=ALE/Pong-v5": "did you mean env=atari env.game=Pong?",
    "env.id=Pong-v5": "did you mean env=atari env.game=Pong?",
    "env.id=PongNoFrameskip-v4": "did you mean env=atari env.game=Pong?",
    "env.id=MinAtar/SpaceInvaders-v1": "did you mean env=minatar env.game=space_invaders?",
    "env.id=my_qwxz:Foo-v0": "start from the folder where my_qwxz is, or install it.",
    "env.id=Qwxzqwxzqq-v0": "`python -m rlx list env` shows the presets.",
    "env=SpaceInvadersNoFrameskip-v4": "Did you mean env=atari env.game=SpaceInvaders?",
    "env=qwxzqwxz": "named behind its preset, as in env=atari/pong",
    "algo=dqn env=cartpole env.game=Pong": "env.game is not a key of EnvConfig; it goes with env=atari or env=minatar.",
    "env.task=walker_walk": "env.task is not a key of EnvConfig; it goes with env=dmc.",
    "algo=dqn env=pixel_goal augment.pad=2": "augment.pad is not a key of NoneConfig; it goes with augment=shift.",
    "algo=dqn encoder.layer_norm=true": "it goes with encoder=impala.",
    "algo=bcq env=pixel_goal dataset=random": "env, or one of algo=bc, algo=c51, algo=discrete_bcq, algo=discrete_cql, "
    "algo=discrete_iql, algo=discrete_sac, algo=dqn, algo=qr_dqn.",
    "dataset=foo.npz": "dataset=npz dataset.path=foo.npz",
    "dataset=data/foo.h5": "dataset=hdf5 dataset.path=data/foo.h5",
    "dataset=D4RL/door/human-v2": "dataset=minari dataset.id=D4RL/door/human-v2",
    "dataset=in_memory algo=bc": "from Python",
    "seed=abc": "expected an integer",
    "seed=1.5": "expected an integer",
    "seed=1,2": "add -m",
    "algo.hidden=wide": "expected a list",
    "algo.hidden=64,64": "[64,64]",
    "threads=many": "threads must be an integer from 1 to 1024, or auto",
    "algo.learning_rate=1": "did you mean algo.actor_lr or algo.critic_lr?",
    "algo=ppo lr=1": "did you mean algo.lr?",
    "steps=1": "did you mean trainer.max_env_steps?",
    "total_timesteps=1": "did you mean trainer.max_env_steps?",
    "trainer.total_timesteps=1": "did you mean trainer.max_env_steps?",
    "algo.gamma=1": "did you mean algo.discount?",
    "algo=ppo algo.ent_coef=1": "did you mean algo.entropy_coef?",
    "n_envs=2": "did you mean env.num_envs?",
    "algo.seed=2": "did you mean seed?",
    "trainer.max_updates=-1": "trainer.max_updates must be at least 0",
    "trainer.offline_batch_ratio=2": "must be between 0 and 1",
    "trainer.max_seconds=inf": "trainer.max_seconds must be finite",
    f"~{'x' * 300}": "too long",
    f"{'x' * 300}=1": "too long",
    "algo._target_=mine.X": "add trust=[mine] to allow code from it",
}


@pytest.mark.parametrize("line", REFUSED)
def test_what_is_refused_says_what_to_type(
    line: str, tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([line] if "{" in line else line.split(" ")) == 2
    out, err = capsys.readouterr()
    assert REFUSED[line] in err
    assert len(err.splitlines()) == 1
    assert "Traceback" not in out + err
    assert not list(tmp_path.iterdir())


def test_what_others_call_a_key_leads_to_keys_that_exist() -> None:
    keys = set()
    for algo in ("sac", "ppo", "td3", "dqn", "redq"):
        cfg = compose_config([f"algo={algo}", "dataset=npz"])
        keys |= {str(k) for k in cfg} | {f"{g}.{k}" for g in cfg if OmegaConf.is_dict(cfg[g]) for k in cfg[g]}
    assert {key for names in OTHER_NAMES.values() for key in names} <= keys


@pytest.mark.parametrize(
    ("override", "key", "value"),
    [
        ("trainer.max_env_steps=1e5", "trainer.max_env_steps", 100_000),
        ("replay.capacity=2.5e4", "replay.capacity", 25_000),
        ("seed=3.0", "seed", 3),
        ("trainer.phases.online.random_steps=1e2", "trainer.phases.online.random_steps", 100),
        ("algo.hidden=256", "algo.hidden", [256]),
        ("seed=9007199254740993", "seed", 9007199254740993),
        ("+env.kwargs.g=1e1", "env.kwargs.g", 10.0),
        ("algo.discount=1", "algo.discount", 1.0),
    ],
)
def test_numbers_as_their_fields_want_them(override: str, key: str, value: Any) -> None:
    found = OmegaConf.select(compose_config([override]), key)
    assert found == value
    assert type(found) is type(value) or OmegaConf.is_list(found)


def test_numbers_of_a_sweep_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    seen: list[Any] = []

    def run(cfg: Any, overrides: list[str], run_dir: Any = None) -> Result:
        seen.append((cfg.trainer.max_env_steps, list(cfg.algo.hidden)))
        return finished()

    monkeypatch.setattr("rlx.workflows.run", run)
    assert main(["-m", "trainer.max_env_steps=1e2,2e2", "algo.hidden=8,16", "hydra/launcher=basic"]) == 0
    assert seen == [(100, [8]), (100, [16]), (200, [8]), (200, [16])]


# -- the closing lines -----------------------------------------------------------------------------------------------


def finished(**changes: Any) -> Result:
    summary = {
        "algo": "sac", "env": "Pendulum-v1", "seed": 0, "env_steps": 1, "updates": 2000, "wall_time_s": 3.0,
        "stop_reason": "max_env_steps", "exact": True, "eval_return_mean": -1.0, "best_eval_return_mean": -0.5,
    }  # fmt: skip
    learner: Any = None
    return Result({**summary, **changes}, Path("some run"), learner)


@pytest.mark.parametrize("columns", ["40", "80"])
def test_commands_can_be_copied(columns: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole lines, quoted, from where one is, with the trust that they need."""
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "a rather long name of a folder" / ("x" * 60)
    lines = closing_lines(finished().summary, folder, ("my_envs", "mine")).splitlines()
    quoted = shlex.quote(str(folder.relative_to(tmp_path)))
    assert f"python -m rlx evaluate {quoted} 'trust=[my_envs,mine]'" in lines
    assert f"python -m rlx resume {quoted} 'trust=[my_envs,mine]'" in lines
    assert f"tensorboard --logdir {quoted}" in lines


def test_small_returns_are_shown_with_two_digits() -> None:
    values = (-151.23, 10.0, 0.834, -0.656, -0.001, 0.0)
    assert [in_digits(value) for value in values] == ["-151.2", "10.0", "0.83", "-0.66", "0.00", "0.00"]


def test_a_library_is_muted_for_a_while_and_its_errors_are_not(caplog: pytest.LogCaptureFixture) -> None:
    library = logging.getLogger("a_library")
    library.setLevel(logging.INFO)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        with contextlib.suppress(KeyError), muted("a_library"):
            library.warning("unheard")
            library.error("heard")
            warnings.warn("unseen", stacklevel=1)
            raise KeyError
        warnings.warn("seen", stacklevel=1)
        library.info("heard again")
    assert [record.message for record in caplog.records] == ["heard", "heard again"]
    assert [str(warning.message) for warning in seen] == ["seen"]


def test_counts_have_a_singular() -> None:
    assert [counted(n, "thread") for n in (0, 1, 2, 12000)] == ["0 threads", "1 thread", "2 threads", "12,000 threads"]
    text = closing_lines(finished().summary, Path("run"))
    assert "1 env step, 2,000 updates" in text
    assert "-1.00 (best -0.50)" in text
    none = {"eval_return_mean": None, "best_eval_return_mean": None}
    assert "not evaluated (env=none)" in closing_lines(finished(env="none", **none).summary, Path("run"))
    assert "(env=none)" not in closing_lines(finished(**none).summary, Path("run"))


# -- threads ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "saved", "ratio", "expected"),
    [(None, None, 9.0, 1), (3, None, 1.0, 3), (3, 2, 1.0, 3), (None, 2, 1.0, 2), ("auto", 1, 9.0, 1),
     ("auto", None, 2.0, 4), ("auto", None, 1.1, 1), ("auto", None, 0.1, 1)],
)  # fmt: skip
def test_threads(wanted: Any, saved: Any, ratio: float, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlx.system.usable_cpus", lambda: 8)
    assert choose_threads(wanted, saved, lambda n: 1.0 if n == 1 else 1.0 / ratio)[0] == expected


@pytest.mark.parametrize(("quota", "cpus"), [("200000 100000", 2), ("50000 100000", 1), ("max 100000", 16)])
def test_cpus_of_a_container(quota: str, cpus: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)), raising=False)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/box\n")
    (tmp_path / "sys/fs/cgroup/box").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/box/cpu.max").write_text(f"{quota}\n")
    assert usable_cpus(tmp_path) == cpus


# -- Python ----------------------------------------------------------------------------------------------------------


class Walk(gym.Env):
    """A point that is pushed about; ends after 20 steps."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)
    closed = 0

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.x, self.t = self.np_random.uniform(-1, 1, 2).astype(np.float32), 0
        return self.x.copy(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.t += 1
        self.x = np.clip(self.x + 0.1 * float(action[0]), -1, 1).astype(np.float32)
        return self.x.copy(), -abs(float(self.x[0])), False, self.t >= 20, {}

    def close(self) -> None:
        self.closed += 1


class Other(Walk):
    """Another one."""


def arrays(n: int = 200) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {
        "observations": rng.uniform(-1, 1, (n, 2)).astype(np.float32),
        "actions": rng.uniform(-1, 1, (n, 1)).astype(np.float32),
        "rewards": torch.from_numpy(rng.normal(size=n)),
        "terminals": [False] * n,
        "timeouts": np.arange(n) % 20 == 19,
    }


ONLINE = [o for o in TINY if not o.startswith("env=")]
OFFLINE = [o for o in tiny("offline", "algo=iql") if not o.startswith(("env=", "dataset", "~algo_env"))]


def test_a_run_of_a_factory_resumes_exactly(tmp_path: Path) -> None:
    with snapshots(("checkpoint", 2), into=tmp_path / "killed") as taken:
        result = rlx.train(*ONLINE, env=lambda: Walk(), run_dir=tmp_path / "whole", quiet=True)
    assert yaml.safe_load((tmp_path / "whole/config.yaml").read_text())["env"]["id"] == "python:Walk"
    torch.manual_seed(99)
    (folder,) = taken.values()
    resumed = rlx.resume(folder, env=Walk, quiet=True)
    assert resumed.summary["exact"]
    same_run(folder, result.run_dir)
    assert result.objects == ("env",)


def test_several_envs_of_a_factory_in_processes_of_their_own(tmp_path: Path) -> None:
    more = ("env.num_envs=2", "env.vectorization=async", "trainer.max_env_steps=60")
    assert rlx.train(*ONLINE, *more, env=lambda: Walk(), run_dir=tmp_path / "r", quiet=True).summary["env_steps"] == 60


def test_a_run_of_arrays(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    env = Walk()
    result = rlx.train(*OFFLINE, env=env, dataset=arrays(), run_dir=tmp_path / "run")
    assert env.closed == 0, "it belongs to the caller"
    saved = yaml.safe_load((tmp_path / "run/config.yaml").read_text())
    assert (saved["dataset"]["_target_"], saved["dataset"]["rows"]) == ("rlx.data.sources.load_in_memory", 190)
    assert rlx.evaluate(result.run_dir, 2, env=env)["returns"] == rlx.evaluate(result.run_dir, 2, env=Walk)["returns"]
    assert rlx.evaluate(result.run_dir, 1, env=Walk)["env"] == "python:Walk"
    further = rlx.resume(result.run_dir, "trainer.max_updates=7e1", env=Walk, dataset=as_dataset(arrays()))
    assert further.summary["updates"] == 70
    other = {**arrays(), "rewards": np.zeros(200)}
    with pytest.raises(UserError, match="changed"):
        rlx.resume(result.run_dir, "trainer.max_updates=80", env=Walk, dataset=other)
    for verb in ("resume", "evaluate"):
        assert main([verb, str(result.run_dir)]) == 2
        err = capsys.readouterr().err
        assert "from Python" in err
        assert "env=..." in err


def test_arrays_without_an_env(tmp_path: Path) -> None:
    small = [*(o for o in OFFLINE if not o.startswith("env.")), "callbacks.fitted_q.updates=5"]
    result = rlx.train(*small, "env=none", dataset=arrays(), run_dir=tmp_path / "run", quiet=True)
    assert result.learner.spec.obs_shape == (2,)
    assert rlx.evaluate(result.run_dir, 1, env=Walk)["episodes"] == 1


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"env": Walk()}, "give a function that makes them"),
        ({"env": 3}, "env is a int"),
        ({"env": lambda: 3}, "has to make a gymnasium.Env"),
        ({"dataset": 3, "env": "pendulum"}, "dataset is a int"),
        ({"dataset": {"obs": np.zeros((3, 2))}, "env": "pendulum"}, "arrays from Python"),
        ({"env": Walk, "env.kwargs": {"a": 1}}, "env.kwargs"),
        ({"env": "pendulum", "run_dir": object}, "cannot hold"),
        ({"env": "pendulum", "seed": object()}, "seed is a object, which a config cannot hold"),
    ],
)
def test_objects_that_are_refused(given: dict[str, Any], words: str, tmp_path: Path) -> None:
    if "run_dir" not in given:
        given = {**given, "run_dir": tmp_path / "run"}
    else:
        given = {"env": "pendulum", "device": given["run_dir"]}
    with pytest.raises(UserError, match=words):
        rlx.train(*ONLINE, **given)
    assert not (tmp_path / "run").exists()


def test_objects_that_do_not_fit_a_run(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="env is given twice"):
        rlx.train(*TINY, env=Walk)
    result = rlx.train(*ONLINE, env=Walk, run_dir=tmp_path / "run", quiet=True)
    with pytest.raises(UserError, match="python:Other was given"):
        rlx.resume(result.run_dir, env=Other)
    with pytest.raises(UserError, match="not begun with a dataset"):
        rlx.resume(result.run_dir, env=Walk, dataset=arrays())
    with pytest.raises(UserError, match="obs_shape"):
        rlx.evaluate(result.run_dir, env=lambda: gym.make("Pendulum-v1"))


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("ab c=:,{}[]()", min_size=1), inner, max_size=3)
    ),
    max_leaves=6,
)


@settings(max_examples=200, derandomize=True, deadline=None)
@given(VALUES)
def test_values_come_through_hydras_grammar(value: Any) -> None:
    override = parse_override(f"key={literal(value)}")
    assert override is not None
    assert override.value() == value


def test_values_of_other_types() -> None:
    values = {"seed": np.int64(3), "algo.compile": np.bool_(True), "run_dir": Path("a b"), "x": (1, 2.5), "y": None}
    made = from_values({**values, "trainer": {"max_env_steps": 5}, "env": "pendulum", "z": np.arange(2)}, ("trainer",))
    assert made == ["seed=3", "algo.compile=true", "run_dir='a b'", "x=[1,2.5]", "y=null", "trainer.max_env_steps=5",
                    "env=pendulum", "z=[0,1]"]  # fmt: skip


def test_a_python_session_shows_what_the_command_line_shows(tmp_path: Path) -> None:
    """And nothing with quiet=True; a program that has set up logging is left alone."""
    script = "import sys, rlx; rlx.train(*sys.argv[2:], quiet=sys.argv[1] == 'quiet')"
    more = [o for o in tiny("off_policy", "trainer.max_env_steps=60") if o != "~callbacks.progress"]
    for word in ("loud", "quiet"):
        command = [sys.executable, "-c", script, word, *more, f"run_dir={tmp_path / word}"]
        path = {"PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **path}, check=True)
        expected = ("Run folder", "online: starts", "evaluation return", "python -m rlx evaluate")
        assert [part in done.stdout for part in expected] == [word == "loud"] * 4
        assert not done.stderr
    log = logging.getLogger("rlx")
    mine = logging.NullHandler()
    log.handlers = [mine]
    with showing():
        assert log.handlers == [mine]


def test_what_there_is_can_be_found(tmp_path: Path) -> None:
    assert {"train", "resume", "evaluate", "load", "TransitionDataset", "__version__"} <= set(dir(rlx))
    assert [name for name in dir(rlx) if not name.startswith("__")] == sorted(rlx.__all__)
    for name in rlx.__all__:
        assert getattr(rlx, name).__doc__, name
        assert name in (rlx.__doc__ or "")
    result = rlx.train(*TINY, run_dir=tmp_path / "run", quiet=True)
    assert repr(result).startswith("Result(sac on Pendulum-v1, seed 0: evaluation return -")
    assert "130 env steps, 160 updates" in repr(result)
    assert repr(result.policy) == "Policy(sac on Pendulum-v1: observations (3,), box actions (1,))"
    assert repr(as_dataset(arrays())) == (
        "TransitionDataset(190 transitions, 10 episodes, obs (2,) float32, action (1,) float32, "
        "source='arrays from Python')"
    )


# -- the page about things of one's own ------------------------------------------------------------------------------


PAGE = (ROOT / "docs" / "your_own.md").read_text()


def test_the_worked_example_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name, text in re.findall(r"^`(\S+)`:\n\n```\w+\n(.*?)```", PAGE, re.DOTALL | re.MULTILINE):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text)
    short = ["trainer.max_env_steps=60", "trainer.learning_starts=40", "trainer.eval_episodes=2", "logger=jsonl"]
    lines = "".join(re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)).splitlines()
    assert len(lines) == 12
    for line in lines:
        words = shlex.split(re.sub("max_env_steps=4000", "max_env_steps=70", line.removeprefix("python -m rlx ")))
        trains = words[0].startswith("-") or "=" in words[0]
        assert main([*words, *(short if trains and "--cfg" not in words else [])]) == 0, line
    out = capsys.readouterr().out
    assert "python -m rlx evaluate runs/corridor 'trust=[my_envs]'" in out
    assert "python -m rlx evaluate runs/mine 'trust=[my_algo,my_envs]'" in out
    assert "A corridor of length 4." in out
    runpy.run_path("from_python.py")
    assert "Policy(td3_bc on python:Corridor" in capsys.readouterr().out
    for name in ("my_envs", "my_algo", "my_encoder"):
        sys.modules.pop(name, None)


# -- no input ends in a traceback ------------------------------------------------------------------------------------

KEYS = ["algo", "env", "dataset", "seed", "algo.hidden", "trainer.max_env_steps", "env.id", "callbacks", "run_dir",
        "trust", "env.kwargs", "algo_env", "experiment", "hydra.mode", "hydra.searchpath", "sweep",
        "hydra/launcher", "hydra.launcher.jobs", "algo._target_", "", "a.b.c", "algo@x",
        "schedule.targets", "trainer.phases", "threads", "device", "episodes", "id"]  # fmt: skip
WORDS = ["sac", "pendulum", "npz", "null", "true", "1", "-1", "1e5", "nan", "inf", "[1,2", "{a: 1}", "[]", "{}", "${",
         "${seed}", "${nope:1}", "'", '"', "a=b=c", "ü☃", "\x00", "\udcff", "x" * 5000, "(", "[" * 400, "9" * 5000,
         "\\", " ", "\n", "~", "a:b", "choice(1,2)", "../..", "/", "1,2", "glob(*)", "job", "MULTIRUN",
         "file:///nope"]  # fmt: skip
FLAGS = ["-m", "--multirun", "--cfg", "-c", "--info", "--resolve", "--package", "-p", "--config-dir", "-cd",
         "--config-name", "-cp", "--help", "-h", "--hydra-help", "--version", "-sc", "--json", "--obs", "--", "-",
         "---", "-1", "--run", "--experimental-rerun", "--cfg=job", "--dry-run"]  # fmt: skip
VERBS = [
    "train",
    "resume",
    "evaluate",
    "predict",
    "collect",
    "inspect-data",
    "list",
    "help",
    "trian",
    "",
    "RESUME",
    "./x",
]
OVERRIDES = st.builds(
    lambda sign, key, equals, value: f"{sign}{key}{equals}{value}",
    st.sampled_from(["", "", "", "+", "++", "~", "-"]), st.sampled_from(KEYS), st.sampled_from(["=", "=", "", "=="]),
    st.sampled_from(WORDS) | st.text(max_size=8),
)  # fmt: skip
LINES = st.builds(
    lambda verb, rest: [*([verb] if verb is not None else []), *rest],
    st.none() | st.sampled_from(VERBS),
    st.lists(OVERRIDES | st.sampled_from(FLAGS) | st.sampled_from(WORDS), max_size=4),
)


@pytest.fixture
def no_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rlx.config import check

    def run(cfg: Any, overrides: list[str], run_dir: Any = None) -> Result:
        check(cfg)
        return finished()

    monkeypatch.setattr("rlx.workflows.run", run)
    monkeypatch.setattr("rlx.sweeps.start.run", lambda *arguments: 0)
    monkeypatch.chdir(tmp_path)


@settings(
    max_examples=int(os.environ.get("RLX_LINES", "100")), derandomize="RLX_LINES" not in os.environ, deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip
@given(LINES)
def test_no_command_line_ends_in_a_traceback(no_training: None, line: list[str]) -> None:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(line)
    assert code in (0, 2), err.getvalue()
    assert "Traceback" not in out.getvalue() + err.getvalue()
    assert (code == 2) == bool(err.getvalue())
