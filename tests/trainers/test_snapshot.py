"""What a checkpoint holds: the parts of a run, those of earlier formats, and parts that are not of this run."""

from __future__ import annotations

import json
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest
from helpers import resumed, rows, snapshots, tiny

import rlx
from rlx.checkpoint import CheckpointStore, read_folder, seal, write_folder
from rlx.errors import UserError

# Runs that rlx wrote when checkpoints had format 2, killed after a checkpoint, with the metrics of the whole run:
# tiny("off_policy", "env.num_envs=2", "reward=running_norm"), tiny("on_policy", "env.num_envs=2") and
# tiny("off_policy", "algo=dqn", "env=cartpole", "~algo_env"), each with "algo.hidden=[4]".
OLD = Path(__file__).parent / "old_runs"


def unpacked(name: str, to: Path) -> Path:
    with tarfile.open(OLD / f"{name}.tar.xz") as archive:
        archive.extractall(to, filter="data")
    return to / "run"


def as_format_1(run: Path) -> None:
    """Manifests without a sha256 of their own."""
    for path in (run / "checkpoints").glob("*_*/manifest.json"):
        manifest = json.loads(path.read_bytes())
        assert manifest.pop("sha256")
        path.write_text(json.dumps({**manifest, "format": 1}, indent=1))


def without_rounding(row: dict[str, Any]) -> dict[str, Any]:
    """Other CPUs round differently; what follows from counters alone is exact."""
    return {k: pytest.approx(v, rel=0.01, abs=0.01) if isinstance(v, float) else v for k, v in row.items()}


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("name", ["sac", "ppo", "dqn"])
def test_runs_of_earlier_formats_go_on(name: str, version: int, tmp_path: Path) -> None:
    run = unpacked(name, tmp_path)
    if version == 1:
        as_format_1(run)
    before = CheckpointStore(run / "checkpoints").latest()
    assert rlx.evaluate(run, episodes=1)["algo"] == name
    summary = resumed(run).summary
    assert (summary["resumed"], summary["exact"]) == (True, True)
    (tmp_path / "whole").mkdir()
    shutil.copy(tmp_path / "whole.jsonl", tmp_path / "whole" / "metrics.jsonl")
    assert rows(run) == [without_rounding(row) for row in rows(tmp_path / "whole")]
    after = CheckpointStore(run / "checkpoints").latest()
    assert json.loads((run / "checkpoints" / "last" / "manifest.json").read_bytes())["format"] == 3
    assert after.state["trainer"]["env_steps"] > before.state["trainer"]["env_steps"]
    if name == "dqn":  # it had counted by itself, from the 50 random steps on
        assert before.state["learner"]["explored"] == 60 - 50
        assert after.state["learner"]["explored"] == 130 - 50


def test_early_stopping_of_an_earlier_format_still_holds(tmp_path: Path) -> None:
    rule = ("callbacks=[default,early_stopping]", "callbacks.early_stopping.patience=1")
    rule = (*rule, "callbacks.early_stopping.min_delta=1e9", "trainer.eval_interval=10")
    run = rlx.train(*tiny("off_policy", *rule), run_dir=tmp_path / "run").run_dir
    for folder in (run / "checkpoints").glob("step_*"):
        saved = read_folder(folder)
        del saved.state["callbacks"]["early_stopping"]["stopped"]
        saved.state["rng"]["actions"] = saved.state["journal"].pop("rng")
        write_folder(saved, folder)
        manifest = json.loads((folder / "manifest.json").read_bytes())
        (folder / "manifest.json").write_bytes(seal({**manifest, "format": 2}))
    shutil.copytree(run, tmp_path / "other", symlinks=True)
    assert resumed(run).summary["env_steps"] == 20
    assert resumed(tmp_path / "other", "~callbacks.early_stopping").summary["env_steps"] == 130


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("killed")
    with snapshots(("checkpoint", 1), into=folder) as taken:
        rlx.train(*tiny("off_policy", "reward=running_norm"), run_dir=folder / "whole")
    return taken["checkpoint", 1]


WRONG = {
    "negative_steps": lambda state: state["trainer"].update(env_steps=-1),
    "another_phase": lambda state: state["trainer"].update(phase="pretrain"),
    "negative_updates": lambda state: state["learner"].update(updates=-1),
    "no_reward": lambda state: state.pop("reward"),
    "no_journal": lambda state: state.pop("journal"),
    "journal_of_two_envs": lambda state: state["journal"].update(episodes=[1, 1]),
    "returns_of_two_envs": lambda state: state["reward"].update(returns=[0.0, 0.0]),
    "callbacks_in_a_list": lambda state: state.update(callbacks=[]),
    "no_random_states": lambda state: state.update(rng={}),
}


@pytest.mark.parametrize("kind", WRONG)
def test_parts_that_are_not_of_this_run_are_refused(kind: str, killed: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(killed, run, symlinks=True)
    folder = max((run / "checkpoints").glob("step_*"))
    saved = read_folder(folder)
    WRONG[kind](saved.state)
    write_folder(saved, folder)
    with pytest.raises(UserError, match="does not hold what rlx writes"):
        resumed(run)
