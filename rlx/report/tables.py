"""Tables of runs as plain columns: what `rlx.runs` gives, and what csv, Markdown and JSON are made from."""

from __future__ import annotations

import csv
import importlib
import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlx.errors import UserError
from rlx.report.data import Collection, Run, read_all
from rlx.report.groups import group
from rlx.reporting import counted, shortest


class Table(Mapping[str, list[Any]]):
    """Columns by name, all of one length; None where a row has no value."""

    def __init__(self, columns: Mapping[str, list[Any]]):
        self._columns = dict(columns)

    def __getitem__(self, name: str) -> list[Any]:
        return self._columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    @property
    def rows(self) -> int:
        return len(next(iter(self._columns.values()), []))

    def to_pandas(self) -> Any:
        """A pandas.DataFrame."""
        try:
            pandas = importlib.import_module("pandas")
        except ImportError as error:
            raise UserError("to_pandas needs pandas; type: pip install pandas") from error
        return pandas.DataFrame(self._columns)

    def to_csv(self) -> str:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self._columns)
        writer.writerows(zip(*self._columns.values(), strict=True))
        return text.getvalue()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({counted(self.rows, 'row')}: {', '.join(self._columns)})"


class Runs(Table):
    """One row per run; `metrics` has one row for each row that they wrote."""

    def __init__(self, collection: Collection):
        self.collection = collection
        super().__init__(columns_of(collection))

    @property
    def metrics(self) -> Table:
        """Every row of metrics.jsonl of every run: name of the run, counters, and a column for each metric."""
        return metric_rows(self.collection.runs)


def runs(*paths: str | Path) -> Runs:
    """The runs at some paths, which are folders of runs, of sweeps, or of many of them, as plain columns.

    table = rlx.runs("multirun_outputs/sweeps/NAME")
    table["final"], table["algo"]              # lists, one value per run
    table.to_pandas()                          # where pandas is installed
    table.metrics["eval/return_mean"]          # all rows of metrics.jsonl, of all runs
    """
    if not paths:
        raise UserError("rlx.runs needs a path; for example rlx.runs('multirun_outputs').")
    return Runs(read_all(paths))


def columns_of(collection: Collection) -> dict[str, list[Any]]:
    found = collection.runs
    keys = group(collection).keys
    columns: dict[str, list[Any]] = {
        "run": [run.name for run in found],
        "sweep": [run.sweep or None for run in found],
        "state": [run.state for run in found],
        "algo": [run.algo or None for run in found],
        "env": [run.env or None for run in found],
        "seed": [run.seed for run in found],
    }
    for key in keys:
        columns.setdefault(key, [run.choices.get(key, run.config.get(key)) for run in found])
    for name in ("final", "best", "env_steps", "updates", "wall_time", "steps_per_second"):
        columns[name] = [getattr(run, name) for run in found]
    columns["reason"] = [run.reason or None for run in found]
    columns["command"] = [run.command or None for run in found]
    columns["folder"] = [shortest(run.path) for run in found]
    return columns


def metric_rows(found: Sequence[Run]) -> Table:
    """Rows as they were written, put together from the curves of the runs."""
    names = sorted({name for run in found for name in run.curves})
    counters = ("env_steps", "updates", "wall_time")
    columns: dict[str, list[Any]] = {name: [] for name in ("run", "kind", *counters, *names)}
    for run in found:
        rows: dict[tuple[float, ...], dict[str, float]] = {}
        for name, curve in run.curves.items():
            kind = float(run.kinds[name] == "eval")
            points = np.stack([curve.env_steps, curve.updates, curve.wall_time, curve.values], axis=1)
            for *at, value in points.tolist():
                rows.setdefault((*at, kind), {})[name] = value
        for (env_steps, updates, wall_time, kind), values in sorted(rows.items()):
            head = (run.name, "eval" if kind else "train", int(env_steps), int(updates), wall_time)
            for name, item in zip(("run", "kind", *counters), head, strict=True):
                columns[name].append(item)
            for name in names:
                columns[name].append(values.get(name))
    return Table(columns)
