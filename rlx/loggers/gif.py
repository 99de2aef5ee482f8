"""A video file as a small animated GIF, which is what TensorBoard shows among its images."""

from __future__ import annotations

import io
import itertools
from pathlib import Path
from typing import Any

SIDE = 240  # pixels of the longer side at most
MOST_FRAMES = 150
FRAMES_PER_SECOND = 10.0  # at most


def as_gif(path: Path, fps: float) -> tuple[bytes, tuple[int, int]]:
    """The animation and its size (width, height).

    ImportError where imageio-ffmpeg is not installed, OSError or RuntimeError where it cannot read the file.
    """
    import imageio_ffmpeg
    from PIL import Image

    every = max(1, round(fps / FRAMES_PER_SECOND))
    read: Any = imageio_ffmpeg.read_frames(str(path))
    size = next(read)["size"]
    frames: list[Image.Image] = []
    for data in itertools.islice(read, 0, every * MOST_FRAMES, every):
        frame = Image.frombytes("RGB", size, data)
        frame.thumbnail((SIDE, SIDE))
        frames.append(frame)
    read.close()
    if not frames:
        raise OSError(f"{path} has no frames")
    gif = io.BytesIO()
    frames[0].save(gif, "GIF", save_all=True, append_images=frames[1:], duration=round(1000 * every / fps), loop=0)
    return gif.getvalue(), frames[0].size
