from __future__ import annotations

import json
import logging
import random
import socket
import struct

import numpy as np
import pytest
import torch

from rlx.callbacks.bus import CallbackBus
from rlx.errors import UserError
from rlx.loggers.wandb import Wandb, WandbConfig, check_reachable


@pytest.fixture
def wandb(monkeypatch, tmp_path):
    module = pytest.importorskip("wandb")
    for name in ("WANDB_MODE", "WANDB_DISABLED", "WANDB_DIR", "WANDB_RUN_ID", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    for name in ("WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    return module


@pytest.fixture
def closed_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def records(data):
    """The records of a .wandb file: after 7 bytes, LevelDB's log format, crc (4) + length (2) + type (1) + payload."""
    block, at, whole = 32768, 7, b""
    while at + 7 <= len(data):
        if block - at % block < 7:  # no header fits: the rest of the block is padding
            at += block - at % block
            continue
        length, kind = struct.unpack("<HB", data[at + 4 : at + 7])
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # full, or the last part
            yield whole
            whole = b""


def read_offline(folder):
    """The history rows and the run's fields that an offline run wrote.

    wandb's own process writes the file, and goes on for a moment after `finish`: at the end of a program wandb waits
    for it, and so does this function.
    """
    import wandb
    from wandb.proto import wandb_internal_pb2

    wandb.teardown()
    rows, fields = [], {}
    for path in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        for data in records(path.read_bytes()):
            record = wandb_internal_pb2.Record.FromString(data)
            if record.HasField("history"):
                items = record.history.item
                rows.append({"/".join(i.nested_key) or i.key: json.loads(i.value_json) for i in items})
            if record.HasField("run"):
                run = record.run
                fields |= {u.key: json.loads(u.value_json) for u in run.config.update}
                fields |= {"run_id": run.run_id, "group": run.run_group, "tags": list(run.tags)}
    return rows, fields


def test_an_offline_run_holds_rows_and_the_unresolved_config(wandb, make_run, monkeypatch):
    monkeypatch.setenv("A_SECRET", "hunter2")
    run = make_run(cfg={"seed": 3, "key": "${oc.env:A_SECRET}"})
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    # offline there is nothing to wait for: even a timeout that no machine can keep drops no row
    logger = Wandb(WandbConfig(group="sweep", tags=["a", "b"], timeout=1e-3))
    logger.on_run_start(run)
    assert logger._run.settings.finish_timeout == 0.0, "no limit"
    for step in (10, 20):
        run.state.steps = step
        logger.on_log(run, {"kind": "train", "env_steps": step, "loss/critic": step / 4})
    logger.on_run_end(run)
    assert (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()) == before

    rows, config = read_offline(run.run_dir)
    assert [(row["_step"], row["loss/critic"], row["env_steps"]) for row in rows] == [(10, 2.5, 10), (20, 5.0, 20)]
    assert config["seed"] == 3
    assert config["key"] == "${oc.env:A_SECRET}"
    assert (config["run_id"], config["group"], config["tags"]) == (logger.run_id, "sweep", ["a", "b"])
    written = [p for p in run.run_dir.rglob("*") if p.is_file()]
    assert not any(b"hunter2" in p.read_bytes() for p in written)


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


def test_a_run_that_failed_is_closed_as_such(wandb, make_run):
    run = make_run()
    logger = Wandb(WandbConfig())
    logger.on_run_failed(run, RuntimeError("before it began"))
    logger.on_run_start(run)
    logger.on_log(run, {"kind": "train", "loss/critic": 1.0})
    logger.on_run_failed(run, RuntimeError("why"))
    rows, _ = read_offline(run.run_dir)
    assert [row["loss/critic"] for row in rows] == [1.0]
