"""The loop and its regimes."""

from rlx.trainers.trainer import Phase, Trainer, TrainerConfig, TrainerState

__all__ = ["Phase", "Trainer", "TrainerConfig", "TrainerState"]
