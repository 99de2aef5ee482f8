from __future__ import annotations

import json
import logging
import random
import socket
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from rlx.callbacks.bus import CallbackBus
from rlx.data.dataset import TransitionDataset
from rlx.errors import UserError
from rlx.loggers.jsonl import Jsonl, JsonlConfig
from rlx.loggers.wandb import Wandb, WandbConfig, check_reachable, new_id
from rlx.loggers.wandb_files import records, row_of, wait_for_end


@pytest.fixture
def wandb(monkeypatch, tmp_path):
    module = pytest.importorskip("wandb")
    for name in ("WANDB_MODE", "WANDB_DISABLED", "WANDB_DIR", "WANDB_RUN_ID", "WANDB_SWEEP_ID", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    for name in ("WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    return module


@pytest.fixture
def closed_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def read_offline(folder):
    """What the sessions below a run folder recorded: rows of history, fields of the run, axes by metric, the summary.

    wandb's own process writes the files, and goes on for a moment after `finish`: at the end of a program wandb waits
    for it, and so does this function.
    """
    import wandb

    wandb.teardown()
    read = SimpleNamespace(rows=[], runs=[], config={}, axes={}, summary={}, artifacts=[])
    for path in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        for record in records(path):
            if record.HasField("history"):
                read.rows.append(row_of(record))
            if record.HasField("run"):
                read.runs.append(record.run)
                read.config |= {u.key: json.loads(u.value_json) for u in record.run.config.update}
            if record.HasField("metric"):
                read.axes[record.metric.name] = record.metric.step_metric
            if record.HasField("summary"):
                read.summary |= {u.key or "/".join(u.nested_key): u.value_json for u in record.summary.update}
            if record.HasField("artifact"):
                read.artifacts.append(record.artifact)
    return read


def wandbs_own_words(path):
    """The records of a file as `wandb` itself reads them."""
    command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(path)]
    told = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if told.returncode and "No such command" in told.stderr:
        pytest.skip("this wandb has no `leet inspect`")
    assert told.returncode == 0, told.stderr
    return [json.loads(line) for line in told.stdout.splitlines()]


def with_best_checkpoint(run):
    folder = run.run_dir / "checkpoints"
    (folder / "best_000000000020").mkdir(parents=True)
    (folder / "best_000000000020" / "state.json").write_text("{}")
    (folder / "best").symlink_to("best_000000000020")


SECRETS = {"A_SECRET": "hunter2", "A_RATE": "0.000123456789"}


@pytest.fixture
def sweep_run(wandb, make_run, tmp_path, monkeypatch, log_row):
    """An offline run of a sweep with secrets in its config, read back."""
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("WANDB_API_KEY", "0123456789" * 4)
    cfg = {
        "seed": 3,
        "key": "${oc.env:A_SECRET}",
        "rate": "${oc.decode:${oc.env:A_RATE}}",
        "twice": {"rate": "${rate}", "all": "${paths}"},
        "paths": {"data": "/data/${key}"},
        "trainer": {"pretrain_updates": 7, "phases": {"pretrain": {"updates": "${trainer.pretrain_updates}"}}},
        "choices": {"algo": "bcq", "env": "pendulum", "reward": "clip_1", "logger": "wandb"},
        "dataset": {
            "_target_": "rlx.data.mixing.load_mix",
            "ratios": {"good": 3.0, "bad": 1.0},
            "sources": {
                "good": {"_target_": "rlx.data.minari.load_minari", "id": "my/good-v0"},
                "bad": {"_target_": "rlx.data.sources.load_npz", "path": "/data/${key}.npz"},
            },
        },
    }
    run = make_run(cfg=cfg, folder=tmp_path / "my_sweep" / "003_algo=bcq,reward=clip_1")
    (run.run_dir.parent / "sweep.json").write_text("{}")
    run.dataset = TransitionDataset.from_dict(
        {
            "observations": np.zeros((4, 2), np.float32),
            "actions": np.zeros((4, 1), np.float32),
            "rewards": np.zeros(4, np.float32),
            "terminals": np.array([0, 1, 0, 1], np.float32),
        },
        source="/data/hunter2.npz",
    )
    # offline there is nothing to wait for: even a timeout that no machine can keep drops no row
    logger = Wandb(WandbConfig(tags=["mine"], timeout=1e-3))
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    logger.on_run_start(run)
    assert logger._run.settings.finish_timeout == 0.0, "no limit"
    for step in (10, 20):
        log_row(logger, run, {"loss/critic": step / 4}, env_steps=step, updates=2 * step, steps=step)
        run.state.best, run.state.last_eval = 5.0, float(-step)
        logger.on_evaluated(run, {"eval/return_mean": float(-step)})
    with_best_checkpoint(run)
    logger.on_run_end(run)
    assert (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()) == before
    return SimpleNamespace(folder=run.run_dir, id=logger.run_id, **vars(read_offline(run.run_dir)))


def test_an_offline_run_of_a_sweep_holds_what_a_dashboard_shows(sweep_run):
    rows = [(row["_step"], row["loss/critic"], row["env_steps"], row["updates"]) for row in sweep_run.rows]
    assert rows == [(10, 2.5, 10, 20), (20, 5.0, 20, 40)]
    assert {"epoch", "wall_time"} <= sweep_run.rows[0].keys()
    assert sweep_run.axes["loss/critic"] == "env_steps"
    assert {sweep_run.axes[name] for name in ("env_steps", "updates", "epoch", "wall_time")} == {""}
    (run,) = sweep_run.runs
    assert (run.run_id, run.run_group, run.display_name) == (sweep_run.id, "my_sweep", "algo=bcq,reward=clip_1")
    assert (run.job_type, list(run.tags)) == ("train", ["mine", "algo=bcq", "env=pendulum", "reward=clip_1"])
    assert (sweep_run.summary["best"], sweep_run.summary["last"]) == ("5.0", "-20.0")

    config = sweep_run.config
    assert config["seed"] == 3
    assert config["trainer"]["phases"]["pretrain"]["updates"] == 7, "resolved"
    assert config["key"] == "${oc.env:A_SECRET}", "but not what comes from the environment"
    assert config["twice"] == {"rate": "${rate}", "all": "${paths}"}, "nor what depends on it"
    assert config["choices"]["reward"] == "clip_1"

    (artifact,) = sweep_run.artifacts
    told = json.loads(artifact.metadata)
    assert (artifact.type, told["return"], told["steps"]) == ("model", 5.0, 20)
    assert len(told["dataset"].pop("hash")) == 64
    assert told["dataset"] == {
        "source": "mix",
        "id": None,
        "transitions": 4,
        "env": None,
        "mix": {
            "good": {"source": "minari", "id": "my/good-v0", "ratio": 3.0},
            "bad": {"source": "npz", "id": "/data/${key}.npz", "ratio": 1.0},
        },
    }
    (entry,) = artifact.manifest.contents
    assert Path(entry.local_path).read_text() == "{}", "a copy that waits for `wandb sync`"
    assert Path(entry.local_path).is_relative_to(sweep_run.folder / "wandb")

    written = [p for p in sweep_run.folder.rglob("*") if p.is_file()]
    assert any(p.suffix == ".wandb" for p in written)
    for secret in (*SECRETS.values(), "1.23456789e-05", "0123456789" * 4):
        assert not any(secret.encode() in p.read_bytes() for p in written)


def test_wandb_itself_reads_the_same(sweep_run):
    (path,) = sweep_run.folder.glob("wandb/offline-run-*/*.wandb")
    told = wandbs_own_words(path)
    rows = [record["history"] for record in told if record["type"] == "history"]
    assert len(rows) == len(sweep_run.rows)
    assert all(str(row["loss/critic"]) in json.dumps(theirs) for row, theirs in zip(sweep_run.rows, rows, strict=True))
    (run,) = (record["run"] for record in told if record["type"] == "run")
    assert run["run_group"] == "my_sweep"
    sync = [sys.executable, "-m", "wandb", "sync", "--dry-run", str(path.parent)]
    assert path.name in subprocess.run(sync, stdin=subprocess.DEVNULL, capture_output=True, text=True).stderr


def test_a_resumed_run_has_each_row_once_under_its_id(wandb, make_run, log_row):
    """Also those that a session lost when it was killed: they are in metrics.jsonl, up to the checkpoint."""
    rows = Jsonl(JsonlConfig())
    run = make_run(regime="offline_to_online")
    run.bus = CallbackBus({"jsonl": rows})
    rows.on_run_start(run)
    logger = Wandb(WandbConfig())
    logger.on_run_start(run)
    for updates in (50, 100):
        log_row(rows, run, {"loss/critic": 1.0}, updates=updates)
    log_row(logger, run, {"loss/critic": 1.0}, updates=50)  # and 100 got lost
    state = json.loads(json.dumps({"jsonl": rows.state(), "wandb": logger.state()}))
    logger.on_run_failed(run, RuntimeError("why"))
    rows.on_run_failed(run, RuntimeError("why"))

    again = make_run(resumed=True, regime="offline_to_online", steps=100)
    again.state.env_steps, again.state.updates = 0, 100
    rows, logger = Jsonl(JsonlConfig()), Wandb(WandbConfig())
    again.bus = CallbackBus({"jsonl": rows, "wandb": logger})
    again.bus.load_state(state)
    again.bus.emit("run_start", again)
    log_row(logger, again, {"eval/return_mean": 9.0}, updates=50)  # of a part of the run that is repeated
    log_row(logger, again, {"loss/critic": 2.0}, updates=50)
    again.state.phase = "online"
    log_row(logger, again, {"eval/return_mean": 3.0}, env_steps=10, updates=110, steps=110)
    logger.on_run_end(again)

    read = read_offline(run.run_dir)
    assert {record.run_id for record in read.runs} == {logger.run_id}
    assert [record.resume for record in read.runs] == [False, True], "`wandb sync` appends the second"
    metrics = [(row["_step"], name, value) for row in read.rows for name, value in row.items() if "/" in name]
    assert metrics == [
        (50, "pretrain/loss/critic", 1.0),
        (100, "pretrain/loss/critic", 1.0),
        (110, "eval/return_mean", 3.0),
    ]
    assert (read.axes["pretrain/loss/critic"], read.axes["eval/return_mean"]) == ("updates", "env_steps")


def test_a_file_that_is_written_after_the_end_is_waited_for(wandb, make_run, log_row, tmp_path):
    run = make_run()
    logger = Wandb(WandbConfig(artifact=False))
    logger.on_run_start(run)
    log_row(logger, run, {"loss/critic": 1.0}, env_steps=10)
    logger.on_run_end(run)
    (written,) = run.run_dir.glob("wandb/offline-run-*/*.wandb")
    late = tmp_path / "late.wandb"
    late.write_bytes(written.read_bytes()[:100])
    thread = threading.Timer(0.3, lambda: late.write_bytes(written.read_bytes()))
    thread.start()
    wait_for_end(late, patience=600.0)
    assert any(record.HasField("history") for record in records(late))
    thread.join()
    late.write_bytes(written.read_bytes()[:100])
    wait_for_end(late, patience=0.0)  # not for ever
    wait_for_end(tmp_path / "none.wandb")


def test_a_row_that_was_recorded_in_part_is_completed(wandb, make_run, log_row):
    run = make_run()
    logger = Wandb(WandbConfig(artifact=False))
    logger.on_run_start(run)
    log_row(logger, run, {"loss/critic": 1.0}, env_steps=10)
    logger.on_run_failed(run, RuntimeError("in the evaluation of this step"))
    again = make_run(resumed=True)  # ended before its first checkpoint: the id is that of the folder
    again.bus = CallbackBus({})
    second = Wandb(WandbConfig(artifact=False))
    assert second.run_id != logger.run_id
    second.on_run_start(again)
    log_row(second, again, {"loss/critic": 1.0}, env_steps=10)
    log_row(second, again, {"eval/return_mean": 2.0}, env_steps=10)
    second.on_run_end(again)
    read = read_offline(run.run_dir)
    assert [{n: v for n, v in row.items() if "/" in n} for row in read.rows] == [
        {"loss/critic": 1.0},
        {"eval/return_mean": 2.0},
    ]
    assert {record.run_id for record in read.runs} == {logger.run_id}


def test_a_video_is_kept_with_the_run(wandb, make_run, tmp_path):
    run = make_run(steps=5, folder=tmp_path / "run")
    video = tmp_path / "episode.gif"
    Image.new("RGB", (8, 8)).save(video, save_all=True, append_images=[Image.new("RGB", (8, 8), "red")])
    logger = Wandb(WandbConfig())
    logger.on_run_start(run)
    logger.on_video(run, video, 30.0)
    logger.on_run_end(run)
    read = read_offline(run.run_dir)
    kept = list(run.run_dir.glob("wandb/offline-run-*/files/media/videos/eval/*.gif"))
    assert [path.read_bytes() for path in kept] == [video.read_bytes()]
    assert any("eval/video" in name for name in read.rows[0])
    assert read.rows[0]["env_steps"] == 5


def test_the_agent_of_a_sweep_of_wandbs_own_says_what_the_run_is_called(monkeypatch):
    monkeypatch.setenv("WANDB_RUN_ID", "of-the-agent")
    assert new_id() != "of-the-agent"
    monkeypatch.setenv("WANDB_SWEEP_ID", "abc")
    assert new_id() == "of-the-agent"
    monkeypatch.setenv("WANDB_RUN_ID", "../elsewhere")
    assert new_id() != "../elsewhere"


def test_the_run_id_survives_a_resume():
    first = Wandb(WandbConfig())
    second = Wandb(WandbConfig())
    assert second.run_id != first.run_id
    second.load_state(json.loads(json.dumps(first.state())))
    assert second.run_id == first.run_id


def test_without_a_server_training_goes_on(wandb, make_run, monkeypatch, caplog, closed_port):
    monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{closed_port}")
    monkeypatch.setattr("urllib.request.getproxies", dict)
    bus = CallbackBus({"wandb": Wandb(WandbConfig(mode="online"))})
    with caplog.at_level(logging.WARNING, "rlx"):
        bus.emit("run_start", make_run())
    bus.emit("log", make_run(), {"kind": "train"})
    assert bus.callbacks == {}
    assert "cannot be reached" in caplog.text
    assert "mode=offline" in caplog.text


def test_a_proxy_is_left_to_judge(monkeypatch, closed_port):
    monkeypatch.setattr("urllib.request.getproxies", lambda: {"http": "http://proxy"})
    check_reachable(f"http://127.0.0.1:{closed_port}", 1.0)
    with pytest.raises(ConnectionError):
        check_reachable(f"https://127.0.0.1:{closed_port}", 1.0)


def test_an_unknown_mode_is_refused():
    with pytest.raises(UserError, match="offline, online, disabled"):
        Wandb(WandbConfig(mode="maybe"))


def test_a_run_that_failed_is_closed_as_such(wandb, make_run, log_row):
    run = make_run()
    logger = Wandb(WandbConfig())
    logger.on_run_failed(run, RuntimeError("before it began"))
    logger.on_run_start(run)
    log_row(logger, run, {"loss/critic": 1.0})
    logger.on_run_failed(run, RuntimeError("why"))
    assert [row["loss/critic"] for row in read_offline(run.run_dir).rows] == [1.0]
