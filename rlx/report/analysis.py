"""Everything that a report says, computed once for all of its formats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rlx.report.comparison import Comparison, Effect, compare, effects
from rlx.report.data import STATES, Collection, Run, read_all
from rlx.report.groups import Grouping, group


@dataclass
class Analysis:
    collection: Collection
    grouping: Grouping
    comparison: Comparison | None
    effects: dict[str, list[Effect]]

    @property
    def title(self) -> str:
        names = [sweep.name for sweep in self.collection.sweeps]
        names = names or [path.resolve().name for path in self.collection.paths]
        return ", ".join(names[:3]) + (" …" if len(names) > 3 else "")

    @property
    def runs(self) -> list[Run]:
        return self.collection.runs

    @property
    def states(self) -> dict[str, int]:
        """How many runs are in each state, none of which is left out if it has any."""
        counts = {state: sum(run.state == state for run in self.runs) for state in STATES}
        return {state: count for state, count in counts.items() if count}

    @property
    def failures(self) -> list[Run]:
        return [run for run in self.runs if run.state == "failed"]

    @property
    def versions(self) -> dict[str, list[str]]:
        """Every version of everything that the runs say they were made with."""
        seen: dict[str, dict[str, None]] = {}
        for versions in [*(run.versions for run in self.runs), *(sweep.versions for sweep in self.collection.sweeps)]:
            for name, version in versions.items():
                seen.setdefault(name, {})[version] = None
        return {name: list(values) for name, values in seen.items()}

    @property
    def wall_time(self) -> float:
        return sum(run.wall_time or 0.0 for run in self.runs)

    @property
    def env_steps(self) -> int:
        return sum(run.env_steps or 0 for run in self.runs)

    @property
    def updates(self) -> int:
        return sum(run.updates or 0 for run in self.runs)


def analyse(paths: Sequence[str | Path]) -> Analysis:
    collection = read_all(paths)
    grouping = group(collection)
    return Analysis(collection, grouping, compare(collection.runs, grouping), effects(collection.runs, grouping))
