"""rlx: Hydra-configured reinforcement learning experiments, online, offline and offline-to-online.

import rlx
result = rlx.train("algo=sac", "env=pendulum", seed=1)
policy = rlx.load(result.run_dir)
policy.act(obs)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlx.data.sources import load_transition_dataset
    from rlx.errors import RunFailed, UserError
    from rlx.policy import Policy
    from rlx.workflows import Result, collect, evaluate, inspect_data, load, predict, resume, train

__version__ = "0.1.0"

# imported when they are first asked for, so that `import rlx` costs nothing
_HOMES = {
    "train": "rlx.workflows",
    "resume": "rlx.workflows",
    "evaluate": "rlx.workflows",
    "predict": "rlx.workflows",
    "load": "rlx.workflows",
    "collect": "rlx.workflows",
    "inspect_data": "rlx.workflows",
    "load_transition_dataset": "rlx.data.sources",
    "Result": "rlx.workflows",
    "Policy": "rlx.policy",
    "RunFailed": "rlx.errors",
    "UserError": "rlx.errors",
}
__all__ = [
    "Policy",
    "Result",
    "RunFailed",
    "UserError",
    "collect",
    "evaluate",
    "inspect_data",
    "load",
    "load_transition_dataset",
    "predict",
    "resume",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'rlx' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
