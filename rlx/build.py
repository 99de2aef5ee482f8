"""From a config to a Trainer, and from a checkpoint to a learner that acts."""

from __future__ import annotations

import functools
import inspect
import logging
import math
import sys
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig, OmegaConf

from rlx.agent import LearnerAgent
from rlx.callbacks.bus import Callback, CallbackBus
from rlx.checkpoint import EXPORT, CheckpointData, DamagedCheckpoint, find_checkpoint, read_folder
from rlx.collectors import Collector, LocalConfig
from rlx.config import (
    PYTHON,
    as_written,
    check_spec,
    instantiate,
    learner_class,
    load_config,
    loggers,
    module_names,
    refuse_foreign_env,
    trusted,
)
from rlx.data.augment import Augment
from rlx.data.dataset import TransitionDataset
from rlx.data.frames import stacked_frames
from rlx.data.reader import Reader
from rlx.data.replay import DatasetReplay, Replay
from rlx.data.sources import finish
from rlx.data.specs import spec_of_dataset
from rlx.data.store import Layout
from rlx.data.windows import WindowReader
from rlx.envs import for_training, make_env, make_vector_env, probe, spec_of
from rlx.envs.factory import EnvConfig
from rlx.envs.observations import flattened_picture
from rlx.envs.vector import VectorEnv
from rlx.errors import UserError, shown
from rlx.exports.folder import read_export
from rlx.given import NOTHING, EnvLike, Given
from rlx.learner import Learner
from rlx.nn.encoders import AutoConfig
from rlx.nn.native.choose import acts_natively
from rlx.restoring import check_like, restoring
from rlx.rewards import RewardTransform
from rlx.rng import seeded
from rlx.system import Allocation, available_memory, choose_device, enough_memory
from rlx.trainers.trainer import Trainer
from rlx.types import NO_ENV, OBS, Batch, Spec, Windows

log = logging.getLogger("rlx")


def build(cfg: DictConfig, folder: Path, given: Given = NOTHING, progress: bool = True) -> Trainer:
    """Everything that a run is made of, from its config and from what was given besides."""
    with ExitStack() as opened:  # where something fails, the envs that were made before are closed
        trainer = _build(cfg, folder, given, progress, opened)
        opened.pop_all()
    return trainer


def _build(cfg: DictConfig, folder: Path, given: Given, progress: bool, opened: ExitStack) -> Trainer:
    env_cfg = given.env_config(cfg)
    simulator = env_cfg.id != NO_ENV
    data = given.dataset  # read by now, or first of all, where the Spec comes from it
    if not simulator and data is None:
        data = read_dataset(cfg)
    spec = env_spec(env_cfg, cfg.trust, warn=True) if simulator or data is None else spec_of_dataset(data)
    check_spec(cfg, spec)
    phases = list(cfg.trainer.phases.values())
    collects = any(phase.collect > 0 for phase in phases)
    if collects and not simulator:
        raise UserError("env=none has nothing to collect from; use trainer=offline, or choose an env.")
    single = given.env is not None and given.env.single
    if single and collects:
        raise UserError(
            f"A run that collects has envs to learn in and others to evaluate in, and one {env_cfg.id} was given; "
            "give a function that makes them: env=lambda: MyEnv()."
        )
    reward = instantiate(cfg.reward, trust=cfg.trust)
    with choose_device(cfg.device), within_memory(cfg):  # weights and optimizer states are made there
        learner = make_learner(cfg, spec, cfg.trust)
    check_batches(cfg, spec)
    dataset, prior = load_prior(cfg, spec, reward, learner, data) if cfg.dataset is not None else (None, None)
    collector: Collector | None = None
    if collects:
        make_envs = functools.partial(make_vector_env, for_training(env_cfg), trust=cfg.trust)
        node = OmegaConf.structured(LocalConfig) if cfg.collector is None else cfg.collector  # older runs have none
        collector = instantiate(node, learner, make_envs, reward, int(cfg.seed), trust=cfg.trust)
        opened.callback(collector.close)
    replay = None
    if collector is not None and any(phase.collect > 0 and not phase.on_policy for phase in phases):
        frames = frames_of(env_cfg, spec, cfg.trust)
        replay = make_replay(cfg, spec, collector.num_envs, prior, frames, folder)
        if replay.needs_env:  # it asks the env for rewards as long as the run lasts
            goal_env = make_env(env_cfg, cfg.trust)
            opened.callback(goal_env.close)
            replay.attach_env(goal_env, reward)
    eval_envs = None
    if simulator:
        eval_envs = make_vector_env(env_cfg, 1 if single else min(cfg.trainer.eval_episodes, 10), cfg.trust)
        opened.callback(eval_envs.close)
    trainer: Trainer = instantiate(
        cfg.trainer,
        cfg,
        learner,
        make_bus(cfg, progress),
        reward,
        folder,
        collector=collector,
        eval_envs=eval_envs,
        replay=replay,
        prior=prior,
        dataset=dataset,
        env_config=env_cfg if simulator else None,
        augment=make_augment(cfg, spec, learner),
        trust=cfg.trust,
    )
    return trainer


def make_learner(cfg: DictConfig, spec: Spec, trust: Sequence[str]) -> Learner:
    """The learner of a config, with the encoder that its networks are to have."""
    extra: dict[str, Any] = {}
    if "encoder" in inspect.signature(learner_class(cfg)).parameters:  # not in every algorithm of a user's own
        node = OmegaConf.structured(AutoConfig) if cfg.encoder is None else cfg.encoder  # older runs have none
        if not trusted(str(node.get("_target_", "rlx")), ()):  # the user's own takes keys, whichever choice it replaces
            node = OmegaConf.create(OmegaConf.to_container(node, resolve=True))
        extra["encoder"] = functools.partial(instantiate, node, trust=trust)
    learner: Learner = instantiate(cfg.algo, spec, trust=trust, **extra)
    return learner


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
    nbytes = rows * Layout(spec).batch_bytes
    with enough_memory(nbytes, f"What an iteration learns from, {rows:,} rows,", _smaller_batches):
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
    if learner.needs_returns:
        if not np.array_equal(dataset.reward, dataset.raw_reward):
            raise UserError(f"algo={cfg.algo.name} learns from returns in the env's units; use reward=identity.")
        learner.set_returns(torch.from_numpy(dataset.returns()))
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


def frames_of(cfg: EnvConfig, spec: Spec, trust: Sequence[str]) -> dict[str, int] | None:
    """How many frames the images of the envs that a run learns in stack, by box; None without images of uint8."""
    if not any(box.is_image and box.dtype == "uint8" for box in spec.obs.values()):
        return None
    with closing(make_env(for_training(cfg), trust)) as env:
        return stacked_frames(env, spec)


def make_replay(
    cfg: DictConfig,
    spec: Spec,
    num_envs: int,
    prior: Reader | None,
    frames: dict[str, int] | None = None,
    folder: Path | None = None,
) -> Replay:
    """The replay of an online run."""
    budget = cfg.trainer.max_env_steps
    node = cfg.replay
    if budget is not None and budget < node.capacity:
        node = OmegaConf.merge(node, {"capacity": max(int(budget), num_envs)})  # never needs more
    where = {"folder": folder} if node.get("memory") == "mmap" else {}
    replay: Replay = instantiate(
        node, spec, num_envs, cfg.algo.discount, int(cfg.seed), trust=cfg.trust, prior=prior, frames=frames, **where
    )
    return replay


def make_augment(cfg: DictConfig, spec: Spec, learner: Learner) -> Augment | None:
    """What changes the pictures of minibatches, if anything does."""
    if cfg.augment is None:  # as in older runs
        return None
    augment: Augment | None = instantiate(cfg.augment, spec, int(cfg.seed), trust=cfg.trust)
    if augment is not None and learner.reads is not Batch:
        raise UserError(f"augment=... changes minibatches, which algo={cfg.algo.name} does not read; use augment=none.")
    return augment


def make_bus(cfg: DictConfig, progress: bool = True) -> CallbackBus:
    """Callbacks, loggers and the schedule on one bus; without `progress`, all but the one that shows it."""
    callbacks: dict[str, Callback] = {"schedule": instantiate(cfg.schedule, trust=cfg.trust)}
    for group in (cfg.callbacks, loggers(cfg)):
        for name, node in (group or {}).items():
            if node is None or (name == "progress" and not progress):  # callbacks.evaluate=null: as ~callbacks.evaluate
                continue
            callbacks[str(name)] = instantiate(node, trust=cfg.trust)
    return CallbackBus(callbacks)


def env_spec(cfg: EnvConfig, trust: Sequence[str] = (), warn: bool = False) -> Spec:
    """What an env looks like to a learner; with `warn`, also a word on pictures that are not read as such."""
    with closing(make_env(cfg, trust)) as env:
        probe(env, cfg)
        spec, picture = spec_of(env, cfg.id), flattened_picture(env)
    if warn and picture is not None:
        height, width = picture
        log.warning(
            "%s gives grey pictures of %d x %d pixels without an axis for the channel, which are read as vectors of "
            "%s numbers; to read them as images, add 'env.wrappers.image={_target_: ReshapeObservation, shape: "
            "[%d, %d, 1]}'.", cfg.id, height, width, f"{height * width:,}", height, width
        )  # fmt: skip
    return spec._replace(episode_limit=spec.episode_limit or cfg.max_episode_steps)


# -- from a checkpoint to a learner that acts --------------------------------------------------------------------------


def read_saved(path: str | Path) -> CheckpointData:
    """The checkpoint meant by a path, or an exported policy in the place of one."""
    folder = find_checkpoint(Path(path))
    try:
        return read_export(folder) if (folder / EXPORT).is_file() else read_folder(folder)
    except DamagedCheckpoint as error:
        raise UserError(f"{folder} is damaged ({error}); use another checkpoint of the run.") from error


def restore_learner(path: str | Path, trust: tuple[str, ...]) -> tuple[Learner, DictConfig]:
    return learner_of(read_saved(path), trust)


def learner_of(saved: CheckpointData, trust: tuple[str, ...]) -> tuple[Learner, DictConfig]:
    """A learner that acts, and the config that it was trained with."""
    trust = module_names(trust)
    cfg = load_config(saved.config, (), trust, use=("algo", "env", "encoder"))
    learner_class(cfg)
    folder = saved.path or Path()
    with restoring(folder):
        check_spec(cfg, saved.spec)
        tensors = saved.tensors["learner"]
        whole = any(not name.startswith("model.") for name in tensors)  # has it optimizers, two numbers per weight?
        size = sum(tensor.nbytes for tensor in tensors.values()) * (1 if whole else 3)
        limit = 2 * size + 2**26  # which all of the learner's are among
        with Allocation(limit, f"The config of {folder} describes larger networks than its tensors are from."):
            learner = make_learner(cfg, saved.spec, trust)
        check_like(saved.state["learner"], learner.counters(), "learner")
        learner.load_tensors(tensors, whole)
        learner.load_counters(saved.state["learner"])
        learner.eval()
        learner.native = acts_natively(bool(saved.state.get("native", False)))
        with seeded(0, torch.device("cpu")):  # some values are read by acting alone
            boxes = {name: np.zeros((1, *box.shape), box.dtype) for name, box in saved.spec.obs.items()}
            LearnerAgent(learner, 1).act(boxes if saved.spec.boxes else boxes[OBS])
    return learner, cfg


def restore_to_act(
    path: str | Path, trust: tuple[str, ...], env: EnvLike | None = None, episodes: int = 10
) -> tuple[Learner, DictConfig, VectorEnv, str]:
    """As `restore_learner`, with envs to run the policy in, those of the run or those that are given, and their id."""
    learner, cfg, env_cfg, lanes = restore_with_env(path, trust, env)
    return learner, cfg, make_vector_env(env_cfg, min(episodes, lanes), trust=module_names(trust)), env_cfg.id


def restore_with_env(
    path: str | Path, trust: tuple[str, ...], env: EnvLike | None = None
) -> tuple[Learner, DictConfig, EnvConfig, int]:
    """As `restore_learner`, with how to make envs to run the policy in, and how many there may be at a time."""
    trust = module_names(trust)
    learner, cfg = restore_learner(path, trust)
    given = Given.of(env, None)
    if given.env is not None:
        env_cfg = given.env_config(cfg)
        if not cfg.env.id.startswith(PYTHON):  # how the envs of the run were made says nothing about these
            env_cfg = replace(
                env_cfg, kwargs={}, wrappers={}, vectorization="auto", step_timeout=None, max_episode_steps=None
            )
        check_same_env(learner.spec, env_spec(env_cfg))
        return learner, cfg, env_cfg, 1 if given.env.single else 10
    refuse_foreign_env(cfg, trust)
    if cfg.env.id == NO_ENV:
        raise UserError("This policy was trained with env=none: there is no simulator to run it in.")
    env_cfg = given.env_config(cfg)
    check_same_env(learner.spec, env_spec(env_cfg, trust))
    return learner, cfg, env_cfg, 10


def check_same_env(saved: Spec, spec: Spec) -> None:
    """Refuse an env whose spaces differ from those of a checkpoint."""
    for name in ("obs_shape", "obs_dtype", "boxes", "action_kind", "action_shape", "action_sizes"):
        before, now = getattr(saved, name), getattr(spec, name)
        if before != now:
            raise UserError(
                f"The checkpoint was made in an env with {name}={shown(before)}, and {spec.env_id} has "
                f"{name}={shown(now)}; use the env that it was trained with."
            )
