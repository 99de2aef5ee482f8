"""metrics.jsonl: one JSON object per row, the record of a run that reports and tests read.

The file is append-only and its length is part of every checkpoint: a resume cuts it back to what the checkpoint knew,
so rows are neither repeated nor lost.
"""

from __future__ import annotations

import errno
import io
import json
import math
import os
import shutil
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlx.callbacks.bus import Callback
from rlx.errors import UserError
from rlx.files import named, remove
from rlx.run_folder import NAMES, refuse_link

if TYPE_CHECKING:
    from rlx.trainers.trainer import Trainer


@dataclass
class JsonlConfig:
    """Rows as JSON lines."""

    _target_: str = "rlx.loggers.jsonl.Jsonl"
    filename: str = "metrics.jsonl"  # below the run folder


def encode(row: dict[str, Any]) -> bytes:
    """One line of valid JSON: inf and nan, which JSON does not have, become null."""
    finite = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}
    return json.dumps(finite, allow_nan=False).encode() + b"\n"


def open_to_append(path: Path) -> io.FileIO:
    """Open a file of our own, unbuffered; a link is refused, and a file with a second name elsewhere becomes a copy."""
    refuse_link(path)
    if path.is_file() and path.stat().st_nlink > 1:
        beside = path.with_name(f".{path.name}.writing")
        remove(beside)
        shutil.copyfile(path, beside, follow_symlinks=False)
        os.replace(beside, path)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        file = io.FileIO(path, "a", opener=lambda name, _: os.open(name, flags, 0o666))
        if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            return file
        file.close()
    except IsADirectoryError:
        pass
    except OSError as error:
        if error.errno != errno.ENXIO:  # a FIFO that nobody reads
            raise
    raise UserError(f"{path} is not a regular file; remove it, or choose another logger.jsonl.filename.")


def rows_of(trainer: Trainer) -> Iterator[dict[str, Any]]:
    """The rows that a run has written until now; none where it has no such file."""
    names = [c.cfg.filename for c in trainer.bus.callbacks.values() if isinstance(c, Jsonl)]
    path = trainer.run_dir / next(iter(names), "")
    if path.is_file():
        with open(path, "rb") as lines:
            yield from (json.loads(line) for line in lines)


class Jsonl(Callback):
    """Appends each row to metrics.jsonl as it comes."""

    order = 60

    def __init__(self, cfg: JsonlConfig):
        if cfg.filename in ("", "..", *NAMES) or Path(cfg.filename).name != cfg.filename:
            raise UserError(
                f"logger.jsonl.filename={cfg.filename} is not the name of a file in the run folder; give one such as "
                "metrics.jsonl."
            )
        self.cfg = cfg
        self._file: io.FileIO | None = None
        self._offset: int | None = None  # length of the file while it is not open, where known

    def check(self, trainer: Trainer) -> None:
        path = trainer.run_dir / self.cfg.filename
        refuse_link(path)
        if not trainer.resumed and path.exists():
            raise UserError(f"{path} exists already: resume that run, or choose another run_dir for a new one.")

    def on_run_start(self, trainer: Trainer) -> None:
        path = trainer.run_dir / self.cfg.filename
        file = open_to_append(path)
        if trainer.resumed:
            size = path.stat().st_size
            # A run that had no such logger at its checkpoint keeps what is there, unless it starts over.
            known = self._offset if self._offset is not None else (size if trainer.state.steps else 0)
            if size < known:
                file.close()
                raise UserError(
                    f"{path} is shorter ({size} bytes) than at the checkpoint ({known} bytes): restore the file, "
                    "or resume without it (~logger.jsonl)."
                )
            file.truncate(known)
            file.seek(known)
        self._file = file

    def on_log(self, trainer: Trainer, row: dict[str, Any]) -> None:
        assert self._file is not None, "a row came before run_start"
        row_left = memoryview(encode(row))
        with named(Path(self._file.name)):
            while row_left:  # a disk that is nearly full takes a part
                row_left = row_left[self._file.write(row_left) :]

    def on_run_end(self, trainer: Trainer) -> None:
        assert self._file is not None
        self._offset = self._sync()  # the last checkpoint, written after this, asks for it
        self._file.close()
        self._file = None

    def on_run_failed(self, trainer: Trainer, error: BaseException) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def state(self) -> dict[str, Any]:
        """The length of the file, after making sure that those bytes are on disk."""
        return {"offset": self._offset if self._file is None else self._sync()}

    def load_state(self, state: dict[str, Any]) -> None:
        self._offset = state["offset"]
        if self._offset is not None and self._offset < 0:
            raise ValueError(f"{self._offset} is not the length of a file")

    def _sync(self) -> int:
        assert self._file is not None
        with named(Path(self._file.name)):
            os.fsync(self._file.fileno())
        return self._file.tell()
