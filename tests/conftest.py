"""Every test runs on one thread, away from the user's own datasets and run folders."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("WANDB_MODE", "offline")
os.environ["RLX_NATIVE"] = "false"  # what numbers were frozen with; tests of the native nodes ask for them

SHARED_DATA = Path(__file__).parent.parent.parent / "shared" / "data"


@pytest.fixture(autouse=True)
def _at_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Generated datasets go to one folder per session, runs to a folder of the test."""
    root = tmp_path_factory.getbasetemp() / "minari"
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(root))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "no_cache"))
    import torch

    torch.set_num_threads(1)


@pytest.fixture
def shared_data() -> Path:
    """Real datasets recorded by others; tests on them are skipped where they are absent."""
    if not SHARED_DATA.is_dir():
        pytest.skip("the real datasets of ../shared/data are not here")
    return SHARED_DATA


@pytest.fixture
def toy_envs() -> Iterator[None]:
    """The envs of tests/toy_envs.py can be made by their ids."""
    from toy_envs import registered  # here, because NumPy reads OMP_NUM_THREADS where it is first imported

    with registered():
        yield


@pytest.fixture(scope="session")
def native_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder with a build of the native nodes, made once for all workers; skips where they cannot be built, but
    for machines of continuous integration, where that would look like success.
    """
    from helpers import do_without_native

    from rlx.nn.native.build import Unavailable, build

    base = tmp_path_factory.getbasetemp()
    root = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "cache"
    root.mkdir(exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(root))
        try:
            build()
        except Unavailable as error:
            do_without_native(str(error))
    return root


@pytest.fixture
def native(native_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The native nodes are on."""
    from helpers import native_nodes

    monkeypatch.setenv("XDG_CACHE_HOME", str(native_cache))
    with native_nodes():
        yield
