"""The verbs as plain functions: train, resume, evaluate, predict, load.

The command line is a thin shell around these.
"""

from __future__ import annotations

import json
import logging
import math
import os
import platform
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rlx.callbacks.bus import Callback, CallbackBus
from rlx.checkpoint import CheckpointStore, DamagedCheckpoint, find_checkpoint, read_folder
from rlx.config import (
    GROUPS,
    check_regime,
    check_seed,
    check_spec,
    compose_config,
    fit_numbers,
    instantiate,
    learner_class,
    load_config,
    loggers,
    validate,
)
from rlx.config_errors import explain
from rlx.data.collect import collect_episodes
from rlx.data.dataset import TransitionDataset
from rlx.data.episodes import apply_choices
from rlx.data.frames import stacked_frames
from rlx.data.inspect import inspect_dataset
from rlx.data.minari import check_recordable, minari_root, write_minari
from rlx.data.reader import Reader
from rlx.data.replay import DatasetReplay, Layout, Replay
from rlx.data.sources import choices_of, finish, load_transition_dataset
from rlx.data.windows import WindowReader
from rlx.envs import make_env, make_vector_env, probe, spec_of
from rlx.envs.factory import PYTHON, EnvConfig
from rlx.envs.vector import VectorEnv
from rlx.errors import Interrupted, UserError
from rlx.files import read_bounded, write_atomically
from rlx.given import NOTHING, DataLike, EnvLike, Given, check_given, objects_of
from rlx.learner import Allocation, Learner
from rlx.memory import available_memory, enough_memory, memory_errors
from rlx.nn import keep_freed_memory
from rlx.overrides import from_values, take_trust, with_config_dir
from rlx.paths import conf_dir
from rlx.policy import Policy
from rlx.reporting import closing_lines, counted, evaluation, showing
from rlx.rewards import RewardTransform
from rlx.rng import seed_everything, seeded
from rlx.run_folder import RunLock, note_resume, refuse_links, write_errors_explained
from rlx.saved import (
    BEYOND,
    KWARGS,
    as_text,
    as_written,
    check_like,
    leaves,
    parse,
    references,
    restoring,
    shown,
    trusted,
)
from rlx.threads import choose_threads, network_seconds
from rlx.trainers.trainer import BUDGETS, INTERRUPTS, Trainer, evaluate_learner
from rlx.types import Spec, Windows

log = logging.getLogger("rlx")

ONE_SIGNAL = 0.5  # seconds within which signals count as one: `timeout` and launchers send each of them twice
NO_ENV = "none"  # the env id of runs without a simulator


@dataclass(repr=False)
class Result:
    """What a run came to: `summary` (as in summary.json), `run_dir`, `learner` and `policy`."""

    summary: dict[str, Any]
    run_dir: Path
    learner: Learner  # as it was at the end; `rlx.load(run_dir)` is the best policy
    trust: tuple[str, ...] = ()  # modules besides rlx that the run needs
    objects: tuple[str, ...] = ()  # what was given from Python: "env", "dataset"

    @property
    def policy(self) -> Policy:
        """The policy as it was at the end."""
        return Policy(self.learner)

    def __repr__(self) -> str:
        s = self.summary
        done = f"{counted(s['env_steps'], 'env step')}, {counted(s['updates'], 'update')}"
        return (
            f"Result({s['algo']} on {s['env']}, seed {s['seed']}: evaluation return {evaluation(s)}, {done}, "
            f"run_dir={str(self.run_dir)!r})"
        )


# -- train and resume ------------------------------------------------------------------------------------------------


def train(
    *overrides: str,
    env: str | EnvLike | None = None,
    dataset: str | DataLike | None = None,
    run_dir: str | Path | None = None,
    config_dir: str | Path | None = None,
    progress: bool = True,
    quiet: bool = False,
    **values: Any,
) -> Result:
    """Train, and return what the run came to.

        rlx.train("algo=sac", "env=pendulum", "trainer.max_env_steps=5000", seed=1)
        rlx.train(algo="sac", env=lambda: MyEnv(), trainer={"max_env_steps": 5000})
        rlx.train("algo=iql", dataset={"observations": ..., "actions": ..., ...}, env=lambda: MyEnv())

    overrides   as on the command line: GROUP=CHOICE and KEY=VALUE
    env         the name of a choice, a function (or class) that makes a gymnasium.Env, or an env where one is enough
    dataset     the name of a choice, a dict of arrays under the usual names, or a TransitionDataset
    run_dir     the folder of the run; by default one below multirun_outputs/runs
    config_dir  a folder with choices of your own, as --config-dir
    progress    False: no progress lines, or bar; quiet=True: nothing at all but warnings
    values      further keys: seed=1, device="cpu", trainer={"max_env_steps": 5000}, **{"algo.hidden": [64, 64]}
    """
    named = {k: v for k, v in (("env", env), ("dataset", dataset)) if isinstance(v, str)}
    texts = [*overrides, *from_values({**named, **values}, tuple(GROUPS))]
    given = Given.of(None if isinstance(env, str) else env, None if isinstance(dataset, str) else dataset)
    texts = with_config_dir([*texts, *given.overrides(texts)], config_dir)
    with showing(quiet):
        cfg = compose_config(texts)
        return _closed(run(cfg, texts, run_dir, given, progress and not quiet))


def _closed(result: Result) -> Result:
    log.info("%s", closing_lines(result.summary, result.run_dir, result.trust, result.objects))
    return result


@memory_errors()
def run(
    cfg: DictConfig,
    overrides: list[str],
    run_dir: str | Path | None = None,
    given: Given = NOTHING,
    progress: bool = True,
) -> Result:
    """Train a composed config from the beginning. All of it was typed by the user, also which module an env is of."""
    check(cfg)
    if references(str(OmegaConf.to_container(cfg.env, resolve=False)["id"])) is None:  # type: ignore[call-overload, index]
        raise UserError(
            "env.id is written into every file of a run and cannot come from elsewhere; type the id itself."
        )
    cfg.trust = [*cfg.trust, *env_modules(cfg)]
    folder = Path(run_dir or cfg.run_dir or default_run_dir(cfg))
    refuse_second_run(folder)
    refuse_links(folder)
    threads = set_threads(cfg)
    seed_everything(int(cfg.seed))
    with closing(build(cfg, folder, given, progress)) as trainer:
        trainer.bus.check(trainer)  # before the folder is written to
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"run_dir={folder} cannot be written to ({error.strerror}); choose another one.") from error
        with RunLock(folder), write_errors_explained(folder, lambda: trainer.state.steps > 0):
            refuse_second_run(folder)  # another process may have been quicker
            write_atomically(folder / "overrides.yaml", OmegaConf.to_yaml(OmegaConf.create(list(overrides))).encode())
            write_atomically(folder / "config.yaml", OmegaConf.to_yaml(cfg, resolve=False).encode())
            log.info("Run folder: %s (%s)", folder, threads)
            return _finish(trainer)


def refuse_second_run(folder: Path) -> None:
    if os.path.lexists(folder / "config.yaml"):
        raise UserError(
            f"{folder} already holds a run; resume it (`python -m rlx resume {folder}`) or choose another run_dir."
        )


def env_modules(cfg: DictConfig) -> list[str]:
    """The modules that the envs of a config are in (`env.id=module:Id`), beyond those that are trusted already."""
    found = []
    for key, value in leaves(OmegaConf.to_container(cfg, resolve=True)):
        if f".{key}".endswith(".env.id") and ":" in str(value) and not str(value).startswith(PYTHON):
            found.append(str(value).partition(":")[0])
    return sorted({module for module in found if not trusted(module, cfg.trust)})


def resume(
    run_dir: str | Path,
    *overrides: str,
    env: EnvLike | None = None,
    dataset: DataLike | None = None,
    trust: tuple[str, ...] = (),
    quiet: bool = False,
) -> Result:
    """Continue a run from its last whole checkpoint; values such as a longer budget can be overridden.

        rlx.resume("multirun_outputs/runs/RUN", "trainer.max_env_steps=40000")

    A run that was given an env or a dataset from Python takes the same again: `env=`, `dataset=`. `trust` names modules
    besides rlx whose code the run may use.
    """
    with showing(quiet):
        return _closed(resume_run(run_dir, *overrides, given=Given.of(env, dataset), trust=trust, progress=not quiet))


@memory_errors()
def resume_run(
    run_dir: str | Path,
    *overrides: str,
    given: Given = NOTHING,
    trust: tuple[str, ...] = (),
    progress: bool = True,
) -> Result:
    """`resume` without its closing lines."""
    folder, rest = Path(run_dir), list(overrides)
    trust = (*_modules(trust), *take_trust(rest))
    if not (folder / "config.yaml").is_file():
        raise UserError(f"{folder} is not a run folder (it has no config.yaml); give a folder that a run has written.")
    refuse_links(folder)
    with RunLock(folder):
        return _resume(folder, tuple(rest), given, trust, progress)


def _resume(folder: Path, overrides: tuple[str, ...], given: Given, trust: tuple[str, ...], progress: bool) -> Result:
    text = read_config(folder)
    cfg = load_config(text, fit_numbers(overrides), trust)
    check(cfg)
    refuse_change(OmegaConf.create(as_text(parse(text))), cfg)
    check_given(cfg, given, folder)
    refuse_foreign_env(cfg, trust)
    store = CheckpointStore(folder / "checkpoints")
    if not store.steps() and (store.folder / "last").is_symlink():
        raise UserError(f"The checkpoints of {folder} are gone; restore one from a backup, or start a new run.")
    saved = store.latest() if store.steps() else None
    threads = set_threads(cfg, saved.state.get("threads") if saved else None)
    seed_everything(int(cfg.seed))
    with closing(build(cfg, folder, given, progress)) as trainer:
        if saved is None:
            log.warning("%s was ended before its first checkpoint; it starts from the beginning.", folder)
            trainer.resumed = True  # loggers begin their files anew
        else:
            check_same_env(saved.spec, trainer.spec)
            try:
                with restoring(saved.path or folder):
                    trainer.restore(saved)
            except DamagedCheckpoint as error:  # since it was verified
                raise UserError(f"{saved.path} is damaged ({error}); resume again.") from error
            summary = summary_of(trainer)
            if summary is not None and trainer.finished():
                log.info("%s", nothing_to_do(trainer))
                return Result(summary, folder, trainer.learner, needed_trust(cfg), objects_of(cfg))
            tell_changes(folder, text, saved.config)
        trainer.bus.check(trainer)
        before = trainer.state.steps
        with write_errors_explained(folder, lambda: trainer.state.steps > before):
            (folder / "summary.json").unlink(missing_ok=True)  # whoever has one has ended
            if saved is not None:
                store.forget_after(saved)
                if not trainer.state.exact:
                    log.warning("The environment did not replay to where it was: the run goes on, but only "
                                "approximately.")  # fmt: skip
            note_resume(folder, list(overrides), trainer.state.env_steps, trainer.state.updates)
            write_atomically(folder / "config.yaml", OmegaConf.to_yaml(cfg, resolve=False).encode())
            log.info("Resuming %s at %s, %s (%s)", folder, counted(trainer.state.env_steps, "env step"),
                     counted(trainer.state.updates, "update"), threads)  # fmt: skip
            return _finish(trainer)


def read_config(folder: Path) -> str:
    """The text of a run's config.yaml."""
    path = folder / "config.yaml"
    try:
        return read_bounded(path, follow=False).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"{path}, the saved config, cannot be read ({error}); replace it with checkpoints/last/config.yaml."
        ) from error


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
    ours = counters == [state.env_steps, state.updates] and names[-1] not in INTERRUPTS.values()
    whole = all(isinstance(x, float | int) or (i and x is None) for i, x in enumerate(numbers))  # it took some time
    whole = whole and all(isinstance(x, str) for x in names)
    return summary if ours and whole and {"seed", "exact"} <= summary.keys() else None


def nothing_to_do(trainer: Trainer) -> str:
    state, reason = trainer.state, trainer.state.stop_reason
    online = state.env_steps > 0
    made = counted(state.env_steps, "env step") if online else counted(state.updates, "update")
    if reason and reason not in BUDGETS:
        return (
            f"{trainer.run_dir} was ended by {reason} at {made}; nothing to do. Change that rule, or take it away, to "
            "go on."
        )
    key, larger = ("max_env_steps", 2 * state.env_steps) if online else ("max_updates", 2 * state.updates)
    return f"{trainer.run_dir} has finished ({made}); nothing to do. Give a larger budget, e.g. trainer.{key}={larger}."


def tell_changes(folder: Path, text: str, saved: str) -> None:
    """Warn where config.yaml is not the config of the checkpoint: it was edited, damaged, or changed by a resume."""
    if text == saved:
        return
    ours, theirs = (dict(leaves(parse(t))) for t in (text, saved))
    keys = {key for key in ours.keys() | theirs.keys() if key.partition(".")[0] != "trust"}  # typed anew each time
    changed = sorted(key for key in keys if ours.get(key) != theirs.get(key))
    if changed:
        told = ", ".join(f"{shown(k)} was {shown(theirs.get(k))} and is {shown(ours.get(k))}" for k in changed[:5])
        more = f" and {len(changed) - 5} more" if len(changed) > 5 else ""
        log.warning("%s differs from the config of the checkpoint (%s%s); the run goes on with it.",
                    folder / "config.yaml", told, more)  # fmt: skip


def refuse_change(saved: Any, cfg: DictConfig) -> None:
    """Some values belong to what a checkpoint holds and cannot change in the middle of a run."""
    for key in ("seed", "env.id", "env.num_envs", "replay.capacity", "trainer.rollout_length"):
        before, now = OmegaConf.select(saved, key), OmegaConf.select(cfg, key)
        if before != now and not (isinstance(before, str) and references(before) is None):
            raise UserError(f"{key} was {before} and cannot become {now} in the middle of a run; start a new run.")
    old, new = (cast(dict[str, Any], OmegaConf.to_container(c.reward, resolve=False)) for c in (saved, cfg))
    for key, value in new.items():
        if old.get(key, value) != value:
            raise UserError(
                f"reward.{key} was {old[key]} and cannot become {value} in the middle of a run, which has learned from "
                "and kept rewards as they were transformed until now; start a new run."
            )


def check(cfg: DictConfig) -> None:
    """Refuse what cannot work before any work is done."""
    try:
        validate(cfg)
        check_regime(cfg)
    except OmegaConfBaseException as error:  # a part of the user's own that lacks a key
        raise UserError(shown(explain(error, ()), 1000)) from error


def build(cfg: DictConfig, folder: Path, given: Given = NOTHING, progress: bool = True) -> Trainer:
    """Everything that a run is made of, from its config and from what was given besides."""
    env_cfg = given.env_config(cfg)
    simulator = env_cfg.id != NO_ENV
    data = given.dataset  # read by now, or first of all, where the Spec comes from it
    if not simulator and data is None:
        data = read_dataset(cfg)
    spec = env_spec(env_cfg, cfg.trust) if simulator or data is None else spec_of_dataset(data)
    check_spec(cfg, spec)
    phases = list(cfg.trainer.phases.values())
    collects = any(phase.collect > 0 for phase in phases)
    if collects and not simulator:
        raise UserError("env=none has nothing to collect from; use trainer=offline, or choose an env.")
    one = given.env is not None and given.env.single
    if one and collects:
        raise UserError(
            f"A run that collects has envs to learn in and others to evaluate in, and one {env_cfg.id} was given; "
            "give a function that makes them: env=lambda: MyEnv()."
        )
    reward = instantiate(cfg.reward, trust=cfg.trust)
    with choose_device(cfg.device), within_memory(cfg):  # weights and optimizer states are made there
        learner: Learner = instantiate(cfg.algo, spec, trust=cfg.trust)
    check_batches(cfg, spec)
    dataset, prior = load_prior(cfg, spec, reward, learner, data) if cfg.dataset is not None else (None, None)
    envs = make_vector_env(env_cfg, trust=cfg.trust) if collects else None
    replay = None
    if envs is not None and any(phase.collect > 0 and not phase.on_policy for phase in phases):
        frames = None
        if any(box.is_image and box.dtype == "uint8" for box in spec.obs.values()):
            with closing(make_env(env_cfg, cfg.trust)) as env:
                frames = stacked_frames(env, spec)
        replay = make_replay(cfg, spec, envs.num_envs, prior, frames)
        if replay.needs_env:  # it asks the env for rewards as long as the run lasts
            replay.attach_env(make_env(env_cfg, cfg.trust), reward)
    trainer: Trainer = instantiate(
        cfg.trainer,
        cfg,
        learner,
        make_bus(cfg, progress),
        reward,
        folder,
        envs=envs,
        eval_envs=make_vector_env(env_cfg, 1 if one else min(cfg.trainer.eval_episodes, 10), cfg.trust)
        if simulator
        else None,
        replay=replay,
        prior=prior,
        dataset=dataset,
        trust=cfg.trust,
    )
    return trainer


def within_memory(cfg: DictConfig) -> Allocation:
    """To make a learner in; refuses networks that do not fit into the memory that is free."""
    free = available_memory()
    sentence = (
        f"The networks of algo={as_written(cfg).algo.name} do not fit into memory; use smaller ones (algo.hidden)."
    )
    return Allocation(sys.maxsize if free is None or cfg.device != "cpu" else free, sentence)


def check_batches(cfg: DictConfig, spec: Spec) -> None:
    """All batches of an iteration are gathered at once."""
    rows = 0
    for phase in cfg.trainer.phases.values():
        steps = phase.collect * cfg.env.num_envs
        each = 0 if phase.on_policy else max(1, math.ceil(phase.updates_per_step * steps)) if steps else 1
        rows = max(rows, each * cfg.algo.batch_size)
    with enough_memory(
        rows * Layout(spec).batch_bytes, f"What an iteration learns from, {rows:,} rows,", _smaller_batches
    ):
        pass


def _smaller_batches(share: float) -> str:
    return "use a smaller algo.batch_size, trainer.train_frequency or trainer.gradient_updates_per_step"


def load_prior(
    cfg: DictConfig, spec: Spec, reward: RewardTransform, learner: Learner, data: TransitionDataset | None = None
) -> tuple[TransitionDataset, Reader]:
    """The dataset with its rewards transformed, and as a source of batches; the learner takes statistics from it.

    `data` are its rows if they have been read already.
    """
    dataset: TransitionDataset
    if data is None:
        dataset = instantiate(cfg.dataset, spec, int(cfg.seed), trust=cfg.trust)
    else:
        dataset = finish(data, cfg.dataset, spec)
    reward.fit(dataset)
    dataset = dataset.with_reward_transform(reward)
    if learner.needs_mc_return:
        dataset = dataset.with_mc_returns(cfg.algo.discount)
    if learner.cfg.normalize_obs:
        mean, std = dataset.obs_statistics()
        learner.set_normalizer(torch.from_numpy(mean), torch.from_numpy(std))
    if learner.reads is Windows:
        return dataset, WindowReader(dataset, learner.window, int(cfg.seed))
    prior = DatasetReplay(dataset, spec, cfg.algo.discount, cfg.replay.n_step, int(cfg.seed))
    return prior.dataset, prior


def read_dataset(cfg: DictConfig) -> TransitionDataset:
    """The rows of the dataset as they are stored, for runs that have no env to tell what they should be."""
    if cfg.dataset is None:
        raise UserError(
            "env=none takes its shapes from a dataset and none is given; add dataset=npz dataset.path=FILE."
        )
    if not (cfg.dataset.get("path") or cfg.dataset.get("id")):
        raise UserError("env=none needs dataset.path=FILE or dataset.id=ID.")
    dataset: TransitionDataset = instantiate(cfg.dataset, None, int(cfg.seed), trust=cfg.trust)
    return dataset


def spec_of_dataset(dataset: TransitionDataset) -> Spec:
    """The Spec that a dataset implies, where there is no env; the action box is the range of the data."""
    common: dict[str, Any] = {
        "env_id": NO_ENV,
        "obs_shape": tuple(dataset.obs.shape[1:]),
        "obs_dtype": str(dataset.obs.dtype),
    }
    if dataset.action.dtype.kind == "f":
        low, high = dataset.action.min(0), dataset.action.max(0)
        flat = low == high  # an action that never moves still needs a box
        return Spec(
            **common,
            action_kind="box",
            action_shape=tuple(dataset.action.shape[1:]),
            action_low=tuple(np.where(flat, low - 1.0, low).tolist()),
            action_high=tuple(np.where(flat, high + 1.0, high).tolist()),
        )
    sizes = np.atleast_1d(dataset.action.max(0) + 1)
    kind = "discrete" if dataset.action.ndim == 1 else "multi_discrete"
    return Spec(
        **common,
        action_kind=kind,
        action_shape=tuple(dataset.action.shape[1:]),
        action_sizes=tuple(int(n) for n in sizes),
    )


def make_replay(
    cfg: DictConfig, spec: Spec, num_envs: int, prior: Reader | None, frames: dict[str, int] | None = None
) -> Replay:
    """The replay of an online run; its size is said before anything is written into it."""
    budget = cfg.trainer.max_env_steps
    node = cfg.replay
    if budget is not None and budget < node.capacity:
        node = OmegaConf.merge(node, {"capacity": max(int(budget), num_envs)})  # never needs more
    replay: Replay = instantiate(
        node, spec, num_envs, cfg.algo.discount, int(cfg.seed), trust=cfg.trust, prior=prior, frames=frames
    )
    log.info("Replay: %s, %.1f MiB", counted(replay.capacity, "transition"), replay.nbytes / 2**20)
    return replay


def make_bus(cfg: DictConfig, progress: bool = True) -> CallbackBus:
    """Callbacks, loggers and the schedule on one bus; without `progress`, all but the one that shows it."""
    found: dict[str, Callback] = {"schedule": instantiate(cfg.schedule, trust=cfg.trust)}
    for group in (cfg.callbacks, loggers(cfg)):
        for name, node in (group or {}).items():
            if node is None or (name == "progress" and not progress):  # callbacks.evaluate=null: as ~callbacks.evaluate
                continue
            found[str(name)] = instantiate(node, trust=cfg.trust)
    return CallbackBus(found)


def _finish(trainer: Trainer) -> Result:
    with interruptible(trainer):
        try:
            trainer.run()
            summary = summarise(trainer)
            write_atomically(trainer.run_dir / "summary.json", json.dumps(summary, indent=2).encode())
        except BaseException:
            with suppress(Exception):  # what ended the run is what is told
                trainer.close()
            raise
        trainer.close()  # last: an env that fails here loses nothing
    return Result(summary, trainer.run_dir, trainer.learner, needed_trust(trainer.cfg), objects_of(trainer.cfg))


def needed_trust(cfg: DictConfig) -> tuple[str, ...]:
    """The modules that whoever uses the run has to trust, as its `_target_`s or its env come from them."""
    kwargs = leaves(OmegaConf.to_container(cfg.env.kwargs, resolve=False))
    files = [KWARGS] if any(isinstance(value, str) and BEYOND.search(value) for _, value in kwargs) else []
    beyond = [value for _, value in leaves(OmegaConf.to_container(cfg, resolve=False)) if isinstance(value, str)]
    resolvers = {"oc.env"} if any("${oc.env:" in value for value in beyond) else set()
    return tuple(dict.fromkeys((*cfg.trust, *env_modules(cfg), *files, *resolvers)))


@contextmanager
def interruptible(trainer: Trainer) -> Iterator[None]:
    """SIGINT and SIGTERM end the run after the step under way, with a checkpoint; they reach the main thread only.

    A second one ends it at once: an env that hangs never ends its step.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    first = 0.0

    def handle(number: int, frame: Any) -> None:
        nonlocal first
        name, now = signal.Signals(number).name, time.monotonic()
        if trainer.interrupt is None:
            trainer.interrupt, first = INTERRUPTS[signal.Signals(number)], now
            text = f"rlx: {name}: the run ends after this step, with a checkpoint; a second one ends it at once.\n"
            with suppress(OSError):  # written past the streams: one may be in the middle of a line
                os.write(2, text.encode())
        elif now - first > ONE_SIGNAL:
            sentence = f"A second signal, {name}, ended the run in the middle of a step. {trainer.way_on()}"
            raise Interrupted(sentence, 128 + number)

    before = {number: signal.signal(number, handle) for number in INTERRUPTS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


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
        "versions": versions(),
    }


def versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "cpu": torch.backends.cpu.get_cpu_capability()}
    for package in ("rlx", "torch", "gymnasium", "numpy", "hydra-core", "minari"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def default_run_dir(cfg: DictConfig) -> Path:
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S-%f")
    env = str(cfg.env.id).replace("/", "-").replace(":", "-")
    algo = str(as_written(cfg).algo.name).replace("/", "-")
    return Path("multirun_outputs") / "runs" / f"{algo}__{env}__seed{cfg.seed}__{stamp}"


def set_threads(cfg: DictConfig, saved: int | None = None) -> str:
    """Choose and set torch's threads; what was chosen, and why."""
    layers = (value for key, value in cfg.algo.items() if str(key).endswith("hidden"))
    widest = max((n for widths in layers for n in widths or ()), default=1)
    chosen, why = choose_threads(cfg.threads, saved, network_seconds(int(widest), int(cfg.algo.batch_size)))
    if saved and chosen != saved:
        log.warning("The run had %s and now has %s: results may differ in the last bits.",
                    counted(saved, "thread"), counted(chosen, "thread"))  # fmt: skip
    torch.set_num_threads(chosen)
    keep_freed_memory()
    return f"{counted(chosen, 'thread')}, {why}"


def choose_device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()  # device=meta has no numbers to give
    except (RuntimeError, AssertionError) as error:
        raise UserError(
            f"device={name} is not available here ({str(error).splitlines()[0]}); use device=cpu."
        ) from error
    return device


def env_spec(cfg: EnvConfig, trust: Sequence[str] = ()) -> Spec:
    env = make_env(cfg, trust)
    probe(env, cfg)
    spec = spec_of(env, cfg.id)
    env.close()
    return spec._replace(episode_limit=spec.episode_limit or cfg.max_episode_steps)


def refuse_foreign_env(cfg: DictConfig, trust: tuple[str, ...]) -> None:
    """An env id with a module in it would import that module: a saved config may not ask for this by itself."""
    module, colon, _ = str(cfg.env.id).partition(":")
    if colon and "env" not in objects_of(cfg) and not trusted(module, trust):
        raise UserError(
            f"The saved config wants to import {module} for its env; add trust=[{module}] to allow code from it."
        )


# -- using what was trained ------------------------------------------------------------------------------------------


def _modules(trust: str | Sequence[str]) -> tuple[str, ...]:
    """trust="mine" as ("mine",)."""
    return (trust,) if isinstance(trust, str) else tuple(trust)


def _restore_learner(path: str | Path, trust: tuple[str, ...]) -> tuple[Learner, DictConfig]:
    trust = _modules(trust)
    folder = find_checkpoint(Path(path))
    try:
        saved = read_folder(folder)
    except DamagedCheckpoint as error:
        raise UserError(f"{folder} is damaged ({error}); use another checkpoint of the run.") from error
    cfg = load_config(saved.config, (), trust, use=("algo", "env"))
    learner_class(cfg)
    with restoring(folder):
        check_spec(cfg, saved.spec)
        tensors = saved.tensors["learner"]
        limit = 2 * sum(tensor.nbytes for tensor in tensors.values()) + 2**26  # which all of the learner's are among
        with Allocation(limit, f"{folder} has a config that asks for larger networks than its tensors are of."):
            learner: Learner = instantiate(cfg.algo, saved.spec, trust=trust)
        check_like(saved.state["learner"], learner.counters(), "learner")
        learner.load_tensors(tensors)
        learner.load_counters(saved.state["learner"])
        learner.eval()
        with seeded(0, torch.device("cpu")):  # some values are read by acting alone
            learner.act(
                torch.zeros(1, *saved.spec.obs_shape, dtype=getattr(torch, saved.spec.obs_dtype)), explore=False
            )
    return learner, cfg


def _restore_to_act(
    path: str | Path, trust: tuple[str, ...], env: EnvLike | None = None, episodes: int = 10
) -> tuple[Learner, DictConfig, VectorEnv, str]:
    """As `_restore_learner`, with envs to run the policy in, those of the run or those that are given, and their id."""
    trust = _modules(trust)
    learner, cfg = _restore_learner(path, trust)
    given = Given.of(env, None)
    if given.env is not None:
        env_cfg = given.env_config(cfg)
        if not cfg.env.id.startswith(PYTHON):  # how the envs of the run were made says nothing about these
            env_cfg = replace(env_cfg, kwargs={}, vectorization="auto", step_timeout=None, max_episode_steps=None)
        check_same_env(learner.spec, env_spec(env_cfg))
        return learner, cfg, make_vector_env(env_cfg, 1 if given.env.single else min(episodes, 10)), given.env.id
    refuse_foreign_env(cfg, trust)
    if cfg.env.id == NO_ENV:
        raise UserError("This policy was trained with env=none: there is no simulator to run it in.")
    env_cfg = given.env_config(cfg)
    check_same_env(learner.spec, env_spec(env_cfg, trust))
    return learner, cfg, make_vector_env(env_cfg, min(episodes, 10), trust), str(cfg.env.id)


def check_same_env(saved: Spec, spec: Spec) -> None:
    """Refuse an env that is not like the one a checkpoint is of."""
    for name in ("obs_shape", "obs_dtype", "action_kind", "action_shape", "action_sizes"):
        before, now = getattr(saved, name), getattr(spec, name)
        if before != now:
            raise UserError(
                f"The checkpoint is of an env with {name}={shown(before)} and {spec.env_id} has {name}={shown(now)}; "
                "use the env that it was trained with."
            )


@memory_errors()
def load(path: str | Path, trust: tuple[str, ...] = ()) -> Policy:
    """The policy in a run folder (its best) or a checkpoint folder."""
    return Policy(_restore_learner(path, trust)[0])


@memory_errors()
def evaluate(
    path: str | Path,
    episodes: int = 10,
    seed: int = 0,
    trust: tuple[str, ...] = (),
    env: EnvLike | None = None,
) -> dict[str, Any]:
    """Raw returns of the deterministic policy in fresh environments: those of the run, or what `env` makes.

    path   a run folder, which stands for its best checkpoint, or a checkpoint folder
    trust  modules besides rlx whose code may be used
    env    an env or a function that makes one, with the spaces that the policy was trained with
    """
    if episodes < 1:
        raise UserError(f"episodes must be at least 1 (episodes={episodes}).")
    check_seed(seed)
    learner, cfg, envs, env_id = _restore_to_act(path, trust, env, episodes)
    try:
        found = evaluate_learner(learner, envs, episodes, seed)
    finally:
        envs.close()
    return {
        "algo": as_written(cfg).algo.name,
        "env": env_id,
        "checkpoint": str(find_checkpoint(Path(path))),
        "episodes": episodes,
        "seed": seed,
        **found.metrics(env_id),
        "returns": found.returns.tolist(),
    }


def predict(path: str | Path, obs: Any, trust: tuple[str, ...] = ()) -> Any:
    """The deterministic action for one observation (or a batch), as plain numbers."""
    return np.asarray(load(path, trust).act(obs)).tolist()


# -- data ------------------------------------------------------------------------------------------------------------


@memory_errors()
def collect(
    path: str | Path,
    id: str,
    episodes: int = 100,
    noise: float = 0.0,
    seed: int = 0,
    trust: tuple[str, ...] = (),
    env: EnvLike | None = None,
) -> Path:
    """Roll a policy out into a Minari dataset; the folder it was written to.

    Arguments as for `evaluate`; `noise` is the standard deviation of Gaussian noise on actions in [-1, 1].
    """
    if episodes < 1:
        raise UserError(f"episodes must be at least 1 (episodes={episodes}).")
    if not 0 <= noise < float("inf"):
        raise UserError(f"noise must be at least 0 and finite (noise={noise}).")
    check_seed(seed)
    if not re.fullmatch(r"([\w-]{2,}/)*[\w-]+-v\d+", id):
        raise UserError(f"id={id} is not a Minari id; give one such as id=my/dataset-v0.")
    storage = minari_root()
    if (storage / id).exists():
        raise UserError(f"The dataset {id} exists already in {storage}; choose another id, or delete it.")
    learner, cfg, envs, env_id = _restore_to_act(path, trust, env, episodes)
    try:
        check_recordable(env_id)
        if learner.spec.goal is not None:
            raise UserError(
                f"{cfg.env.id} is a goal env, whose dict observations collect cannot write; use another env."
            )
        with seeded(seed, next(iter(learner.parameters())).device):
            policy = Policy(learner)
            found = collect_episodes(policy.act_scaled, envs, learner.spec, episodes, noise, seed)
    finally:
        envs.close()
    algo = str(as_written(cfg).algo.name)
    text = f"{counted(episodes, 'episode')} of {algo} on {env_id} with noise {noise}"
    folder = write_minari(id, found, env_id, storage, algorithm=algo, description=text)
    returns = [float(e.reward.sum()) for e in found]
    log.info("%s: %s, return %.1f +- %.1f", folder, counted(sum(len(e.reward) for e in found), "transition"),
             np.mean(returns), np.std(returns))  # fmt: skip
    return folder


@memory_errors()
def inspect_data(
    source: str | Path, env: str | None = None, terminals: str = "check", episodes: str = "check"
) -> list[tuple[str, str]]:
    """What is in a dataset, as rows of a table; with an env preset or id, also whether it fits.

    `terminals` and `episodes` are what a run would have in `dataset.terminals` and `dataset.episodes`.
    """
    choices = choices_of(terminals, episodes)
    dataset = load_transition_dataset(source)
    spec = None
    if env is not None and env != NO_ENV:
        preset = (conf_dir() / "env" / f"{env}.yaml").is_file()
        cfg = compose_config([f"env={env}"] if preset else [f"env.id={env}"])
        spec = env_spec(OmegaConf.to_object(cfg.env), env_modules(cfg))  # type: ignore[arg-type]
    limit = None if spec is None else spec.episode_limit
    return inspect_dataset(apply_choices(dataset, choices, limit, check=False), spec)
