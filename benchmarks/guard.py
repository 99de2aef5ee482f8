"""What it costs to look for numbers that are not finite: updates per second of training with the checks and without.

    python benchmarks/guard.py [--blocks 40] [case ...]

One run per case on one thread, in which blocks of one log interval with the checks and without take turns; CPU time, so
that other work on the machine counts little. `cost` is the median over pairs of blocks, `sum of parts` the time of the
checks themselves, taken apart from the run, as a share of a step. Below one percent is what we ask for.
"""

import argparse
import statistics
import tempfile
import time
import timeit
from pathlib import Path
from typing import Any

import rlx.trainers.trainer as loop
from rlx import workflows
from rlx.callbacks.bus import Callback, CallbackBus
from rlx.envs.vector import is_finite

CASES = {
    "SAC 2x256": ("algo=sac", "env=pendulum", "algo.hidden=[256,256]"),
    "TD3 2x64": ("algo=td3", "env=pendulum", "algo.hidden=[64,64]", "algo.batch_size=64"),
    "DQN 2x64": ("algo=dqn", "env=cartpole", "algo.hidden=[64,64]", "algo.batch_size=64"),
}
INTERVAL = 500  # steps between looks, the default of trainer.log_interval
WARM_UP = 2  # blocks


class Off:
    """A guard that looks at nothing."""

    def note(self, metrics: Any) -> None: ...

    def problem(self, updates: int) -> None: ...


class Turns(Callback):
    """Switches the checks on and off, and reads the clock in between."""

    order = 1

    def __init__(self, blocks: int):
        self.blocks = blocks
        self.seconds: list[tuple[bool, float]] = []
        self.parts = 0.0  # seconds of the checks per step
        self.on = True
        self.start = 0.0

    def on_iteration(self, trainer: Any) -> None:
        if trainer.state.env_steps % INTERVAL:
            return
        now = time.process_time()
        self.seconds.append((self.on, now - self.start))
        if len(self.seconds) == WARM_UP:
            self.guard, self.check = trainer._guard, trainer._envs._lanes.check
        if len(self.seconds) >= WARM_UP:
            self.turn(trainer, on=len(self.seconds) % 4 in (0, 3))  # on, off, off, on: a drift hits both alike
        self.start = time.process_time()

    def turn(self, trainer: Any, on: bool) -> None:
        self.on = on
        trainer._guard = self.guard if on else Off()
        trainer._envs._lanes.check = self.check if on else (lambda step: step)
        loop.is_finite = is_finite if on else (lambda x: True)  # type: ignore[assignment]

    def on_run_end(self, trainer: Any) -> None:
        self.turn(trainer, on=True)
        obs, action = trainer._runner.obs, trainer._random()
        reward = obs.sum(1).astype("float64")

        def best(call: Any, number: int) -> float:
            return min(timeit.repeat(call, timer=time.process_time, number=number, repeat=10)) / number

        per_step = best(lambda: (is_finite(obs), is_finite(reward), is_finite(action)), 5_000)
        look = best(lambda: (self.guard.problem(-2), self.guard.problem(-3)), 20) / 2  # never twice at the same update
        self.parts = per_step + look / INTERVAL


def measure(overrides: tuple[str, ...], blocks: int) -> tuple[float, float, float]:
    turns = Turns(blocks)
    make_bus = workflows.make_bus

    def with_turns(cfg: Any) -> CallbackBus:
        return CallbackBus({**make_bus(cfg).callbacks, "turns": turns})

    workflows.make_bus = with_turns  # type: ignore[assignment]
    steps = INTERVAL * (blocks + WARM_UP + 2)
    try:
        with tempfile.TemporaryDirectory() as folder:
            rlx_run = (
                *overrides, "~algo_env", "threads=1", "logger=jsonl", "~callbacks.progress", "~callbacks.evaluate",
                "trainer.learning_starts=500", "trainer.train_frequency=1", "trainer.gradient_updates_per_step=1",
                f"trainer.max_env_steps={steps}", "trainer.checkpoint_interval=0", f"trainer.log_interval={INTERVAL}",
            )  # fmt: skip
            workflows.train(*rlx_run, run_dir=Path(folder) / "run")
    finally:
        workflows.make_bus = make_bus
    timed = turns.seconds[WARM_UP + 1 :]
    on, off = ([s for was_on, s in timed if was_on is wanted] for wanted in (True, False))
    cost = statistics.median(a / b for a, b in zip(on, off, strict=False)) - 1.0
    per_step = statistics.median(off) / INTERVAL
    return 1.0 / per_step, cost, turns.parts / per_step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", default=list(CASES), help=f"of {', '.join(CASES)}")
    parser.add_argument("--blocks", type=int, default=40)
    args = parser.parse_args()
    print(f"{'case':12} {'updates/s without':>18} {'cost':>8} {'sum of parts':>13}")
    for case in args.cases:
        rate, cost, parts = measure(CASES[case], args.blocks)
        print(f"{case:12} {rate:18,.0f} {cost:8.2%} {parts:13.2%}", flush=True)


if __name__ == "__main__":
    main()
