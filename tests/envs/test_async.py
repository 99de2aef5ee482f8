"""Workers of async envs: a signal to the whole process group ends the run as a signal to the trainer alone would."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import gymnasium as gym
import pytest
from helpers import SMALL

import rlx
from rlx.checkpoint import CheckpointStore
from rlx.envs.vector import AsyncEnvs

GUARD = 600  # seconds after which a test gives up: never what decides
ENDLESS = (
    "algo=sac", "env=pendulum", "~algo_env", *SMALL, "env.vectorization=async", "env.num_envs=2",
    "trainer.max_env_steps=100000000", "trainer.learning_starts=50", "trainer.eval_interval=0",
    "trainer.checkpoint_interval=0", "trainer.log_interval=20", "replay.capacity=1000",
)  # fmt: skip


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_to_the_group_saves_and_exits(number: int, code: int, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    command = [sys.executable, "-m", "rlx", *ENDLESS, f"run_dir={folder}"]
    with open(tmp_path / "said", "w") as said:
        process = subprocess.Popen(command, stdout=said, stderr=said, start_new_session=True)
    try:
        metrics = folder / "metrics.jsonl"
        deadline = time.monotonic() + GUARD
        while process.poll() is None and not (metrics.exists() and metrics.stat().st_size):
            assert time.monotonic() < deadline, (tmp_path / "said").read_text()
            time.sleep(0.05)
        os.killpg(process.pid, number)
        assert process.wait(GUARD) == code, (tmp_path / "said").read_text()
    finally:
        if process.poll() is None:
            process.kill()
    assert "Traceback" not in (tmp_path / "said").read_text()
    summary = json.loads((folder / "summary.json").read_text())
    assert CheckpointStore(folder / "checkpoints").latest().state["trainer"]["env_steps"] == summary["env_steps"]
    result = rlx.resume(folder, f"trainer.max_env_steps={summary['env_steps'] + 10}")
    assert result.summary["exact"]
    assert result.summary["env_steps"] == summary["env_steps"] + 10
    with pytest.raises(ProcessLookupError):  # nobody of the group is left
        os.killpg(process.pid, 0)


def test_envs_whose_worker_was_killed_can_still_be_closed() -> None:
    envs = AsyncEnvs([lambda: gym.make("Pendulum-v1")] * 2)
    envs.reset({0: 1, 1: 2})
    os.kill(envs._envs.processes[0].pid, signal.SIGKILL)
    envs._envs.processes[0].join()
    envs.close()
    assert not any(process.is_alive() for process in envs._envs.processes)


def test_a_process_that_forgets_its_envs_still_exits() -> None:
    """Workers ignore SIGTERM, by which the interpreter would end them."""
    code = (
        "import gymnasium as gym\nfrom rlx.envs.vector import AsyncEnvs\n"
        "envs = AsyncEnvs([lambda: gym.make('Pendulum-v1')] * 2)\nenvs.reset({0: 1, 1: 2})\nraise SystemExit(3)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=GUARD, check=False).returncode == 3
