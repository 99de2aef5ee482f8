"""hydra/sweeper=optuna."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rlx.errors import UserError, shown
from rlx.sweeps.manifest import FILE, Sweep
from rlx.sweeps.search.asha import Asha
from rlx.sweeps.search.population import Population
from rlx.sweeps.search.sampling import require_optuna
from rlx.sweeps.search.settings import GROUP, SearchConfig, change_search, settings_from
from rlx.sweeps.search.source import Search
from rlx.sweeps.settings import Plan


@dataclass
class OptunaConfig:
    """Values that Optuna draws; search=NAME and search.KEY=VALUE say how."""

    _target_: str = "rlx.sweeps.search.sweeper.make_search"
    params: dict[str, Any] | None = field(default_factory=dict)  # key -> interval(...), choice(...), ...


CHANGEABLE = ("trials", "sampler", "seed", "startup", "pruner", "warmup", "storage")  # when a search goes on

SCHEDULERS = {"none": Search, "asha": Asha, "pbt": Population}


def make_search(cfg: OptunaConfig, plan: Plan, sweep: Sweep) -> Search:
    """The source of a search: a new one, or one that goes on."""
    require_optuna()
    if sweep.search is None:
        settings = plan.search or change_search(SearchConfig(), ())
    else:
        settings = _settings_again(plan, sweep.search)
    return SCHEDULERS[settings.scheduler](settings, plan, sweep)


def _settings_again(plan: Plan, written: dict[str, Any]) -> SearchConfig:
    """The settings of a search that goes on. sweep.json is a file, which does not say where to connect to."""
    before = settings_from({**(written.get("settings") or {}), "storage": None})
    if plan.search is not None:
        before.storage = plan.search.storage
    for change in plan.search_changes:
        if change.lstrip("+").partition("=")[0].removeprefix(f"{GROUP}.") not in CHANGEABLE:
            raise UserError(
                f"{shown(change)} would not be the same search; what can change is "
                f"{', '.join(f'{GROUP}.{name}' for name in CHANGEABLE)}."
            )
    if plan.changes:
        raise UserError(
            f"{shown(plan.changes[0])} would make trials that cannot be compared; run the best of them as a sweep, "
            "or start a new search."
        )
    settings = change_search(before, plan.search_changes)
    if written.get("settings", {}).get("storage") and settings.storage is None:
        raise UserError(f"{FILE} names a database for this search; add search.storage=URL to use it.")
    return settings
