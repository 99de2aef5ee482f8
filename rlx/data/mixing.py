"""Mixtures of datasets in a fixed ratio.

rows       as many rows of each source as its ratio says, whole episodes in random order with the last one cut;
           batches are then drawn uniformly and have the ratio on average
per batch  (`exact_per_batch`) all rows of every source, and each batch holds exactly its share of each
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

import numpy as np

from rlx.data.columns import Array
from rlx.data.dataset import TransitionDataset, apportion
from rlx.errors import UserError
from rlx.obs import map_obs, named_parts, parts_of
from rlx.system import enough_memory

log = logging.getLogger("rlx")

COLUMNS = ("obs", "action", "reward", "next_obs", "terminated", "truncated", "raw_reward", "ends")


def mix_transition_datasets(
    datasets: Mapping[str, TransitionDataset],
    ratios: Mapping[str, float],
    *,
    size: int | None = None,
    seed: int = 0,
    exact_per_batch: bool = False,
    oversample: bool = False,
) -> TransitionDataset:
    """One dataset of several by ratio; the same for the same seed. `group` tells where a row came from."""
    names = list(datasets)
    shares = _shares(names, ratios)
    _check_alike(datasets)
    if exact_per_batch:
        if size is not None:
            raise UserError(
                f"dataset.size={size} has no effect with exact_per_batch, which uses all rows; leave it out."
            )
        parts = [datasets[name] for name in names]
    else:
        counts = _counts(datasets, shares, size, oversample)
        rng = np.random.default_rng(seed)
        parts = [
            dataset.subset(pick_episodes(dataset, count, rng))
            for dataset, count in zip(datasets.values(), counts, strict=True)
            if count
        ]
        names = [name for name, count in zip(names, counts, strict=True) if count]
    mixed = _join(parts, names)
    mixed.shares = shares if exact_per_batch else ()
    rows = [len(part) for part in parts]
    told = ", ".join(f"{name} {n} rows ({n / len(mixed):.1%})" for name, n in zip(names, rows, strict=True))
    if exact_per_batch:
        told += ", in every batch " + ", ".join(f"{name} {s:.1%}" for name, s in zip(names, shares, strict=True))
    mixed.notes = (f"mixed from {told}", *(note for part in parts for note in part.notes))
    log.info("Dataset mixed from %s.", told)
    return mixed


def pick_episodes(dataset: TransitionDataset, count: int, rng: np.random.Generator) -> Array:
    """`count` rows: whole episodes in random order, again from the start when all are used, the last one cut."""
    episodes = dataset.episodes
    picked: list[Array] = []
    total = 0
    while total < count:
        for start, stop in episodes[rng.permutation(len(episodes))]:
            picked.append(np.arange(start, stop))
            total += int(stop - start)
            if total >= count:
                break
    return np.concatenate(picked)[:count]


def _shares(names: list[str], ratios: Mapping[str, float]) -> tuple[float, ...]:
    for name in (*names, *ratios):
        if name not in ratios or name not in names:
            side = "no ratio" if name in names else "a ratio but no source"
            raise UserError(f"The mix has {side} for '{name}': expected ratios for exactly {', '.join(names)}.")
    values = [float(ratios[name]) for name in names]
    if any(not np.isfinite(v) or v < 0 for v in values) or sum(values) <= 0:
        listed = ", ".join(f"{name}={ratios[name]}" for name in names)
        raise UserError(f"The mix has the ratios {listed}: expected numbers of 0 or more, not all 0.")
    return tuple(v / sum(values) for v in values)


def _counts(
    datasets: Mapping[str, TransitionDataset], shares: tuple[float, ...], size: int | None, oversample: bool
) -> list[int]:
    """Rows to take of each source."""
    lengths = [len(dataset) for dataset in datasets.values()]
    largest = int(min(n / share for n, share in zip(lengths, shares, strict=True) if share > 0) + 1e-9)
    if size is not None and size < 1:
        raise UserError(f"dataset.size must be at least 1 (dataset.size={size}).")
    if size is not None and size > largest and not oversample:
        raise UserError(
            f"dataset.size={size} is more than the sources give in this ratio: expected at most {largest}; "
            "add dataset.oversample=true to repeat episodes."
        )
    counts = apportion(size or largest, shares)
    if oversample:
        first = next(iter(datasets.values()))
        row = sum(part[:1].nbytes for name in COLUMNS for part in parts_of(getattr(first, name)))
        rows = sum(counts)
        with enough_memory(2 * rows * row, f"A mix of {rows:,} rows", lambda k: f"try dataset.size={int(rows * k)}"):
            return counts
    return [min(count, length) for count, length in zip(counts, lengths, strict=True)]


def _check_alike(datasets: Mapping[str, TransitionDataset]) -> None:
    first_name, first = next(iter(datasets.items()))
    for name, other in datasets.items():
        if other.memory == "mmap":
            raise UserError(f"'{name}' is memory-mapped and cannot be part of a mix; set memory=ram for it.")
        ours, theirs = (named_parts("obs", data.obs) | {"action": data.action} for data in (first, other))
        if ours.keys() != theirs.keys():
            has, expected = (", ".join(columns) for columns in (theirs, ours))
            raise UserError(f"'{name}' cannot be mixed with '{first_name}': it has {has}, expected {expected}.")
        for column, a in ours.items():
            b = theirs[column]
            if a.shape[1:] != b.shape[1:] or a.dtype != b.dtype:
                raise UserError(
                    f"'{name}' cannot be mixed with '{first_name}': its {column} has shape {tuple(b.shape[1:])} and "
                    f"dtype {b.dtype}, expected {tuple(a.shape[1:])} and {a.dtype}."
                )
        if first.scaled != other.scaled:
            raise UserError(
                f"'{name}' cannot be mixed with '{first_name}': only one of them has actions scaled to [-1, 1]."
            )


def _join(parts: list[TransitionDataset], names: list[str]) -> TransitionDataset:
    mixed = parts[0]._with(mc_return=None, discount=None)
    for column in COLUMNS:
        setattr(mixed, column, map_obs(lambda *rows: np.concatenate(rows), *(getattr(part, column) for part in parts)))
    known = [~part.ends if part.continues is None else part.continues for part in parts]
    mixed.continues = None if all(part.continues is None for part in parts) else np.concatenate(known)
    for flag in ("shuffled", "derived", "made_up", "ends_only", "order_matters"):
        setattr(mixed, flag, any(getattr(part, flag) for part in parts))
    mixed.recorded = all(part.recorded for part in parts)
    mixed.settled = all(part.settled for part in parts)
    mixed.group = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    mixed.source = "mix of " + ", ".join(names)
    mixed.key_map = {column: column for column in COLUMNS[:6]}
    return mixed
