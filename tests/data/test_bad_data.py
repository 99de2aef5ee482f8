"""Bad data is refused before any work, in one sentence that names the file, the key, what was expected and found."""

from __future__ import annotations

import json
import logging
import struct
import tracemalloc
import zipfile
import zlib

import h5py
import numpy as np
import pytest
import torch

from rlx.data import load_transition_dataset
from rlx.data.sources import Hdf5Config, Memory, NpzConfig, load_hdf5, load_npz
from rlx.errors import UserError
from rlx.types import Spec

SPEC = Spec("Toy-v0", (3,), "float32", "box", (2,), (-1.0, -1.0), (1.0, 1.0))
N = 6


def arrays(**changes):
    rng = np.random.default_rng(0)
    stream = rng.standard_normal((N + 1, 3)).astype(np.float32)
    good = {
        "observations": stream[:-1],
        "actions": rng.uniform(-1, 1, (N, 2)).astype(np.float32),
        "rewards": np.arange(N, dtype=np.float32),
        "next_observations": stream[1:],
        "terminals": np.zeros(N, dtype=bool),
        "timeouts": np.arange(N) == N - 1,
    }
    good |= changes
    return {key: value for key, value in good.items() if value is not None}


def spoiled(key, row, value):
    array = arrays()[key].astype(np.float64)
    array[row] = value
    return {key: array}


def flags(value):
    return np.full(N, value)


# name: (changes of the arrays, what the sentence has to contain)
BAD_ARRAYS = {
    "no observations": ({"observations": None}, ["no key for 'obs'", "'observations'"]),
    "no actions": ({"actions": None}, ["no key for 'action'"]),
    "no rewards": ({"rewards": None}, ["no key for 'reward'"]),
    "no terminals": ({"terminals": None}, ["no key for 'terminated'"]),
    "only done": ({"terminals": None, "dones": flags(0)}, ["'done' does not tell", "'timeouts'"]),
    "a misspelt key": ({"actions": None, "actionz": np.zeros((N, 2))}, ["did you mean 'actionz'"]),
    "two names for one column": ({"terminated": flags(0)}, ["'terminated' and 'terminals'", "expected one"]),
    "no rows": ({k: v[:0] for k, v in arrays().items()}, ["key 'rewards' is empty"]),
    "short actions": ({"actions": np.zeros((5, 2))}, ["key 'actions' has 5 rows, expected 6 as in 'rewards'"]),
    "short terminals": ({"terminals": np.zeros(4)}, ["key 'terminals' has 4 rows, expected 6"]),
    "long timeouts": ({"timeouts": np.zeros(9)}, ["key 'timeouts' has 9 rows, expected 6"]),
    "short next_observations": (
        {"next_observations": np.zeros((5, 3))},
        ["'next_observations' has 5 rows, expected 6"],
    ),
    "odd count of observations": (
        {"observations": np.zeros((9, 3)), "next_observations": None},
        ["key 'observations' has 9 rows, expected 6 (one per transition) or 7"],
    ),
    "other next_observations": ({"next_observations": np.zeros((N, 4))}, ["rows of shape (4,)", "expected (3,)"]),
    "observations of another env": (
        {"observations": np.zeros((N, 5)), "next_observations": np.zeros((N, 5))},
        ["key 'observations' has observations of shape (5,), expected (3,) for Toy-v0"],
    ),
    "actions of another env": ({"actions": np.zeros((N, 4))}, ["key 'actions'", "(4,), expected (2,)"]),
    "discrete actions": ({"actions": np.zeros(N, dtype=np.int64)}, ["dtype int64, expected floats"]),
    "actions with three axes": ({"actions": np.zeros((N, 2, 2))}, ["key 'actions'", "expected floats [N, dim]"]),
    "boolean actions": ({"actions": np.zeros((N, 2), dtype=bool)}, ["key 'actions' has dtype bool"]),
    "boolean observations": ({"observations": np.zeros((N, 3), dtype=bool)}, ["'observations' has dtype bool"]),
    "image observations": (
        {"observations": np.zeros((N, 3), np.uint8), "next_observations": np.zeros((N, 3), np.uint8)},
        ["dtype uint8, expected float32"],
    ),
    "rewards with two columns": ({"rewards": np.zeros((N, 2))}, ["key 'rewards' has shape (6, 2)", "[N]"]),
    "a single reward": ({"rewards": np.float32(1)}, ["key 'rewards' is a single number"]),
    "complex rewards": ({"rewards": np.zeros(N, dtype=complex)}, ["key 'rewards' has dtype complex128"]),
    "rewards in words": ({"rewards": np.array(["a"] * N)}, ["key 'rewards' has dtype <U1"]),
    "NaN observation": (spoiled("observations", 2, np.nan), ["key 'observations' holds nan in row 2"]),
    "inf reward": (spoiled("rewards", 4, np.inf), ["key 'rewards' holds inf in row 4"]),
    "-inf next observation": (spoiled("next_observations", 5, -np.inf), ["'next_observations' holds -inf in row 5"]),
    "NaN action": (spoiled("actions", 1, np.nan), ["key 'actions' holds nan in row 1"]),
    "too large for float32": (spoiled("observations", 0, 1e300), ["holds inf in row 0", "float32"]),
    "terminals of 2": ({"terminals": flags(2)}, ["key 'terminals' holds 2 in row 0: expected only 0 and 1"]),
    "timeouts of 0.5": ({"timeouts": flags(0.5)}, ["key 'timeouts' holds 0.5 in row 0"]),
    "NaN terminals": ({"terminals": flags(np.nan)}, ["key 'terminals' holds nan in row 0"]),
    "only one-row episodes, no successor": (
        {"next_observations": None, "timeouts": flags(1)},
        ["leaves no transition"],
    ),
}


def refuse(path, **load):
    """The sentence with which a file is refused."""
    with pytest.raises(UserError) as caught:
        load_transition_dataset(path, **load)
    sentence = str(caught.value)
    assert str(path) in sentence
    assert "\n" not in sentence
    return sentence


@pytest.mark.parametrize("name", BAD_ARRAYS)
def test_bad_arrays_in_npz(name, tmp_path):
    changes, expected = BAD_ARRAYS[name]
    np.savez(tmp_path / "bad.npz", **arrays(**changes))
    sentence = refuse(tmp_path / "bad.npz", spec=SPEC)
    for part in expected:
        assert part in sentence


@pytest.mark.parametrize("name", ["no rewards", "short actions", "NaN observation", "actions of another env"])
@pytest.mark.parametrize("kind", ["pt", "hdf5"])
def test_bad_arrays_in_other_files(name, kind, tmp_path):
    changes, expected = BAD_ARRAYS[name]
    path = tmp_path / f"bad.{kind}"
    if kind == "pt":
        torch.save({k: torch.as_tensor(v) for k, v in arrays(**changes).items()}, path)
    else:
        with h5py.File(path, "w") as file:
            for key, array in arrays(**changes).items():
                file[key] = array
    sentence = refuse(path, spec=SPEC)
    for part in expected:
        assert part in sentence


def test_the_good_arrays_of_these_tests_load(tmp_path):
    np.savez(tmp_path / "good.npz", **arrays())
    assert len(load_transition_dataset(tmp_path / "good.npz", SPEC)) == N


def write_npz(path):
    np.savez(path, **arrays())


def write_hdf5(path):
    with h5py.File(path, "w") as file:
        for key, array in arrays().items():
            file[key] = array


def write_pt(path):
    torch.save({k: torch.as_tensor(v) for k, v in arrays().items()}, path)


WRITERS = {"npz": write_npz, "hdf5": write_hdf5, "pt": write_pt}


@pytest.mark.parametrize("kind", WRITERS)
def test_missing_file(kind, tmp_path):
    assert "no such file" in refuse(tmp_path / f"none.{kind}")


@pytest.mark.parametrize("kind", WRITERS)
def test_empty_file(kind, tmp_path):
    path = tmp_path / f"empty.{kind}"
    path.touch()
    assert "the file is empty" in refuse(path)


@pytest.mark.parametrize("kind", WRITERS)
def test_a_folder_is_not_a_file(kind, tmp_path):
    (tmp_path / f"folder.{kind}").mkdir()
    assert "is a folder" in refuse(tmp_path / f"folder.{kind}")


@pytest.mark.parametrize("kind", WRITERS)
def test_truncated_file(kind, tmp_path):
    path = tmp_path / f"cut.{kind}"
    WRITERS[kind](path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    assert f"cannot be read as {kind}" in refuse(path)


@pytest.mark.parametrize("kind", WRITERS)
def test_file_of_another_kind(kind, tmp_path):
    path = tmp_path / f"text.{kind}"
    path.write_text("this is only text, and more of it than a header would take\n" * 20)
    sentence = refuse(path)
    assert f"cannot be read as {kind}" in sentence or "expected a dict of tensors" in sentence


def test_flipped_bytes_in_npz(tmp_path):
    path = tmp_path / "flipped.npz"
    write_npz(path)
    data = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        place = archive.getinfo("actions.npy").header_offset + 200
    data[place] ^= 0xFF
    path.write_bytes(bytes(data))
    assert "cannot be read as npz" in refuse(path)


def test_objects_in_npz_are_never_unpickled(tmp_path):
    path = tmp_path / "objects.npz"
    np.savez(path, **arrays(rewards=np.array([{}] * N, dtype=object)))
    assert "never unpickled" in refuse(path)
    with pytest.raises(UserError, match="object array"):
        load_npz(NpzConfig(path=str(path), memory=Memory.mmap), SPEC)


def test_npz_without_arrays(tmp_path):
    np.savez(tmp_path / "none.npz")
    assert "holds no arrays" in refuse(tmp_path / "none.npz")


def test_compressed_npz_cannot_be_mapped(tmp_path):
    np.savez_compressed(tmp_path / "small.npz", **arrays())
    with pytest.raises(UserError, match=r"compressed and cannot be memory-mapped.*memory=ram"):
        load_npz(NpzConfig(path=str(tmp_path / "small.npz"), memory=Memory.mmap), SPEC)


def test_chunked_hdf5_cannot_be_mapped(tmp_path):
    path = tmp_path / "chunked.hdf5"
    with h5py.File(path, "w") as file:
        for key, array in arrays().items():
            file.create_dataset(key, data=array, chunks=True)
    with pytest.raises(UserError, match=r"chunked.*memory=ram"):
        load_hdf5(Hdf5Config(path=str(path), memory=Memory.mmap), SPEC)


class Trap:
    """Unpickling this would run code."""

    def __reduce__(self):
        return (logging.error, ("ran",))


def test_objects_in_pt_are_never_unpickled(tmp_path, caplog):
    torch.save({**{k: torch.as_tensor(v) for k, v in arrays().items()}, "more": Trap()}, tmp_path / "trap.pt")
    assert "nothing else is ever unpickled" in refuse(tmp_path / "trap.pt")
    assert "ran" not in caplog.text


@pytest.mark.parametrize(
    ("saved", "expected"),
    [(torch.zeros(3), "holds a Tensor, expected a dict"), ({"rewards": [1.0]}, "key 'rewards' is a list")],
)
def test_pt_that_is_no_dict_of_tensors(saved, expected, tmp_path):
    torch.save(saved, tmp_path / "odd.pt")
    assert expected in refuse(tmp_path / "odd.pt")


PROGRAMS = {
    # 24 tuples, each of which holds the one before twice, as the module of a name
    "a name that is not text": b"\x80\x04\x8c\x01a\x94"
    + b"".join(b"h%ch%c\x86\x94" % (i, i) for i in range(24))
    + b"\x8c\x01b\x93.",
    "a tensor with sizes that are not possible": b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n("
    b"(X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000NNtQK\x00(J\xff\xff\xff\x03X\x01\x00\x00\x00at(K\x01K\x01tNNtR.",
}


@pytest.mark.parametrize("expected", PROGRAMS)
def test_a_small_pickle_does_not_become_a_large_text(expected, tmp_path):
    with zipfile.ZipFile(tmp_path / "large.pt", "w") as archive:
        archive.writestr("large/data.pkl", PROGRAMS[expected])
    tracemalloc.start()
    try:
        assert expected in refuse(tmp_path / "large.pt")
        assert tracemalloc.get_traced_memory()[1] < 2**24
    finally:
        tracemalloc.stop()


def packed_reward(path, name="rewards", filters=1, data=b"", chunk=N):
    """A good file with these bytes in the place of a piece of an array."""
    write_hdf5(path)
    with h5py.File(path, "a") as file:
        if name in file:
            del file[name]
        plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plan.set_chunk((chunk,))
        for _ in range(filters):
            plan.set_filter(h5py.h5z.FILTER_DEFLATE, 0, (9,))
        stored = h5py.h5d.create(file.id, name.encode(), h5py.h5t.IEEE_F32LE, h5py.h5s.create_simple((N,)), plan)
        stored.write_direct_chunk((0,), data)


def test_a_piece_of_hdf5_does_not_become_larger_than_it_is(tmp_path, monkeypatch):
    monkeypatch.setattr("rlx.data.files.DECLARED", 1000)
    packed_reward(tmp_path / "good.hdf5", data=zlib.compress(bytes(4 * N)))
    assert len(load_transition_dataset(tmp_path / "good.hdf5")) == N
    packed_reward(tmp_path / "bomb.hdf5", data=zlib.compress(bytes(2**20), 9))
    expected = "key 'rewards' has a piece that unpacks to more than its 24 bytes"
    assert expected in refuse(tmp_path / "bomb.hdf5")
    packed_reward(tmp_path / "long.hdf5", data=zlib.compress(np.random.default_rng(0).bytes(5000)))
    assert expected in refuse(tmp_path / "long.hdf5")


def test_hdf5_that_is_compressed_twice_is_refused(tmp_path):
    packed_reward(tmp_path / "twice.hdf5", filters=2, data=zlib.compress(zlib.compress(bytes(4 * N))))
    assert "key 'rewards' is compressed more than once" in refuse(tmp_path / "twice.hdf5")


def test_filters_of_hdf5_that_believe_the_file_are_refused(tmp_path):
    path = tmp_path / "offset.hdf5"
    write_hdf5(path)
    with h5py.File(path, "a") as file:
        del file["rewards"]
        file.create_dataset("rewards", data=np.ones(N, "i4"), chunks=(N,), scaleoffset=2)
    true, forged = (struct.pack("<3I", 2, 2, entries) for entries in (N, 2**30))  # which ended the process
    assert path.read_bytes().count(true) == 1
    path.write_bytes(path.read_bytes().replace(true, forged))
    assert "key 'rewards' is compressed in an unusual way" in refuse(path)


def test_a_number_of_hdf5_in_a_huge_piece_is_refused(tmp_path):
    with h5py.File(tmp_path / "number.hdf5", "w") as file:
        file["observations_0"] = arrays()["observations"]
        file.create_dataset("num_episodes", (1,), "i8", chunks=(2**28,), maxshape=(None,), compression="gzip")
    assert "which is not plausible" in refuse(tmp_path / "number.hdf5")


def test_links_into_other_hdf5_files_are_refused(tmp_path):
    write_hdf5(tmp_path / "other.hdf5")
    write_hdf5(tmp_path / "links.hdf5")
    with h5py.File(tmp_path / "links.hdf5", "a") as file:
        del file["rewards"]
        file["rewards"] = h5py.ExternalLink("other.hdf5", "rewards")
    assert "key 'rewards' is a link into another file" in refuse(tmp_path / "links.hdf5")


def test_external_storage_of_hdf5_is_refused(tmp_path):
    path = tmp_path / "outside.hdf5"
    arrays()["rewards"].tofile(tmp_path / "raw.bin")
    write_hdf5(path)
    with h5py.File(path, "a") as file:
        del file["rewards"]
        file.create_dataset("rewards", (N,), "f4", external=[(str(tmp_path / "raw.bin"), 0, N * 4)])
    assert "key 'rewards' keeps its data in another file" in refuse(path)


def test_virtual_hdf5_arrays_are_refused(tmp_path):
    path = tmp_path / "virtual.hdf5"
    write_hdf5(tmp_path / "other.hdf5")
    write_hdf5(path)
    with h5py.File(path, "a") as file:
        del file["rewards"]
        layout = h5py.VirtualLayout((N,), "f4")
        layout[:] = h5py.VirtualSource(tmp_path / "other.hdf5", "rewards", (N,))
        file.create_virtual_dataset("rewards", layout)
    assert "key 'rewards' keeps its data in another file" in refuse(path)


def test_a_group_where_an_array_should_be(tmp_path):
    path = tmp_path / "group.hdf5"
    write_hdf5(path)
    with h5py.File(path, "a") as file:
        del file["rewards"]
        file.create_group("rewards")
    assert "key 'rewards' is a group" in refuse(path)


def test_choices_beyond_the_action_space(tmp_path):
    spec = Spec("Toy-v0", (3,), "float32", "discrete", (), action_sizes=(2,))
    np.savez(tmp_path / "bad.npz", **arrays(actions=np.array([0, 1, 2, 0, 1, 0])))
    assert "choices from 0 to 2, expected 0 up to 1" in refuse(tmp_path / "bad.npz", spec=spec)


def test_floats_for_a_discrete_env(tmp_path):
    spec = Spec("Toy-v0", (3,), "float32", "discrete", (), action_sizes=(2,))
    np.savez(tmp_path / "bad.npz", **arrays())
    assert "dtype float32, expected integers: Toy-v0 is discrete" in refuse(tmp_path / "bad.npz", spec=spec)


def test_data_of_another_env(tmp_path):
    np.savez(tmp_path / "other.npz", **arrays(), env_id=np.array("Other-v1"))
    assert "recorded on Other-v1, expected Toy-v0" in refuse(tmp_path / "other.npz", spec=SPEC)
    assert len(load_npz(NpzConfig(path=str(tmp_path / "other.npz"), any_env=True), SPEC)) == N


def test_another_version_of_the_env_is_only_a_warning(tmp_path, caplog):
    np.savez(tmp_path / "older.npz", **arrays(), env_id=np.array("Toy-v1"))
    load_transition_dataset(tmp_path / "older.npz", SPEC)
    assert "was recorded on Toy-v1 and is used for Toy-v0" in caplog.text


def test_unknown_kind_of_file(tmp_path):
    (tmp_path / "data.csv").write_text("a,b\n")
    assert "unknown kind of dataset" in refuse(tmp_path / "data.csv")


def test_no_path_given():
    with pytest.raises(UserError, match=r"dataset\.path=FILE"):
        load_npz(NpzConfig(), SPEC)


# -- Minari storage --------------------------------------------------------------------------------------------------


def minari_folder(root, metadata=None, episodes=1, **changes):
    folder = root / "toy" / "data-v0"
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "metadata.json").write_text(json.dumps({"data_format": "hdf5", **(metadata or {})}))
    with h5py.File(folder / "data" / "main_data.hdf5", "w") as file:
        for i in range(episodes):
            group = file.create_group(f"episode_{i}")
            stored = {
                "observations": np.zeros((N + 1, 3), np.float32),
                "actions": np.zeros((N, 2), np.float32),
                "rewards": np.zeros(N, np.float32),
                "terminations": np.zeros(N, bool),
                "truncations": np.arange(N) == N - 1,
            }
            for key, array in (stored | changes).items():
                if array is not None:
                    group[key] = array
    return folder


BAD_MINARI = {
    "arrow": ({"metadata": {"data_format": "arrow"}}, "stored as 'arrow', expected 'hdf5'"),
    "no episodes": ({"episodes": 0}, "holds no episodes"),
    "missing key": ({"rewards": None}, "no key '/episode_0/rewards'"),
    "no last observation": (
        {"observations": np.zeros((N, 3))},
        "key 'episode_0/observations' has 6 rows, expected 7 for 6 rewards",
    ),
    "short actions": ({"actions": np.zeros((N - 1, 2))}, "key 'episode_0/actions' has 5 rows, expected 6"),
    "incomplete": ({"metadata": {"total_steps": 99}}, "holds 6 transitions, expected 99"),
    "NaN": ({"rewards": np.full(N, np.nan, np.float32)}, "key 'rewards' holds nan in row 0"),
}


@pytest.mark.parametrize("name", BAD_MINARI)
def test_bad_minari_storage(name, tmp_path):
    changes, expected = BAD_MINARI[name]
    assert expected in refuse(minari_folder(tmp_path, **changes))


def test_minari_with_a_part_that_is_no_array_of_numbers(tmp_path):
    space = json.dumps({"type": "Dict", "subspaces": {"gear": {"type": "Discrete", "n": 5}}})
    folder = minari_folder(tmp_path, {"observation_space": space}, observations=None)
    with h5py.File(folder / "data" / "main_data.hdf5", "a") as file:
        file["episode_0/observations/gear"] = np.zeros(N + 1, np.int64)
    assert "key 'observations/gear' holds the space Discrete, expected arrays of numbers" in refuse(folder)


def test_minari_with_pictures_in_huge_pieces(tmp_path):
    space = json.dumps({"type": "Box", "dtype": "uint8", "shape": [32, 32, 3]})
    folder = minari_folder(tmp_path, {"observation_space": space}, observations=None)
    with h5py.File(folder / "data" / "main_data.hdf5", "a") as file:
        file.create_dataset(
            "episode_0/observations", (N + 1,), h5py.vlen_dtype(np.uint8), chunks=(2**17,), maxshape=(None,)
        )
    assert "is cut into pieces of 2,097,152 bytes, expected at most 1,048,576" in refuse(folder)


def test_minari_with_an_empty_group_of_observations(tmp_path):
    folder = minari_folder(tmp_path, observations=None)
    with h5py.File(folder / "data" / "main_data.hdf5", "a") as file:
        file.create_group("episode_0/observations")
    assert "key 'episode_0/observations' is an empty group" in refuse(folder)


def test_minari_with_a_group_that_holds_itself(tmp_path):
    folder = minari_folder(tmp_path, observations=None)
    with h5py.File(folder / "data" / "main_data.hdf5", "a") as file:
        group = file.create_group("episode_0/observations")
        group["again"] = group
    assert "is an empty group" in refuse(folder)


@pytest.mark.parametrize("text", ["{", "[]"])
def test_minari_metadata_that_is_no_json_object(text, tmp_path):
    folder = minari_folder(tmp_path)
    (folder / "data" / "metadata.json").write_text(text)
    assert "cannot be read as Minari metadata" in refuse(folder)


def test_minari_without_its_data_file(tmp_path):
    folder = minari_folder(tmp_path)
    (folder / "data" / "main_data.hdf5").unlink()
    assert "incomplete" in refuse(folder)
