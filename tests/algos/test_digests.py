"""benchmarks/digests.py tells equal computations from different ones."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest

from rlx.config import learners

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "digests.py"


@pytest.fixture
def digests(tmp_path: Path) -> ModuleType:
    module = ModuleType("digests")
    module.__file__ = str(SCRIPT)
    exec(compile(SCRIPT.read_text(), SCRIPT, "exec"), vars(module))
    module.STORED = tmp_path / "digests.json"
    return module


def test_every_algorithm_has_a_case(digests: ModuleType) -> None:
    assert {name for name, _, _ in digests.cases().values()} == set(learners())
    stored = json.loads(SCRIPT.with_suffix(".json").read_text())
    assert set(stored["digests"]) == set(digests.cases())


def test_the_same_computation_has_the_same_digest_and_another_one_has_not(digests: ModuleType) -> None:
    assert digests.main(["--write", "bc:box"]) == 0
    assert digests.main(["--check", "bc:box"]) == 0
    digests.SMALL["bc"] = {"lr": 1.1e-3}
    assert digests.main(["--check", "bc:box"]) == 1


def test_digests_of_another_machine_are_not_compared(digests: ModuleType) -> None:
    digests.main(["--write", "bc:box"])
    stored = json.loads(digests.STORED.read_text())
    digests.STORED.write_text(json.dumps(stored | {"machine": {"cpu": "another"}}))
    assert digests.main(["--check", "bc:box"]) == 3
