"""A video file as a small animated GIF, which is what TensorBoard shows among its images."""

from __future__ import annotations

import io
from pathlib import Path

SIDE = 240  # pixels of the longer side at most
MOST_FRAMES = 150
FRAMES_PER_SECOND = 10.0  # at most


def as_gif(path: Path, fps: float) -> tuple[bytes, tuple[int, int]]:
    """The animation and its size (width, height); ImportError or OSError where nothing here can read the file."""
    import imageio.v3 as iio
    from PIL import Image

    every = max(1, round(fps / FRAMES_PER_SECOND))
    frames: list[Image.Image] = []
    for i, array in enumerate(iio.imiter(path)):
        if i % every == 0:
            frame = Image.fromarray(array).convert("RGB")
            frame.thumbnail((SIDE, SIDE))
            frames.append(frame)
        if len(frames) == MOST_FRAMES:
            break
    if not frames:
        raise OSError(f"{path} has no frames")
    data = io.BytesIO()
    milliseconds = round(1000 * every / fps)
    frames[0].save(data, "GIF", save_all=True, append_images=frames[1:], duration=milliseconds, loop=0)
    return data.getvalue(), frames[0].size
