"""Exact resume: however a run ends, what is resumed ends with the bits of the run that was never disturbed.

Most kills are simulated by copying the run folder at a chosen moment, which is what SIGKILL leaves on disk; one real
SIGKILL per regime, in processes of their own, checks that this is so. `benchmarks/kill_and_resume.py` does many.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.registration import register, registry
from helpers import REGIMES, final, resumed, rows, same_run, same_tensors, signalled, snapshots, tiny

import rlx
from rlx.checkpoint import read_folder, seal, write_folder
from rlx.cli import main
from rlx.data.replay import Replay
from rlx.data.sources import roll_out_random
from rlx.envs import EnvConfig, evaluation
from rlx.errors import UserError

ROOT = Path(__file__).parent.parent


@pytest.fixture(autouse=True)
def _log(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line takes the logger over; caplog needs it as it was."""
    monkeypatch.setattr(logging.getLogger("rlx"), "propagate", True)


def pair(tmp_path: Path, moment: tuple[str, int], *overrides: str) -> tuple[Path, Path]:
    """An undisturbed run, and its folder as it was at a moment."""
    with snapshots(moment, into=tmp_path) as taken:
        rlx.train(*overrides, run_dir=tmp_path / "whole")
    return taken[moment], tmp_path / "whole"


# -- kills at chosen moments -----------------------------------------------------------------------------------------

MOMENTS = [
    ("run_start", 1),  # a config and nothing else
    ("update", 3),  # before the first checkpoint
    ("log", 3),  # a row is on disk that no checkpoint knows of
    ("evaluated", 1),  # a best policy, too
    ("checkpoint", 2),  # between two callbacks
    ("checkpoint", 3),
    ("run_end", 1),  # everything is done but the summary
]


@pytest.fixture(scope="module", params=list(REGIMES))
def killed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, dict]:
    """Per regime: an undisturbed run, and its folder at every moment."""
    folder = tmp_path_factory.mktemp(request.param)
    with snapshots(*MOMENTS, into=folder) as taken:
        rlx.train(*tiny(request.param), run_dir=folder / "whole")
    return request.param, folder / "whole", taken


@pytest.mark.parametrize("moment", MOMENTS, ids=lambda m: f"{m[0]}_{m[1]}")
def test_killed_at_any_moment(killed: tuple[str, Path, dict], moment: tuple[str, int], tmp_path: Path) -> None:
    _, whole, taken = killed
    shutil.copytree(taken[moment], tmp_path / "run", symlinks=True)
    resumed(tmp_path / "run")
    same_run(tmp_path / "run", whole)


def test_killed_again_and_again(tmp_path: Path) -> None:
    """A resumed run is killed, too, and so is the next."""
    first, whole = pair(tmp_path, ("iteration", 90), *tiny("off_policy"))
    with snapshots(("iteration", 20), into=tmp_path / "second") as taken:
        resumed(first)
    with snapshots(("iteration", 20), into=tmp_path / "third") as again:
        resumed(taken["iteration", 20])
    resumed(again["iteration", 20])
    same_run(again["iteration", 20], whole)


def test_resuming_a_finished_run_changes_nothing(tmp_path: Path) -> None:
    rlx.train(*tiny("off_policy"), run_dir=tmp_path / "run")
    shutil.copytree(tmp_path / "run", tmp_path / "copy", symlinks=True)
    resumed(tmp_path / "copy")
    same_run(tmp_path / "copy", tmp_path / "run")


# -- everything that could be forgotten ------------------------------------------------------------------------------

SETTINGS = {
    "three_envs": ("off_policy", "env.num_envs=3"),
    "three_envs_on_policy": ("on_policy", "env.num_envs=3", "env.max_episode_steps=11"),
    "async": ("off_policy", "env.num_envs=2", "env.vectorization=async"),
    "async_on_policy": ("on_policy", "env.num_envs=2", "env.vectorization=async"),
    "running_norm": ("off_policy", "reward=running_norm", "env.num_envs=2"),
    "running_norm_on_policy": ("on_policy", "reward=running_norm"),
    "n_step": ("off_policy", "replay.n_step=3"),
    "ring_overwritten": ("off_policy", "replay.capacity=40", "replay.n_step=3", "env.num_envs=2"),
    "train_frequency": ("off_policy", "trainer.train_frequency=7"),
    "fractional_utd": ("off_policy", "trainer.gradient_updates_per_step=0.3"),
    "schedule": ("off_policy", "schedule=warmup_cosine"),
    "schedule_on_policy": ("on_policy", "schedule=linear"),
    "normalized_observations": ("on_policy", "algo.normalize_obs=true"),
    "normalized_dataset": ("offline", "algo.normalize_obs=true"),
    "normalized_return": ("offline", "reward=normalize_return"),
    "short_episodes": ("off_policy", "env.max_episode_steps=1"),
    "changing_mixture": (
        "offline_to_online",
        "+schedule.targets.offline_batch_ratio={kind: linear, start: 0.75, end: 0.25}",
    ),
    **{
        f"{algo}_fine_tuned_from_{env}": ("offline_to_online", f"algo={algo}", f"env={env}")
        for algo in ("discrete_cql", "discrete_bcq", "discrete_iql")
        for env in ("cartpole", "pixel_goal")
    },
    "epochs": ("off_policy", "trainer.max_epochs=3", "trainer.epoch_length=41"),
    "goal_env": ("off_policy", "env=point_goal"),
    "hindsight": ("off_policy", "algo=her", "env=point_goal", "env.num_envs=2"),
    "hindsight_overwritten": ("off_policy", "algo=td3", "env=point_goal", "replay=hindsight", "replay.capacity=70"),
    "memory": ("on_policy", "algo=ppo_lstm", "env=recall", "env.num_envs=3", "algo.lstm_hidden=[8]"),
    "native": ("on_policy", "env.num_envs=2", "env.vectorization=native"),
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_every_setting_resumes_exactly(setting: str, tmp_path: Path) -> None:
    regime, *overrides = SETTINGS[setting]
    middle, whole = pair(tmp_path, ("checkpoint", 2), *tiny(regime, *overrides))
    result = resumed(middle)
    assert result.summary["resumed"]
    assert result.summary["exact"]
    same_run(middle, whole)


def test_vectorization_does_not_change_the_numbers(tmp_path: Path) -> None:
    for kind in ("sync", "async"):
        rlx.train(*tiny("off_policy", "env.num_envs=2", f"env.vectorization={kind}"), run_dir=tmp_path / kind)
    same_run(tmp_path / "async", tmp_path / "sync")


def test_the_state_of_early_stopping_survives(tmp_path: Path) -> None:
    """One bad evaluation before the kill and two after it make three, where patience is three."""
    overrides = tiny(
        "offline", "callbacks=[default,early_stopping]", "callbacks.early_stopping.patience=3",
        "callbacks.early_stopping.min_delta=1e9", "trainer.eval_interval=10", "trainer.checkpoint_interval=20",
    )  # fmt: skip
    middle, whole = pair(tmp_path, ("checkpoint", 3), *overrides)
    assert json.loads((whole / "summary.json").read_text())["stop_reason"] == "early_stopping: no_improvement"
    resumed(middle)
    same_run(middle, whole)
    resumed(middle)  # a rule has ended it: another resume adds nothing
    same_run(middle, whole)


def early_stopped(folder: Path) -> Path:
    overrides = tiny(
        "off_policy", "callbacks=[default,early_stopping]", "callbacks.early_stopping.patience=1",
        "callbacks.early_stopping.min_delta=1e9", "trainer.eval_interval=10", "trainer.max_env_steps=60",
    )  # fmt: skip
    result = rlx.train(*overrides, run_dir=folder)
    assert result.summary["stop_reason"] == "early_stopping: no_improvement"
    assert result.summary["env_steps"] == 20
    return folder


@pytest.mark.parametrize("change", ["~callbacks.early_stopping", "callbacks.early_stopping.patience=100"])
def test_a_run_goes_on_without_the_rule_that_ended_it(change: str, tmp_path: Path) -> None:
    again = resumed(early_stopped(tmp_path / "run"), change)
    assert (again.summary["stop_reason"], again.summary["env_steps"]) == ("max_env_steps", 60)


def test_a_rule_that_ended_a_run_still_holds_under_a_larger_budget(tmp_path: Path) -> None:
    again = resumed(early_stopped(tmp_path / "run"), "trainer.max_env_steps=100")
    assert again.summary["env_steps"] == 20


def test_pretraining_can_be_cut_short(tmp_path: Path) -> None:
    with snapshots(("checkpoint", 1), into=tmp_path) as at:
        rlx.train(*tiny("offline_to_online", "trainer.checkpoint_interval=10"), run_dir=tmp_path / "whole")
    again = resumed(at["checkpoint", 1], "trainer.pretrain_updates=0")
    assert again.summary["env_steps"] == 90


def test_a_run_without_a_checkpoint_begins_again_whatever_its_files_are_called(tmp_path: Path) -> None:
    overrides = tiny("off_policy", "logger.jsonl.filename=m.jsonl")
    with snapshots(("log", 1), into=tmp_path) as at:
        rlx.train(*overrides, run_dir=tmp_path / "whole")
    killed = at["log", 1]
    assert (killed / "m.jsonl").stat().st_size
    assert not (killed / "checkpoints").exists()
    resumed(killed)
    for folder in (killed, tmp_path / "whole"):
        (folder / "m.jsonl").rename(folder / "metrics.jsonl")
    same_run(killed, tmp_path / "whole")


def test_the_last_row_has_the_schedule_that_was_used(tmp_path: Path) -> None:
    """Killed between the last checkpoint and the end of the run."""
    overrides = tiny("off_policy", "schedule=linear", "trainer.checkpoint_interval=65")
    with snapshots(("iteration", 130), into=tmp_path) as at:
        rlx.train(*overrides, run_dir=tmp_path / "whole")
    resumed(at["iteration", 130])
    same_run(at["iteration", 130], tmp_path / "whole")


# -- signals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "code", "reason"), [
    (signal.SIGTERM, 143, "terminated"), (signal.SIGINT, 130, "interrupted"),
])  # fmt: skip
def test_a_signal_saves_and_exits(
    number: int, code: int, reason: str, killed: tuple[str, Path, dict], tmp_path: Path
) -> None:
    regime, whole, _ = killed
    run = tmp_path / "run"
    before = signal.getsignal(number)
    with signalled("episode" if regime == "on_policy" else "update", 2, number):
        assert main([*tiny(regime), f"run_dir={run}"]) == code
    assert signal.getsignal(number) is before
    summary = json.loads((run / "summary.json").read_text())
    assert summary["stop_reason"] == reason
    assert (run / "checkpoints" / "last" / "manifest.json").is_file()
    assert main(["resume", str(run)]) == 0
    same_run(run, whole)


def test_a_signal_at_every_step_of_an_on_policy_run(tmp_path: Path) -> None:
    """Stopped within each rollout in turn, also within the last one, which the budget cuts short."""
    overrides = tiny("on_policy", "trainer.max_env_steps=70", "env.max_episode_steps=1", "trainer.log_interval=16")
    rlx.train(*overrides, run_dir=tmp_path / "whole")
    for step in (1, 31, 32, 33, 69, 70):
        with signalled("episode", step):
            rlx.train(*overrides, run_dir=tmp_path / str(step))
        resumed(tmp_path / str(step))
        same_run(tmp_path / str(step), tmp_path / "whole")


def test_a_signal_within_collected_steps(tmp_path: Path) -> None:
    """Off-policy with several steps per iteration: the pieces of an iteration add up."""
    overrides = tiny("off_policy", "trainer.train_frequency=8", "env.max_episode_steps=1")
    rlx.train(*overrides, run_dir=tmp_path / "whole")
    for step in (51, 84, 130):
        with signalled("episode", step):
            rlx.train(*overrides, run_dir=tmp_path / str(step))
        resumed(tmp_path / str(step))
        same_run(tmp_path / str(step), tmp_path / "whole")


@pytest.mark.parametrize("which", [0, -1], ids=["first", "last"])
def test_a_signal_within_an_evaluation(
    which: int, killed: tuple[str, Path, dict], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run ends within the evaluation's step, with a checkpoint, and once resumed makes that evaluation first."""
    regime, whole, _ = killed
    evaluations = [row for row in rows(whole) if row["kind"] == "eval"]
    assert len(evaluations) > 1
    at = range(1, len(evaluations) + 1)[which]
    begun, steps = 0, []
    walk = evaluation.walk_episodes

    def walk_and_signal(*args: Any) -> Iterator[Any]:
        nonlocal begun
        begun += 1
        for k, step in enumerate(walk(*args)):
            if begun == at:
                steps.append(k)
                if k == 3:
                    signal.raise_signal(signal.SIGTERM)
            yield step

    monkeypatch.setattr(evaluation, "walk_episodes", walk_and_signal)
    run = tmp_path / "run"
    assert main([*tiny(regime), f"run_dir={run}"]) == 143
    assert steps == [0, 1, 2, 3]
    assert json.loads((run / "summary.json").read_text())["stop_reason"] == "terminated"
    assert main(["resume", str(run)]) == 0
    same_run(run, whole)


# -- damage ----------------------------------------------------------------------------------------------------------


def newest(run: Path) -> Path:
    return max((run / "checkpoints").glob("step_*"))


def flip(path: Path, at: int = -5) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(bytes(data))


def replace(path: Path, make: Callable[[Path], Any]) -> None:
    path.unlink()
    make(path)


def change(path: Path, old: bytes, new: bytes) -> None:
    data = path.read_bytes()
    assert old in data
    path.write_bytes(data.replace(old, new))


DAMAGE = {
    "flipped_learner": lambda run: flip(newest(run) / "learner.safetensors"),
    "flipped_state": lambda run: flip(newest(run) / "state.json", 20),
    "flipped_config": lambda run: flip(newest(run) / "config.yaml", 20),
    "truncated_learner": lambda run: os.truncate(newest(run) / "learner.safetensors", 1000),
    "empty_rng": lambda run: os.truncate(newest(run) / "rng.safetensors", 0),
    "missing_journal": lambda run: (newest(run) / "journal.safetensors").unlink(),
    "missing_manifest": lambda run: (newest(run) / "manifest.json").unlink(),
    "garbled_manifest": lambda run: (newest(run) / "manifest.json").write_bytes(b"\xff{"),
    "list_as_manifest": lambda run: (newest(run) / "manifest.json").write_text("[]"),
    "manifest_of_strings": lambda run: (newest(run) / "manifest.json").write_text('{"format": 1, "files": ["a"]}'),
    "flipped_replay": lambda run: flip(max((run / "checkpoints" / "replay").glob("*"))),
    "missing_replay": lambda run: max((run / "checkpoints" / "replay").glob("*")).unlink(),
    "dangling_last": lambda run: shutil.rmtree(newest(run)),
    "device_as_state": lambda run: replace(newest(run) / "state.json", lambda p: p.symlink_to("/dev/zero")),
    "fifo_as_manifest": lambda run: replace(newest(run) / "manifest.json", os.mkfifo),
    "folder_as_learner": lambda run: replace(newest(run) / "learner.safetensors", Path.mkdir),
    "deep_manifest": lambda run: (newest(run) / "manifest.json").write_bytes(b"[" * 100_000),
    "flipped_key": lambda run: change(newest(run) / "manifest.json", b'"segments"', b'"segmentr"'),
    "flipped_format": lambda run: change(newest(run) / "manifest.json", b'"format": 3', b'"format": 4'),
    "another_end": lambda run: change(newest(run) / "manifest.json", b'"end": 120', b'"end": 119'),
    "fifo_as_replay": lambda run: replace(max((run / "checkpoints" / "replay").glob("*")), os.mkfifo),
    "other_checkpoint": lambda run: newest(run).rename(newest(run).with_name("step_000000000999")),
}


@pytest.fixture(scope="module")
def damageable(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run killed after its third checkpoint, and the undisturbed one."""
    return pair(tmp_path_factory.mktemp("damage"), ("checkpoint", 3), *tiny("off_policy"))


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_checkpoint_is_passed_over(
    kind: str, damageable: tuple[Path, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = tmp_path / "run"
    shutil.copytree(damageable[0], run, symlinks=True)
    broken = newest(run).name
    DAMAGE[kind](run)
    broken = newest(run).name if kind == "other_checkpoint" else broken
    resumed(run)
    warnings = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    expected = 0 if kind == "dangling_last" else 1
    assert len([w for w in warnings if broken in w and "damaged" in w]) == expected
    same_run(run, damageable[1])


RESUMED_ONLY = ("flipped_replay", "missing_replay", "fifo_as_replay", "dangling_last", "other_checkpoint")


@pytest.mark.parametrize("kind", [kind for kind in DAMAGE if kind not in RESUMED_ONLY])
def test_a_damaged_checkpoint_is_not_evaluated(
    kind: str, damageable: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    run = tmp_path / "run"
    shutil.copytree(damageable[0], run, symlinks=True)
    DAMAGE[kind](run)
    for arguments in (["evaluate", str(newest(run)), "episodes=1"], ["predict", str(newest(run)), "--obs", "[0,0,0]"]):
        assert main(arguments) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1


def test_without_a_whole_checkpoint_nothing_is_thrown_away(tmp_path: Path, damageable: tuple[Path, Path]) -> None:
    """To start over would delete the metrics of a run that may have taken days."""
    run = tmp_path / "run"
    shutil.copytree(damageable[0], run, symlinks=True)
    for folder in (run / "checkpoints").glob("step_*"):
        (folder / "manifest.json").unlink()
    before = (run / "metrics.jsonl").read_bytes()
    with pytest.raises(UserError, match="none of the checkpoints"):
        resumed(run)
    assert (run / "metrics.jsonl").read_bytes() == before


def test_a_checkpoint_of_another_format_is_refused(tmp_path: Path, damageable: tuple[Path, Path]) -> None:
    run = tmp_path / "run"
    shutil.copytree(damageable[0], run, symlinks=True)
    for manifest in (run / "checkpoints").glob("step_*/manifest.json"):
        manifest.write_bytes(seal({**json.loads(manifest.read_bytes()), "format": 99}))
    before = (run / "metrics.jsonl").read_bytes()
    with pytest.raises(UserError, match="format 99"):
        resumed(run)
    assert (run / "metrics.jsonl").read_bytes() == before


def test_a_shortened_metrics_file_is_noticed(tmp_path: Path, damageable: tuple[Path, Path]) -> None:
    run = tmp_path / "run"
    shutil.copytree(damageable[0], run, symlinks=True)
    os.truncate(run / "metrics.jsonl", 10)
    with pytest.raises(UserError, match="shorter"):
        resumed(run)
    resumed(run, "~logger.jsonl")  # as the sentence advises
    same_tensors(final(run), final(damageable[1]))


# -- other budgets, other values -------------------------------------------------------------------------------------


@pytest.mark.parametrize("regime", REGIMES)
def test_a_budget_can_be_extended(regime: str, tmp_path: Path) -> None:
    """Exact up to the old end, and, where the old end was a checkpoint, the very run with the longer budget."""
    key = "max_updates" if regime == "offline" else "max_env_steps"
    every = ("trainer.checkpoint_interval=32", "trainer.log_interval=32", "trainer.eval_interval=32")
    if regime == "offline_to_online":
        every = (*every, "trainer.pretrain_updates=32")
    short, long = (tiny(regime, *every, f"trainer.{key}={n}") for n in (64, 128))
    rlx.train(*long, run_dir=tmp_path / "long")
    first = rlx.train(*short, run_dir=tmp_path / "short")
    assert first.summary["stop_reason"] == key
    known = rows(tmp_path / "short")
    resumed(tmp_path / "short", f"trainer.{key}=128")
    assert rows(tmp_path / "short")[: len(known)] == known
    same_run(tmp_path / "short", tmp_path / "long")
    assert f"{key}: 128" in (tmp_path / "short" / "config.yaml").read_text()


def test_a_shorter_budget_ends_at_once(tmp_path: Path) -> None:
    whole = rlx.train(*tiny("off_policy"), run_dir=tmp_path / "run")
    again = resumed(tmp_path / "run", "trainer.max_env_steps=10")
    assert again.summary["env_steps"] == whole.summary["env_steps"]
    same_tensors(dict(again.learner.tensors()), dict(whole.learner.tensors()))


REFUSED = {
    "env.num_envs=2": "num_envs",
    "algo.hidden=[8]": "does not fit",
    "algo=ppo": "selects another",
    "algo.lrr=1": "lrr",
    "replay.capacity=17": "capacity",
    "trainer.max_env_steps=many": "max_env_steps",
    "foo=1": "foo",
    "seed=1": "seed",
    "env.id=CartPole-v1": "env.id",
    "reward.scale=2": "reward.scale",
}


@pytest.mark.parametrize("override", REFUSED)
def test_what_a_resume_cannot_change(override: str, damageable: tuple[Path, Path], tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(damageable[0], run, symlinks=True)
    before = {p: p.read_bytes() for p in run.rglob("*") if p.is_file()}
    with pytest.raises(UserError, match=REFUSED[override]):
        resumed(run, override)
    assert {p: p.read_bytes() for p in run.rglob("*") if p.is_file()} == before


def test_callbacks_can_be_dropped_on_resume(damageable: tuple[Path, Path], tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(damageable[0], run, symlinks=True)
    resumed(run, "~callbacks.evaluate")
    assert "evaluate" not in (run / "config.yaml").read_text()
    same_tensors(final(run), final(damageable[1]))


def test_another_thread_count_is_said(
    damageable: tuple[Path, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = tmp_path / "run"
    shutil.copytree(damageable[0], run, symlinks=True)
    assert resumed(run, "threads=2").summary["threads"] == 2
    assert any("threads" in r.getMessage() for r in caplog.records if r.levelno == logging.WARNING)


# -- data that are not what they were ---------------------------------------------------------------------------------

CHANGES = {
    "obs": lambda a: np.where(np.arange(len(a))[:, None] == 1501, a + 1.0, a),  # not one of the sampled rows
    "next_obs": lambda a: a + np.float32(1e-3),
    "action": lambda a: -a,
    "reward": lambda a: np.where(np.arange(len(a)) == 7, 0.0, a),
    "truncated": lambda a: np.where(np.arange(len(a)) == 11, 1.0, a),
}


@pytest.fixture(scope="module")
def with_data(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """The file of a dataset, a run on it that was killed after its second checkpoint, and the undisturbed one."""
    folder = tmp_path_factory.mktemp("data")
    file = roll_out_random("Pendulum-v1", 2500, seed=3).save(folder / "data.npz")
    overrides = [o for o in tiny("offline") if not o.startswith("dataset")]
    return file, *pair(folder, ("checkpoint", 2), *overrides, "dataset=npz", f"dataset.path={file}")


def changed(file: Path, to: Path, **changes: Any) -> Path:
    with np.load(file) as arrays:
        np.savez(to, **{name: changes.get(name, lambda a: a)(arrays[name]) for name in arrays.files})
    return to


# of observations on disk only some rows are looked at
NOTICED = [(column, memory) for column in CHANGES for memory in ("ram", "mmap") if (column, memory) != ("obs", "mmap")]


@pytest.mark.parametrize(("column", "memory"), NOTICED)
def test_changed_data_are_refused(column: str, memory: str, with_data: tuple[Path, Path, Path], tmp_path: Path) -> None:
    file, middle, _ = with_data
    run = tmp_path / "run"
    shutil.copytree(middle, run, symlinks=True)
    other = changed(file, tmp_path / "other.npz", **{column: CHANGES[column]})
    before = {p: p.read_bytes() for p in run.rglob("*") if p.is_file()}
    with pytest.raises(UserError, match=rf"other.npz has changed .*{column}.*dataset.path=FILE"):
        resumed(run, f"dataset.path={other}", f"dataset.memory={memory}")
    assert {p: p.read_bytes() for p in run.rglob("*") if p.is_file()} == before


@pytest.mark.parametrize("memory", ["ram", "mmap"])
def test_the_same_data_elsewhere_are_welcome(memory: str, with_data: tuple[Path, Path, Path], tmp_path: Path) -> None:
    file, middle, whole = with_data
    run = tmp_path / "run"
    shutil.copytree(middle, run, symlinks=True)
    copy = changed(file, tmp_path / "copy.npz")
    resumed(run, f"dataset.path={copy}", f"dataset.memory={memory}", "reward.scale=1.0")
    same_tensors(final(run), final(whole))


def test_a_checkpoint_without_a_fingerprint_resumes(with_data: tuple[Path, Path, Path], tmp_path: Path) -> None:
    """As they were written before there was one."""
    _, middle, whole = with_data
    run = tmp_path / "run"
    shutil.copytree(middle, run, symlinks=True)
    for folder in (run / "checkpoints").glob("step_*"):
        saved = read_folder(folder)
        del saved.state["data"]
        write_folder(saved, folder)
    resumed(run)
    same_run(run, whole)


# -- an env that cannot be replayed ----------------------------------------------------------------------------------


class Drifting(gym.Env):
    """Draws from a generator that no seed reaches: the same actions never lead to the same place."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, **kwargs: Any) -> tuple[np.ndarray, dict]:
        super().reset(**kwargs)
        return self._observe(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        return self._observe(), 0.0, False, False, {}

    def _observe(self) -> np.ndarray:
        return np.frombuffer(os.urandom(2), np.uint8).astype(np.float32)


@pytest.fixture
def _drifting() -> Iterator[None]:
    register("Drifting-v0", entry_point=Drifting, max_episode_steps=20)
    yield
    registry.pop("Drifting-v0")


@pytest.mark.usefixtures("_drifting")
@pytest.mark.parametrize("regime", ["off_policy", "on_policy"])
def test_an_env_that_does_not_replay_is_said(regime: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    middle, whole = pair(tmp_path, ("checkpoint", 2), *tiny(regime, "env.id=Drifting-v0", "env.num_envs=2"))
    assert json.loads((whole / "summary.json").read_text())["exact"]
    result = resumed(middle)
    assert not result.summary["exact"]
    assert any("approximately" in r.getMessage() for r in caplog.records if r.levelno == logging.WARNING)
    assert not resumed(middle).summary["exact"], "once approximate, always approximate"


@pytest.mark.usefixtures("_drifting")
def test_a_lost_episode_ends_in_the_replay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a new episode had to begin, the last row of the old one is a boundary: n-step sums may not cross it."""
    overrides = tiny("off_policy", "env.id=Drifting-v0", "trainer.checkpoint_interval=50", "replay.n_step=3")
    middle, _ = pair(tmp_path, ("checkpoint", 1), *overrides)
    seen: list[tuple[int, bool]] = []
    original = Replay.add

    def add(self: Replay, *args: Any) -> None:
        if self.total == 50:
            seen.append((self.total, bool(self.layout.column(self.store.tensor, "truncated")[49])))
        original(self, *args)

    monkeypatch.setattr(Replay, "add", add)
    resumed(middle)
    assert seen == [(50, True)]


# -- real kills ------------------------------------------------------------------------------------------------------

LONGER = {
    "off_policy": ("trainer.max_env_steps=700", "trainer.checkpoint_interval=150", "trainer.log_interval=30"),
    "on_policy": ("trainer.max_env_steps=2500", "trainer.checkpoint_interval=400", "trainer.log_interval=64"),
    "offline": ("trainer.max_updates=1200", "trainer.checkpoint_interval=250", "trainer.log_interval=40"),
    "offline_to_online": (
        "trainer.max_env_steps=800", "trainer.pretrain_updates=200", "trainer.checkpoint_interval=150",
        "trainer.log_interval=30",
    ),
}  # fmt: skip


def start(*arguments: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "rlx", *arguments]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("regime", REGIMES)
def test_kill_minus_nine(regime: str, tmp_path: Path) -> None:
    overrides = tiny(regime, *LONGER[regime])
    rlx.train(*overrides, run_dir=tmp_path / "whole")
    chance = random.Random(regime)
    wanted = chance.randint(5, 12)  # rows of metrics
    metrics = tmp_path / "run" / "metrics.jsonl"
    code = 0
    for _ in range(20):  # on a busy machine a run may end before its kill comes: that one does not count
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        process = start(*overrides, f"run_dir={tmp_path / 'run'}")
        while process.poll() is None and (not metrics.exists() or metrics.read_bytes().count(b"\n") < wanted):
            time.sleep(0.002)
        time.sleep(chance.uniform(0, 0.05))
        process.kill()
        code = process.wait()
        if code != 0:
            break
    assert code == -signal.SIGKILL, process.communicate()[1]
    assert not (tmp_path / "run" / "summary.json").exists()
    process = start("resume", str(tmp_path / "run"))
    assert process.wait() == 0, process.communicate()[1]
    same_run(tmp_path / "run", tmp_path / "whole")


# -- from pixels -----------------------------------------------------------------------------------------------------

PIXELS = ("algo=dqn", "env=pixel_goal", "encoder=small", "encoder.channels=4", "encoder.dim=8", "algo.hidden=[8]",
          "algo.batch_size=8", "env.num_envs=2", "trainer.max_env_steps=240", "trainer.learning_starts=60",
          "trainer.checkpoint_interval=50", "trainer.eval_interval=100", "trainer.eval_episodes=1", "logger=jsonl",
          "threads=1", "~callbacks.progress", "replay.capacity=100")  # fmt: skip


@pytest.mark.parametrize(
    "more",
    [
        ("augment=shift", "augment.pad=2"),
        ("augment=cutout", "replay.memory=mmap", "replay.n_step=3"),
        ("augment=crop", "trainer.checkpoint_compression=none"),
    ],
    ids=["shift", "cutout_mmap", "crop_plain"],
)
def test_pixels_resume_exactly(more: tuple[str, ...], tmp_path: Path) -> None:
    """Augmentations draw on, a replay on disk is filled again, compressed segments or not."""
    killed, whole = pair(tmp_path, ("checkpoint", 3), *PIXELS, *more)
    endings = {path.suffix for path in (whole / "checkpoints" / "replay").iterdir()}
    assert endings == ({".safetensors"} if "trainer.checkpoint_compression=none" in more else {".zst"})
    resumed(killed)
    same_run(killed, whole)


@pytest.mark.parametrize("memory", ["ram", "mmap"])
def test_a_dataset_of_dicts_resumes_exactly(memory: str, tmp_path: Path) -> None:
    """Pretraining and mixed batches of pictures and vectors; another picture in the file is noticed."""
    env = EnvConfig(id="rlx/PixelState-v0", kwargs={"continuous": True})
    file = roll_out_random(env, 200, seed=3).save(tmp_path / "data.npz")
    own = ("algo=iql", "env=pixel_state", "env.kwargs.continuous=true", "trainer=offline_to_online", "dataset=npz",
           f"dataset.path={file}", f"dataset.memory={memory}", "trainer.pretrain_updates=40")  # fmt: skip
    killed, whole = pair(tmp_path, ("checkpoint", 3), *PIXELS, *own)
    other = changed(file, tmp_path / "other.npz", **{"obs/pixels": lambda a: a // 2})
    with pytest.raises(UserError, match=r"other.npz has changed .*\(obs/pixels\)"):
        resumed(killed, f"dataset.path={other}")
    resumed(killed)
    same_run(killed, whole)


def test_a_memory_of_pictures_resumes_exactly(tmp_path: Path) -> None:
    """Two checkpoints of three fall into a rollout, and with it into episodes that began with the goal in sight."""
    own = ("algo=ppo_lstm", "env=pixel_memory", "algo.lstm_hidden=[8]", "trainer.rollout_length=16")
    killed, whole = pair(tmp_path, ("checkpoint", 3), *PIXELS, *own)
    resumed(killed)
    same_run(killed, whole)
    assert json.loads((killed / "summary.json").read_text())["exact"]


def test_other_compressions_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"trainer.checkpoint_compression must be one of zstd, none, auto \(it is gzip"):
        rlx.train(*PIXELS, "trainer.checkpoint_compression=gzip", run_dir=tmp_path / "run")


@pytest.mark.parametrize("overrides", [("env=atari", "env.game=Breakout"), ("env=minatar", "env.game=seaquest")])
def test_games_resume_exactly(overrides: tuple[str, ...], tmp_path: Path) -> None:
    package = {"env=atari": "ale_py", "env=minatar": "minatar"}[overrides[0]]
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    smaller = [] if package == "minatar" else ["env.training_kwargs.episodic_life=true", "env.kwargs.size=20"]
    killed, whole = pair(tmp_path, ("checkpoint", 3), *PIXELS, *overrides, *smaller, "env.max_episode_steps=150")
    resumed(killed)
    same_run(killed, whole)
    assert json.loads((killed / "summary.json").read_text())["exact"]
