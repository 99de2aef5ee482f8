"""What prior data are worth: RLPD against SAC from scratch and SAC with the same data in its batches.

    python benchmarks/prior_data.py --data DATA_FOLDER [--cases pendulum hopper] [--seeds 5] [--jobs 2] [--table]

DATA_FOLDER holds pendulum-rllib-sac-medium.npz and gen-hopper-v5-medium.npz. Networks, batch size and learning rates
are the same for all three; RLPD has its ten LayerNorm critics and several updates per env step. Prints the env steps
until the evaluation return first reaches the threshold, as the median over seeds; runs and curves go to
docs/benchmarks/prior_data.json and .png, and runs that are there already are not made again.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from side_by_side import OUT, Points, Store, arguments, draw, make_runs, train_rlx

SETTINGS: dict[str, dict[str, Any]] = {
    "pendulum": {"data": "pendulum-rllib-sac-medium.npz", "threshold": -200, "steps": 4_000, "every": 200, "lr": 1e-3,
                 "learning_starts": 200, "updates_per_step": 4},
    "hopper": {"data": "gen-hopper-v5-medium.npz", "threshold": 1_000, "steps": 15_000, "every": 1_000, "lr": 3e-4,
               "learning_starts": 1_000, "updates_per_step": 4},
}  # fmt: skip
CONTESTANTS = ("RLPD", "SAC with the data", "SAC")


def run(contestant: str, env: str, data: Path, seed: int) -> Points:
    s = SETTINGS[env]
    found = [f"env={env}", "~algo_env", "threads=1", "algo.hidden=[64,64]", "trainer.eval_episodes=10", "logger=jsonl",
             f"trainer.max_env_steps={s['steps']}", f"trainer.eval_interval={s['every']}",
             f"trainer.learning_starts={s['learning_starts']}", "trainer.checkpoint_interval=0", "~callbacks.progress",
             *(f"algo.{part}_lr={s['lr']}" for part in ("actor", "critic", "alpha"))]  # fmt: skip
    found += ["algo=rlpd" if contestant == "RLPD" else "algo=sac"]
    if contestant == "RLPD":
        found += [f"trainer.gradient_updates_per_step={s['updates_per_step']}"]
    if contestant != "SAC":
        found += ["dataset=npz", f"dataset.path={data / s['data']}", "trainer.offline_batch_ratio=0.5"]
    return train_rlx(found, seed)


def steps_to(points: Points, threshold: float) -> float:
    return next((step for step, value in points if value >= threshold), float("inf"))


def main() -> None:
    parser = arguments(__doc__, SETTINGS)
    parser.add_argument("--data", type=Path, required=True)
    args = parser.parse_args()
    if args.work:
        contestant, case, seed = args.work
        print("RESULT " + json.dumps(run(contestant, case, args.data, int(seed))))
        return
    store = Store(OUT / "prior_data.json")
    print(
        "| env | threshold | " + " | ".join(f"{c}: env steps, seeds" for c in CONTESTANTS) + " |\n" + "|---" * 5 + "|"
    )
    pythons = dict.fromkeys(CONTESTANTS, sys.executable)
    for case in make_runs(args, __file__, store, SETTINGS, pythons, ["--data", str(args.data.resolve())]):
        threshold, cells = SETTINGS[case]["threshold"], []
        for contestant in CONTESTANTS:
            steps = np.array([steps_to(points, threshold) for points in store.runs(case, contestant)])
            median = float(np.median(steps)) if len(steps) else float("nan")
            shown = f"{median:,.0f}" if np.isfinite(median) else f"over {SETTINGS[case]['steps']:,}"
            cells.append(f"{shown}, {np.isfinite(steps).sum()} of {len(steps)}")
        print(f"| {case} | {threshold} | {' | '.join(cells)} |", flush=True)
    draw(store, [case for case in SETTINGS if case in store.cases], OUT / "prior_data.png")


if __name__ == "__main__":
    main()
