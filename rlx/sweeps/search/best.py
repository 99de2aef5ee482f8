"""What a search came to: experiment/best.yaml below the folder of the sweep, which --config-dir makes a choice."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from rlx.config import GROUPS, for_hydra
from rlx.config.overrides import SEARCH, parse_override
from rlx.files import write_atomically
from rlx.reporting import shortest
from rlx.run_folder import refuse_link
from rlx.sweeps.manifest import SEED

FOLDER = "experiment"
NAME = "best"
PAIR = "algo_env"  # how an algorithm is tuned for an env


def write_best(folder: Path, overrides: Sequence[str], comment: str) -> None:
    """The overrides of a run as an experiment."""
    defaults, values, _ = as_experiment(overrides)
    text = f"# @package _global_\n# {comment}\n"
    if defaults:
        text += "defaults:\n" + "".join(f"  - {entry}\n" for entry in defaults)
    text += OmegaConf.to_yaml(OmegaConf.create(values)) if values else ""
    refuse_link(folder / FOLDER)
    (folder / FOLDER).mkdir(exist_ok=True)
    write_atomically(folder / FOLDER / f"{NAME}.yaml", text.encode())


def how_to_run(folder: Path, overrides: Sequence[str]) -> str:
    """The command that runs it over five seeds."""
    _, _, rest = as_experiment(overrides)
    places = [shlex.quote(o) for o in rest]
    return " ".join(
        ["python -m rlx -m --config-dir", shlex.quote(shortest(folder)), f"{FOLDER}={NAME}", *places, "'seed=range(5)'"]
    )


def as_experiment(overrides: Sequence[str]) -> tuple[list[str], dict[str, Any], list[str]]:
    """Overrides as the defaults of an experiment, its values, and what neither can say: what is removed, and where
    configs of one's own are.
    """
    defaults: list[str] = []
    values: dict[str, Any] = {}
    rest: list[str] = []
    for override in for_hydra(overrides):  # with what follows from them
        read = parse_override(override)
        key = override.lstrip("+~").partition("=")[0]
        group = key.partition("@")[0]
        if key == SEED:
            continue
        if group in GROUPS or "/" in group or group == PAIR:
            value = None if read is None or read.is_delete() else read.value()
            defaults.append(f"override /{key}: {'null' if value is None else value}")
        elif read is None or read.is_delete() or key == SEARCH:
            rest.append(override)
        elif key == FOLDER:
            defaults.insert(0, str(read.value()))  # a file beside this one
        else:
            _put(values, key.split("."), read.value())
    return defaults, values, rest


def _put(values: dict[str, Any], path: Sequence[str], value: Any) -> None:
    for name in path[:-1]:
        values = values.setdefault(name, {})
    values[path[-1]] = value
