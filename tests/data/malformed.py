"""A corpus of malformed datasets: a name and a builder each. A builder writes below a folder and returns the source.

Every one ends in a sentence, or, where it is odd but harmless, in a dataset. None may run code, touch another file, or
take more memory and time than a good file of its size.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import zipfile
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch

N = 6
Builder = Callable[[Path], Path]
CORPUS: dict[str, Builder] = {}


def arrays(**changes: Any) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    stream = rng.standard_normal((N + 1, 3)).astype(np.float32)
    good: dict[str, Any] = {
        "observations": stream[:-1],
        "actions": rng.uniform(-1, 1, (N, 2)).astype(np.float32),
        "rewards": np.arange(N, dtype=np.float32),
        "next_observations": stream[1:],
        "terminals": np.zeros(N, dtype=bool),
        "timeouts": np.arange(N) == N - 1,
    }
    return {key: value for key, value in (good | changes).items() if value is not None}


class Trap:
    """Unpickling this would write a file."""

    def __init__(self, canary: Path):
        self.canary = canary

    def __reduce__(self) -> Any:
        return (os.mkdir, (str(self.canary),))


def bad(name: str) -> Callable[[Builder], Builder]:
    def register(builder: Builder) -> Builder:
        assert name not in CORPUS, name
        CORPUS[name] = builder
        return builder

    return register


# -- npz -------------------------------------------------------------------------------------------------------------


def npy(array: Any) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.asarray(array), allow_pickle=True)
    return buffer.getvalue()


def header(text: str | bytes, data: bytes = b"", version: bytes = b"\x01\x00", length: int | None = None) -> bytes:
    raw = text.encode("latin1") if isinstance(text, str) else text
    width = "<H" if version[0] == 1 else "<I"
    return b"\x93NUMPY" + version + struct.pack(width, len(raw) if length is None else length) + raw + data


def zipped(folder: Path, members: dict[str, Any], method: int = zipfile.ZIP_STORED) -> Path:
    path = folder / "bad.npz"
    with zipfile.ZipFile(path, "w", method) as archive:
        for key, value in members.items():
            archive.writestr(f"{key}.npy", value if isinstance(value, bytes) else npy(value))
    return path


def declare(shape: str, descr: str = "'<f4'") -> str:
    return f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n"


NPZ_HEADERS = {
    "negative shape": header(declare("(-6,)"), bytes(24)),
    "two negative sizes": header(declare("(-2, -3)"), bytes(24)),
    "huge shape": header(declare("(10**12,)"), bytes(24)),
    "huge literal shape": header(declare("(1000000000000,)"), bytes(24)),
    "shape of two huge sizes": header(declare("(4294967296, 4294967296)"), bytes(24)),
    "shape beyond int64": header(declare(f"({'9' * 40},)"), bytes(24)),
    "a million digits": header(declare(f"({'9' * 9000},)"), bytes(24)),
    "shape of floats": header(declare("(6.0,)"), bytes(24)),
    "shape of strings": header(declare("('6',)"), bytes(24)),
    "shape of bools": header(declare("(True, True)"), bytes(4)),
    "shape is a number": header(declare("6"), bytes(24)),
    "no shape": header("{'descr': '<f4', 'fortran_order': False}\n", bytes(24)),
    "python code": header("__import__('os').mkdir('canary')\n", bytes(24)),
    "a call in the shape": header(declare("(__import__('os').getpid(),)"), bytes(24)),
    "unterminated": header("{'descr': '<f4', 'shape': (6,", bytes(24)),
    "unterminated string": header("{'descr': '''<f4", bytes(24)),
    "deep brackets": header("(" * 9000 + ")" * 900 + "\n", bytes(24)),
    "deep minus signs": header(declare(f"({'-' * 9000}6,)"), bytes(24)),
    "null bytes": header(b"\0" * 60, bytes(24)),
    "not latin": header(b"\xff\xfe" * 30, bytes(24)),
    "empty": header("", bytes(24)),
    "longer than the file": header(declare("(6,)"), bytes(24), b"\x02\x00", 2**32 - 1),
    "odd version": header(declare("(6,)"), bytes(24), b"\x09\x00"),
    "no magic": b"NUMPY!" + bytes(60),
    "only magic": b"\x93NUMPY",
    "nothing": b"",
    "structured dtype": npy(np.zeros(N, [("a", "f4"), ("b", "i8")])),
    "structured dtype with objects": npy(np.zeros(N, [("a", "O")])),
    "strings": npy(np.array(["1"] * N)),
    "bytes": npy(np.array([b"1"] * N)),
    "datetimes": npy(np.zeros(N, "M8[s]")),
    "time differences": npy(np.zeros(N, "m8[s]")),
    "void": npy(np.zeros(N, "V8")),
    "objects": npy(np.array([None] * N, dtype=object)),
    "complex": npy(np.zeros(N, np.complex64)),
    "subarrays": header(declare("(6,)", "('<f4', (2,))"), bytes(48)),
    "unknown dtype": header(declare("(6,)", "'<q9'"), bytes(24)),
    "dtype of four gigabytes": header(declare("(6,)", "'|V4000000000'"), bytes(24)),
    "dtype of nothing": header(declare("(1000000000000,)", "'<U0'")),
    "dtype is a dict": header(declare("(6,)", "{'a': 1}"), bytes(24)),
    "dtype is a number": header(declare("(6,)", "5"), bytes(24)),
    "no rows": npy(np.zeros(0, np.float32)),
    "rows of nothing": npy(np.zeros((N, 0), np.float32)),
    "many axes": npy(np.zeros((N,) + (1,) * 20, np.float32)),
    "single number": npy(np.float32(1)),
    "data cut": npy(np.zeros(N, np.float32))[:-3],
    "data too long": npy(np.zeros(N, np.float32)) + bytes(8),
}
TWICE = ("negative shape", "huge literal shape", "unterminated", "only magic", "objects", "data cut", "data too long")
for _name, _bytes in NPZ_HEADERS.items():
    for _method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)[: 1 + (_name in TWICE)]:
        _packed = "" if _method == zipfile.ZIP_STORED else ", compressed"
        CORPUS[f"npz: rewards: {_name}{_packed}"] = lambda folder, raw=_bytes, method=_method: zipped(
            folder, arrays(rewards=raw), method
        )


@bad("npz: zip bomb of 8 GB")
def _(folder: Path) -> Path:
    """Its central directory and header agree that a few kilobytes hold 8 GB."""
    return lying(folder, 2 * 10**9)


@bad("npz: zip bomb of 600 MB that is true")
def _(folder: Path) -> Path:
    path = zipped(folder, arrays(rewards=None), zipfile.ZIP_DEFLATED)
    rows = 150 * 10**6
    with (
        zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("rewards.npy", "w") as file,
    ):
        file.write(header(declare(f"({rows},)")))
        for _ in range(6):
            file.write(bytes(10**8))
    return path


@bad("npz: declares less than it holds")
def _(folder: Path) -> Path:
    return lying(folder, 1)


@bad("npz: declares a little more than it holds")
def _(folder: Path) -> Path:
    return lying(folder, 1000)


def lying(folder: Path, rows: int) -> Path:
    """Compressed rewards whose directory entry and header claim other sizes than the stream has."""
    path = zipped(folder, arrays(rewards=header(declare(f"({rows},)"), bytes(24))), zipfile.ZIP_DEFLATED)
    data = bytearray(path.read_bytes())
    place = data.rindex(b"rewards.npy") - 46
    assert data[place : place + 4] == b"PK\x01\x02"
    struct.pack_into("<I", data, place + 24, (len(header(declare(f"({rows},)"))) + 4 * rows) % 2**32)
    path.write_bytes(data)
    return path


@bad("npz: header of 4 GB, compressed")
def _(folder: Path) -> Path:
    return zipped(folder, arrays(rewards=header(b" " * 10**6, length=2**31, version=b"\x02\x00")), zipfile.ZIP_DEFLATED)


@bad("npz: zip in a zip")
def _(folder: Path) -> Path:
    inner = zipped(folder, arrays()).read_bytes()
    return zipped(folder, arrays(rewards=inner))


@bad("npz: bzip2")
def _(folder: Path) -> Path:
    return zipped(folder, arrays(), zipfile.ZIP_BZIP2)


@bad("npz: lzma")
def _(folder: Path) -> Path:
    return zipped(folder, arrays(), zipfile.ZIP_LZMA)


@bad("npz: keys that leave the folder")
def _(folder: Path) -> Path:
    return zipped(
        folder, arrays() | {"../../canary": np.zeros(3), "/canary": np.zeros(3), "\x1b[31mred\n": np.zeros(3)}
    )


@bad("npz: only odd keys")
def _(folder: Path) -> Path:
    return zipped(folder, {"\x1b[31mred\n[/b]": np.zeros(3), "x" * 5000: np.zeros(3)})


@bad("npz: five thousand keys")
def _(folder: Path) -> Path:
    path = folder / "bad.npz"
    with zipfile.ZipFile(path, "w") as archive:
        for i in range(5_000):
            archive.writestr(f"terminate{i}.npy", b"")
    return path


@bad("npz: encrypted flag")
def _(folder: Path) -> Path:
    path = zipped(folder, arrays(), zipfile.ZIP_DEFLATED)
    data = bytearray(path.read_bytes())
    place = data.index(b"PK\x01\x02")
    while place >= 0:
        data[place + 8] |= 1
        place = data.find(b"PK\x01\x02", place + 4)
    path.write_bytes(data)
    return path


@bad("npz: member beyond the end")
def _(folder: Path) -> Path:
    path = zipped(folder, arrays())
    data = bytearray(path.read_bytes())
    struct.pack_into("<I", data, data.rindex(b"rewards.npy") - 46 + 42, 2**31)
    path.write_bytes(data)
    return path


@bad("npz: a pickle with another name")
def _(folder: Path) -> Path:
    (folder / "bad.npz").write_bytes(pickle.dumps({"rewards": Trap(folder / "canary")}))
    return folder / "bad.npz"


@bad("npz: objects that would run")
def _(folder: Path) -> Path:
    return zipped(folder, arrays(rewards=np.array([Trap(folder / "canary")] * N, dtype=object)))


@bad("npz: env_id is an object")
def _(folder: Path) -> Path:
    return zipped(folder, arrays() | {"env_id": np.array(Trap(folder / "canary"), dtype=object)})


@bad("npz: env_id of four gigabytes")
def _(folder: Path) -> Path:
    return zipped(folder, arrays() | {"env_id": header(declare("()", "'<U1000000000'"), bytes(24))})


@bad("npz: env_id with characters that there are not")
def _(folder: Path) -> Path:
    return zipped(folder, arrays() | {"env_id": header(declare("()", "'<U2'"), b"\xff" * 8)})


@bad("npz: env_id with markup and line breaks")
def _(folder: Path) -> Path:
    return zipped(folder, arrays() | {"env_id": np.array("Toy-v0\n[/b]\x1b[31m")})


@bad("npz: link to a device without an end")
def _(folder: Path) -> Path:
    (folder / "bad.npz").symlink_to("/dev/zero")
    return folder / "bad.npz"


@bad("npz: FIFO")
def _(folder: Path) -> Path:
    os.mkfifo(folder / "bad.npz")
    return folder / "bad.npz"


@bad("npz: link to itself")
def _(folder: Path) -> Path:
    (folder / "bad.npz").symlink_to(folder / "bad.npz")
    return folder / "bad.npz"


@bad("npz: a name with markup")
def _(folder: Path) -> Path:
    return zipped(folder, arrays()).rename(folder / "[b]bad[red][[.npz")


@bad("npz: null byte in the path")
def _(folder: Path) -> Path:
    return folder / "bad\0.npz"


@bad("npz: no such home")
def _(folder: Path) -> Path:
    return Path("~nobody-of-that-name/bad.npz")


@bad("npz: a very long name")
def _(folder: Path) -> Path:
    return folder / ("x" * 5000 + ".npz")


NPZ_VALUES: dict[str, dict[str, Any]] = {
    "observations: rows of nothing": {"observations": np.zeros((N, 0)), "next_observations": np.zeros((N, 0))},
    "actions: rows of nothing": {"actions": np.zeros((N, 0))},
    "actions: the largest choice": {"actions": np.full(N, np.iinfo(np.int64).max)},
    "actions: negative choices": {"actions": np.full(N, -1)},
    "actions: unsigned beyond int64": {"actions": np.full(N, 2**64 - 1, np.uint64)},
    "rewards: largest floats": {"rewards": np.full(N, np.finfo(np.float32).max)},
    "rewards: long doubles": {"rewards": np.full(N, np.longdouble("1e4000"))},
    "observations: largest floats": {"observations": np.full((N, 3), 3e38, np.float32)},
    "terminals: largest int": {"terminals": np.full(N, 2**63 - 1)},
    "both flags everywhere": {"terminals": np.ones(N), "timeouts": np.ones(N)},
    "only a name": {"observations": np.array("observations")},
}
for _name, _changes in NPZ_VALUES.items():
    CORPUS[f"npz: {_name}"] = lambda folder, changes=_changes: zipped(folder, arrays(**changes))


# -- pt --------------------------------------------------------------------------------------------------------------


def tensors(**changes: Any) -> dict[str, Any]:
    plain = {key: torch.as_tensor(value) for key, value in arrays().items()}
    return {key: value for key, value in (plain | changes).items() if value is not None}


def saved(folder: Path, value: Any, **kwargs: Any) -> Path:
    torch.save(value, folder / "bad.pt", **kwargs)
    return folder / "bad.pt"


class Odd(dict):
    """A class that only this test knows."""


PT_TENSORS: dict[str, Callable[[], Any]] = {
    "sparse": lambda: torch.zeros(N).to_sparse(),
    "sparse rows": lambda: torch.zeros(N, N).to_sparse_csr(),
    "float8": lambda: torch.zeros(N).to(torch.float8_e4m3fn),
    "meta": lambda: torch.zeros(N, device="meta"),
    "quantized": lambda: torch.quantize_per_tensor(torch.zeros(N), 0.1, 0, torch.qint8),
    "complex": lambda: torch.zeros(N, dtype=torch.complex64),
    "nested": lambda: torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)]),
    "empty": lambda: torch.zeros(0),
    "0-d": lambda: torch.tensor(1.0),
    "rows of nothing": lambda: torch.zeros(N, 0),
    "expanded to 8 GB": lambda: torch.zeros(1).expand(2 * 10**9),
    "expanded to 10**18": lambda: torch.zeros(1).expand(10**18),
    "expanded rows": lambda: torch.zeros(1, 1).expand(N, 2**40),
    "uint16": lambda: torch.zeros(N, dtype=torch.uint16),
    "negative view": lambda: torch._neg_view(torch.ones(N)),
    "conjugate view": lambda: torch.zeros(N, dtype=torch.complex64).conj(),
    "a list": lambda: [1.0] * N,
    "a string": lambda: "rewards",
    "None": lambda: None,
    "a number": lambda: 5,
    "a dict": dict,
    "an array": lambda: np.zeros(N),
    "a size": lambda: torch.Size([6]),
    "a dtype": lambda: torch.float32,
    "a storage": lambda: torch.zeros(N).untyped_storage(),
    "bytes": lambda: bytearray(100),
    "a module": lambda: torch.nn.Linear(2, 2),
}
for _name, _make in PT_TENSORS.items():
    CORPUS[f"pt: rewards: {_name}"] = lambda folder, make=_make: saved(folder, tensors() | {"rewards": make()})

PT_VALUES: dict[str, Callable[[], Any]] = {
    "a tensor": lambda: torch.zeros(3),
    "a list of tensors": lambda: [torch.zeros(3)],
    "a class of a dict": lambda: Odd(tensors()),
    "a defaultdict": lambda: defaultdict(list, tensors()),
    "keys that are tuples": lambda: {(1, 2): torch.zeros(3)},
    "keys that are numbers": lambda: {1: torch.zeros(3)},
    "an ordered dict without rewards": lambda: OrderedDict(tensors(rewards=None)),
    "all tensors expanded": lambda: {k: v[:1].expand(10**9, *v.shape[1:]) for k, v in tensors().items()},
    "a name of an env that is none": lambda: tensors() | {"env_id": "[/b]\n" * 1000},
    "nothing": dict,
    "None": lambda: None,
}
for _name, _make in PT_VALUES.items():
    CORPUS[f"pt: {_name}"] = lambda folder, make=_make: saved(folder, make())


@bad("pt: an object that would run")
def _(folder: Path) -> Path:
    return saved(folder, tensors() | {"more": Trap(folder / "canary")})


@bad("pt: the format of old PyTorch")
def _(folder: Path) -> Path:
    return saved(folder, tensors(), _use_new_zipfile_serialization=False)


@bad("pt: an old file with an object that would run")
def _(folder: Path) -> Path:
    return saved(folder, {"more": Trap(folder / "canary")}, _use_new_zipfile_serialization=False)


@bad("pt: a bare pickle")
def _(folder: Path) -> Path:
    (folder / "bad.pt").write_bytes(pickle.dumps({"rewards": Trap(folder / "canary")}))
    return folder / "bad.pt"


PROGRAMS = {
    "memo beyond memory": b"\x80\x02}r\xff\xff\xff\xff.",
    "no dict": b"\x80\x02K\x01.",
    "empty stack": b"\x80\x02.",
    "pop from nothing": b"\x80\x02R.",
    "no mark": b"\x80\x02}u.",
    "no stop": b"\x80\x02}",
    "bytes beyond the end": b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x7f.",
    "string beyond the end": b"\x80\x02X\xff\xff\xff\x7fa.",
    "unknown instruction": b"\x80\x02\xff.",
    "laughs": b"\x80\x02(" + b"K\x01\x86q\x00h\x00" * 3 + b"h\x00h\x00\x86q\x01" * 100 + b"}.",
    "deep tuples as a key": b"\x80\x02})" + b"\x85" * 100_000 + b"K\x01s.",
    "deep tuples": b"\x80\x02})" + b"\x85" * 100_000 + b"0.",
    "text number": b"\x80\x02I" + b"9" * 5000 + b"\n.",
    "eval": b"\x80\x02cbuiltins\neval\nX\x10\x00\x00\x00__import__('os')\x85R.",
    "an instance": b"\x80\x02(ios\nmkdir\n.",
    "a storage of nothing": b"\x80\x02)Q.",
    "a list that holds itself": b"\x80\x02]q\x00h\x00a.",
    "a tensor without arguments": b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n)R.",
    "a tensor of itself": b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n(}K\x00)))tR.",
    "a huge program": b"\x80\x02" + b"]" * (2**20 + 10) + b".",
}
for _name, _program in PROGRAMS.items():

    def _build(folder: Path, program: bytes = _program) -> Path:
        path = saved(folder, tensors())
        return rewritten(path, lambda name, data: program if name.endswith("/data.pkl") else data)

    CORPUS[f"pt: pickle: {_name}"] = _build


def rewritten(path: Path, change: Callable[[str, bytes], bytes], method: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path) as archive:
        members = {m.filename: archive.read(m) for m in archive.infolist()}
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(name, change(name, data))
    return path


@bad("pt: storages cut")
def _(folder: Path) -> Path:
    """The pickle promises more numbers than the archive holds."""
    return rewritten(saved(folder, tensors()), lambda name, data: data[:4] if "/data/" in name else data)


@bad("pt: storages gone")
def _(folder: Path) -> Path:
    path = saved(folder, tensors())
    return rewritten(path, lambda name, data: data.replace(b"\x01\x00\x00\x000q", b"\x01\x00\x00\x009q"))


@bad("pt: compressed storages of 1 GB")
def _(folder: Path) -> Path:
    path = saved(folder, tensors())
    return rewritten(path, lambda name, data: bytes(10**7) if "/data/" in name else data, zipfile.ZIP_DEFLATED)


@bad("pt: storages of another folder")
def _(folder: Path) -> Path:
    path = saved(folder, tensors())
    return rewritten(path, lambda name, data: data.replace(b"\x01\x00\x00\x000q", b"\x04\x00\x00\x00../0q"))


@bad("pt: two pickles")
def _(folder: Path) -> Path:
    path = saved(folder, tensors())
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("other/data.pkl", b"\x80\x02}.")
    return path


@bad("pt: an .npz with another name")
def _(folder: Path) -> Path:
    return zipped(folder, arrays()).rename(folder / "bad.pt")


@bad("pt: link to a device without an end")
def _(folder: Path) -> Path:
    (folder / "bad.pt").symlink_to("/dev/zero")
    return folder / "bad.pt"


@bad("pt: FIFO")
def _(folder: Path) -> Path:
    os.mkfifo(folder / "bad.pt")
    return folder / "bad.pt"


# -- hdf5, as D4RL -----------------------------------------------------------------------------------------------------


def hdf5(folder: Path, change: Callable[[Any], None], key: str = "rewards") -> Path:
    """A good file without `key`, changed."""
    path = folder / "bad.hdf5"
    with h5py.File(path, "w") as file:
        for name, array in arrays().items():
            if name != key:
                file[name] = array
        change(file)
    return path


def both(*changes: Callable[[Any], None]) -> Callable[[Any], None]:
    return lambda file: [change(file) for change in changes].clear()


def name_env(value: Any, **kwargs: Any) -> Callable[[Any], None]:
    return both(put(data=np.zeros(N, "f4")), lambda file: file.attrs.create("env_id", value, **kwargs))


def put(*args: Any, **kwargs: Any) -> Callable[[Any], None]:
    return lambda file: file.create_dataset("rewards", *args, **kwargs) and None


HDF5: dict[str, Callable[[Any], None]] = {
    "5 GB of fill values": put((1250 * 10**6,), "f4", chunks=(10**6,), fillvalue=1.0),
    "5 GB that were never written": put((1250 * 10**6,), "f4"),
    "5 GB, gzip": put((1250 * 10**6,), "f4", chunks=(10**6,), compression="gzip"),
    "5 GB, scaleoffset": put((1250 * 10**6,), "i4", chunks=(10**6,), scaleoffset=2),
    "10**18 rows": put((10**18,), "f4", chunks=(10**6,)),
    "a billion chunks of one": put((2 * 10**8,), "f4", chunks=(1,)),
    "a chunk of 4 GB": put((N,), "f4", chunks=(10**9,), maxshape=(None,), compression="gzip"),
    "null": lambda file: file.create_dataset("rewards", data=h5py.Empty("f4")),
    "scalar": put(data=1.0),
    "no rows": put((0,), "f4"),
    "rows of nothing": put((N, 0), "f4"),
    "strings": lambda file: file.create_dataset("rewards", data=["a"] * N),
    "fixed strings": put(data=np.array([b"a"] * N)),
    "rows of varying length": put((N,), h5py.vlen_dtype(np.float32)),
    "compound": put((N,), np.dtype([("a", "f4"), ("b", "i4")])),
    "complex": put((N,), np.complex64),
    "references": put((N,), h5py.ref_dtype),
    "region references": put((N,), h5py.regionref_dtype),
    "enum": put((N,), h5py.enum_dtype({"a": 0, "b": 1})),
    "opaque": put((N,), "V8"),
    "subarrays": put((N,), np.dtype(("f4", (2,)))),
    "half of a time": lambda file: (
        h5py.h5d.create(file.id, b"rewards", h5py.h5t.UNIX_D32LE, h5py.h5s.create_simple((N,))) and None
    ),
    "bits": lambda file: h5py.h5d.create(file.id, b"rewards", h5py.h5t.STD_B8LE, h5py.h5s.create_simple((N,))) and None,
    "a group": lambda file: file.create_group("rewards") and None,
    "a type": lambda file: file.__setitem__("rewards", np.dtype("f4")),
    "a link to itself": lambda file: file.__setitem__("rewards", h5py.SoftLink("/rewards")),
    "links in a ring": both(
        lambda file: file.__setitem__("rewards", h5py.SoftLink("/other")),
        lambda file: file.__setitem__("other", h5py.SoftLink("/rewards")),
    ),
    "a link to nowhere": lambda file: file.__setitem__("rewards", h5py.SoftLink("/gone")),
    "a link out of the file": lambda file: file.__setitem__("rewards", h5py.ExternalLink("../outside.hdf5", "rewards")),
    "a link to a device": lambda file: file.__setitem__("rewards", h5py.ExternalLink("/dev/zero", "rewards")),
    "a group in itself": lambda file: file.create_group("rewards").__setitem__("rewards", file["/"]),
    "data in another file": put((N,), "f4", external=[("../outside.bin", 0, 4 * N)]),
    "env_id is an array": name_env(np.zeros(5)),
    "env_id is nothing": name_env(h5py.Empty("f4")),
    "env_id is bytes": name_env(b"\xff\n[/b]"),
    "env_id is a number": name_env(5),
    "env_id is a reference": both(
        put(data=np.zeros(N, "f4")), lambda file: file.attrs.create("env_id", file.ref, dtype=h5py.ref_dtype)
    ),
}
for _name, _change in HDF5.items():
    CORPUS[f"hdf5: rewards: {_name}"] = lambda folder, change=_change: hdf5(folder, change)


@bad("hdf5: a view of another file")
def _(folder: Path) -> Path:
    def change(file: Any) -> None:
        layout = h5py.VirtualLayout((N,), "f4")
        layout[:] = h5py.VirtualSource("../outside.hdf5", "rewards", (N,))
        file.create_virtual_dataset("rewards", layout)

    return hdf5(folder, change)


@bad("hdf5: groups inside groups")
def _(folder: Path) -> Path:
    return hdf5(folder, lambda file: chain(file, 40_000) and None)


@bad("hdf5: groups inside groups, from the observations on")
def _(folder: Path) -> Path:
    def change(file: Any) -> None:
        last = file.id
        for i in range(10_000):  # each has a name at the top and holds the one before
            made = h5py.h5g.create(file.id, b"a%06d" % i)
            if i:
                h5py.h5o.link(last, made, b"x")
            last = made
        h5py.h5o.link(last, file.id, b"observations")

    return hdf5(folder, change, "observations")


def chain(file: Any, length: int) -> Any:
    group = file.id
    for _ in range(length):
        group = h5py.h5g.create(group, b"x")
    return group


@bad("hdf5: names that are no text")
def _(folder: Path) -> Path:
    path = hdf5(folder, lambda file: None)
    with h5py.File(path, "a") as file:
        h5py.h5g.create(file.id, b"\xff\xfe\n[b]")
    return path


@bad("hdf5: link to a device without an end")
def _(folder: Path) -> Path:
    (folder / "bad.hdf5").symlink_to("/dev/zero")
    return folder / "bad.hdf5"


@bad("hdf5: FIFO")
def _(folder: Path) -> Path:
    os.mkfifo(folder / "bad.hdf5")
    return folder / "bad.hdf5"


@bad("hdf5: only its signature")
def _(folder: Path) -> Path:
    (folder / "bad.hdf5").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(500))
    return folder / "bad.hdf5"


# -- hdf5, as d3rlpy ---------------------------------------------------------------------------------------------------


def d3rlpy(folder: Path, change: Callable[[Any], None], without: str = "") -> Path:
    path = folder / "bad.hdf5"
    with h5py.File(path, "w") as file:
        stored = {
            "num_episodes": 2,
            **{f"observations_{i}": np.zeros((N, 3), np.float32) for i in range(2)},
            **{f"actions_{i}": np.zeros((N, 2), np.float32) for i in range(2)},
            **{f"rewards_{i}": np.zeros((N, 1), np.float32) for i in range(2)},
            **{f"terminated_{i}": True for i in range(2)},
        }
        for key, value in stored.items():
            if key != without:
                file[key] = value
        change(file)
    return path


COUNTS: dict[str, Any] = {
    "an array": np.arange(3),
    "negative": -2,
    "huge": 2**62,
    "beyond int64": np.uint64(2**64 - 1),
    "a string": "two",
    "a float": 2.5,
    "NaN": float("nan"),
    "nothing": h5py.Empty("i8"),
    "zero": 0,
    "complex": 2j,
    "too many": 5,
}
for _name, _value in COUNTS.items():
    CORPUS[f"d3rlpy: num_episodes: {_name}"] = lambda folder, value=_value: d3rlpy(
        folder, lambda file: file.__setitem__("num_episodes", value), "num_episodes"
    )
EPISODES: dict[str, tuple[str, Any]] = {
    "scalar observations": ("observations_1", 1.0),
    "scalar rewards": ("rewards_1", 1.0),
    "null rewards": ("rewards_1", h5py.Empty("f4")),
    "string rewards": ("rewards_1", ["a"] * N),
    "terminated is an array": ("terminated_1", np.zeros(N)),
    "terminated is a string": ("terminated_1", "yes"),
    "terminated is NaN": ("terminated_1", float("nan")),
    "other shape": ("observations_1", np.zeros((N, 4), np.float32)),
    "other number of axes": ("observations_1", np.zeros((N, 3, 3), np.float32)),
    "no steps": ("rewards_1", np.zeros((0, 1))),
    "records": ("actions_1", np.zeros(N, [("a", "f4")])),
}
for _name, (_key, _value) in EPISODES.items():
    CORPUS[f"d3rlpy: {_name}"] = lambda folder, key=_key, value=_value: d3rlpy(
        folder, lambda file: file.__setitem__(key, value), key
    )


@bad("d3rlpy: num_episodes is a group")
def _(folder: Path) -> Path:
    return d3rlpy(folder, lambda file: file.create_group("num_episodes") and None, "num_episodes")


@bad("d3rlpy: a group for an episode")
def _(folder: Path) -> Path:
    return d3rlpy(folder, lambda file: file.create_group("actions_1") and None, "actions_1")


@bad("d3rlpy: five hundred links to one large episode")
def _(folder: Path) -> Path:
    def change(file: Any) -> None:
        file["num_episodes"] = 500
        file.create_dataset("large", (10**6, 3), "f4", chunks=(10**5, 3), compression="gzip")
        for i in range(2, 500):
            file[f"observations_{i}"] = h5py.SoftLink("/large")
            for key in ("actions", "rewards", "terminated"):
                file[f"{key}_{i}"] = h5py.SoftLink(f"/{key}_0")

    return d3rlpy(folder, change, "num_episodes")


# -- Minari ------------------------------------------------------------------------------------------------------------


def minari(folder: Path, metadata: Any = None, change: Callable[[Any], None] | None = None, without: str = "") -> Path:
    root = folder / "toy" / "data-v0"
    (root / "data").mkdir(parents=True)
    text = metadata if isinstance(metadata, (str, bytes)) else json.dumps({"data_format": "hdf5", **(metadata or {})})
    (root / "data" / "metadata.json").write_bytes(text.encode() if isinstance(text, str) else text)
    with h5py.File(root / "data" / "main_data.hdf5", "w") as file:
        for i in range(2):
            stored = {
                "observations": np.zeros((N + 1, 3), np.float32),
                "actions": np.zeros((N, 2), np.float32),
                "rewards": np.zeros(N, np.float32),
                "terminations": np.zeros(N, bool),
                "truncations": np.arange(N) == N - 1,
            }
            for key, array in stored.items():
                if f"episode_{i}/{key}" != without and f"episode_{i}" != without:
                    file[f"episode_{i}/{key}"] = array
        if change is not None:
            change(file)
    return root


METADATA: dict[str, Any] = {
    "deep": "[" * 200_000,
    "deep and whole": '{"a": ' + "[" * 100_000 + "]" * 100_000 + "}",
    "a list": "[]",
    "a string": '"metadata"',
    "null": "null",
    "empty": "",
    "no text": b"\xff\xfe\xfd",
    "two objects": "{}{}",
    "a number of a million digits": '{"total_steps": ' + "9" * 10**6 + "}",
    "NaN": '{"total_steps": NaN}',
    "total_steps: a string": {"total_steps": "12\n[/b]"},
    "total_steps: a list": {"total_steps": [12]},
    "total_steps: huge": {"total_steps": 10**100},
    "total_steps: a float": {"total_steps": 12.5},
    "total_steps: a bool": {"total_steps": True},
    "total_episodes: huge": {"total_episodes": 10**100, "total_steps": 13},
    "data_format: a list": {"data_format": ["hdf5\n"]},
    "data_format: a dict": {"data_format": {"a": "\x1b[31m" * 1000}},
    "data_format: null": {"data_format": None},
    "data_format: arrow": {"data_format": "arrow"},
    "shape: 5": {"observation_space": json.dumps({"dtype": "uint8", "shape": 5})},
    "shape: strings": {"observation_space": json.dumps({"dtype": "uint8", "shape": ["64", "64", "3"]})},
    "shape: negative": {"observation_space": json.dumps({"dtype": "uint8", "shape": [-64, 64, 3]})},
    "shape: huge": {"observation_space": json.dumps({"dtype": "uint8", "shape": [10**9, 10**9, 3]})},
    "shape: a dict": {"observation_space": json.dumps({"dtype": "uint8", "shape": {"a": 1}})},
    "shape: an image": {"observation_space": json.dumps({"dtype": "uint8", "shape": [64, 64, 3]})},
    "space: a list": {"observation_space": [1], "total_steps": 13},
    "space: deep": {"observation_space": "[" * 100_000, "total_steps": 13},
    "env_spec: deep": {"env_spec": '{"id": ' + "[" * 100_000, "total_steps": 13},
    "env_spec: a list": {"env_spec": ["Toy-v0"], "total_steps": 13},
    "env_spec: would import": {"env_spec": json.dumps({"id": "canary:Toy-v0", "entry_point": "canary:Env"})},
    "env_spec: markup": {"env_spec": json.dumps({"id": "[/b]\n\x1b"}), "total_steps": 13},
}
for _name, _metadata in METADATA.items():
    CORPUS[f"minari: metadata: {_name}"] = lambda folder, metadata=_metadata: minari(folder, metadata)

MINARI: dict[str, tuple[str, Any]] = {
    "episode_0 is an array": ("episode_0", np.zeros(3)),
    "episode_0 is null": ("episode_0", h5py.Empty("f4")),
    "episode_0 is missing": ("episode_0", None),
    "episode_1 links to itself": ("episode_1", h5py.SoftLink("/episode_1")),
    "episode_1 is in another file": ("episode_1", h5py.ExternalLink("../../../outside.hdf5", "/")),
    "scalar rewards": ("episode_0/rewards", 1.0),
    "null rewards": ("episode_0/rewards", h5py.Empty("f4")),
    "missing rewards": ("episode_0/rewards", None),
    "string rewards": ("episode_0/rewards", ["a"] * N),
    "scalar observations": ("episode_0/observations", 1.0),
    "null observations": ("episode_0/observations", h5py.Empty("f4")),
    "string observations": ("episode_0/observations", ["a"] * (N + 1)),
    "observations of another shape": ("episode_0/observations", np.zeros((N + 1, 4))),
    "observations of nothing": ("episode_0/observations", np.zeros((N + 1, 0))),
    "no observations at all": ("episode_0/observations", np.zeros((0, 3))),
    "one observation too few": ("episode_0/observations", np.zeros((N, 3))),
    "actions are records": ("episode_0/actions", np.zeros(N, [("a", "f4")])),
    "actions are references": ("episode_0/actions", np.array([h5py.Reference()] * N, h5py.ref_dtype)),
    "flags of 2": ("episode_0/terminations", np.full(N, 2)),
    "flags with two axes": ("episode_0/truncations", np.zeros((N, 2))),
}


def _minari_with(folder: Path, key: str, value: Any) -> Path:
    return minari(folder, None, None if value is None else lambda file: file.__setitem__(key, value), key)


for _name, (_key, _value) in MINARI.items():
    CORPUS[f"minari: {_name}"] = lambda folder, key=_key, value=_value: _minari_with(folder, key, value)


@bad("minari: goal observations that are scalars")
def _(folder: Path) -> Path:
    def change(file: Any) -> None:
        for key in ("observation", "achieved_goal", "desired_goal"):
            file[f"episode_0/observations/{key}"] = 1.0

    return minari(folder, None, change, "episode_0/observations")


@bad("minari: 5 GB in an episode")
def _(folder: Path) -> Path:
    def change(file: Any) -> None:
        file.create_dataset("episode_0/observations", (4 * 10**8, 3), "f4", chunks=(10**6, 3))

    return minari(folder, None, change, "episode_0/observations")


@bad("minari: three hundred links to one large episode")
def _(folder: Path) -> Path:
    def change(file: Any) -> None:
        size = 10**6
        group = file.create_group("episode_1")
        for key, shape in {"observations": (size + 1, 3), "actions": (size, 2), "rewards": (size,)}.items():
            group.create_dataset(key, shape, "f4", chunks=(10**5, *shape[1:]), compression="gzip")
        for key in ("terminations", "truncations"):
            group.create_dataset(key, (size,), bool, chunks=(10**5,), compression="gzip")
        for i in range(2, 300):
            file[f"episode_{i}"] = group

    return minari(folder, None, change, "episode_1")


IMAGE = {"observation_space": json.dumps({"dtype": "uint8", "shape": [64, 64, 3]})}


def images(folder: Path, encoded: list[bytes]) -> Path:
    def change(file: Any) -> None:
        stored = file.create_dataset("episode_0/observations", (N + 1,), h5py.vlen_dtype(np.uint8))
        for i, data in enumerate((encoded * (N + 1))[: N + 1]):
            stored[i] = np.frombuffer(data, np.uint8)

    return minari(folder, IMAGE, change, "episode_0/observations")


def jpeg(size: tuple[int, int], mode: str = "RGB", kind: str = "JPEG") -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    Image.new(mode, size).save(buffer, kind)
    return buffer.getvalue()


def huge_jpeg() -> bytes:
    """Says in its header that it has 65,500 x 65,500 pixels."""
    data = jpeg((64, 64))
    place = data.index(b"\xff\xc0")
    return data[: place + 5] + struct.pack(">HH", 65500, 65500) + data[place + 9 :]


IMAGES: dict[str, Callable[[], list[bytes]]] = {
    "no images": lambda: [b"no image"],
    "empty": lambda: [b""],
    "cut": lambda: [jpeg((64, 64))[:200]],
    "of another size": lambda: [jpeg((32, 64))],
    "without colours": lambda: [jpeg((64, 64), "L")],
    "huge": lambda: [huge_jpeg()],
    "of another kind": lambda: [jpeg((64, 64), kind="PNG")],
    "PostScript": lambda: [b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 64 64\n(canary) (w) file\n"],
}
for _name, _encoded in IMAGES.items():
    CORPUS[f"minari: images: {_name}"] = lambda folder, encoded=_encoded: images(folder, encoded())


@bad("minari: data are a link out of the folder")
def _(folder: Path) -> Path:
    root = minari(folder)
    os.rename(root / "data" / "main_data.hdf5", folder / "elsewhere.hdf5")
    (root / "data" / "main_data.hdf5").symlink_to(folder / "elsewhere.hdf5")
    return root


@bad("minari: metadata are a link out of the folder")
def _(folder: Path) -> Path:
    root = minari(folder)
    os.rename(root / "data" / "metadata.json", folder / "elsewhere.json")
    (root / "data" / "metadata.json").symlink_to(folder / "elsewhere.json")
    return root


@bad("minari: metadata without an end")
def _(folder: Path) -> Path:
    root = minari(folder)
    (root / "data" / "metadata.json").unlink()
    (root / "data" / "metadata.json").symlink_to("/dev/zero")
    return root


@bad("minari: metadata are a FIFO")
def _(folder: Path) -> Path:
    root = minari(folder)
    (root / "data" / "metadata.json").unlink()
    os.mkfifo(root / "data" / "metadata.json")
    return root


@bad("minari: data are a FIFO")
def _(folder: Path) -> Path:
    root = minari(folder)
    (root / "data" / "main_data.hdf5").unlink()
    os.mkfifo(root / "data" / "main_data.hdf5")
    return root


@bad("minari: data are gone")
def _(folder: Path) -> Path:
    root = minari(folder)
    (root / "data" / "main_data.hdf5").unlink()
    return root


@bad("minari: data are a folder")
def _(folder: Path) -> Path:
    root = minari(folder)
    (root / "data" / "main_data.hdf5").unlink()
    (root / "data" / "main_data.hdf5").mkdir()
    return root


IDS = (
    "../../canary",
    "/etc/passwd",
    "a/../../b-v0",
    "toy/data-v0\n",
    "toy//data-v0",
    "",
    ".",
    "..",
    "\x1b[31m",
    "a" * 5000,
)
for _id in IDS:
    CORPUS[f"minari: id {_id[:20]!r}"] = lambda folder, name=_id: minari(folder) and Path(f"id:{name}")
