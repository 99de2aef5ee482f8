"""TransitionDataset: offline transitions as numpy columns, episodes in order.

Rows never change in place: every `with_...` returns a new dataset that shares the columns it leaves alone. Observations
of a dataset in `memory=mmap` stay on disk and are read when rows are asked for; everything else fits in memory.
"""

from __future__ import annotations

import copy
import functools
import logging
import re
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from rlx.data.columns import (
    Array,
    Columns,
    assemble,
    bounds,
    chunks,
    claim_memory,
    compare_successors,
    on_disk,
    seen_as,
    take,
)
from rlx.data.keys import kind_of, listed_parts, opened
from rlx.errors import UserError
from rlx.obs import map_obs, named_parts, parts_of
from rlx.reporting import counted
from rlx.returns import discounted_returns, going_on
from rlx.system import enough_memory
from rlx.types import NO_ENV, OBS, Spec

log = logging.getLogger("rlx")

SAMPLED_ROWS = 1024  # of the observations in a fingerprint


class Transform(Protocol):
    """What a reward transform is to a dataset."""

    def __call__(self, reward: Array, terminated: Array) -> Array: ...


class TransitionDataset:
    """Offline transitions; see the fields below for shapes."""

    def __init__(self, columns: Columns, source: str, env_id: str | None = None):
        self.obs = columns.obs  # [N, *obs_shape] float32 or uint8; of several parts, a dict of such arrays
        self.action = columns.action  # [N, dim] float32, or [N] int64
        self.reward = columns.reward  # [N] float32, after the reward transform if there was one
        self.next_obs = columns.next_obs  # [N, *obs_shape]
        self.terminated = columns.terminated  # [N] float32
        self.truncated = columns.truncated  # [N] float32; every episode ends with one of the two flags
        self.ends: Array = (columns.terminated + columns.truncated) > 0  # [N] bool, the last row of an episode
        self.raw_reward = columns.reward  # [N] as the env gave it
        self.mc_return: Array | None = None  # [N] discounted return to the end of the episode, see with_mc_returns
        self.discount: Array | None = None  # [N] gamma ** n, see with_n_step
        self.group: Array | None = None  # [N] which source of a mixture a row came from
        self.shares: tuple[float, ...] = ()  # of each group in every batch; empty: rows are drawn uniformly
        self.source = source  # what it was read from
        self.env_id = env_id  # the env that the file names, if it does
        self.key_map = columns.key_map  # key in the file -> column
        self.notes = columns.notes  # what was derived or changed on the way, in words
        self.scaled = False  # box actions are in [-1, 1]
        self.continues = columns.continues  # [N] True where next_obs is the obs of the next row; None: not compared
        self.derived = columns.derived  # next_obs was not in the file
        self.shuffled = columns.shuffled  # the rows are not in order
        self.made_up = columns.made_up  # terminated rows repeat their own obs as next_obs
        self.ends_only = columns.ends_only  # nothing tells terminal states from time limits
        self.order_matters = False  # refuse, and not only warn, where rows that should follow each other do not
        self.recorded = False  # the flags are those that the env gave to rlx
        self.settled = False  # `dataset.terminals` and `dataset.episodes` were applied before there was a Spec

    @classmethod
    def from_dict(
        cls, arrays: Mapping[str, Any], *, spec: Spec | None = None, source: str = "arrays", env_id: str | None = None
    ) -> TransitionDataset:
        """A dataset from arrays under any of the usual names; with a spec also checked and scaled for it.

        Observations of several parts are a dict of arrays, or have keys such as `observations/pixels`.
        """
        arrays = opened(arrays)

        def declared(key: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
            given = arrays[key]
            return getattr(given, "shape", (0,)), getattr(given, "dtype", np.dtype(np.float32))

        columns = assemble(arrays.keys(), arrays.__getitem__, source, declared, claim_memory(source))
        dataset = cls(columns, source, env_id)
        return dataset if spec is None else dataset.fitted_to(spec)

    def __len__(self) -> int:
        return len(self.reward)

    def __repr__(self) -> str:
        columns = named_parts("obs", self.obs) | {"action": self.action}
        told = ", ".join(f"{name} {tuple(column.shape[1:])} {column.dtype}" for name, column in columns.items())
        return (
            f"TransitionDataset({len(self):,} transitions, {int(self.ends.sum()):,} episodes, {told}, "
            f"source={self.source!r})"
        )

    @property
    def memory(self) -> str:
        return "mmap" if any(on_disk(part) for part in parts_of(self.obs)) else "ram"

    @property
    def nbytes(self) -> int:
        columns = (self.obs, self.next_obs, self.action, self.reward, self.terminated, self.truncated)
        return sum(part.nbytes for column in columns for part in parts_of(column))

    @property
    def episodes(self) -> Array:
        """[E, 2]: first row of each episode and the row after its last."""
        stops = np.flatnonzero(self.ends) + 1
        return np.stack([np.concatenate([[0], stops[:-1]]), stops], axis=1)

    @property
    def gaps(self) -> Array:
        """Rows inside an episode whose next_obs is not the obs of the row after them."""
        if self.continues is None:
            return np.zeros(0, dtype=np.int64)
        return np.flatnonzero(~self.continues & ~self.ends)

    def compared(self) -> TransitionDataset:
        """This dataset with next_obs compared with the next obs in every row, not only where it was doubtful."""
        if self.derived or self.continues is not None:
            return self
        return self._with(continues=compare_successors(self.obs, self.next_obs))

    def check_order(self, what: str, instead: str = "") -> None:
        """Refuse what looks further than one row where the rows of an episode do not follow each other.

        `instead` says how to do without. For arrays that were put together in Python it is only a warning.
        """
        if self.shuffled:
            said = f"the rows are not in order, and {what} need whole episodes in order"
        elif len(gaps := self.gaps):
            said = (
                f"next_obs is not the next obs in {counted(len(gaps), 'row')} inside episodes (the first is "
                f"{gaps[0]}), and {what} need whole episodes; type dataset.episodes=infer to end an episode at each, "
                "or dataset.episodes=as_stored to take them as they are"
            )
        else:
            return
        if self.order_matters:
            raise UserError(f"{self.source}: {said}{instead}.")
        log.warning("%s: %s.", self.source, said)

    def returns(self) -> Array:
        """[E] undiscounted raw return of every episode."""
        return np.add.reduceat(self.raw_reward.astype(np.float64), self.episodes[:, 0])

    def obs_statistics(self) -> tuple[Array, Array]:
        """Mean and standard deviation of the observations, read piece by piece; not of those of several parts."""
        mean = sum(self.obs[rows].sum(0, dtype=np.float64) for rows in chunks(self.obs)) / len(self)
        squares = sum(np.square(self.obs[rows] - mean).sum(0) for rows in chunks(self.obs))
        return mean.astype(np.float32), np.sqrt(squares / len(self)).astype(np.float32)

    def fingerprint(self) -> dict[str, int]:
        """Checksums by which a run that is resumed knows its data again; rewards as the env gave them.

        A CRC-32 takes a fraction of the time of loading, but observations on disk may be more than memory holds. Those
        give some rows only, and so do those in memory besides, so that both can be compared with each other.
        """
        some = np.linspace(0, len(self) - 1, min(len(self), SAMPLED_ROWS)).astype(np.int64)
        checksums = {"rows": len(self)}
        columns = ("obs", "next_obs", "action", "raw_reward", "terminated", "truncated")
        for name, column in self._arrays(columns).items():
            checksums[f"some {name}"] = zlib.crc32(np.ascontiguousarray(column[some]).data)
            if not on_disk(column):
                checksums[name] = 0
                for rows in chunks(column):  # a view is not copied as a whole
                    checksums[name] = zlib.crc32(np.ascontiguousarray(column[rows]).data, checksums[name])
        return checksums

    def sample_rows(self, rng: np.random.Generator, batch_size: int, n_batches: int) -> Array:
        """[n_batches, batch_size] rows to learn from; a mixture with shares keeps them exactly in every batch."""
        if not self.shares:
            return rng.integers(len(self), size=(n_batches, batch_size))
        parts = []
        for group, count in enumerate(apportion(batch_size, self.shares)):
            rows = self._group_rows[group]
            parts.append(rows[rng.integers(len(rows), size=(n_batches, count))])
        return np.concatenate(parts, axis=1)

    def fitted_to(self, spec: Spec, actions_outside: str = "clip", any_env: bool = False) -> TransitionDataset:
        """This dataset, checked against an env and with its box actions scaled to [-1, 1]."""
        made = self.as_seen(spec)
        check_fits(made, spec, any_env)
        return made.with_scaled_actions(spec, actions_outside)

    def as_seen(self, spec: Spec) -> TransitionDataset:
        """Observations in the shapes in which `make_env` has an env give them, where they were stored as its own."""
        boxes: Any = dict(spec.boxes) or spec.obs[OBS]
        if named_parts("obs", self.obs).keys() != named_parts("obs", boxes).keys():
            return self
        boxes = {name: boxes[name] for name in self.obs} if isinstance(self.obs, dict) else boxes
        nbytes = sum(2 * len(self) * box.size * np.dtype(box.dtype).itemsize for box in parts_of(boxes))
        changed = any(parts_of(map_obs(lambda part, box: part.shape[1:] != box.shape, self.obs, boxes)))
        needed = nbytes if changed and self.memory == "ram" else 0
        with enough_memory(needed, f"{self.source}:", lambda _: "use dataset.memory=mmap, or a smaller one"):
            obs, next_obs = (map_obs(seen_as, column, boxes) for column in (self.obs, self.next_obs))
        return self._with(obs=obs, next_obs=next_obs)

    def with_scaled_actions(self, spec: Spec, actions_outside: str = "clip") -> TransitionDataset:
        """Box actions from env units to [-1, 1]; entries outside the box are clipped and counted, or refused."""
        if spec.discrete or self.scaled:
            return self
        action, beyond = scale_actions(self.action, spec)
        made = self._with(action=action, scaled=True)
        if beyond and actions_outside == "error":
            raise UserError(
                f"{self.source}: key '{self.key_of('action')}' has {counted(beyond, 'value')} outside the action box "
                f"of {spec.env_id}: expected {list(spec.action_low)} to {list(spec.action_high)}; "
                "use dataset.actions_outside=clip to clip them."
            )
        if beyond:
            share = 100 * beyond / action.size
            made.notes += (f"{counted(beyond, 'action value')} ({share:.1f} %) outside the box clipped",)
            log.warning("%s: %s", self.source, made.notes[-1])
        return made

    def with_reward_transform(self, transform: Transform) -> TransitionDataset:
        """Rewards through the transform that env steps go through as well; `returns()` stays raw."""
        reward = np.asarray(transform(self.raw_reward, self.terminated), dtype=np.float32)
        return self._with(reward=reward, mc_return=None, discount=None)

    def with_mc_returns(self, discount: float) -> TransitionDataset:
        """`mc_return`: discounted sum of (transformed) rewards to the end of the episode, cut at truncations.

        Except where all rewards of a truncated episode are the same, as in one that never met its sparse goal: it is
        taken to go on like that for ever, see `going_on`.
        """
        self.check_order("Monte-Carlo returns")
        reward = self.reward.copy()
        for start, stop in self.episodes:
            reward[start:stop] = going_on(reward[start:stop], bool(self.truncated[stop - 1]), discount)
        return self._with(mc_return=discounted_returns(reward, self.ends, discount))

    def with_n_step(self, n: int, discount: float) -> TransitionDataset:
        """Rows that look n steps ahead: summed reward, the successor n steps later, `discount` = gamma ** n.

        Windows stop at the end of an episode, so its last rows look less far and have a larger `discount`.
        """
        if n > 1:
            self.check_order("n-step returns")
        reward, last = n_step_returns(self.reward, self.ends, n, discount)
        return self._with(
            reward=reward,
            next_obs=take(self.next_obs, last),
            terminated=self.terminated[last],
            truncated=self.truncated[last],
            discount=np.power(discount, last - np.arange(len(self)) + 1).astype(np.float32),
        )

    def with_views(self, views: Mapping[str, Array]) -> TransitionDataset:
        """The same rows in columns that are views of other memory, so that this dataset's own can be freed."""
        names = [name for name in ("obs", "action", "reward", "next_obs", "terminated", "mc_return") if name in views]
        made = self._with(**{name: views[name] for name in names})
        if isinstance(self.obs, dict):  # of a dict, some parts may be views and others not
            made.obs = {part: views.get(f"obs.{part}", own) for part, own in self.obs.items()}
            made.next_obs = {part: views.get(f"next_obs.{part}", own) for part, own in self.next_obs.items()}
        if self.raw_reward is self.reward:
            made.raw_reward = made.reward
        return made

    def subset(self, rows: Array) -> TransitionDataset:
        """The given rows in the given order; a boundary is set wherever the following row is no longer the next."""
        rows = np.flatnonzero(rows) if np.asarray(rows).dtype == bool else np.asarray(rows)
        if len(rows) == 0:
            raise UserError(f"{self.source}: the subset is empty: expected at least one row.")
        made = self._with(obs=take(self.obs, rows), next_obs=take(self.next_obs, rows))
        for name in ("action", "reward", "terminated", "truncated", "raw_reward", "mc_return", "discount", "group"):
            column = getattr(self, name)
            setattr(made, name, None if column is None else column[rows])
        breaks = np.append(np.diff(rows) != 1, True)
        made.truncated = np.where(breaks & (made.terminated == 0), np.float32(1.0), made.truncated)
        made.ends = self.ends[rows] | breaks
        made.continues = None if self.continues is None else self.continues[rows] & ~breaks
        return made

    def key_of(self, column: str) -> str:
        """What the file calls a column, or all parts of one."""
        if column not in self.key_map.values():  # `observations` of `observations/pixels`
            column_keys = (kind_of(key) for key, name in self.key_map.items() if kind_of(name) == column)
            return next(column_keys, column)
        return next((key for key, name in self.key_map.items() if name == column), column)

    def save(self, path: str | Path) -> Path:
        """Write an uncompressed .npz that loads again from memory or memory-mapped."""
        names = ("obs", "action", "reward", "next_obs", "terminated", "truncated")
        arrays: dict[str, Any] = {name: np.asarray(column) for name, column in self._arrays(names).items()}
        arrays["reward"] = self.raw_reward
        if self.env_id is not None:
            arrays["env_id"] = np.array(self.env_id)
        path = Path(path).with_suffix(".npz")
        np.savez(path, **arrays)
        return path

    @functools.cached_property
    def _group_rows(self) -> list[Array]:
        return [np.flatnonzero(self.group == group) for group in range(len(self.shares))]

    def _arrays(self, columns: tuple[str, ...]) -> dict[str, Any]:
        """Columns by name, and parts as "obs/pixels"."""
        return {name: x for column in columns for name, x in named_parts(column, getattr(self, column)).items()}

    def _with(self, **changes: Any) -> TransitionDataset:
        made = copy.copy(self)
        made.__dict__.pop("_group_rows", None)
        for name, value in changes.items():
            setattr(made, name, value)
        return made


def apportion(total: int, shares: tuple[float, ...]) -> list[int]:
    """Whole numbers that add up to `total`, as near to the shares as can be (largest remainder)."""
    exact = np.asarray(shares) / sum(shares) * total
    counts = np.floor(exact + 1e-9).astype(int)
    for i in np.argsort(counts - exact, kind="stable")[: total - counts.sum()]:
        counts[i] += 1
    return [int(n) for n in counts]


def scale_actions(action: Array, spec: Spec) -> tuple[Array, int]:
    """Env units to [-1, 1], clipped, and how many entries lay outside; unbounded dimensions are left alone."""
    low, high = np.asarray(spec.action_low, np.float32), np.asarray(spec.action_high, np.float32)
    bounded = np.isfinite(low) & np.isfinite(high)
    if (low == -1).all() and (high == 1).all() and np.abs(bounds(action)).max() <= 1:
        return action, 0  # the usual case of large sets: nothing to do, nothing to copy
    low, high = np.where(bounded, low, np.float32(-1)), np.where(bounded, high, np.float32(1))
    center, half = (low + high) / 2, (high - low) / 2
    scaled = (action - center) / half
    beyond = int((np.abs(scaled[:, bounded]) > 1 + 1e-5).sum())
    limit = np.where(bounded, np.float32(1), np.float32(np.inf))
    return np.clip(scaled, -limit, limit, out=scaled), beyond


def n_step_returns(reward: Array, ends: Array, n: int, discount: float) -> tuple[Array, Array]:
    """Discounted reward over up to n steps of the same episode, and the last row that each sum covers."""
    if n < 1:
        raise UserError(f"n-step returns need at least 1 step (n={n}).")
    last = np.arange(len(reward))
    total = reward.astype(np.float64)
    for k in range(1, n):
        going = np.flatnonzero(~ends[last])  # never past an end, and the last row is one
        last[going] += 1
        total[going] += discount**k * reward[last[going]]
    return total.astype(np.float32), last


def check_fits(dataset: TransitionDataset, spec: Spec, any_env: bool = False) -> None:
    """Refuse data that the env does not fit, in one sentence."""
    _check_env(dataset, spec, any_env)
    _check_obs(dataset, spec)
    action = dataset.action
    where = f"{dataset.source}: key '{dataset.key_of('action')}'"
    kind = "box" if action.dtype.kind == "f" else "discrete"
    if (kind == "box") == spec.discrete:
        expected = "integers" if spec.discrete else "floats"
        raise UserError(f"{where} has dtype {action.dtype}, expected {expected}: {spec.env_id} is {spec.action_kind}.")
    if tuple(action.shape[1:]) != tuple(spec.action_shape):
        raise UserError(
            f"{where} has actions of shape {tuple(action.shape[1:])}, expected {tuple(spec.action_shape)} for "
            f"{spec.env_id}."
        )
    if spec.discrete:
        low, high = action.min(0), action.max(0)
        if (low < 0).any() or (high >= np.asarray(spec.action_sizes).reshape(np.shape(high))).any():
            raise UserError(
                f"{where} holds choices from {low} to {high}, expected 0 up to {max(spec.action_sizes) - 1} "
                f"for {spec.env_id}."
            )


def _check_obs(dataset: TransitionDataset, spec: Spec) -> None:
    """The parts of the env's observations, each in its shape and dtype."""
    stored, wanted = named_parts("obs", dataset.obs), named_parts("obs", dict(spec.boxes) or spec.obs["obs"])
    if stored.keys() != wanted.keys():
        key, what = dataset.key_of("obs"), "save each of them as an array"
        expected = ", ".join(f"'{key}/{name}'" for name, _ in spec.boxes)
        if not spec.boxes:
            expected = f"one array of shape {tuple(spec.obs_shape)}"
            what = "choose the env that the data came from, or save one array"
        parts = listed_parts([name.partition("/")[2] for name in stored])
        raise UserError(f"{dataset.source}: '{key}' holds {parts}, expected {expected} for {spec.env_id}; {what}.")
    for name, obs in stored.items():
        where, box = f"{dataset.source}: key '{dataset.key_of(name)}'", wanted[name]
        shape, expected_shape = tuple(obs.shape[1:]), tuple(box.shape)
        if shape != expected_shape:
            raise UserError(
                f"{where} has observations of shape {shape}, expected {expected_shape} for {spec.env_id}; "
                f"{_moved(shape, expected_shape) or 'choose the env that the data came from.'}"
            )
        if str(obs.dtype) != box.dtype:
            stored_as = f"is read as {obs.dtype}" if obs.dtype == np.float32 else f"has dtype {obs.dtype}"
            scaled = ", pixels from 0 to 1 times 255" if obs.dtype == np.float32 and box.is_image else ""
            raise UserError(
                f"{where} {stored_as}, expected {box.dtype} for {spec.env_id}; save it as {box.dtype}{scaled}."
            )


def _moved(shape: tuple[int, ...], expected: tuple[int, ...]) -> str | None:
    """What to do about pictures whose channels are at the other end."""
    if len(shape) != 3:
        return None
    if (*shape[1:], shape[0]) == expected:
        return "their channels come first, and should come last; save them as np.moveaxis(pictures, 1, -1)."
    if (shape[-1], *shape[:-1]) == expected:
        return "their channels come last, and should come first; save them as np.moveaxis(pictures, -1, 1)."
    return None


def _check_env(dataset: TransitionDataset, spec: Spec, any_env: bool) -> None:
    if dataset.env_id is None or spec.env_id == NO_ENV or dataset.env_id == spec.env_id.rpartition(":")[2]:
        return
    if _family(dataset.env_id) != _family(spec.env_id) and not any_env:
        raise UserError(
            f"{dataset.source}: recorded on {dataset.env_id}, expected {spec.env_id}; choose that env, or add "
            "dataset.any_env=true to use the data anyway."
        )
    log.warning("%s was recorded on %s and is used for %s.", dataset.source, dataset.env_id, spec.env_id)


def _family(env_id: str) -> str:
    """'module:ns/Hopper-v4' -> 'hopper'."""
    return re.sub(r"-v\d+$", "", re.split("[:/]", env_id)[-1]).lower()
