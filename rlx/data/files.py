"""Opening files from anywhere: a sentence for what cannot be read, and nothing followed out of the file.

No pickle is ever loaded. An HDF5 file may point into other files by external links, external storage or virtual
datasets; such files are refused, so that a dataset is exactly the file that was named.
"""

from __future__ import annotations

import math
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from rlx.data.columns import Array
from rlx.errors import UserError


@contextmanager
def readable(path: Path, kind: str) -> Iterator[None]:
    """Whatever a damaged file makes its reader raise becomes one sentence."""
    try:
        yield
    except UserError:
        raise
    except (
        OSError,
        ValueError,
        EOFError,
        KeyError,
        RuntimeError,
        struct.error,
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        if "allow_pickle" in str(error):
            reason = "it holds Python objects, which are never unpickled; save plain arrays"
        else:
            reason = f"the file is truncated, corrupt or of another kind ({str(error).splitlines()[0][:160]})"
        raise UserError(f"{path}: cannot be read as {kind}: {reason}.") from error


def existing(path: str, kind: str) -> Path:
    """The path of a file that is there and not empty."""
    found = Path(path).expanduser()
    if not path or path == "???":
        raise UserError(f"No file given for the {kind} dataset: say dataset.path=FILE.")
    if found.is_dir():
        raise UserError(f"{found}: is a folder, expected a file of kind {kind}.")
    if not found.exists():
        raise UserError(f"{found}: no such file; expected a dataset of kind {kind}, so check dataset.path.")
    if found.stat().st_size == 0:
        raise UserError(f"{found}: the file is empty, expected a dataset of kind {kind}.")
    return found


class NpzArrays:
    """The arrays of an .npz by key, read or memory-mapped one at a time."""

    def __init__(self, path: Path, mmap: bool):
        self.path = path
        self.mmap = mmap
        with readable(path, "npz"), zipfile.ZipFile(path) as archive:
            self.members = {
                m.filename.removesuffix(".npy"): m for m in archive.infolist() if m.filename.endswith(".npy")
            }

    def __getitem__(self, key: str) -> Array:
        stored = self.members[key].compress_type == zipfile.ZIP_STORED
        with readable(self.path, "npz"):
            if self.mmap or stored:
                return self._stored(key)
            with np.load(self.path, allow_pickle=False) as arrays:
                return np.asarray(arrays[key])

    def text(self, key: str) -> str | None:
        """A member that is a single string, such as the env id."""
        found = self[key] if key in self.members else None
        return str(found) if found is not None and found.dtype.kind == "U" and found.ndim == 0 else None

    def _stored(self, key: str) -> Array:
        """An uncompressed member, mapped, or read in one go with its checksum (zipfile does it in small pieces)."""
        member = self.members[key]
        if member.compress_type != zipfile.ZIP_STORED:
            raise UserError(
                f"{self.path}: key '{key}' is compressed and cannot be memory-mapped: expected np.savez, not "
                "np.savez_compressed; use dataset.memory=ram."
            )
        with open(self.path, "rb") as file:
            file.seek(member.header_offset + 26)  # the two lengths that vary in a local zip header of 30 bytes
            name, extra = struct.unpack("<HH", file.read(4))
            start = member.header_offset + 30 + name + extra
            file.seek(start)
            version = np.lib.format.read_magic(file)
            header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, fortran, dtype = header(file)
            if dtype.hasobject:
                raise UserError(f"{self.path}: key '{key}' is an object array; objects are never unpickled.")
            offset = file.tell()
            if math.prod(shape) * dtype.itemsize != member.file_size - (offset - start):
                raise ValueError(f"'{key}' says it has shape {shape}, which is not its size")
            if self.mmap and shape and 0 not in shape:
                return np.memmap(
                    self.path, dtype=dtype, mode="r", offset=offset, shape=shape, order="F" if fortran else "C"
                )
            file.seek(start)
            checksum = zlib.crc32(file.read(offset - start))
            array = np.fromfile(file, dtype, math.prod(shape))
            if zlib.crc32(array.view(np.uint8).data, checksum) != member.CRC:
                raise ValueError(f"wrong checksum of '{key}'")
            return array.reshape(shape, order="F" if fortran else "C")


@contextmanager
def hdf5_file(path: Path) -> Iterator[Any]:
    """An HDF5 file open for reading that has no links out of itself."""
    import h5py

    def outward(name: bytes, info: Any) -> str | None:
        return name.decode() if info.type == h5py.h5l.TYPE_EXTERNAL else None

    with readable(path, "hdf5"), h5py.File(path, "r") as file:
        link = file.id.links.visit(outward, info=True)  # the first name that it returns, or None
        if link is not None:
            raise UserError(f"{path}: key '{link}' is a link into another file, which is refused; copy the data.")
        yield file


def hdf5_array(node: Any, key: str, path: Path) -> Array:
    """An array of an open HDF5 file, stored in that file."""
    import h5py

    found = node.get(key)
    if found is None:
        raise UserError(f"{path}: no key '{node.name.rstrip('/')}/{key}'.")
    if not isinstance(found, h5py.Dataset):
        raise UserError(f"{path}: key '{key}' is a group, expected an array.")
    plan = found.id.get_create_plist()
    if plan.get_layout() == h5py.h5d.VIRTUAL or plan.get_external_count():
        raise UserError(f"{path}: key '{key}' keeps its data in another file, which is refused; copy the data.")
    return found[()]


def hdf5_map(file: Any, key: str, path: Path) -> Array:
    """A contiguous HDF5 array as a memory map."""
    import h5py

    found = file[key]
    plan = found.id.get_create_plist()
    offset = found.id.get_offset()
    if plan.get_layout() != h5py.h5d.CONTIGUOUS or plan.get_external_count() or offset is None:
        raise UserError(
            f"{path}: key '{key}' is chunked, compressed or empty and cannot be memory-mapped: expected one contiguous "
            "array; use dataset.memory=ram."
        )
    return np.memmap(path, dtype=found.dtype, mode="r", offset=offset, shape=found.shape)
