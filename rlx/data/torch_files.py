"""Reading a dict of tensors from a .pt file without unpickling it.

`torch.save` writes a zip of a pickle and of the bytes of every storage. The pickle is a small program: here the few
instructions that build dicts of tensors are followed, on plain values, and any other ends in a sentence. What it says
of a tensor is checked against the bytes that are there before any of them are read.
"""

from __future__ import annotations

import math
import pickletools
import zipfile
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rlx.data.columns import Array, plain_dtype
from rlx.data.files import readable, start_of
from rlx.data.keys import opened
from rlx.errors import UserError, shown
from rlx.files import open_regular

PROGRAM_LIMIT = 2**18  # bytes of the pickle; a hundred tensors take some 20,000
LEGACY = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."  # how files of PyTorch before 1.6 begin
DTYPES = {
    "DoubleStorage": "f8",
    "FloatStorage": "f4",
    "HalfStorage": "f2",
    "BFloat16Storage": "bfloat16",
    "LongStorage": "i8",
    "IntStorage": "i4",
    "ShortStorage": "i2",
    "CharStorage": "i1",
    "ByteStorage": "u1",
    "BoolStorage": "?",
    "ComplexFloatStorage": "c8",
    "ComplexDoubleStorage": "c16",
}


class Global(NamedTuple):
    """A name in the pickle; nothing is imported."""

    name: str


class Storage(NamedTuple):
    dtype: str
    key: str


class StoredTensor(NamedTuple):
    """A tensor that has not been read."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


def refused(path: Path, what: str) -> UserError:
    return UserError(
        f"{path}: holds {shown(what)}: expected a dict of dense tensors saved with torch.save, and nothing else is "
        "ever unpickled."
    )


class TorchTensors:
    """The tensors of a .pt file by key, read one at a time; other plain values are in `values`."""

    def __init__(self, path: Path):
        self.path = path
        with readable(path, "pt"), open(open_regular(path), "rb") as file:
            if file.read(len(LEGACY)) == LEGACY:
                raise UserError(
                    f"{path}: has the format of PyTorch before 1.6, which is not read; save it again with "
                    "torch.save(torch.load(FILE, weights_only=True), NEW_FILE)."
                )
            with zipfile.ZipFile(file) as archive:
                self.members = {m.filename: m for m in archive.infolist()}
            programs = [name for name in self.members if name.endswith("/data.pkl") and name.count("/") == 1]
            if len(programs) != 1:
                raise ValueError("not an archive of torch.save")
            self.folder = programs[0].removesuffix("data.pkl")
            program = self._bytes(file, programs[0], PROGRAM_LIMIT)
            order = (
                self._bytes(file, f"{self.folder}byteorder", 16) if f"{self.folder}byteorder" in self.members else b""
            )
            self.big_endian = order == b"big"
            self.values = self._follow(program)

    def declared(self, key: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """Shape and dtype of a tensor of numbers that lies within its storage."""
        tensor = self.values[key]
        where = f"{self.path}: key '{key}'"
        if not isinstance(tensor, StoredTensor):
            raise UserError(f"{where} is a {type(tensor).__name__}, expected a tensor.")
        dtype = np.dtype("u2" if tensor.storage.dtype == "bfloat16" else tensor.storage.dtype)
        plain_dtype(dtype, where)
        with readable(self.path, "pt"):
            last = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride, strict=True))
            entries = self._member(tensor.storage).file_size // dtype.itemsize
            if 0 not in tensor.shape and tensor.offset + last >= entries:
                raise ValueError(f"'{key}' is larger than what is stored of it")
        return tensor.shape, np.dtype(np.float32) if tensor.storage.dtype == "bfloat16" else dtype

    def __getitem__(self, key: str) -> Array:
        shape, dtype = self.declared(key)
        tensor = self.values[key]
        if 0 in shape:
            return np.zeros(shape, dtype)
        with readable(self.path, "pt"):
            data = self._read(tensor.storage)[tensor.offset :]
            stride = tuple(step * data.itemsize for step in tensor.stride)
            array = np.lib.stride_tricks.as_strided(data, shape, stride, writeable=False)
            if tensor.storage.dtype == "bfloat16":  # the upper half of a float32
                return (array.astype(np.uint32) << 16).view(np.float32)
            return array

    def _read(self, storage: Storage) -> Array:
        member = self._member(storage)
        dtype = np.dtype("u2" if storage.dtype == "bfloat16" else storage.dtype)
        with open(open_regular(self.path), "rb") as file:
            start_of(file, member)
            array = np.fromfile(file, dtype, member.file_size // dtype.itemsize)
        if zlib.crc32(array.view(np.uint8).data) != member.CRC:
            raise ValueError("wrong checksum")
        return array.byteswap(inplace=True) if self.big_endian else array

    def _member(self, storage: Storage) -> zipfile.ZipInfo:
        member = self.members[f"{self.folder}data/{storage.key}"]
        if member.compress_type != zipfile.ZIP_STORED:
            raise ValueError("a compressed archive, which torch.save does not write")
        return member

    def _bytes(self, file: Any, name: str, limit: int) -> bytes:
        member = self.members[name]
        if member.compress_type != zipfile.ZIP_STORED or member.file_size > limit:
            raise ValueError(f"'{shown(name)}' is compressed or has more than {limit:,} bytes")
        start_of(file, member)
        data = bytes(file.read(member.file_size))
        if zlib.crc32(data) != member.CRC:
            raise ValueError(f"wrong checksum of '{shown(name)}'")
        return data

    def _follow(self, program: bytes) -> dict[str, Any]:
        """What the pickle builds, if that is a dict with names for keys."""
        stack: list[Any] = []
        marks: list[int] = []
        memo: dict[int, Any] = {}

        def since_mark() -> list[Any]:
            at = marks.pop()
            taken = stack[at:]
            del stack[at:]
            return taken

        argument: Any
        for opcode, argument, _ in pickletools.genops(program):
            match opcode.name:
                case "PROTO" | "FRAME":
                    pass
                case "STOP":
                    break
                case "MARK":
                    marks.append(len(stack))
                case "EMPTY_DICT":
                    stack.append({})
                case "EMPTY_LIST":
                    stack.append([])
                case "EMPTY_TUPLE":
                    stack.append(())
                case "NONE" | "NEWTRUE" | "NEWFALSE":
                    stack.append({"NONE": None, "NEWTRUE": True, "NEWFALSE": False}[opcode.name])
                case "BINUNICODE" | "SHORT_BINUNICODE" | "BININT" | "BININT1" | "BININT2" | "LONG1" | "BINFLOAT":
                    stack.append(argument)
                case "TUPLE":
                    stack.append(tuple(since_mark()))
                case "TUPLE1" | "TUPLE2" | "TUPLE3":
                    count = int(opcode.name[-1])
                    stack[-count:] = [tuple(stack[-count:])]
                case "BINPUT" | "LONG_BINPUT":
                    memo[argument] = stack[-1]
                case "MEMOIZE":
                    memo[len(memo)] = stack[-1]
                case "BINGET" | "LONG_BINGET":
                    stack.append(memo[argument])
                case "GLOBAL":
                    stack.append(Global(argument.replace(" ", ".")))
                case "STACK_GLOBAL":
                    module, name = stack[-2:]
                    if not isinstance(module, str) or not isinstance(name, str):  # others can be long to write out
                        raise ValueError("a name that is not text")
                    stack[-2:] = [Global(f"{module}.{name}")]
                case "BINPERSID":
                    stack.append(self._storage(stack.pop()))
                case "REDUCE":
                    arguments = stack.pop()
                    stack.append(self._call(stack.pop(), arguments))
                case "BUILD":
                    stack.pop()
                    if not isinstance(stack[-1], dict):  # of an OrderedDict, what its attributes were
                        raise refused(self.path, "Python objects")
                case "APPEND" | "APPENDS":
                    items = [stack.pop()] if opcode.name == "APPEND" else since_mark()
                    if not isinstance(stack[-1], list):
                        raise ValueError("items for something that is not a list")
                    stack[-1].extend(items)
                case "SETITEM" | "SETITEMS":
                    pairs = [stack.pop(-2), stack.pop()] if opcode.name == "SETITEM" else since_mark()
                    if not isinstance(stack[-1], dict):
                        raise ValueError("items for something that is not a dict")
                    for key, value in zip(pairs[::2], pairs[1::2], strict=True):
                        if not isinstance(key, (str, int)):
                            raise refused(self.path, f"a dict with keys that are {type(key).__name__}s")
                        stack[-1][key] = value
                case other:
                    raise refused(self.path, f"more than tensors ({other.lower()} in its pickle)")
        if len(stack) != 1 or not isinstance(stack[0], dict):
            kind = type(stack[-1]).__name__.removeprefix("Stored") if stack else "nothing"
            raise UserError(f"{self.path}: holds a {kind}, expected a dict of tensors.")
        return opened({str(key): value for key, value in stack[0].items()}, depth=1)  # a dict may hold itself

    def _storage(self, given: Any) -> Storage:
        """From ('storage', class, key, device, entries)."""
        _, kind, key, *_ = given
        name = kind.name.removeprefix("torch.") if isinstance(kind, Global) else ""
        if name not in DTYPES or not isinstance(key, str):
            raise refused(self.path, f"a tensor of {name or 'an unknown storage'}")
        return Storage(DTYPES[name], key)

    def _call(self, function: Any, arguments: Any) -> Any:
        name = function.name if isinstance(function, Global) else type(function).__name__
        if name == "collections.OrderedDict" and arguments == ():
            return {}
        if name == "torch._utils._rebuild_parameter":
            return arguments[0]
        if name == "torch._utils._rebuild_tensor_v2":
            storage, offset, shape, stride, *_ = arguments
            if not isinstance(storage, Storage) or len(shape) != len(stride) or len(shape) > 32:
                raise ValueError("a tensor without a storage or with too many axes")
            sizes = (offset, *shape, *stride)
            if not all(type(n) is int and 0 <= n < 2**62 for n in sizes) or math.prod(shape) >= 2**62:
                raise ValueError("a tensor with sizes that are not possible")
            return StoredTensor(storage, offset, tuple(shape), tuple(stride))
        raise refused(self.path, f"Python objects or tensors that are not dense ({name})")
