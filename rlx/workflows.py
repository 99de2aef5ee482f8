"""The verbs as plain functions: train, resume, evaluate, predict, load.

The command line is a thin shell around these.
"""

from __future__ import annotations

import json
import logging
import os
import platform
import re
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from omegaconf import DictConfig, OmegaConf

from rlx.callbacks.bus import Callback, CallbackBus
from rlx.checkpoint import CheckpointStore, DamagedCheckpoint, find_checkpoint, read_folder
from rlx.config import (
    check_regime,
    check_seed,
    check_spec,
    compose_config,
    instantiate,
    load_config,
    trusted,
    validate,
)
from rlx.data.collect import collect_episodes
from rlx.data.dataset import TransitionDataset
from rlx.data.inspect import inspect_dataset
from rlx.data.minari import minari_root, write_minari
from rlx.data.replay import DatasetReplay, Replay
from rlx.data.sources import finish, load_transition_dataset
from rlx.envs import make_env, make_vector_env, spec_of
from rlx.envs.factory import EnvConfig
from rlx.errors import Interrupted, UserError
from rlx.files import write_atomically
from rlx.learner import Learner
from rlx.nn import keep_freed_memory
from rlx.paths import conf_dir
from rlx.policy import Policy
from rlx.rewards import RewardTransform
from rlx.rng import seed_everything, seeded
from rlx.trainers.trainer import INTERRUPTS, Trainer, evaluate_learner
from rlx.types import Spec

log = logging.getLogger("rlx")

ONE_SIGNAL = 0.5  # seconds within which signals count as one: `timeout` and launchers send each of them twice
NO_ENV = "none"  # the env id of runs without a simulator


@dataclass
class Result:
    """What a run came to."""

    summary: dict[str, Any]
    run_dir: Path
    learner: Learner

    @property
    def policy(self) -> Policy:
        return Policy(self.learner)


# -- train and resume ------------------------------------------------------------------------------------------------


def train(*overrides: str, run_dir: str | Path | None = None, **values: Any) -> Result:
    """Train from Hydra overrides: `rlx.train("algo=sac", "env=pendulum", seed=1)`."""
    given = [*overrides, *(f"{key}={'null' if value is None else value}" for key, value in values.items())]
    return run(compose_config(given), given, run_dir)


def run(cfg: DictConfig, overrides: list[str], run_dir: str | Path | None = None) -> Result:
    """Train a composed config from the beginning."""
    check(cfg)
    folder = Path(run_dir or cfg.run_dir or default_run_dir(cfg))
    if (folder / "config.yaml").exists():
        raise UserError(
            f"{folder} already holds a run; resume it (`python -m rlx resume {folder}`) or choose another run_dir."
        )
    threads = set_threads(cfg)
    seed_everything(int(cfg.seed))
    trainer = build(cfg, folder)
    check_callbacks(trainer)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"run_dir={folder} cannot be written to ({error.strerror}); choose another one.") from error
    write_atomically(folder / "overrides.yaml", OmegaConf.to_yaml(OmegaConf.create(list(overrides))).encode())
    write_atomically(folder / "config.yaml", OmegaConf.to_yaml(cfg, resolve=False).encode())
    log.info("Run folder: %s (%d threads)", folder, threads)
    return _finish(trainer)


def resume(run_dir: str | Path, *overrides: str, trust: tuple[str, ...] = ()) -> Result:
    """Continue a run from its last whole checkpoint; values such as a longer budget can be overridden."""
    folder = Path(run_dir)
    if not (folder / "config.yaml").is_file():
        raise UserError(f"{folder} is not a run folder (it has no config.yaml); give a folder that a run has written.")
    text = (folder / "config.yaml").read_text()
    cfg = load_config(text, overrides, trust)
    check(cfg)
    refuse_change(OmegaConf.create(text), cfg)
    refuse_foreign_env(cfg, trust)
    store = CheckpointStore(folder / "checkpoints")
    saved = store.latest() if store.steps() else None
    threads = set_threads(cfg, saved.state["threads"] if saved else None)
    seed_everything(int(cfg.seed))
    trainer = build(cfg, folder)
    if saved is None:
        log.warning("%s was ended before its first checkpoint; it starts from the beginning.", folder)
        trainer.resumed = True  # loggers begin their files anew
        check_callbacks(trainer)
        (folder / "summary.json").unlink(missing_ok=True)
    else:
        trainer.restore(saved)
        check_callbacks(trainer)
        store.forget_after(saved)
        if not trainer.state.exact:
            log.warning("The environment did not replay to where it was: the run goes on, but only approximately.")
    write_atomically(folder / "config.yaml", OmegaConf.to_yaml(cfg, resolve=False).encode())
    log.info("Resuming %s at %d env steps, %d updates (%d threads)",
             folder, trainer.state.env_steps, trainer.state.updates, threads)  # fmt: skip
    return _finish(trainer)


def refuse_change(saved: Any, cfg: DictConfig) -> None:
    """Some values belong to what a checkpoint holds and cannot change in the middle of a run."""
    for key in ("seed", "env.id", "env.num_envs", "replay.capacity", "trainer.rollout_length"):
        before, now = OmegaConf.select(saved, key), OmegaConf.select(cfg, key)
        if before != now:
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
    validate(cfg)
    check_regime(cfg)


def build(cfg: DictConfig, folder: Path) -> Trainer:
    """Everything that a run is made of, from its config."""
    env_cfg: EnvConfig = OmegaConf.to_object(cfg.env)  # type: ignore[assignment]
    simulator = env_cfg.id != NO_ENV
    data = None if simulator else read_dataset(cfg)  # first of all, where the Spec comes from it
    spec = env_spec(env_cfg) if data is None else spec_of_dataset(data)
    check_spec(cfg, spec)
    phases = list(cfg.trainer.phases.values())
    collects = any(phase.collect > 0 for phase in phases)
    if collects and not simulator:
        raise UserError("env=none has nothing to collect from; use trainer=offline, or choose an env.")
    reward = instantiate(cfg.reward, trust=cfg.trust)
    with choose_device(cfg.device):  # weights and optimizer states are made there
        learner: Learner = instantiate(cfg.algo, spec, trust=cfg.trust)
    dataset, prior = load_prior(cfg, spec, reward, learner, data) if cfg.dataset is not None else (None, None)
    envs = make_vector_env(env_cfg) if collects else None
    replay = None
    if envs is not None and any(phase.collect > 0 and not phase.on_policy for phase in phases):
        replay = make_replay(cfg, spec, envs.num_envs, prior)
        if type(replay).connect is not Replay.connect:  # it asks the env for rewards as long as the run lasts
            replay.connect(make_env(env_cfg), reward)
    trainer: Trainer = instantiate(
        cfg.trainer,
        cfg,
        learner,
        make_bus(cfg),
        reward,
        folder,
        envs=envs,
        eval_envs=make_vector_env(env_cfg, min(cfg.trainer.eval_episodes, 10)) if simulator else None,
        replay=replay,
        prior=prior,
        dataset=dataset,
        trust=cfg.trust,
    )
    return trainer


def check_callbacks(trainer: Trainer) -> None:
    """Have callbacks refuse what they cannot do before the run folder is written to."""
    try:
        trainer.bus.check(trainer)
    except UserError:
        trainer.close()
        raise


def load_prior(
    cfg: DictConfig, spec: Spec, reward: RewardTransform, learner: Learner, data: TransitionDataset | None = None
) -> tuple[TransitionDataset, DatasetReplay]:
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
    return dataset, DatasetReplay(dataset, spec, cfg.algo.discount, cfg.replay.n_step, int(cfg.seed))


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


def make_replay(cfg: DictConfig, spec: Spec, num_envs: int, prior: Replay | None) -> Replay:
    """The replay of an online run; its size is said before anything is written into it."""
    budget = cfg.trainer.max_env_steps
    node = cfg.replay
    if budget is not None and budget < node.capacity:
        node = OmegaConf.merge(node, {"capacity": max(int(budget), num_envs)})  # never needs more
    like_prior = {}
    if prior is not None:  # rows of both go into the same batches
        like_prior = {"mc_return": "mc_return" in prior.layout.slices, "outside": prior.layout.outside}
    replay: Replay = instantiate(node, spec, num_envs, cfg.algo.discount, int(cfg.seed), trust=cfg.trust, **like_prior)
    log.info("Replay: %s transitions, %.1f MiB", f"{replay.capacity:,}", replay.nbytes / 2**20)
    return replay


def make_bus(cfg: DictConfig) -> CallbackBus:
    """Callbacks, loggers and the schedule on one bus."""
    found: dict[str, Callback] = {"schedule": instantiate(cfg.schedule, trust=cfg.trust)}
    for group in (cfg.callbacks, cfg.logger):
        for name, node in (group or {}).items():
            if node is None:  # callbacks.evaluate=null: as ~callbacks.evaluate
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
    return Result(summary, trainer.run_dir, trainer.learner)


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
        "algo": cfg.algo.name,
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
    return Path("multirun_outputs") / "runs" / f"{cfg.algo.name}__{env}__seed{cfg.seed}__{stamp}"


def set_threads(cfg: DictConfig, saved: int | None = None) -> int:
    """Choose and set torch's threads: as asked, as the checkpoint had it, else by the size of the networks."""
    widest = max(cfg.algo.hidden, default=1)
    chosen = cfg.threads or saved or (1 if widest < 256 else min(4, os.cpu_count() or 1))
    if saved and chosen != saved:
        log.warning("The run had %d threads and now has %d: results may differ in the last bits.", saved, chosen)
    torch.set_num_threads(chosen)
    keep_freed_memory()
    return int(chosen)


def choose_device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()  # device=meta has no numbers to give
    except (RuntimeError, AssertionError) as error:
        raise UserError(
            f"device={name} is not available here ({str(error).splitlines()[0]}); use device=cpu."
        ) from error
    return device


def env_spec(cfg: EnvConfig) -> Spec:
    env = make_env(cfg)
    spec = spec_of(env, cfg.id)
    env.close()
    return spec


def refuse_foreign_env(cfg: DictConfig, trust: tuple[str, ...]) -> None:
    """An env id with a module in it would import that module: a saved config may not ask for this by itself."""
    module, colon, _ = str(cfg.env.id).partition(":")
    if colon and not trusted(module, trust):
        raise UserError(f"The saved config wants to import {module} for its env; add trust=[{module}] to allow it.")


# -- using what was trained ------------------------------------------------------------------------------------------


def _restore_learner(path: str | Path, trust: tuple[str, ...]) -> tuple[Learner, DictConfig]:
    folder = find_checkpoint(Path(path))
    try:
        saved = read_folder(folder)
    except DamagedCheckpoint as error:
        raise UserError(f"{folder} is damaged ({error}); use another checkpoint of the run.") from error
    cfg = load_config(saved.config, (), trust)
    learner: Learner = instantiate(cfg.algo, saved.spec, trust=trust)
    learner.load_tensors(saved.tensors["learner"])
    learner.load_counters(saved.state["learner"])
    return learner.eval(), cfg


def _restore_to_act(path: str | Path, trust: tuple[str, ...]) -> tuple[Learner, DictConfig]:
    """As `_restore_learner`, where the policy's env is going to be made: it has to be allowed, and to be there."""
    learner, cfg = _restore_learner(path, trust)
    refuse_foreign_env(cfg, trust)
    if cfg.env.id == NO_ENV:
        raise UserError("This policy was trained with env=none: there is no simulator to run it in.")
    return learner, cfg


def load(path: str | Path, trust: tuple[str, ...] = ()) -> Policy:
    """The policy in a run folder (its best) or a checkpoint folder."""
    return Policy(_restore_learner(path, trust)[0])


def evaluate(path: str | Path, episodes: int = 10, seed: int = 0, trust: tuple[str, ...] = ()) -> dict[str, Any]:
    """Raw returns of the deterministic policy in fresh environments."""
    if episodes < 1:
        raise UserError(f"episodes={episodes} is not possible; give at least 1.")
    check_seed(seed)
    learner, cfg = _restore_to_act(path, trust)
    envs = make_vector_env(OmegaConf.to_object(cfg.env), min(episodes, 10))  # type: ignore[arg-type]
    try:
        found = evaluate_learner(learner, envs, episodes, seed)
    finally:
        envs.close()
    return {
        "algo": cfg.algo.name,
        "env": cfg.env.id,
        "checkpoint": str(find_checkpoint(Path(path))),
        "episodes": episodes,
        "seed": seed,
        **found.metrics(str(cfg.env.id)),
        "returns": found.returns.tolist(),
    }


def predict(path: str | Path, obs: Any, trust: tuple[str, ...] = ()) -> Any:
    """The deterministic action for one observation (or a batch), as plain numbers."""
    return np.asarray(load(path, trust).act(obs)).tolist()


# -- data ------------------------------------------------------------------------------------------------------------


def collect(
    path: str | Path, id: str, episodes: int = 100, noise: float = 0.0, seed: int = 0, trust: tuple[str, ...] = ()
) -> Path:
    """Roll a policy out into a Minari dataset; the folder it was written to."""
    if episodes < 1:
        raise UserError(f"episodes={episodes} is not possible; give at least 1.")
    if noise < 0:
        raise UserError(f"noise={noise} is not possible; give 0 or more.")
    check_seed(seed)
    if not re.fullmatch(r"([\w-]{2,}/)*[\w-]+-v\d+", id):
        raise UserError(f"id={id} is no Minari id; give one such as id=my/dataset-v0.")
    storage = minari_root()
    if (storage / id).exists():
        raise UserError(f"The dataset {id} exists already in {storage}; choose another id, or delete it.")
    learner, cfg = _restore_to_act(path, trust)
    if learner.spec.goal is not None:
        raise UserError(f"{cfg.env.id} is a goal env, whose dict observations collect cannot write; use another env.")
    envs = make_vector_env(OmegaConf.to_object(cfg.env), min(episodes, 10))  # type: ignore[arg-type]
    try:
        with seeded(seed, next(iter(learner.parameters())).device):
            policy = Policy(learner)
            found = collect_episodes(policy.act_scaled, envs, learner.spec, episodes, noise, seed)
    finally:
        envs.close()
    text = f"{episodes} episodes of {cfg.algo.name} on {cfg.env.id} with noise {noise}"
    folder = write_minari(id, found, str(cfg.env.id), storage, algorithm=str(cfg.algo.name), description=text)
    returns = [float(e.reward.sum()) for e in found]
    log.info("%s: %d transitions, return %.1f +- %.1f", folder, sum(len(e.reward) for e in found),
             np.mean(returns), np.std(returns))  # fmt: skip
    return folder


def inspect_data(source: str | Path, env: str | None = None) -> list[tuple[str, str]]:
    """What is in a dataset, as rows of a table; with an env preset or id, also whether it fits."""
    dataset = load_transition_dataset(source)
    spec = None
    if env is not None:
        preset = (conf_dir() / "env" / f"{env}.yaml").is_file()
        cfg = compose_config([f"env={env}"] if preset else [f"env.id={env}"])
        spec = env_spec(OmegaConf.to_object(cfg.env))  # type: ignore[arg-type]
    return inspect_dataset(dataset, spec)
