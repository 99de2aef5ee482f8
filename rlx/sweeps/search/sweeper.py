"""hydra/sweeper=optuna."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rlx.errors import UserError
from rlx.sweeps.manifest import FILE, Sweep
from rlx.sweeps.search.asha import Asha
from rlx.sweeps.search.population import Population
from rlx.sweeps.search.sampling import require_optuna
from rlx.sweeps.search.settings import SearchConfig, change_search, settings_from
from rlx.sweeps.search.source import Search
from rlx.sweeps.settings import Plan


@dataclass
class OptunaConfig:
    """Values that Optuna draws; search=NAME and search.KEY=VALUE say how."""

    _target_: str = "rlx.sweeps.search.sweeper.make_search"
    params: dict[str, Any] | None = field(default_factory=dict)  # key -> interval(...), choice(...), ...


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
    settings = change_search(before, plan.search_changes)
    if written.get("settings", {}).get("storage") and settings.storage is None:
        raise UserError(f"{FILE} names a database for this search; add search.storage=URL to use it.")
    return settings
