"""What is in a dataset, as rows of a table: `python -m rlx inspect-data SOURCE`."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlx.data.columns import chunks
from rlx.data.dataset import TransitionDataset, check_fits, scale_actions
from rlx.data.episodes import doubt_order, doubt_terminals
from rlx.errors import UserError
from rlx.obs import named_parts, parts_of
from rlx.types import Spec

SHOWN = 8  # dimensions of a vector that are written out


def inspect_dataset(dataset: TransitionDataset, spec: Spec | None = None) -> list[tuple[str, str]]:
    """(name, value) rows: size, episodes, returns, ranges, action saturation, oddities, match with the env."""
    starts, stops = dataset.episodes.T
    lengths = stops - starts
    ended = int(dataset.terminated[stops - 1].sum())
    rows = [
        ("source", dataset.source),
        ("env", dataset.env_id or "not named"),
        ("keys", ", ".join(f"{key} -> {column}" for key, column in dataset.key_map.items())),
        ("transitions", f"{len(dataset):,} ({dataset.nbytes / 1e6:,.1f} MB, {dataset.memory})"),
        ("episodes", f"{len(starts):,} ({ended:,} terminated, {len(starts) - ended:,} truncated)"),
        ("order", _order(dataset)),
        ("terminals", _terminals(dataset, spec)),
        ("length", _distribution(lengths)),
        ("return", _distribution(dataset.returns())),
        ("reward", _range(dataset.raw_reward)),
        *(
            (name, f"{tuple(part.shape[1:])} {part.dtype}, {_range(part)}")
            for name, part in named_parts("obs", dataset.obs).items()
        ),
        ("action", _actions(dataset)),
        ("saturation", _saturation(dataset, spec)),
        ("NaN or inf", _not_finite(dataset)),
    ]
    rows += [("note", note) for note in dataset.notes]
    return rows if spec is None else [*rows, ("env match", _match(dataset, spec))]


def _order(dataset: TransitionDataset) -> str:
    """Does next_obs continue from row to row?"""
    if dataset.derived:
        return "not checked: next_obs was taken from the observations"
    return doubt_order(dataset.compared()) or "next_obs is the next obs inside every episode"


def _terminals(dataset: TransitionDataset, spec: Spec | None) -> str:
    """Do the terminal flags look like time limits?"""
    if dataset.ends_only:
        return "the file does not tell terminal states from time limits"
    if dataset.recorded:
        return "as the env gave them"
    limit, env_id = (None, "the env") if spec is None else (spec.episode_limit, spec.env_id)
    doubt = doubt_terminals(dataset, limit, env_id)
    return "no sign of time limits among them" if doubt is None else doubt[1]


def _distribution(values: Any) -> str:
    low, middle, high = np.percentile(values, [25, 50, 75])
    return (
        f"{np.mean(values):.1f} +- {np.std(values):.1f}, min {np.min(values):.1f}, quartiles {low:.1f} {middle:.1f} "
        f"{high:.1f}, max {np.max(values):.1f}"
    )


def _range(column: Any) -> str:
    """Smallest and largest value, per dimension where a vector is short."""
    vector = len(column.shape) == 2 and column.shape[1] <= SHOWN
    bounds = []
    for rows in chunks(column):
        part = np.asarray(column[rows])
        part = part if vector else part.reshape(-1, 1)
        bounds.append((part.min(0), part.max(0)))
    low = np.min([b[0] for b in bounds], axis=0)
    high = np.max([b[1] for b in bounds], axis=0)
    return ", ".join(f"[{a:.4g}, {b:.4g}]" for a, b in zip(low, high, strict=True))


def _actions(dataset: TransitionDataset) -> str:
    if dataset.action.dtype.kind == "f":
        unit = "scaled" if dataset.scaled else "env units"
        return f"{dataset.action.shape[1]} dimensions ({unit}), {_range(dataset.action)}"
    values, counts = np.unique(dataset.action, return_counts=True)
    listed = ", ".join(f"{v}: {c / dataset.action.size:.1%}" for v, c in list(zip(values, counts, strict=True))[:SHOWN])
    return f"discrete, {listed}" + (", ..." if len(values) > SHOWN else "")


def _saturation(dataset: TransitionDataset, spec: Spec | None) -> str:
    """Share of action entries on, and outside, the bounds of the box."""
    if dataset.action.dtype.kind != "f":
        return "discrete"
    if not dataset.scaled:
        if spec is None or spec.discrete or tuple(dataset.action.shape[1:]) != tuple(spec.action_shape):
            low, high = dataset.action.min(0), dataset.action.max(0)
            share = ((dataset.action == low) | (dataset.action == high)).mean()
            return f"{share:.1%} of entries on the extremes of the data (bounds unknown without the env)"
        action, beyond = scale_actions(dataset.action, spec)
        return f"{(np.abs(action) >= 1 - 1e-5).mean():.1%} of entries on or outside the bounds, {beyond} outside"
    return f"{(np.abs(dataset.action) >= 1 - 1e-5).mean():.1%} of entries on the bounds"


def _not_finite(dataset: TransitionDataset) -> str:
    """Loading refuses them; this looks again, after a reward transform for example."""
    count = 0
    for column in (*parts_of(dataset.obs), *parts_of(dataset.next_obs), dataset.action, dataset.reward):
        if column.dtype.kind == "f":
            count += sum(int((~np.isfinite(column[rows])).sum()) for rows in chunks(column))
    return str(count)


def _match(dataset: TransitionDataset, spec: Spec) -> str:
    try:
        check_fits(dataset.as_seen(spec), spec)
    except UserError as error:
        return f"no: {error}"
    return f"yes: {spec.env_id}"
