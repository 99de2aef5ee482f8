"""The folder of a run: no links out of it, one process at a time that writes, and errors of writing in words.

A run folder may have been unpacked from an archive, or lie where others can write. What a run writes and deletes stays
inside: where one of its own names is a link, the run is refused before anything is touched. `checkpoints/last` and
`checkpoints/best` are links of our own, to folders beside them.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import re
import socket
import stat
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from types import TracebackType

import yaml
from omegaconf import DictConfig

from rlx.config import as_written
from rlx.errors import RunFailed, UserError
from rlx.files import read_bounded, write_atomically

log = logging.getLogger("rlx")

LOCK = ".lock"
RESUMES = "resumes.yaml"  # what was asked for, resume by resume
ERROR_FILE = "error.txt"  # the traceback of an env that failed
NAMES = (
    "config.yaml", "overrides.yaml", RESUMES, "summary.json", "make_data.mark", ERROR_FILE, LOCK, "checkpoints",
    "wandb", "videos", "exports",
)  # fmt: skip
HOLDER = re.compile(rb"(process \d{1,20} on [\w.-]{1,255} since [\w:+-]{1,40}\n)?")  # what is in the lock
CHECKPOINT = re.compile(r"(step|best)_[0-9]{12,20}")  # the folder of one

# -- links ---------------------------------------------------------------------------------------------------------


def refuse_link(path: Path) -> None:
    """UserError where a name that a run writes to is a link."""
    if path.is_symlink():
        raise UserError(
            f"{path} is a link to {os.readlink(path)}, and a run only uses files inside its own folder; put a copy "
            "there instead, or remove the link."
        )


def refuse_links(folder: Path) -> None:
    """UserError where a run would write, delete or read through a link inside its folder."""
    checkpoints = folder / "checkpoints"
    for path in (*(folder / name for name in NAMES), checkpoints / "replay"):
        refuse_link(path)
    for name in ("last", "best"):
        refuse_stray(checkpoints / name)


def refuse_stray(path: Path) -> None:
    """UserError where `last` or `best` is a link to anything but a checkpoint beside it."""
    if path.is_symlink() and not CHECKPOINT.fullmatch(os.readlink(path)):
        refuse_link(path)


# -- one at a time -------------------------------------------------------------------------------------------------


class RunLock:
    """The right to write into a run folder: of one process at a time, and free again as soon as that process is gone.

    The lock is the system's (flock), not the file's existence; the file says who holds it. Processes that are forked
    while it is held, such as the workers of async envs, let go of it, so that none of them outlives the run with it.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self._path = folder / LOCK
        self._fd: int | None = None
        self._before = b""

    def __enter__(self) -> RunLock:
        try:
            while not self._try():
                self.let_go()
        except OSError as error:
            self.let_go()
            raise UserError(
                f"{self.folder} cannot be written to ({error.strerror}); make it writable, or use a copy elsewhere."
            ) from error
        except UserError:
            self.let_go()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._fd is not None:
            with suppress(OSError):  # the folder may be gone by now
                if error is not None and self._before:  # left by a run that was killed; what is refused changes nothing
                    self._write(self._before)
                elif self._is_there():
                    self._path.unlink()
            self.let_go()

    def let_go(self) -> None:
        """Close the file, which frees the lock unless another process has it open, too."""
        _held.discard(self)
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _try(self) -> bool:
        """Lock the file; False if it was deleted by the run that held it before."""
        refuse_link(self._path)
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        self._fd = os.open(self._path, flags, 0o644)
        _held.add(self)
        info = os.fstat(self._fd)
        regular = stat.S_ISREG(info.st_mode) and info.st_nlink < 2
        self._before = os.pread(self._fd, 400, 0) if regular else b""
        ours = regular and HOLDER.fullmatch(self._before) is not None
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = self._before.decode().strip() if ours else ""
            raise UserError(
                f"{self.folder} is in use by {holder or 'another process'}; wait for it to end, or choose another "
                "folder."
            ) from error
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
                raise
            log.warning(
                "%s cannot be locked here (%s): make sure that no other process uses it.", self.folder, error.strerror
            )
        if not ours:
            raise UserError(f"{self._path} is not a file of rlx's own; remove it.")
        if not self._is_there():
            return False
        now = datetime.now().astimezone().isoformat(timespec="seconds")
        host = re.sub(r"[^\w.-]", "-", socket.gethostname(), flags=re.ASCII)
        self._write(f"process {os.getpid()} on {host} since {now}\n".encode())
        return True

    def _write(self, data: bytes) -> None:
        assert self._fd is not None
        os.pwrite(self._fd, data, 0)
        os.ftruncate(self._fd, len(data))

    def _is_there(self) -> bool:
        """Is the file that we have open still the one in the folder?"""
        assert self._fd is not None
        try:
            return os.path.samestat(os.fstat(self._fd), os.lstat(self._path))
        except FileNotFoundError:
            return False


def in_use(folder: Path) -> bool:
    """Does a process hold the folder right now?"""
    try:
        fd = os.open(folder / LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:  # nobody does, or it is not ours
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # it cannot be locked here
        return False
    finally:
        os.close(fd)
    return False


_held: weakref.WeakSet[RunLock] = weakref.WeakSet()  # what a forked process has to let go of


def _let_go_of_all() -> None:
    for lock in list(_held):
        lock.let_go()


os.register_at_fork(after_in_child=_let_go_of_all)


# -- what cannot be written ----------------------------------------------------------------------------------------


@contextmanager
def write_errors_explained(folder: Path, trained: Callable[[], bool]) -> Iterator[None]:
    """A full disk or a folder that became read-only costs a sentence, and what was saved before stays.

    It is the user's to choose another folder before training has begun (UserError), and ends the run afterwards.
    """
    try:
        yield
    except OSError as error:
        if not isinstance(error.filename, str) or not Path(error.filename).absolute().is_relative_to(folder.absolute()):
            raise  # of an env, or of a library
        sentence = f"{error.filename} cannot be written ({error.strerror})"
        if not trained():
            raise UserError(f"{sentence}; make room or make it writable, or choose another run_dir.") from error
        saved = sorted(p.name for p in (folder / "checkpoints").glob("step_*") if CHECKPOINT.fullmatch(p.name))
        kept = f"The last checkpoint is {saved[-1]}" if saved else "No checkpoint was saved before"
        raise RunFailed(
            f"{sentence}: the run ends here. {kept}; when the folder can be written to again, go on with "
            f"`python -m rlx resume {folder}`."
        ) from error


# -- the record of resumes -----------------------------------------------------------------------------------------


def note_resume(folder: Path, overrides: list[str], env_steps: int, updates: int) -> None:
    """Add to resumes.yaml when a run was resumed, where it was and what was asked for."""
    path = folder / RESUMES
    before = read_bounded(path, follow=False) if path.exists() else b""
    now = datetime.now().astimezone().isoformat(timespec="seconds")
    entry = {"time": now, "env_steps": env_steps, "updates": updates, "overrides": overrides}
    write_atomically(path, before + yaml.safe_dump([entry], sort_keys=False, allow_unicode=True).encode())


# -- new runs ----------------------------------------------------------------------------------------------------------


def default_run_dir(cfg: DictConfig) -> Path:
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S-%f")
    env = str(cfg.env.id).replace("/", "-").replace(":", "-")
    algo = str(as_written(cfg).algo.name).replace("/", "-")
    return Path("multirun_outputs") / "runs" / f"{algo}__{env}__seed{cfg.seed}__{stamp}"


def refuse_second_run(folder: Path) -> None:
    if os.path.lexists(folder / "config.yaml"):
        raise UserError(
            f"{folder} already holds a run; resume it (`python -m rlx resume {folder}`) or choose another run_dir."
        )
