"""Where a run is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class TrainerState:
    """Where a run is. Part of every checkpoint."""

    env_steps: int = 0
    updates: int = 0
    steps: int = 0  # the clock of the regime
    epoch: int = 0
    episodes: int = 0
    phase: str = ""
    phase_env_steps: int = 0  # within the phase
    phase_updates: int = 0
    collected: int = 0  # vector steps collected in the iteration under way
    should_stop: bool = False
    stop_reason: str = ""
    last_eval: float | None = None  # mean return of the latest evaluation
    best: float | None = None  # the highest of them
    wall_time: float = 0.0  # seconds of training, all sessions together
    exact: bool = True  # False once a resume could not put an env back to where it was
