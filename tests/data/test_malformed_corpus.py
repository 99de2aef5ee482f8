"""Malformed datasets end in one sentence: nothing runs, nothing else is touched, memory and time are bounded.

Each of the corpus is read in a child that is forked from this process, so that it can be limited and watched.
"""

from __future__ import annotations

import contextlib
import io
import os
import resource
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from malformed import CORPUS, N, arrays

import rlx.cli
from rlx.data.minari import read_minari_folder
from rlx.data.sources import (
    Hdf5Config,
    Memory,
    MinariConfig,
    NpzConfig,
    PtConfig,
    load_hdf5,
    load_minari,
    load_npz,
    load_pt,
)
from rlx.errors import UserError
from rlx.types import Spec

SPEC = Spec("Toy-v0", (3,), "float32", "box", (2,), (-1.0, -1.0), (1.0, 1.0))
MEMORY = 512 * 2**20  # bytes more than the child begins with
SECONDS = 20  # of processor time; a good file takes a hundredth of one
WAIT = 300  # seconds until a child that waits for something is ended; no more than a way out
WATCHED = ("os.system", "os.exec", "os.posix_spawn", "subprocess.Popen", "os.mkdir", "os.remove", "os.rename", "socket")


def limited() -> list[str]:
    """Bound this process, and write down what it must not do."""
    import rlx.workflows  # noqa: F401  # whatever the command line imports, before imports are watched

    with open("/proc/self/statm") as file:
        size = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, size + MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    signal.alarm(WAIT)
    seen: list[str] = []

    def watch(event: str, args: tuple[Any, ...]) -> None:
        if event == "open":
            path, mode, flags = args
            writes = bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)) or (mode and set(mode) & set("wax+"))
            if writes or "outside" in str(path):
                seen.append(f"{event} {path}")
        elif event.startswith(WATCHED) or (event == "import" and "canary" in str(args[0])):
            seen.append(f"{event} {args[0]}")

    sys.addaudithook(watch)
    return seen


def loaders(source: Path) -> list[Any]:
    """How a run would load it."""
    text = str(source)
    if text.startswith("id:"):
        root = os.environ["MINARI_DATASETS_PATH"]
        return [lambda: load_minari(MinariConfig(id=text.removeprefix("id:"), root=root), SPEC)]
    if ".npz" in text:
        return [lambda m=m: load_npz(NpzConfig(path=text, memory=m), SPEC) for m in Memory]
    if text.endswith(".pt"):
        return [lambda: load_pt(PtConfig(path=text), SPEC)]
    if text.endswith(".hdf5"):
        return [lambda m=m: load_hdf5(Hdf5Config(path=text, memory=m), SPEC) for m in Memory]
    return [lambda: read_minari_folder(source).fitted_to(SPEC)]


def sentences(source: Path) -> list[str]:
    """What the command line and the loaders of a run say; anything but one sentence or a dataset is an error."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        code = rlx.cli.main(["inspect-data", str(source).removeprefix("id:")])
    assert code in (0, 2), out.getvalue()
    said = [out.getvalue().strip()] if code == 2 else []
    for load in loaders(source):
        try:
            load()
        except UserError as error:
            said.append(str(error))
    assert all(len(text) < 12_000 and "\n" not in text for text in said), said
    return said


def in_child(source: Path) -> tuple[int, str]:
    """Inspect and load in a child: the status that it ended with, and what it said, one sentence in a line."""
    read, write = os.pipe()
    if (pid := os.fork()) == 0:
        status = 1
        try:
            os.close(read)
            seen = limited()
            said = "\n".join(sentences(source))
            os.write(write, f"{said}\n{seen or ''}".encode(errors="replace")[:60_000])
            status = 3 if seen else 0
        except BaseException:  # whatever it is, the test shall say it
            os.write(write, traceback.format_exc().encode(errors="replace")[-60_000:])
        finally:
            os._exit(status)
    os.close(write)
    with open(read, "rb") as file:
        text = file.read().decode(errors="replace")
    return os.waitpid(pid, 0)[1], text


def test_there_are_many():
    assert len(CORPUS) >= 130
    for kind in ("npz", "pt", "hdf5", "d3rlpy", "minari"):
        assert sum(name.startswith(kind) for name in CORPUS) >= 20


@pytest.mark.parametrize("name", CORPUS)
def test_a_malformed_dataset_ends_in_a_sentence(name, tmp_path, monkeypatch):
    inside = tmp_path / "inside"
    inside.mkdir()
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(inside))
    monkeypatch.chdir(inside)
    np.zeros(N, "f4").tofile(tmp_path / "outside.bin")
    with h5py.File(tmp_path / "outside.hdf5", "w") as file:
        for key, array in arrays().items():
            file[key] = array
    source = CORPUS[name](inside)
    before = sorted(str(path) for path in tmp_path.rglob("*"))
    status, said = in_child(source)
    assert status == 0, f"{name}: status {status}\n{said}"
    assert sorted(str(path) for path in tmp_path.rglob("*")) == before
    assert "Traceback" not in said


WHOLE = {
    "npz: rewards: python code": ("npz", "path"),
    "npz: zip bomb of 8 GB": ("npz", "path"),
    "npz: FIFO": ("npz", "path"),
    "pt: rewards: expanded to 8 GB": ("pt", "path"),
    "pt: an object that would run": ("pt", "path"),
    "hdf5: rewards: 5 GB of fill values": ("hdf5", "path"),
    "d3rlpy: num_episodes: huge": ("hdf5", "path"),
    "minari: metadata: deep": ("minari", "id"),
    "minari: data are a FIFO": ("minari", "id"),
}


@pytest.mark.parametrize("name", WHOLE)
def test_a_run_on_a_malformed_dataset_ends_in_a_sentence(name, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    source, (kind, option) = CORPUS[name](tmp_path), WHOLE[name]
    where = source.relative_to(tmp_path) if option == "id" else source
    run = [f"dataset={kind}", f"dataset.{option}={where}", f"run_dir={tmp_path / 'run'}", "algo.hidden=[8,8]"]
    assert rlx.cli.main(["algo=td3_bc", "env=pendulum", "threads=1", "logger=none", *run]) == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert said[0].startswith("rlx: ")
    assert not (tmp_path / "run").exists()
    assert not (tmp_path / "canary").exists()
