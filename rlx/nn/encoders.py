"""Encoders: from an observation to the vector that a head reads.

    flat      vectors as they are; anything else as one row of numbers
    small     one convolution, for images below 36 pixels (the network of MinAtar: Young & Tian, 2019)
    nature    three convolutions (Mnih et al., 2015)
    impala    residual blocks (Espeholt et al., 2018)
    drq       four convolutions and a narrow trunk (DrQ-v2: Yarats et al., 2022)
    auto      flat for vectors; small or nature for images

Every network has an encoder of its own and learns it with its own loss; a target network has a copy. Algorithms that
share one (PPO, A2C, DrQ-v2, discrete BCQ) say so. An observation with several boxes has one encoder for each image,
vectors stay as they are, and the results stand side by side.

Images are uint8 and are scaled here, to [0, 1], or by `drq` to [-0.5, 0.5]. Neighbouring axes of the same size are
height and width: [84, 84, 3] is a picture in colour and [4, 84, 84] a stack of four frames. Where that does not decide,
the shorter of the outer two axes counts the channels; of equal ones the last.

An encoder of your own is a `torch.nn.Module` with an attribute `dim`, made from the Spec and the keys of its config.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rlx.errors import UserError, require
from rlx.fields import check_numbers, number
from rlx.types import Box, Obs, Spec

SMALLEST = 36  # pixels that the convolutions of `nature` need
MANY = 256  # rows from which on the linear layer behind convolutions is faster as one more of them, on a CPU


class Encoder(nn.Module):
    """Observations [B, ...] to features [B, dim]."""

    dim: int


EncoderFactory = Callable[[Spec], Encoder]


@dataclass
class AutoConfig:
    """By the observation: flat for vectors, a CNN for images."""

    _target_: str = "rlx.nn.encoders.auto"


@dataclass
class FlatConfig:
    """All numbers of an observation in one row."""

    _target_: str = "rlx.nn.encoders.Flat"


@dataclass
class SmallConfig:
    """One convolution for small images."""

    _target_: str = "rlx.nn.encoders.small"
    channels: int = number(16, least=1)  # of the convolution
    dim: int = number(128, least=1)  # features


@dataclass
class NatureConfig:
    """Three convolutions and a linear layer."""

    _target_: str = "rlx.nn.encoders.nature"
    channels: list[int] = field(default_factory=lambda: [32, 64, 64])  # of the convolutions
    dim: int = number(512, least=1)  # features


@dataclass
class ImpalaConfig:
    """Residual blocks and a linear layer."""

    _target_: str = "rlx.nn.encoders.impala"
    channels: list[int] = field(default_factory=lambda: [16, 32, 32])  # of the sections; each halves the image
    dim: int = number(256, least=1)  # features
    layer_norm: bool = False  # of the features


@dataclass
class DrqConfig:
    """Four convolutions and a trunk of a linear layer, LayerNorm and tanh."""

    _target_: str = "rlx.nn.encoders.drq"
    channels: int = number(32, least=1)  # of each convolution
    dim: int = number(50, least=1)  # features


class Flat(Encoder):
    """No parameters: the numbers of an observation, images scaled, in one row."""

    def __init__(self, cfg: FlatConfig, spec: Spec):
        super().__init__()
        self.names = list(spec.obs) if spec.boxes else []
        self.dim = spec.obs_dim

    def forward(self, obs: Obs) -> Tensor:
        if isinstance(obs, dict):
            return torch.cat([as_row(obs[name]) for name in self.names], -1)
        return as_row(obs)


def as_row(x: Tensor) -> Tensor:
    x = x.float() / 255.0 if x.dtype == torch.uint8 else x
    return x.flatten(1) if x.dim() > 2 else x


def passes_through(encoder: Encoder, spec: Spec) -> bool:
    """Does it leave observations as they are, so that it costs nothing to leave it out?"""
    return isinstance(encoder, Flat) and not spec.boxes and len(spec.obs_shape) == 1 and spec.obs_dtype != "uint8"


class Convolutions(Encoder):
    """A stack of convolutions and a linear layer, normalised or not, with ReLU or another activation behind it.

    It is sized by a pass over an empty image. `offset` is taken from the pixels once they are scaled to [0, 1].
    """

    def __init__(
        self,
        box: Box,
        layers: Callable[[int], Sequence[nn.Module]],
        dim: int,
        layer_norm: bool = False,
        activation: Callable[[Tensor], Tensor] = F.relu,
        offset: float = 0.0,
    ):
        super().__init__()
        self.activation, self.offset = activation, offset
        self.channels_last = is_channels_last(box)
        channels, *size = image_shape(box)
        self.layers = nn.Sequential(*layers(channels))
        with torch.no_grad():
            width = self.layers(torch.zeros(1, channels, *size)).numel()
        self.out = nn.Linear(width, dim)
        self.norm = nn.LayerNorm(dim) if layer_norm else None
        self.dim = dim

    def forward(self, image: Tensor) -> Tensor:
        if torch.compiler.is_compiling() or image.device.type != "cpu":
            return project(self, convolve(self, image).flatten(1))
        if torch.is_grad_enabled() or len(image) <= MANY:
            return self._encode(image)
        return torch.cat([self._encode(part) for part in image.split(MANY)])  # a whole rollout fits into no cache

    def _encode(self, image: Tensor) -> Tensor:
        maps = convolve(self, image)
        if len(maps) < MANY:
            return project(self, maps.flatten(1))
        weight = self.out.weight.view(-1, *maps.shape[1:])  # oneDNN is up to twice as fast as MKL
        return activate(self, F.conv2d(maps, weight, self.out.bias).flatten(1))


class Front(nn.Module):
    """The convolutions of an encoder: [B, width]."""

    def __init__(self, whole: Convolutions):
        super().__init__()
        self.layers, self.channels_last, self.offset = whole.layers, whole.channels_last, whole.offset

    def forward(self, image: Tensor) -> Tensor:
        return convolve(self, image).flatten(1)


class Trunk(Encoder):
    """What stands behind the convolutions of an encoder."""

    def __init__(self, whole: Convolutions):
        super().__init__()
        self.out, self.norm, self.activation, self.dim = whole.out, whole.norm, whole.activation, whole.dim

    def forward(self, x: Tensor) -> Tensor:
        return project(self, x)


def convolve(net: Convolutions | Front, image: Tensor) -> Tensor:
    """What the convolutions make of an image: [B, channels, height, width]."""
    x = image.permute(0, 3, 1, 2) if net.channels_last else image
    if x.device.type == "cpu":  # updates take about two thirds of the time that they take channel by channel
        x = x.contiguous(memory_format=torch.channels_last)  # first, while a pixel is a byte
    x = x.float().div_(255.0) if x.dtype == torch.uint8 else x
    x = x - net.offset if net.offset else x
    maps: Tensor = net.layers(x)
    return maps


def project(net: Convolutions | Trunk, x: Tensor) -> Tensor:
    return activate(net, net.out(x))


def activate(net: Convolutions | Trunk, x: Tensor) -> Tensor:
    return net.activation(x if net.norm is None else net.norm(x))


def is_channels_last(box: Box) -> bool:
    """Is an image [height, width, channels], and not [channels, height, width]?

    Where just one of the two would be square, it is; else the shorter of the outer axes counts channels.
    """
    first, middle, last = box.shape
    if (first == middle) != (middle == last):
        return first == middle
    return first >= last


def channels_first(images: np.ndarray) -> np.ndarray:
    """[..., height, width, channels] as [..., channels, height, width], a view; what is so already as it is."""
    return np.moveaxis(images, -1, -3) if is_channels_last(Box(images.shape[-3:], "uint8")) else images


def image_shape(box: Box) -> tuple[int, int, int]:
    """Channels, height and width."""
    first, middle, last = box.shape
    return (last, first, middle) if is_channels_last(box) else (first, middle, last)


class Parts(Encoder):
    """An encoder for each box of a dict, side by side."""

    def __init__(self, names: Sequence[str], encoders: Sequence[Encoder]):
        super().__init__()
        self.names = list(names)  # they may have dots, which names of modules may not
        self.encoders = nn.ModuleList(encoders)
        self.dim = sum(encoder.dim for encoder in encoders)

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        parts = zip(self.names, self.encoders, strict=True)
        return torch.cat([encoder(obs[name]) for name, encoder in parts], -1)


class Fronts(nn.Module):
    """The shared half of each encoder of a dict, as a dict."""

    def __init__(self, names: Sequence[str], fronts: Sequence[nn.Module]):
        super().__init__()
        self.names, self.fronts = list(names), nn.ModuleList(fronts)

    def forward(self, obs: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: front(obs[name]) for name, front in zip(self.names, self.fronts, strict=True)}


class Same(Encoder):
    """Features as they are."""

    def __init__(self, dim: int):
        super().__init__()
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        return x


def split(encoder: Encoder) -> tuple[nn.Module, Encoder]:
    """The half of an encoder that several networks can share, its convolutions, and the half for each to have.

    Of an encoder without convolutions of ours all is shared.
    """
    if isinstance(encoder, Convolutions):
        return Front(encoder), Trunk(encoder)
    if isinstance(encoder, Parts):
        fronts, trunks = zip(*(split(part) for part in encoder.encoders), strict=True)  # type: ignore[arg-type]
        return Fronts(encoder.names, fronts), Parts(encoder.names, trunks)
    return encoder, Same(encoder.dim)


def orthogonal(module: nn.Module, gain: float = math.sqrt(2.0)) -> None:
    """Start the encoders in a module orthogonal and without biases: convolutions with the gain of ReLU, linear layers
    with this one. Those of others start as they are, since they may have been trained before.
    """
    for part in module.modules():
        if isinstance(part, Convolutions | Front | Trunk):
            for layer in part.modules():
                if isinstance(layer, nn.Conv2d | nn.Linear):
                    nn.init.orthogonal_(layer.weight, math.sqrt(2.0) if isinstance(layer, nn.Conv2d) else gain)
                    if layer.bias is not None:
                        nn.init.zeros_(layer.bias)


def flat_box(box: Box) -> Encoder:
    return Flat(FlatConfig(), Spec("", box.shape, box.dtype, "box", (1,)))


def over_images(spec: Spec, encode: Callable[[Box], Encoder], name: str) -> Encoder:
    """`encode` for every image of an observation."""
    require(
        any(box.is_image for box in spec.obs.values()),
        f"encoder={name} reads images and {spec.env_id} has none; use encoder=flat.",
    )
    if not spec.boxes:
        return encode(spec.obs["obs"])
    return Parts(list(spec.obs), [encode(box) if box.is_image else flat_box(box) for box in spec.obs.values()])


def auto(cfg: AutoConfig, spec: Spec) -> Encoder:
    images = [min(image_shape(box)[1:]) for box in spec.obs.values() if box.is_image]
    if not images:
        return Flat(FlatConfig(), spec)
    return nature(NatureConfig(), spec) if min(images) >= SMALLEST else small(SmallConfig(), spec)


def small(cfg: SmallConfig, spec: Spec) -> Encoder:
    check_numbers(cfg, "encoder")

    def layers(channels: int) -> list[nn.Module]:
        return [nn.Conv2d(channels, cfg.channels, 3), nn.ReLU(inplace=True)]

    return over_images(spec, lambda box: Convolutions(_at_least(box, 3, "small"), layers, cfg.dim), "small")


def nature(cfg: NatureConfig, spec: Spec) -> Encoder:
    check_numbers(cfg, "encoder")
    widths = _three(cfg.channels, "nature")

    def layers(channels: int) -> list[nn.Module]:
        shapes = zip((channels, *widths[:2]), widths, (8, 4, 3), (4, 2, 1), strict=True)
        return [layer for i, o, k, s in shapes for layer in (nn.Conv2d(i, o, k, s), nn.ReLU(inplace=True))]

    return over_images(spec, lambda box: Convolutions(_at_least(box, SMALLEST, "nature"), layers, cfg.dim), "nature")


def impala(cfg: ImpalaConfig, spec: Spec) -> Encoder:
    check_numbers(cfg, "encoder")
    widths = _three(cfg.channels, "impala")

    def layers(channels: int) -> list[nn.Module]:
        pairs = zip((channels, *widths[:2]), widths, strict=True)
        return [*(Section(i, o) for i, o in pairs), nn.ReLU(inplace=True)]

    def encode(box: Box) -> Encoder:
        return Convolutions(_at_least(box, 8, "impala"), layers, cfg.dim, cfg.layer_norm)

    return over_images(spec, encode, "impala")


def drq(cfg: DrqConfig, spec: Spec) -> Encoder:
    check_numbers(cfg, "encoder")

    def layers(channels: int) -> list[nn.Module]:
        shapes = ((channels, 2), *[(cfg.channels, 1)] * 3)
        return [layer for i, stride in shapes for layer in (nn.Conv2d(i, cfg.channels, 3, stride), nn.ReLU(True))]

    def encode(box: Box) -> Encoder:
        return Convolutions(_at_least(box, 15, "drq"), layers, cfg.dim, True, activation=torch.tanh, offset=0.5)

    return over_images(spec, encode, "drq")


def _three(channels: list[int], name: str) -> list[int]:
    whole = len(channels) == 3 and all(n >= 1 for n in channels)
    require(whole, f"encoder={name} has three numbers of channels, each at least 1 (encoder.channels={channels}).")
    return channels


def _at_least(box: Box, pixels: int, name: str) -> Box:
    _, height, width = image_shape(box)
    if min(height, width) < pixels:
        raise UserError(
            f"encoder={name} needs images of at least {pixels} x {pixels} pixels and these have {height} x {width}; "
            f"use encoder={'flat' if name == 'small' else 'auto'}."
        )
    return box


class Section(nn.Module):
    """A convolution, pooling that halves the image, and two residual blocks."""

    def __init__(self, channels: int, out: int):
        super().__init__()
        self.first = nn.Conv2d(channels, out, 3, padding=1)
        self.pool = nn.MaxPool2d(3, 2, padding=1)
        self.blocks = nn.ModuleList([nn.Conv2d(out, out, 3, padding=1) for _ in range(4)])

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(self.first(x))
        blocks: list[Any] = list(self.blocks)
        for one, two in ((blocks[0], blocks[1]), (blocks[2], blocks[3])):
            x = x + two(F.relu(one(F.relu(x))))
        return x


class ChannelNorm(nn.LayerNorm):
    """LayerNorm over the channels of every pixel of [B, channels, height, width]."""

    def forward(self, image: Tensor) -> Tensor:
        return super().forward(image.movedim(1, -1)).movedim(-1, 1)


def with_layer_norm(encoder: Encoder) -> Encoder:
    """The same encoder with a LayerNorm behind its features and each convolution but those of residual blocks."""
    for part in [part for part in encoder.modules() if isinstance(part, Convolutions)]:
        layers: list[nn.Module] = []
        for layer in part.layers:
            layers += [layer, ChannelNorm(layer.out_channels)] if isinstance(layer, nn.Conv2d) else [layer]
        part.layers = nn.Sequential(*layers)
        part.norm = part.norm or nn.LayerNorm(part.dim)
    return encoder
