"""How long a policy takes for the action of one observation, and a batch of a replay to be drawn.

    python benchmarks/acting.py [sac td3 ppo dqn ...] [--width 64] [--rounds 7]

Microseconds of processor time on one thread, the median over the rounds, in which native and Python nodes take turns.
`numpy` is the bare network of the same layers: three products, sums and activations. Policies are those that `rlx.load`
gives, of obs 17 and 6 actions (dimensions, or choices). Below them, batches of 256 transitions by `replay.n_step`.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from rlx.config import learners, schemas
from rlx.data.replay import Replay, ReplayConfig
from rlx.nn.native.choose import use_native
from rlx.policy import Policy
from rlx.types import Spec

OBS, ACTIONS, BATCH = 17, 6, 256


def spec_for(algo: str) -> Spec:
    if "box" in learners()[algo].actions:
        return Spec("x", (OBS,), "float32", "box", (ACTIONS,), (-1.0,) * ACTIONS, (1.0,) * ACTIONS)
    return Spec("x", (OBS,), "float32", "discrete", (), action_sizes=(ACTIONS,))


def microseconds(call: Callable[[], Any], calls: int = 2000) -> float:
    for _ in range(calls // 10):
        call()
    start = time.process_time()
    for _ in range(calls):
        call()
    return 1e6 * (time.process_time() - start) / calls


def bare_network(width: int) -> Callable[[], np.ndarray]:
    rng = np.random.default_rng(0)
    layers = [rng.standard_normal(shape, np.float32) for shape in ((OBS, width), (width, width), (width, ACTIONS))]
    biases = [np.zeros(layer.shape[1], np.float32) for layer in layers]
    obs = rng.standard_normal((1, OBS), np.float32)

    def run() -> np.ndarray:
        x = obs
        for layer, bias in zip(layers[:-1], biases, strict=False):
            x = np.maximum(x @ layer + bias, 0.0)
        return np.tanh(x @ layers[-1] + biases[-1])

    return run


def replay_of(n_step: int) -> Replay:
    spec = spec_for("sac")
    replay = Replay(ReplayConfig(capacity=100_000, n_step=n_step), spec, 1, 0.99, seed=0)
    rng, end = np.random.default_rng(0), np.zeros(1, np.float32)
    for _ in range(20_000):
        obs = rng.standard_normal((1, OBS), np.float32)
        replay.add(obs, np.zeros((1, ACTIONS), np.float32), end, obs, end, end)
    return replay


def draw(replay: Replay) -> list[Any]:
    return list(replay.sample(BATCH, 1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("algos", nargs="*", default=["sac", "td3", "ppo", "dqn"])
    parser.add_argument("--width", type=int, default=64, help="of both layers")
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    torch.set_num_threads(1)
    obs = np.random.default_rng(1).standard_normal(OBS, np.float32)
    calls: dict[str, Callable[[], Any]] = {}
    for algo in args.algos:
        learner = learners()[algo](schemas()[f"algo/{algo}"](hidden=[args.width] * 2), spec_for(algo))
        calls[algo] = partial(Policy(learner).act, obs)
    for n_step in (1, 3):
        calls[f"n_step={n_step}"] = partial(draw, replay_of(n_step))
    times: dict[tuple[str, bool], list[float]] = {}
    bare = []
    for _ in range(args.rounds):
        bare.append(microseconds(bare_network(args.width)))
        for native in (True, False):
            use_native(native)
            for name, call in calls.items():
                times.setdefault((name, native), []).append(microseconds(call))
    print(f"| us | native | python |\n|---|---|---|\n| numpy | {statistics.median(bare):.1f} | |")
    for name in calls:
        print(f"| {name} | " + " | ".join(f"{statistics.median(times[name, on]):.1f}" for on in (True, False)) + " |")


if __name__ == "__main__":
    main()
