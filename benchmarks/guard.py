"""What it costs to look for numbers that are not finite: updates per second of training with the checks and without.

    python benchmarks/guard.py [--pairs 200] [case ...]

One run per case on one thread, in which short blocks of steps with the checks and without take turns; CPU time, so that
other work on the machine counts less. `difference` is the median over pairs of blocks; a busy machine needs very many
pairs to tell a few microseconds from nothing. So the checks are also timed by themselves, as a share of a step: those
made at every step, and a look at all weights, made once per log interval. Together they have to stay below one percent.
"""

import argparse
import statistics
import tempfile
import time
import timeit
from pathlib import Path
from typing import Any

import numpy as np

import rlx.collectors.local as local
from rlx import build, workflows
from rlx.callbacks.bus import Callback, CallbackBus
from rlx.envs.actions import random_actions
from rlx.envs.vector import is_finite

CASES = {
    "SAC 2x256": ("algo=sac", "env=pendulum", "algo.hidden=[256,256]"),
    "TD3 2x64": ("algo=td3", "env=pendulum", "algo.hidden=[64,64]", "algo.batch_size=64"),
    "DQN 2x64": ("algo=dqn", "env=cartpole", "algo.hidden=[64,64]", "algo.batch_size=64"),
}
INTERVAL = 500  # steps between looks, the default of trainer.log_interval
BLOCK = 25  # steps


class Off:
    """A guard that looks at nothing."""

    def note(self, metrics: Any) -> None: ...

    def problem(self, updates: int) -> None: ...


class Turns(Callback):
    """Switches the checks on and off, and reads the clock in between."""

    order = 1

    def __init__(self) -> None:
        self.seconds: dict[bool, list[float]] = {True: [], False: []}  # of the blocks with the checks, and without
        self.look = 0.0  # seconds of a look
        self.checks = 0.0  # seconds of the checks at every step
        self.on: bool | None = None
        self.start = 0.0

    def on_iteration(self, trainer: Any) -> None:
        block, within = divmod(trainer.state.env_steps, BLOCK)
        if within or trainer.state.updates < INTERVAL:
            return
        if self.on is None:
            self.guard, self.check = trainer._guard, trainer.collector.envs._lanes.check
        else:
            self.seconds[self.on].append(time.process_time() - self.start)
        self.turn(trainer, on=block % 4 in (0, 3))  # on, off, off, on: a drift hits both alike
        self.start = time.process_time()

    def turn(self, trainer: Any, on: bool) -> None:
        self.on = on
        trainer._guard = self.guard if on else Off()
        trainer.collector.envs._lanes.check = self.check if on else (lambda step: step)
        local.is_finite = is_finite if on else (lambda x: True)  # type: ignore[assignment]

    def on_run_end(self, trainer: Any) -> None:
        self.turn(trainer, on=True)

        envs = trainer.collector.envs
        action = random_actions(trainer.spec, envs.num_envs, np.random.default_rng(0))
        step = envs.step([envs.action_space.sample()])

        def checks() -> None:
            self.check(step)
            is_finite(action)
            self.guard.note({})

        def looks() -> None:  # never twice at the same update
            self.guard.problem(-2)
            self.guard.problem(-3)

        def seconds(call: Any, number: int) -> float:
            return statistics.median(timeit.repeat(call, timer=time.process_time, number=number, repeat=20)) / number

        self.checks, self.look = seconds(checks, 2_000), seconds(looks, 10) / 2


def measure(overrides: tuple[str, ...], pairs: int) -> tuple[float, ...]:
    turns = Turns()
    make_bus = build.make_bus

    def with_turns(cfg: Any, progress: bool = True) -> CallbackBus:
        return CallbackBus({**make_bus(cfg, progress).callbacks, "turns": turns})

    build.make_bus = with_turns  # type: ignore[assignment]
    try:
        with tempfile.TemporaryDirectory() as folder:
            workflows.train(
                *overrides, "~algo_env", "threads=1", "logger=jsonl", "~callbacks.progress", "~callbacks.evaluate",
                "trainer.learning_starts=500", "trainer.train_frequency=1", "trainer.gradient_updates_per_step=1",
                "trainer.checkpoint_interval=0", "trainer.log_interval=1000000",
                f"trainer.max_env_steps={2 * INTERVAL + 2 * BLOCK * pairs}", run_dir=Path(folder) / "run",
            )  # fmt: skip
    finally:
        build.make_bus = make_bus
    on, off = turns.seconds[True], turns.seconds[False]
    difference = statistics.median(a / b for a, b in zip(on, off, strict=False)) - 1.0
    per_step = statistics.median(off) / BLOCK
    return 1.0 / per_step, difference, turns.checks / per_step, turns.look / INTERVAL / per_step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", default=list(CASES), help=f"of {', '.join(CASES)}")
    parser.add_argument("--pairs", type=int, default=200)
    args = parser.parse_args()
    print(f"{'case':12} {'updates/s without':>18} {'difference':>11} {'checks':>8} {'looks':>8}")
    for case in args.cases or CASES:
        rate, *shares = measure(CASES[case], args.pairs)
        print(f"{case:12} {rate:18,.0f} {shares[0]:11.2%} {shares[1]:8.2%} {shares[2]:8.2%}", flush=True)


if __name__ == "__main__":
    main()
