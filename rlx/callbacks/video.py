"""Videos of evaluation episodes: `callbacks=[default,video]` writes RUN/videos/step_*.mp4.

They are filmed in an env of their own, from seeds of their own, with all random states put back: a run with videos
comes to the same weights as one without.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rlx.callbacks.bus import Callback
from rlx.errors import UserError
from rlx.fields import check_numbers, number
from rlx.run_folder import refuse_link
from rlx.system import INTERRUPTED
from rlx.video import check_video, record

if TYPE_CHECKING:
    from rlx.trainers.trainer import Trainer

VIDEOS = "videos"  # the folder, below that of the run


@dataclass
class VideoConfig:
    """How often, and how many episodes."""

    _target_: str = "rlx.callbacks.video.Video"
    every: int = number(5, least=0)  # evaluations from one video to the next; 0: only at the end
    episodes: int = number(1, least=1)  # of each video


class Video(Callback):
    """Films the policy at every `every`-th evaluation and at the end, and tells the loggers."""

    order = 35
    critical = False

    def __init__(self, cfg: VideoConfig):
        check_numbers(cfg, "callbacks.video")
        self.cfg = cfg
        self.evaluations = 0  # so far
        self.last = 0  # steps at the last video

    def check(self, trainer: Trainer) -> None:
        if trainer.env_config is None:
            raise UserError("callbacks.video has no environment to film; give env=... or drop callbacks.video.")
        refuse_link(trainer.run_dir / VIDEOS)
        check_video(trainer.env_config, trainer.cfg.trust)

    def on_evaluated(self, trainer: Trainer, metrics: dict[str, float]) -> None:
        self.evaluations += 1
        if self.cfg.every and self.evaluations % self.cfg.every == 0:
            self._film(trainer)

    def on_run_end(self, trainer: Trainer) -> None:
        if trainer.state.steps > self.last and trainer.state.stop_reason not in INTERRUPTED:
            self._film(trainer)

    def state(self) -> dict[str, Any]:
        return {"evaluations": self.evaluations, "last": self.last}

    def load_state(self, state: dict[str, Any]) -> None:
        self.evaluations, self.last = state["evaluations"], state["last"]

    def _film(self, trainer: Trainer) -> None:
        assert trainer.env_config is not None
        self.last = trainer.state.steps
        folder = trainer.run_dir / VIDEOS
        folder.mkdir(exist_ok=True)
        path = folder / f"step_{trainer.state.steps:012d}.mp4"
        seed = int(np.random.SeedSequence([int(trainer.cfg.seed), 0x71DE0]).generate_state(1)[0])
        made = record(trainer.learner, trainer.env_config, path, self.cfg.episodes, seed, trainer.cfg.trust)
        trainer.bus.emit("video", trainer, made.path, made.fps)
