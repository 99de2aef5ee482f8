"""The wheel holds the config tree, both layouts find it, and imports stay light."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
HEAVY = ("torch", "minari", "wandb", "tensorboard", "mujoco", "h5py", "gymnasium", "hydra", "numpy")


def python(*arguments: str, cwd: Path, path: Path | None = None) -> str:
    """Run a fresh interpreter that sees only this path besides its installed packages."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    if path is not None:
        env["PYTHONPATH"] = str(path)
    found = subprocess.run([sys.executable, *arguments], cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    return found.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked wheel of this checkout."""
    pytest.importorskip("hatchling", reason="the build backend comes with the dev extra")
    folder = tmp_path_factory.mktemp("wheel")
    python("-m", "hatchling", "build", "-t", "wheel", "-d", str(folder / "dist"), cwd=ROOT)
    (built,) = (folder / "dist").glob("*.whl")
    with zipfile.ZipFile(built) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def test_the_wheel_holds_the_whole_config_tree(wheel: Path) -> None:
    ours = {p.relative_to(ROOT / "conf") for p in (ROOT / "conf").rglob("*.yaml")}
    theirs = {p.relative_to(wheel / "rlx" / "conf") for p in (wheel / "rlx" / "conf").rglob("*.yaml")}
    assert ours == theirs
    assert (wheel / "rlx" / "py.typed").is_file()
    modules = {p.relative_to(ROOT) for p in (ROOT / "rlx").rglob("*.py")}
    assert modules == {p.relative_to(wheel) for p in (wheel / "rlx").rglob("*.py")}
    parts = {"page.py", "page.html", "page.css", "page.js"}
    assert {p.name for p in (wheel / "rlx" / "report").glob("page.*")} == parts
    sources = {p.relative_to(ROOT) for kind in ("*.cpp", "*.h") for p in (ROOT / "rlx").rglob(kind)}
    assert sources == {p.relative_to(wheel) for kind in ("*.cpp", "*.h") for p in (wheel / "rlx").rglob(kind)}
    assert len(sources) == 3  # what native nodes are built from
    assert {p.name for p in wheel.iterdir() if not p.name.endswith(".dist-info")} == {"rlx"}


def test_the_wheel_works_from_anywhere(wheel: Path, tmp_path: Path) -> None:
    where = python("-c", "import rlx.paths; print(rlx.paths.conf_dir())", cwd=tmp_path, path=wheel).strip()
    assert where == str(wheel / "rlx" / "conf")
    assert "algo=sac" in python("-m", "rlx", "list", "algo", cwd=tmp_path, path=wheel)
    assert "max_env_steps: 20000" in python("-m", "rlx", "--cfg", "job", cwd=tmp_path, path=wheel)
    assert not list(tmp_path.iterdir())


def test_the_checkout_works_from_anywhere(tmp_path: Path) -> None:
    where = python("-c", "import rlx.paths; print(rlx.paths.conf_dir())", cwd=tmp_path, path=ROOT).strip()
    assert where == str(ROOT / "conf")
    assert "algo=sac" in python("-m", "rlx", "list", "algo", cwd=tmp_path, path=ROOT)


@pytest.mark.parametrize(
    "code",
    ["import rlx", "import rlx.cli", "import sys; from rlx.cli import main; assert main(['list']) == 0",
     "from rlx.cli import main; assert main(['--help']) == 0"],
)  # fmt: skip
def test_what_needs_no_torch_imports_none(code: str, tmp_path: Path) -> None:
    report = f"{code}\nimport sys\nprint('loaded', [m for m in {HEAVY!r} if m in sys.modules])"
    assert python("-c", report, cwd=tmp_path, path=ROOT).strip().endswith("loaded []")


def test_composing_a_config_leaves_the_optional_packages_alone(tmp_path: Path) -> None:
    code = (
        "from rlx.config import compose_config\ncompose_config(['algo=rlpd', 'dataset=minari', 'logger=wandb'])\n"
        "import rlx.workflows, sys\n"
        "print([m for m in ('minari', 'wandb', 'tensorboard', 'mujoco', 'h5py') if m in sys.modules])"
    )
    assert python("-c", code, cwd=tmp_path, path=ROOT).strip() == "[]"


def test_every_public_name_is_there() -> None:
    import rlx

    for name in rlx.__all__:
        assert getattr(rlx, name).__module__.startswith("rlx.")
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = rlx.nonsense
