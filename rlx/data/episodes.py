"""Where episodes end and how: what files get wrong, and what can be put right.

Three traps are common enough to look for while loading:

    time limits stored as terminals    every episode "terminates" at the env's limit, so nothing bootstraps there
    boundaries that are missing        inside an episode `next_obs` is not the `obs` of the row after it
    the reset stored as `next_obs`     a truncated row's `next_obs` is the first `obs` of the next episode

`dataset.terminals` and `dataset.episodes` say what to do about them.
"""

from __future__ import annotations

import logging
from enum import Enum
from typing import Any

import numpy as np

from rlx.data.columns import Array
from rlx.data.dataset import TransitionDataset
from rlx.errors import UserError
from rlx.obs import map_obs, parts_of

log = logging.getLogger("rlx")

ENOUGH = 10  # episodes; with fewer, a pattern may be chance
SHORT = 20  # steps; shorter episodes of one length are common in tasks that end by themselves
SAMPLED = 2000  # rows whose steps tell how far an observation usually moves
ROWS_NAMED = 3  # in a sentence


class Terminals(str, Enum):
    """What to do about terminal flags that may be time limits."""

    check = "check"
    as_stored = "as_stored"
    time_limits = "time_limits"


class Episodes(str, Enum):
    """What to do about rows that contradict the boundaries."""

    check = "check"
    as_stored = "as_stored"
    infer = "infer"


def with_terminals(
    dataset: TransitionDataset, choice: Terminals | str, limit: int | None, env_id: str = "the env"
) -> TransitionDataset:
    """The dataset with its terminal flags checked against the time limit, corrected, or as they are stored."""
    choice = Terminals(choice)
    if choice is Terminals.as_stored or dataset.recorded:
        return dataset
    if choice is Terminals.time_limits:
        return _as_truncations(dataset, at_limit(dataset, limit))
    if dataset.ends_only:
        return _sorted_ends(dataset, limit, env_id)
    if (doubt := doubt_terminals(dataset, limit, env_id)) is None:
        return dataset
    certain, sentence = doubt
    if certain:
        raise UserError(f"{dataset.source}: {sentence}.")
    return _warned(dataset, sentence)


def with_episodes(
    dataset: TransitionDataset, choice: Episodes | str, limit: int | None = None, env_id: str = "the env"
) -> TransitionDataset:
    """The dataset with boundaries where its rows say so, or as stored, with or without a warning."""
    choice = Episodes(choice)
    if choice is Episodes.as_stored:
        return dataset._with(shuffled=False, continues=None, order_matters=False)
    if choice is Episodes.check:
        if (missing := _no_boundaries(dataset, limit, env_id)) is not None:
            raise UserError(f"{dataset.source}: {missing}.")
        if (sentence := doubt_order(dataset)) is not None:
            _warned(dataset, sentence)
        return dataset._with(order_matters=True)
    if dataset.shuffled:
        raise UserError(
            f"{dataset.source}: dataset.episodes=infer finds no episodes, because the rows are not in order; use "
            "dataset.episodes=check."
        )
    if dataset.derived:
        raise UserError(
            f"{dataset.source}: dataset.episodes=infer compares next_obs with the next obs, and the file has no "
            "next_obs; use dataset.episodes=check."
        )
    dataset = dataset.compared()
    gaps, resets = dataset.gaps, reset_rows(dataset)
    if len(gaps):
        truncated, ends = dataset.truncated.copy(), dataset.ends.copy()
        truncated[gaps], ends[gaps] = 1.0, True
        dataset = dataset._with(truncated=truncated, ends=ends)
        dataset = _with_note(dataset, f"an episode ends in {_rows(gaps)}, where next_obs is not the next obs")
    if len(resets):
        keep = np.ones(len(dataset), dtype=bool)
        keep[resets] = False
        note = f"{_rows(resets)} dropped, whose next_obs was the first obs of the next episode"
        dataset = _with_note(dataset.subset(keep), note)
    return dataset


def at_limit(dataset: TransitionDataset, limit: int | None) -> Array:
    """Terminated rows that end an episode at the time limit; without one, at the length of the longest episode.

    Files that lost the last row of each episode are one step short of it.
    """
    starts, stops = dataset.episodes.T
    lengths = stops - starts
    limit = int(lengths.max()) if limit is None else limit
    every = bool((lengths >= limit - 1).all())
    last = stops[lengths >= (limit if not every and (lengths >= limit).any() else limit - 1)] - 1
    ended: Array = last[dataset.terminated[last] > 0]
    return ended


def doubt_terminals(dataset: TransitionDataset, limit: int | None, env_id: str = "the env") -> tuple[bool, str] | None:
    """Why terminal flags look like time limits, and whether that is certain; None if they do not."""
    starts, stops = dataset.episodes.T
    lengths, terminated = stops - starts, dataset.terminated[stops - 1] > 0
    if not terminated[-1]:  # cut by the end of the data
        lengths, terminated = lengths[:-1], terminated[:-1]
    if len(lengths) < ENOUGH or not terminated.all():
        return None
    type_this = (
        "type dataset.terminals=time_limits to turn these terminals into truncations, or dataset.terminals=as_stored "
        "to keep them"
    )
    longest, shortest = int(lengths.max()), int(lengths.min())
    if longest - shortest <= 1 and limit in (longest, longest + 1):
        steps = f"{longest}" if longest == shortest else f"{shortest} or {longest}"
        return True, (
            f"all {len(lengths):,} episodes terminated after {steps} steps, which is the time limit of {env_id} "
            f"({limit}): time limits seem to be stored as terminals; {type_this}"
        )
    if longest - shortest <= 1 and limit is None and longest >= SHORT:
        return False, (
            f"all {len(lengths):,} episodes terminated after {longest} steps, as at a time limit; if it was one, "
            "type dataset.terminals=time_limits"
        )
    at, before = int((lengths == limit).sum()), int((lengths == (limit or 0) - 1).sum())
    if limit is not None and longest == limit and at >= max(ENOUGH, len(lengths) // 20) and at > 5 * before:
        return False, (
            f"{at:,} of {len(lengths):,} episodes terminated exactly at the time limit of {env_id} ({limit} steps) and "
            f"none was truncated: time limits may be stored as terminals; {type_this}"
        )
    return None


def _no_boundaries(dataset: TransitionDataset, limit: int | None, env_id: str) -> str | None:
    """Why a file without next_obs cannot have all its boundaries: its successors would be those of other episodes."""
    starts, stops = dataset.episodes.T
    longest = int((stops - starts).max())
    if limit is None or longest <= limit or not dataset.made_up or dataset.truncated.sum() > 1:
        return None
    return (
        f"holds an episode of {longest:,} steps, and {env_id} stops after {limit}: the file has no next_obs and does "
        "not say where episodes are truncated; add 'next_obs', 'timeouts' or 'episode_starts' to it, or type "
        "dataset.episodes=as_stored if the limit was another one"
    )


def doubt_order(dataset: TransitionDataset) -> str | None:
    """What is wrong with the order of the rows; None if nothing is."""
    if dataset.shuffled:
        return (
            "the rows are not in order (next_obs is hardly ever the next obs): algorithms can learn from single "
            "transitions, but not from Monte-Carlo returns, n-step returns or windows"
        )
    if len(gaps := dataset.gaps):
        return (
            f"next_obs is not the next obs in {_rows(gaps)}, inside episodes: boundaries are missing; type "
            "dataset.episodes=infer to end an episode at each, or dataset.episodes=as_stored to take them as they are"
        )
    if len(resets := reset_rows(dataset)):
        return (
            f"the next_obs of {_rows(resets)}, truncated, is the first obs of the next episode and not the last one "
            "of its own; type dataset.episodes=infer to drop them"
        )
    return None


def reset_rows(dataset: TransitionDataset) -> Array:
    """Truncated rows whose next_obs is the first obs of the next episode, with a jump as only a reset makes one.

    Where one long episode was cut into pieces, next_obs continues too, and rightly so: there, nothing jumps.
    """
    if dataset.continues is None or dataset.shuffled:
        return np.zeros(0, dtype=np.int64)
    ends = np.flatnonzero(dataset.ends[:-1] & (dataset.truncated[:-1] > 0))
    rows = ends[dataset.continues[ends]]
    if len(rows) < ENOUGH or len(rows) < 0.9 * len(ends):
        return rows[:0]
    inside = np.flatnonzero(~dataset.ends & dataset.continues)
    if not len(inside):
        return rows[:0]
    inside = inside[:: max(1, len(inside) // SAMPLED)]
    usual = _steps(dataset, inside)
    scale = usual.std(0) + 1e-12
    jumps = (_steps(dataset, rows[:: max(1, len(rows) // SAMPLED)]) / scale).max(1)
    return rows if np.median(jumps) > np.quantile((usual / scale).max(1), 0.99) else rows[:0]


def _steps(dataset: TransitionDataset, rows: Array) -> Array:
    """[rows, dim] how far each entry of the observation moves."""

    def moved(obs: Any, next_obs: Any) -> Array:
        before, after = (np.asarray(column[rows], dtype=np.float64) for column in (obs, next_obs))
        return np.abs(after - before).reshape(len(rows), -1)

    return np.concatenate(parts_of(map_obs(moved, dataset.obs, dataset.next_obs)), axis=1)


def _sorted_ends(dataset: TransitionDataset, limit: int | None, env_id: str) -> TransitionDataset:
    """Of ends of which the file does not say whether they are terminal, those at the time limit are truncations."""
    unknown = "the file does not tell terminal states from time limits"
    if limit is None:
        return _warned(
            dataset,
            f"{unknown}: every end counts as terminal; type dataset.terminals=time_limits to count the longest "
            "episodes as truncated",
        )
    rows = at_limit(dataset, limit)
    count = len(dataset.episodes)
    told = (
        f"{unknown}: {len(rows):,} of {count:,} episodes reach the time limit of {env_id} ({limit} steps) and count as "
        f"truncated, the others as terminated"
    )
    return _warned(_as_truncations(dataset, rows, tell=False), told)


def _as_truncations(dataset: TransitionDataset, rows: Array, tell: bool = True) -> TransitionDataset:
    if not len(rows):
        return dataset
    if dataset.made_up:  # a terminated row has its own obs for next_obs, from which nothing may bootstrap
        keep = np.ones(len(dataset), dtype=bool)
        keep[rows] = False
        made = dataset.subset(keep)
    else:
        terminated, truncated = dataset.terminated.copy(), dataset.truncated.copy()
        terminated[rows], truncated[rows] = 0.0, 1.0
        made = dataset._with(terminated=terminated, truncated=truncated)
    return _with_note(made, f"{len(rows):,} terminals at the time limit turned into truncations") if tell else made


def _rows(rows: Array) -> str:
    """'row 7', '99 rows (994, 1989, 2984, ...)'."""
    if len(rows) == 1:
        return f"row {rows[0]}"
    listed = ", ".join(str(row) for row in rows[:ROWS_NAMED])
    return f"{len(rows):,} rows ({listed}{', ...' if len(rows) > ROWS_NAMED else ''})"


def _with_note(dataset: TransitionDataset, note: str) -> TransitionDataset:
    return dataset._with(notes=(*dataset.notes, note))


def _warned(dataset: TransitionDataset, sentence: str) -> TransitionDataset:
    log.warning("%s: %s.", dataset.source, sentence)
    return dataset


def apply_choices(
    dataset: TransitionDataset, cfg: Any, limit: int | None, env_id: str = "the env", check: bool = True
) -> TransitionDataset:
    """What `dataset.episodes` and `dataset.terminals` ask for; `check=False` leaves out what is only looked at."""
    if check or cfg.episodes != Episodes.check:
        dataset = with_episodes(dataset, cfg.episodes, limit, env_id)
    if check or cfg.terminals != Terminals.check:
        dataset = with_terminals(dataset, cfg.terminals, limit, env_id)
    return dataset
