"""What a person sees of a run besides its progress: log lines, and what to type next."""

from __future__ import annotations

import io
import logging
import os
import shlex
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

log = logging.getLogger("rlx")

WIDTH = 160  # of tables where the output is not a terminal


def counted(n: int, noun: str, plural: str | None = None) -> str:
    """'1 thread', '2 threads', '20,000 transitions'."""
    return f"{n:,} {noun if n == 1 else plural or f'{noun}s'}"


def in_digits(value: float) -> str:
    """A return as it is shown: '-151.2', and '0.83' where one digit says little."""
    text = f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
    return text.lstrip("-") if float(text) == 0 else text


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


@contextmanager
def showing(quiet: bool = False) -> Iterator[None]:
    """Log lines as on the command line, for Python sessions that have set up no logging of their own."""
    if quiet or log.hasHandlers():
        yield
        return
    before = log.handlers[:], log.level, log.propagate
    set_up_logging()
    try:
        yield
    finally:
        log.handlers, log.level, log.propagate = before


@contextmanager
def muted(*loggers: str) -> Iterator[None]:
    """Without the warnings of a library: those of Python's `warnings`, and those of the loggers with these names."""
    before = {logging.getLogger(name): logging.getLogger(name).level for name in loggers}
    for logger in before:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in before.items():
            logger.setLevel(level)


def table(rows: Sequence[tuple[str, str]], title: str | None = None, header: tuple[str, str] | None = None) -> str:
    """Two columns in a box, as wide as the terminal at most; brackets are brackets."""
    from rich.console import Console
    from rich.table import Table

    made = Table(*(header or ()), show_header=header is not None, title=title, title_justify="left")
    if header is None:
        made.add_column(no_wrap=True)
        made.add_column(overflow="fold")
    for row in rows:
        made.add_row(*row)
    terminal = sys.stdout.isatty()
    width = None if terminal else WIDTH
    console = Console(
        file=io.StringIO(), width=width, markup=False, emoji=False, legacy_windows=False, force_jupyter=False
    )  # in a notebook it would show the table at once, whether it is to be shown or not
    if terminal:
        console.width = Console().width
    console.print(made)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())  # type: ignore[attr-defined]


def closing_lines(
    summary: dict[str, Any], run_dir: Path, trust: Sequence[str] = (), objects: Sequence[str] = ()
) -> str:
    """What a run came to as a table, and below it commands that can be copied.

    `trust` are modules that the run needs, `objects` what it was given from Python and needs again.
    """
    s, folder = summary, shortest(run_dir)
    rows = [
        ("evaluation return", evaluation(s)),
        ("trained for", f"{counted(s['env_steps'], 'env step')}, {counted(s['updates'], 'update')}, "
                        f"{s['wall_time_s']:.0f} s"),
        ("stopped by", s["stop_reason"] + ("" if s["exact"] else " (resumed approximately)")),
        ("run folder", folder),
    ]  # fmt: skip
    return "\n".join(
        [table(rows, f"{s['algo']} on {s['env']}, seed {s['seed']}"), *next_steps(s, folder, trust, objects)]
    )


def evaluation(summary: dict[str, Any]) -> str:
    """'-151.2 (best -140.9)'."""
    last, best = summary["eval_return_mean"], summary["best_eval_return_mean"]
    if last is None:
        return f"not evaluated{' (env=none)' if summary['env'] == 'none' else ''}"
    return in_digits(last) + (f" (best {in_digits(best)})" if best is not None else "")


def next_steps(
    summary: dict[str, Any], folder: str, trust: Sequence[str] = (), objects: Sequence[str] = ()
) -> list[str]:
    """Commands for a run folder, one per line, quoted for a shell; for a run of Python objects, Python."""
    watch = f"tensorboard --logdir {shlex.quote(folder)}"
    if objects:
        again = ", ".join(f"{name}=..." for name in objects)
        allowed = f", trust={tuple(trust)!r}" if trust else ""
        steps = [f"rlx.resume({folder!r}, {again}{allowed})"]
        if summary["env"] != "none":
            env = ", env=..." if "env" in objects else ""
            steps.insert(0, f"rlx.evaluate({folder!r}{env}{allowed})")
        return [*steps, watch]
    allowed = f" {shlex.quote('trust=[' + ','.join(trust) + ']')}" if trust else ""
    verbs = ["resume"] if summary["env"] == "none" else ["evaluate", "resume"]
    return [*(f"python -m rlx {verb} {shlex.quote(folder)}{allowed}" for verb in verbs), watch]


def shortest(path: Path) -> str:
    """A path as one would type it here: relative to the working folder where that is shorter."""
    try:
        relative = os.path.relpath(path)
    except ValueError:  # another drive
        return str(path)
    given = str(path)
    return min((given, relative), key=len)
