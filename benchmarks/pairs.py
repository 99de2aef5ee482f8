"""Do the tuned pairs of the offline algorithms on Pendulum hold on all kinds of data?

    python benchmarks/pairs.py --data DATA_FOLDER [--algos cql iql ...] [--sets expert ...] [--seeds 3] [--table]
                               [--with KEY=VALUE ... --store FILE]

A pair belongs to an algorithm and an env, so that it has to do on a narrow set of an expert
(pendulum-rllib-sac-expert.npz), on a bimodal one (pendulum-rllib-sac-medium.npz), both in DATA_FOLDER, and on the broad
built-in one (dataset=minari). Each run is the pair as it is, offline; what it reached is the mean return of 20
deterministic episodes after the last update. Prints mean and minimum over seeds beside the behaviour's mean return.
Runs go to docs/benchmarks/pairs.json, one by one, and are not made again while the pair stays the same: a comparison
that was stopped goes on where it was. --with tries other values, and then wants a --store of its own.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import OmegaConf
from side_by_side import OUT, Store

import rlx
from rlx.config import compose_config
from rlx.data import load_transition_dataset

ALGOS = ("bc", "td3_bc", "awac", "iql", "cql", "cal_ql", "bcq", "bear")
FILES = {"expert": "pendulum-rllib-sac-expert.npz", "medium": "pendulum-rllib-sac-medium.npz"}
SETS = (*FILES, "mixed")
BUILT_IN = "rlx/pendulum/mixed-v0"


def overrides(algo: str, name: str, data: Path, more: list[str]) -> list[str]:
    source = ["dataset=npz", f"dataset.path={data / FILES[name]}"] if name in FILES else ["dataset=minari"]
    fixed = ["trainer=offline", "threads=1", "logger=none", "~callbacks.progress"]
    ends = ["trainer.eval_interval=0", "trainer.eval_episodes=20", "trainer.checkpoint_interval=0"]
    return [f"algo={algo}", "env=pendulum", *source, *fixed, *ends, *more]


def settings(algo: str, name: str, data: Path, more: list[str]) -> dict[str, Any]:
    """Everything of a pair that a run depends on."""
    cfg = compose_config(overrides(algo, name, data, more))
    parts = OmegaConf.to_container(cfg, resolve=True, enum_to_str=True)
    assert isinstance(parts, dict)
    changed = {key: value for key, value in parts["reward"].items() if key in ("scale", "normalize_return")}
    schedule = parts["schedule"]["kind"]
    return {"algo": parts["algo"], "reward": changed, "schedule": schedule, "updates": parts["trainer"]["max_updates"]}


def run(algo: str, name: str, data: Path, more: list[str], seed: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        result = rlx.train(*overrides(algo, name, data, more), run_dir=Path(folder) / "run", seed=seed)
    return float(result.summary["eval_return_mean"])


def table(store: Store, algos: list[str], sets: list[str], behaviour: dict[str, float]) -> str:
    head = [f"{name} ({behaviour[name]:.0f})" if name in behaviour else name for name in sets]
    lines = ["| algorithm | " + " | ".join(head) + " |", "|---" * (len(sets) + 1) + "|"]
    for algo in algos:
        cells = []
        for name in sets:
            returns = [points[0][1] for points in store.runs(f"{algo}/{name}", "rlx")]
            text = f"{np.mean(returns):.0f} (min {min(returns):.0f}, {len(returns)} seeds)" if returns else "-"
            cells.append(text)
        lines.append(f"| {algo} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--algos", nargs="*", default=list(ALGOS))
    parser.add_argument("--sets", nargs="*", default=list(SETS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--with", nargs="*", default=[], dest="more", metavar="KEY=VALUE")
    parser.add_argument("--store", type=Path, default=OUT / "pairs.json")
    parser.add_argument("--table", action="store_true", help="make no runs, only print what the store holds")
    args = parser.parse_args()
    if args.more and args.store == OUT / "pairs.json":
        parser.error("--with is no pair; give a --store of its own")
    store = Store(args.store)
    behaviour = {}
    for name in args.sets:
        source = args.data / FILES[name] if name in FILES else BUILT_IN
        behaviour[name] = float(load_transition_dataset(source).returns().mean())
    for seed in range(0 if args.table else args.seeds):  # a first seed of everything, then a second
        for algo in args.algos:
            for name in args.sets:
                case = f"{algo}/{name}"
                known = store.open(case, settings(algo, name, args.data, args.more))
                if str(seed) in known.get("rlx", {}):
                    continue
                reached = run(algo, name, args.data, args.more, seed)
                store.add(case, "rlx", seed, [[known["settings"]["updates"], round(reached, 1)]])
                print(f"{case:<16} seed {seed}  {reached:8.1f}   behaviour {behaviour[name]:.1f}", flush=True)
    print(table(store, args.algos, args.sets, behaviour))


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
