"""The native nodes on this machine: built once by its C++ compiler, kept in a cache folder, loaded from there.

    $XDG_CACHE_HOME/rlx/native, or ~/.cache/rlx/native
        KEY.so      what was built; the key is a hash of the sources, the versions of torch and Python, and the CPU
        KEY.json    its checksum, without which it is not loaded, and what it was built by
        KEY.failed  why a build in the background came to nothing
        KEY.said    why there is none, which a run says once
        lock        held by whoever builds

A build happens in a folder of its own and is renamed when it is whole: one that is killed leaves nothing that counts.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import json
import logging
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from rlx.errors import RunFailed, UserError
from rlx.files import read_bounded, write_atomically

if sys.platform != "win32":
    import fcntl

log = logging.getLogger("rlx")

MODULE = "rlx_native"
SOURCES = ("nodes.cpp", "products.h", "program.h")
FLAGS = ("-std=c++20", "-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-fopenmp", "-fPIC", "-shared")
MOST_BYTES = 64 * 2**20  # of a build
COMMAND = "python -m rlx build-native"


class Unavailable(Exception):
    """Why this machine cannot build the native nodes, and what to do about it."""


def cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rlx" / "native"


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


def compiler() -> str:
    """The C++ compiler to use; `Unavailable` where there is none, or no headers."""
    if sys.platform != "linux":
        raise Unavailable("Native nodes are built on Linux only")
    asked = os.environ.get("CXX")
    names = [asked] if asked else ["g++", "c++", "clang++"]
    program = next((path for name in names if (path := shutil.which(name))), None)
    if program is None:
        raise Unavailable("There is no C++ compiler; apt-get install g++ would make runs faster")
    if not (Path(sysconfig.get_paths()["include"]) / "Python.h").is_file():
        raise Unavailable("Python's C headers are missing; apt-get install python3-dev would make runs faster")
    return program


def command(program: str, target: Path) -> list[str]:
    root = Path(torch.__file__).parent
    include = (root / "include", root / "include/torch/csrc/api/include", Path(sysconfig.get_paths()["include"]))
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}"
    libraries = (f"-L{root / 'lib'}", "-ltorch_python", "-ltorch_cpu", "-ltorch", "-lc10")
    folders = [word for folder in include for word in ("-isystem", str(folder))]
    source = Path(__file__).parent / "nodes.cpp"
    return [program, *FLAGS, "-w", abi, *folders, str(source), "-o", str(target), *libraries]


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """One build at a time; the lock is the system's, and free as soon as its holder is gone."""
    fd = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def build(again: bool = False) -> Path:
    """Build into the cache, unless it is there; whoever comes second waits and takes what the first has built."""
    program = compiler()
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with locked(folder):
        if not again and whole() is not None:
            return folder / f"{key()}.so"
        with tempfile.TemporaryDirectory(prefix="building-", dir=folder) as place:
            made = Path(place) / f"{MODULE}.so"
            run = subprocess.run(command(program, made), capture_output=True, text=True, errors="replace", check=False)
            if run.returncode != 0 or not made.is_file():
                lines = [line for line in run.stderr.splitlines() if "error" in line] or run.stderr.splitlines()
                raise RunFailed(f"The native nodes could not be built by {program} ({(lines or ['?'])[0][:300]}).")
            about = {"sha256": hashlib.sha256(made.read_bytes()).hexdigest(), "compiler": version_of(program)}
            made.chmod(0o600)
            os.replace(made, folder / f"{key()}.so")
            write_atomically(folder / f"{key()}.json", json.dumps(about).encode())
        for kind in ("failed", "said"):
            (folder / f"{key()}.{kind}").unlink(missing_ok=True)
    return folder / f"{key()}.so"


def version_of(program: str) -> str:
    run = subprocess.run([program, "--version"], capture_output=True, text=True, errors="replace", check=False)
    return (run.stdout.splitlines() or ["?"])[0][:200]


def being_built() -> bool:
    """Does another process build now?"""
    try:
        fd = os.open(cache_folder() / "lock", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
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
    except OSError:
        return None


def note(kind: str, text: str) -> None:
    with suppress(OSError):  # then it is said again next time
        cache_folder().mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomically(cache_folder() / f"{key()}.{kind}", text.encode())


# -- loading -----------------------------------------------------------------------------------------------------------


def whole() -> Path | None:
    """The build of this machine, if it is there and is what was built; a sentence where it is not."""
    path = cache_folder() / f"{key()}.so"
    if not path.exists():
        return None
    try:
        for place in (path, path.parent):
            status = place.stat()
            if status.st_uid != os.getuid() or status.st_mode & 0o022:
                raise ValueError("others can write to it")
        about = json.loads(read_bounded(path.with_suffix(".json")))
        if hashlib.sha256(read_bounded(path, MOST_BYTES)).hexdigest() != about["sha256"]:
            raise ValueError("it is not what was built")
    except (OSError, ValueError, LookupError, TypeError) as error:
        log.warning("%s is not used (%s); %s builds it anew.", path, error, COMMAND)
        return None
    return path


@functools.cache
def load() -> Any:
    """The module, or None where there is none to load."""
    path = whole()
    if path is None:
        return None
    spec = importlib.util.spec_from_file_location(MODULE, path)
    assert spec is not None
    assert spec.loader is not None
    try:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except ImportError as error:
        log.warning("%s cannot be loaded (%s); %s builds it anew.", path, error, COMMAND)
        return None
    return module


def require() -> Any:
    """The module, built now if it has to be; a sentence where it cannot be."""
    if load() is None:
        try:
            log.info("Building the native nodes: half a minute, once.")
            build()
        except Unavailable as error:
            raise UserError(f"native=true cannot be had here. {error}; or use native=auto.") from error
        load.cache_clear()
    module = load()
    if module is None:
        raise UserError(f"native=true cannot be had here: the build does not load; use native=auto, or try {COMMAND}.")
    return module
