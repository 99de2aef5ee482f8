"""Images of a store: one observation per step, of stacked frames the newest one only.

The `next_obs` of a step is the `obs` of the lane's next step. Where it is not, as at the end of an episode, it is kept
whole beside the ring. A stack of n frames is put together from the newest frames of n steps; the first stack of an
episode is kept whole, so what is read is always what the env gave, to the bit. Every step is compared with the one
before while it is added: if the observations of an env do not shift by one frame, they are kept whole from then on, and
so are those that are in the store already.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from rlx.data.mapped import Allocate, in_memory
from rlx.system import enough_memory
from rlx.types import Box, Spec

log = logging.getLogger("rlx")

PROBED = 16  # steps with new pictures that tell whether the observations of an env are stacks ...
LONGEST = 128  # ... and steps in which they have to come: a still picture could be a stack of anything
CHUNK = 256  # steps that are put back at once
BOOKKEEPING = 10  # bytes per step besides its frame
WHOLE = 64  # observations for which there is room beside the ring at first


def stacked_frames(env: gym.Env[Any, Any], spec: Spec) -> dict[str, int]:
    """How many frames the images of an env stack, by box, from a few random steps; 1 where they do not."""
    possible = {name: _divisors(box) for name, box in spec.obs.items() if is_kept_as_frames(box)}
    env.action_space.seed(0)
    news = dict.fromkeys(possible, 0)  # steps with new pictures so far
    obs, _ = env.reset(seed=0)
    for _ in range(LONGEST):
        if min(news.values(), default=PROBED) >= PROBED:
            break
        after, _, terminated, truncated, _ = env.step(env.action_space.sample())
        for name, stacks in possible.items():
            a, b = (np.asarray(o[name] if spec.boxes else o)[None] for o in (obs, after))
            possible[name] = [n for n in stacks if n == 1 or shifts(a, b, n)[0]]
            news[name] += len(possible[name]) == 1 or not np.array_equal(a, b)
        obs = env.reset()[0] if terminated or truncated else after
    return {name: stacks[0] for name, stacks in possible.items()}


def is_kept_as_frames(box: Box) -> bool:
    return box.dtype == "uint8"


def _divisors(box: Box) -> list[int]:
    """How many frames an observation may be made of, the most first."""
    depth = box.shape[0] if box.is_image else 1
    return [n for n in range(depth, 0, -1) if depth % n == 0]


def shifts(obs: np.ndarray, next_obs: np.ndarray, stack: int) -> np.ndarray:
    """[M] is each next stack the one before without its oldest frame, and a new one?"""
    depth = obs.shape[1] // stack
    return _equal(obs[:, depth:], next_obs[:, :-depth])


def _equal(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """[M] which observations are the same."""
    return np.asarray((a == b).all(tuple(range(1, a.ndim))))


class Pool:
    """Whole observations that are kept one by one; it grows with what is put into it."""

    def __init__(self, shape: tuple[int, ...]):
        self.items = np.zeros((WHOLE, *shape), np.uint8)
        self._free = list(range(WHOLE))

    def put(self, obs: np.ndarray) -> int:
        if not self._free:
            size = len(self.items)
            self._free = list(range(size, 2 * size))
            self.items = np.concatenate([self.items, np.zeros_like(self.items)])
        at = self._free.pop()
        self.items[at] = obs
        return at

    def drop(self, items: np.ndarray) -> None:
        self._free += items.tolist()


class Frames:
    """The observations of one box, a ring of frames per lane. Where a step lies in the store is its place."""

    saved: ClassVar[tuple[str, ...]] = ("frames", "whole", "first", "final")

    def __init__(self, box: Box, slots: int, lanes: int, stack: int = 1, allocate: Allocate = in_memory):
        self.box = box
        self._allocate = allocate
        self.slots, self.lanes, self.stack = slots, lanes, stack
        self.ring = slots + stack - 1  # so that the oldest observation still finds the frames before its own
        self._room = self.ring + stack  # and its first frames once more behind its end, so that windows never wrap
        self._frame_shape = (box.shape[0] // stack, *box.shape[1:]) if box.shape else (1,)
        self.frames = allocate((lanes * self._room, *self._frame_shape), np.uint8)
        self._stacks, self._windows = (_sliding(self.frames, n) for n in (stack, stack + 1))
        self.pool = Pool(box.shape)
        self.newest = np.full(lanes, -1)  # the newest step of each lane ...
        self.last = np.zeros((lanes, *box.shape), np.uint8)  # ... its next_obs ...
        self.shifted = np.zeros(lanes, bool)  # ... and is that a shift of its obs
        self._odd = np.zeros(slots * lanes, bool)  # by place: True if the frames alone do not give it
        self._final = np.full(slots * lanes, -1, np.int32)  # by place: next_obs in the pool, if no step has it
        self._age = np.full(slots * lanes, stack - 1, np.uint8)  # by place: steps since a whole stack, at most ...
        self._first = np.full(slots * lanes, -1, np.int32)  # ... stack - 1, and where in the pool that is
        self._firsts: list[deque[tuple[int, int]]] = [deque() for _ in range(lanes)]  # (step, where in the pool)

    @property
    def nbytes(self) -> int:
        """Bytes of memory when full, if no more episodes end than there is room for."""
        return needed_bytes(self.box, self.slots, self.lanes, self.stack) + self.pool.items.nbytes

    # -- writing ---------------------------------------------------------------------------------------------------

    def put(self, lane: np.ndarray, step: np.ndarray, obs: np.ndarray, next_obs: np.ndarray) -> None:
        """Steps [M] of lanes [M], those of a lane in the order of time."""
        for one in np.unique(lane).tolist():
            rows = np.flatnonzero(lane == one)
            for begin in range(0, len(rows), min(CHUNK, self.slots)):
                part = rows[begin : begin + min(CHUNK, self.slots)]
                self._put_lane(one, step[part], obs[part], next_obs[part])

    def _put_lane(self, lane: int, step: np.ndarray, obs: np.ndarray, next_obs: np.ndarray) -> None:
        """Steps that follow each other."""
        follows = step[0] > 0 and self.newest[lane] == step[0] - 1
        joined = np.empty(len(step), bool)  # is obs the next_obs of the step before
        joined[0] = follows and np.array_equal(obs[0], self.last[lane])
        joined[1:] = _equal(obs[1:], next_obs[:-1])
        place = step % self.slots * self.lanes + lane
        if self.stack > 1:
            shifted = shifts(obs, next_obs, self.stack)
            before = np.concatenate([self.shifted[[lane]], shifted[:-1]])
            if (joined & ~before).any():
                self._keep_whole()
                return self._put_lane(lane, step, obs, next_obs)
            self._put_first(lane, step, place, obs, joined)
            self.shifted[lane] = shifted[-1]
        self.pool.drop(self._final[place][self._final[place] >= 0])
        self._final[place] = -1
        if follows and not joined[0] and len(step) < self.slots:  # else the step before is overwritten
            self._final[(step[0] - 1) % self.slots * self.lanes + lane] = self.pool.put(self.last[lane])
        for i in np.flatnonzero(~joined[1:]):
            self._final[place[i]] = self.pool.put(next_obs[i])
        odd = [*place, (step[0] - 1) % self.slots * self.lanes + lane]
        self._odd[odd] = (self._final[odd] >= 0) | (self._age[odd] < self.stack - 1)
        frame = obs.reshape(len(step), self.stack, *self._frame_shape)[:, -1]
        at = self._frame(lane, step)
        self.frames[at] = frame
        first = np.flatnonzero(step % self.ring < self.stack)
        self.frames[at[first] + self.ring] = frame[first]
        self.newest[lane], self.last[lane] = step[-1], next_obs[-1]

    def _put_first(self, lane: int, step: np.ndarray, place: np.ndarray, obs: np.ndarray, joined: np.ndarray) -> None:
        """Keep the stacks whole that begin anew, and forget those that nothing is put together from any more."""
        firsts = self._firsts[lane]
        while firsts and firsts[0][0] + self.stack - 2 < step[-1] + 1 - self.slots:
            self.pool.drop(np.array([firsts.popleft()[1]]))
        for i in range(len(step)):
            if not joined[i]:
                at = self.pool.put(obs[i])
                firsts.append((int(step[i]), at))
                self._age[place[i]], self._first[place[i]] = 0, at
            else:
                before = (step[i] - 1) % self.slots * self.lanes + lane
                self._age[place[i]] = min(int(self._age[before]) + 1, self.stack - 1)
                self._first[place[i]] = self._first[before]

    def _keep_whole(self) -> None:
        """The env's observations are no stacks: from now on, and back to the oldest step, they are kept whole."""
        shape = list(self.box.shape)
        log.warning("Observations of shape %s do not shift by one frame from step to step: they are kept whole, which "
                    "takes %d times the memory.", shape, self.stack)  # fmt: skip
        size = needed_bytes(self.box, self.slots, self.lanes, 1)
        if self._allocate is not in_memory:
            size = 0
        with enough_memory(size, "A replay of whole observations", lambda share: "use a smaller replay.capacity"):
            other = Frames(self.box, self.slots, self.lanes, allocate=self._allocate)
        for lane, newest in enumerate(self.newest.tolist()):
            for begin in range(max(0, newest + 1 - self.slots), newest + 1, CHUNK):
                step = np.arange(begin, min(begin + CHUNK, newest + 1))
                place = step % self.slots * self.lanes + lane
                other.put(np.full(len(step), lane), step, self.obs(place).numpy(), self.next_obs(place).numpy())
        vars(self).update(vars(other))

    # -- reading ---------------------------------------------------------------------------------------------------

    def _steps(self, place: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        lane, slot = place % self.lanes, place // self.lanes
        newest = self.newest[lane]
        return lane, newest - (newest - slot) % self.slots

    def _frame(self, lane: Any, step: Any) -> Any:
        """Where the newest frame of a step is."""
        return lane * self._room + step % self.ring

    def both(self, place: np.ndarray) -> tuple[Tensor, Tensor]:
        """[M, *shape] obs and next_obs of the steps at these places.

        The frames from the oldest of obs to the newest of next_obs lie one after the other: what is returned are two
        views of one copy of them, except for steps that have to be put together.
        """
        n, shape = self.stack, (len(place), *self.box.shape)
        lane, step = self._steps(place)
        picked = self._windows.index_select(0, torch.from_numpy(self._frame(lane, step - (n - 1))))
        size = self.box.size // n
        obs, next_obs = picked[:, : n * size].view(shape), picked[:, size:].view(shape)
        odd = np.flatnonzero(self._odd[place] | (step == self.newest[lane])).tolist()
        windows = picked.numpy().reshape(len(place), n + 1, size)
        whole = self.pool.items.reshape(-1, n, size)
        for i in odd:
            at = place[i]
            final, missing = self._final[at], n - 1 - int(self._age[at])
            if missing:  # frames from before the first step, out of its whole stack
                windows[i, :missing] = whole[self._first[at], n - 1 - missing : n - 1]
            if final < 0 and step[i] != self.newest[lane[i]]:
                continue
            last = whole[final] if final >= 0 else self.last[lane[i]].reshape(n, size)
            if n > 1 and not np.array_equal(last[:-1], windows[i, 1:-1]):  # no views of the same frames
                return self.obs(place), self.next_obs(place)
            windows[i, -1] = last[-1]
        return obs, next_obs

    def obs(self, place: np.ndarray) -> Tensor:
        """[M, *shape] observations of the steps at these places."""
        return self._obs(*self._steps(place))

    def next_obs(self, place: np.ndarray) -> Tensor:
        lane, step = self._steps(place)
        final, newest = self._final[place], self.newest[lane] == step
        stacks = self._obs(lane, np.where((final >= 0) | newest, step, step + 1))
        array = stacks.numpy()
        if (apart := np.flatnonzero(final >= 0)).size:
            array[apart] = self.pool.items[final[apart]]
        if (apart := np.flatnonzero(newest)).size:
            array[apart] = self.last[lane[apart]]
        return stacks

    def _obs(self, lane: np.ndarray, step: np.ndarray) -> Tensor:
        n = self.stack
        start = self._frame(lane, step - (n - 1))
        stacks = self._stacks.index_select(0, torch.from_numpy(start)).view(len(step), *self.box.shape)
        place = step % self.slots * self.lanes + lane
        young = np.flatnonzero(self._age[place] < n - 1)
        if young.size:
            array = stacks.numpy().reshape(len(step), n, -1)
            whole = self.pool.items.reshape(len(self.pool.items), n, -1)
            age, first = self._age[place[young]].astype(np.int64), self._first[place[young]]
            for older in range(n - 1):  # frames from before the first step, out of its whole stack
                rows = np.flatnonzero(older + age < n - 1)
                array[young[rows], older] = whole[first[rows], older + age[rows]]
        return stacks

    # -- checkpoints -----------------------------------------------------------------------------------------------

    def segment(self, lane: np.ndarray, step: np.ndarray) -> dict[str, Tensor]:
        """Steps [M], in the order of time within their lanes, as something that `load_segment` needs nothing else for.

        frames [M, ...], observations that are whole, and for each step which of those it begins with or ends in (-1:
        none).
        """
        place = step % self.slots * self.lanes + lane
        first, final = np.full(len(step), -1, np.int32), np.full(len(step), -1, np.int32)
        whole: list[np.ndarray] = []
        for one in np.unique(lane).tolist():
            rows = np.flatnonzero(lane == one)
            begins = rows[(self._age[place[rows]] == 0) | (np.arange(len(rows)) == 0)] if self.stack > 1 else rows[:0]
            ends = rows[(self._final[place[rows]] >= 0) | (np.arange(len(rows)) == len(rows) - 1)]
            for table, at, read in ((first, begins, self.obs), (final, ends, self.next_obs)):
                table[at] = np.arange(len(at)) + sum(map(len, whole))
                whole.append(read(place[at]).numpy())
        none = np.zeros((0, *self.box.shape), np.uint8)
        return {
            "frames": torch.from_numpy(self.frames[self._frame(lane, step)]),
            "whole": torch.from_numpy(np.concatenate([none, *whole])),
            "first": torch.from_numpy(first),
            "final": torch.from_numpy(final),
        }

    def load_segment(self, lane: np.ndarray, step: np.ndarray, saved: Mapping[str, Tensor], skip: int = 0) -> None:
        """Put the steps back, except for the first `skip` of them."""
        packed = Packed(*(saved[name].numpy() for name in Packed._fields))
        packed.check(self.box, len(step))
        apart = sum(int((table[skip:] >= 0).sum()) for table in (packed.first, packed.final))
        needed = 4 * apart * self.box.size  # the pool doubles, and is copied while it does
        with enough_memory(needed, "A replay of so many short episodes", lambda share: "use another checkpoint"):
            for one in np.unique(lane[skip:]).tolist():
                rows = np.flatnonzero(lane == one)
                for begin in range(int(np.searchsorted(rows, skip)), len(rows), CHUNK):
                    part = rows[begin : begin + CHUNK]
                    obs, next_obs = packed.unpacked(self.box, rows, begin, len(part))
                    self.put(lane[part], step[part], obs, next_obs)


def _sliding(frames: np.ndarray, n: int) -> Tensor:
    """[..., n * frame] n frames from each on, as a view."""
    size = frames[0].size
    return torch.from_numpy(frames).as_strided((len(frames) - n + 1, n * size), (size, 1))


class Packed(NamedTuple):
    """Observations as a segment of a checkpoint has them."""

    frames: np.ndarray  # [M, ...] the newest frame of each
    whole: np.ndarray  # [W, *shape]
    first: np.ndarray  # [M] which of those its obs is; -1: the one before, shifted by its frame
    final: np.ndarray  # [M] which of those its next_obs is; -1: the obs of the lane's next step

    def check(self, box: Box, rows: int) -> None:
        """ValueError unless they can be those of this box."""
        frames, whole, first, final = self
        good = frames.dtype == whole.dtype == np.uint8 and whole.shape[1:] == box.shape
        good = good and frames.shape[2:] == box.shape[1:] and (not box.shape or box.shape[0] % frames.shape[1] == 0)
        good = good and len(frames) == len(first) == len(final) == rows and first.dtype == final.dtype == np.int32
        if not good or max(first.max(initial=-1), final.max(initial=-1)) >= len(whole):
            raise ValueError("a segment holds other images than those of the run")

    def unpacked(self, box: Box, rows: np.ndarray, begin: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        """obs and next_obs of `count` steps of a lane, which is at `rows`, from the `begin`-th on."""
        stack = box.shape[0] // self.frames.shape[1] if box.shape else 1
        low, high = max(0, begin - stack), min(len(rows), begin + count + 1)  # frames before, and the obs after
        obs = np.zeros((high - low, stack, *self.frames.shape[1:]), np.uint8)
        for i, row in enumerate(rows[low:high]):
            if self.first[row] >= 0:
                obs[i] = self.whole[self.first[row]].reshape(obs.shape[1:])
                continue
            obs[i, :-1] = obs[i - 1, 1:] if i else 0
            obs[i, -1] = self.frames[row]
        obs = obs.reshape(high - low, *box.shape)
        at = np.arange(begin - low, begin - low + count)
        next_obs = obs[np.minimum(at + 1, high - low - 1)]
        ends = self.final[rows[begin : begin + count]]
        next_obs[ends >= 0] = self.whole[ends[ends >= 0]]
        return obs[at], next_obs


def needed_bytes(box: Box, slots: int, lanes: int, stack: int) -> int:
    """Bytes of a ring of observations, before any is kept whole beside it."""
    return lanes * ((slots + 2 * stack - 1) * (box.size // stack) + slots * BOOKKEEPING + box.size)
