"""What W&B has recorded below a run folder: `wandb/offline-run-TIME-ID/run-ID.wandb`, one folder per session.

The file is a log in LevelDB's format, of records in protocol buffers. It is read to know which rows are there already:
W&B appends whatever it is given, and a resumed run gives the rows since its checkpoint a second time.
"""

from __future__ import annotations

import json
import re
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wandb.proto.wandb_internal_pb2 import Record  # type: ignore[attr-defined]

RUN_ID = re.compile(r"[0-9a-zA-Z_-]{1,64}")  # it becomes part of a file name
FOLDER = re.compile(r"(offline-)?run-\d{8}_\d{6}-[0-9a-zA-Z_-]+")  # of one session
BLOCK = 2**15  # bytes; no header lies across the border of two
HEADER = struct.Struct("<IHB")  # checksum, length, kind
PREAMBLE = 7  # bytes before the first record
QUIET = 0.5  # seconds after which a file of a session that has ended is written
LATE = 30.0  # seconds after `finish` in which a file is written, on however busy a machine
ENDS = (1, 4)  # kinds: a whole record, and the last part of one


def records(path: Path) -> Iterator[Record]:
    """The records of a file, as far as they are whole: a session that was killed may have left half of one."""
    from wandb.proto import wandb_internal_pb2

    with open(path, "rb") as file:
        at, whole = len(file.read(PREAMBLE)), b""
        while True:
            if (left := BLOCK - at % BLOCK) < HEADER.size:
                file.read(left)  # padding
                at += left
            header = file.read(HEADER.size)
            if len(header) < HEADER.size:
                return
            _, length, kind = HEADER.unpack(header)
            part = file.read(length)
            if len(part) < length or kind == 0:
                return
            at += HEADER.size + length
            whole += part
            if kind in ENDS:
                yield wandb_internal_pb2.Record.FromString(whole)  # type: ignore[attr-defined]
                whole = b""


def row_of(record: Record) -> dict[str, Any]:
    """The metrics of a row of history by name, `_step` among them."""
    return {"/".join(i.nested_key) or i.key: json.loads(i.value_json) for i in record.history.item}


def wait_for_end(path: Path, patience: float = LATE) -> None:
    """Wait until the file of a session that was finished is whole: W&B's own process may write it after `finish`."""
    latest = time.monotonic() + patience
    while path.is_file() and time.monotonic() < latest:
        if any(record.HasField("exit") for record in records(path)):
            return
        time.sleep(QUIET / 10)


def sessions(folder: Path, run_id: str = "*") -> list[Path]:
    """The files of the sessions of a run, oldest first: the names of their folders begin with the time."""
    paths = (path for path in folder.glob(f"*/run-{run_id}.wandb") if FOLDER.fullmatch(path.parent.name))
    return sorted(
        (path for path in paths if path.is_file() and not path.is_symlink() and not path.parent.is_symlink()),
        key=lambda path: path.parent.name.removeprefix("offline-"),
    )


def latest_id(folder: Path) -> str | None:
    """The id of the newest session below this folder."""
    names = [path.stem.removeprefix("run-") for path in sessions(folder)]
    return next((name for name in reversed(names) if RUN_ID.fullmatch(name)), None)


def last_row(folder: Path, run_id: str) -> tuple[int, set[str]]:
    """The last step that the sessions of a run have recorded, and the names of what was recorded for it."""
    step, names = -1, set[str]()
    for path in sessions(folder, run_id):
        while 0 <= time.time() - path.stat().st_mtime < QUIET:  # the process that writes it ends after the run
            time.sleep(QUIET / 10)
        for record in records(path):
            if record.HasField("history"):
                row = row_of(record)
                at = int(row["_step"])
                names = row.keys() | names if at == step else set(row) if at > step else names
                step = max(step, at)
    return step, names
