"""The table of faults that `benchmarks/mutants.py` makes still fits the code. The script shows that all are caught."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
TABLE = ROOT / "benchmarks" / "mutant_table.py"
if not TABLE.exists():
    pytest.skip("benchmarks are not part of this copy", allow_module_level=True)


def table() -> dict[str, list[Any]]:
    spec = importlib.util.spec_from_file_location("mutant_table", TABLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.MUTANTS


MUTANTS = table()


@pytest.mark.parametrize("algo", MUTANTS)
def test_mutants_still_fit_the_code(algo: str) -> None:
    assert (ROOT / "rlx" / "algos" / f"{algo}.py").exists()
    mutants = MUTANTS[algo]
    assert len({mutant[:3] for mutant in mutants}) == len(mutants) >= 10
    for mutant in mutants:
        text = (ROOT / "rlx" / mutant.file).read_text()
        assert text.count(mutant.old) == 1, f"rlx/{mutant.file} has {text.count(mutant.old)} times {mutant.old!r}"
        changed = text.replace(mutant.old, mutant.new)
        assert changed != text
        compile(changed, mutant.file, "exec")  # a fault in what it computes, not in its syntax
