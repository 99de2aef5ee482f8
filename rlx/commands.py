"""The verbs of the command line: from their arguments to `rlx.workflows`, and to an exit code."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import hydra
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rlx import workflows
from rlx.cli import VERBS, parse_flags
from rlx.config import compose_config, for_hydra, learners, register, take_trust, with_config_dir
from rlx.errors import RunFailed, UserError, nearest
from rlx.nn.native import build as native
from rlx.paths import conf_dir
from rlx.reporting import closing_lines, counted, in_digits, table
from rlx.sweeps import start
from rlx.sweeps.job import EXIT_CODES
from rlx.sweeps.manifest import is_sweep
from rlx.sweeps.search.settings import take_search
from rlx.sweeps.settings import first_job
from rlx.system import versions
from rlx.workflows import Result

log = logging.getLogger("rlx")


# -- train -------------------------------------------------------------------------------------------------------------


def train(arguments: list[str]) -> int:
    """Train, sweep, or show what would be trained."""
    flags = parse_flags(arguments)
    if flags.version:
        return show_version()
    if flags.hydra_help:
        return through_hydra(["--hydra-help"])

    if flags.shell_completion:
        register()
        return through_hydra(["-sc", *flags.overrides])
    overrides = with_config_dir(flags.overrides, flags.config_dir)
    if flags.multirun or "hydra.mode=MULTIRUN" in overrides:
        if not (flags.cfg or flags.info):
            return start.sweep(overrides, flags.dry_run)
        overrides = first_job(overrides)
    elif take_search(overrides)[0]:
        raise UserError(f"{take_search(overrides)[0][0]} is about a search; add -m and hydra/sweeper=optuna.")
    elif flags.dry_run:
        raise UserError("--dry-run shows the jobs of a sweep; add -m, or see the config of a run with --cfg job.")
    cfg = compose_config(overrides)
    if flags.cfg or flags.info:
        if flags.package and flags.cfg == "job":
            check_package(cfg, flags.package)
        shown = [f"--cfg={flags.cfg}"] if flags.cfg else [f"--info={flags.info}"]
        shown += [f"--package={flags.package}"] if flags.package else []
        return through_hydra([*shown, *(["--resolve"] if flags.resolve else []), *for_hydra(overrides)])
    refuse_launcher_settings(overrides)
    return report(workflows.run(cfg, overrides))


def show_version() -> int:
    known = versions()
    names = ("torch", "gymnasium", "hydra-core", "numpy")
    others = ", ".join(f"{name} {known[name]}" for name in names)
    sys.stdout.write(f"rlx {known['rlx']} ({others}, Python {known['python']})\n")
    return 0


def check_package(cfg: DictConfig, package: str) -> None:
    try:
        there = OmegaConf.select(cfg, package) is not None
    except OmegaConfBaseException:
        there = False
    if not there:
        guess = nearest(package, [str(key) for key in cfg])
        meant = f"did you mean {guess}?" if guess else f"there are: {', '.join(str(key) for key in cfg)}."
        raise UserError(f"--package={package}: the config has no such part; {meant}")


def refuse_launcher_settings(overrides: Sequence[str]) -> None:
    """Refuse settings of Hydra's launchers, which a single run would ignore."""
    for override in overrides:
        key, _, value = override.lstrip("+~").partition("=")
        if key == "hydra.run.dir":
            raise UserError(f"{override} has no effect; the folder of a run is run_dir={value or 'FOLDER'}.")
        if key.startswith(("hydra.", "hydra/")) and key not in ("hydra.searchpath", "hydra.mode"):
            raise UserError(f"{override} is for sweeps and this is a single run; add -m, or leave it out.")


def through_hydra(arguments: list[str]) -> int:
    """What Hydra itself answers; an error of its own as a sentence."""
    before, root = (sys.argv, os.environ.get("HYDRA_FULL_ERROR")), logging.getLogger()
    handlers, level = root.handlers[:], root.level
    sys.argv = ["rlx", *arguments]
    entry = hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name="config")
    os.environ["HYDRA_FULL_ERROR"] = "1"  # an exception instead of its text and exit code 1
    try:
        entry(_nothing)()
    except UserError:
        raise
    except SystemExit as end:
        return 2 if end.code else 0  # it has said why
    except Exception as error:
        first = next(iter(str(error).splitlines()), type(error).__name__)
        raise UserError(f"Hydra refuses {' '.join(arguments)} ({first.rstrip('.')}).") from error
    finally:
        sys.argv, root.handlers = before[0], handlers  # --info leaves one behind
        root.setLevel(level)
        os.environ.pop("HYDRA_FULL_ERROR", None)
        if before[1] is not None:
            os.environ["HYDRA_FULL_ERROR"] = before[1]
    return 0


def _nothing(cfg: DictConfig) -> None:
    """What is run where Hydra only shows something."""


def report(result: Result) -> int:
    """The closing table; the exit code."""
    log.info("%s", closing_lines(result.summary, result.run_dir, result.trust, result.objects))
    return EXIT_CODES.get(result.summary["stop_reason"], 0)


# -- the other verbs ---------------------------------------------------------------------------------------------------


def resume(arguments: list[str]) -> int:
    folder = _path(arguments, VERBS["resume"].usage)
    trust = take_trust(arguments)
    _refuse_flags(arguments, "resume")
    if is_sweep(folder):
        return start.resume(folder, arguments, trust)
    return report(workflows.resume_run(folder, *arguments, trust=trust))


def evaluate(arguments: list[str]) -> int:
    path = _path(arguments, VERBS["evaluate"].usage)
    as_json = "--json" in arguments
    trust = take_trust(arguments)
    video = _flag(arguments, "--video", "FILE.mp4")
    kinds: dict[str, Callable[[str], Any]] = {"episodes": int, "seed": int}
    kinds |= {option: float for cls in learners().values() for option in cls.options}
    options = _options([a for a in arguments if a != "--json"], kinds, "evaluate")
    result = workflows.evaluate(path, **options, video=video, trust=trust)
    if as_json:
        sys.stdout.write(json.dumps(result) + "\n")
        return 0
    success = f", success rate {result['eval/success_rate']:.2f}" if "eval/success_rate" in result else ""
    log.info(
        "%s on %s: return %s +- %s over %s of length %.1f%s",
        result["algo"], result["env"], in_digits(result["eval/return_mean"]), in_digits(result["eval/return_std"]),
        counted(result["episodes"], "episode"), result["eval/length_mean"], success,
    )  # fmt: skip
    if video is not None:
        log.info("Video: %s", video)
    return 0


def watch(arguments: list[str]) -> int:
    path = _path(arguments, VERBS["watch"].usage)
    trust = take_trust(arguments)
    workflows.watch(path, **_options(arguments, {"episodes": int, "seed": int}, "watch"), trust=trust)
    return 0


def export(arguments: list[str]) -> int:
    path = _path(arguments, VERBS["export"].usage)
    trust = take_trust(arguments)
    named = {"format": _flag(arguments, "--format", "onnx or torch"), "out": _flag(arguments, "--out", "DIR")}
    options = {key: value for key, value in named.items() if value is not None}
    workflows.export(path, **options, **_options(arguments, {"license": str}, "export"), trust=trust)
    return 0


def predict(arguments: list[str]) -> int:
    usage = VERBS["predict"].usage
    path = _path(arguments, usage)
    trust = take_trust(arguments)
    if len(arguments) != 2 or arguments[0] != "--obs":
        raise UserError(f"predict needs an observation; type: python -m rlx {usage}")
    try:
        obs = json.loads(_text_of(arguments[1]), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise UserError(f"--obs is not JSON ({error}); give a list of numbers such as '[0.1, 0.2]'.") from error
    try:
        action = workflows.predict(path, obs, trust)
    except (ValueError, TypeError, OverflowError) as error:
        raise UserError(f"--obs is not an observation ({error}); give a list of numbers.") from error
    sys.stdout.write(json.dumps(action) + "\n")
    return 0


def _text_of(given: str) -> str:
    """What was given, or for @FILE and - what stands in a file or comes in by standard input: pictures are long."""
    if given == "-":
        return sys.stdin.read()
    if not given.startswith("@"):
        return given
    try:
        return Path(given[1:]).read_text()
    except OSError as error:
        raise UserError(f"{given[1:]} cannot be read ({error.strerror}); give a file of JSON: --obs @FILE.") from error


def collect(arguments: list[str]) -> int:
    path = _path(arguments, VERBS["collect"].usage)
    trust = take_trust(arguments)
    options = _options(arguments, {"id": str, "episodes": int, "noise": float, "seed": int}, "collect")
    if "id" not in options:
        raise UserError("collect needs the id of the dataset it makes; add id=my/dataset-v0.")
    workflows.collect(path, **options, trust=trust)
    return 0


def inspect_data(arguments: list[str]) -> int:
    source = _path(arguments, VERBS["inspect-data"].usage)
    options = _options(arguments, {"env": str, "terminals": str, "episodes": str}, "inspect-data")
    sys.stdout.write(table(workflows.inspect_data(str(source), **options)) + "\n")
    return 0


def build_native(arguments: list[str]) -> int:
    """Build the native nodes; in the background, a failure is noted for the next run to tell."""
    background = arguments == ["--background"]
    if arguments and not background:
        raise UserError(f"build-native does not know {arguments[0]:.200}; it takes nothing.")
    if background:
        os.nice(15)
    else:
        log.info("Building the native nodes, which takes a minute or two.")
    try:
        path = native.build(again=not background)
    except native.Unavailable as error:
        raise UserError(f"Native nodes cannot be built: {error}.") from error
    except RunFailed as error:
        if background:
            native.note_failure(error)
        raise
    log.info("Built: %s", path)
    return 0


# -- arguments ---------------------------------------------------------------------------------------------------------


def _path(arguments: list[str], usage: str) -> Path:
    """Take the first argument, which has to be a path. One with a "=" in it is told from KEY=VALUE, whose key has no
    slash.
    """
    first = arguments[0] if arguments else "-"
    key, equals, _ = first.partition("=")
    if first.startswith("-") or (equals and "/" not in key and not os.path.lexists(first)):
        raise UserError(f"A path is missing; type: python -m rlx {usage}")
    return Path(arguments.pop(0))


def _flag(arguments: list[str], name: str, value: str) -> str | None:
    """Take a flag and its value, `--out DIR` or `--out=DIR`, out of the arguments; None if it is not there."""
    at = next((i for i, a in enumerate(arguments) if a == name or a.startswith(f"{name}=")), None)
    if at is None:
        return None
    _, equals, given = arguments.pop(at).partition("=")
    if not equals:
        given = arguments.pop(at) if at < len(arguments) else ""
    if not given or given.startswith("--"):
        raise UserError(f"{name} needs a value: {name} {value}.")
    return given


def _options(arguments: list[str], kinds: dict[str, Callable[[str], Any]], verb: str) -> dict[str, Any]:
    """KEY=VALUE arguments of a verb, converted."""
    words = {int: "an integer", float: "a number"}
    options = {}
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if key not in kinds or not equals:
            takes = ", ".join(f"{k}=..." for k in kinds)
            raise UserError(f"{verb} does not know {argument:.200}; it takes {takes}.")
        try:
            options[key] = kinds[key](value)
        except ValueError as error:
            kind = words.get(kinds[key], "text")  # type: ignore[call-overload]
            raise UserError(f"{key} must be {kind}, and {argument:.200} is not.") from error
    return options


def _refuse_flags(arguments: Sequence[str], verb: str) -> None:
    for argument in arguments:
        if argument.startswith("-"):
            raise UserError(f"{verb} has no flag {argument}; type: python -m rlx {VERBS[verb].usage}")


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a finite number")
