"""The folder of an export: written whole or not at all, and read back as data.

    policy.json          what it is: config, Spec, inputs and outputs, how it was trained; sha256 and size of the others
    policy.safetensors   the weights
    policy.onnx          the policy as one graph, where asked for
    README.md            a card for people and for the Hugging Face Hub
    example.py           the policy at work, in ten lines

README.md and example.py are the user's to edit. Reading takes policy.json and policy.safetensors alone: regular files
of the sizes that were written, and nothing in them is followed, imported or unpickled.
"""

from __future__ import annotations

import json
import math
import os
import re
from pathlib import Path
from typing import Any

import yaml

from rlx.checkpoint import (
    EXPORT,
    MALFORMED,
    CheckpointData,
    DamagedCheckpoint,
    check_room,
    dump,
    entry_of,
    one_line,
    read_tensors,
    spec_from,
    verified,
)
from rlx.config.text import CONFIG_LIMIT
from rlx.errors import UserError
from rlx.files import fsync_folder, read_bounded, remove, write_atomically
from rlx.learner import Learner
from rlx.run_folder import refuse_link
from rlx.types import Spec

FORMAT = 1
WEIGHTS, ONNX, CARD, EXAMPLE = "policy.safetensors", "policy.onnx", "README.md", "example.py"
NAMES = frozenset({EXPORT, WEIGHTS, ONNX, CARD, EXAMPLE})
LIMIT = 4 * CONFIG_LIMIT  # bytes of policy.json


def spec_as_json(spec: Spec) -> dict[str, Any]:
    """A Spec in plain JSON, which has no infinity: null where an action has no bound."""
    bounds = ("action_low", "action_high")
    values = spec._asdict()
    return values | {name: [x if math.isfinite(x) else None for x in values[name]] for name in bounds}


def _spec(raw: dict[str, Any]) -> Spec:
    for name, unbounded in (("action_low", -math.inf), ("action_high", math.inf)):
        raw[name] = [unbounded if x is None else x for x in raw[name]]
    return spec_from(raw)


def write_export(
    folder: Path, learner: Learner, about: dict[str, Any], card: str, example: str, onnx: bytes | None
) -> None:
    """Write the folder; one that an earlier export has left there is replaced."""
    check_target(folder)
    files = {WEIGHTS: dump(dict(learner.state_dict()))}
    if onnx is not None:
        files[ONNX] = onnx
    manifest = {"format": FORMAT, **about, "files": {name: entry_of(data) for name, data in files.items()}}
    text = json.dumps(manifest, indent=1, allow_nan=False, ensure_ascii=False)
    files |= {CARD: card.encode(), EXAMPLE: example.encode(), EXPORT: text.encode()}
    beside = folder.with_name(f".{folder.name}.writing")
    try:
        remove(beside)
        beside.mkdir(parents=True)
        for name, data in files.items():
            write_atomically(beside / name, data)
        remove(folder)
        os.replace(beside, folder)
        fsync_folder(folder.parent)
    except OSError as error:
        raise UserError(f"{folder} cannot be written ({error.strerror}); choose another folder (--out DIR).") from error


def check_target(folder: Path) -> None:
    """Refuse to replace what no export has written."""
    refuse_link(folder)
    if not folder.exists():
        return
    inside = {path.name for path in folder.iterdir()} if folder.is_dir() else {folder.name}
    if inside - NAMES or (inside and EXPORT not in inside):
        raise UserError(f"{folder} holds other files than those of an export; choose another folder (--out DIR).")


def read_export(folder: Path) -> CheckpointData:
    """Read and verify what `write_export` has written; DamagedCheckpoint if it is anything else."""
    try:
        about = json.loads(read_bounded(folder / EXPORT, LIMIT, follow=False))
        if about["format"] != FORMAT:
            raise UserError(f"{folder} has export format {about['format']!r:.20}; this rlx reads format {FORMAT}.")
        entry = about["files"][WEIGHTS]
        size, digest = entry["size"], entry["sha256"]
        if type(size) is not int or size < 0 or not re.fullmatch("[0-9a-f]{64}", digest):
            raise ValueError(f"it says nothing of {WEIGHTS}")
        spec, counters = _spec(about["spec"]), about["learner"]
        if "updates" not in counters or any(type(n) is not int for n in counters.values()):
            raise ValueError("the learner's counters are not counters")
        config = yaml.safe_dump(about["config"], sort_keys=False, allow_unicode=True)
    except MALFORMED as error:
        raise DamagedCheckpoint(f"{EXPORT} holds what rlx does not write ({one_line(error)})") from error
    check_room(folder, {WEIGHTS: size})
    data = verified(folder / WEIGHTS, entry)
    try:
        tensors = {f"model.{name}": tensor for name, tensor in read_tensors(data).items()}
    except MALFORMED as error:
        raise DamagedCheckpoint(f"{WEIGHTS} holds what rlx does not write ({one_line(error)})") from error
    native = about.get("native") is True  # false in older exports, which do not say
    state = {"learner": counters, "trainer": about.get("trained") or {}, "native": native}
    return CheckpointData(config, spec, state, {"learner": tensors}, path=folder)
