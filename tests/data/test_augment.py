"""Augmentations: where pixels go, that pictures are drawn for one by one, and that a resume draws on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rlx.build import build
from rlx.config import compose_config
from rlx.data.augment import Augment, CropConfig, CutoutConfig, ShiftConfig, crop, cutout, none, shift
from rlx.errors import UserError
from rlx.types import Batch, Box, Spec

FRAMES = Spec("frames", (2, 4, 4), "uint8", "discrete", (), action_sizes=(3,))
PICTURE = FRAMES._replace(obs_shape=(4, 4, 2))


class Draws:
    """A generator that draws what it was told to."""

    def __init__(self, *draws: Any):
        self._draws = list(draws)

    def integers(self, *args: Any) -> np.ndarray:
        return np.asarray(self._draws.pop(0))


def batch_of(obs: Any, next_obs: Any = None) -> Batch:
    zeros = torch.zeros(2)
    return Batch(obs, zeros, zeros, obs if next_obs is None else next_obs, zeros, zeros)


def changed(augment: Augment, picture: list[list[int]], *draws: Any) -> list[list[int]]:
    """What becomes of both channels of one picture, which are alike."""
    augment._rng = Draws(*draws)  # type: ignore[assignment]
    image = torch.tensor(picture, dtype=torch.uint8).expand(1, 2, 4, 4)
    out = augment._pictures(image, False)
    assert torch.equal(out[:, 0], out[:, 1])
    return out[0, 0].tolist()


PIXELS = [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12], [13, 14, 15, 16]]


@pytest.mark.parametrize(
    ("draw", "expected"),
    [
        ((2, 2), PIXELS),
        ((0, 2), [[1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 3, 4], [5, 6, 7, 8]]),  # down by two, the upper edge repeated
        ((4, 2), [[9, 10, 11, 12], [13, 14, 15, 16], [13, 14, 15, 16], [13, 14, 15, 16]]),
        ((2, 3), [[2, 3, 4, 4], [6, 7, 8, 8], [10, 11, 12, 12], [14, 15, 16, 16]]),  # left by one
        ((3, 0), [[5, 5, 5, 6], [9, 9, 9, 10], [13, 13, 13, 14], [13, 13, 13, 14]]),
    ],
)
def test_a_shift_repeats_the_border(draw: tuple[int, int], expected: list[list[int]]) -> None:
    assert changed(shift(ShiftConfig(pad=2), FRAMES, 0), PIXELS, [draw]) == expected


def test_a_crop_enlarges_a_window() -> None:
    """Of 4 pixels 2 are left, and each is repeated; 3 of 4: the first one is."""
    assert changed(crop(CropConfig(pixels=2), FRAMES, 0), PIXELS, [(1, 0)]) == [
        [5, 5, 6, 6], [5, 5, 6, 6], [9, 9, 10, 10], [9, 9, 10, 10],
    ]  # fmt: skip
    assert changed(crop(CropConfig(pixels=1), FRAMES, 0), PIXELS, [(0, 1)]) == [
        [2, 2, 3, 4], [2, 2, 3, 4], [6, 6, 7, 8], [10, 10, 11, 12],
    ]  # fmt: skip
    with pytest.raises(UserError, match=r"augment.pixels=4 leaves nothing of pictures of 4 pixels"):
        crop(CropConfig(pixels=4), FRAMES, 0)
    with pytest.raises(UserError, match=r"augment.pad=5 moves pictures of 4 pixels out of sight"):
        shift(ShiftConfig(pad=5), FRAMES, 0)


def test_a_cutout_is_black() -> None:
    sides, corner = [(1, 2)], [(2, 1)]
    assert changed(cutout(CutoutConfig(share=0.5), FRAMES, 0), PIXELS, sides, corner) == [
        [1, 2, 3, 4], [5, 6, 7, 8], [9, 0, 0, 12], [13, 14, 15, 16],
    ]  # fmt: skip


@pytest.mark.parametrize("make", [shift, crop, cutout])
def test_the_axes_of_pixels_are_found(make: Any) -> None:
    """[H, W, C] and [C, H, W] are changed alike."""
    config = {shift: ShiftConfig(), crop: CropConfig(pixels=2), cutout: CutoutConfig(share=1.0)}[make]
    image = torch.randint(256, (5, 2, 4, 4), dtype=torch.uint8)
    first = make(config, FRAMES, 3)(batch_of(image)).obs
    last = make(config, PICTURE, 3)(batch_of(image.permute(0, 2, 3, 1))).obs
    assert torch.equal(first, last.permute(0, 3, 1, 2))
    assert not torch.equal(first, image)


def test_next_pictures_are_changed_by_draws_of_their_own() -> None:
    augment = shift(ShiftConfig(pad=2), FRAMES, 0)
    augment._rng = Draws([(2, 2)], [(2, 3)])  # type: ignore[assignment]  # obs stays, next_obs moves left by one
    image = torch.tensor(PIXELS, dtype=torch.uint8).expand(1, 2, 4, 4)
    made = augment(batch_of(image))
    assert made.obs[0, 1].tolist() == PIXELS
    assert made.next_obs[0, 1].tolist() == [[2, 3, 4, 4], [6, 7, 8, 8], [10, 11, 12, 12], [14, 15, 16, 16]]


EACH = {"shift": (shift, ShiftConfig(pad=1)), "crop": (crop, CropConfig(pixels=1)),
        "cutout": (cutout, CutoutConfig(share=0.25))}  # fmt: skip


@pytest.mark.parametrize(("name", "places"), [("shift", 9), ("crop", 4), ("cutout", 17)])
def test_every_place_is_drawn(name: str, places: int) -> None:
    """Of a shift by one 3 x 3, of a window of 3 in 4 pixels 2 x 2, of a black pixel 4 x 4 and none."""
    make, config = EACH[name]
    image = torch.tensor(PIXELS, dtype=torch.uint8).expand(400, 2, 4, 4)
    made = make(config, FRAMES, 0)(batch_of(image))  # type: ignore[arg-type]
    for pictures in (made.obs, made.next_obs):
        assert len({tuple(picture.flatten().tolist()) for picture in pictures}) == places


@pytest.mark.parametrize("name", EACH)
def test_draws_go_by_the_seed(name: str) -> None:
    make, config = EACH[name]
    image = torch.tensor(PIXELS, dtype=torch.uint8).expand(32, 2, 4, 4)
    one, same, other = (make(config, FRAMES, seed)(batch_of(image)) for seed in (5, 5, 6))  # type: ignore[arg-type]
    assert torch.equal(one.obs, same.obs)
    assert torch.equal(one.next_obs, same.next_obs)
    assert not torch.equal(one.obs, other.obs)
    assert not torch.equal(one.next_obs, other.next_obs)


@pytest.mark.parametrize("name", EACH)
def test_the_seed_of_a_run_is_that_of_its_draws(name: str, tmp_path: Path) -> None:
    image = torch.randint(256, (32, 16, 16, 3), dtype=torch.uint8)

    def drawn(seed: int) -> Any:
        chosen = ("algo=dqn", "env=pixel_goal", "~algo_env", f"augment={name}", "replay.capacity=100", f"seed={seed}")
        trainer = build(compose_config([*chosen, "logger=none"]), tmp_path)
        assert trainer.augment is not None
        made = trainer.augment(batch_of(image))
        trainer.close()
        return made.obs

    assert torch.equal(drawn(3), drawn(3))
    assert not torch.equal(drawn(3), drawn(4))


def test_every_picture_is_drawn_for_by_itself() -> None:
    image = torch.tensor(PIXELS, dtype=torch.uint8).expand(64, 2, 4, 4)
    kept = image.clone()
    made = shift(ShiftConfig(pad=1), FRAMES, 0)(batch_of(image))
    assert torch.equal(image, kept)
    kinds = {tuple(picture.flatten().tolist()) for picture in made.obs}
    assert len(kinds) == 9
    assert not torch.equal(made.obs, made.next_obs)


def test_vectors_stay_and_every_image_of_a_dict_changes() -> None:
    boxes = (("left", Box((2, 4, 4), "uint8")), ("right", Box((4, 4, 2), "uint8")), ("state", Box((3,), "float32")))
    spec = Spec("dict", (), "float32", "discrete", (), action_sizes=(3,), boxes=boxes)
    obs: Any = {"left": torch.randint(256, (8, 2, 4, 4), dtype=torch.uint8), "state": torch.randn(8, 3)}
    obs["right"] = torch.randint(256, (8, 4, 4, 2), dtype=torch.uint8)
    made: Any = shift(ShiftConfig(), spec, 0)(batch_of(obs)).obs
    assert torch.equal(made["state"], obs["state"])
    assert not torch.equal(made["left"], obs["left"])
    assert not torch.equal(made["right"], obs["right"])


def test_a_resume_draws_on() -> None:
    image = torch.randint(256, (8, 2, 4, 4), dtype=torch.uint8)
    one, other = shift(ShiftConfig(), FRAMES, 0), shift(ShiftConfig(), FRAMES, 1)
    one(batch_of(image))
    other.load_state(one.state())
    assert torch.equal(one(batch_of(image)).obs, other(batch_of(image)).obs)
    other.load_state(None)  # of a run without augmentations


def test_what_has_no_pictures_is_refused() -> None:
    vector = Spec("vector", (5,), "float32", "box", (2,), (-1.0, -1.0), (1.0, 1.0))
    with pytest.raises(UserError, match=r"augment=... changes pictures and vector has none"):
        shift(ShiftConfig(), vector, 0)
    assert none(compose_config([]).augment, vector, 0) is None
    with pytest.raises(UserError, match=r"augment.pad must be between 1 and 1,024"):
        shift(ShiftConfig(pad=0), FRAMES, 0)
