"""The native nodes on this machine: built once by its C++ compiler, kept in a cache folder, loaded from there.

    $XDG_CACHE_HOME/rlx/native, or ~/.cache/rlx/native
        KEY.so      what was built; the key is a hash of the sources, the versions of torch and Python, and the CPU
        KEY.json    its checksum, without which it is not loaded, and what it was built by; touched when it is loaded
        KEY.failed  why a build in the background came to nothing, and by which compiler
        KEY.said    why there is none, which a run says once
        building-*  where a compiler is at work
        lock        held by whoever builds

A build happens in a folder of its own and is renamed when it is whole: one that is killed leaves nothing that counts.
The next one removes what it left, and builds that no process has loaded for a long time.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import json
import logging
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch

from rlx.errors import RunFailed, UserError, shown
from rlx.files import read_bounded, write_atomically

if sys.platform != "win32":
    import fcntl

log = logging.getLogger("rlx")

MODULE = "rlx_native"
SOURCES = ("nodes.cpp", "products.h", "program.h")
FLAGS = (
    "-std=c++20", "-O3", "-march=native", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-fopenmp",
    "-fPIC", "-shared",
)  # fmt: skip
MOST_BYTES = 64 * 2**20  # of a build
UNUSED = 90 * 24 * 3600  # seconds after which a build that no process has loaded is removed
ATTEMPTS = 3  # of a compiler that is killed each time, before runs stop starting builds
KILLED = re.compile(
    r"signal terminated program|due to signal|unable to execute command: \w|out of memory|memory exhausted|"
    r"allocate memory|No space left"
)  # what compilers say where not the sources are at fault
COMMAND = "python -m rlx build-native"


class Unavailable(Exception):
    """Why this machine cannot build the native nodes, and what to do about it."""

    def __init__(self, problem: str, remedy: str = ""):
        super().__init__(f"{problem}; {remedy}" if remedy else problem)
        self.remedy = remedy


class Killed(RunFailed):
    """A build that was ended from outside, or had no room: the next one may succeed."""


ELSEWHERE = "set XDG_CACHE_HOME to a folder of your own"


def cache_folder() -> Path:
    """`Unavailable` where the user has no home: in a container, under an id that it does not know."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rlx" / "native"
    except RuntimeError as error:
        raise Unavailable("there is no home folder to keep them in", ELSEWHERE) from error


@functools.cache
def key() -> str:
    """What a build depends on; not on the compiler, whose next version does not make this one's work worse."""
    parts = [(Path(__file__).parent / name).read_bytes() for name in SOURCES]
    words = (*FLAGS, torch.__version__, sys.implementation.cache_tag, platform.machine(), cpu_flags())
    return hashlib.sha256(b"\0".join([*parts, *(str(word).encode() for word in words)])).hexdigest()[:24]


def cpu_flags() -> str:
    """What -march=native looks at."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return torch.backends.cpu.get_cpu_capability()
    names = ("cpu family", "model", "flags", "Features", "CPU part")
    return "\n".join(dict.fromkeys(line for line in lines if line.partition(":")[0].strip() in names))


# -- building ----------------------------------------------------------------------------------------------------------


def compiler() -> list[str]:
    """The command of the C++ compiler, which may be several words; `Unavailable` where there is none, or no headers."""
    if sys.platform != "linux":
        raise Unavailable("they are for Linux only")
    asked = os.environ.get("CXX", "").strip()
    try:
        commands = [shlex.split(asked)] if asked else [["g++"], ["c++"], ["clang++"]]
    except ValueError as error:
        raise Unavailable(f"CXX={asked} is not a command ({error})", "unset CXX or name a C++ compiler") from error
    found = next(([path, *words] for name, *words in commands if (path := shutil.which(name))), None)
    if found is None and asked:
        raise Unavailable(f"CXX={asked} is not a program that can be run", "unset CXX or name a C++ compiler")
    if found is None:
        raise Unavailable("there is no C++ compiler", "type apt-get install g++")
    if not (Path(sysconfig.get_paths()["include"]) / "Python.h").is_file():
        raise Unavailable("Python's C headers are missing", "type apt-get install python3-dev")
    return found


def identity(program: list[str]) -> str:
    """The compiler as it is now: another one, or a later version, may build what this one could not."""
    words = list(program)
    for path in filter(None, map(shutil.which, program)):  # `ccache g++` has two
        status = os.stat(path)
        words.append(f"{os.path.realpath(path)} {status.st_size} {status.st_mtime_ns}")
    return "\n".join(words)


def make_folder() -> Path:
    """The cache folder, made if it has to be; `Unavailable` where nothing can be kept in it, or others could write."""
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        status = folder.stat()
    except OSError as error:
        file = next((path for path in (folder, *folder.parents) if os.path.lexists(path) and not path.is_dir()), None)
        what = f"{folder} cannot be made ({error.strerror})" if file is None else f"{file} is a file, not a folder"
        raise Unavailable(what, ELSEWHERE) from error
    if status.st_uid != os.getuid():
        raise Unavailable(f"{folder} belongs to another user", ELSEWHERE)
    if status.st_mode & 0o022:
        raise Unavailable(f"others can write to {folder}", f"type chmod go-w {shlex.quote(str(folder))}")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise Unavailable(f"{folder} is read-only", ELSEWHERE)
    return folder


def command(program: list[str], target: Path) -> list[str]:
    root = Path(torch.__file__).parent
    include = (root / "include", root / "include/torch/csrc/api/include", Path(sysconfig.get_paths()["include"]))
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}"
    libraries = (f"-L{root / 'lib'}", "-ltorch_python", "-ltorch_cpu", "-ltorch", "-lc10")
    folders = [word for folder in include for word in ("-isystem", str(folder))]
    source = Path(__file__).parent / "nodes.cpp"
    return [*program, *FLAGS, "-w", abi, *folders, str(source), "-o", str(target), *libraries]


@contextmanager
def locked(folder: Path) -> Iterator[int]:
    """One build at a time. The lock is the system's: free as soon as its holder is gone, and the compiler, which is
    given its descriptor, with it.
    """
    fd = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield fd
    finally:
        fcntl.flock(fd, fcntl.LOCK_UN)  # also where a server that the compiler has started keeps the descriptor
        os.close(fd)


def build(again: bool = False) -> Path:
    """Build into the cache, unless one is there that loads; whoever comes second takes what the first has built."""
    program = compiler()
    folder = make_folder()
    try:
        with locked(folder) as lock:
            tidy(folder)
            load.cache_clear()
            if again or load() is None:
                build_into(folder, program, lock)
    except OSError as error:
        raise Killed(f"The native nodes could not be built in {folder} ({error.strerror}).") from error
    return folder / f"{key()}.so"


def build_into(folder: Path, program: list[str], lock: int) -> None:
    with tempfile.TemporaryDirectory(prefix="building-", dir=folder) as place:
        made = Path(place) / f"{MODULE}.so"
        compile_into(made, program, lock)
        try:
            module_in(made)
        except ImportError as error:
            by, why = shlex.join(program), shown(str(error), 300)
            raise RunFailed(f"The native nodes that {by} has built cannot be loaded ({why}).") from error
        about = {"sha256": hashlib.sha256(made.read_bytes()).hexdigest(), "compiler": version_of(program)}
        made.chmod(0o600)
        os.replace(made, folder / f"{key()}.so")
        write_atomically(folder / f"{key()}.json", json.dumps(about).encode())
    for kind in ("failed", "said"):
        (folder / f"{key()}.{kind}").unlink(missing_ok=True)


def tidy(folder: Path) -> None:
    """Remove what killed builds have left, and what belongs to a key that was not used for long; the lock is held, so
    that no compiler is at work. A process that has loaded a build keeps it.
    """
    files: dict[str, list[Path]] = {}
    for path in folder.iterdir():
        owner = path.name.lstrip(".").partition(".")[0]  # .KEY.json.writing is a file of KEY, too
        if path.name.startswith("building-"):
            shutil.rmtree(path, ignore_errors=True)
        elif re.fullmatch("[0-9a-f]{24}", owner) and owner != key():
            files.setdefault(owner, []).append(path)
    for paths in files.values():
        if max(path.stat().st_mtime for path in paths) < time.time() - UNUSED:
            for path in paths:
                path.unlink()


def compile_into(target: Path, program: list[str], lock: int) -> None:
    """Run the compiler; a sentence with the first of its errors where it fails."""
    words, environment = command(program, target), {**os.environ, "LC_ALL": "C"}  # errors are looked for in English
    try:
        run = subprocess.run(
            words, capture_output=True, text=True, errors="replace", check=False, env=environment, pass_fds=(lock,)
        )
    except OSError as error:
        raise RunFailed(
            f"The native nodes could not be built: {program[0]} cannot be run ({error.strerror})."
        ) from error
    if run.returncode == 0 and target.is_file():
        return
    lines = [line for line in run.stderr.splitlines() if line.strip()]
    errors = [line for line in lines if "error:" in line] or [line for line in lines if "error" in line] or lines
    why = shown(errors[0], 300) if errors else f"it says nothing and ends with exit code {run.returncode}"
    if run.returncode < 0 or run.returncode > 128 or KILLED.search(run.stderr):
        raise Killed(
            f"The native nodes could not be built: {shlex.join(program)} was ended before it was done ({why})."
        )
    raise RunFailed(f"The native nodes could not be built by {shlex.join(program)} ({why}).")


def version_of(program: list[str]) -> str:
    run = subprocess.run([*program, "--version"], capture_output=True, text=True, errors="replace", check=False)
    return (run.stdout.splitlines() or ["?"])[0][:200]


def being_built() -> bool:
    """Does another process build now?"""
    try:
        fd = os.open(cache_folder() / "lock", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except (OSError, Unavailable):
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False


def build_in_background() -> None:
    """Let a process of its own build, with a low priority; it outlives this one, and nobody waits for it."""
    arguments = [sys.executable, "-m", "rlx", "build-native", "--background"]
    subprocess.Popen(
        arguments, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True, close_fds=True,
    )  # fmt: skip


# -- why there is none -------------------------------------------------------------------------------------------------


def noted(kind: str) -> str | None:
    """What was noted as "failed" or as "said"."""
    try:
        return read_bounded(cache_folder() / f"{key()}.{kind}").decode(errors="replace")
    except (OSError, Unavailable):
        return None


def note(kind: str, text: str) -> None:
    with suppress(OSError, Unavailable):  # then it is said again next time
        cache_folder().mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomically(cache_folder() / f"{key()}.{kind}", text.encode())


class Failure(NamedTuple):
    """How the latest build in the background ended."""

    compiler: str  # its `identity`
    why: str
    killed: int  # so many times in a row; 0: the compiler itself gave up


def latest_failure(program: list[str]) -> Failure | None:
    """That of this compiler, if it was the latest to fail."""
    try:
        failure = Failure(**json.loads(noted("failed") or ""))
    except (ValueError, TypeError):
        return None
    return failure if failure.compiler == identity(program) else None


def note_failure(error: RunFailed) -> None:
    """For the next run to tell, or, after a few builds that were killed, to try again."""
    program = compiler()
    before = latest_failure(program)
    killed = 1 + (before.killed if before else 0) if isinstance(error, Killed) else 0
    note("failed", json.dumps(Failure(identity(program), str(error), killed)._asdict()))


def why_not_built(program: list[str]) -> str | None:
    """Why no other build by this compiler is worth a try; None where one is."""
    failure = latest_failure(program)
    return failure.why if failure is not None and failure.killed not in range(1, ATTEMPTS) else None


# -- loading -----------------------------------------------------------------------------------------------------------


def is_open(path: Path) -> bool:
    """Can others write to it?"""
    status = path.stat()
    return status.st_uid != os.getuid() or bool(status.st_mode & 0o022)


def whole() -> Path | None:
    """The build of this machine, if it is there and is what was built; a sentence where it is not."""
    try:
        path = cache_folder() / f"{key()}.so"
    except Unavailable:  # which `make_folder` tells
        return None
    try:
        if not path.exists() or is_open(path.parent):  # which `make_folder` tells
            return None
        why = flaw(path)
    except OSError as error:
        why = f"it cannot be read: {error.strerror}"
    if why is not None:
        log.warning("%s is not used (%s); %s builds it anew.", path, why, COMMAND)
        return None
    return path


def flaw(path: Path) -> str | None:
    """What is wrong with a build, if anything is."""
    if is_open(path):
        return "others can write to it"
    try:
        checksum = json.loads(read_bounded(path.with_suffix(".json")))["sha256"]
    except FileNotFoundError:
        return "its record is missing"
    except (ValueError, LookupError, TypeError):
        return "its record is damaged"
    return None if hashlib.sha256(read_bounded(path, MOST_BYTES)).hexdigest() == checksum else "it is damaged"


def module_in(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(MODULE, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@functools.cache
def load() -> Any:
    """The module, or None where there is none to load."""
    path = whole()
    if path is None:
        return None
    try:
        module = module_in(path)
    except ImportError as error:
        log.warning("%s cannot be loaded (%s); %s builds it anew.", path, error, COMMAND)
        return None
    with suppress(OSError):  # a build that is used is kept, see `tidy`
        os.utime(path.with_suffix(".json"))
    return module


def require() -> Any:
    """The module, built now if it has to be; a sentence where it cannot be."""
    if load() is None:
        try:
            compiler()
            make_folder()
            log.info("Building the native nodes, once: a minute or two.")
            build()
        except Unavailable as error:
            raise UserError(
                f"native=true cannot be used: {error}{', or' if error.remedy else ';'} use native=auto."
            ) from error
        load.cache_clear()
    module = load()
    if module is None:
        raise UserError(f"native=true cannot be used: the build does not load; type {COMMAND}, or use native=auto.")
    return module
