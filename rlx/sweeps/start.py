"""The commands: begin a sweep, or go on with one."""

from __future__ import annotations

import logging
import shlex
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from rlx.cli import VERBS
from rlx.config import fit_numbers, instantiate
from rlx.errors import UserError
from rlx.reporting import shortest
from rlx.run_folder import RunLock
from rlx.sweeps.driver import Driver, Source, read_result
from rlx.sweeps.launchers.base import LauncherConfig, Pool
from rlx.sweeps.manifest import Sweep, is_sweep
from rlx.sweeps.search.settings import take_search
from rlx.sweeps.settings import Plan, compose_hydra, read_plan, split, take_name
from rlx.sweeps.table import closing_lines, fold, listing, view, write_results
from rlx.system import INTERRUPTED, versions

log = logging.getLogger("rlx")

RERUN = ("hydra.launcher.", "hydra/launcher", "hydra.mode")  # may differ when a sweep is run again by the same name


def sweep(arguments: Sequence[str], dry_run: bool = False) -> int:
    """Begin a sweep, or go on with the one of the same name and the same overrides; the exit code."""
    plan = read_plan(arguments)
    if is_sweep(plan.folder) and not dry_run:
        return _go_on(plan, arguments)
    made = Sweep(
        plan.folder,
        command=f"python -m rlx -m {shlex.join(arguments)}",
        overrides=list(plan.given),
        versions=versions(),
        launcher=plan.launcher,
        sweeper=plan.sweeper,
    )
    source = make_source(plan, made)
    if dry_run:
        sys.stdout.write(listing(made) + "\n")
        return 0
    limits = plan.limits
    with closing(plan.pool(source.configs.threads)) as pool:  # before anything is written
        try:
            plan.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"{plan.folder} cannot be written to ({error.strerror}); choose another folder.") from error
        with RunLock(plan.folder):
            if is_sweep(plan.folder):
                raise UserError(f"{plan.folder} has become another sweep meanwhile; choose another sweep=NAME.")
            log.info("Sweep: %s below %s", source.planned(), shortest(plan.folder))
            return run(made, source, pool, limits)


def _go_on(plan: Plan, arguments: Sequence[str]) -> int:
    """The same command again: what is missing, if anything."""
    with RunLock(plan.folder):
        there = Sweep.load(plan.folder)
        again = Sweep(plan.folder)
        before = [o for o in there.overrides if not o.startswith(RERUN)]
        same = before == [o for o in plan.given if not o.startswith(RERUN)]
        if same and there.search is None:
            make_source(plan, again)
            same = sorted(job.overrides for job in there.jobs) == sorted(job.overrides for job in again.jobs)
        if not same:
            raise UserError(
                f"{shortest(plan.folder)} holds another sweep ({there.command}); choose another sweep=NAME, or resume "
                f"that one with `python -m rlx resume {shlex.quote(shortest(plan.folder))}`."
            )
        return _continue(plan, there)


def resume(folder: Path, changes: Sequence[str] = (), trust: Sequence[str] = ()) -> int:
    """Run what is missing, unfinished or failed in a sweep; with changes, such as a longer budget, go on with all."""
    with RunLock(folder):
        there = Sweep.load(folder)
        searching, rest = take_search(changes)
        if searching and there.search is None:
            raise UserError(f"{searching[0]} is about a search, and {shortest(folder)} is a plain sweep; leave it out.")
        ours, changed = split(rest)
        plan = plan_of(there, ours, changed, trust)
        plan.search_changes = tuple(searching)
        return _continue(plan, there)


def plan_of(there: Sweep, ours: Sequence[str], changes: Sequence[str], trust: Sequence[str]) -> Plan:
    """A sweep that was read from disk as a plan: its launcher by name, its jobs as data."""
    _, given = take_name(there.overrides)
    before, _ = split([o for o in given if o != "hydra.mode=MULTIRUN"])
    typed = {override.lstrip("+").partition("=")[0] for override in ours}
    kept = [o for o in before if o.lstrip("+").partition("=")[0] not in typed]
    if "hydra/launcher" in typed:  # another one has other settings
        kept = [o for o in kept if not o.lstrip("+").startswith("hydra.launcher.")]
    hydra = compose_hydra([], [*kept, *ours])
    return Plan(given, [], hydra, there.folder, tuple(fit_numbers(changes)), tuple(trust), typed=False)


def _continue(plan: Plan, there: Sweep) -> int:
    for job in there.jobs:
        if job.state not in ("done", "pruned"):
            job.result = read_result(there.job_folder(job))
            if job.result is not None and job.result["stop_reason"] not in INTERRUPTED:
                job.state, job.exit_code, job.reason = "done", 0, None  # the sweep ended before it was written down
    source = make_source(plan, there)
    if source.finished():
        source.close()
        finish(there)
        log.info("%s has finished (%s); nothing to do.", shortest(plan.folder), source.planned())
        return 0
    there.launcher = plan.launcher
    there.versions = versions()
    log.info("Going on with %s: %s", shortest(plan.folder), source.left())
    limits = plan.limits
    with closing(plan.pool(source.configs.threads)) as pool:
        return run(there, source, pool, limits)


def make_source(plan: Plan, made: Sweep) -> Source:
    """The grid or the search that was chosen; its jobs are checked."""
    source: Source = instantiate(plan.hydra.sweeper, plan, made)
    return source


def run(made: Sweep, source: Source, pool: Pool, limits: LauncherConfig) -> int:
    """Drive a sweep to its end, and tell what it came to; the exit code."""
    driver = Driver(made, source, pool, limits, view(made, pool.stoppable), source.configs)
    code = driver.run()
    more = source.close()
    finish(made)
    log.info("%s", "\n".join([closing_lines(made), *more, *next_steps(made)]))
    return code


def finish(made: Sweep) -> None:
    """Fold the results, and write them down."""
    made.results = fold(made)
    made.save()
    write_results(made)


def next_steps(made: Sweep) -> list[str]:
    """Commands that can be copied."""
    folder = shlex.quote(shortest(made.folder))
    steps = []
    if made.count("waiting", "running", "failed", "interrupted"):
        steps.append(f"python -m rlx resume {folder}")
    if "report" in VERBS:
        steps.append(f"python -m rlx report {folder}")
    return [*steps, f"tensorboard --logdir {folder}"]
