"""What to say where a run fails: what happened, where the run was, and how to go on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rlx.envs.vector import EnvFault, NonFiniteAction
from rlx.errors import RunFailed, UserError
from rlx.files import write_atomically
from rlx.learner import is_learning_rate
from rlx.reporting import counted
from rlx.run_folder import ERROR_FILE

if TYPE_CHECKING:
    from rlx.trainers.guard import Guard
    from rlx.trainers.trainer import Trainer


def explained(trainer: Trainer, error: BaseException, guard: Guard) -> BaseException:
    """What to raise for an error: a sentence for what an env or divergence did, and the error itself for others."""
    if isinstance(error, EnvFault):
        return _failed(trainer, f"{error}{_keep_trace(trainer, error)}")
    known = isinstance(error, (RunFailed, UserError)) and not isinstance(error, NonFiniteAction)
    if known or not isinstance(error, Exception):
        return error
    # distributions and solvers have words of their own for weights that are not finite
    problem = guard.problem(trainer.state.updates, anew=True)
    if problem is None and isinstance(error, NonFiniteAction):
        problem = "the policy's action is not finite, although its weights are"
    return diverged(trainer, problem) if problem is not None else error


def diverged(trainer: Trainer, problem: str) -> RunFailed:
    rates = {n: float(v) for n, v in trainer.cfg.algo.items() if is_learning_rate(str(n)) and v}
    lower = [f"algo.{name}={min(rate / 10, 3e-4):g}" for name, rate in rates.items()]
    return _failed(trainer, f"Training diverged: {problem}", "with a lower learning rate", lower)


def _failed(trainer: Trainer, problem: str, how: str = "", overrides: Sequence[str] = ()) -> RunFailed:
    state = trainer.state
    done = f"{counted(state.env_steps, 'env step')} and {counted(state.updates, 'update')}"
    where = f"The run ended after {done}."
    return RunFailed(f"{problem}. {where} {how_to_resume(trainer, how, overrides)}")


def _keep_trace(trainer: Trainer, fault: EnvFault) -> str:
    """Write the env's traceback to the run folder; where it is, as the end of a sentence."""
    file = trainer.run_dir / ERROR_FILE
    if not fault.trace:
        return ""
    try:
        write_atomically(file, fault.trace.encode())
    except OSError:  # a full disk must not hide what happened
        return ""
    return f"; its traceback is in {file}"


def how_to_resume(trainer: Trainer, how: str = "", overrides: Sequence[str] = ()) -> str:
    """The last checkpoint, and what to type to go on from it."""
    command = " ".join(["python -m rlx resume", str(trainer.run_dir), *overrides])
    how = f" {how}" if how else ""
    saved = trainer.checkpoints.steps()
    if not saved:
        return f"There is no checkpoint yet; `{command}` starts from the beginning{how}."
    return f"The last checkpoint is {saved[0].name}; `{command}` goes on from there{how}."
