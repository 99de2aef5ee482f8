"""The values of the next trial: a function of the trials before it and of `search.seed`, and of nothing else.

A study is made in memory from the trials in sweep.json each time. So a search that was killed draws what it would have
drawn, if its trials end in the same order; and no state of a sampler is ever read from a file.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rlx.errors import UserError
from rlx.reporting import muted
from rlx.sweeps.search.settings import SearchConfig
from rlx.sweeps.search.space import Domain, Value
from rlx.sweeps.search.trials import Trial

if TYPE_CHECKING:
    from optuna import Study
    from optuna.samplers import BaseSampler
    from optuna.study import StudyDirection
    from optuna.trial import FrozenTrial

MOST_COMBINATIONS = 100_000


def require_optuna() -> None:
    """A sentence where Optuna is not installed."""
    try:
        import optuna
    except ImportError as error:
        raise UserError(
            "hydra/sweeper=optuna needs Optuna, which is not installed: pip install -e '.[search]' in a checkout of "
            "rlx."
        ) from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)


def direction(settings: SearchConfig) -> StudyDirection:
    from optuna.study import StudyDirection

    return StudyDirection[settings.direction.upper()]


def check_sampler(settings: SearchConfig, domains: Sequence[Domain]) -> None:
    """Refuse a space that the sampler cannot draw from."""
    if settings.sampler == "grid":
        grid(domains)
    if settings.sampler == "cmaes" and sum(domain.kind != "choice" for domain in domains) < 2:
        raise UserError("search.sampler=cmaes needs at least two keys with intervals or ranges; use tpe, or add one.")


def grid(domains: Sequence[Domain]) -> list[dict[str, Value]]:
    """Every combination, the last key first."""
    values = [domain.values() for domain in domains]
    count = int(np.prod([len(v) for v in values], dtype=float))
    if count > MOST_COMBINATIONS:
        raise UserError(f"The grid has {count:,} combinations, and at most {MOST_COMBINATIONS:,} can be tried.")
    return [dict(zip((d.name for d in domains), c, strict=True)) for c in itertools.product(*values)]


def draw(settings: SearchConfig, domains: Sequence[Domain], trials: Sequence[Trial]) -> dict[str, Value]:
    """The values of the trial that follows on these."""
    if settings.sampler == "grid":
        return grid(domains)[len(trials)]
    with muted():  # of parts that may change: this version has been tried
        study = _study(settings, domains, trials)
        params = study.ask({domain.name: domain.distribution() for domain in domains}).params
    return {domain.name: domain.value(params[domain.name]) for domain in domains}


def _study(settings: SearchConfig, domains: Sequence[Domain], trials: Sequence[Trial]) -> Study:
    import optuna

    study = optuna.create_study(direction=direction(settings), sampler=_sampler(settings, len(trials)))
    if settings.sampler != "cmaes":
        study.add_trials([frozen(trial, domains) for trial in trials])
        return study
    # The state of CMA-ES grows with what it was asked and told, so it is told all of it again.
    distributions = {domain.name: domain.distribution() for domain in domains}
    for trial in trials:
        study.enqueue_trial({domain.name: domain.drawn(trial.values[domain.name]) for domain in domains})
        asked = study.ask(distributions)
        if trial.state == "done":
            study.tell(asked, trial.value)
        elif trial.over:
            study.tell(asked, state=optuna.trial.TrialState.FAIL)
    return study


def _sampler(settings: SearchConfig, number: int) -> BaseSampler:
    from optuna import samplers

    # One seed for all of CMA-ES, which is asked for every trial again; one for each trial of the others.
    entropy = [settings.seed] if settings.sampler == "cmaes" else [settings.seed, number]
    seed = int(np.random.SeedSequence(entropy).generate_state(1)[0])
    if settings.sampler == "tpe":
        return samplers.TPESampler(seed=seed, n_startup_trials=settings.startup, multivariate=True, constant_liar=True)
    if settings.sampler == "gp":
        return samplers.GPSampler(seed=seed, n_startup_trials=settings.startup)
    if settings.sampler == "cmaes":
        return samplers.CmaEsSampler(seed=seed, warn_independent_sampling=False)
    return samplers.RandomSampler(seed=seed)


def frozen(trial: Trial, domains: Sequence[Domain]) -> FrozenTrial:
    """A trial as Optuna has it. One that failed counts as running: samplers that think of those keep away from it, and
    a resume may yet bring its value.
    """
    from optuna.trial import TrialState, create_trial

    states = {"done": TrialState.COMPLETE, "pruned": TrialState.PRUNED, "paused": TrialState.PRUNED}
    state = states.get(trial.state, TrialState.RUNNING)
    params: dict[str, Any] = {domain.name: domain.drawn(trial.values[domain.name]) for domain in domains}
    return create_trial(
        state=state,
        value=trial.value if state == TrialState.COMPLETE else None,
        params=params,
        distributions={domain.name: domain.distribution() for domain in domains},
        intermediate_values=trial.reported(),
    )


def importance(settings: SearchConfig, domains: Sequence[Domain], trials: Sequence[Trial]) -> dict[str, float]:
    """How much of the differences between trials is due to each key (fANOVA), as shares of 1; {} if too few to tell."""
    from optuna import create_study
    from optuna.importance import FanovaImportanceEvaluator, get_param_importances

    done = [trial for trial in trials if trial.state == "done"]
    if len(done) < 2 * len(domains) or len({trial.value for trial in done}) < 2:
        return {}
    with muted():  # of parts that may change: this version has been tried
        study = create_study(direction=direction(settings))
        study.add_trials([frozen(trial, domains) for trial in done])
        weights = get_param_importances(study, evaluator=FanovaImportanceEvaluator(seed=0))
    return {name: round(float(weight), 4) for name, weight in weights.items()}
