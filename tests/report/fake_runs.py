"""Run folders and sweeps as rlx leaves them, written within a millisecond: known numbers, no training."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from rlx.sweeps.manifest import Sweep


def eval_row(step: int, value: float, seconds: float, **more: Any) -> dict[str, Any]:
    counters = {"kind": "eval", "env_steps": step, "updates": step // 2, "epoch": 0, "wall_time": seconds}
    return counters | {"eval/return_mean": value, "eval/return_std": 2.0, "eval/length_mean": 200.0} | more


def train_row(step: int, seconds: float, **more: float) -> dict[str, Any]:
    return {"kind": "train", "env_steps": step, "updates": step // 2, "epoch": 0, "wall_time": seconds, **more}


def write_run(
    folder: Path,
    returns: Sequence[float],
    overrides: Sequence[str] = ("algo=sac", "env=pendulum"),
    *,
    algo: str = "sac",
    env: str = "Pendulum-v1",
    seed: int = 0,
    every: int = 100,
    config: Mapping[str, Any] | None = None,
    rows: Sequence[Mapping[str, Any]] = (),
    summary: Mapping[str, Any] | None = None,
    ended: bool = True,
) -> Path:
    """A run that was evaluated every so many env steps; `ended=False`: one without a summary."""
    folder.mkdir(parents=True, exist_ok=True)
    values = {
        "algo": {"name": algo, "lr": 0.001}, "env": {"id": env}, "trainer": {"eval_episodes": 4}, "seed": seed,
    }  # fmt: skip
    (folder / "config.yaml").write_text(yaml.safe_dump({**values, **(config or {})}))
    (folder / "overrides.yaml").write_text(yaml.safe_dump(list(overrides)))
    own = [eval_row(every * (i + 1), float(value), (i + 1) * (1 + 0.1 * seed)) for i, value in enumerate(returns)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [*own, *rows]))
    if ended:
        whole = {
            "algo": algo, "env": env, "seed": seed, "env_steps": every * len(returns), "updates": 50 * len(returns),
            "epoch": 0, "stop_reason": "max_env_steps", "eval_return_mean": float(returns[-1]),
            "best_eval_return_mean": float(max(returns)), "wall_time_s": 10.0, "resumed": False, "exact": True,
            "threads": 1, "versions": {"rlx": "0.1.0", "python": "3.11"},
        }  # fmt: skip
        (folder / "summary.json").write_text(json.dumps(whole | dict(summary or {})))
    return folder


def write_sweep(
    folder: Path,
    algos: Sequence[str] = ("sac", "td3", "ddpg"),
    rewards: Sequence[str] = ("identity", "clip_1"),
    seeds: int = 5,
    points: int = 12,
    failed: Sequence[int] = (7,),
    envs: Sequence[str] = ("Pendulum-v1",),
    metrics: int = 0,
    search: Mapping[str, Any] | None = None,
) -> Sweep:
    """A sweep whose runs get better along a line with noise; the numbers of `failed` jobs end half-way."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    swept = ["algo", "reward", *(["env"] if len(envs) > 1 else []), "seed"]
    sweep = Sweep(folder, command="python -m rlx -m algo=sac,td3", swept=swept, versions={"rlx": "0.1.0"})
    sweep.search = dict(search) if search else None
    jobs = len(algos) * len(rewards) * seeds * len(envs)
    for a, algo in enumerate(algos):
        for r, reward in enumerate(rewards):
            for env in envs:
                for seed in range(seeds):
                    choices = {"algo": algo, "reward": reward, "env": env, "seed": str(seed)}
                    choices = {key: choices[key] for key in swept}
                    overrides = [f"{key}={value}" for key, value in choices.items()]
                    job = sweep.add_job(overrides, choices, jobs)
                    broken = job.number in failed
                    x = np.arange(1, (points // 2 if broken else points) + 1)
                    returns = -1000 + x * (60 - 15 * a - 20 * r) + rng.normal(0, 30, len(x))
                    rows = [
                        train_row(100 * int(i), float(i), **{f"loss/{m}": float(rng.normal()) for m in range(metrics)})
                        for i in x
                        if metrics
                    ]
                    config = {"reward": {"name": reward}}
                    write_run(folder / job.folder, returns.tolist(), overrides, algo=algo, env=env, seed=seed,
                              ended=not broken, config=config, rows=rows)  # fmt: skip
                    job.state, job.attempts, job.exit_code = "done", 1, 0
                    job.started = job.ended = "2026-01-02T03:04:05+00:00"
                    if broken:
                        job.state, job.exit_code, job.reason = "failed", 1, "Training diverged: a weight is nan."
                        (folder / job.folder / "log.txt").write_text("step 600\n\x1b[31mTraining diverged\x1b[0m\n")
    sweep.ended = "2026-01-02T04:00:00+00:00"
    sweep.save()
    return sweep


def lock(folder: Path, pid: int) -> None:
    """As a process that writes there leaves it."""
    import re
    import socket

    host = re.sub(r"[^\w.-]", "-", socket.gethostname(), flags=re.ASCII)
    (folder / ".lock").write_text(f"process {pid} on {host} since 2026-01-02T03:04:05+00:00\n")


def dead_pid() -> int:
    """The number of a process that is gone."""
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    return child
