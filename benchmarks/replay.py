"""How fast minibatches are read from a replay, and how much memory images take.

    python benchmarks/replay.py                       microseconds per minibatch, and MiB
    python benchmarks/replay.py --against FOLDER      the same for this and for another checkout, in turns: ratios

Rows are random numbers; a case is the fastest of many rounds, as other work on the machine only ever adds time.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from rlx.data.replay import Replay, ReplayConfig
from rlx.envs import EnvConfig, make_env, spec_of
from rlx.rewards import RewardConfig, RewardTransform
from rlx.types import Spec

ROWS, BATCH, BATCHES = 300_000, 256, 8
VECTOR = Spec("x", (17,), "float32", "box", (6,), (-1.0,) * 6, (1.0,) * 6)
IMAGE = Spec("x", (4, 84, 84), "uint8", "discrete", (), action_sizes=(4,))
FRAMES = 20_000


def vectors(spec: Spec = VECTOR, rows: int = ROWS, **options: object) -> Replay:
    """Episodes of 50 steps."""
    rng = np.random.default_rng(0)
    replay = Replay(ReplayConfig(capacity=rows, **options), spec, 1, 0.99, seed=0)  # type: ignore[arg-type]
    obs = rng.standard_normal((rows, *spec.obs_shape), dtype=np.float32)
    action = rng.uniform(-1, 1, (rows, *spec.action_shape)).astype(np.float32)
    over = np.arange(rows) % 50 == 49
    replay.add(obs, action, rng.standard_normal(rows, dtype=np.float32), obs, over & False, over)
    return replay


def goals(**options: object) -> Replay:
    env = make_env(EnvConfig(id="rlx/PointGoal-v0"))
    replay = vectors(spec_of(env, "rlx/PointGoal-v0"), ROWS // 4, hindsight=True, **options)
    replay.attach_env(env, RewardTransform(RewardConfig()))
    return replay


def images(**options: object) -> Replay:
    """Stacks of four frames, episodes of 200 steps."""
    pool = np.random.default_rng(0).integers(0, 255, (512, 84, 84), np.uint8)
    replay = Replay(ReplayConfig(capacity=FRAMES, **options), IMAGE, 1, 0.99, seed=0, frames={"obs": 4})  # type: ignore[arg-type]
    stack = np.repeat(pool[:1], 4, 0)
    for t in range(FRAMES):
        after = np.concatenate([stack[1:], pool[7 * t % 512][None]])
        over = np.array([t % 200 == 199])
        replay.add(stack[None], np.zeros(1, np.int64), np.ones(1), after[None], over, ~over & False)
        stack = np.repeat(pool[t % 512][None], 4, 0) if over[0] else after
    return replay


CASES: dict[str, tuple[Callable[..., Replay], dict[str, object], int]] = {
    "uniform": (vectors, {}, BATCH),
    "uniform, n_step=3": (vectors, {"n_step": 3}, BATCH),
    "prioritized": (vectors, {"prioritized": True}, BATCH),
    "prioritized, n_step=3": (vectors, {"prioritized": True, "n_step": 3}, BATCH),
    "hindsight": (goals, {}, BATCH),
    "hindsight, n_step=3": (goals, {"n_step": 3}, BATCH),
    "hindsight, prioritized, n_step=3": (goals, {"prioritized": True, "n_step": 3}, BATCH),
    "images": (images, {}, 32),
    "images, n_step=3": (images, {"n_step": 3}, 32),
}


def measure(rounds: int) -> dict[str, float]:
    """Microseconds per minibatch, priorities set anew included."""
    found = {}
    for name, (make, options, size) in CASES.items():
        replay = make(**options)
        best = float("inf")
        for _ in range(rounds):
            start = time.perf_counter()
            for batch in replay.sample(size, BATCHES):
                if batch.index is not None:
                    replay.prioritize(batch.index, batch.reward.abs())
            best = min(best, time.perf_counter() - start)
        found[name] = 1e6 * best / BATCHES
    return found


def in_checkout(folder: Path, rounds: int) -> dict[str, float]:
    """The same script in another process, on the code of a checkout."""
    command = [sys.executable, str(folder / "benchmarks" / "replay.py"), "--json", "--rounds", str(rounds)]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(folder)}, stdout=subprocess.PIPE, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON and nothing else")
    parser.add_argument("--against", type=Path, help="another checkout that has this script")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.json:
        print(json.dumps(measure(options.rounds)))
        return
    if options.against is not None:
        here = Path(__file__).resolve().parents[1]
        pairs = [(in_checkout(here, options.rounds), in_checkout(options.against, options.rounds)) for _ in range(3)]
        for name in CASES:
            ours, theirs = (min(pair[k][name] for pair in pairs if name in pair[k]) for k in (0, 1))
            print(f"{name:34s} {ours:8.1f} us  {theirs:8.1f} us there  {theirs / ours:.2f}x")
        return
    for name, microseconds in measure(options.rounds).items():
        print(f"{name:34s} {microseconds:8.1f} us per minibatch")
    million = Replay(ReplayConfig(capacity=1_000_000), IMAGE, 1, 0.99, seed=0, frames={"obs": 4})
    print(f"a million stacks of 4 x 84 x 84: {million.nbytes / 2**30:.2f} GiB")


if __name__ == "__main__":
    main()
