"""One job of a sweep, in whatever process a launcher runs it: `run_job` is all that such a process has to call.

A job runs if its folder holds no run yet, and resumes if it does. What was typed by the user in this session is trusted
as on the command line; what was read from a manifest is data, as a saved config is.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from rlx import workflows
from rlx.config import (
    check,
    compose_config,
    fit_numbers,
    load_config,
    needed_trust,
    read_config,
    refuse_foreign_env,
    register,
    trusted,
)
from rlx.config.overrides import search_path
from rlx.errors import Interrupted, RunFailed, UserError, shown
from rlx.reporting import closing_lines
from rlx.run_folder import in_use

log = logging.getLogger("rlx")

LOG = "log.txt"  # what a job says, in its folder
EXIT_CODES = {"interrupted": 130, "terminated": 143}
PATIENCE = 30.0  # seconds to wait for a process of a killed sweep that is still saving its run


@dataclass(frozen=True)
class Task:
    """What a launcher starts; plain values, which any process can be told."""

    number: int
    folder: str  # of the run, absolute
    overrides: tuple[str, ...]
    changes: tuple[str, ...] = ()  # what a resume changes, such as a longer budget
    trust: tuple[str, ...] = ()
    typed: bool = True  # were the overrides typed by the user, not read from a manifest

    @property
    def begun(self) -> bool:
        return (Path(self.folder) / "config.yaml").is_file()


@dataclass(frozen=True)
class Ended:
    """How a task ended."""

    number: int
    exit_code: int
    reason: str | None = None


def run_job(task: Task) -> Ended:
    """Run or resume a job in this process; never raises, whatever the job does."""
    register()
    try:
        result = _run(task)
        log.info("%s", closing_lines(result.summary, result.run_dir, result.trust, result.objects))
        reason = str(result.summary["stop_reason"])
        return Ended(task.number, EXIT_CODES.get(reason, 0), reason if reason in EXIT_CODES else None)
    except UserError as error:
        return _told(task, 2, error)
    except RunFailed as error:
        return _told(task, 1, error)
    except Interrupted as error:
        return _told(task, error.code, error)
    except KeyboardInterrupt:
        return Ended(task.number, 130, "interrupted before it began to train")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        log.error("The run called sys.exit(%s).", end.code)
        return Ended(task.number, code or 1, f"The run called sys.exit({shown(end.code)}).")
    except BaseException as error:
        log.exception("The run failed.")
        return Ended(task.number, 1, shown(f"{type(error).__name__}: {error}", 500))


def _told(task: Task, code: int, error: BaseException) -> Ended:
    log.error("%s", error)
    return Ended(task.number, code, shown(error, 500))


def _run(task: Task) -> workflows.Result:
    folder = Path(task.folder)
    wait_until_free(folder)
    if task.begun:
        return workflows.resume_run(folder, *task.changes, trust=trust_of(task))
    return workflows.run(prepare(task), [*task.overrides, *task.changes], run_dir=folder)


def prepare(task: Task) -> DictConfig:
    """The config that a task runs with, checked as far as that is possible without an env."""
    if task.begun:
        trust = trust_of(task)
        cfg = load_config(read_config(Path(task.folder)), fit_numbers(task.changes), trust)
        refuse_foreign_env(cfg, trust)
    elif task.typed:
        cfg = compose_config([*task.overrides, *task.changes])
    else:
        cfg = compose_read(task)
    check(cfg)
    return cfg


def trust_of(task: Task) -> tuple[str, ...]:
    """What the user trusts in a run that has begun: by name, and whatever the overrides need that were typed."""
    return (*needed_trust(compose_config(task.overrides)), *task.trust) if task.typed else task.trust


def compose_read(task: Task) -> DictConfig:
    """The config of overrides that were read from a manifest, held to the rules of a saved config."""
    for entry in search_path(task.overrides):
        package = entry.removeprefix("pkg://").partition("/")[0]
        if entry.startswith("pkg://") and not trusted(package, task.trust):
            raise UserError(f"The sweep wants to import {shown(package)} for its configs; add trust=[{shown(package)}] "
                            "to allow code from it.")  # fmt: skip
    text = OmegaConf.to_yaml(compose_config(task.overrides), resolve=False)
    cfg = load_config(text, fit_numbers(task.changes), task.trust)
    refuse_foreign_env(cfg, task.trust)
    return cfg


def wait_until_free(folder: Path, seconds: float = PATIENCE) -> None:
    """A job of a sweep that was killed may still be saving: wait for it, then let the run say who holds its folder."""
    end = time.monotonic() + seconds
    while in_use(folder) and time.monotonic() < end:
        time.sleep(0.2)
