"""Writes docs/algorithms.md from the code: what each algorithm is, what it fits, what can be set.

python docs/make_algorithms.py
"""

from __future__ import annotations

import ast
import inspect
import sys
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from rlx.choices import describe
from rlx.config import learners, schemas
from rlx.learner import AlgoConfig

HEAD = """# Algorithms

Made from the code by `python docs/make_algorithms.py`. Fields that every algorithm has: `discount`, `batch_size`,
`hidden`, `normalize_obs`. Where there are both, `actor_hidden` and `critic_hidden` give policy and values
sizes of their own. An algorithm's first regime is the one that `algo=` selects; the others are one override away
(`trainer=offline_to_online`).

Runs are short by default: 20,000 updates offline, 20,000 env steps off-policy. `experiment=<algo>_paper` is a run as in
the paper or the authors' code, which is named in its file, and expects an env and most often a dataset:
`python -m rlx experiment=iql_paper env=hopper dataset=minari dataset.id=...`

| choice | actions | reads pictures | regimes |
|---|---|---|---|
"""


def comments(cls: type) -> dict[str, str]:
    """The comment behind each field of a config dataclass, inherited ones included."""
    found = {}
    for base in reversed([base for base in cls.__mro__ if is_dataclass(base)]):
        for line in inspect.getsource(base).splitlines():
            code, _, comment = line.partition("  # ")
            name = code.strip().partition(":")[0]
            if ":" in code and comment:
                found[name] = comment.strip()
    return found


def as_typed(value: Any) -> str:
    """A default as the command line takes it."""
    if isinstance(value, Enum):
        return value.name
    return {"None": "null", "True": "true", "False": "false"}.get(str(value), str(value))


def page() -> str:
    lines = [HEAD]
    texts = dict(describe("algo"))
    for name, cls in sorted(learners().items()):
        pictures = "yes" if cls.images else ""
        lines.append(
            f"| [`algo={name}`](#{name}) | {', '.join(cls.actions)} | {pictures} | {', '.join(cls.regimes)} |\n"
        )
    lines.append(
        "\n`algo=her` is SAC with `replay=hindsight`, which goes on top of every off-policy learner of box actions.\n"
        "`algo=rainbow` is C51 with `double`, `dueling` and `noisy`, 3-step returns and `replay=prioritized`.\n"
    )
    common = {f.name for f in fields(AlgoConfig)}
    for name, cls in sorted(learners().items()):
        config = schemas()[f"algo/{name}"]
        module = sys.modules[cls.__module__]
        doc = ast.get_docstring(ast.parse(Path(module.__file__ or "").read_text())) or ""
        lines.append(f"\n## {name}\n\n{texts[name]}\n\n```text\n{doc}\n```\n\n")
        notes = comments(config)
        own = [f for f in fields(config) if f.name not in common]
        default = config()
        if own:
            lines.append("| field | default | |\n|---|---|---|\n")
        for f in own:
            note = notes.get(f.name, "").replace("None:", "null:").replace("|", "\\|")
            lines.append(f"| `algo.{f.name}` | `{as_typed(getattr(default, f.name))}` | {note} |\n")
    return "".join(lines)


if __name__ == "__main__":
    (Path(__file__).parent / "algorithms.md").write_text(page())
