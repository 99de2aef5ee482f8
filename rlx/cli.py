"""The command line: a thin shell around `rlx.workflows`.

Exit codes: 0 done, 1 failed, 2 bad configuration or input, 130 / 143 interrupted, with a checkpoint saved unless a
second signal ended the run at once.
"""

from __future__ import annotations

import argparse
import errno
import json
import logging
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from rlx.errors import Interrupted, RunFailed, UserError, nearest
from rlx.reporting import closing_lines, counted, set_up_logging, table

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from rlx.workflows import Result

log = logging.getLogger("rlx")

EXIT_CODES = {"interrupted": 130, "terminated": 143}
PATH_ERRORS = (errno.ENAMETOOLONG, errno.EACCES, errno.ELOOP, errno.ENOTDIR)


class Verb(NamedTuple):
    """A word after `python -m rlx`."""

    run: Callable[[list[str]], int]
    usage: str
    text: str


def main(argv: Sequence[str] | None = None) -> int:
    """Run a verb; the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):  # what a terminal cannot show is shown as an escape
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    set_up_logging()
    try:
        check_text(arguments)
        return dispatch(arguments)
    except UserError as error:
        log.error("%s", error)
        return 2
    except RunFailed as error:
        log.error("%s", error)
        return 1
    except Interrupted as error:
        log.error("%s", error)
        return error.code
    except KeyboardInterrupt:
        log.error("Interrupted; no run was written to.")
        return 130
    except OSError as error:
        if error.errno in PATH_ERRORS and any(str(error.filename).startswith(a) for a in arguments):
            log.error("%.200s cannot be read (%s); give another path.", error.filename, error.strerror)
            return 2
        log.exception("The run failed.")
        return 1
    except Exception:
        log.exception("The run failed.")
        return 1


def check_text(arguments: Sequence[str]) -> None:
    """Refuse bytes that are no text, which nothing behind this could write down."""
    for argument in arguments:
        try:
            argument.encode()
        except UnicodeEncodeError as error:
            raise UserError(f"The argument {argument!r:.200} is not valid UTF-8; type it again.") from error
        if "\0" in argument:
            raise UserError(f"The argument {argument!r:.200} has a NUL character in it; leave it out.")


def dispatch(arguments: list[str]) -> int:
    """No verb means train."""
    first = arguments[0] if arguments else ""
    if first == "help":
        return show_help(arguments[1:])
    if not first or first.startswith(("-", "~", "+")) or "=" in first:
        return train(arguments)
    if first not in VERBS:
        guess = nearest(first.lower(), [*VERBS, "help"])
        hint = f"did you mean `python -m rlx {guess}`?" if guess else "`python -m rlx --help` shows the verbs."
        raise UserError(f"{first[:200]!r} is neither a verb nor KEY=VALUE; {hint}")
    if {"-h", "--help"} & set(arguments[1:]):
        return show_help([first])
    return VERBS[first].run(arguments[1:])


def show_help(verbs: Sequence[str] = ()) -> int:
    """All verbs, or one."""
    for word in verbs:
        if word not in VERBS:
            raise UserError(f"There is no verb {word!r}; `python -m rlx --help` shows them.")
    if verbs and verbs[0] != "train":
        shown = VERBS[verbs[0]]
        sys.stdout.write(f"python -m rlx {shown.usage}\n\n{shown.text}\n")
        return 0
    width = max(len(verb.usage) for verb in VERBS.values() if len(verb.usage) < 40)
    lines = []
    for verb in VERBS.values():
        summary = verb.text.partition("\n")[0]
        gap = f"{'':{width - len(verb.usage) + 2}}" if len(verb.usage) <= width else f"\n{'':{width + 16}}"
        lines.append(f"python -m rlx {verb.usage}{gap}{summary}")
    sys.stdout.write("\n".join(lines) + f"\n{FLAGS_HELP}")
    return 0


FLAGS_HELP = """
flags of training, also those of Hydra:
  -m, --multirun                    a sweep over comma-separated overrides
  -cd, --config-dir FOLDER          choices of your own beside those of rlx: FOLDER/env/mine.yaml is env=mine
  -c, --cfg {job,hydra,all}         print the composed config instead of running
  -p, --package KEY                 with --cfg: only this part of it
  --resolve                         with --cfg: with interpolations resolved
  -i, --info [all|config|defaults|defaults-tree|plugins|searchpath]
  -sc, --shell-completion           for example -sc install=bash
  --hydra-help   --version   -h, --help

example: python -m rlx algo=rlpd env=pendulum dataset=minari
more:    python -m rlx VERB --help; python -m rlx list
"""


# -- train -----------------------------------------------------------------------------------------------------------


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message[:1].upper()}{message[1:]:.300}; `python -m rlx --help` shows the flags.")


def parse_flags(arguments: list[str]) -> argparse.Namespace:
    """Hydra's flags, as Hydra spells them, and the overrides."""
    parser = _Parser(prog="python -m rlx", add_help=False, allow_abbrev=False)
    parser.add_argument("overrides", nargs="*")
    for names in (("-h", "--help"), ("--hydra-help",), ("--version",), ("-r", "--run"), ("-m", "--multirun"),
                  ("--resolve",), ("-sc", "--shell-completion")):  # fmt: skip
        parser.add_argument(*names, action="store_true")
    parser.add_argument("-c", "--cfg", choices=("job", "hydra", "all"))
    parser.add_argument("-i", "--info", nargs="?", const="all",
                        choices=("all", "config", "defaults", "defaults-tree", "plugins", "searchpath"))  # fmt: skip
    for names in (("-p", "--package"), ("-cd", "--config-dir"), ("-cn", "--config-name"), ("-cp", "--config-path"),
                  ("--experimental-rerun",)):  # fmt: skip
        parser.add_argument(*names)
    flags = parser.parse_intermixed_args(arguments)
    if flags.config_name or flags.config_path:
        raise UserError(
            "rlx has one root config, which --config-name and --config-path would replace; put whole runs of your own "
            "into FOLDER/experiment/NAME.yaml and type: python -m rlx --config-dir FOLDER experiment=NAME"
        )
    if flags.experimental_rerun:
        raise UserError("--experimental-rerun reads pickles, which rlx never does; use `python -m rlx resume RUN`.")
    if (flags.package or flags.resolve) and not flags.cfg:
        raise UserError("--package and --resolve say what --cfg shows; for example --cfg job --package trainer.")
    return flags


def train(arguments: list[str]) -> int:
    """Train, sweep, or show what would be trained."""
    flags = parse_flags(arguments)
    if flags.help:
        return show_help()
    if flags.version:
        return show_version()
    if flags.hydra_help:
        return through_hydra(["--hydra-help"])
    from rlx.config import compose_config, for_hydra, register
    from rlx.overrides import with_config_dir
    from rlx.workflows import run

    if flags.shell_completion:
        register()
        return through_hydra(["-sc", *flags.overrides])
    overrides = with_config_dir(flags.overrides, flags.config_dir)
    if flags.multirun or "hydra.mode=MULTIRUN" in overrides:
        return sweep(overrides)
    cfg = compose_config(overrides)
    if flags.cfg or flags.info:
        if flags.package and flags.cfg == "job":
            check_package(cfg, flags.package)
        shown = [f"--cfg={flags.cfg}"] if flags.cfg else [f"--info={flags.info}"]
        shown += [f"--package={flags.package}"] if flags.package else []
        return through_hydra([*shown, *(["--resolve"] if flags.resolve else []), *for_hydra(overrides)])
    refuse_hydras_own(overrides)
    return report(run(cfg, overrides))


def show_version() -> int:
    from rlx.workflows import versions

    known = versions()
    names = ("torch", "gymnasium", "hydra-core", "numpy")
    others = ", ".join(f"{name} {known[name]}" for name in names)
    sys.stdout.write(f"rlx {known['rlx']} ({others}, Python {known['python']})\n")
    return 0


def check_package(cfg: DictConfig, package: str) -> None:
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        there = OmegaConf.select(cfg, package) is not None
    except OmegaConfBaseException:
        there = False
    if not there:
        guess = nearest(package, [str(key) for key in cfg])
        meant = f"did you mean {guess}?" if guess else f"there are: {', '.join(str(key) for key in cfg)}."
        raise UserError(f"--package={package}: the config has no such part; {meant}")


def refuse_hydras_own(overrides: Sequence[str]) -> None:
    """Settings of Hydra's launchers mean nothing to a single run: better said than ignored."""
    for override in overrides:
        key, _, value = override.lstrip("+~").partition("=")
        if key == "hydra.run.dir":
            raise UserError(f"{override} has no effect; the folder of a run is run_dir={value or 'FOLDER'}.")
        if key.startswith(("hydra.", "hydra/")) and key not in ("hydra.searchpath", "hydra.mode"):
            raise UserError(f"{override} is for sweeps and this is a single run; add -m, or leave it out.")


def through_hydra(arguments: list[str], task: Callable[[DictConfig], Any] | None = None) -> int:
    """What Hydra itself answers; an error of its own as a sentence, if no task of ours ran."""
    import hydra

    from rlx.paths import conf_dir

    before, root = (sys.argv, os.environ.get("HYDRA_FULL_ERROR")), logging.getLogger()
    handlers, level = root.handlers[:], root.level
    sys.argv = ["rlx", *arguments]
    entry = hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name="config")
    try:
        if task is not None:
            entry(task)()
            return 0
        os.environ["HYDRA_FULL_ERROR"] = "1"  # an exception instead of its text and exit code 1
        entry(_nothing)()
    except UserError:
        raise
    except SystemExit as end:
        if task is not None:
            raise
        return 2 if end.code else 0  # it has said why
    except Exception as error:
        if task is not None:
            raise
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


def sweep(overrides: list[str]) -> int:
    """Sweeps go through Hydra; every job is checked before the first one starts."""
    from rlx.config import for_hydra, register

    register()
    for override in overrides:
        if override.lstrip("+").startswith("run_dir="):
            raise UserError(
                f"{override} would put all jobs of a sweep into one folder; use hydra.sweep.dir=FOLDER, below "
                "which each job has its own."
            )
    check_sweep(overrides)
    codes: list[int] = []

    def task(cfg: DictConfig) -> float | None:
        from hydra.core.hydra_config import HydraConfig

        from rlx.workflows import run

        job = HydraConfig.get()
        try:
            result = run(cfg, list(job.overrides.task), run_dir=job.runtime.output_dir)
        except (UserError, RunFailed) as error:  # Hydra would print a traceback; the other jobs go on
            log.error("%s", error)
            codes.append(2 if isinstance(error, UserError) else 1)
            return None
        codes.append(report(result))
        if codes[-1] in EXIT_CODES.values():
            sys.exit(codes[-1])  # no further jobs
        return result.summary["best_eval_return_mean"]

    through_hydra(["--multirun", *for_hydra(overrides, sweep=True)], task)
    return max(codes, default=0)


def check_sweep(overrides: list[str]) -> None:
    """Compose and check every job of a sweep."""
    import itertools

    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    from rlx.config import compose_config, for_hydra
    from rlx.config_errors import explain
    from rlx.overrides import SEARCH
    from rlx.workflows import check

    try:
        parsed = OverridesParser.create().parse_overrides(for_hydra(overrides, sweep=True))
        options = [
            [f"{o.get_key_element()}={value}" for value in o.sweep_string_iterator()]
            if o.is_sweep_override()
            else [str(o.input_line)]
            for o in parsed
            if o.key_or_group == SEARCH or not (o.key_or_group or "").startswith("hydra")
        ]
    except (HydraException, ValueError, RecursionError) as error:
        raise UserError(explain(error, overrides)) from error
    jobs = list(itertools.product(*options))
    for job in jobs:
        check(compose_config(job))
    if len(jobs) > 1:
        log.info("Sweep: %s", counted(len(jobs), "job"))


def report(result: Result) -> int:
    """The closing table; the exit code."""
    log.info("%s", closing_lines(result.summary, result.run_dir, result.trust, result.objects))
    return EXIT_CODES.get(result.summary["stop_reason"], 0)


# -- the other verbs -------------------------------------------------------------------------------------------------


def resume(arguments: list[str]) -> int:
    from rlx.overrides import take_trust
    from rlx.workflows import resume_run

    folder = _path(arguments, VERBS["resume"].usage)
    trust = take_trust(arguments)
    _refuse_flags(arguments, "resume")
    return report(resume_run(folder, *arguments, trust=trust))


def evaluate(arguments: list[str]) -> int:
    from rlx.config import learners
    from rlx.overrides import take_trust
    from rlx.workflows import evaluate as evaluate_policy

    path = _path(arguments, VERBS["evaluate"].usage)
    as_json = "--json" in arguments
    trust = take_trust(arguments)
    kinds: dict[str, Callable[[str], Any]] = {"episodes": int, "seed": int}
    kinds |= {option: float for cls in learners().values() for option in cls.options}
    options = _options([a for a in arguments if a != "--json"], kinds, "evaluate")
    found = evaluate_policy(path, **options, trust=trust)
    if as_json:
        sys.stdout.write(json.dumps(found) + "\n")
        return 0
    success = f", success rate {found['eval/success_rate']:.2f}" if "eval/success_rate" in found else ""
    log.info(
        "%s on %s: return %.1f +- %.1f over %s of length %.1f%s",
        found["algo"], found["env"], found["eval/return_mean"], found["eval/return_std"],
        counted(found["episodes"], "episode"), found["eval/length_mean"], success,
    )  # fmt: skip
    return 0


def predict(arguments: list[str]) -> int:
    from rlx.overrides import take_trust
    from rlx.workflows import predict as predict_action

    usage = VERBS["predict"].usage
    path = _path(arguments, usage)
    trust = take_trust(arguments)
    if len(arguments) != 2 or arguments[0] != "--obs":
        raise UserError(f"predict needs an observation; type: python -m rlx {usage}")
    try:
        obs = json.loads(arguments[1], parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise UserError(f"--obs is not JSON ({error}); give a list of numbers such as '[0.1, 0.2]'.") from error
    try:
        action = predict_action(path, obs, trust)
    except (ValueError, TypeError, OverflowError) as error:
        raise UserError(f"--obs is not an observation ({error}); give a list of numbers.") from error
    sys.stdout.write(json.dumps(action) + "\n")
    return 0


def collect(arguments: list[str]) -> int:
    from rlx.overrides import take_trust
    from rlx.workflows import collect as collect_dataset

    path = _path(arguments, VERBS["collect"].usage)
    trust = take_trust(arguments)
    options = _options(arguments, {"id": str, "episodes": int, "noise": float, "seed": int}, "collect")
    if "id" not in options:
        raise UserError("collect needs the id of the dataset it makes; add id=my/dataset-v0.")
    collect_dataset(path, **options, trust=trust)
    return 0


def inspect_data(arguments: list[str]) -> int:
    from rlx.workflows import inspect_data as rows_of

    source = _path(arguments, VERBS["inspect-data"].usage)
    options = _options(arguments, {"env": str, "terminals": str, "episodes": str}, "inspect-data")
    sys.stdout.write(table(rows_of(str(source), **options)) + "\n")
    return 0


def list_choices(arguments: list[str]) -> int:
    from rlx.listing import describe, groups

    parser = _Parser(prog="python -m rlx list", add_help=False, allow_abbrev=False)
    parser.add_argument("groups", nargs="*")
    parser.add_argument("-cd", "--config-dir")
    flags = parser.parse_intermixed_args(arguments)
    folders = [Path(flags.config_dir).expanduser()] if flags.config_dir is not None else []
    if folders and not folders[0].is_dir():
        raise UserError(f"{folders[0]} is not a folder; the config folder has to exist (--config-dir FOLDER).")
    known = groups(folders)
    wanted = flags.groups or known
    for group in wanted:
        if group not in known:
            guess = nearest(group, known)
            meant = f" Did you mean {guess}?" if guess else ""
            raise UserError(f"There is no group {group!r}.{meant} Groups: {', '.join(known)}.")
    for group in wanted:
        rows = [(f"{group}={name}", text) for name, text in describe(group, folders)]
        sys.stdout.write(table(rows, group, ("choice", "what it is")) + "\n")
    return 0


VERBS = {
    "train": Verb(train, "[train] [overrides]", "train; overrides as GROUP=CHOICE and KEY=VALUE"),
    "resume": Verb(
        resume,
        "resume RUN [KEY=VALUE ...]",
        "continue a run, e.g. with a longer budget\n\n"
        "RUN is the folder of a run. Values can change where that makes sense, such as trainer.max_env_steps=40000.\n"
        "trust=[MODULE,...] allows code from your own modules.",
    ),
    "evaluate": Verb(
        evaluate,
        "evaluate RUN_OR_CHECKPOINT [episodes=10] [seed=0] [target_return=NUMBER] [--json]",
        "raw returns of the deterministic policy\n\n"
        "A run folder stands for its best checkpoint. --json prints all returns.\n"
        "target_return is what a policy of algo=dt is asked for.\n"
        "trust=[MODULE,...] allows code from your own modules.",
    ),
    "predict": Verb(
        predict,
        "predict RUN_OR_CHECKPOINT --obs '[...]'",
        "the action for an observation, as JSON\n\n"
        "A list of observations gives a list of actions. trust=[MODULE,...] allows code from your own modules.",
    ),
    "collect": Verb(
        collect,
        "collect RUN_OR_CHECKPOINT id=my/dataset-v0 [episodes=100] [noise=0.1] [seed=0]",
        "roll a policy out into a Minari dataset\n\n"
        "noise is the standard deviation of Gaussian noise on actions in [-1, 1].\n"
        "trust=[MODULE,...] allows code from your own modules.",
    ),
    "inspect-data": Verb(
        inspect_data,
        "inspect-data SOURCE [env=NAME] [terminals=check] [episodes=check]",
        "what is in a dataset\n\n"
        "SOURCE is a file (.npz, .pt, .hdf5), a run folder or a Minari id; with env= it also says whether they fit.",
    ),
    "list": Verb(
        list_choices,
        "list [GROUP ...] [--config-dir FOLDER]",
        "what there is to choose from\n\nWith --config-dir, also the choices in a folder of your own.",
    ),
}


def _path(arguments: list[str], usage: str) -> Path:
    """Take the first argument, which has to be a path. One with a "=" in it is told from KEY=VALUE, whose key has no
    slash.
    """
    first = arguments[0] if arguments else "-"
    key, equals, _ = first.partition("=")
    if first.startswith("-") or (equals and "/" not in key and not os.path.lexists(first)):
        raise UserError(f"A path is missing; type: python -m rlx {usage}")
    return Path(arguments.pop(0))


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a finite number")


def _refuse_flags(arguments: Sequence[str], verb: str) -> None:
    for argument in arguments:
        if argument.startswith("-"):
            raise UserError(f"{verb} has no flag {argument}; type: python -m rlx {VERBS[verb].usage}")


def _options(arguments: list[str], kinds: dict[str, Callable[[str], Any]], verb: str) -> dict[str, Any]:
    """KEY=VALUE arguments of a verb, converted."""
    words = {int: "an integer", float: "a number"}
    found = {}
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if key not in kinds or not equals:
            takes = ", ".join(f"{k}=..." for k in kinds)
            raise UserError(f"{verb} does not know {argument:.200}; it takes {takes}.")
        try:
            found[key] = kinds[key](value)
        except ValueError as error:
            kind = words.get(kinds[key], "text")  # type: ignore[call-overload]
            raise UserError(f"{key} must be {kind}, and {argument:.200} is not.") from error
    return found
