"""A run folder may come from somebody else: links in it lead nowhere, and only what rlx wrote is deleted."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from helpers import resumed, snapshots, tiny

import rlx
from rlx.checkpoint import CheckpointStore, find_checkpoint
from rlx.cli import main
from rlx.errors import UserError


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run as a kill after its second checkpoint left it."""
    folder = tmp_path_factory.mktemp("killed")
    with snapshots(("checkpoint", 3), into=folder) as taken:
        rlx.train(*tiny("off_policy", "logger=[jsonl,tensorboard]"), run_dir=folder / "whole")
    return taken["checkpoint", 3]


@pytest.fixture
def run(killed: Path, tmp_path: Path) -> Path:
    shutil.copytree(killed, tmp_path / "run", symlinks=True)
    return tmp_path / "run"


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """Somebody's files, elsewhere."""
    folder = tmp_path / "outside"
    folder.mkdir()
    for name in ("thesis.tex", "config.yaml", "metrics.jsonl", "000000000000-000000000001.safetensors"):
        (folder / name).write_text("mine")
    return folder


def everything(folder: Path) -> dict[Path, bytes]:
    return {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}


NAMES = ("metrics.jsonl", "config.yaml", "overrides.yaml", "resumes.yaml", "summary.json", "make_data.mark",
         ".lock", "tensorboard", "wandb", "checkpoints", "checkpoints/replay", "checkpoints/last",
         "checkpoints/best")  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_link_out_of_the_folder_is_refused(name: str, run: Path, outside: Path) -> None:
    folder = Path(name).suffix == "" and not name.startswith(".")
    if name == "config.yaml":
        (outside / name).write_bytes((run / name).read_bytes())
    if name == "checkpoints":
        shutil.copytree(run / name, outside, symlinks=True, dirs_exist_ok=True)
    path = run / name
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.symlink_to(outside if folder else outside / path.name)
    theirs, ours = everything(outside), everything(run)
    with pytest.raises(UserError, match=f"{path.name} is a link to .*outside"):
        resumed(run)
    assert everything(outside) == theirs
    assert everything(run) == ours


@pytest.mark.parametrize("name", [".config.yaml.writing", ".summary.json.writing", ".resumes.yaml.writing"])
def test_unfinished_files_are_not_written_through(name: str, run: Path, outside: Path) -> None:
    (run / name).symlink_to(outside / "thesis.tex")
    before = everything(outside)
    resumed(run)
    assert everything(outside) == before
    assert not (run / name).is_symlink()


@pytest.mark.parametrize("name", ["step_000000000999", ".step_000000000130.writing", "best_000000000999",
                                  ".best_000000000130.writing", ".last.writing", ".best.writing"])  # fmt: skip
def test_links_among_checkpoints_are_removed_not_followed(name: str, run: Path, outside: Path) -> None:
    (run / "checkpoints" / name).symlink_to(outside)
    before = everything(outside)
    resumed(run)
    assert everything(outside) == before
    assert not (run / "checkpoints" / name).is_symlink()


def test_links_inside_of_checkpoints_are_damage(run: Path, outside: Path, caplog: pytest.LogCaptureFixture) -> None:
    newest = CheckpointStore(run / "checkpoints").steps()[0]
    shutil.move(newest / "learner.safetensors", outside / "learner.safetensors")
    (newest / "learner.safetensors").symlink_to(outside / "learner.safetensors")
    before = everything(outside)
    resumed(run)
    assert everything(outside) == before


def test_only_what_rlx_wrote_is_deleted(run: Path) -> None:
    mine = [run / "checkpoints" / name for name in ("step_notes", "best_of_all", ".mine.writing", "replay/mine.npz",
                                                    "replay/.mine.writing")]  # fmt: skip
    for path in mine:
        path.write_text("mine")
    (run / "checkpoints" / "step_000000000001_copy").mkdir()
    resumed(run, "trainer.max_env_steps=200")
    assert [path.read_text() for path in mine] == ["mine"] * len(mine)
    assert (run / "checkpoints" / "step_000000000001_copy").is_dir()


def test_a_second_name_of_the_metrics_is_left_as_it_was(run: Path, tmp_path: Path) -> None:
    """As `cp -al` makes backups: the resume cuts and extends a file of its own."""
    os.link(run / "metrics.jsonl", tmp_path / "backup.jsonl")
    before = (tmp_path / "backup.jsonl").read_bytes()
    resumed(run)
    assert (tmp_path / "backup.jsonl").read_bytes() == before
    assert len((run / "metrics.jsonl").read_bytes()) > 0


def test_the_run_folder_itself_may_be_reached_through_a_link(run: Path, tmp_path: Path) -> None:
    (tmp_path / "here").symlink_to(run)
    assert resumed(tmp_path / "here").summary["env_steps"] == 130


@pytest.mark.parametrize("name", ["best", "last"])
def test_reading_goes_only_to_checkpoints_beside(name: str, run: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    target = (run / "checkpoints" / name).resolve()
    shutil.copytree(target, elsewhere)
    assert find_checkpoint(elsewhere) == elsewhere.resolve(), "what the user types is the user's choice"
    if name == "last":
        (run / "checkpoints" / "best").unlink()
    (run / "checkpoints" / name).unlink()
    (run / "checkpoints" / name).symlink_to(elsewhere)
    for path in (run, run / "checkpoints" / name):
        with pytest.raises(UserError, match="is a link to"):
            find_checkpoint(path)
        assert main(["evaluate", str(path), "episodes=1"]) == 2


def test_a_dataset_is_not_read_through_a_link(run: Path, tmp_path: Path) -> None:
    shutil.move(run / "checkpoints", tmp_path / "elsewhere")
    (run / "checkpoints").symlink_to(tmp_path / "elsewhere")
    assert main(["inspect-data", str(run)]) == 2


def test_a_new_run_is_not_written_through_links(tmp_path: Path, outside: Path) -> None:
    for name, target in (("checkpoints", ""), ("metrics.jsonl", "thesis.tex"), ("overrides.yaml", "thesis.tex")):
        folder = tmp_path / name
        folder.mkdir()
        (folder / name).symlink_to(outside / target)
        before = everything(outside)
        assert main([*tiny("off_policy"), f"run_dir={folder}"]) == 2
        assert everything(outside) == before


@pytest.mark.parametrize("override", ["logger.tensorboard.folder=../outside", "logger.tensorboard.folder=checkpoints",
                                      "logger.jsonl.filename=config.yaml"])  # fmt: skip
def test_loggers_stay_in_their_place(override: str, run: Path) -> None:
    with pytest.raises(UserError, match="is not the name of a"):
        resumed(run, override)


@pytest.mark.parametrize("name", ["metrics.jsonl", ".lock"])
def test_a_fifo_keeps_nobody_waiting(name: str, run: Path) -> None:
    (run / name).unlink(missing_ok=True)
    os.mkfifo(run / name)
    with pytest.raises(UserError, match="not a"):
        resumed(run)
