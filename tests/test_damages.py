"""Random damages to run folders are noticed, or change nothing that is read; `benchmarks/damages.py` makes many."""

from __future__ import annotations

import importlib.util
import logging
import random
import shutil
from collections import Counter
from pathlib import Path

import pytest

import rlx

SCRIPT = Path(__file__).parent.parent / "benchmarks" / "damages.py"


def test_no_damage_is_silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.spec_from_file_location("damages", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    damages = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(damages)
    monkeypatch.setattr(logging.getLogger("rlx"), "handlers", [logging.NullHandler()])
    rlx.train(*damages.OVERRIDES, run_dir=tmp_path / "whole")
    reference = damages.written(tmp_path / "whole")
    verdicts: Counter[str] = Counter()
    for k in range(150):
        run = tmp_path / f"run{k}"
        shutil.copytree(tmp_path / "whole", run, symlinks=True)
        kind = damages.damage(run, random.Random(k))
        verdict = damages.judge(run, reference)
        assert verdict != "SILENT", f"damage {k}: {kind}"
        verdicts[verdict] += 1
    assert verdicts["noticed"] > 75
