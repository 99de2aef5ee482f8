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
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from omegaconf import OmegaConf
from torch import Tensor

from rlx.callbacks import crossed
from rlx.callbacks.bus import CallbackBus
from rlx.callbacks.metrics import TrainMetrics
from rlx.checkpoint import Checkpoint, CheckpointStore
from rlx.data.replay import DatasetReplay, Mixture, Replay
from rlx.data.rollout import RolloutBuffer
from rlx.envs.evaluation import run_episodes
from rlx.envs.runner import Journal, Runner
from rlx.envs.vector import EnvFault, NonFiniteAction, is_finite
from rlx.errors import RunFailed, UserError
from rlx.files import write_atomically
from rlx.learner import Learner, is_learning_rate
from rlx.rewards import RewardTransform
from rlx.rng import rng_state, seeded, set_rng_state
from rlx.run_folder import ERROR_FILE
from rlx.saved import check_like, parse
from rlx.trainers.guard import Guard
from rlx.types import Batch, Rollout, Spec

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from rlx.data.dataset import TransitionDataset
    from rlx.envs.vector import VectorEnv

INTERRUPTS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}  # stop reasons that a resume clears
BUDGETS = ("max_env_steps", "max_updates", "max_epochs", "max_seconds", "completed")


@dataclass
class Phase:
    """Repeat {collect env steps, make updates} until the budget is spent."""

    collect: int = 0  # vector steps per iteration; 0: offline, one update per iteration
    on_policy: bool = False  # learn from each rollout once instead of from a replay
    updates: int | None = None  # budget in updates; null: until the run's budget ends it
    env_steps: int | None = None  # budget in env steps; null: until the run's budget ends it
    updates_per_step: float = 1.0  # updates for each env step once learning has started
    random_steps: int = 0  # env steps with random actions at the beginning of the phase
    start_after: int = 0  # env steps before the first update
    offline_fraction: float = 0.0  # share of every batch drawn from the dataset


@dataclass
class TrainerConfig:
    """Budgets and intervals, in steps of the regime, and the phases that make a regime."""

    _target_: str = "rlx.trainers.trainer.Trainer"
    regime: str = ""  # how the regime is called: off_policy, on_policy, offline, offline_to_online
    max_env_steps: int | None = None  # stop after so many env steps
    max_updates: int | None = None  # stop after so many updates
    max_epochs: int | None = None  # stop after so many epochs
    max_seconds: float | None = None  # stop after so much wall time
    epoch_length: int = 1000  # steps in an epoch
    eval_interval: int = 1000  # steps between evaluations; 0: only at the end
    eval_episodes: int = 10  # episodes of each evaluation
    checkpoint_interval: int = 5000  # steps between checkpoints; 0: only at the end
    keep_checkpoints: int = 2  # periodic checkpoints kept, at least 1
    log_interval: int = 500  # steps between rows of training metrics
    train_frequency: int = 1  # vector steps between updates
    gradient_updates_per_step: float = 1.0  # updates per env step (UTD)
    learning_starts: int = 1000  # env steps with random actions, and no update before
    warmup_steps: int = 0  # env steps before the first update
    min_buffer_size: int = 0  # transitions in the replay before the first update
    rollout_length: int = 2048  # vector steps of an on-policy rollout
    pretrain_updates: int = 0  # offline updates before going online
    offline_batch_ratio: float = 0.0  # share of prior data in every batch while online
    phases: dict[str, Phase] = field(default_factory=dict)


@dataclass
class TrainerState:
    """Where a run is. Part of every checkpoint."""

    env_steps: int = 0
    updates: int = 0
    steps: int = 0  # the clock of the regime
    epoch: int = 0
    episodes: int = 0
    phase: str = ""
    phase_env_steps: int = 0  # within the phase
    phase_updates: int = 0
    collected: int = 0  # vector steps collected in the iteration under way
    should_stop: bool = False
    stop_reason: str = ""
    last_eval: float | None = None  # mean return of the latest evaluation
    best: float | None = None  # the highest of them
    wall_time: float = 0.0  # seconds of training, all sessions together
    exact: bool = True  # False once a resume could not put an env back to where it was


class Trainer:
    """Runs phases: collect -> sample -> update, and tells the bus."""

    def __init__(
        self,
        settings: TrainerConfig,
        cfg: DictConfig,
        learner: Learner,
        bus: CallbackBus,
        reward: RewardTransform,
        run_dir: Path,
        envs: VectorEnv | None = None,
        eval_envs: VectorEnv | None = None,
        replay: Replay | None = None,
        prior: DatasetReplay | None = None,
        dataset: TransitionDataset | None = None,
    ):
        self.settings = settings
        self.cfg = cfg
        self.learner = learner
        self.spec: Spec = learner.spec
        self.bus = bus
        self.reward = reward
        self.run_dir = run_dir
        self.dataset = dataset
        self._fingerprint = dataset.fingerprint() if dataset is not None else None
        self.replay = replay
        self.prior = prior
        self.state = TrainerState()
        self.resumed = False
        self.interrupt: str | None = None  # set by a signal: end after the step under way
        self.checkpoints = CheckpointStore(run_dir / "checkpoints", keep=settings.keep_checkpoints)
        self._envs, self._eval_envs = envs, eval_envs
        self._runner: Runner | None = Runner(envs, seed=int(cfg.seed)) if envs is not None else None
        self._rollout: RolloutBuffer | None = None
        self._mixture: Mixture | None = None
        self._guard = Guard(learner, self._pending_metrics)
        self._looked = 0  # steps when it last looked
        self._rng = np.random.default_rng(np.random.SeedSequence([int(cfg.seed), 0xAC7]))  # random actions
        self.device = next(iter(learner.parameters())).device
        self._clock = time.perf_counter()
        if any(p.on_policy for p in settings.phases.values()) and envs is not None:
            self._rollout = RolloutBuffer(settings.rollout_length, envs.num_envs, self.spec)

    # -- the loop --------------------------------------------------------------------------------------------------

    def run(self) -> TrainerState:
        """Run what is left of the phases; returns the state at the end. RunFailed says why it could not."""
        try:
            return self._run_phases()
        except BaseException as error:
            failure = self._explained(error)
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
        self._check_budgets()
        order = list(self.settings.phases)
        names = [name for name in order if self.settings.phases[name].updates != 0]
        if not self.state.phase:
            self._enter(names[0])
        at = order.index(self.state.phase)  # which may have been left without updates since
        for name in [name for name in names if order.index(name) >= at]:
            if self.state.should_stop:
                break
            if name != self.state.phase:
                self._enter(name)
            self._run(self.settings.phases[name])
        else:
            self.stop("completed")
        self._tick()
        self._refuse_poison()
        self.bus.emit("run_end", self)
        return self.state

    def _enter(self, name: str) -> None:
        self.state.phase, self.state.phase_env_steps, self.state.phase_updates = name, 0, 0
        self.bus.emit("phase_start", self, name)

    def _run(self, phase: Phase) -> None:
        if self._spent(phase):
            return
        source: Any = self._source(phase)
        state = self.state
        while not state.should_stop and not self._spent(phase):
            self._collect(phase, source)
            if self.interrupt and state.collected < phase.collect and self._room(phase):
                self.stop(self.interrupt)
                return
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
            state.collected = 0
            state.epoch = state.steps // self.settings.epoch_length
            self._tick()
            self._check_budgets()
            if crossed(self._looked, state.steps, self.settings.log_interval):
                self._looked = state.steps
                self._refuse_poison()
            self.bus.emit("iteration", self)
            if self.interrupt:
                self.stop(self.interrupt)

    def _source(self, phase: Phase) -> Replay | Mixture | RolloutBuffer:
        """Where the batches of a phase come from."""
        if phase.on_policy:
            source: Any = self._rollout
        elif phase.collect == 0:
            source = self.prior
        elif self._mixes(phase) and self.replay is not None and self.prior is not None:
            source = self._mixture = Mixture(self.replay, self.prior, phase.offline_fraction)
        else:
            source = self.replay
        if source is None:
            raise UserError(f"Phase {self.state.phase!r} has nothing to learn from; give a dataset, or let it collect.")
        return source

    def _mixes(self, phase: Phase) -> bool:
        """Do its batches hold prior data, now or later?"""
        return phase.offline_fraction > 0 or "offline_batch_ratio" in self.cfg.schedule.targets

    def _batches(self, phase: Phase, source: Replay | Mixture | RolloutBuffer) -> Iterator[Batch | Rollout]:
        """The batches of this iteration: as many as are due."""
        if isinstance(source, Mixture):
            source.fraction = self.settings.offline_batch_ratio
        due = self._due(phase)
        if due == 0 or not source.ready:
            return iter(())
        batches = source.sample(self.learner.cfg.batch_size, due)
        return batches if self.device.type == "cpu" else (self._to_device(b) for b in batches)

    def _due(self, phase: Phase) -> int:
        """Updates to make now. Computed from counters alone, so a resume makes neither more nor fewer."""
        state = self.state
        due = 1
        if phase.collect > 0 and not phase.on_policy:
            first = max(phase.random_steps, phase.start_after, self.settings.min_buffer_size)
            learning_steps = state.phase_env_steps - first
            due = math.floor(phase.updates_per_step * max(0, learning_steps) + 1e-9) - state.phase_updates
        for limit, made in ((phase.updates, state.phase_updates), (self.settings.max_updates, state.updates)):
            if limit is not None:
                due = min(due, limit - made)
        return max(0, due)

    def _spent(self, phase: Phase) -> bool:
        if phase.updates is not None and self.state.phase_updates >= phase.updates:
            return True
        return phase.collect > 0 and not self._room(phase)

    def _collect(self, phase: Phase, source: Replay | Mixture | RolloutBuffer) -> None:
        """Act until the iteration has its steps. Stops early at the budget, or at an interrupt."""
        state = self.state
        while state.collected < phase.collect and not self.interrupt and self._room(phase):
            self._step(phase, source.online if isinstance(source, Mixture) else source)

    def _step(self, phase: Phase, buffer: Any) -> None:
        runner, state = self._runner, self.state
        assert runner is not None  # a phase that collects has envs
        obs = runner.obs
        action = self._random() if state.phase_env_steps < phase.random_steps else self._act(obs)
        step, finished = runner.step(action)
        reward = step.reward
        if not self.reward.identity:
            reward = self.reward(step.reward, step.terminated, step.truncated, infos=step.infos)
            if not is_finite(reward):
                raise self._failed(f"The reward transform made {reward.tolist()} of the rewards {step.reward.tolist()}")
        buffer.add(obs, action, reward, step.next_obs, step.terminated, step.truncated)
        state.collected += 1
        state.env_steps += runner.num_envs
        state.phase_env_steps += runner.num_envs
        state.steps += runner.num_envs
        for episode in finished:
            state.episodes += 1
            self.bus.emit("episode", self, episode.ret, episode.length, episode.info)

    def _room(self, phase: Phase) -> bool:
        """Is there budget for one more vector step?"""
        state, n = self.state, self._runner.num_envs if self._runner else 1
        limits = ((phase.env_steps, state.phase_env_steps), (self.settings.max_env_steps, state.env_steps))
        if any(limit is not None and taken + n > limit for limit, taken in limits):
            return False
        epochs = self.settings.max_epochs
        return epochs is None or state.steps + n <= epochs * self.settings.epoch_length

    def _random(self) -> np.ndarray:
        n, spec = self._runner.num_envs if self._runner else 1, self.spec
        if spec.action_kind == "box":
            return self._rng.uniform(-1.0, 1.0, (n, *spec.action_shape)).astype(np.float32)
        return self._rng.integers(0, spec.action_sizes, (n, *(spec.action_shape or (1,)))).reshape(
            n, *spec.action_shape
        )

    def _act(self, obs: np.ndarray, explore: bool = True) -> np.ndarray:
        tensor = torch.from_numpy(obs)
        if self.device.type == "cpu":
            action = self.learner.act(tensor, explore).numpy()
        else:
            action = self.learner.act(tensor.to(self.device), explore).cpu().numpy()
        if not is_finite(action):
            raise NonFiniteAction(action)
        return action

    def _to_device(self, batch: Any) -> Any:
        return type(batch)(*(x if x is None else x.to(self.device) for x in batch))

    # -- budgets ---------------------------------------------------------------------------------------------------

    def _check_budgets(self) -> None:
        """Stop before the first step that would go beyond a budget."""
        state, settings = self.state, self.settings
        phase = settings.phases.get(state.phase)
        n = self._runner.num_envs if self._runner and phase and phase.collect else 1
        if settings.max_updates is not None and state.updates >= settings.max_updates:
            self.stop("max_updates")
        if settings.max_env_steps is not None and state.env_steps + n > settings.max_env_steps:
            self.stop("max_env_steps")
        if settings.max_epochs is not None and state.steps + n > settings.max_epochs * settings.epoch_length:
            self.stop("max_epochs")
        if settings.max_seconds is not None and state.wall_time >= settings.max_seconds:
            self.stop("max_seconds")

    def finished(self) -> bool:
        """Asked after a restore: would `run` make no step and no update? A budget that is spent becomes the reason."""
        self._check_budgets()
        *_, last = (name for name, phase in self.settings.phases.items() if phase.updates != 0)
        return self.state.should_stop or (self.state.phase == last and self._spent(self.settings.phases[last]))

    def _tick(self) -> None:
        self.state.wall_time = time.perf_counter() - self._clock

    @property
    def total_steps(self) -> int | None:
        """The budget on the clock of the regime; None if only wall time or a rule ends the run."""
        settings, total = self.settings, 0
        for phase in settings.phases.values():
            if phase.collect == 0:
                limits = [x for x in (phase.updates, settings.max_updates) if x is not None]
            else:
                limits = [x for x in (phase.env_steps, settings.max_env_steps) if x is not None]
            if not limits:
                total = 0
                break
            total += min(limits)
        epochs = settings.max_epochs * settings.epoch_length if settings.max_epochs is not None else 0
        return min((x for x in (total, epochs) if x), default=None)

    # -- failures --------------------------------------------------------------------------------------------------

    def _refuse_poison(self) -> None:
        """End the run if a weight is no longer finite: before a checkpoint, an evaluation or a row would hold it."""
        problem = self._guard.problem(self.state.updates)
        if problem is not None:
            raise self._diverged(problem)

    def _pending_metrics(self) -> dict[str, list[float]]:
        """The metrics of the updates since the last row, where there are rows at all."""
        return next((c.pending() for c in self.bus.callbacks.values() if isinstance(c, TrainMetrics)), {})

    def _explained(self, error: BaseException) -> BaseException:
        """What to raise for an error: a sentence for what an env or divergence did, and the error itself for others."""
        if isinstance(error, EnvFault):
            return self._failed(f"{error}{self._keep_trace(error)}")
        known = isinstance(error, (RunFailed, UserError)) and not isinstance(error, NonFiniteAction)
        if known or not isinstance(error, Exception):
            return error
        # distributions and solvers have words of their own for weights that are not finite
        problem = self._guard.problem(self.state.updates, anew=True)
        if problem is None and isinstance(error, NonFiniteAction):
            problem = "the policy's action is not finite, although its weights are"
        return self._diverged(problem) if problem is not None else error

    def _keep_trace(self, fault: EnvFault) -> str:
        """Write the env's traceback to the run folder; where it is, as the end of a sentence."""
        file = self.run_dir / ERROR_FILE
        if not fault.trace:
            return ""
        try:
            write_atomically(file, fault.trace.encode())
        except OSError:  # a full disk must not hide what happened
            return ""
        return f"; its traceback is in {file}"

    def _diverged(self, problem: str) -> RunFailed:
        rates = {n: float(v) for n, v in self.cfg.algo.items() if is_learning_rate(str(n)) and v}
        lower = [f"algo.{name}={min(rate / 10, 3e-4):g}" for name, rate in rates.items()]
        return self._failed(f"Training diverged: {problem}", "with a lower learning rate", lower)

    def _failed(self, problem: str, how: str = "", overrides: Sequence[str] = ()) -> RunFailed:
        state = self.state
        made = "1 update" if state.updates == 1 else f"{state.updates} updates"
        where = f"The run ended after {state.env_steps} env steps and {made}."
        return RunFailed(f"{problem}. {where} {self.way_on(how, overrides)}")

    def way_on(self, how: str = "", overrides: Sequence[str] = ()) -> str:
        """The last checkpoint, and what to type to go on from it."""
        command = " ".join(["python -m rlx resume", str(self.run_dir), *overrides])
        how = f" {how}" if how else ""
        saved = self.checkpoints.steps()
        if not saved:
            return f"There is no checkpoint yet; `{command}` starts from the beginning{how}."
        return f"The last checkpoint is {saved[0].name}; `{command}` goes on from there{how}."

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
        """Raw returns of the deterministic policy on envs and seeds of their own; training randomness is untouched."""
        if self._eval_envs is None:
            raise UserError("There is no environment to evaluate in; give env=... or drop callbacks.evaluate.")
        self._refuse_poison()
        seed = int(np.random.SeedSequence([int(self.cfg.seed), 0xE7A1]).generate_state(1)[0])
        metrics = evaluate_learner(self.learner, self._eval_envs, episodes, seed).metrics(self.spec.env_id)
        self.state.last_eval = metrics["eval/return_mean"]
        return metrics

    def close(self) -> None:
        both, self._envs, self._eval_envs = (self._envs, self._eval_envs), None, None
        with ExitStack() as stack:  # both, also where one fails
            for envs in both:
                if envs is not None:
                    stack.callback(envs.close)

    # -- checkpoints -----------------------------------------------------------------------------------------------

    def save(self, name: str) -> Path:
        """Write a checkpoint: "step" holds everything a resume needs, "best" only the policy."""
        self._refuse_poison()
        self._tick()
        if name == "best":
            path = self.checkpoints.save_best(self._policy_checkpoint(), self.state.steps)
        else:
            path = self.checkpoints.save_step(self._full_checkpoint(), self.state.steps, self.replay)
        self.bus.emit("checkpoint", self, path)
        return path

    def _policy_checkpoint(self) -> Checkpoint:
        state = {
            "trainer": asdict(self.state),
            "learner": self.learner.counters(),
            "reward": self.reward.state(),  # what its values are in units of
            "policy_only": True,
        }
        return Checkpoint.of(self.cfg, self.spec, state, {"learner": self.learner.tensors()})

    def _full_checkpoint(self) -> Checkpoint:
        tensors: dict[str, dict[str, Tensor]] = {"learner": self.learner.tensors()}
        rng_json, rng_tensors = rng_state()
        tensors["rng"] = rng_tensors
        state: dict[str, Any] = {
            "trainer": asdict(self.state),
            "learner": self.learner.counters(),
            "callbacks": self.bus.state(),
            "rng": {**rng_json, "actions": self._rng.bit_generator.state},
            "reward": self.reward.state(),
            "replay": self.replay.state() if self.replay is not None else None,
            "prior": self.prior.state() if self.prior is not None else None,
            "data": self._fingerprint,
            "threads": torch.get_num_threads(),
        }
        if self.replay is not None and (changing := self.replay.tensors()):
            tensors["replay"] = changing
        if self._runner is not None:
            journal = self._runner.journal()
            state["journal"] = {"episodes": journal.episodes, "hashes": journal.hashes}
            tensors["journal"] = {str(i): torch.from_numpy(a) for i, a in enumerate(journal.actions)}
        if self._rollout is not None:
            tensors["rollout"] = self._rollout.tensors()
        return Checkpoint.of(self.cfg, self.spec, state, tensors)

    def restore(self, saved: Checkpoint) -> None:
        """Continue from a full checkpoint. Random states come last, so that nothing here disturbs them."""
        state = saved.state
        self._refuse_other_data(state.get("data"))
        self.resumed = True
        self._check_state(saved)
        self.state = TrainerState(**state["trainer"])
        self.learner.load_tensors(saved.tensors["learner"])
        self.learner.load_counters(state["learner"])
        self.reward.load_state(state["reward"])
        if self.replay is not None:
            self.checkpoints.load_replay(saved, self.replay)
            self.replay.load_state(state["replay"])
            self.replay.load_tensors(saved.tensors.get("replay", {}))
        if self.prior is not None:
            self.prior.load_state(state["prior"])
        if self._rollout is not None:
            self._rollout.load_tensors(saved.tensors["rollout"])
        if self._runner is not None:
            actions = [saved.tensors["journal"][str(i)].numpy() for i in range(self._runner.num_envs)]
            journal = Journal(state["journal"]["episodes"], state["journal"]["hashes"], actions)
            lost = self._runner.restore(journal)
            if lost:
                self._cut_off(lost)
        self.bus.load_state(state["callbacks"])
        self._rng.bit_generator.state = state["rng"]["actions"]
        set_rng_state(state["rng"], saved.tensors["rng"])
        if self.state.stop_reason in (*BUDGETS, *INTERRUPTS.values()) or self._other_rule(saved):
            self.state.should_stop, self.state.stop_reason = False, ""

    def _check_state(self, saved: Checkpoint) -> None:
        """ValueError where the numbers of a checkpoint cannot be those of this run."""
        state, phases = saved.state, self.settings.phases
        if not isinstance(state["callbacks"], dict):
            raise ValueError("it has no states of callbacks")
        check_like(state["trainer"], asdict(TrainerState()), "trainer")
        check_like(state["learner"], self.learner.counters(), "learner")
        check_like(state["reward"], self.reward.state(), "reward")
        counters = (*state["learner"].values(), *(v for v in state["trainer"].values() if type(v) is int))
        if min(counters, default=0) < 0 or state["trainer"]["phase"] not in ("", *phases):
            raise ValueError("its counters or its phase are not those of a run")
        if self._runner is not None and len(state["journal"]["episodes"]) != self._runner.num_envs:
            raise ValueError(f"it is of {len(state['journal']['episodes'])} envs")
        if self.replay is not None and state["replay"]["total"] != max((s["end"] for s in saved.segments), default=0):
            raise ValueError("its replay is not whole")
        if self.prior is not None and state["prior"]["total"] != self.prior.total:
            raise ValueError("its dataset had another length")
        for part in (state["reward"], state["reward"]["running"] or {}):
            if self._runner is not None and len(part.get("returns") or self._runner.obs) != self._runner.num_envs:
                raise ValueError("its returns are of another number of envs")

    def _other_rule(self, saved: Checkpoint) -> bool:
        """Did early stopping end the run, by a rule that has since been taken away or changed?"""

        def rules(cfg: Any) -> list[Any]:
            nodes = (cfg["callbacks"] or {}).values()
            return [node for node in nodes if node and str(node["_target_"]).endswith(".EarlyStopping")]

        stopped = self.state.stop_reason.startswith("early_stopping")
        return stopped and rules(OmegaConf.to_container(self.cfg)) != rules(parse(saved.config))

    def _refuse_other_data(self, saved: dict[str, int] | None) -> None:
        """The dataset is not part of a checkpoint: it has to be the one that the run began with."""
        if self.dataset is None or self._fingerprint is None or saved is None:  # older checkpoints have no fingerprint
            return
        different = {
            name.removeprefix("some ") for name, found in self._fingerprint.items() if saved.get(name, found) != found
        }
        if different:
            raise UserError(
                f"{self.dataset.source} has changed since the checkpoint was written ({', '.join(sorted(different))}), "
                "and a run can only go on with the data that it began with; put them back, say where they are (`python "
                f"-m rlx resume {self.run_dir} dataset.path=FILE`, or dataset.id=ID), or start a new run."
            )

    def _cut_off(self, lost: list[int]) -> None:
        """These envs had to begin new episodes: what was collected of the old ones ends where the checkpoint was."""
        self.state.exact = False
        for buffer in (self.replay, self._rollout):
            if buffer is not None:
                buffer.cut_off(lost)
        self.checkpoints.rewrite_replay()


def evaluate_learner(learner: Learner, envs: VectorEnv, episodes: int, seed: int) -> Any:
    """Episodes of the deterministic policy; the global random state is as before afterwards."""
    device = next(iter(learner.parameters())).device

    def act(obs: np.ndarray) -> np.ndarray:
        return learner.act(torch.from_numpy(obs).to(device), explore=False).cpu().numpy()

    training = learner.training
    learner.eval()
    with seeded(seed, device):
        found = run_episodes(act, envs, episodes, seed)
    learner.train(training)
    return found
