"""sweep.json is written whole, read as data, and its folders are plain names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rlx.errors import UserError
from rlx.sweeps.manifest import FILE, NAME_LENGTH, STATES, Sweep, folder_name


def make(folder: Path) -> Sweep:
    sweep = Sweep(folder, "python -m rlx -m seed=0,1", ["seed=0,1"], versions={"rlx": "0"}, swept=["seed"])
    for seed in "01":
        sweep.add_job([f"seed={seed}"], {"seed": seed}, 2)
    return sweep


def test_what_is_saved_is_read_again(tmp_path: Path) -> None:
    sweep = make(tmp_path)
    sweep.jobs[0].state, sweep.jobs[0].exit_code = "done", 0
    sweep.jobs[0].result = {"eval_return_mean": -1.5, "best_eval_return_mean": None}
    sweep.jobs[1].lineage = [{"at": 100, "from": 0, "overrides": ["algo.lr=0.1"]}]
    sweep.results = [{"choices": {}, "runs": 1, "failed": 0, "mean": -1.5, "low": None, "high": None, "best": None}]
    sweep.save()
    assert Sweep.load(tmp_path) == sweep
    values = json.loads((tmp_path / FILE).read_text())
    assert list(values)[:2] == ["format", "name"]
    assert values["name"] == tmp_path.name
    assert [p.name for p in tmp_path.iterdir()] == [FILE], "nothing is left beside it"


def test_what_json_does_not_have_is_null(tmp_path: Path) -> None:
    sweep = make(tmp_path)
    sweep.jobs[0].result = {"eval_return_mean": float("nan")}
    sweep.save()
    assert Sweep.load(tmp_path).jobs[0].result == {"eval_return_mean": None}


CHANGES: dict[str, Any] = {
    "format": 2,
    "jobs": None,
    "command": 3,
    "overrides": "seed=0",
    "versions": [],
    "swept": [1],
    "job.number": 1,
    "job.folder": "../elsewhere",
    "job.overrides": [None],
    "job.choices": {"seed": 0},
    "job.state": "asleep",
    "job.exit_code": "0",
    "job.attempts": True,
    "job.result": [],
    "job.lineage": {},
}


@pytest.mark.parametrize("key", CHANGES)
def test_a_manifest_that_rlx_did_not_write_is_a_sentence(key: str, tmp_path: Path) -> None:
    make(tmp_path).save()
    values = json.loads((tmp_path / FILE).read_text())
    place = values["jobs"][0] if key.startswith("job.") else values
    place[key.removeprefix("job.")] = CHANGES[key]
    (tmp_path / FILE).write_text(json.dumps(values))
    with pytest.raises(UserError, match="is not the manifest of a sweep"):
        Sweep.load(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "[" * 100_000])
def test_nor_is_anything_else(text: str, tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(text)
    with pytest.raises(UserError, match=FILE):
        Sweep.load(tmp_path)


def test_two_jobs_do_not_share_a_folder(tmp_path: Path) -> None:
    sweep = make(tmp_path)
    sweep.jobs[1].folder = sweep.jobs[0].folder
    sweep.save()
    with pytest.raises(UserError, match="one folder"):
        Sweep.load(tmp_path)


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    make(tmp_path / "other").save()
    (tmp_path / FILE).symlink_to(tmp_path / "other" / FILE)
    with pytest.raises(UserError, match="link"):
        Sweep.load(tmp_path)
    with pytest.raises(UserError, match="link"):
        make(tmp_path).save()


@pytest.mark.parametrize(
    ("number", "choices", "jobs", "name"),
    [
        (3, {"algo": "bcq", "reward": "clip_1", "seed": "0"}, 36, "003_algo=bcq,reward=clip_1,seed=0"),
        (12, {"seed": "12"}, 5000, "0012_seed=12"),
        (0, {}, 1, "000"),
        (1, {"algo.hidden": "[64, 64]"}, 2, "001_algo.hidden=_64,_64"),
        (1, {"dataset.path": "/a/../b c"}, 2, "001_dataset.path=_a_.._b_c"),
        (1, {"callbacks": "ü"}, 2, "001_callbacks"),
    ],
)
def test_names_of_job_folders(number: int, choices: dict[str, str], jobs: int, name: str) -> None:
    assert folder_name(number, choices, jobs) == name


def test_long_names_are_cut_and_stay_apart(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path)
    for i in range(2):
        sweep.add_job([], {"env.kwargs.text": f"{'x' * 500}{i}"})
    assert all(len(job.folder) <= NAME_LENGTH for job in sweep.jobs)
    sweep.save()
    assert Sweep.load(tmp_path) == sweep


def test_numbers_go_on(tmp_path: Path) -> None:
    sweep = make(tmp_path)
    sweep.save()
    again = Sweep.load(tmp_path)
    assert again.add_job(["seed=2"], {"seed": "2"}).number == 2


def test_states_are_counted(tmp_path: Path) -> None:
    sweep = make(tmp_path)
    assert [sweep.count(state) for state in STATES] == [2, 0, 0, 0, 0, 0, 0]
    assert sweep.count("waiting", "done") == 2
