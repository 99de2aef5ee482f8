"""The Spec of a run without a simulator, from its dataset."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np

from rlx.data.columns import seen_box
from rlx.data.dataset import TransitionDataset
from rlx.envs.observations import is_grey_picture
from rlx.obs import map_obs, named_parts
from rlx.types import NO_ENV, Box, Spec

log = logging.getLogger("rlx")


def spec_of_dataset(dataset: TransitionDataset) -> Spec:
    """The Spec that a dataset implies, where there is no env; the action box is the range of the data."""
    boxes = map_obs(lambda part: seen_box(tuple(part.shape[1:]), part.dtype), dataset.obs)
    for name, box in named_parts("obs", boxes).items():
        if is_grey_picture(box.shape, box.dtype):
            log.warning(
                "%s: key '%s' holds grey pictures of %d x %d pixels without an axis for the channel, which are read as "
                "vectors; to have them read as images, save them as pictures[..., None].",
                dataset.source, dataset.key_of(name), *box.shape,
            )  # fmt: skip
    single = boxes if isinstance(boxes, Box) else Box((), "float32")
    common: dict[str, Any] = {
        "env_id": NO_ENV,
        "obs_shape": single.shape,
        "obs_dtype": single.dtype,
        "boxes": tuple(boxes.items()) if isinstance(boxes, dict) else (),
    }
    if dataset.action.dtype.kind == "f":
        low, high = dataset.action.min(0), dataset.action.max(0)
        flat = low == high  # an action that never moves still needs a box
        return Spec(
            **common,
            action_kind="box",
            action_shape=tuple(dataset.action.shape[1:]),
            action_low=tuple(np.where(flat, low - 1.0, low).tolist()),
            action_high=tuple(np.where(flat, high + 1.0, high).tolist()),
        )
    sizes = np.atleast_1d(dataset.action.max(0) + 1)
    kind = "discrete" if dataset.action.ndim == 1 else "multi_discrete"
    return Spec(
        **common,
        action_kind=kind,
        action_shape=tuple(dataset.action.shape[1:]),
        action_sizes=tuple(int(n) for n in sizes),
    )
