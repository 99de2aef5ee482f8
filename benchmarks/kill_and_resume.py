"""Kill runs at random moments with SIGKILL, resume them, and count how many end with the bits of the undisturbed run.

    python benchmarks/kill_and_resume.py --kills 10 --seed 0

For each regime one run is left alone and the others are killed, each at a moment drawn from the whole of its life, and
resumed to the end by `python -m rlx resume`. Two runs are the same if every tensor of the last and the best checkpoint
(networks, targets, optimizers, random states, env journal, replay), every counter and every row of metrics.jsonl, wall
times aside, are the same.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from rlx.checkpoint import Checkpoint, CheckpointStore, read_folder

COMMON = ("threads=1", "logger=jsonl", "~callbacks.progress", "~algo_env", "algo.hidden=[32,32]", "algo.batch_size=32",
          "trainer.eval_episodes=2")  # fmt: skip
INTERVALS = ("trainer.checkpoint_interval={0}", "trainer.eval_interval={0}", "trainer.log_interval=100")
REGIMES = {
    "off_policy": ("algo=sac", "env=pendulum", "env.num_envs=2", "trainer.max_env_steps=2000",
                   "trainer.learning_starts=300", *(i.format(350) for i in INTERVALS)),
    "on_policy": ("algo=ppo", "env=cartpole", "env.num_envs=2", "trainer.max_env_steps=8000",
                  "trainer.rollout_length=128", *(i.format(700) for i in INTERVALS)),
    "offline": ("algo=td3_bc", "env=pendulum", "dataset=random", "dataset.size=2000", "trainer.max_updates=4000",
                *(i.format(700) for i in INTERVALS)),
    "offline_to_online": ("algo=rlpd", "env=pendulum", "dataset=random", "dataset.size=2000",
                          "trainer.pretrain_updates=300", "trainer.max_env_steps=1000", "trainer.learning_starts=100",
                          "trainer.gradient_updates_per_step=2", *(i.format(250) for i in INTERVALS)),
}  # fmt: skip


def start(*arguments: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "rlx", *arguments]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen) -> None:
    _, err = process.communicate()
    if process.returncode != 0:
        sys.exit(f"A run failed with code {process.returncode}: {err}")


def kill(overrides: tuple[str, ...], folder: Path, delay: float) -> bool:
    """Start a run and kill it `delay` seconds after its folder appeared; False if it was done before."""
    process = start(*overrides, f"run_dir={folder}")
    while process.poll() is None and not (folder / "config.yaml").exists():
        time.sleep(0.001)
    time.sleep(delay)
    process.kill()
    _, err = process.communicate()
    if process.returncode not in (0, -signal.SIGKILL):
        sys.exit(f"A run failed with code {process.returncode}: {err}")
    return process.returncode == -signal.SIGKILL


def content(folder: Path) -> dict[str, Any]:
    """Everything of a run that has to be the same."""
    store = CheckpointStore(folder / "checkpoints")
    last, best = store.latest(), read_folder(folder / "checkpoints" / "best")
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for row in rows:
        del row["wall_time"]
    del last.state["callbacks"]["jsonl"]  # the length of a file that has wall times in it
    return {
        "metrics": rows,
        "state": {k: {**v, "wall_time": 0} if k == "trainer" else v for k, v in last.state.items()},
        "replay": [s["sha256"] for s in last.segments],
        "last": tensors(last),
        "best": (best.path.resolve().name if best.path else "", tensors(best)),
    }


def tensors(checkpoint: Checkpoint) -> dict[str, bytes]:
    found = {f"{group}.{k}": v for group, values in checkpoint.tensors.items() for k, v in values.items()}
    return {k: v.contiguous().view(-1).view(torch.uint8).numpy().tobytes() for k, v in found.items() if v.numel()}


def measure(regime: str, kills: int, chance: random.Random, folder: Path) -> tuple[int, int, list[str]]:
    """How many of the killed runs end as the undisturbed one, and how many had no checkpoint yet."""
    overrides = (*REGIMES[regime], *COMMON)
    finish(start(*overrides, f"run_dir={folder / 'whole'}"))
    reference = content(folder / "whole")
    seconds = json.loads((folder / "whole" / "summary.json").read_text())["wall_time_s"]
    same, early, different = 0, 0, []
    for k in range(kills):
        run, share = folder / str(k), chance.random()
        attempt = 0
        while not kill(overrides, run, share * seconds * 0.9**attempt):  # it was done already: somewhat earlier
            run, attempt = folder / f"{k}.{attempt}", attempt + 1
        early += not CheckpointStore(run / "checkpoints").steps()
        finish(start("resume", str(run)))
        found = content(run)
        wrong = [part for part in reference if found[part] != reference[part]]
        same += not wrong
        different += [f"kill {k}: {', '.join(wrong)} of {run}"] if wrong else []
    return same, early, different


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=10, help="per regime")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--regimes", nargs="+", choices=list(REGIMES), default=list(REGIMES))
    options = parser.parse_args()
    total, good = 0, 0
    print(f"{'regime':<20}{'kills':>8}{'before the first checkpoint':>30}{'bit-identical':>16}")
    with tempfile.TemporaryDirectory() as folder:
        for regime in options.regimes:
            chance = random.Random(f"{options.seed} {regime}")
            same, early, different = measure(regime, options.kills, chance, Path(folder) / regime)
            print(f"{regime:<20}{options.kills:>8}{early:>30}{same:>16}", *different, sep="\n  ", flush=True)
            total, good = total + options.kills, good + same
    print(f"{good} of {total} bit-identical")
    sys.exit(0 if good == total else 1)


if __name__ == "__main__":
    main()
