"""From a restored learner to the folder of an export."""

from __future__ import annotations

import math
from contextlib import closing
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from rlx.checkpoint import CheckpointData
from rlx.config import PYTHON, as_written, parse, refuse_foreign_env
from rlx.envs import EnvConfig, make_env
from rlx.errors import RunFailed, UserError
from rlx.exports.card import Simulator, card, command, example, simulator_of
from rlx.exports.folder import check_target, spec_as_json, write_export
from rlx.exports.graph import PolicyGraph, to_onnx
from rlx.files import read_bounded
from rlx.learner import Learner
from rlx.run_folder import RESUMES
from rlx.system import versions

FORMATS = ("onnx", "torch")
PRIVATE = ("logger", "run_dir", "trust")  # keys of a config that say nothing of the policy


def export_policy(
    folder: Path,
    learner: Learner,
    cfg: DictConfig,
    saved: CheckpointData,
    run_dir: Path | None,
    onnx: bool,
    trust: tuple[str, ...],
    licence: str | None,
) -> None:
    """Write the folder of a policy; `run_dir` tells how it was trained, where it is known."""
    check_target(folder)
    graph = PolicyGraph(learner)
    model = to_onnx(graph) if onnx else None
    text = as_written(cfg)
    trained = saved.state.get("trainer") or {}
    score = trained.get("last_eval", trained.get("return_mean"))
    about: dict[str, Any] = {
        "algo": str(text.algo.name),
        "env": learner.spec.env_id,
        "inputs": [port._asdict() for port in graph.inputs()],
        "outputs": [port._asdict() for port in graph.outputs()],
        "spec": spec_as_json(learner.spec),
        "learner": learner.counters(),
        "native": bool(saved.state.get("native", False)),
        "trained": {
            "env_steps": int(trained.get("env_steps", 0)),
            "updates": learner.updates,
            "return_mean": float(score) if isinstance(score, int | float) and math.isfinite(score) else None,
        },
        "commands": commands_of(run_dir),
        "versions": versions(),
        "config": {key: value for key, value in parse(saved.config).items() if key not in PRIVATE},
    }
    shown_env = simulator(cfg, learner, trust)
    write_export(folder, learner, about, card(about, onnx, licence), example(onnx, shown_env, graph.inputs()), model)


def simulator(cfg: DictConfig, learner: Learner, trust: tuple[str, ...]) -> Simulator | None:
    """The env as others make it; None where it is not at hand, or gives something else than the policy takes."""
    env_cfg: EnvConfig = OmegaConf.to_object(cfg.env)  # type: ignore[assignment]
    if env_cfg.id.startswith(PYTHON):
        return None
    try:
        refuse_foreign_env(cfg, trust)
        with closing(make_env(env_cfg, trust)) as env:
            return simulator_of(env, env_cfg, learner.spec)
    except (UserError, RunFailed):  # env=none, or a package that is not installed
        return None


def commands_of(run_dir: Path | None) -> list[str]:
    """What was typed to train a run, and to resume it; empty where it is not known."""
    if run_dir is None:
        return []
    first = _read_list(run_dir / "overrides.yaml")
    if first is None or not all(isinstance(override, str) for override in first):
        return []
    found = [command(first)]
    for entry in _read_list(run_dir / RESUMES) or []:
        typed = entry.get("overrides") if isinstance(entry, dict) else None
        if isinstance(typed, list) and all(isinstance(override, str) for override in typed):
            found.append(command(["resume", "RUN", *typed]))
    return found


def _read_list(path: Path) -> list[Any] | None:
    """A list in a YAML file of a run; None if there is none."""
    try:
        values = parse(read_bounded(path, follow=False).decode())
    except (OSError, ValueError, UserError):
        return None
    return values if isinstance(values, list) else None
