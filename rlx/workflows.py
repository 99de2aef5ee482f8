"""The verbs as plain functions: train, resume, evaluate, watch, predict, load, export, collect, inspect_data.

The command line is a thin shell around these.
"""

from __future__ import annotations

import json
import logging
import re
import shlex
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import DictConfig, OmegaConf

from rlx.agent import LearnerAgent
from rlx.build import (
    build,
    check_same_env,
    env_spec,
    learner_of,
    read_saved,
    restore_learner,
    restore_to_act,
    restore_with_env,
)
from rlx.checkpoint import CheckpointStore, DamagedCheckpoint, find_checkpoint
from rlx.choices import by_name, choices
from rlx.config import (
    GROUPS,
    as_text,
    as_written,
    check,
    check_seed,
    compose_config,
    env_modules,
    fit_numbers,
    from_values,
    load_config,
    module_names,
    needed_trust,
    parse,
    read_config,
    references,
    refuse_change,
    refuse_foreign_env,
    take_trust,
    tell_changes,
    with_config_dir,
)
from rlx.data.collect import collect_episodes
from rlx.data.episodes import apply_choices
from rlx.data.inspect import inspect_dataset
from rlx.data.minari import check_recordable, minari_root, write_minari
from rlx.data.sources import choices_of, load_transition_dataset
from rlx.envs.evaluation import evaluate_learner
from rlx.envs.rendering import WINDOW, has_screen, make_rendered
from rlx.envs.vector import SyncEnvs
from rlx.errors import UserError, nearest, shown
from rlx.exports.make import FORMATS, export_policy
from rlx.files import write_atomically
from rlx.given import NOTHING, DataLike, EnvLike, Given, check_given, objects_of
from rlx.learner import Learner
from rlx.nn.native.choose import is_native, set_native
from rlx.policy import Policy
from rlx.reporting import closing_lines, counted, evaluation, in_digits, showing
from rlx.restoring import restoring
from rlx.rng import seed_everything, seeded
from rlx.run_folder import (
    RunLock,
    default_run_dir,
    note_resume,
    refuse_link,
    refuse_links,
    refuse_second_run,
    write_errors_explained,
)
from rlx.summary import nothing_to_do, summarise, summary_of
from rlx.system import interruptible, memory_errors, set_threads
from rlx.trainers.trainer import Trainer
from rlx.types import NO_ENV
from rlx.video import check_path, check_video, record

log = logging.getLogger("rlx")


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


# -- train and resume --------------------------------------------------------------------------------------------------


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
        return _with_closing_lines(run(cfg, texts, run_dir, given, progress and not quiet))


def _with_closing_lines(result: Result) -> Result:
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
    """Train a composed config from the beginning. The user typed all of it, including the modules of envs."""
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
    set_native(cfg.native)
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
            log.info("Run folder: %s (%s%s)", folder, threads, ", native nodes" if is_native() else "")
            return _finish(trainer)


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
        return _with_closing_lines(
            resume_run(run_dir, *overrides, given=Given.of(env, dataset), trust=trust, progress=not quiet)
        )


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
    trust = (*module_names(trust), *take_trust(rest))
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
    set_native(cfg.native, saved.state.get("native", False) if saved else None)
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
                trainer.learner.native = is_native()
                return Result(summary, folder, trainer.learner, needed_trust(cfg), objects_of(cfg))
            tell_changes(folder, text, saved.config)
        trainer.bus.check(trainer)
        before = trainer.state.steps
        with write_errors_explained(folder, lambda: trainer.state.steps > before):
            (folder / "summary.json").unlink(missing_ok=True)  # only runs that have ended have one
            if saved is not None:
                store.forget_after(saved)
                if not trainer.state.exact:
                    log.warning("The environment could not be replayed to where it was: the run goes on, but "
                                "only approximately.")  # fmt: skip
            note_resume(folder, list(overrides), trainer.state.env_steps, trainer.state.updates)
            write_atomically(folder / "config.yaml", OmegaConf.to_yaml(cfg, resolve=False).encode())
            log.info("Resuming %s at %s, %s (%s)", folder, counted(trainer.state.env_steps, "env step"),
                     counted(trainer.state.updates, "update"), threads)  # fmt: skip
            return _finish(trainer)


def tell_replay(trainer: Trainer) -> None:
    """The size of a run's replay, once nothing can be refused any more."""
    replay = trainer.replay
    if replay is not None:
        on_disk = " on disk" if trainer.cfg.replay.get("memory") == "mmap" else ""
        size = replay.nbytes / 2**20
        log.info("Replay: %s, %.1f MiB%s", counted(replay.capacity, "transition"), size, on_disk)


def tell_no_update(trainer: Trainer) -> None:
    """That the budget ends before the first update, as a first look may do where many random steps come first."""
    limit = trainer.plan.max_env_steps
    phases = [phase for phase in trainer.plan.phases.values() if phase.updates != 0]
    if limit is None or trainer.state.updates or any(phase.collect == 0 or phase.on_policy for phase in phases):
        return
    phase = phases[0]
    starts = (phase.random_steps, phase.start_after, phase.min_buffer_size)
    keys = dict(zip(("learning_starts", "warmup_steps", "min_buffer_size"), starts, strict=True))
    key, first = max(keys.items(), key=lambda item: item[1])
    if limit <= first:
        log.warning(
            "No update will be made: the first one comes after trainer.%s=%d env steps, and trainer.max_env_steps=%d "
            "ends the run before; lower the one or raise the other.", key, first, limit,
        )  # fmt: skip


def tell_no_checkpoint(trainer: Trainer) -> None:
    """That `callbacks=video` is not what `callbacks=[default,video]` is; `~callbacks.checkpoint` is meant as typed."""
    chosen = str(trainer.cfg.choices.get("callbacks"))
    if not {"checkpoint", "evaluate"} & trainer.cfg.callbacks.keys() and chosen in trainer.cfg.callbacks:
        log.warning(
            "callbacks=%s is all that this run has: no evaluation, no checkpoints and no progress; "
            "callbacks=[default,%s] adds it to them.", chosen, chosen,
        )  # fmt: skip


def _finish(trainer: Trainer) -> Result:
    with interruptible(trainer):
        try:
            tell_replay(trainer)
            tell_no_update(trainer)
            tell_no_checkpoint(trainer)
            trainer.run()
            summary = summarise(trainer)
            write_atomically(trainer.run_dir / "summary.json", json.dumps(summary, indent=2).encode())
        except BaseException:
            with suppress(Exception):  # what ended the run is what is told
                trainer.close()
            raise
        trainer.close()  # last: an env that fails here loses nothing
    trainer.learner.native = is_native()  # it acts by what it was trained with, whatever later runs take
    return Result(summary, trainer.run_dir, trainer.learner, needed_trust(trainer.cfg), objects_of(trainer.cfg))


# -- using what was trained --------------------------------------------------------------------------------------------


@memory_errors()
def load(path: str | Path, trust: tuple[str, ...] = ()) -> Policy:
    """The policy in a run folder (its best) or a checkpoint folder."""
    return Policy(restore_learner(path, trust)[0])


@memory_errors()
def evaluate(
    path: str | Path,
    episodes: int | None = None,
    seed: int = 0,
    trust: tuple[str, ...] = (),
    env: EnvLike | None = None,
    video: str | Path | None = None,
    **options: float,
) -> dict[str, Any]:
    """Raw returns of the deterministic policy in fresh environments: those of the run, or what `env` makes.

    path      a run folder, which stands for its best checkpoint, a checkpoint folder or an export
    episodes  10 of them, or 3 that are recorded, unless given
    trust     modules besides rlx whose code may be used
    env       an env or a function that makes one, with the spaces that the policy was trained with
    video     an mp4 file to record the episodes in; an env of your own needs render_mode="rgb_array" for it
    options   numbers that the policy takes when it acts: target_return=3000 of a Decision Transformer
    """
    episodes = (10 if video is None else 3) if episodes is None else episodes
    _check_episodes(episodes, seed)
    if video is not None:
        check_path(Path(video))
        learner, cfg, env_cfg, _ = restore_with_env(path, trust, env)
        learner.set_options(options)
        env_id = env_cfg.id
        check_video(env_cfg, module_names(trust))
        outcome = record(learner, env_cfg, Path(video), episodes, seed, module_names(trust)).episodes
    else:
        learner, cfg, envs, env_id = restore_to_act(path, trust, env, episodes)
        try:
            learner.set_options(options)
            outcome = evaluate_learner(learner, envs, episodes, seed)
        finally:
            envs.close()
    return {
        "algo": as_written(cfg).algo.name,
        "env": env_id,
        "checkpoint": str(find_checkpoint(Path(path))),
        "episodes": episodes,
        "seed": seed,
        **options,
        **outcome.metrics(env_id),
        "returns": outcome.returns.tolist(),
    }


@memory_errors()
def watch(
    path: str | Path,
    episodes: int = 3,
    seed: int = 0,
    trust: tuple[str, ...] = (),
    env: EnvLike | None = None,
) -> None:
    """Open a window and show episodes of the deterministic policy; arguments as for `evaluate`.

    An env of your own needs render_mode="human" for it.
    """
    _check_episodes(episodes, seed)
    if not has_screen():
        raise UserError(
            "There is no screen here to open a window on; record the policy instead: python -m rlx evaluate "
            f"{shlex.quote(str(path))} --video policy.mp4"
        )
    learner, _, env_cfg, _ = restore_with_env(path, trust, env)
    shown_env = make_rendered(env_cfg, WINDOW, module_names(trust))
    try:
        outcome = evaluate_learner(learner, SyncEnvs([lambda: shown_env], env_cfg.id), episodes, seed)
    finally:
        shown_env.close()
    log.info("returns %s", ", ".join(in_digits(ret) for ret in outcome.returns))


def _check_episodes(episodes: int, seed: int) -> None:
    if episodes < 1:
        raise UserError(f"episodes must be at least 1 (episodes={episodes}).")
    check_seed(seed)


def predict(path: str | Path, obs: Any, trust: tuple[str, ...] = ()) -> Any:
    """The deterministic action for one observation (or a batch), as plain numbers."""
    return np.asarray(load(path, trust).act(obs)).tolist()


@memory_errors()
def export(
    path: str | Path,
    format: str = "onnx",
    out: str | Path | None = None,
    license: str | None = None,
    trust: tuple[str, ...] = (),
) -> Path:
    """Write the deterministic policy as a folder that other tools and `rlx.load` read; the folder.

    path     a run folder, which stands for its best checkpoint, or a checkpoint folder
    format   "onnx": one graph beside the weights; "torch": the weights alone
    out      the folder to write; by default RUN/exports/FORMAT
    license  what the card says, for example "mit"
    """
    if format not in FORMATS:
        guess = nearest(format, FORMATS)
        meant = f" Did you mean {guess}?" if guess else ""
        raise UserError(f"Unknown format {shown(format)!r}.{meant} Choices: {', '.join(FORMATS)}.")
    if license is not None and not re.fullmatch(r"[\w.+-]{1,40}", license):
        raise UserError(f"license={shown(license)} is not the identifier of a licence; for example license=mit.")
    saved = read_saved(path)
    run_dir = run_of(Path(path), saved.path)
    if out is None and run_dir is None:
        raise UserError(f"{path} is not inside a run folder; say where to write the export: --out DIR.")
    if out is None and run_dir is not None:
        refuse_link(run_dir / "exports")
    folder = Path(out) if out is not None else run_dir / "exports" / format  # type: ignore[operator]
    learner, cfg = learner_of(saved, trust)
    export_policy(folder, learner, cfg, saved, run_dir, format == "onnx", module_names(trust), license)
    log.info("%s", folder)
    return folder


def run_of(path: Path, checkpoint: Path | None) -> Path | None:
    """The run folder that a path means or lies in."""
    folders = [path] if checkpoint is None else [path, checkpoint.parent.parent]
    return next((folder for folder in folders if (folder / "config.yaml").is_file()
                 and (folder / "checkpoints").is_dir()), None)  # fmt: skip


# -- data --------------------------------------------------------------------------------------------------------------


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
    _check_episodes(episodes, seed)
    if not 0 <= noise < float("inf"):
        raise UserError(f"noise must be at least 0 and finite (noise={noise}).")
    if not re.fullmatch(r"([\w-]{2,}/)*[\w-]+-v\d+", id):
        raise UserError(f"id={id} is not a Minari id; give one such as id=my/dataset-v0.")
    storage = minari_root()
    if (storage / id).exists():
        raise UserError(f"The dataset {id} exists already in {storage}; choose another id, or delete it.")
    learner, cfg, envs, env_id = restore_to_act(path, trust, env, episodes)
    try:
        check_recordable(env_id)
        if cfg.env.wrappers and env is None:
            raise UserError(
                "collect writes what the env itself gives, and the env.wrappers of this run change that; give an env "
                "of your own from Python: rlx.collect(RUN, ID, env=...)."
            )
        if learner.spec.goal is not None:
            raise UserError(f"{cfg.env.id} is a goal env, whose observations collect cannot write; use another env.")
        with seeded(seed, next(iter(learner.parameters())).device):
            recorded = collect_episodes(LearnerAgent(learner, envs.num_envs), envs, learner.spec, episodes, noise, seed)
    finally:
        envs.close()
    algo = str(as_written(cfg).algo.name)
    text = f"{counted(episodes, 'episode')} of {algo} on {env_id} with noise {noise}"
    folder = write_minari(id, recorded, env_id, storage, algorithm=algo, description=text)
    returns = [float(e.reward.sum()) for e in recorded]
    log.info("%s: %s, return %.1f +- %.1f", folder, counted(sum(len(e.reward) for e in recorded), "transition"),
             np.mean(returns), np.std(returns))  # fmt: skip
    return folder


@memory_errors()
def inspect_data(
    source: str | Path, env: str | None = None, terminals: str = "check", episodes: str = "check"
) -> list[tuple[str, str]]:
    """What is in a dataset, as rows of a table; with an env preset or id, also whether it fits.

    `terminals` and `episodes` are what a run would have in `dataset.terminals` and `dataset.episodes`.
    """
    settled = choices_of(terminals, episodes)
    dataset = load_transition_dataset(source)
    spec = None
    if env is not None and env != NO_ENV:
        by_choice = env in choices("env") or by_name(env) is not None
        # as it is by itself: a tuned pair of the default algorithm may make its actions others
        cfg = compose_config([f"env={env}", "~algo_env"] if by_choice else [f"env.id={env}"])
        spec = env_spec(OmegaConf.to_object(cfg.env), env_modules(cfg))  # type: ignore[arg-type]
    limit = None if spec is None else spec.episode_limit
    return inspect_dataset(apply_choices(dataset, settled, limit, check=False), spec)
