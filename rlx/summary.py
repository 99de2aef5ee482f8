"""What a run came to: summary.json, and whether there is anything left to do."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import torch

from rlx.config import as_written
from rlx.files import read_bounded
from rlx.nn.native.choose import is_native
from rlx.reporting import counted
from rlx.system import INTERRUPTED, versions
from rlx.trainers.trainer import BUDGETS

if TYPE_CHECKING:
    from rlx.trainers.trainer import Trainer


def summarise(trainer: Trainer) -> dict[str, Any]:
    """The contract of summary.json."""
    state, cfg = trainer.state, trainer.cfg
    return {
        "algo": as_written(cfg).algo.name,
        "env": cfg.env.id,
        "seed": int(cfg.seed),
        "env_steps": state.env_steps,
        "updates": state.updates,
        "epoch": state.epoch,
        "stop_reason": state.stop_reason,
        "eval_return_mean": state.last_eval,
        "best_eval_return_mean": state.best,
        "wall_time_s": round(state.wall_time, 3),
        "resumed": trainer.resumed,
        "exact": state.exact,
        "threads": torch.get_num_threads(),
        "native": is_native(),
        "versions": versions(),
    }


def summary_of(trainer: Trainer) -> dict[str, Any] | None:
    """The summary in the run folder, if it is of the checkpoint that was restored and nobody interrupted the run."""
    try:
        summary = json.loads(read_bounded(trainer.run_dir / "summary.json", follow=False))
        counters = [summary[key] for key in ("env_steps", "updates")]
        numbers = [summary[key] for key in ("wall_time_s", "eval_return_mean", "best_eval_return_mean")]
        names = [summary[key] for key in ("algo", "env", "stop_reason")]
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None
    state = trainer.state
    ours = counters == [state.env_steps, state.updates] and names[-1] not in INTERRUPTED
    whole = all(isinstance(x, float | int) or (i and x is None) for i, x in enumerate(numbers))  # it took some time
    whole = whole and all(isinstance(x, str) for x in names)
    return summary if ours and whole and {"seed", "exact"} <= summary.keys() else None


def nothing_to_do(trainer: Trainer) -> str:
    state, reason = trainer.state, trainer.state.stop_reason
    online = state.env_steps > 0
    made = counted(state.env_steps, "env step") if online else counted(state.updates, "update")
    if reason and reason not in BUDGETS:
        return (
            f"{trainer.run_dir} was ended by {reason} at {made}; nothing to do. Change that rule, or remove it, to "
            "go on."
        )
    key, larger = ("max_env_steps", 2 * state.env_steps) if online else ("max_updates", 2 * state.updates)
    return f"{trainer.run_dir} has finished ({made}); nothing to do. Give a larger budget, e.g. trainer.{key}={larger}."
