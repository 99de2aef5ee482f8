"""Whatever the bytes are, a reader gives a dataset or one sentence."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays, scalar_dtypes
from malformed import arrays as good
from malformed import d3rlpy, hdf5, minari, put, saved, tensors, zipped

from rlx.data import TransitionDataset, inspect_dataset
from rlx.data.keys import ALIASES
from rlx.data.minari import read_minari_folder
from rlx.data.sources import load_transition_dataset
from rlx.errors import UserError
from rlx.types import Spec

SPEC = Spec("Toy-v0", (3,), "float32", "box", (2,), (-1.0, -1.0), (1.0, 1.0))


def parts() -> dict[str, Any]:
    columns = good(observations=None, next_observations=None)
    return columns | {"observations/pixels": np.zeros((6, 2, 2, 3), np.uint8), "observations/state": np.zeros((6, 3))}


def grouped(file: Any) -> None:
    del file["next_observations"]
    file["observations/a"], file["observations/b/c"] = np.zeros((6, 3)), np.zeros((6, 2, 2, 3), np.uint8)


def minari_parts(folder: Path) -> Path:
    def change(file: Any) -> None:
        for i in range(2):
            del file[f"episode_{i}/observations"]
            file[f"episode_{i}/observations/state"] = np.zeros((7, 3))
            file[f"episode_{i}/observations/camera/left"] = np.zeros((7, 2, 2, 3), np.uint8)

    return minari(folder, change=change)


FUZZ = settings(max_examples=60, deadline=None, derandomize=True, database=None)
WRITERS: dict[str, Any] = {
    "npz": lambda folder: zipped(folder, good()),
    "npz, compressed": lambda folder: zipped(folder, good(), 8),
    "pt": lambda folder: saved(folder, tensors()),
    "hdf5": lambda folder: hdf5(folder, put(data=np.zeros(6, np.float32))),
    "hdf5, compressed": lambda folder: hdf5(folder, put(data=np.zeros(6, np.float32), compression="gzip")),
    "d3rlpy": lambda folder: d3rlpy(folder, lambda file: None),
    "minari": lambda folder: minari(folder) / "data" / "main_data.hdf5",
    "npz, parts": lambda folder: zipped(folder, parts()),
    "pt, parts": lambda folder: saved(folder, tensors(observations={k: torch.zeros(6, 3) for k in "ab"})),
    "hdf5, parts": lambda folder: hdf5(folder, grouped, "observations"),
    "minari, parts": lambda folder: minari_parts(folder) / "data" / "main_data.hdf5",
}
GOOD: dict[str, tuple[str, bytes]] = {}
for _name, _write in WRITERS.items():
    with tempfile.TemporaryDirectory() as _folder:
        _path = _write(Path(_folder))
        GOOD[_name] = (_path.relative_to(_folder).as_posix(), _path.read_bytes())


@contextmanager
def a_dataset_or_a_sentence() -> Iterator[None]:
    said = ""
    try:
        yield
    except UserError as error:
        said = str(error)
    assert "\n" not in said


def read(path: Path) -> None:
    with a_dataset_or_a_sentence():
        if path.name == "main_data.hdf5":
            (path.parent / "metadata.json").write_text("{}")
            dataset = read_minari_folder(path.parent.parent)
        else:
            dataset = load_transition_dataset(path)
        inspect_dataset(dataset, SPEC)


def changed(data: bytes, flips: list[tuple[float, int]], cut: float, more: bytes) -> bytes:
    found = bytearray(data[: max(1, int(len(data) * cut))])
    for place, value in flips:
        found[int(place * (len(found) - 1))] ^= value
    return bytes(found) + more


SHARE = st.floats(0, 1)


@pytest.mark.parametrize("name", GOOD)
@FUZZ
@given(
    flips=st.lists(st.tuples(SHARE, st.integers(1, 255)), max_size=8),
    cut=st.one_of(st.just(1.0), SHARE),
    more=st.binary(max_size=64),
)
def test_damaged_files(name, flips, cut, more):
    file, data = GOOD[name]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(changed(data, flips, cut, more))
        read(path)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
BOX = st.fixed_dictionaries({}, optional={"dtype": st.sampled_from(["uint8", "float32"]) | JSON, "shape": JSON})
SUBSPACES = st.dictionaries(st.sampled_from(["state", "camera", "left"]), BOX | JSON) | st.lists(BOX, max_size=3)
SPACE = BOX | st.fixed_dictionaries({"subspaces": SUBSPACES | JSON}, optional={"type": JSON})
METADATA = st.fixed_dictionaries(
    {},
    optional={
        "data_format": st.just("hdf5") | JSON,
        "total_steps": st.just(12) | JSON,
        "total_episodes": JSON,
        "jpeg_encoding": JSON,
        "observation_space": SPACE.map(json.dumps) | JSON,
        "env_spec": st.fixed_dictionaries({"id": JSON}).map(json.dumps) | JSON,
    },
)


@pytest.fixture(scope="module")
def minari_folder(tmp_path_factory):
    return {make: make(tmp_path_factory.mktemp("minari")) for make in (minari, minari_parts)}


@pytest.mark.parametrize("make", [minari, minari_parts])
@FUZZ
@given(metadata=METADATA | JSON)
def test_any_metadata(minari_folder, make, metadata):
    (minari_folder[make] / "data" / "metadata.json").write_text(json.dumps(metadata))
    with a_dataset_or_a_sentence():
        assert len(read_minari_folder(minari_folder[make])) == 12


NAMES = sorted(name for names in ALIASES.values() for name in names)
ROWS = st.integers(0, 4)


@st.composite
def dicts(draw: Any) -> dict[str, Any]:
    """Arrays under usual names, most of them with the same number of rows."""
    rows = draw(ROWS)
    found = {}
    required = [names[draw(st.integers(0, len(names) - 1))] for names in ALIASES.values()]
    for key in draw(st.lists(st.sampled_from(required), min_size=3, unique=True)):
        shape = (rows, *draw(array_shapes(min_dims=1, max_dims=2, min_side=0, max_side=3)))[: draw(st.integers(0, 3))]
        part = draw(st.sampled_from(["", "", "/a", "/b/c"])) if "ob" in key or "states" in key else ""
        found[key + part] = draw(
            arrays(draw(scalar_dtypes()), draw(st.sampled_from([shape, shape[:1], (rows,), (rows + 1, 3)])))
        )
    return found


@settings(FUZZ, max_examples=200)
@given(arrays=dicts())
def test_any_dict_of_arrays(arrays):
    with a_dataset_or_a_sentence():
        dataset = TransitionDataset.from_dict(arrays)
        inspect_dataset(dataset, SPEC)
        dataset.fitted_to(SPEC)
