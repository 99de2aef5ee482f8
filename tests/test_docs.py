"""The docs tell the truth of today."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from rlx.choices import describe, groups
from rlx.config import compose_config
from rlx.sweeps.settings import first_job

ROOT = Path(__file__).parent.parent


def test_the_page_of_algorithms_is_what_the_code_says():
    made = subprocess.run(
        [sys.executable, "-c", "import make_algorithms; print(make_algorithms.page(), end='')"],
        cwd=ROOT / "docs", capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert (ROOT / "docs" / "algorithms.md").read_text() == made.stdout, "run `python docs/make_algorithms.py`"


def commands() -> list[str]:
    """Every training command in the README and the docs."""
    found = []
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        for line in re.sub(r"\\\n\s*", "", page.read_text()).splitlines():
            match = re.match(r"\s*(?:\$ )?python -m rlx ((?:-m )?\w+=[^#`]*)", line)
            if match and not re.search(r"[A-Z]{3,}|\.\.\.", match.group(1)):
                found.append(match.group(1).strip())
    return found


@pytest.mark.parametrize("command", commands())
def test_every_command_in_the_docs_composes(command: str):
    words = shlex.split(command)
    first = first_job([w for w in words if w not in ("-m", "--dry-run")]) if words[0] == "-m" else words
    assert compose_config(first).algo.name


@pytest.mark.parametrize("group", groups())
def test_every_choice_says_what_it_is(group: str):
    for name, text in describe(group):
        assert text.endswith("."), f"conf/{group}/{name}.yaml begins with no sentence"


def test_links_lead_somewhere():
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            if not target.startswith("http"):
                assert (page.parent / target).exists(), f"{page.name} links to {target}"
