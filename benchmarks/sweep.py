"""How much a sweep gains from processes of its own, and what starting one costs.

    python benchmarks/sweep.py [--jobs 12] [--steps 1500] [--folder multirun_outputs/benchmarks/sweep]

The same short jobs of SAC, on `local` with two processes and on `basic`, in turns; wall times of whole commands. The
start-up of a job is what a further job that trains for no step adds to a sweep, which includes building and saving it.
Each measurement is kept in FOLDER/times.json as soon as it is made; one that is there is not made again.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

TINY = ("algo=sac", "env=pendulum", "algo.hidden=[64,64]", "algo.batch_size=64", "trainer.eval_interval=0",
        "trainer.eval_episodes=1", "logger=jsonl", "trainer.checkpoint_interval=0")  # fmt: skip


def seconds(folder: Path, *overrides: str) -> float:
    shutil.rmtree(folder, ignore_errors=True)
    command = [sys.executable, "-m", "rlx", "-m", *TINY, *overrides, f"hydra.sweep.dir={folder}"]
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=12)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--folder", type=Path, default=Path("multirun_outputs/benchmarks/sweep"))
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    file = args.folder / "times.json"
    times: dict[str, float] = json.loads(file.read_text()) if file.exists() else {}
    local = ("hydra.launcher.jobs=2",)
    work = (f"seed=range({args.jobs})", f"trainer.max_env_steps={args.steps}")
    nothing = ("trainer.max_env_steps=0",)
    measurements = {
        f"local, {args.jobs} jobs of {args.steps} steps": (*work, *local),
        f"basic, {args.jobs} jobs of {args.steps} steps": (*work, "hydra/launcher=basic"),
        "local, 1 job of 0 steps": (*nothing, "seed=0", "hydra.launcher.jobs=1"),
        "local, 11 jobs of 0 steps, one at a time": (*nothing, "seed=range(11)", "hydra.launcher.jobs=1"),
    }
    for name, overrides in measurements.items():
        if name not in times:
            times[name] = seconds(args.folder / "runs", *overrides)
            file.write_text(json.dumps(times, indent=1))
        print(f"{name}: {times[name]:.1f} s")
    two, one, few, many = (times[name] for name in measurements)
    print(f"local with 2 processes is {one / two:.2f} times as fast as basic")
    print(f"a further job of 0 steps takes {(many - few) / 10:.2f} s")


if __name__ == "__main__":
    main()
