"""An env that ends its process in the way it is told to, as long as the file named by TROUBLE is there."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


def _hang() -> None:
    while True:
        time.sleep(60)


def _wait() -> None:
    while Path(os.environ["TROUBLE"]).exists():
        time.sleep(0.05)


FAULTS: dict[str, Any] = {
    "none": lambda: None,
    "raise": lambda: 1 / 0,
    "exit": lambda: sys.exit(7),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "segfault": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "hang": _hang,
    "wait": _wait,
}


class Trouble(gym.Env):
    """Ten steps of noise; the reward is the action."""

    observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, fault: str = "none", at: int = 45):
        self.fault, self.at, self.steps = fault, at, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self._count = 0
        return self._observe(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        self._count += 1
        self.steps += 1
        armed = Path(os.environ.get("TROUBLE", "/nowhere")).exists()
        if armed and self.steps == self.at:
            FAULTS[self.fault]()
        return self._observe(), float(action[0]), False, self._count == 10, {}

    def _observe(self) -> np.ndarray:
        return self.np_random.uniform(-1, 1, 2).astype(np.float32)


gym.register("Trouble-v0", entry_point=Trouble)

TINY = (
    "env.id=trouble:Trouble-v0", "algo=sac", "algo.hidden=[8]", "algo.batch_size=8", "trainer.max_env_steps=80",
    "trainer.learning_starts=10", "trainer.log_interval=20", "trainer.eval_interval=40", "trainer.eval_episodes=1",
    "trainer.checkpoint_interval=20", "logger=jsonl",
)  # fmt: skip
