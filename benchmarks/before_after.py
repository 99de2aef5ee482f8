"""Has a change of structure cost speed? Two checkouts of rlx, measured in turns.

    git worktree add /tmp/before COMMIT
    python benchmarks/before_after.py --before /tmp/before [--rounds 9] [CASE ...]

Each checkout gets a process of its own, both compute with one thread, and the two take turns case by case, so that
whatever else the machine does falls on both. A rate is work per second of processor time. Printed for each case: the
median of the ratios after / before over the rounds, and their spread. Above 1: the change made it faster.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
SECONDS = 1.0  # of processor time for each measurement
NEEDED = {  # what a change of structure has to keep
    "update/sac": 0.98, "update/td3": 0.98, "update/redq": 0.98, "update/dqn": 0.95, "update/ppo": 0.95,
    "sample/uniform": 0.95, "sample/n_step": 0.95, "sample/prioritized": 0.95, "sample/hindsight": 0.95,
    "run/ppo_cartpole": 0.95, "run/sac_pendulum": 0.95,
}  # fmt: skip


# -- in a checkout ---------------------------------------------------------------------------------------------------


def attribute(name: str, *modules: str) -> Any:
    """Something that has moved between the two checkouts."""
    for module in modules:
        try:
            return getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError):
            continue
    raise LookupError(f"none of {modules} has {name}")


def updates(algo: str, **settings: Any) -> Callable[[], int]:
    """Makes some updates on the same random batch; returns how many."""
    import torch

    from rlx.config import learners, schemas
    from rlx.types import Batch, Rollout, Spec

    torch.manual_seed(0)
    discrete = "box" not in learners()[algo].actions
    spec = Spec("env", (17,), "float32", "discrete", (), action_sizes=(6,)) if discrete else Spec(
        "env", (17,), "float32", "box", (6,), (-1.0,) * 6, (1.0,) * 6)  # fmt: skip
    cfg = schemas()[f"algo/{algo}"](**settings)
    learner = learners()[algo](cfg, spec)
    if "on_policy" in learner.regimes:
        obs = torch.randn(257, 8, 17)
        zeros = torch.zeros(256, 8)
        rollout = Rollout(obs[:-1], torch.randn(256, 8, 6), torch.randn(256, 8), obs[1:], zeros, zeros)
        steps = cfg.epochs * 256 * 8 // cfg.batch_size

        def learn() -> int:
            learner.update(rollout)
            return steps

        return learn
    n = cfg.batch_size
    action = torch.randint(6, (n,)) if discrete else 2 * torch.rand(n, 6) - 1
    batch = Batch(
        torch.randn(n, 17), action, torch.randn(n), torch.randn(n, 17), torch.zeros(n), torch.full((n,), 0.99)
    )

    def update() -> int:
        for _ in range(20):
            learner.update(batch)
        return 20

    return update


def samples(*overrides: str, env: str = "pendulum") -> Callable[[], int]:
    """Draws twenty minibatches from a full replay of 100,000 transitions."""
    import numpy as np

    from rlx.config import compose_config

    make = attribute("make_replay", "rlx.build", "rlx.workflows")
    env_spec = attribute("env_spec", "rlx.build", "rlx.workflows")
    cfg = compose_config([f"env={env}", "algo=sac", "replay.capacity=100000", "trainer.max_env_steps=null", *overrides])
    from omegaconf import OmegaConf

    env_cfg = OmegaConf.to_object(cfg.env)
    spec = env_spec(env_cfg)
    replay = make(cfg, spec, 4, None)
    if "hindsight" in str(overrides):
        from rlx.envs import make_env

        reward = attribute("instantiate", "rlx.config")(cfg.reward)
        attach = replay.attach_env if hasattr(replay, "attach_env") else replay.connect  # its former name
        attach(make_env(env_cfg), reward)
    rng = np.random.default_rng(0)
    for step in range(25_000):
        obs, next_obs = rng.standard_normal((2, 4, *spec.obs_shape), np.float32)
        action = rng.uniform(-1, 1, (4, *spec.action_shape)).astype(np.float32)
        ended = np.full(4, step % 50 == 49)
        replay.add(obs, action, rng.standard_normal(4), next_obs, np.zeros(4, bool), ended)

    def sample() -> int:
        return sum(1 for _ in replay.sample(256, 20))

    return sample


def runs(*overrides: str, steps: int) -> Callable[[], int]:
    """A whole short run."""
    import rlx

    short = ("trainer.eval_interval=0", "trainer.eval_episodes=1", "trainer.checkpoint_interval=0", "logger=jsonl")

    def run() -> int:
        with tempfile.TemporaryDirectory() as folder:
            rlx.train(*overrides, f"trainer.max_env_steps={steps}", *short, run_dir=f"{folder}/run", quiet=True)
        return steps

    return run


CASES: dict[str, Callable[[], Callable[[], int]]] = {
    "update/sac": lambda: updates("sac"),
    "update/td3": lambda: updates("td3"),
    "update/redq": lambda: updates("redq"),
    "update/dqn": lambda: updates("dqn"),
    "update/ppo": lambda: updates("ppo"),
    "sample/uniform": lambda: samples(),
    "sample/n_step": lambda: samples("replay.n_step=3"),
    "sample/prioritized": lambda: samples("replay=prioritized", "algo=dqn", env="cartpole"),
    "sample/hindsight": lambda: samples("replay=hindsight", env="point_goal"),
    "run/ppo_cartpole": lambda: runs("algo=ppo", "env=cartpole", steps=8192),
    "run/sac_pendulum": lambda: runs("algo=sac", "env=pendulum", "algo.hidden=[64,64]", steps=1600),
}


def work() -> None:
    """Answer the names of cases on standard input with rates."""
    import torch

    torch.set_num_threads(1)
    ready: dict[str, Callable[[], int]] = {}
    for line in sys.stdin:
        name = line.strip()
        if name not in ready:
            ready[name] = CASES[name]()
            ready[name]()  # the first call is slower
        done, start = 0, time.process_time()
        while (spent := time.process_time() - start) < SECONDS:
            done += ready[name]()
        print(json.dumps(done / spent), flush=True)


# -- in turns --------------------------------------------------------------------------------------------------------


def start(checkout: Path) -> subprocess.Popen[str]:
    env = {**os.environ, "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(HERE), "--work"]
    return subprocess.Popen(command, cwd=checkout, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def rate(process: subprocess.Popen[str], case: str) -> float:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{case}\n")
    process.stdin.flush()
    return float(process.stdout.readline())


def ratios(before: Path, cases: list[str], rounds: int) -> Iterator[tuple[str, list[float], list[float]]]:
    """By case the ratios after / before, and the rates after."""
    old, new = start(before), start(HERE.parents[1])
    try:
        for case in cases:
            pairs = []
            for i in range(rounds):
                first, second = (old, new) if i % 2 == 0 else (new, old)
                found = {id(p): rate(p, case) for p in (first, second)}
                pairs.append((found[id(old)], found[id(new)]))
            yield case, [b / a for a, b in pairs], [b for _, b in pairs]
    finally:
        for process in (old, new):
            process.terminate()
            process.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", help=f"of {', '.join(CASES)}; default: all")
    parser.add_argument("--before", type=Path, help="the other checkout")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        work()
        return 0
    if args.before is None or not (args.before / "rlx").is_dir():
        parser.error("--before has to be a checkout of rlx")
    unknown = set(args.cases) - set(CASES)
    if unknown:
        parser.error(f"no such case: {', '.join(sorted(unknown))}")
    lost = 0
    for case, found, rates in ratios(args.before.resolve(), args.cases or list(CASES), args.rounds):
        middle = statistics.median(found)
        lost += middle < NEEDED[case]
        spread, now = f"[{min(found):.2f}, {max(found):.2f}]", f"now {statistics.median(rates):,.0f}/s"
        print(f"{case:<20} {middle:5.2f}x  {spread}  {now}  needed {NEEDED[case]}x", flush=True)
    return int(lost > 0)


if __name__ == "__main__":
    sys.exit(main())
