"""Store: steps as named columns, one ring per lane.

A lane is a sequence of steps in the order of time: those of one env. Its steps go round a ring of `slots` places, and
step k of lane i lies at place (k % slots) * lanes + i. Vectors, actions, rewards and flags of a transition are one row
of float32, `obs | action | reward | next_obs | terminated | truncated | discount [| mc_return]`, so that a minibatch is
one gather and its fields are views. What does not belong into rows has columns of its own: images (see
rlx/data/frames.py) and observations on disk. The boxes of a dict observation are columns `obs.NAME`, `next_obs.NAME`.

Lanes that are added to together stay side by side, and rows come in the order of their positions, step * lanes + lane.
A lane may also be added to by itself; the store then remembers when each row came, for checkpoints, which hold what is
new in segments of that order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from rlx.data.frames import Frames, is_kept_as_frames, needed_bytes
from rlx.data.mapped import Allocate, in_memory
from rlx.returns import discounted_returns, going_on
from rlx.types import OBS, Batch, Box, ObsArray, Spec

Apart = Mapping[str, tuple[Tensor, Tensor]]  # by box: obs and next_obs [M, *shape] that are not in the rows

FLOAT = 4  # bytes of a float32
NOTHING: Apart = MappingProxyType({})


class Layout:
    """Which columns of a row hold which field, and which boxes of an observation are apart from the rows."""

    def __init__(self, spec: Spec, mc_return: bool = False, apart: bool = False):
        self.spec = spec
        self.apart: dict[str, Box] = {n: box for n, box in spec.obs.items() if apart or is_kept_as_frames(box)}
        action = 1 if spec.action_kind == "discrete" else spec.action_shape[0]
        inside = {name: box.size for name, box in spec.obs.items() if name not in self.apart}
        widths = {self.key("obs", name): size for name, size in inside.items()}
        widths |= {"action": action, "reward": 1}
        widths |= {self.key("next_obs", name): size for name, size in inside.items()}
        widths |= {"terminated": 1, "truncated": 1, "discount": 1, **({"mc_return": 1} if mc_return else {})}
        self.slices: dict[str, slice] = {}
        self.width = 0
        for name, n in widths.items():
            self.slices[name] = slice(self.width, self.width + n)
            self.width += n
        self.has_returns = mc_return
        self._discrete = spec.discrete
        self.successor = slice(self.slices["reward"].stop, self.slices["terminated"].stop)  # next_obs and terminated
        self.views = {  # by kind, of the boxes in the rows: name, columns, shape
            kind: [(name, self.slices[self.key(kind, name)], spec.obs[name].shape) for name in inside]
            for kind in ("obs", "next_obs")
        }
        self.is_vector = inside.keys() == {OBS} and not spec.boxes and len(spec.obs_shape) == 1  # the usual case

    def key(self, kind: str, box: str) -> str:
        """What the column of a box is called: "obs", or "obs.pixels" where an observation is a dict."""
        return f"{kind}.{box}" if self.spec.boxes else kind

    @property
    def batch_bytes(self) -> int:
        """Of one transition in a minibatch."""
        return FLOAT * self.width + sum(2 * box.size * np.dtype(box.dtype).itemsize for box in self.apart.values())

    def column(self, rows: Tensor, name: str) -> Tensor:
        """A field of one number per row, as a view [B]."""
        return rows[:, self.slices[name].start]

    def batch(self, rows: Tensor, apart: Apart = NOTHING) -> Batch:
        """Rows [B, width] as a Batch of views."""
        action = rows[:, self.slices["action"]]
        if self._discrete:
            action = action.long()
            action = action[:, 0] if self.spec.action_kind == "discrete" else action
        return Batch(
            obs=self._observation(rows, "obs", apart),
            action=action,
            reward=self.column(rows, "reward"),
            next_obs=self._observation(rows, "next_obs", apart),
            terminated=self.column(rows, "terminated"),
            discount=self.column(rows, "discount"),
            mc_return=self.column(rows, "mc_return") if self.has_returns else None,
        )

    def _observation(self, rows: Tensor, kind: str, apart: Apart) -> Any:
        if self.is_vector:
            return rows[:, self.slices[kind]]
        parts = {name: pair[kind == "next_obs"] for name, pair in apart.items()}
        for name, columns, shape in self.views[kind]:
            parts[name] = rows[:, columns].reshape(-1, *shape)
        return {name: parts[name] for name in self.spec.obs} if self.spec.boxes else parts[OBS]

    def part(self, obs: Any, name: str) -> Any:
        """One box of an observation of arrays."""
        return obs[name] if self.spec.boxes else obs


class Gathered(NamedTuple):
    """Transitions before they are cut into batches."""

    rows: Tensor  # [M, width]
    apart: Apart = NOTHING


class Column(Protocol):
    """Observations of one box, apart from the rows."""

    saved: ClassVar[tuple[str, ...]]  # names of the tensors of a segment

    @property
    def nbytes(self) -> int: ...
    def put(self, lane: np.ndarray, step: np.ndarray, obs: np.ndarray, next_obs: np.ndarray) -> None: ...
    def both(self, place: np.ndarray) -> tuple[Tensor, Tensor]: ...
    def obs(self, place: np.ndarray) -> Tensor: ...
    def next_obs(self, place: np.ndarray) -> Tensor: ...
    def segment(self, lane: np.ndarray, step: np.ndarray) -> dict[str, Tensor]: ...
    def load_segment(self, lane: np.ndarray, step: np.ndarray, saved: Mapping[str, Tensor], skip: int = 0) -> None: ...


class Pairs:
    """Both observations of every transition as they are: arrays in memory, or those of a dataset."""

    saved: ClassVar[tuple[str, ...]] = ("obs", "next_obs")

    def __init__(self, obs: Any, next_obs: Any, lanes: int):
        self._pair = (obs, next_obs)
        self.lanes = lanes

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self._pair)

    def _place(self, lane: np.ndarray, step: np.ndarray) -> np.ndarray:
        place: np.ndarray = (step * self.lanes + lane) % len(self._pair[0])
        return place

    def put(self, lane: np.ndarray, step: np.ndarray, obs: np.ndarray, next_obs: np.ndarray) -> None:
        place = self._place(lane, step)
        self._pair[0][place], self._pair[1][place] = obs, next_obs

    def both(self, place: np.ndarray) -> tuple[Tensor, Tensor]:
        return self.obs(place), self.next_obs(place)

    def obs(self, place: np.ndarray) -> Tensor:
        return torch.from_numpy(self._pair[0][place])

    def next_obs(self, place: np.ndarray) -> Tensor:
        return torch.from_numpy(self._pair[1][place])

    def segment(self, lane: np.ndarray, step: np.ndarray) -> dict[str, Tensor]:
        place = self._place(lane, step)
        return {"obs": self.obs(place), "next_obs": self.next_obs(place)}

    def load_segment(self, lane: np.ndarray, step: np.ndarray, saved: Mapping[str, Tensor], skip: int = 0) -> None:
        obs, next_obs = saved["obs"].numpy(), saved["next_obs"].numpy()
        self.put(lane[skip:], step[skip:], obs[skip:], next_obs[skip:])


def store_bytes(layout: Layout, capacity: int, lanes: int, frames: Mapping[str, int]) -> int:
    """What a store is going to take, before it is made."""
    total = capacity * FLOAT * layout.width
    for name, box in layout.apart.items():
        if is_kept_as_frames(box):
            total += needed_bytes(box, capacity // lanes, lanes, frames.get(name, 1))
        else:
            total += 2 * capacity * box.size * np.dtype(box.dtype).itemsize
    return total


def make_columns(
    layout: Layout, slots: int, lanes: int, frames: Mapping[str, int], allocate: Allocate = in_memory
) -> dict[str, Column]:
    """Columns for the boxes that are apart from the rows; `frames`: how many each image stacks."""
    made: dict[str, Column] = {}
    for name, box in layout.apart.items():
        if is_kept_as_frames(box):
            made[name] = Frames(box, slots, lanes, frames.get(name, 1), allocate)
        else:
            shape = (slots * lanes, *box.shape)
            made[name] = Pairs(allocate(shape, box.dtype), allocate(shape, box.dtype), lanes)
    return made


class Store:
    """Steps of `lanes` lanes; the newest `slots` of each are kept."""

    def __init__(
        self,
        layout: Layout,
        capacity: int,
        lanes: int,
        discount: float,
        columns: Callable[[int], Mapping[str, Column]] | None = None,
        find_ends: bool = False,
        allocate: Allocate = in_memory,
    ):
        self.layout = layout
        self.lanes = lanes
        self.slots = capacity // lanes
        self.capacity = self.slots * lanes
        self.discount = discount
        self.total = 0  # steps ever added
        self.rows = allocate((self.capacity, layout.width), np.float32)
        self.tensor = torch.from_numpy(self.rows)
        self._flat = self.tensor.view(-1)
        self.columns = dict(columns(self.slots)) if columns else make_columns(layout, self.slots, lanes, {})
        self._ended = np.zeros(self.capacity, bool) if find_ends else None  # by place; for those who look ahead
        self._counts: np.ndarray | None = None  # steps of each lane, once they are not alike
        self._arrival: np.ndarray | None = None  # by place: when a row came; -1 where there is none
        self._loaded = 0  # rows that came before lanes were counted one by one, of a checkpoint

    def __len__(self) -> int:
        if self._counts is None:
            return min(self.total, self.capacity)
        return int(np.minimum(self._counts, self.slots).sum())

    @property
    def nbytes(self) -> int:
        """Bytes of memory when full."""
        kept = (self._ended, self._counts, self._arrival)
        arrays = sum(array.nbytes for array in kept if array is not None)
        return self.rows.nbytes + arrays + sum(column.nbytes for column in self.columns.values())

    @property
    def side_by_side(self) -> bool:
        """Have all lanes as many steps, which came together?"""
        return self._counts is None

    @property
    def oldest(self) -> int:
        """Rows of the order of arrival before this one are all overwritten."""
        if self._arrival is None:
            return self.total - len(self)
        alive = self._arrival[self._arrival >= 0]
        return int(alive.min()) if alive.size else self.total

    # -- where steps are -------------------------------------------------------------------------------------------

    def counts(self) -> np.ndarray:
        """[lanes] steps ever added to each."""
        return np.full(self.lanes, self.total // self.lanes) if self._counts is None else self._counts

    def place(self, number: np.ndarray) -> np.ndarray:
        """Where the rows with these numbers are, of 0 to len - 1."""
        if self._counts is None or len(self) == self.capacity:
            return number
        ends = np.minimum(self._counts, self.slots).cumsum()
        lane = np.searchsorted(ends, number, side="right")
        place: np.ndarray = (number - np.append(0, ends)[lane]) * self.lanes + lane
        return place

    def newer(self, place: np.ndarray) -> np.ndarray:
        """[M] steps that the lanes have after those at these places."""
        count = self.total // self.lanes if self._counts is None else self._counts[place % self.lanes]
        return np.asarray((count - 1 - place // self.lanes) % self.slots)

    def position(self, place: np.ndarray) -> np.ndarray:
        """step * lanes + lane of the rows at these places: neighbours in time are `lanes` apart."""
        lane = place % self.lanes
        count = self.total // self.lanes if self._counts is None else self._counts[lane]
        return np.asarray((count - 1 - self.newer(place)) * self.lanes + lane)

    def history(self, lane: int) -> np.ndarray:
        """Where the steps of a lane are, from the oldest to the newest."""
        count = int(self.counts()[lane])
        return np.arange(max(0, count - self.slots), count) % self.slots * self.lanes + lane

    # -- writing ---------------------------------------------------------------------------------------------------

    def add(
        self,
        obs: ObsArray,
        action: np.ndarray,
        reward: np.ndarray,
        next_obs: ObsArray,
        terminated: np.ndarray,
        truncated: np.ndarray,
        mc_return: np.ndarray | None = None,
        lanes: Sequence[int] | None = None,
    ) -> np.ndarray:
        """Append steps [M, ...] in the order of time, and return their positions.

        `lanes` says of which lane each of them is; without it they are steps of all lanes, lane by lane within a step.
        """
        m = len(reward)
        together = lanes is None and self._counts is None
        if together:
            if m % self.lanes:
                raise ValueError(f"{m} steps are not those of {self.lanes} lanes; say of which they are")
            position = np.arange(self.total, self.total + m)
            start = self.total % self.capacity
            at: Any = slice(start, start + m) if start + m <= self.capacity else position % self.capacity
        else:
            position = self._positions(np.arange(m) % self.lanes if lanes is None else np.asarray(lanes))
            at = position % self.capacity
        self._write(at, obs, action, reward, next_obs, terminated, truncated, mc_return)
        if self.columns:
            self._put(position, obs, next_obs)
        self.total += m
        if not together:
            self._count(position)
        if self.layout.has_returns and mc_return is None:
            for i in np.flatnonzero(np.logical_or(terminated, truncated)):
                self._set_returns(int(position[i]))
        return position

    def _write(
        self, at: Any, obs: Any, action: Any, reward: Any, next_obs: Any, terminated: Any, truncated: Any, returns: Any
    ) -> None:
        m, slices, rows = len(reward), self.layout.slices, self.rows
        rows[at, slices["action"]] = action.reshape(m, -1)
        for name, value in (("reward", reward), ("terminated", terminated), ("truncated", truncated)):
            rows[at, slices[name].start] = value
        rows[at, slices["discount"].start] = self.discount
        if self.layout.has_returns:  # not known while an episode goes on
            rows[at, slices["mc_return"].start] = -np.inf if returns is None else returns
        for kind, value in (("obs", obs), ("next_obs", next_obs)):
            for name, columns, _ in self.layout.views[kind]:
                rows[at, columns] = self.layout.part(value, name).reshape(m, -1)
        if self._ended is not None:
            self._ended[at] = np.logical_or(terminated, truncated)

    def _put(self, position: np.ndarray, obs: ObsArray, next_obs: ObsArray) -> None:
        lane, step = position % self.lanes, position // self.lanes
        for name, column in self.columns.items():
            column.put(lane, step, self.layout.part(obs, name), self.layout.part(next_obs, name))

    def _positions(self, lane: np.ndarray) -> np.ndarray:
        """Where new steps of these lanes go."""
        order = np.argsort(lane, kind="stable")
        several = np.arange(len(lane)) - np.searchsorted(lane[order], lane[order])  # steps of the same lane before it
        step = np.empty(len(lane), np.int64)
        step[order] = self.counts()[lane[order]] + several
        return np.asarray(step * self.lanes + lane)

    def _count(self, position: np.ndarray) -> None:
        """New rows of single lanes, once `total` counts them."""
        before = self.total - len(position)
        self._separate(before)
        assert self._counts is not None
        assert self._arrival is not None
        np.add.at(self._counts, position % self.lanes, 1)
        self._arrival[position % self.capacity] = np.arange(before, self.total)

    def _separate(self, came: int) -> None:
        """From now on lanes are counted one by one; so far, `came` rows came side by side."""
        if self._counts is None:
            alive = np.arange(max(0, came - self.capacity), came)
            self._counts = np.full(self.lanes, came // self.lanes)
            self._arrival = np.full(self.capacity, -1)
            self._arrival[alive % self.capacity] = alive

    def _set_returns(self, last: int) -> None:
        """The Monte-Carlo returns of the episode that ended at position `last`, as a dataset has them."""
        first = max(0, last // self.lanes + 1 - self.slots)
        place = np.arange(last // self.lanes, first - 1, -1) % self.slots * self.lanes + last % self.lanes
        flags = [self.layout.slices[name].start for name in ("terminated", "truncated")]
        earlier = np.flatnonzero(self.rows[place[1:]][:, flags].any(1))  # the ends of episodes before this one
        place = place[: earlier[0] + 1 if len(earlier) else None][::-1]
        ends = np.arange(len(place)) == len(place) - 1
        truncated = bool(self.rows[place[-1], self.layout.slices["truncated"].start])
        reward = going_on(self.rows[place, self.layout.slices["reward"].start], truncated, self.discount)
        self.rows[place, self.layout.slices["mc_return"].start] = discounted_returns(reward, ends, self.discount)

    def end_episodes(self, lanes: Sequence[int]) -> np.ndarray:
        """The running episodes of these lanes go no further: their newest rows become boundaries. Their positions."""
        counts = self.counts()
        lane = np.array([i for i in lanes if counts[i] > 0], np.int64)
        position = (counts[lane] - 1) * self.lanes + lane
        at = position % self.capacity
        terminated, truncated = (self.layout.slices[name].start for name in ("terminated", "truncated"))
        self.rows[at, truncated] = 1.0 - self.rows[at, terminated]
        if self._ended is not None:
            self._ended[at] = True
        return position

    # -- reading ---------------------------------------------------------------------------------------------------

    def take(self, place: np.ndarray) -> Gathered:
        """The transitions at these places."""
        rows = self.tensor.index_select(0, torch.from_numpy(place))
        if not self.columns:
            return Gathered(rows)
        return Gathered(rows, {name: column.both(place) for name, column in self.columns.items()})

    def numbers(self, place: np.ndarray, name: str) -> Tensor:
        """A field of one number per row, at any array of places."""
        index = place.ravel() * self.layout.width + self.layout.slices[name].start
        return self._flat.index_select(0, torch.from_numpy(index)).view(place.shape)

    def ended(self, place: np.ndarray) -> np.ndarray:
        """Does an episode end at these places?"""
        assert self._ended is not None
        flags: np.ndarray = self._ended[place]
        return flags

    def ends(self) -> Tensor:
        """Of every place: does an episode end there?"""
        assert self._ended is not None
        return torch.from_numpy(self._ended)

    def next_obs(self, place: np.ndarray, part: slice) -> np.ndarray:
        """[M, ...] some entries of the next observations, where those are flat."""
        if self.columns:
            return next(iter(self.columns.values())).next_obs(place).numpy()[:, part]
        start = self.layout.slices["next_obs"].start
        return np.asarray(self.rows[place, start + part.start : start + part.stop])

    def views(self) -> dict[str, np.ndarray]:
        """The columns of the rows by name; actions only where they are floats."""
        spec, views = self.layout.spec, {}
        for name, columns in self.layout.slices.items():
            if name in ("reward", "terminated", "truncated", "discount", "mc_return"):
                views[name] = self.rows[:, columns.start]
            elif name != "action" or not spec.discrete:
                shape = spec.action_shape if name == "action" else spec.obs[name.partition(".")[2] or OBS].shape
                views[name] = self.rows[:, columns].reshape(self.capacity, *shape)
        return views

    # -- checkpoints: rows are written once, in segments of the order in which they came ---------------------------

    def segment(self, start: int, end: int) -> dict[str, Tensor]:
        """Rows from `start` up to `end` of the order of arrival, for a checkpoint."""
        position, saved = np.arange(start, end), {}
        if self._arrival is not None:
            position = np.full(end - start, -1)  # stays so where a row is overwritten
            place = np.flatnonzero((self._arrival >= start) & (self._arrival < end))
            position[self._arrival[place] - start] = self.position(place)
            saved["position"] = torch.from_numpy(position)
        saved["rows"] = torch.from_numpy(self.rows[position % self.capacity])
        alive = position[position >= 0]
        for name, column in self.columns.items():
            for kind, tensor in column.segment(alive % self.lanes, alive // self.lanes).items():
                saved[self.layout.key(kind, name)] = tensor
        return saved

    def load_segment(self, start: int, tensors: Mapping[str, Tensor]) -> None:
        """Put rows back where `segment` took them from, before `load_counters`; of too many, the newest."""
        rows = tensors["rows"].numpy()
        if rows.shape[1:] != (self.layout.width,) or rows.dtype != np.float32:
            raise ValueError("a segment holds other rows than those of the run")
        position, skip = np.arange(start, start + len(rows)), max(0, len(rows) - self.capacity)
        if "position" in tensors:
            position = tensors["position"].numpy()
            if position.shape != rows.shape[:1] or position.dtype != np.int64:
                raise ValueError("a segment does not say where its rows belong")
            alive, skip = np.flatnonzero(position >= 0), 0
            position, rows = position[alive], rows[alive]
            self._separate(self._loaded)
            assert self._arrival is not None
            self._arrival[position % self.capacity] = start + alive
        else:
            self._loaded = start + len(rows)
        at = position[skip:] % self.capacity
        self.rows[at] = rows[skip:]
        if self._ended is not None:
            flags = [self.layout.slices[name].start for name in ("terminated", "truncated")]
            self._ended[at] = rows[skip:, flags].any(1)
        for name, column in self.columns.items():
            saved = {kind: tensors[self.layout.key(kind, name)] for kind in column.saved}
            column.load_segment(position % self.lanes, position // self.lanes, saved, skip)

    def counters(self) -> dict[str, Any]:
        """How many steps were added; for each lane, where that differs."""
        return {"total": self.total} | ({} if self._counts is None else {"lanes": self._counts.tolist()})

    def load_counters(self, saved: Mapping[str, Any]) -> None:
        """Take `counters` back, after the rows."""
        self.total = whole(saved["total"])
        if "lanes" in saved:
            counts = np.array([whole(n) for n in saved["lanes"]], np.int64)
            if len(counts) != self.lanes or counts.sum() != self.total:
                raise ValueError("the lanes do not add up")
            self._separate(self._loaded)
            self._counts = counts

    def returns(self) -> Tensor:
        """Monte-Carlo returns in the order of arrival; they change after a row was written."""
        return torch.from_numpy(self.rows[self.in_order(), self.layout.slices["mc_return"].start])

    def load_returns(self, saved: Tensor) -> None:
        place = self.in_order()[-len(saved) :]
        self.rows[place, self.layout.slices["mc_return"].start] = saved.numpy()[-len(place) :]

    def in_order(self) -> np.ndarray:
        """Where the rows are, in the order in which they came."""
        if self._arrival is None:
            return np.arange(self.total - len(self), self.total) % self.capacity
        place = np.flatnonzero(self._arrival >= 0)
        return np.asarray(place[np.argsort(self._arrival[place])])


def whole(value: Any) -> int:
    """A counter of a checkpoint; ValueError unless it is one."""
    if type(value) is not int or not 0 <= value < 2**62:
        raise ValueError(f"{value!r} is not a counter")
    return value
