"""Replay: what a run has collected, and how transitions are drawn from it.

    rows are drawn   uniformly, or by priority; under hindsight only those of finished, whole episodes
    and read         as single steps or over n steps, under hindsight with goals from their future

These combine freely. A dataset is a replay that was filled in one go, and a mixture of both draws exact shares of each.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from rlx.config.schemas import PRIORITY_FIELDS
from rlx.data.hindsight import BYTES, Hindsight
from rlx.data.mapped import Allocate, in_memory, on_disk
from rlx.data.n_step import look_ahead, read_n_step, read_n_step_natively
from rlx.data.prioritized import Priorities
from rlx.data.store import Gathered, Layout, Pairs, Store, make_columns, store_bytes
from rlx.errors import UserError, require, shown
from rlx.fields import check_numbers, number
from rlx.system import enough_memory
from rlx.types import Batch, ObsArray, Spec

if TYPE_CHECKING:
    import gymnasium as gym

    from rlx.data.dataset import TransitionDataset
    from rlx.rewards import RewardTransform

log = logging.getLogger("rlx")


@dataclass
class ReplayConfig:
    """How transitions are kept, drawn and read."""

    _target_: str = "rlx.data.replay.Replay"
    capacity: int = number(1_000_000, least=1, read_once=True)  # transitions kept; the oldest are overwritten
    memory: str = "ram"  # where it is: ram, or mmap, in a file below the run folder that goes with the process
    n_step: int = number(1, least=1, read_once=True)  # rewards summed before bootstrapping
    union: bool = False  # draw from the dataset and from what the run collects as from one
    prioritized: bool = False  # draw transitions by their TD errors
    alpha: float = number(0.6, least=0)  # how far priorities count; 0 is uniform
    beta: float = number(0.4, least=0, most=1)  # how far importance weights correct for it, at the start
    beta_end: float = number(1.0, least=0, most=1)  # and at the end
    beta_batches: int = number(50_000, least=1)  # minibatches in between
    eps: float = number(1e-6, above=0)  # added to every TD error, so that each transition can be drawn again
    hindsight: bool = False  # relabel goals in hindsight
    relabel_fraction: float = number(0.8, least=0, most=1)  # share of the samples that get another goal


def check_replay(cfg: ReplayConfig) -> None:
    """Refuse numbers out of range, and keys that would have no effect."""
    check_numbers(cfg, "replay")
    require(cfg.memory in ("ram", "mmap"), f"replay.memory must be ram or mmap (replay.memory={shown(cfg.memory)}).")
    usual = {f.name: f.default for f in fields(ReplayConfig)}
    unread = [(name, "prioritized") for name in PRIORITY_FIELDS if not cfg.prioritized]
    unread += [] if cfg.hindsight else [("relabel_fraction", "hindsight")]
    for name, switch in unread:
        value = getattr(cfg, name)
        require(
            value == usual[name],
            f"replay.{name}={value} has no effect without replay.{switch}=true; add that, or drop replay.{name}.",
        )
    for name in ("prioritized", "hindsight"):
        require(
            not (cfg.union and getattr(cfg, name)),
            f"replay.union=true draws rows of a dataset too, which replay.{name}=true cannot; choose one of the two.",
        )


class Replay:
    """Transitions of `lanes` lanes (one per env), the newest `capacity` of them."""

    kind: str = "replay"  # what errors call it

    def __init__(
        self,
        cfg: ReplayConfig,
        spec: Spec,
        lanes: int,
        discount: float,
        seed: int,
        *,
        mc_return: bool = False,
        prior: DatasetReplay | None = None,
        frames: Mapping[str, int] | None = None,
        folder: Path | None = None,
    ):
        """`prior` is read in the same batches, or, as a union, by this replay; `frames`: see rlx/data/frames.py.

        With `memory=mmap`, `folder` is where its file is.
        """
        check_replay(cfg)
        if cfg.capacity < lanes:
            raise UserError(f"replay.capacity must be at least env.num_envs={lanes} (replay.capacity={cfg.capacity}).")
        if cfg.hindsight and spec.goal is None:
            raise UserError(
                f"Hindsight needs a goal env and {spec.env_id} is not one; try env=point_goal, or replay=uniform."
            )
        self.cfg = cfg
        self.n_step = cfg.n_step
        self.prior = _united(cfg, prior)
        if prior is not None:  # rows of both go into the same batches
            layout = Layout(spec, prior.layout.has_returns, apart=prior.on_disk)
        else:
            layout = Layout(spec, mc_return)
        capacity = cfg.capacity - cfg.capacity % lanes
        allocate: Allocate = in_memory
        if cfg.memory == "mmap":
            require(folder is not None, "replay.memory=mmap needs a folder for its file; use replay.memory=ram.")
            allocate = on_disk(folder)  # type: ignore[arg-type]
        needed = store_bytes(layout, capacity, lanes, frames or {}) if allocate is in_memory else 0
        needed += (cfg.n_step > 1) * capacity
        needed += (Priorities.needed_bytes(capacity) if cfg.prioritized else 0) + BYTES * capacity * cfg.hindsight
        with enough_memory(needed, f"A {self.kind} of {capacity:,} transitions", self._smaller(capacity)):
            self.store = Store(
                layout,
                capacity,
                lanes,
                discount,
                lambda slots: make_columns(layout, slots, lanes, frames or {}, allocate),
                find_ends=cfg.n_step > 1,
                allocate=allocate,
            )
            self.priorities = Priorities(cfg, capacity) if cfg.prioritized else None
            self.hindsight = Hindsight(self.store, spec.goal, cfg.relabel_fraction) if cfg.hindsight else None  # type: ignore[arg-type]
        self._rng = _generator(seed)
        if cfg.hindsight and spec.episode_limit is not None and self.store.slots < spec.episode_limit:
            log.warning(
                "Episodes of %s last up to %d steps and the replay keeps %d of each env: longer ones are never learned "
                "from, as hindsight needs them whole; give replay.capacity and trainer.max_env_steps at least %d.",
                spec.env_id, spec.episode_limit, self.store.slots, spec.episode_limit * lanes,
            )  # fmt: skip

    @staticmethod
    def _smaller(capacity: int) -> Any:
        return lambda share: f"try replay.capacity={int(capacity * share)}, or replay.memory=mmap"

    def __len__(self) -> int:
        return len(self.store)

    @property
    def layout(self) -> Layout:
        return self.store.layout

    @property
    def lanes(self) -> int:
        return self.store.lanes

    @property
    def capacity(self) -> int:
        return self.store.capacity

    @property
    def total(self) -> int:
        """Transitions ever added."""
        return self.store.total

    @property
    def oldest(self) -> int:
        """Transitions that were added before this one are all overwritten."""
        return self.store.oldest

    @property
    def nbytes(self) -> int:
        """Bytes of memory when full."""
        total = self.store.nbytes + (BYTES * self.capacity if self.hindsight else 0)
        return total + (Priorities.needed_bytes(self.capacity) if self.priorities else 0)

    @property
    def row_bytes(self) -> int:
        """Bytes of memory per transition."""
        return max(1, self.store.nbytes // self.capacity)

    # -- writing ---------------------------------------------------------------------------------------------------

    def add(
        self,
        obs: ObsArray,
        action: np.ndarray,
        reward: np.ndarray,
        next_obs: ObsArray,
        terminated: np.ndarray,
        truncated: np.ndarray,
        lanes: Sequence[int] | None = None,
    ) -> None:
        """Append steps [M, ...] in the order of time: of all lanes, lane by lane within a step, or of those named."""
        position = self.store.add(obs, action, reward, next_obs, terminated, truncated, lanes=lanes)
        if self.hindsight is not None:
            ends = np.logical_or(terminated, truncated)
            together = lanes is None and len(position) == self.lanes
            for turn in [slice(None)] if together else range(len(position)):
                self._note_episodes(np.atleast_1d(position[turn]), np.atleast_1d(ends[turn]))
        elif self.priorities is not None:
            self.priorities.admit(position % self.capacity)

    def _note_episodes(self, position: np.ndarray, ends: np.ndarray) -> None:
        """New rows, at most one of each lane: some end episodes, some overwrite the first row of an old one."""
        assert self.hindsight is not None
        episodes = self.hindsight.episodes
        if self.priorities is None:
            episodes.add(position, ends)
            return
        self.priorities.dismiss(np.append(episodes.broken_by(position), position % self.capacity))
        self.priorities.admit(episodes.add(position, ends))

    def end_episodes(self, lanes: Sequence[int]) -> None:
        """The running episodes of these lanes go no further: their newest rows become boundaries."""
        position = self.store.end_episodes(lanes)
        if self.hindsight is not None:
            whole = self.hindsight.episodes.end_running(position)
            if self.priorities is not None:
                self.priorities.admit(whole)

    @property
    def needs_env(self) -> bool:
        """Does it have to be given an env, see `attach_env`?"""
        return self.hindsight is not None

    def attach_env(self, env: gym.Env[Any, Any], reward: RewardTransform) -> None:
        """Rewards of relabelled goals are computed by this env and go through this transform."""
        assert self.hindsight is not None
        self.hindsight.attach_env(env, reward)

    # -- reading ---------------------------------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """Is there anything to sample?"""
        if self.hindsight is not None:
            return self.hindsight.episodes.any
        return self.total > 0 or self.prior is not None

    def draw(self, count: int) -> np.ndarray:
        """[count] places of rows to learn from, where they are not drawn by priority."""
        if self.hindsight is not None:
            return self.hindsight.draw(self._rng, count)
        return self.store.place(self._rng.integers(0, len(self.store), count))

    def read(self, place: np.ndarray) -> Gathered:
        """Transitions from these rows on."""
        if self.n_step > 1 and self.hindsight is None:
            natively = read_n_step_natively(self.store, place, self.n_step)
            if natively is not None:
                return natively
        ahead = look_ahead(self.store, place, self.n_step) if self.n_step > 1 else None
        gathered = self.store.take(place) if ahead is None else read_n_step(self.store, place, ahead)
        if self.hindsight is not None:
            self.hindsight.relabel(gathered, place, ahead, self._rng)
        return gathered

    def gather(self, batch_size: int, n_batches: int) -> Gathered:
        """Transitions for `n_batches` minibatches, one after the other."""
        if self.prior is None:
            return self.read(self.draw(batch_size * n_batches))
        number = self._rng.integers(0, self.prior.total + len(self), batch_size * n_batches)
        ours = number >= self.prior.total
        collected = self.store.place(number[ours] - self.prior.total)
        return joined(ours, self.read(collected), self.prior.read(number[~ours]))

    def sample(self, batch_size: int, n_batches: int) -> Iterator[Batch]:
        """`n_batches` minibatches, gathered at once; by priority, each one when it is asked for."""
        if self.priorities is None:
            yield from minibatches(self.layout, self.gather(batch_size, n_batches), batch_size)
            return
        for _ in range(n_batches):
            place, weight = self.priorities.draw(self._rng, batch_size)
            batch = self.layout.batch(*self.read(place))
            yield batch._replace(weight=torch.from_numpy(weight), index=torch.from_numpy(place))

    def prioritize(self, index: Tensor, td_error: Tensor) -> None:
        """Give the rows of a minibatch the priorities of their new TD errors."""
        assert self.priorities is not None
        self.priorities.update(index, td_error)

    # -- checkpoints -----------------------------------------------------------------------------------------------

    def segment(self, start: int, end: int) -> dict[str, Tensor]:
        """Rows [start, end) of the order in which they came."""
        return self.store.segment(start, end)

    def load_segment(self, start: int, tensors: Mapping[str, Tensor]) -> None:
        """Put rows back where `segment` took them from."""
        self.store.load_segment(start, tensors)

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps besides the rows."""
        state = {**self.store.counters(), "rng": self._rng.bit_generator.state}
        for part in (self.priorities, self.hindsight.episodes if self.hindsight else None):
            state |= part.state() if part is not None else {}
        return state

    def load_state(self, state: dict[str, Any]) -> None:
        """Take `state` back, after the rows."""
        self.store.load_counters(state)
        self._rng.bit_generator.state = state["rng"]
        if self.priorities is not None:
            self.priorities.load_state(state)
        if self.hindsight is not None:
            self.hindsight.episodes.load_state(state)

    def tensors(self) -> dict[str, Tensor]:
        """What changes after a row was written, from the oldest row to the newest; in every full checkpoint."""
        tensors = {"mc_return": self.store.returns()} if self.layout.has_returns else {}
        if self.priorities is not None:
            tensors["priority"] = torch.from_numpy(self.priorities[self.store.in_order()])
        return tensors

    def load_tensors(self, saved: Mapping[str, Tensor]) -> None:
        """Take `tensors` back, after the rows and the state."""
        if "mc_return" in saved:
            self.store.load_returns(saved["mc_return"])
        if self.priorities is not None:
            priority = saved["priority"].numpy()[-self.capacity :]  # the capacity may have changed since
            place = self.store.in_order()[-len(priority) :]
            usable = self.hindsight.episodes.usable(place) if self.hindsight else np.ones(len(place), bool)
            if self.hindsight:
                priority = np.where(usable, priority, 0.0)
            self.priorities.load(place, priority, ~usable)


def _generator(seed: int) -> np.random.Generator:
    return np.random.default_rng(np.random.SeedSequence([seed, 0x5EED]))


def _united(cfg: ReplayConfig, prior: DatasetReplay | None) -> DatasetReplay | None:
    """The dataset that a replay draws from as well."""
    if not cfg.union:
        return None
    if prior is None:
        raise UserError("replay.union=true draws from a dataset too and there is none; add dataset=..., or drop it.")
    if prior.dataset.shares:
        raise UserError(
            "replay.union=true draws all rows alike and dataset.exact_per_batch=true keeps shares; choose one of the "
            "two."
        )
    return prior


def joined(first: np.ndarray, a: Gathered, b: Gathered) -> Gathered:
    """Transitions in an order in which `first` [M] says which are the next ones of `a`; the others are those of `b`."""
    mask = torch.from_numpy(first)

    def join(x: Tensor, y: Tensor) -> Tensor:
        made = x.new_empty((len(mask), *x.shape[1:]))
        made[mask], made[~mask] = x, y
        return made

    apart = {name: (join(pair[0], b.apart[name][0]), join(pair[1], b.apart[name][1])) for name, pair in a.apart.items()}
    return Gathered(join(a.rows, b.rows), apart)


def minibatches(layout: Layout, gathered: Gathered, batch_size: int) -> Iterator[Batch]:
    """Gathered transitions as minibatches."""
    if layout.is_vector:  # the views of a whole burst take two calls for each field
        whole = layout.batch(gathered.rows)
        if len(gathered.rows) == batch_size:
            yield whole
            return
        n = len(gathered.rows) // batch_size
        parts = (repeat(None) if x is None else x.view(n, batch_size, *x.shape[1:]).unbind() for x in whole)
        yield from map(Batch, *parts)
        return
    for start in range(0, len(gathered.rows), batch_size):
        part, apart = slice(start, start + batch_size), gathered.apart
        yield layout.batch(gathered.rows[part], apart and {n: (a[part], b[part]) for n, (a, b) in apart.items()})


class Mixture:
    """Minibatches of which an exact share comes from prior data and the rest from a replay."""

    def __init__(self, online: Replay, prior: DatasetReplay, fraction: float):
        self.online = online
        self.prior = prior
        self.fraction = fraction  # of prior data; may be changed between calls of `sample`

    @property
    def ready(self) -> bool:
        return self.online.ready or self.prior_size(2**20) == 2**20

    def prior_size(self, batch_size: int) -> int:
        """How many rows of each minibatch are prior data."""
        return round(batch_size * self.fraction)

    def sample(self, batch_size: int, n_batches: int) -> Iterator[Batch]:
        n_prior = self.prior_size(batch_size)
        parts = [
            (source.gather(n, n_batches), n)
            for source, n in ((self.prior, n_prior), (self.online, batch_size - n_prior))
            if n > 0
        ]
        rows = _interleave([(part.rows, n) for part, n in parts], n_batches)
        apart = {
            name: tuple(_interleave([(part.apart[name][k], n) for part, n in parts], n_batches) for k in (0, 1))
            for name in parts[0][0].apart
        }
        yield from minibatches(self.online.layout, Gathered(rows, apart), batch_size)  # type: ignore[arg-type]

    def state(self) -> dict[str, Any]:
        """Of both sources; the share is the phase's."""
        return {"online": self.online.state(), "prior": self.prior.state()}

    def load_state(self, state: dict[str, Any]) -> None:
        self.online.load_state(state["online"])
        self.prior.load_state(state["prior"])


def _interleave(parts: list[tuple[Tensor, int]], n_batches: int) -> Tensor:
    """Give each of the minibatches its share of every part."""
    cat = torch.cat([x.view(n_batches, n, *x.shape[1:]) for x, n in parts], dim=1)
    return cat.view(-1, *cat.shape[2:])


class DatasetReplay:
    """A dataset as a full store of one lane, so that both are read by the same code.

    `dataset` is the one that was given with its columns as views of the rows here, so that it is in memory once.
    Observations that are images, or on disk, are read from where the dataset has them.
    """

    def __init__(self, dataset: TransitionDataset, spec: Spec, discount: float, n_step: int, seed: int):
        check_numbers(ReplayConfig(n_step=n_step), "replay")
        if n_step > 1:
            dataset.check_order("n-step returns")
        self.n_step = n_step
        self.on_disk = dataset.memory == "mmap"
        layout = Layout(spec, mc_return=dataset.mc_return is not None, apart=self.on_disk)
        needed = len(dataset) * (4 * layout.width + (n_step > 1))  # besides what stays where it is
        with enough_memory(needed, f"A dataset of {len(dataset):,} transitions", self._smaller(bool(layout.apart))):
            self.store = Store(layout, len(dataset), 1, discount, lambda slots: {}, find_ends=n_step > 1)
        flags = (dataset.terminated, np.where(dataset.ends, 1.0 - dataset.terminated, 0.0))
        self.store.add(dataset.obs, dataset.action, dataset.reward, dataset.next_obs, *flags, dataset.mc_return)
        self.store.columns = {
            name: Pairs(layout.part(dataset.obs, name), layout.part(dataset.next_obs, name), 1) for name in layout.apart
        }
        self.dataset = dataset.with_views(self.store.views())
        self._rng = _generator(seed)

    @staticmethod
    def _smaller(apart: bool) -> Any:
        on_disk = "" if apart else "leave its observations on disk with dataset.memory=mmap, or "
        return lambda share: f"{on_disk}use a smaller one"

    @property
    def layout(self) -> Layout:
        return self.store.layout

    @property
    def total(self) -> int:
        return self.store.total

    @property
    def ready(self) -> bool:
        return True

    @property
    def nbytes(self) -> int:
        """Bytes of the rows, which the columns of `dataset` are views of."""
        return self.store.nbytes - sum(column.nbytes for column in self.store.columns.values())

    def read(self, place: np.ndarray) -> Gathered:
        """Transitions from these rows on."""
        if self.n_step == 1:
            return self.store.take(place)
        return read_n_step(self.store, place, look_ahead(self.store, place, self.n_step))

    def gather(self, batch_size: int, n_batches: int) -> Gathered:
        """Transitions for `n_batches` minibatches, one after the other."""
        return self.read(self.dataset.sample_rows(self._rng, batch_size, n_batches).ravel())

    def sample(self, batch_size: int, n_batches: int) -> Iterator[Batch]:
        """`n_batches` minibatches, gathered at once."""
        yield from minibatches(self.layout, self.gather(batch_size, n_batches), batch_size)

    def state(self) -> dict[str, Any]:
        return {**self.store.counters(), "rng": self._rng.bit_generator.state}

    def load_state(self, state: dict[str, Any]) -> None:
        self.store.load_counters(state)
        self._rng.bit_generator.state = state["rng"]
