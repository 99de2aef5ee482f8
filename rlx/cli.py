"""The command line: what was typed, as a verb and its arguments. `rlx.commands` runs them.

Exit codes: 0 done, 1 failed, 2 bad configuration or input, 130 / 143 interrupted, with a checkpoint saved unless a
second signal ended the run at once.
"""

from __future__ import annotations

import argparse
import difflib
import errno
import gc
import importlib
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, NoReturn

from rlx.choices import describe, groups
from rlx.errors import Interrupted, RunFailed, UserError, nearest
from rlx.reporting import set_up_logging, table

log = logging.getLogger("rlx")

BLAS_THREADS = {"OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"}
PATH_ERRORS = (errno.ENAMETOOLONG, errno.EACCES, errno.ELOOP, errno.ENOTDIR)


class Verb(NamedTuple):
    """A word after `python -m rlx`."""

    command: str  # module:function, imported when it is chosen: the help answers at once
    usage: str
    text: str

    def run(self, arguments: list[str]) -> int:
        module, _, name = self.command.partition(":")
        try:
            with quick_imports(module):
                command: Callable[[list[str]], int] = getattr(importlib.import_module(module), name)
        except ModuleNotFoundError as error:
            if (error.name or "rlx").partition(".")[0] == "rlx":
                raise
            raise UserError(
                f"{sys.executable} has no {error.name}, which rlx needs; use the Python that rlx was installed in "
                "(`source .venv/bin/activate` after make demo), or install it: pip install -e ."
            ) from error
        return command(arguments)


@contextmanager
def quick_imports(module: str) -> Iterator[None]:
    """Without garbage collections, each of which would look through all that was imported so far, torch above all.

    What is there afterwards stays: later collections leave it out. Nothing of this where the module is there already.
    """
    if module in sys.modules or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        gc.enable()


def main(argv: Sequence[str] | None = None) -> int:
    """Run a verb; the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    limit_numpy()
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


def limit_numpy() -> None:
    """One thread for numpy's own matrix products, such as those of an env, unless the user has said how many.

    OpenBLAS reads the number where numpy is imported, and would take all cores. A process that has numpy already is
    the user's, and keeps what it has.
    """
    if "numpy" not in sys.modules and not BLAS_THREADS & os.environ.keys():
        os.environ["OPENBLAS_NUM_THREADS"] = "1"


def check_text(arguments: Sequence[str]) -> None:
    """Refuse arguments that are not valid text, which no file of the run could hold."""
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
    without = not first or first.startswith(("-", "~", "+")) or "=" in first
    verb, rest = ("train", arguments) if without else (first, arguments[1:])
    if verb not in VERBS:
        if first in groups():
            raise UserError(
                f"{first!r} is a config group, not a verb; write {first}=NAME (`python -m rlx list {first}`)."
            )
        guess = nearest(first.lower(), [*VERBS, "help"])
        hint = f"did you mean `python -m rlx {guess}`?" if guess else "`python -m rlx --help` shows the verbs."
        raise UserError(f"{first[:200]!r} is neither a verb nor KEY=VALUE; {hint}")
    if {"-h", "--help"} & set(rest):
        return show_help([verb])
    return VERBS[verb].run(rest)


# -- help --------------------------------------------------------------------------------------------------------------


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
  -m, --multirun                    a sweep over comma-separated overrides (docs/sweeps.md)
  --dry-run                         with -m: print the jobs instead of running them
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

VERBS = {
    "train": Verb("rlx.commands:train", "[train] [overrides]", "train; overrides as GROUP=CHOICE and KEY=VALUE"),
    "resume": Verb(
        "rlx.commands:resume",
        "resume RUN [KEY=VALUE ...]",
        "continue a run or a sweep, e.g. with a longer budget\n\n"
        "RUN is the folder of a run. Values can change where that makes sense, such as trainer.max_env_steps=40000.\n"
        "Of the folder of a sweep, whatever is missing, unfinished or failed is run; with values, all of it goes on.\n"
        "trust=[MODULE,...] allows code from your own modules.",
    ),
    "evaluate": Verb(
        "rlx.commands:evaluate",
        "evaluate RUN_OR_CHECKPOINT [episodes=10] [seed=0] [target_return=NUMBER] [--json] [--video FILE.mp4]",
        "raw returns of the deterministic policy\n\n"
        "A run folder stands for its best checkpoint. --json prints all returns.\n"
        "--video records the episodes, 3 unless asked otherwise; it needs no screen.\n"
        "target_return is what a policy of algo=dt is asked for.\n"
        "trust=[MODULE,...] allows code from your own modules.",
    ),
    "watch": Verb(
        "rlx.commands:watch",
        "watch RUN_OR_CHECKPOINT [episodes=3] [seed=0]",
        "the policy at work in a window\n\n"
        "Without a screen, evaluate RUN --video FILE.mp4 records the same.\n"
        "trust=[MODULE,...] allows code from your own modules.",
    ),
    "export": Verb(
        "rlx.commands:export",
        "export RUN_OR_CHECKPOINT [--format onnx|torch] [--out DIR] [license=mit]",
        "the policy as a folder for other tools, with a card and an example\n\n"
        "onnx (the default) adds the policy as one graph to its weights; torch has the weights alone.\n"
        "Without --out it is RUN/exports/FORMAT. rlx.load(DIR) reads it back.\n"
        "trust=[MODULE,...] allows code from your own modules.",
    ),
    "predict": Verb(
        "rlx.commands:predict",
        "predict RUN_OR_CHECKPOINT --obs '[...]'|@FILE|-",
        "the action for an observation, as JSON\n\n"
        "A list of observations gives a list of actions. @FILE reads JSON from a file, - from standard input.\n"
        "trust=[MODULE,...] allows code from your own modules.",
    ),
    "collect": Verb(
        "rlx.commands:collect",
        "collect RUN_OR_CHECKPOINT id=my/dataset-v0 [episodes=100] [noise=0.1] [seed=0]",
        "roll a policy out into a Minari dataset\n\n"
        "noise is the standard deviation of Gaussian noise on actions in [-1, 1].\n"
        "trust=[MODULE,...] allows code from your own modules.",
    ),
    "inspect-data": Verb(
        "rlx.commands:inspect_data",
        "inspect-data SOURCE [env=NAME] [terminals=check] [episodes=check]",
        "what is in a dataset\n\n"
        "SOURCE is a file (.npz, .pt, .hdf5), a run folder or a Minari id; with env= it also says whether they fit.",
    ),
    "report": Verb(
        "rlx.report.command:report",
        "report PATH... [--out FILE] [--format html|md|csv|json|png] [--watch]",
        "a page about runs and sweeps: curves, comparison, what mattered\n\n"
        "PATH is the folder of a run or of a sweep, or one that holds some. The page is one file that opens without a\n"
        "network; without --out it is report.html in that folder. --watch serves it on this machine while a sweep\n"
        "runs ([--port 8000]) and writes it at the end. Needs pip install -e '.[report]'.",
    ),
    "plot": Verb(
        "rlx.report.command:plot",
        "plot PATH... [--out FILE.png|FILE.svg] [--metric NAME] [--over env_steps|updates|wall_time] [--line iqm|mean]",
        "the curves as a picture for a paper\n\n"
        "The metric is eval/return_mean unless told otherwise; bands are 95 % bootstrap intervals over seeds.\n"
        "Needs pip install -e '.[report]'.",
    ),
    "build-native": Verb(
        "rlx.commands:build_native",
        "build-native",
        "build the native nodes, which make runs faster, for this machine\n\n"
        "Takes a minute or two and a C++ compiler, once for each version of rlx and torch. Runs with native=auto, the\n"
        "default, take them from then on; the first one on a machine starts this in the background.",
    ),
    "list": Verb(
        "rlx.cli:list_choices",
        "list [GROUP ...] [--config-dir FOLDER]",
        "what there is to choose from\n\nWith --config-dir, also the choices in a folder of your own.",
    ),
}


# -- flags -------------------------------------------------------------------------------------------------------------


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message[:1].upper()}{message[1:]:.300}; `python -m rlx --help` shows the flags.")


class TrainParser(Parser):
    """Answers values that are typed as flags, `--seed 3` or `--seed=3`, and misspelt flags."""

    def error(self, message: str) -> NoReturn:
        match = re.match(r"unrecognized arguments: (--([\w.-]+))(?:[= ]([^-\s]\S*))?", message)
        if match:
            flag, key, value = match.groups()
            close = difflib.get_close_matches(flag, self._option_string_actions, n=1, cutoff=0.8)
            typed = f"{key.replace('-', '_')}={value or 'VALUE'}"
            hint = f"did you mean {close[0]}?" if close else f"values are set without dashes, as {typed};"
            raise UserError(
                f"Unrecognized arguments: {message[24:]:.200}; {hint} `python -m rlx --help` shows the flags."
            )
        super().error(message)


def parse_flags(arguments: list[str]) -> argparse.Namespace:
    """Hydra's flags, as Hydra spells them, and the overrides."""
    parser = TrainParser(prog="python -m rlx", add_help=False, allow_abbrev=False)
    parser.add_argument("overrides", nargs="*")
    for names in (("-h", "--help"), ("--hydra-help",), ("--version",), ("-r", "--run"), ("-m", "--multirun"),
                  ("--resolve",), ("--dry-run",), ("-sc", "--shell-completion")):  # fmt: skip
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


# -- list --------------------------------------------------------------------------------------------------------------


def list_choices(arguments: list[str]) -> int:
    parser = Parser(prog="python -m rlx list", add_help=False, allow_abbrev=False)
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
