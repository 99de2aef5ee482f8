from __future__ import annotations

from types import SimpleNamespace

import pytest
from omegaconf import OmegaConf

from rlx.trainers.state import TrainerState
from rlx.trainers.trainer import Phase

PHASES = {
    "offline": {"offline": Phase(collect=0)},
    "off_policy": {"online": Phase(collect=1)},
    "offline_to_online": {"pretrain": Phase(collect=0, updates=100), "online": Phase(collect=1)},
}


@pytest.fixture
def make_run(tmp_path):
    """A trainer as loggers see it: a folder, a config, phases, counters. `steps` are env steps where there are any."""

    def make(steps: int = 0, resumed: bool = False, cfg: dict | None = None, regime: str = "off_policy", folder=None):
        phases = PHASES[regime]
        clock = "updates" if regime == "offline" else "env_steps"
        state = TrainerState(steps=steps, phase=next(iter(phases)), **{clock: steps})
        run_dir = folder or tmp_path
        run_dir.mkdir(parents=True, exist_ok=True)
        return SimpleNamespace(
            run_dir=run_dir,
            cfg=OmegaConf.create(cfg or {}),
            state=state,
            resumed=resumed,
            plan=SimpleNamespace(phases=phases),
            dataset=None,
        )

    return make


@pytest.fixture
def log_row():
    """Log a row as `Trainer.log` does, at these counters."""

    def log(logger, run, metrics, env_steps=0, updates=0, steps=None):
        run.state.env_steps, run.state.updates = env_steps, updates
        run.state.steps = env_steps + updates if steps is None else steps
        counters = {"env_steps": env_steps, "updates": updates, "epoch": 0, "wall_time": 1.0}
        logger.on_log(run, {"kind": "train", **counters, **metrics})

    return log
