"""The trainer: one loop for every regime.

Words, as they are used everywhere:

    env step    one transition of one environment; a vector step of N envs is N env steps
    update      one call of `learner.update`
    iteration   collect, then update: the unit of the loop. At its end everything is consistent, and callbacks act
    phase       a stretch of iterations under the same rules (see Phase); a regime is an ordered dict of phases
    steps       the clock of the regime: env steps where something is collected, updates where nothing is
    epoch       `epoch_length` steps

Nothing here computes gradients and nothing here writes files: learners and callbacks do.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rlx.callbacks import crossed
from rlx.callbacks.bus import CallbackBus
from rlx.callbacks.metrics import TrainMetrics
from rlx.checkpoint import CheckpointData, CheckpointStore
from rlx.collectors.base import RANDOM_STEPS, Collector
from rlx.data.frames import is_kept_as_frames
from rlx.data.reader import Reader
from rlx.data.replay import DatasetReplay, Mixture, Replay
from rlx.data.rollout import RolloutBuffer
from rlx.envs.evaluation import MOST_EPISODES, evaluate_learner
from rlx.errors import UserError, require, shown
from rlx.fields import number
from rlx.learner import Learner
from rlx.reporting import counted
from rlx.rewards import RewardTransform
from rlx.run_folder import ERROR_FILE
from rlx.schedules import MIXTURE
from rlx.system import INTERRUPTED, PAUSED
from rlx.trainers.failures import diverged, explained, how_to_resume
from rlx.trainers.guard import Guard
from rlx.trainers.snapshot import Snapshot
from rlx.trainers.state import TrainerState
from rlx.types import Batch, Rollout, Spec, Windows

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from rlx.data.augment import Augment
    from rlx.data.dataset import TransitionDataset
    from rlx.envs.factory import EnvConfig
    from rlx.envs.vector import VectorEnv

TOLD_EVERY = 100  # steps of an evaluation
BUDGETS = ("max_env_steps", "max_updates", "max_epochs", "max_seconds", "completed")


@dataclass
class Phase:
    """Repeat {collect env steps, make updates} until the budget is spent."""

    collect: int = number(0, least=0, read_once=True)  # vector steps per iteration; 0: offline, one update each
    on_policy: bool = False  # learn from each rollout once instead of from a replay
    updates: int | None = number(None, least=0, read_once=True)  # budget in updates; null: until the run's ends it
    env_steps: int | None = number(None, least=0, read_once=True)  # budget in env steps; null: until the run's ends it
    updates_per_step: float = number(1.0, above=0, read_once=True)  # updates per env step once learning has started
    random_steps: int = number(0, least=0, read_once=True)  # env steps with random actions when the phase begins
    start_after: int = number(0, least=0, read_once=True)  # env steps before the first update
    min_buffer_size: int = number(0, least=0, read_once=True)  # transitions in the replay before the first update
    offline_fraction: float = number(0.0, least=0, most=1)  # share of every batch drawn from the dataset


@dataclass
class TrainerConfig:
    """Budgets and intervals, in steps of the regime, and the phases that make a regime.

    Keys that are about phases, such as `offline_batch_ratio`, are interpolated into them; only phases are read.
    """

    _target_: str = "rlx.trainers.trainer.Trainer"
    regime: str = ""  # how the regime is called: off_policy, on_policy, offline, offline_to_online
    max_env_steps: int | None = number(None, least=0)  # stop after so many env steps
    max_updates: int | None = number(None, least=0)  # stop after so many updates
    max_epochs: int | None = number(None, least=0)  # stop after so many epochs
    max_seconds: float | None = number(None, least=0)  # stop after so much wall time
    pause_at: int | None = number(None, least=1)  # save and stop after so many steps; a resume goes on
    epoch_length: int = number(1000, least=1)  # steps in an epoch
    eval_interval: int = number(1000, least=0)  # steps between evaluations; 0: only at the end
    eval_episodes: int = number(10, least=1, most=MOST_EPISODES)  # episodes of each evaluation
    checkpoint_interval: int = number(5000, least=0)  # steps between checkpoints; 0: only at the end
    checkpoint_compression: str = "auto"  # of a replay: zstd, none; auto: zstd where it keeps images
    keep_checkpoints: int = number(2, least=1)  # periodic checkpoints kept, at least 1
    log_interval: int = number(500, least=1)  # steps between rows of training metrics
    train_frequency: int = number(1, least=1)  # vector steps between updates
    gradient_updates_per_step: float = number(1.0, above=0)  # updates per env step (UTD)
    learning_starts: int = number(1000, least=0)  # env steps with random actions, and no update before
    warmup_steps: int = number(0, least=0)  # env steps before the first update
    min_buffer_size: int = number(0, least=0)  # transitions in the replay before the first update
    rollout_length: int = number(2048, least=1)  # vector steps of an on-policy rollout
    pretrain_updates: int = number(0, least=0)  # offline updates before going online
    offline_batch_ratio: float = number(0.0, least=0, most=1)  # share of prior data in every batch while online
    phases: dict[str, Phase] = field(default_factory=dict)


def total_steps(plan: TrainerConfig) -> int | None:
    """The budget on the clock of the regime; None if only wall time or a rule ends the run."""
    total = 0
    for phase in plan.phases.values():
        if phase.collect == 0:
            limits = [x for x in (phase.updates, plan.max_updates) if x is not None]
        else:
            limits = [x for x in (phase.env_steps, plan.max_env_steps) if x is not None]
        if not limits:
            total = 0
            break
        total += min(limits)
    epochs = plan.max_epochs * plan.epoch_length if plan.max_epochs is not None else 0
    return min((x for x in (total, epochs) if x), default=None)


class Trainer:
    """Runs phases: collect -> sample -> update, and tells the bus."""

    def __init__(
        self,
        plan: TrainerConfig,
        cfg: DictConfig,
        learner: Learner,
        bus: CallbackBus,
        reward: RewardTransform,
        run_dir: Path,
        collector: Collector | None = None,
        eval_envs: VectorEnv | None = None,
        replay: Replay | None = None,
        prior: Reader | None = None,
        dataset: TransitionDataset | None = None,
        env_config: EnvConfig | None = None,
        augment: Augment | None = None,
    ):
        self.plan = plan  # budgets, intervals and phases: the group `trainer`
        self.cfg = cfg  # of the whole run
        self.learner = learner
        self.spec: Spec = learner.spec
        self.bus = bus
        self.reward = reward
        self.run_dir = run_dir
        self.dataset = dataset
        self.env_config = env_config  # to make further envs by; None: there is no simulator
        self.replay = replay
        self.prior = prior
        self.augment = augment  # of minibatches, if any
        self.state = TrainerState()
        self.resumed = False
        self.interrupt: str | None = None  # set by a signal: end after the step under way
        self._unfinished = False  # an evaluation was interrupted
        packed = {"zstd": True, "none": False, "auto": any(is_kept_as_frames(box) for box in self.spec.obs.values())}
        require(
            plan.checkpoint_compression in packed,
            f"trainer.checkpoint_compression must be one of {', '.join(packed)} (it is "
            f"{shown(plan.checkpoint_compression)}).",
        )
        self.checkpoints = CheckpointStore(
            run_dir / "checkpoints", plan.keep_checkpoints, packed[plan.checkpoint_compression]
        )
        self.collector = collector
        self._eval_envs = eval_envs
        self._open = [part for part in (collector, eval_envs) if part is not None]
        self.rollout: RolloutBuffer | None = None
        self._mixture: Mixture | None = None
        self._guard = Guard(learner, self._pending_metrics)
        self._looked = 0  # steps when it last looked
        self.device = next(iter(learner.parameters())).device
        self._clock = time.perf_counter()
        lengths = [p.collect for p in plan.phases.values() if p.on_policy]  # all the same
        if lengths and collector is not None:
            self.rollout = RolloutBuffer(lengths[0], collector.num_envs, self.spec)
        self._snapshot = Snapshot(self)

    # -- the loop --------------------------------------------------------------------------------------------------

    def run(self) -> TrainerState:
        """Run what is left of the phases; returns the state at the end. RunFailed says why it could not."""
        try:
            return self._run_phases()
        except BaseException as error:
            failure = explained(self, error, self._guard)
            self.bus.emit("run_failed", self, failure)
            if failure is error:
                raise
            raise failure from error

    def _run_phases(self) -> TrainerState:
        self._clock = time.perf_counter() - self.state.wall_time
        (self.run_dir / ERROR_FILE).unlink(missing_ok=True)  # of a session before this one
        self._looked = self.state.steps
        self._refuse_poison()
        self.bus.emit("run_start", self)
        if self.resumed:
            self.bus.emit("resumed", self)
        self._check_budgets()
        order = list(self.plan.phases)
        names = [name for name in order if self.plan.phases[name].updates != 0]
        if not self.state.phase:
            self._enter(names[0])
        at = order.index(self.state.phase)  # which may have been left without updates since
        for name in [name for name in names if order.index(name) >= at]:
            if self.state.should_stop:
                break
            if name != self.state.phase:
                self._enter(name)
            self._run(self.plan.phases[name])
        else:
            self.stop("completed")
        self._tick()
        self._refuse_poison()
        self.bus.emit("run_end", self)
        if self._unfinished:
            self.state.stop_reason = str(self.interrupt)  # of this session; checkpoints keep why training stopped
        return self.state

    def _enter(self, name: str) -> None:
        self.state.phase, self.state.phase_env_steps, self.state.phase_updates = name, 0, 0
        self.bus.emit("phase_start", self, name)

    def _run(self, phase: Phase) -> None:
        if self._spent(phase):
            return
        source: Any = self._source(phase)
        state = self.state
        self._load_collector(phase)
        while not state.should_stop and not self._spent(phase):
            self._collect(phase)
            if self.interrupt and state.collected < phase.collect and self._room(phase):
                self.stop(self.interrupt)
                return
            version = state.updates
            for batch in self._batches(phase, source):
                metrics = self.learner.update(batch)
                if isinstance(batch, Batch) and batch.index is not None:
                    source.prioritize(batch.index, self.learner.td_error)
                state.updates += 1
                state.phase_updates += 1
                if phase.collect == 0:
                    state.steps += 1
                self._guard.note(metrics)
                self.bus.emit("update", self, metrics)
            if state.updates > version:
                self._load_collector(phase)
            state.collected = 0
            state.epoch = state.steps // self.plan.epoch_length
            self._tick()
            self._check_budgets()
            if crossed(self._looked, state.steps, self.plan.log_interval):
                self._looked = state.steps
                self._refuse_poison()
            self.bus.emit("iteration", self)
            if self.interrupt:
                self.stop(self.interrupt)

    def _source(self, phase: Phase) -> Reader:
        """Where the batches of a phase come from."""
        if phase.on_policy:
            source: Reader | None = self.rollout
        elif phase.collect == 0:
            source = self.prior
        elif self._mixes(phase) and self.replay is not None and isinstance(self.prior, DatasetReplay):
            source = self._mixture = Mixture(self.replay, self.prior, phase.offline_fraction)
        else:
            source = self.replay
        if source is None:
            raise UserError(f"Phase {self.state.phase!r} has nothing to learn from; give a dataset, or let it collect.")
        return source

    def _mixes(self, phase: Phase) -> bool:
        """Do its batches hold prior data, now or later?"""
        return phase.offline_fraction > 0 or not MIXTURE.isdisjoint(self.cfg.schedule.targets)

    def _batches(self, phase: Phase, source: Reader) -> Iterator[Batch | Windows | Rollout]:
        """The batches of this iteration: as many as are due."""
        if isinstance(source, Mixture):
            source.fraction = phase.offline_fraction  # which a schedule may have moved
        due = self._due(phase)
        if due == 0 or not source.ready:
            return iter(())
        batches: Any = source.sample(self.learner.cfg.batch_size, due)
        if self.augment is not None:
            batches = map(self.augment, batches)
        return batches if self.device.type == "cpu" else (self._to_device(b) for b in batches)

    def _due(self, phase: Phase) -> int:
        """Updates to make now. Computed from counters alone, so a resume makes neither more nor fewer."""
        state = self.state
        due = 1
        if phase.collect > 0 and not phase.on_policy:
            first = max(phase.random_steps, phase.start_after, phase.min_buffer_size)
            learning_steps = state.phase_env_steps - first
            due = math.floor(phase.updates_per_step * max(0, learning_steps) + 1e-9) - state.phase_updates
        for limit, made in ((phase.updates, state.phase_updates), (self.plan.max_updates, state.updates)):
            if limit is not None:
                due = min(due, limit - made)
        return max(0, due)

    def _spent(self, phase: Phase) -> bool:
        if phase.updates is not None and self.state.phase_updates >= phase.updates:
            return True
        return phase.collect > 0 and not self._room(phase)

    def _load_collector(self, phase: Phase) -> None:
        """Have the newest weights act."""
        if self.collector is not None and phase.collect > 0:
            random_steps = max(0, phase.random_steps - self.state.phase_env_steps)
            self.collector.load(self.learner.state_dict, self.state.updates, {RANDOM_STEPS: random_steps})

    def _collect(self, phase: Phase) -> None:
        """Act until the iteration has its steps. Stops early at the budget, or at an interrupt."""
        if phase.collect == 0:
            return
        state, collector = self.state, self.collector
        assert collector is not None  # a phase that collects has one
        store: Any = self.rollout if phase.on_policy else self.replay
        left = min(phase.collect - state.collected, self._room(phase))
        while left > 0 and not self.interrupt:
            steps = collector.collect(left)
            if phase.on_policy:
                store.add(*steps[:6], steps.carry, steps.lost_life)
            else:
                store.add(*steps[:6])
            taken = len(steps.reward)
            left -= taken // collector.num_envs
            state.collected += taken // collector.num_envs
            state.env_steps += taken
            state.phase_env_steps += taken
            state.steps += taken
            for episode in steps.episodes:
                state.episodes += 1
                self.bus.emit("episode", self, *episode)

    def _room(self, phase: Phase) -> int:
        """How many more vector steps the budgets allow."""
        state, plan = self.state, self.plan
        limits = ((phase.env_steps, state.phase_env_steps), (plan.max_env_steps, state.env_steps))
        left = [limit - taken for limit, taken in limits if limit is not None]
        if plan.max_epochs is not None:
            left.append(plan.max_epochs * plan.epoch_length - state.steps)
        return max(0, min(left) // self._num_envs) if left else sys.maxsize

    @property
    def _num_envs(self) -> int:
        return self.collector.num_envs if self.collector is not None else 1

    def _to_device(self, value: Any) -> Any:
        """A batch, or a part of one, where the learner is."""
        if isinstance(value, Batch | Rollout | Windows):
            return type(value)(*(self._to_device(part) for part in value))
        if isinstance(value, tuple):
            return tuple(self._to_device(part) for part in value)
        if isinstance(value, dict):
            return {name: self._to_device(part) for name, part in value.items()}
        return value if value is None else value.to(self.device)

    # -- budgets ---------------------------------------------------------------------------------------------------

    def _check_budgets(self) -> None:
        """Stop before the first step that would go beyond a budget."""
        state, plan = self.state, self.plan
        phase = plan.phases.get(state.phase)
        n = self._num_envs if phase and phase.collect else 1
        if plan.max_updates is not None and state.updates >= plan.max_updates:
            self.stop("max_updates")
        if plan.max_env_steps is not None and state.env_steps + n > plan.max_env_steps:
            self.stop("max_env_steps")
        if plan.max_epochs is not None and state.steps + n > plan.max_epochs * plan.epoch_length:
            self.stop("max_epochs")
        if plan.max_seconds is not None and state.wall_time >= plan.max_seconds:
            self.stop("max_seconds")
        if plan.pause_at is not None and state.steps >= plan.pause_at:
            self.stop(PAUSED)

    def finished(self) -> bool:
        """Asked after a restore: would `run` make no step and no update? A budget that is spent becomes the reason."""
        self._check_budgets()
        *_, last = (name for name, phase in self.plan.phases.items() if phase.updates != 0)
        return self.state.should_stop or (self.state.phase == last and self._spent(self.plan.phases[last]))

    def _tick(self) -> None:
        self.state.wall_time = time.perf_counter() - self._clock

    @property
    def total_steps(self) -> int | None:
        """The budget on the clock of the regime; None if only wall time or a rule ends the run."""
        return total_steps(self.plan)

    # -- failures --------------------------------------------------------------------------------------------------

    def _refuse_poison(self) -> None:
        """End the run if a weight is no longer finite: before a checkpoint, an evaluation or a row would hold it."""
        problem = self._guard.problem(self.state.updates)
        if problem is not None:
            raise diverged(self, problem)

    def _pending_metrics(self) -> dict[str, list[float]]:
        """The metrics of the updates since the last row, where there are rows at all."""
        return next((c.pending() for c in self.bus.callbacks.values() if isinstance(c, TrainMetrics)), {})

    def how_to_resume(self) -> str:
        """The last checkpoint, and what to type to go on from it."""
        return how_to_resume(self)

    # -- what callbacks may ask for --------------------------------------------------------------------------------

    def stop(self, reason: str) -> None:
        """End the run after this iteration; the first reason stays."""
        if not self.state.should_stop:
            self.state.should_stop, self.state.stop_reason = True, reason

    def log(self, kind: str, metrics: dict[str, float]) -> None:
        state = self.state
        row = {"kind": kind, "env_steps": state.env_steps, "updates": state.updates, "epoch": state.epoch}
        if kind == "train" and self._mixture is not None:
            size = self.learner.cfg.batch_size
            metrics = {**metrics, "data/prior_fraction": self._mixture.prior_size(size) / size}
        self.bus.emit("log", self, {**row, "wall_time": round(state.wall_time, 3), **metrics})

    def evaluate(self, episodes: int) -> dict[str, float]:
        """Raw returns of the deterministic policy on envs and seeds of their own; training randomness is untouched.

        A signal ends it in the middle, by EvaluationInterrupted: whoever asked for it calls `leave_evaluation`.
        """
        if self._eval_envs is None:
            raise UserError("There is no environment to evaluate in; give env=... or drop callbacks.evaluate.")
        self._refuse_poison()
        seed = int(np.random.SeedSequence([int(self.cfg.seed), 0xE7A1]).generate_state(1)[0])
        steps = 0

        def interrupted() -> bool:
            nonlocal steps
            steps += 1
            if steps % TOLD_EVERY == 0:
                self.bus.emit("evaluating", self, counted(steps, "step"))
            return self.interrupt is not None

        outcome = evaluate_learner(self.learner, self._eval_envs, episodes, seed, interrupted)
        metrics = outcome.metrics(self.spec.env_id)
        self.state.last_eval = metrics["eval/return_mean"]
        return metrics

    def leave_evaluation(self) -> None:
        """The run ends without an evaluation that was due, which a resume has to make."""
        self._unfinished = True
        if self.state.stop_reason in BUDGETS:  # which a resume finds spent again
            self.state.stop_reason = str(self.interrupt)

    def close(self) -> None:
        """Close all envs; nothing happens the second time."""
        parts, self._open = self._open, []
        with ExitStack() as stack:  # all of them, also where one fails
            for part in parts:
                stack.callback(part.close)

    # -- checkpoints -----------------------------------------------------------------------------------------------

    def save(self, name: str) -> Path:
        """Write a checkpoint: "step" holds everything a resume needs, "best" only the policy."""
        self._refuse_poison()
        self._tick()
        path = self._snapshot.save_policy() if name == "best" else self._snapshot.save()
        self.bus.emit("checkpoint", self, path)
        return path

    def restore(self, saved: CheckpointData) -> None:
        """Continue from a full checkpoint."""
        self._snapshot.load(saved)
        self.resumed = True
        if self.collector is not None and self.collector.lost:
            self._end_lost_episodes(self.collector.lost)
        passed = (*BUDGETS, *INTERRUPTED)
        if self.state.stop_reason in passed or not self.bus.upholds(self.state.stop_reason, saved.state["callbacks"]):
            self.state.should_stop, self.state.stop_reason = False, ""

    def _end_lost_episodes(self, envs: Sequence[int]) -> None:
        """These envs had to begin new episodes: what was collected of the old ones ends where the checkpoint was."""
        self.state.exact = False
        for store in (self.replay, self.rollout):
            if store is not None:
                store.end_episodes(envs)
        self.checkpoints.rewrite_replay()
