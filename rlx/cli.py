"""The command line: a thin shell around `rlx.workflows`.

Exit codes: 0 done, 1 failed, 2 bad configuration or input, 130 / 143 interrupted with a checkpoint saved.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlx.errors import RunFailed, UserError, nearest

if TYPE_CHECKING:
    from omegaconf import DictConfig
    from rich.console import Console

    from rlx.workflows import Result

log = logging.getLogger("rlx")

EXIT_CODES = {"interrupted": 130, "terminated": 143}

HELP = """\
python -m rlx [train] [overrides]             train; overrides as GROUP=CHOICE and KEY=VALUE
python -m rlx -m [overrides]                  a sweep over comma-separated overrides
python -m rlx resume RUN [KEY=VALUE ...]      continue a run, e.g. with a longer budget
python -m rlx evaluate RUN_OR_CHECKPOINT [episodes=10] [seed=0] [--json]
python -m rlx predict CHECKPOINT --obs '[...]'
python -m rlx collect CHECKPOINT id=my/dataset-v0 [episodes=100] [noise=0.1] [seed=0]
python -m rlx inspect-data SOURCE [env=NAME]  what is in a dataset: a file, a run folder or a Minari id
python -m rlx list [algo|env|dataset|...]     what there is to choose from
python -m rlx --cfg job [overrides]           print the composed config

example: python -m rlx algo=rlpd env=pendulum dataset=minari
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a verb; the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    set_up_logging()
    verbs: dict[str, Callable[[list[str]], int]] = {
        "train": train,
        "resume": resume,
        "evaluate": evaluate,
        "predict": predict,
        "collect": collect,
        "inspect-data": inspect_data,
        "list": list_choices,
    }
    try:
        if arguments and arguments[0] in ("-h", "--help", "help"):
            sys.stdout.write(HELP)
            return 0
        if arguments and not arguments[0].startswith("-") and "=" not in arguments[0]:
            verb = arguments.pop(0)
            if verb not in verbs:
                guess = nearest(verb, verbs)
                hint = f"did you mean `python -m rlx {guess}`?" if guess else "`python -m rlx --help` shows them."
                if verb.startswith(("~", "+")):
                    return train([verb, *arguments])
                raise UserError(f"{verb!r} is neither a verb nor KEY=VALUE; {hint}")
            return verbs[verb](arguments)
        return train(arguments)
    except UserError as error:
        log.error("%s", error)
        return 2
    except RunFailed as error:
        log.error("%s", error)
        return 1
    except KeyboardInterrupt:
        log.error("Interrupted before training began; nothing was written.")
        return 130
    except Exception:
        log.exception("The run failed.")
        return 1


def set_up_logging() -> None:
    """Progress on stdout, problems on stderr, one line each."""

    class Below(logging.Filter):
        def filter(self, record: logging.LogRecord) -> bool:
            return record.levelno < logging.WARNING

    out, err = logging.StreamHandler(sys.stdout), logging.StreamHandler(sys.stderr)
    out.addFilter(Below())
    err.setLevel(logging.WARNING)
    err.setFormatter(logging.Formatter("rlx: %(message)s"))
    log.handlers = [out, err]
    log.setLevel(logging.INFO)
    log.propagate = False


# -- train -----------------------------------------------------------------------------------------------------------


def train(arguments: list[str]) -> int:
    if any(a.startswith("-") for a in arguments):
        return hydra_main(arguments)
    from rlx.config import compose_config
    from rlx.workflows import run

    return report(run(compose_config(arguments), arguments))


def hydra_main(arguments: list[str]) -> int:
    """Sweeps and Hydra's own flags go through Hydra; every job of a sweep is checked before the first one starts."""
    import hydra

    from rlx.config import in_hydras_words, register
    from rlx.paths import conf_dir

    register()
    if {"-m", "--multirun", "hydra.mode=MULTIRUN"} & set(arguments):
        for argument in arguments:
            if argument.lstrip("+").startswith("run_dir="):
                raise UserError(
                    f"{argument} would put all jobs of a sweep into one folder; use hydra.sweep.dir=FOLDER, below "
                    "which each job has its own."
                )
    check_sweep([a for a in arguments if "=" in a and not a.startswith("-")])
    codes: list[int] = []

    def task(cfg: DictConfig) -> float | None:
        from hydra.core.hydra_config import HydraConfig
        from hydra.types import RunMode

        from rlx.workflows import run

        job = HydraConfig.get()
        folder = job.runtime.output_dir if job.mode is RunMode.MULTIRUN else None
        try:
            result = run(cfg, list(job.overrides.task), run_dir=folder)
        except (UserError, RunFailed) as error:  # Hydra would print a traceback; the other jobs go on
            log.error("%s", error)
            codes.append(2 if isinstance(error, UserError) else 1)
            return None
        codes.append(report(result))
        if codes[-1] in EXIT_CODES.values():
            sys.exit(codes[-1])  # no further jobs
        return result.summary["best_eval_return_mean"]

    sys.argv = ["rlx", *in_hydras_words(arguments)]
    hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name="config")(task)()
    return max(codes, default=0)


def check_sweep(overrides: list[str]) -> None:
    """Compose and check every job of a sweep."""
    import itertools

    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    from rlx.config import compose_config
    from rlx.config_errors import explain
    from rlx.workflows import check

    try:
        parsed = OverridesParser.create().parse_overrides(overrides)
    except HydraException as error:
        raise UserError(explain(error, overrides)) from error
    options = [
        [f"{o.get_key_element()}={value}" for value in o.sweep_string_iterator()]
        if o.is_sweep_override()
        else [o.input_line]
        for o in parsed
        if not o.is_hydra_override() and not (o.key_or_group or "").startswith("hydra")
    ]
    jobs = list(itertools.product(*options))
    for job in jobs:
        check(compose_config([str(o) for o in job]))
    if len(jobs) > 1:
        log.info("Sweep: %d jobs", len(jobs))


def report(result: Result) -> int:
    """The closing table; the exit code."""
    from rich.table import Table

    s, folder = result.summary, result.run_dir
    table = Table(show_header=False, title=f"{s['algo']} on {s['env']}, seed {s['seed']}", title_justify="left")
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    best = f"{s['best_eval_return_mean']:.1f}" if s["best_eval_return_mean"] is not None else "none"
    last = f"{s['eval_return_mean']:.1f}" if s["eval_return_mean"] is not None else "none"
    table.add_row("evaluation return", f"{last} (best {best})")
    table.add_row("trained for", f"{s['env_steps']} env steps, {s['updates']} updates, {s['wall_time_s']:.0f} s")
    table.add_row("stopped by", s["stop_reason"] + ("" if s["exact"] else " (resumed approximately)"))
    table.add_row("run folder", str(folder))
    if s["env"] != "none":
        table.add_row("evaluate", f"python -m rlx evaluate {folder}")
    table.add_row("resume", f"python -m rlx resume {folder}")
    table.add_row("watch", f"tensorboard --logdir {folder}")
    _console(200).print(table)
    return EXIT_CODES.get(s["stop_reason"], 0)


def _console(width: int = 160) -> Console:
    """As wide as the terminal, of a fixed width where the output goes elsewhere; brackets are brackets."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else width, markup=False, emoji=False)


# -- the other verbs -------------------------------------------------------------------------------------------------


def resume(arguments: list[str]) -> int:
    from rlx.workflows import resume as resume_run

    folder = _path(arguments, "resume RUN [KEY=VALUE ...]")
    trust = _take_trust(arguments)
    return report(resume_run(folder, *arguments, trust=trust))


def evaluate(arguments: list[str]) -> int:
    from rlx.workflows import evaluate as evaluate_policy

    path = _path(arguments, "evaluate RUN_OR_CHECKPOINT [episodes=10] [seed=0] [--json]")
    as_json = "--json" in arguments
    trust = _take_trust(arguments)
    options = _options([a for a in arguments if a != "--json"], {"episodes": int, "seed": int}, "evaluate")
    found = evaluate_policy(path, **options, trust=trust)
    if as_json:
        sys.stdout.write(json.dumps(found) + "\n")
        return 0
    success = f", success rate {found['eval/success_rate']:.2f}" if "eval/success_rate" in found else ""
    log.info(
        "%s on %s: return %.1f +- %.1f over %d episodes of length %.1f%s",
        found["algo"], found["env"], found["eval/return_mean"], found["eval/return_std"], found["episodes"],
        found["eval/length_mean"], success,
    )  # fmt: skip
    return 0


def predict(arguments: list[str]) -> int:
    from rlx.workflows import predict as predict_action

    usage = "predict CHECKPOINT --obs '[...]'"
    path = _path(arguments, usage)
    trust = _take_trust(arguments)
    if len(arguments) != 2 or arguments[0] != "--obs":
        raise UserError(f"predict needs an observation; type: python -m rlx {usage}")
    try:
        obs = json.loads(arguments[1], parse_constant=_refuse_constant)
    except ValueError as error:
        raise UserError(f"--obs is not JSON ({error}); give a list of numbers such as '[0.1, 0.2]'.") from error
    try:
        action = predict_action(path, obs, trust)
    except (ValueError, TypeError) as error:
        raise UserError(f"--obs is not an observation ({error}); give a list of numbers.") from error
    sys.stdout.write(json.dumps(action) + "\n")
    return 0


def collect(arguments: list[str]) -> int:
    from rlx.workflows import collect as collect_dataset

    path = _path(arguments, "collect CHECKPOINT id=my/dataset-v0 [episodes=100] [noise=0.1] [seed=0]")
    trust = _take_trust(arguments)
    options = _options(arguments, {"id": str, "episodes": int, "noise": float, "seed": int}, "collect")
    if "id" not in options:
        raise UserError("collect needs the id of the dataset it makes; add id=my/dataset-v0.")
    collect_dataset(path, **options, trust=trust)
    return 0


def inspect_data(arguments: list[str]) -> int:
    from rich.table import Table

    from rlx.workflows import inspect_data as rows_of

    source = _path(arguments, "inspect-data SOURCE [env=NAME]")
    options = _options(arguments, {"env": str}, "inspect-data")
    table = Table(show_header=False)
    for name, value in rows_of(str(source), **options):
        table.add_row(name, value)
    _console().print(table)
    return 0


def list_choices(arguments: list[str]) -> int:
    from rich.table import Table

    from rlx.listing import describe, groups

    known = groups()
    wanted = arguments or known
    for group in wanted:
        if group not in known:
            guess = nearest(group, known)
            meant = f"did you mean {guess}? " if guess else ""
            raise UserError(f"There is no group {group!r}; {meant}There are: {', '.join(known)}.")
    console = _console()
    for group in wanted:
        table = Table("choice", "what it is", title=group, title_justify="left")
        for name, text in describe(group):
            table.add_row(f"{group}={name}", text)
        console.print(table)
    return 0


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
    raise ValueError(f"{name} is no number")


def _options(arguments: list[str], kinds: dict[str, Callable[[str], Any]], verb: str) -> dict[str, Any]:
    """KEY=VALUE arguments of a verb, converted."""
    found = {}
    for argument in arguments:
        key, _, value = argument.partition("=")
        try:
            found[key] = kinds[key](value)
        except (KeyError, ValueError) as error:
            takes = ", ".join(f"{k}={kind.__name__}" for k, kind in kinds.items())
            raise UserError(f"{argument!r} means nothing to {verb}; it takes {takes}.") from error
    return found


def _take_trust(arguments: list[str]) -> tuple[str, ...]:
    """Remove trust=[a,b] from the arguments; the modules it names."""
    found: list[str] = []
    for argument in [a for a in arguments if a.startswith("trust=")]:
        arguments.remove(argument)
        found += [m.strip() for m in argument.removeprefix("trust=").strip("[]").split(",") if m.strip()]
    return tuple(found)
