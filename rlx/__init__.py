"""rlx: Hydra-configured reinforcement learning experiments, online, offline and offline-to-online.

    import rlx

    result = rlx.train("algo=sac", "env=pendulum", seed=1)    # train; overrides as on the command line
    rlx.evaluate(result.run_dir, episodes=20)                 # raw returns of the best policy
    policy = rlx.load(result.run_dir)                         # a Policy: policy.act(obs) in the env's own units
    rlx.resume(result.run_dir, "trainer.max_env_steps=40000") # continue exactly where it ended

What there is:

    train, resume               run experiments; each returns a Result
    evaluate, load, predict     use what was trained
    watch                       see it at work in a window; evaluate(..., video="x.mp4") records it
    export                      a folder with an ONNX graph, or the weights, for other tools
    collect, inspect_data       make a Minari dataset from a policy; look into a dataset
    runs                        the runs below a folder and their metrics, as plain columns
    load_transition_dataset     a TransitionDataset from a file, a run or a Minari id
    Result, Policy, TransitionDataset, UserError, RunFailed

`help(rlx.train)` says how envs and datasets are given as Python objects; `python -m rlx --help` is the command line.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlx.data.dataset import TransitionDataset
    from rlx.data.sources import load_transition_dataset
    from rlx.errors import RunFailed, UserError
    from rlx.policy import Policy
    from rlx.report.tables import runs
    from rlx.workflows import Result, collect, evaluate, export, inspect_data, load, predict, resume, train, watch

__version__ = "0.1.0"

# imported when they are first asked for, so that `import rlx` costs nothing
_HOMES = {
    "train": "rlx.workflows",
    "resume": "rlx.workflows",
    "evaluate": "rlx.workflows",
    "predict": "rlx.workflows",
    "load": "rlx.workflows",
    "watch": "rlx.workflows",
    "export": "rlx.workflows",
    "collect": "rlx.workflows",
    "inspect_data": "rlx.workflows",
    "runs": "rlx.report.tables",
    "load_transition_dataset": "rlx.data.sources",
    "Result": "rlx.workflows",
    "Policy": "rlx.policy",
    "RunFailed": "rlx.errors",
    "TransitionDataset": "rlx.data.dataset",
    "UserError": "rlx.errors",
}
__all__ = [
    "Policy",
    "Result",
    "RunFailed",
    "TransitionDataset",
    "UserError",
    "collect",
    "evaluate",
    "export",
    "inspect_data",
    "load",
    "load_transition_dataset",
    "predict",
    "resume",
    "runs",
    "train",
    "watch",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'rlx' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*__all__, *(name for name in globals() if name.startswith("__"))])
