"""The callback bus: every observer of a run, called in a fixed order.

Events, in the order of a run (`trainer` is always the first argument):

    run_start()                    before the first step, and again after a resume
    resumed()                      after run_start where a run goes on: for what it was interrupted in
    phase_start(phase)             phase: the name of the phase that begins
    episode(ret, length, info)     a training episode ended; ret is the raw return
    update(metrics)                after each `learner.update`
    iteration()                    after each collect + update round: the moment where everything is consistent
    log(row)                       a row of metrics is to be written (see Trainer.log)
    evaluating(done)               an evaluation is under way, for those who show it: how far it is, such as "300 steps"
    evaluated(metrics)             an evaluation was made; "eval/return_mean" and friends as floats
    video(path, fps)               a video of the policy was written, at `path` below the run folder, with `fps` frames
                                   per second; for loggers that can show it
    checkpoint(path)               a checkpoint was written
    run_end()                      after the last step, also when interrupted
    run_failed(error)              instead of run_end where an error ends the run: close what is open, and write nothing

Within one event, callbacks run by `order`: low first. A callback that is not `critical` and raises, or calls sys.exit,
is switched off with a warning; the run goes on.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from rlx.errors import RunFailed
from rlx.restoring import check_like

if TYPE_CHECKING:
    from rlx.trainers.trainer import Trainer

log = logging.getLogger("rlx")

EVENTS = (
    "run_start", "resumed", "phase_start", "episode", "update", "iteration", "log", "evaluating", "evaluated", "video",
    "checkpoint", "run_end", "run_failed",
)  # fmt: skip


class Callback:
    """An observer: defines `on_<event>(self, trainer, ...)` for the events it cares about."""

    order: int = 50  # 0-29 collect metrics, 30-39 evaluate, 40-59 decide, 60-79 show, 90 save
    critical: bool = True  # False: an exception switches it off instead of ending the run

    def check(self, trainer: Trainer) -> None:
        """Refuse what cannot work, with a UserError; all is built and restored by now, and no file written."""

    def state(self) -> dict[str, Any]:
        """What a checkpoint has to keep, as JSON."""
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        """Take back what `state` gave."""

    def upholds(self, state: dict[str, Any]) -> bool:
        """It has stopped the run that is now resumed, and `state` is what it kept then: should the run stay stopped?

        Asked of those whose state has the reason that they gave, as "stopped".
        """
        return True


class CallbackBus:
    """Calls `on_<event>` of every callback that has one."""

    def __init__(self, callbacks: dict[str, Callback]):
        self.callbacks = dict(sorted(callbacks.items(), key=lambda item: item[1].order))
        self._handlers: dict[str, list[tuple[str, Callback, Any]]] = {}
        self._bind()

    def _bind(self) -> None:
        self._handlers = {
            event: [(n, c, getattr(c, f"on_{event}")) for n, c in self.callbacks.items() if hasattr(c, f"on_{event}")]
            for event in EVENTS
        }

    def check(self, trainer: Trainer) -> None:
        for callback in self.callbacks.values():
            callback.check(trainer)

    def emit(self, event: str, trainer: Trainer, *args: Any) -> None:
        for name, callback, handler in self._handlers[event]:
            try:
                handler(trainer, *args)
            except (Exception, SystemExit) as error:
                reason = f"sys.exit({error.code!r})" if isinstance(error, SystemExit) else str(error)
                if callback.critical and event != "run_failed":
                    if isinstance(error, SystemExit):
                        raise RunFailed(f"{name} called {reason} in on_{event}. {trainer.how_to_resume()}") from error
                    raise
                what_now = "the run has ended" if event == "run_failed" else "the run goes on"
                log.warning("%s failed and is switched off; %s: %s", name, what_now, reason)
                del self.callbacks[name]
                self._bind()

    def state(self) -> dict[str, Any]:
        return {name: callback.state() for name, callback in self.callbacks.items()}

    def upholds(self, reason: str, state: dict[str, Any]) -> bool:
        """Does the reason for which a run was stopped still hold, judging by what the callbacks kept then?

        A callback that has been taken away since no longer holds on to its reason.
        """
        owners = [name for name, kept in state.items() if isinstance(kept, dict) and kept.get("stopped") == reason]
        there = [name for name in owners if name in self.callbacks]
        return not owners or any(self.callbacks[name].upholds(state[name]) for name in there)

    def load_state(self, state: dict[str, Any]) -> None:
        if not isinstance(state, dict):
            raise ValueError("it has no states of callbacks")
        for name, callback in self.callbacks.items():
            if name in state:
                if type(callback).__module__.startswith("rlx."):  # what others keep is theirs to check
                    check_like(state[name], callback.state(), name)
                callback.load_state(state[name])
