"""The loop and its regimes."""

from rlx.trainers.state import TrainerState
from rlx.trainers.trainer import Phase, Trainer, TrainerConfig

__all__ = ["Phase", "Trainer", "TrainerConfig", "TrainerState"]
