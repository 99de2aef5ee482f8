"""Observations that are an array or a dict of arrays: the same functions for both, by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from rlx.obs import (
    copy_obs,
    map_obs,
    num_rows,
    parts_of,
    row_like,
    rows_of,
    set_rows,
    stack_obs,
    take_rows,
    to_tensors,
    zeros_obs,
)
from rlx.types import Box

VECTOR = np.arange(6, dtype=np.float32).reshape(3, 2)
IMAGES = np.arange(36, dtype=np.uint8).reshape(3, 2, 2, 3)


def both() -> dict[str, np.ndarray]:
    return {"pixels": IMAGES.copy(), "state": VECTOR.copy()}


def equal(a: Any, b: Any) -> None:
    if isinstance(b, dict):
        assert list(a) == list(b)
    for part, other in zip(parts_of(a), parts_of(b), strict=True):
        assert part.dtype == other.dtype
        np.testing.assert_array_equal(part, other)


def test_rows_are_taken_from_every_part() -> None:
    assert num_rows(VECTOR) == num_rows(both()) == 3
    equal(take_rows(VECTOR, 1), np.array([2.0, 3.0], np.float32))
    equal(take_rows(both(), 1), {"pixels": IMAGES[1], "state": VECTOR[1]})
    equal(take_rows(both(), np.array([True, False, True])), {"pixels": IMAGES[[0, 2]], "state": VECTOR[[0, 2]]})
    equal(take_rows(both(), slice(1, None)), {"pixels": IMAGES[1:], "state": VECTOR[1:]})


def test_rows_are_written_into_every_part() -> None:
    array, obs = VECTOR.copy(), both()
    set_rows(array, 0, np.array([7.0, 8.0]))
    set_rows(obs, [0, 2], take_rows(both(), [1, 1]))
    assert array.tolist() == [[7.0, 8.0], [2.0, 3.0], [4.0, 5.0]]
    equal(obs, {"pixels": IMAGES[[1, 1, 1]], "state": VECTOR[[1, 1, 1]]})


def test_rows_of_writes_by_number_and_casts() -> None:
    array, obs = VECTOR.copy(), both()
    assert rows_of(array) is array, "an array pays nothing"
    rows_of(obs)[2] = {"state": np.array([9.0, 9.5]), "pixels": np.full((2, 2, 3), 5), "more": "is left out"}
    assert obs["state"][2].tolist() == [9.0, 9.5]
    assert (obs["pixels"][2] == 5).all()
    equal(take_rows(obs, slice(2)), take_rows(both(), slice(2)))


def test_stacking_undoes_taking() -> None:
    equal(stack_obs([take_rows(both(), i) for i in range(3)]), both())
    equal(stack_obs(list(VECTOR)), VECTOR)


def test_copies_share_nothing_and_tensors_share_everything() -> None:
    obs = both()
    copy, tensors = copy_obs(obs), to_tensors(obs)
    obs["state"][0, 0] = 42.0
    equal(copy, both())
    assert isinstance(tensors, dict)
    assert tensors["state"][0, 0] == 42.0
    assert tensors["pixels"].dtype == torch.uint8


def test_zeros_have_the_shapes_of_the_boxes() -> None:
    boxes = {"pixels": Box((2, 2, 3), "uint8"), "state": Box((2,), "float32")}
    equal(zeros_obs(boxes, 3), {"pixels": np.zeros_like(IMAGES), "state": np.zeros_like(VECTOR)})
    equal(zeros_obs(Box((2,), "float32"), 3), np.zeros_like(VECTOR))


def test_a_row_like_others_is_a_copy_with_their_dtypes() -> None:
    given = np.array([1.5, 2.5])
    row = row_like(VECTOR, given)
    given[:] = 0
    equal(row, np.array([1.5, 2.5], np.float32))
    named = row_like(both(), {"state": [1, 2], "pixels": IMAGES[0].astype(np.int64)})
    equal(named, {"pixels": IMAGES[0], "state": np.array([1, 2], np.float32)})
    with pytest.raises(ValueError, match="could not broadcast"):
        row_like(VECTOR, np.zeros(3))
    with pytest.raises(KeyError, match="state"):
        row_like(both(), {"pixels": IMAGES[0]})


def test_map_obs_pairs_parts_by_name() -> None:
    swapped = dict(reversed(both().items()))
    total = map_obs(np.add, both(), swapped)
    equal(total, {"pixels": IMAGES * 2, "state": VECTOR * 2})
