"""What a report reads: runs in every state, and files that somebody else has written."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from fake_runs import dead_pid, lock, train_row, write_run, write_sweep
from helpers import tiny

import rlx
from rlx.errors import UserError
from rlx.report.data import read_all
from rlx.report.groups import group


def test_a_run_of_rlx_itself_is_read(tmp_path: Path) -> None:
    result = rlx.train(*tiny("offline"), run_dir=tmp_path / "run", quiet=True)
    (run,) = read_all([tmp_path / "run"]).runs
    assert (run.state, run.algo, run.env, run.seed) == ("done", "td3_bc", "Pendulum-v1", 0)
    assert run.final == result.summary["eval_return_mean"]
    assert run.curves["eval/return_mean"].updates.tolist() == [30, 60]
    assert run.command.startswith("python -m rlx algo=td3_bc env=pendulum '~algo_env' threads=1")
    assert run.steps_per_second == 60 / run.wall_time  # updates: it has no env steps
    assert run.config["algo.hidden.0"] == 16


def test_states_without_a_summary(tmp_path: Path) -> None:
    names = ("under_way", "killed", "gone", "env")
    folders = {name: write_run(tmp_path / name, [1.0, 2.0], ended=False) for name in names}
    lock(folders["under_way"], os.getpid())
    lock(folders["killed"], dead_pid())
    (folders["env"] / "error.txt").write_text("Traceback\nValueError: no\n")
    write_run(tmp_path / "stopped", [1.0], summary={"stop_reason": "terminated"})
    runs = {run.name: run for run in read_all([tmp_path]).runs}
    states = {name: run.state for name, run in runs.items()}
    assert states == {"under_way": "running", "killed": "failed", "gone": "failed", "env": "failed",
                      "stopped": "interrupted"}  # fmt: skip
    assert "process is gone" in runs["killed"].reason
    assert runs["env"].log == ["Traceback", "ValueError: no"]
    assert (runs["under_way"].final, runs["under_way"].best, runs["under_way"].env_steps) == (2.0, 2.0, 200)


def test_a_row_that_was_cut_off_and_rows_of_garbage_cost_a_note(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", [1.0, 2.0], ended=False)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('nonsense\n[1]\n{"kind": "eval", "env_steps": "many"}\n')
        file.write(json.dumps(train_row(300, 3.0, huge=1.0) | {"huge": 10**400, "flag": True, "text": "x"}) + "\n")  # type: ignore[arg-type]
        file.write('{"deep": ' + "[" * 50_000 + "}\n")
        file.write('{"kind": "eval", "env_steps": 400, "eval/retu')
    (run,) = read_all([folder]).runs
    assert run.curves["eval/return_mean"].values.tolist() == [1.0, 2.0]
    assert not {"huge", "flag", "text"} & run.curves.keys()
    assert "middle of a row" in run.notes[0]
    assert run.notes[1].startswith("4 of the rows")


def test_links_are_not_followed(tmp_path: Path) -> None:
    secret = tmp_path / "secret.jsonl"
    secret.write_text(json.dumps({"kind": "eval", "env_steps": 1, "updates": 1, "wall_time": 1, "eval/return_mean": 9}))
    folder = write_run(tmp_path / "runs" / "run", [1.0])
    for name in ("metrics.jsonl", "summary.json", "config.yaml"):
        (folder / name).unlink()
        (folder / name).symlink_to(secret)
    (tmp_path / "runs" / "linked").symlink_to(tmp_path)
    collection = read_all([tmp_path / "runs"])
    (run,) = collection.runs
    assert (run.curves, run.config, run.state) == ({}, {}, "failed")
    assert collection.notes == ["linked is a link and was left out."]


def test_a_fifo_does_not_hang(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", [1.0])
    (folder / "metrics.jsonl").unlink()
    os.mkfifo(folder / "metrics.jsonl")
    (run,) = read_all([folder]).runs
    assert run.notes == ["metrics.jsonl cannot be read (not a regular file)."]


def test_a_sweep_with_its_failure(tmp_path: Path) -> None:
    write_sweep(tmp_path / "sweep")
    collection = read_all([tmp_path / "sweep"])
    states = [run.state for run in collection.runs]
    assert (len(states), states.count("done"), states[7]) == (30, 29, "failed")
    assert collection.runs[7].reason == "Training diverged: a weight is nan."
    assert collection.runs[7].log == ["step 600", "Training diverged"]  # without its colours
    grouping = group(collection)
    assert grouping.keys == ["algo", "reward"]
    assert [method.label for method in grouping.methods][:3] == ["sac · identity", "sac · clip_1", "td3 · identity"]
    assert [len(g.runs) for g in grouping.groups] == [5] * 6
    assert not collection.under_way


def test_a_sweep_under_way(tmp_path: Path) -> None:
    sweep = write_sweep(tmp_path / "sweep", seeds=1)
    sweep.ended = None
    sweep.jobs[0].state = "running"
    sweep.jobs[1].state = "waiting"
    (tmp_path / "sweep" / sweep.jobs[0].folder / "summary.json").unlink()
    for path in (tmp_path / "sweep" / sweep.jobs[1].folder).iterdir():
        path.unlink()
    (tmp_path / "sweep" / sweep.jobs[1].folder).rmdir()
    sweep.save()
    collection = read_all([tmp_path / "sweep"])
    assert [run.state for run in collection.runs[:3]] == ["running", "waiting", "done"]
    assert (collection.runs[1].algo, collection.runs[1].final) == ("sac", None)
    assert collection.runs[1].env == "Pendulum-v1"  # as the others have it
    assert collection.under_way


def test_a_damaged_manifest_leaves_the_runs(tmp_path: Path) -> None:
    write_sweep(tmp_path / "sweep", seeds=1)
    (tmp_path / "sweep" / "sweep.json").write_text('{"format": 1, "jobs": [{"folder": "../../etc"}]}')
    collection = read_all([tmp_path / "sweep"])
    assert (len(collection.runs), collection.sweeps) == (6, [])
    assert "one by one" in collection.notes[0]


def test_runs_of_their_own_are_grouped_by_what_was_typed(tmp_path: Path) -> None:
    for algo, lr in (("sac", None), ("sac", "0.1"), ("td3", None)):
        for seed in range(2):
            typed = [f"algo={algo}", f"seed={seed}", f"run_dir=x{seed}", *([f"algo.lr={lr}"] if lr else [])]
            write_run(tmp_path / f"{algo}{lr}{seed}", [1.0], typed, algo=algo, seed=seed)
    grouping = group(read_all([tmp_path]))
    assert grouping.keys == ["algo", "algo.lr"]
    assert [method.label for method in grouping.methods] == ["sac · lr=0.1", "sac · lr=0.001", "td3 · lr=0.001"]


def test_a_run_given_twice_counts_once_and_names_stay_apart(tmp_path: Path) -> None:
    write_run(tmp_path / "a" / "run", [1.0])
    write_run(tmp_path / "b" / "run", [1.0])
    names = [run.name for run in read_all([tmp_path, tmp_path / "a" / "run"]).runs]
    assert len(set(names)) == len(names) == 2


@pytest.mark.parametrize("name", ["missing", "empty", "file"])
def test_what_holds_no_run_is_refused_in_a_sentence(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"not a folder|holds no run"):
        read_all([tmp_path / name])


# -- rlx.runs ----------------------------------------------------------------------------------------------------------


def test_runs_as_plain_columns(tmp_path: Path) -> None:
    write_sweep(tmp_path / "sweep", seeds=2, points=3)
    table = rlx.runs(tmp_path / "sweep")
    assert table.rows == 12
    assert table["algo"][:5] == ["sac"] * 4 + ["td3"]
    assert table["reward"][:4] == ["identity", "identity", "clip_1", "clip_1"]
    assert table["state"].count("failed") == 1
    rows = [
        json.loads(line) for line in (tmp_path / "sweep" / table["run"][0] / "metrics.jsonl").read_text().splitlines()
    ]
    assert table["final"][0] == rows[-1]["eval/return_mean"]
    metrics = table.metrics
    assert metrics["run"][:3] == [table["run"][0]] * 3
    assert metrics["eval/return_mean"][:3] == [row["eval/return_mean"] for row in rows]
    assert metrics["env_steps"][:3] == [100, 200, 300]


def test_runs_for_pandas(tmp_path: Path) -> None:
    pytest.importorskip("pandas", reason="pandas comes with the dev extra")
    write_sweep(tmp_path / "sweep", seeds=2, points=3, failed=())
    table = rlx.runs(tmp_path / "sweep")
    frame = table.to_pandas()
    assert frame.shape == (12, len(table))
    assert frame.groupby("algo")["final"].count().to_dict() == {"ddpg": 4, "sac": 4, "td3": 4}
    assert len(table.metrics.to_pandas()) == 36


def test_runs_of_nothing() -> None:
    with pytest.raises(UserError, match="needs a path"):
        rlx.runs()
