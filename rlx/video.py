"""Videos of a policy at work: frames of an env of its own, written as mp4 while they are drawn.

The ffmpeg that writes them comes with the package imageio-ffmpeg. Recording leaves every random state as it was.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np

from rlx.agent import LearnerAgent
from rlx.envs.evaluation import EvaluatedEpisodes, run_episodes
from rlx.envs.factory import EnvConfig
from rlx.envs.rendering import FRAMES, Filmed, fps_of, frame_of, make_rendered
from rlx.envs.vector import SyncEnvs
from rlx.errors import RunFailed, UserError
from rlx.files import remove
from rlx.learner import Learner
from rlx.rng import load_rng_state, rng_state, seeded
from rlx.run_folder import refuse_link

MOST_FPS = 60.0  # an env that has more steps per second is filmed at every second or third one
SMALLEST = 128  # pixels; smaller pictures are enlarged


class Recording(NamedTuple):
    """A video that was written, and what its episodes came to."""

    path: Path
    fps: float
    episodes: EvaluatedEpisodes


class Mp4:
    """Writes frames of one size to a file; it is there once all is written."""

    def __init__(self, path: Path, fps: float):
        self.path, self.fps = path, fps
        self._beside = path.with_name(f".{path.stem}.writing.mp4")  # ffmpeg goes by how the name ends
        self._writer: Any = None
        self._scale = 1

    def add(self, frame: np.ndarray) -> None:
        if self._writer is None:
            self._open(frame)
        if self._scale > 1:
            frame = frame.repeat(self._scale, 0).repeat(self._scale, 1)
        height, width = frame.shape[0] // 2 * 2, frame.shape[1] // 2 * 2  # the usual pixel format takes even sizes
        self._writer.send(np.ascontiguousarray(frame[:height, :width]))

    def _open(self, frame: np.ndarray) -> None:
        import imageio_ffmpeg

        height, width = frame.shape[:2]
        self._scale = max(1, math.ceil(SMALLEST / min(height, width)))
        size = (width * self._scale // 2 * 2, height * self._scale // 2 * 2)
        self._writer = imageio_ffmpeg.write_frames(
            str(self._beside), size, fps=self.fps, codec="libx264", macro_block_size=2, quality=7,
            ffmpeg_log_level="error",
        )  # fmt: skip
        self._writer.send(None)

    def __enter__(self) -> Mp4:
        remove(self._beside)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._writer is not None:
            self._writer.close()
        if error is None:
            os.replace(self._beside, self.path)
        else:
            with suppress(OSError):
                remove(self._beside)


def check_video(cfg: EnvConfig, trust: Sequence[str] = ()) -> None:
    """UserError or RunFailed if videos of this env cannot be made here; one frame is drawn."""
    try:
        import imageio_ffmpeg  # noqa: F401
    except ImportError as error:
        raise UserError(
            "Videos need the package imageio-ffmpeg, which is not installed: pip install -e '.[video]' in a checkout "
            "of rlx."
        ) from error
    before = rng_state()
    env = make_rendered(cfg, FRAMES, trust)
    try:
        env.reset(seed=0)
        frame_of(env, cfg.id)
    finally:
        env.close()
        load_rng_state(before)


def check_path(path: Path) -> None:
    """Refuse a file that a video cannot be written to."""
    if path.suffix != ".mp4":
        raise UserError(f"--video writes mp4 files and {path} is not called one; for example --video policy.mp4.")
    refuse_link(path)
    if path.is_dir() or not path.parent.is_dir():
        problem = "is a folder" if path.is_dir() else "would be in a folder that does not exist"
        raise UserError(f"{path} {problem}; give the name of a file, for example --video policy.mp4.")


def record(
    learner: Learner, cfg: EnvConfig, path: Path, episodes: int, seed: int, trust: Sequence[str] = ()
) -> Recording:
    """Film episodes of the deterministic policy, those that an evaluation with this seed consists of."""
    before = rng_state()
    env = make_rendered(cfg, FRAMES, trust)
    stride = max(1, math.ceil(fps_of(env) / MOST_FPS))
    training = learner.training
    learner.eval()
    try:
        with Mp4(path, fps_of(env) / stride) as video, seeded(seed, next(iter(learner.parameters())).device):
            envs = SyncEnvs([lambda: Filmed(env, cfg.id, stride, video.add)], cfg.id)
            outcome = run_episodes(LearnerAgent(learner, 1), envs, episodes, seed)
    except OSError as error:
        raise RunFailed(f"{path} cannot be written ({error.strerror or error}).") from error
    finally:
        env.close()
        learner.train(training)
        load_rng_state(before)
    return Recording(path, video.fps, outcome)
