"""The trials of a search as an Optuna study on disk: it decides what is pruned, and Optuna's own tools can read it.

sweep.json is the truth; a study that lacks a trial is given it again. The journal is one JSON object on each line.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlx.errors import UserError, shown
from rlx.files import remove
from rlx.reporting import muted
from rlx.run_folder import refuse_link
from rlx.sweeps.search.sampling import direction
from rlx.sweeps.search.settings import SearchConfig
from rlx.sweeps.search.space import Domain
from rlx.sweeps.search.trials import Trial

if TYPE_CHECKING:
    import optuna

JOURNAL = "optuna.journal"
LOCK = f"{JOURNAL}.lock"  # that a process that was killed may have left; the sweep has a lock of its own
TRIAL = "trial"  # the number of a trial in sweep.json
STARTUP = 5  # trials before the first one may be pruned


class StoredStudy:
    """The study of one sweep."""

    def __init__(self, settings: SearchConfig, domains: Sequence[Domain], folder: Path, warmup: int):
        self.settings, self.domains, self.folder, self.warmup = settings, domains, folder, warmup
        self._study: optuna.Study | None = None
        self._trials: dict[int, optuna.Trial] = {}

    def open(self, trials: Sequence[Trial]) -> None:
        """Make or load the study; afterwards it has these trials, and no other one is under way."""
        import optuna

        pruner = optuna.pruners.MedianPruner(n_startup_trials=STARTUP, n_warmup_steps=self.warmup)
        try:
            with muted():
                study = self._study = optuna.create_study(
                    storage=self._storage(),
                    sampler=optuna.samplers.RandomSampler(seed=0),  # never asked: values are drawn elsewhere
                    pruner=pruner if self.settings.pruner == "median" else optuna.pruners.NopPruner(),
                    study_name=f"rlx {self.folder.resolve().name}",
                    direction=direction(self.settings),
                    load_if_exists=bool(trials) or not self.settings.storage,
                )
                present = self._take_up(study, len(trials))
        except UserError:
            raise
        except optuna.exceptions.DuplicatedStudyError as error:
            raise UserError(
                f"search.storage has a study for {shown(self.folder.name)} already; choose another sweep=NAME."
            ) from error
        except Exception as error:  # whatever a database, or a journal that somebody has changed, leads to
            what = f"search.storage={shown(self.settings.storage)}" if self.settings.storage else str(self._journal)
            hint = "" if self.settings.storage else "; delete it, and it is written anew from sweep.json"
            raise UserError(f"{what} cannot be used ({shown(error)}){hint}.") from error
        for trial in trials:
            if trial.number not in present:
                self.begin(trial)
                for step, value in trial.reports:
                    self.report(trial, int(step), value)
            if trial.number in self._trials:
                self.end(trial)

    def _take_up(self, study: optuna.Study, count: int) -> set[int]:
        """The numbers of the trials that the study has; what a search that was killed left beside them is ended."""
        from optuna import Trial as Asked
        from optuna.trial import TrialState

        present: set[int] = set()
        for stored in study.get_trials(deepcopy=False):
            number: Any = stored.user_attrs.get(TRIAL)
            known = type(number) is int and number < count
            if stored.state == TrialState.WAITING:
                study.tell(study.ask(), state=TrialState.FAIL)
            elif stored.state == TrialState.RUNNING and not known:
                study.tell(stored.number, state=TrialState.FAIL)
            elif stored.state != TrialState.FAIL and known:
                present.add(number)
                if stored.state == TrialState.RUNNING:
                    self._trials[number] = Asked(study, stored._trial_id)
        return present

    @property
    def _journal(self) -> Path:
        return self.folder / JOURNAL

    def _storage(self) -> Any:
        if self.settings.storage:
            return self.settings.storage
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

        refuse_link(self._journal)
        remove(self.folder / LOCK)
        if self._journal.is_file():
            _drop_half_line(self._journal)
        path = str(self._journal)
        return JournalStorage(JournalFileBackend(path, lock_obj=JournalFileOpenLock(path)))

    def begin(self, trial: Trial) -> None:
        assert self._study is not None
        with muted():
            values = {domain.name: domain.drawn(trial.values[domain.name]) for domain in self.domains}
            self._study.enqueue_trial(values, user_attrs={TRIAL: trial.number})
            asked = self._study.ask({domain.name: domain.distribution() for domain in self.domains})
            self._trials[trial.number] = asked

    def report(self, trial: Trial, step: int, value: float) -> bool:
        """Tell how a trial does; should it be pruned?"""
        stored = self._trials.get(trial.number)
        if stored is None:
            return False
        with muted():
            stored.report(value, step)
            return stored.should_prune()

    def end(self, trial: Trial) -> None:
        """Tell what became of a trial; one that failed stays open, as a resume may bring its value."""
        from optuna.trial import TrialState

        assert self._study is not None
        if trial.state not in ("done", "pruned"):
            return
        if trial.number not in self._trials:
            if trial.state == "pruned":
                return  # the study knows
            self.begin(trial)  # it was pruned before, and has gone on since
        stored = self._trials.pop(trial.number)
        with muted():
            if trial.state == "done":
                self._study.tell(stored, trial.value)
            else:
                self._study.tell(stored, state=TrialState.PRUNED)


def _drop_half_line(path: Path) -> None:
    """A process that was killed may have left half a line at the end."""
    with open(path, "r+b") as file:
        size = file.seek(0, 2)
        at = size
        while at > 0:
            start = max(0, at - 65536)
            file.seek(start)
            end = file.read(at - start).rfind(b"\n")
            if end >= 0:
                file.truncate(start + end + 1)
                return
            at = start
        file.truncate(0)
