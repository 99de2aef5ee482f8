"""What a search gains, on Pendulum with SAC (small networks): each part goes on where it was, if it was ended before.

    python benchmarks/search.py tpe [--jobs 1]     20 trials of TPE over learning rates and tau, 3,000 steps each; the
                                                   best of them against SAC's plain defaults, both over five new seeds
    python benchmarks/search.py asha [--jobs 1]    successive halving: env steps trained with pauses, and what the same
                                                   decisions cost if every promoted trial were restarted

Sweeps are kept below multirun_outputs/benchmarks/search; the figures are printed as JSON.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from rlx.cli import main
from rlx.sweeps.manifest import Sweep

FOLDER = Path("multirun_outputs") / "benchmarks" / "search"
SAC = ["algo=sac", "env=pendulum", "trainer.max_env_steps=3000", "trainer.eval_interval=500", "logger=jsonl"]
SPACE = ["algo.actor_lr=tag(log,interval(1e-4,1e-2))", "algo.critic_lr=tag(log,interval(1e-4,1e-2))",
         "algo.tau=tag(log,interval(0.002,0.1))"]  # fmt: skip
PLAIN = ["algo.actor_lr=3e-4", "algo.critic_lr=3e-4", "algo.tau=0.005"]  # the defaults of SACConfig
NEW_SEEDS = "seed=range(100,105)"


def sweep(name: str, jobs: int, *overrides: str) -> Sweep:
    folder = FOLDER / name
    code = main(["-m", *overrides, f"hydra.sweep.dir={folder}", f"hydra.launcher.jobs={jobs}"])
    if code:
        raise SystemExit(code)
    return Sweep.load(folder)


def tpe(jobs: int) -> dict[str, Any]:
    found = sweep("tpe", jobs, *SAC, *SPACE, "hydra/sweeper=optuna", "search.trials=20", "search.pruner=none")
    assert found.search is not None
    best = found.search["trials"][found.search["best"]]
    values = [f"{key}={value}" for key, value in best["values"].items()]
    figures: dict[str, Any] = {"best": best["values"], "value": best["value"], "importance": found.search["importance"]}
    for name, those in (("plain", PLAIN), ("tuned", values)):
        (result,) = sweep(f"tpe_{name}", jobs, *SAC, *those, NEW_SEEDS).results
        figures[name] = {key: result[key] for key in ("mean", "low", "high", "best", "runs")}
    return figures


def asha(jobs: int) -> dict[str, Any]:
    made = sweep("asha", jobs, *SAC, *SPACE, "hydra/sweeper=optuna", "search.trials=18", "search.scheduler=asha")
    assert made.search is not None
    paused = sum(job.result["env_steps"] for job in made.jobs if job.result is not None)
    trials = made.search["trials"]
    restarted = sum(int(step) for trial in trials for step, _ in trial["reports"])  # each rung from the beginning
    whole = len(trials) * made.search["steps"]
    best = trials[made.search["best"]]
    return {"trials": len(trials), "rungs": sorted({int(step) for t in trials for step, _ in t["reports"]}),
            "steps with pauses": paused, "steps with restarts": restarted, "steps without halving": whole,
            "best": best["values"], "value": best["value"]}  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("tpe", "asha"))
    parser.add_argument("--jobs", type=int, default=1)
    arguments = parser.parse_args()
    print(json.dumps({"tpe": tpe, "asha": asha}[arguments.part](arguments.jobs), indent=1))
