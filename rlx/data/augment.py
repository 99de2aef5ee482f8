"""Augmentations of pictures: each minibatch is changed at random before the learner sees it.

    none     pictures as they are
    shift    moved by up to `pad` pixels along each axis, the border repeated (DrQ, arXiv:2004.13649; DrQ-v2)
    crop     a window that is `pixels` smaller along each axis, enlarged again by repeating pixels
    cutout   a black box of up to `share` of each axis (RAD, arXiv:2004.14990)

Every picture has its draws for itself, `obs` and `next_obs` too; the frames of a stack are changed alike. Vectors stay
as they are, and so do the pictures that a policy acts on. What is drawn comes from a generator that is part of the
checkpoint.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlx.errors import require
from rlx.fields import check_numbers, number
from rlx.nn.encoders import image_shape, is_channels_last
from rlx.types import Batch, Spec

Change = Callable[[np.random.Generator, np.ndarray, np.ndarray], None]  # pictures [B, C, H, W], and where they go to


@dataclass
class NoneConfig:
    """Pictures as they are."""

    _target_: str = "rlx.data.augment.none"


@dataclass
class ShiftConfig:
    """Pictures moved by a few pixels."""

    _target_: str = "rlx.data.augment.shift"
    pad: int = number(4, least=1, most=2**10)  # pixels along each axis, at most


@dataclass
class CropConfig:
    """A part of a picture, enlarged."""

    _target_: str = "rlx.data.augment.crop"
    pixels: int = number(8, least=1, most=2**10)  # that the window is smaller by, along each axis


@dataclass
class CutoutConfig:
    """A black box in every picture."""

    _target_: str = "rlx.data.augment.cutout"
    share: float = number(0.35, above=0, most=1)  # of each axis, at most


class Augment:
    """Changes the pictures of minibatches."""

    def __init__(self, spec: Spec, seed: int, change: Change):
        images = {name: box for name, box in spec.obs.items() if box.is_image and box.dtype == "uint8"}
        require(bool(images), f"augment=... changes pictures and {spec.env_id} has none of uint8; use augment=none.")
        self._last = {name: is_channels_last(box) for name, box in images.items()}
        self._change = change
        self._rng = np.random.default_rng(np.random.SeedSequence([seed, 0xA06]))

    def __call__(self, batch: Batch) -> Batch:
        """The batch with other pictures; those of the given one stay, as they may share memory."""
        return batch._replace(obs=self._changed(batch.obs), next_obs=self._changed(batch.next_obs))

    def _changed(self, obs: Any) -> Any:
        if isinstance(obs, dict):
            return {n: self._pictures(part, self._last[n]) if n in self._last else part for n, part in obs.items()}
        return self._pictures(obs, next(iter(self._last.values())))

    def _pictures(self, images: Tensor, channels_last: bool) -> Tensor:
        made = np.empty(images.shape, np.uint8)
        views = (images.numpy(), made)
        given, out = (view.transpose(0, 3, 1, 2) if channels_last else view for view in views)
        self._change(self._rng, given, out)
        return torch.from_numpy(made)

    def state(self) -> dict[str, Any]:
        return {"rng": self._rng.bit_generator.state}

    def load_state(self, state: dict[str, Any] | None) -> None:
        if state is not None:  # a run may have begun without augmentations
            self._rng.bit_generator.state = state["rng"]


def none(cfg: NoneConfig, spec: Spec, seed: int) -> None:
    return None


def smallest_side(spec: Spec) -> float:
    """Of all pictures of an observation, in pixels."""
    return min((min(image_shape(box)[1:]) for box in spec.obs.values() if box.is_image), default=math.inf)


def shift(cfg: ShiftConfig, spec: Spec, seed: int) -> Augment:
    check_numbers(cfg, "augment")
    pad, side = cfg.pad, smallest_side(spec)
    require(pad <= side, f"augment.pad={pad} moves pictures of {side} pixels out of sight; use a smaller number.")

    def change(rng: np.random.Generator, images: np.ndarray, out: np.ndarray) -> None:
        n, channels, height, width = images.shape
        wide = np.empty((n, channels, height + 2 * pad, width + 2 * pad), np.uint8)
        wide[:, :, pad:-pad, pad:-pad] = images
        wide[:, :, :pad, pad:-pad], wide[:, :, -pad:, pad:-pad] = images[:, :, :1], images[:, :, -1:]
        wide[:, :, :, :pad], wide[:, :, :, -pad:] = wide[:, :, :, pad : pad + 1], wide[:, :, :, -pad - 1 : -pad]
        for i, (y, x) in enumerate(rng.integers(0, 2 * pad + 1, (n, 2)).tolist()):
            out[i] = wide[i, :, y : y + height, x : x + width]

    return Augment(spec, seed, change)


def crop(cfg: CropConfig, spec: Spec, seed: int) -> Augment:
    check_numbers(cfg, "augment")
    side = smallest_side(spec)
    require(
        cfg.pixels < side,
        f"augment.pixels={cfg.pixels} leaves nothing of pictures of {side} pixels; use a smaller number.",
    )

    def change(rng: np.random.Generator, images: np.ndarray, out: np.ndarray) -> None:
        n, _, *size = images.shape
        rows, columns = (np.arange(k) * (k - cfg.pixels) // k for k in size)  # of the window, each once or twice
        for i, (y, x) in enumerate(rng.integers(0, cfg.pixels + 1, (n, 2)).tolist()):
            out[i] = images[i][:, rows + y][:, :, columns + x]

    return Augment(spec, seed, change)


def cutout(cfg: CutoutConfig, spec: Spec, seed: int) -> Augment:
    check_numbers(cfg, "augment")

    def change(rng: np.random.Generator, images: np.ndarray, out: np.ndarray) -> None:
        n, _, *size = images.shape
        out[:] = images
        sides = rng.integers(0, np.array([int(cfg.share * k) for k in size]) + 1, (n, 2))
        corners = rng.integers(0, np.array(size) - sides + 1)
        for i, (y, x, h, w) in enumerate(np.hstack([corners, sides]).tolist()):
            out[i, :, y : y + h, x : x + w] = 0

    return Augment(spec, seed, change)
