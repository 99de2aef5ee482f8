"""Opening files from anywhere: a sentence for what cannot be read, and nothing followed out of the file.

No pickle is ever loaded. An HDF5 file may point into other files by external links, external storage or virtual
datasets; such files are refused, so that a dataset is exactly the file that was named. A few kilobytes can declare
gigabytes: what a file says of its arrays is held against its size and the free memory before they are made.
"""

from __future__ import annotations

import io
import math
import os
import re
import stat
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rlx.data.columns import Array, plain_dtype
from rlx.data.keys import PARTS, check_part
from rlx.errors import UserError, shown
from rlx.files import open_regular
from rlx.system import available_memory

DECLARED = 2**30  # bytes of arrays that a file of any size may declare
RATIO = 1100  # bytes of arrays to a byte of the file, beyond that: deflate makes at most 1032 of one
CHUNKS = 20_000  # pieces that an HDF5 array of any size may have
GZIP, SHUFFLE, CHECKSUM, LZF = 1, 2, 3, 32000  # the numbers that HDF5 has for them
NESTED = 32  # groups inside groups of an HDF5 file, which are followed on the stack
HEADER_LIMIT = 10_000  # bytes of the header of an array in an .npz; numpy has the same limit
TEXT_BYTES = 4096  # of the name of an env
COPIES = 4  # of an array that is stored by episodes: the parts, the whole, and obs and next_obs picked from it

# What damaged files have made their readers raise.
FAULTS = (
    OSError,
    ValueError,
    EOFError,
    LookupError,
    RuntimeError,
    TypeError,
    AttributeError,
    ArithmeticError,
    SyntaxError,
    AssertionError,
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
    tokenize.TokenError,
)


@contextmanager
def readable(path: Path, kind: str) -> Iterator[None]:
    """Whatever a damaged file makes its reader raise becomes one sentence."""
    try:
        yield
    except UserError:
        raise
    except MemoryError as error:
        raise UserError(f"{path}: cannot be read as {kind}: it needs more memory than is available.") from error
    except FAULTS as error:
        reason = f"the file is truncated, corrupt or of another kind ({first_line(error)})"
        raise UserError(f"{path}: cannot be read as {kind}: {reason}.") from error


def first_line(error: BaseException) -> str:
    """The first line of what an exception says, which may quote the file."""
    lines = str(error).splitlines()
    return shown(lines[0]) if lines else type(error).__name__


def existing(path: str | Path, kind: str) -> Path:
    """The path of a regular file that is there and not empty."""
    if not str(path) or str(path) == "???":
        raise UserError(f"No file given for the {kind} dataset: set dataset.path=FILE.")
    file = expanded(path)
    try:
        state = file.stat()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise UserError(f"{file}: no such file; expected a dataset of kind {kind}, so check dataset.path.") from error
    except (OSError, ValueError) as error:
        raise UserError(f"{shown(file)}: cannot be opened ({first_line(error)}).") from error
    if stat.S_ISDIR(state.st_mode):
        raise UserError(f"{file}: is a folder, expected a file of kind {kind}.")
    if not stat.S_ISREG(state.st_mode):
        raise UserError(f"{file}: is not a regular file, expected a dataset of kind {kind}.")
    if state.st_size == 0:
        raise UserError(f"{file}: the file is empty, expected a dataset of kind {kind}.")
    return file


def expanded(path: str | Path) -> Path:
    """The path with ~ replaced."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise UserError(f"{path}: there is no such home folder; give the whole path.") from error


def env_name(text: Any) -> str | None:
    """The name of an env that a file holds, if it looks like one."""
    return text if isinstance(text, str) and re.fullmatch(r"[\w./:-]{1,200}", text) else None


class Allowance:
    """What the arrays of a file may take: as much as its size makes plausible, and as memory is free."""

    def __init__(self, path: Path):
        self.path = path
        self.plausible = DECLARED + RATIO * path.stat().st_size
        self.free = available_memory()
        self.declared = 0
        self.needed = 0

    def claim(self, declared: int, needed: int) -> None:
        """Ask for arrays of `declared` bytes, for which `needed` bytes will be allocated, before any of them are."""
        self.declared += declared
        self.needed += needed
        if self.declared > self.plausible:
            raise UserError(
                f"{self.path}: declares arrays of {self.declared / 2**30:.1f} GiB in a file of "
                f"{self.path.stat().st_size:,} bytes, which is not plausible; save the arrays again."
            )
        if self.free is not None and self.needed > self.free:
            raise UserError(
                f"{self.path}: needs {self.needed / 2**30:.1f} GiB and {self.free / 2**30:.1f} GiB are free; use a "
                "smaller one, or leave its observations on disk with dataset.memory=mmap (npz and hdf5)."
            )


def start_of(file: Any, member: zipfile.ZipInfo) -> int:
    """Where the bytes of an uncompressed member begin; all of them are inside the file."""
    file.seek(member.header_offset + 26)  # the two lengths that vary in a local zip header of 30 bytes
    name, extra = struct.unpack("<HH", file.read(4))
    start = member.header_offset + 30 + name + extra
    if start + member.file_size > os.fstat(file.fileno()).st_size:
        raise ValueError(f"'{shown(member.filename)}' is larger than the file")
    file.seek(start)
    return int(start)


class Header(NamedTuple):
    """What precedes an array in the .npy format."""

    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype[Any]
    raw: bytes  # as it stands in the file

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def read_header(file: Any, size: int) -> Header:
    """The header of an array that takes `size` bytes with it; nothing in it is trusted."""
    raw = file.read(8)
    if raw[:6] != np.lib.format.MAGIC_PREFIX or tuple(raw[6:]) not in ((1, 0), (2, 0), (3, 0)):
        raise ValueError("not an array in the .npy format")
    width = 2 if raw[6] == 1 else 4
    raw += file.read(width)
    length = int.from_bytes(raw[8:], "little")
    if length > HEADER_LIMIT:
        raise ValueError(f"a header of {length} bytes")
    raw += file.read(length)
    parse = np.lib.format.read_array_header_1_0 if width == 2 else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = parse(io.BytesIO(raw[8:]))
    header = Header(shape, fortran, dtype, raw)
    if any(n < 0 for n in shape) or (header.nbytes != size - len(raw) and not dtype.hasobject):
        raise ValueError(f"an array says it has shape {shown(shape, 60)}, which is not its size")
    return header


class NpzArrays:
    """The arrays of an .npz by key, read or memory-mapped one at a time."""

    def __init__(self, path: Path, mmap: bool):
        self.path = path
        self.mmap = mmap
        with readable(path, "npz"), self._archive() as archive:
            self.members = {
                m.filename.removesuffix(".npy"): m for m in archive.infolist() if m.filename.endswith(".npy")
            }

    def __getitem__(self, key: str) -> Array:
        with readable(self.path, "npz"):
            return self._stored(key) if self._uncompressed(key) else self._compressed(key)

    def declared(self, key: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """Shape and dtype of an array of numbers, from its header."""
        with readable(self.path, "npz"):
            header = self._header(key)
        plain_dtype(header.dtype, f"{self.path}: key '{key}'")
        return header.shape, header.dtype

    def text(self, key: str) -> str | None:
        """A member that is a single short string, such as the env id."""
        if key not in self.members or self.members[key].file_size > TEXT_BYTES:
            return None
        with readable(self.path, "npz"):
            header = self._header(key)
            return env_name(str(self[key])) if header.dtype.kind == "U" and header.shape == () else None

    @contextmanager
    def _archive(self) -> Iterator[zipfile.ZipFile]:
        with open(open_regular(self.path), "rb") as file, zipfile.ZipFile(file) as archive:
            yield archive

    def _uncompressed(self, key: str) -> bool:
        method = self.members[key].compress_type
        if method not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError(f"'{key}' is compressed in a way that numpy does not write")
        if self.mmap and method != zipfile.ZIP_STORED:
            raise UserError(
                f"{self.path}: key '{key}' is compressed and cannot be memory-mapped: expected np.savez, not "
                "np.savez_compressed; use dataset.memory=ram."
            )
        return method == zipfile.ZIP_STORED

    def _header(self, key: str) -> Header:
        member = self.members[key]
        if self._uncompressed(key):
            with open(open_regular(self.path), "rb") as file:
                start_of(file, member)
                return read_header(file, member.file_size)
        with self._archive() as archive, archive.open(member) as file:
            return read_header(file, member.file_size)

    def _stored(self, key: str) -> Array:
        """An uncompressed member, mapped, or read in one go with its checksum (zipfile does it in small pieces)."""
        member = self.members[key]
        with open(open_regular(self.path), "rb") as file:
            start = start_of(file, member)
            header = read_header(file, member.file_size)
            order: Any = "F" if header.fortran else "C"
            if self.mmap and header.shape and 0 not in header.shape:
                offset = start + len(header.raw)
                return np.memmap(file, header.dtype, "r", offset, header.shape, order)
            array = np.fromfile(file, header.dtype, math.prod(header.shape))
            if zlib.crc32(array.view(np.uint8).data, zlib.crc32(header.raw)) != member.CRC:
                raise ValueError(f"wrong checksum of '{key}'")
            return array.reshape(header.shape, order=order)

    def _compressed(self, key: str) -> Array:
        member = self.members[key]
        with self._archive() as archive, archive.open(member) as file:
            header = read_header(file, member.file_size)
            array = np.empty(math.prod(header.shape), header.dtype)
            data = array.view(np.uint8).data
            at = 0
            while at < len(data):
                if not (piece := file.read(min(1 << 20, len(data) - at))):
                    raise EOFError(f"'{key}' ends early")
                data[at : at + len(piece)] = piece
                at += len(piece)
            file.read(1)  # the end, where zipfile compares the checksum
            return array.reshape(header.shape, order="F" if header.fortran else "C")


@contextmanager
def hdf5_file(path: Path) -> Iterator[Any]:
    """An HDF5 file open for reading that has no links out of itself."""
    import h5py

    def odd(name: bytes, info: Any) -> str | None:
        if name.count(b"/") > NESTED:
            return _too_deep(path)
        if info.type == h5py.h5l.TYPE_EXTERNAL:
            link = shown(name.decode(errors="replace"))
            return f"{path}: key '{link}' is a link into another file, which is refused; copy the data."
        return None

    with readable(path, "hdf5"), h5py.File(path, "r") as file:
        refusal = file.id.links.visit(odd, info=True)  # the first that it returns, or None
        if refusal is not None:
            raise UserError(refusal)
        yield file


def _too_deep(path: Path) -> str:
    return f"{path}: has more than {NESTED} groups inside each other, which is refused; copy the data."


def hdf5_dataset(node: Any, key: str, path: Path) -> Any:
    """An array of an open HDF5 file, not yet read: numbers that are stored in that file."""
    import h5py

    dataset = node.get(key)
    where = f"{path}: key '{node.name.strip('/')}/{key}'".replace("'/", "'")
    if dataset is None:
        raise UserError(f"{path}: no key '{node.name.rstrip('/')}/{key}'.")
    if not isinstance(dataset, h5py.Dataset):
        raise UserError(f"{where} is a group, expected an array.")
    plan = dataset.id.get_create_plist()
    layout = plan.get_layout()
    if layout == h5py.h5d.VIRTUAL or plan.get_external_count():
        raise UserError(f"{where} keeps its data in another file, which is refused; copy the data.")
    if dataset.shape is None:
        raise UserError(f"{where} is empty: expected an array.")
    if layout == h5py.h5d.CHUNKED:
        pieces = math.prod(-(-n // size) for n, size in zip(dataset.shape, dataset.chunks, strict=True))
        if pieces > CHUNKS + path.stat().st_size // 8:  # each of them takes at least an address in the file
            raise UserError(f"{where} is cut into {pieces:,} pieces, most of them never written; save it again.")
        filters = _filters(dataset)
        if not {GZIP, SHUFFLE, CHECKSUM, LZF}.issuperset(filters):  # others believe sizes that the file says
            raise UserError(f"{where} is compressed in an unusual way, which is refused; save it with gzip or lzf.")
        if sum(number in (GZIP, LZF) for number in filters) > 1:
            raise UserError(f"{where} is compressed more than once, which is refused; save it again.")
    return dataset


def _filters(dataset: Any) -> list[int]:
    plan = dataset.id.get_create_plist()
    return [plan.get_filter(i)[0] for i in range(plan.get_nfilters())]


def check_pieces(dataset: Any, where: str) -> None:
    """Refuse compressed pieces that become more than a piece of the array: HDF5 unpacks as much as there is.

    Small ones cannot become much and are not looked into.
    """
    filters = _filters(dataset)
    if not {GZIP, LZF} & set(filters):
        return
    size = math.prod(dataset.chunks) * dataset.id.get_type().get_size()
    most = size + size // 64 + 1024
    doubtful: list[tuple[int, ...]] = []

    def note(piece: Any) -> bool | None:
        packed = GZIP in filters and not piece.filter_mask >> filters.index(GZIP) & 1
        if packed and piece.size * RATIO > max(DECLARED, size):
            doubtful.append(piece.chunk_offset)
        return True if piece.size > most else None  # which ends the visit

    wrong = dataset.id.chunk_iter(note) or any(
        len(zlib.decompressobj().decompress(dataset.id.read_direct_chunk(offset)[1], most + 1)) > most
        for offset in doubtful
    )
    if wrong:
        raise UserError(f"{where} has a piece that unpacks to more than its {size:,} bytes; save it again.")


def hdf5_parts(group: Any, path: Path) -> dict[str, Any]:
    """The arrays below a group by name, "camera/left"; each object once, as groups can hold themselves."""
    import h5py

    arrays: dict[str, Any] = {}

    def note(name: str, item: Any) -> bool | None:
        if name.count("/") > NESTED:
            raise UserError(_too_deep(path))
        if isinstance(item, h5py.Dataset):
            check_part(name, f"{path}: {group.name}")
            arrays[name] = item
        return True if len(arrays) > PARTS else None  # which ends the visit

    if group.visititems(note):
        raise UserError(
            f"{path}: key '{shown(group.name.strip('/'), 60)}' has more than {PARTS} parts: expected a few."
        )
    if not arrays:
        raise UserError(f"{path}: key '{shown(group.name.strip('/'), 60)}' is an empty group: expected arrays in it.")
    return arrays


def hdf5_declared(dataset: Any, where: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and dtype of an array of numbers; a chunk counts as rows, because it is unpacked as a whole."""
    plain_dtype(dataset.dtype, where)
    if dataset.chunks and math.prod(dataset.chunks) > math.prod(dataset.shape):
        return dataset.chunks, dataset.dtype
    return dataset.shape, dataset.dtype


def hdf5_array(node: Any, key: str, path: Path, allowance: Allowance | None = None, copies: int = 1) -> Array:
    """An array of an open HDF5 file, read; with an allowance, `copies` of it are claimed from that first."""
    dataset = hdf5_dataset(node, key, path)
    shape, dtype = hdf5_declared(dataset, f"{path}: key '{key}'")
    if allowance is not None:
        nbytes = math.prod(shape) * dtype.itemsize
        allowance.claim(nbytes, copies * nbytes)
    check_pieces(dataset, f"{path}: key '{key}'")
    return np.asarray(dataset[()])


def hdf5_text(node: Any, name: str) -> str | None:
    """An attribute that is a single short string."""
    if name not in node.attrs:
        return None
    attribute = node.attrs.get_id(name)
    if attribute.shape != () or attribute.get_storage_size() > TEXT_BYTES:
        return None
    value = node.attrs[name]
    return env_name(value.decode(errors="replace") if isinstance(value, bytes) else value)


def hdf5_map(file: Any, key: str, path: Path) -> Array:
    """A contiguous HDF5 array as a memory map."""
    import h5py

    dataset = hdf5_dataset(file, key, path)
    plan = dataset.id.get_create_plist()
    offset = dataset.id.get_offset()
    if plan.get_layout() != h5py.h5d.CONTIGUOUS or offset is None:
        raise UserError(
            f"{path}: key '{key}' is chunked, compressed or empty and cannot be memory-mapped: expected one contiguous "
            "array; use dataset.memory=ram."
        )
    plain_dtype(dataset.dtype, f"{path}: key '{key}'")
    return np.memmap(path, dtype=dataset.dtype, mode="r", offset=offset, shape=dataset.shape)
