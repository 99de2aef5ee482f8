"""Replay: transitions in contiguous memory, one row each.

A row is `obs | action | reward | next_obs | terminated | truncated | discount [| mc_return]` in float32, so a
minibatch is one gather and its fields are views. Observations that do not belong into float32 rows, images and those
left on disk, are columns of their own. A dataset is a replay that was filled in one go; n-step returns are formed when
sampling, within episodes only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rlx.errors import UserError
from rlx.returns import discounted_returns, going_on
from rlx.system import enough_memory
from rlx.types import Batch, Spec

if TYPE_CHECKING:
    import gymnasium as gym

    from rlx.data.dataset import TransitionDataset
    from rlx.rewards import RewardTransform


@dataclass
class UniformConfig:
    """Replay with uniform sampling."""

    _target_: str = "rlx.data.replay.Replay"
    capacity: int = 1_000_000  # transitions kept; the oldest are overwritten
    n_step: int = 1  # rewards summed before bootstrapping


class Layout:
    """Which columns of a row hold which field."""

    def __init__(self, spec: Spec, mc_return: bool = False, outside: bool = False):
        self.spec = spec
        self.outside = outside or spec.obs_dtype == "uint8"  # do observations live outside the rows
        obs = 0 if self.outside else spec.obs_dim
        action = 1 if spec.action_kind == "discrete" else spec.action_shape[0]
        widths = {"obs": obs, "action": action, "reward": 1, "next_obs": obs, "terminated": 1, "truncated": 1}
        widths |= {"discount": 1, **({"mc_return": 1} if mc_return else {})}
        self.slices: dict[str, slice] = {}
        self.width = 0
        for name, n in widths.items():
            self.slices[name] = slice(self.width, self.width + n)
            self.width += n

    def column(self, rows: Tensor, name: str) -> Tensor:
        """A field of one number per row, as a view [B]."""
        return rows[:, self.slices[name].start]

    def batch(self, rows: Tensor, outside: tuple[Tensor, Tensor] | None = None) -> Batch:
        """Rows [B, width] as a Batch of views."""
        if outside is None:
            obs, next_obs = rows[:, self.slices["obs"]], rows[:, self.slices["next_obs"]]
            if len(self.spec.obs_shape) != 1:
                obs, next_obs = obs.reshape(-1, *self.spec.obs_shape), next_obs.reshape(-1, *self.spec.obs_shape)
        else:
            obs, next_obs = outside
        action = rows[:, self.slices["action"]]
        if self.spec.discrete:
            action = action.long()
            action = action[:, 0] if self.spec.action_kind == "discrete" else action
        return Batch(
            obs=obs,
            action=action,
            reward=self.column(rows, "reward"),
            next_obs=next_obs,
            terminated=self.column(rows, "terminated"),
            discount=self.column(rows, "discount"),
            mc_return=self.column(rows, "mc_return") if "mc_return" in self.slices else None,
        )


class Gathered(NamedTuple):
    """Sampled transitions before they are cut into batches."""

    rows: Tensor  # [M, width]
    outside: tuple[Tensor, Tensor] | None = None  # obs and next_obs, where they are not in the rows


def whole(value: Any) -> int:
    """A counter of a checkpoint; ValueError unless it is one."""
    if type(value) is not int or not 0 <= value < 2**62:
        raise ValueError(f"{value!r} is not a counter")
    return value


class Replay:
    """A ring of transitions of `num_envs` envs. Row k of the stream lies at k % capacity."""

    prioritized: bool = False  # its batches name their rows, and it wants their TD errors back
    kind: str = "replay"  # what errors call it

    def __init__(
        self,
        cfg: UniformConfig,
        spec: Spec,
        num_envs: int,
        discount: float,
        seed: int,
        mc_return: bool = False,
        outside: bool = False,
    ):
        if cfg.n_step < 1:
            raise UserError(f"replay.n_step={cfg.n_step} is not possible; give 1 or more.")
        if cfg.capacity < num_envs:
            raise UserError(f"replay.capacity={cfg.capacity} is less than env.num_envs={num_envs}; give a larger one.")
        self.layout = Layout(spec, mc_return, outside)
        self.capacity = cfg.capacity - cfg.capacity % num_envs  # so that neighbours in time are num_envs rows apart
        self.num_envs = num_envs
        self.n_step = cfg.n_step
        self.discount = discount
        self.total = 0  # rows ever added
        self._rng = np.random.default_rng(np.random.SeedSequence([seed, 0x5EED]))
        with enough_memory(self.nbytes, f"A {self.kind} of {self.capacity:,} transitions", self._smaller):
            self._rows = np.zeros((self.capacity, self.layout.width), np.float32)
            self._outside = self._make_outside() if self.layout.outside else None
        self._tensor = torch.from_numpy(self._rows)

    def _make_outside(self) -> tuple[Any, Any]:
        shape, dtype = (self.capacity, *self.layout.spec.obs_shape), self.layout.spec.obs_dtype
        return np.zeros(shape, dtype), np.zeros(shape, dtype)

    def __len__(self) -> int:
        return min(self.total, self.capacity)

    @property
    def nbytes(self) -> int:
        """Bytes of memory when full."""
        spec = self.layout.spec
        outside = 2 * spec.obs_dim * np.dtype(spec.obs_dtype).itemsize if self.layout.outside else 0
        return self.capacity * (4 * self.layout.width + outside)

    def _smaller(self, share: float) -> str:
        """What to type where there is only this share of the memory."""
        return f"try replay.capacity={int(self.capacity * share)}"

    def add(
        self,
        obs: np.ndarray,
        action: np.ndarray,
        reward: np.ndarray,
        next_obs: np.ndarray,
        terminated: np.ndarray,
        truncated: np.ndarray,
        mc_return: np.ndarray | None = None,
    ) -> None:
        """Append rows [M, ...] in time order, env by env within a step."""
        m = len(reward)
        start = self.total % self.capacity
        at = slice(start, start + m) if start + m <= self.capacity else (start + np.arange(m)) % self.capacity
        fields: dict[str, Any] = {
            "action": action.reshape(m, -1),
            "reward": reward[:, None],
            "terminated": terminated[:, None],
            "truncated": truncated[:, None],
            "discount": self.discount,
        }
        if "mc_return" in self.layout.slices:  # not known while an episode goes on
            fields["mc_return"] = -np.inf if mc_return is None else mc_return[:, None]
        if self._outside is None:
            fields |= {"obs": obs.reshape(m, -1), "next_obs": next_obs.reshape(m, -1)}
        else:
            self._add_outside(at, obs, next_obs)
        for name, value in fields.items():
            self._rows[at, self.layout.slices[name]] = value
        self.total += m
        if "mc_return" in self.layout.slices and mc_return is None:
            for env in np.flatnonzero(np.logical_or(terminated, truncated)):
                self._set_returns(self.total - self.num_envs + int(env))

    def _set_returns(self, last: int) -> None:
        """The Monte-Carlo returns of the episode that ended with row `last` of the stream, as a dataset has them."""
        oldest = max(self.total - self.capacity, 0)
        rows = np.arange(last, oldest - 1, -self.num_envs) % self.capacity  # backwards in time
        flags = [self.layout.slices[name].start for name in ("terminated", "truncated")]
        earlier = np.flatnonzero(self._rows[rows[1:]][:, flags].any(1))  # the ends of episodes before this one
        rows = rows[: earlier[0] + 1 if len(earlier) else None][::-1]
        ends = np.arange(len(rows)) == len(rows) - 1
        truncated = bool(self._rows[rows[-1], self.layout.slices["truncated"].start])
        reward = going_on(self._rows[rows, self.layout.slices["reward"].start], truncated, self.discount)
        self._rows[rows, self.layout.slices["mc_return"].start] = discounted_returns(reward, ends, self.discount)

    def _add_outside(self, at: Any, obs: np.ndarray, next_obs: np.ndarray) -> None:
        assert self._outside is not None
        self._outside[0][at], self._outside[1][at] = obs, next_obs

    @property
    def ready(self) -> bool:
        """Is there anything to sample?"""
        return self.total > 0

    def connect(self, env: gym.Env, reward: RewardTransform) -> None:
        """Meet the env and the reward transform of the run, for replays that recompute rewards."""

    def indices(self, batch_size: int, n_batches: int) -> np.ndarray:
        """[n_batches * batch_size] rows to learn from, batch by batch."""
        return self._rng.integers(0, len(self), batch_size * n_batches)

    def gather(self, batch_size: int, n_batches: int) -> Gathered:
        """Transitions for `n_batches` minibatches, one after the other."""
        index = self.indices(batch_size, n_batches)
        return self._n_step(index) if self.n_step > 1 else self.take(index)

    def take(self, index: np.ndarray) -> Gathered:
        """Rows by where they lie."""
        rows = self._tensor.index_select(0, torch.from_numpy(index))
        if self._outside is None:
            return Gathered(rows)
        return Gathered(rows, (torch.from_numpy(self._outside[0][index]), torch.from_numpy(self._outside[1][index])))

    def _n_step(self, index: np.ndarray) -> Gathered:
        """Sum up to n rewards; stop at the end of the episode or at the newest row, and discount accordingly."""
        rows, outside = self.take(index)
        s, column = self.layout.slices, self.layout.column
        oldest = self.total - len(self)
        stream = oldest + (index - oldest) % self.capacity  # position in the stream of all rows
        reward, discount = column(rows, "reward").clone(), column(rows, "discount").clone()
        last = stream.copy()  # the row that each sum ends with
        alive = (column(rows, "terminated") + column(rows, "truncated") == 0).numpy()
        for _ in range(1, self.n_step):
            alive &= last + self.num_envs < self.total
            if not alive.any():
                break
            last = np.where(alive, last + self.num_envs, last)
            further = self._tensor.index_select(0, torch.from_numpy(last % self.capacity))
            mask = torch.from_numpy(alive)
            reward += torch.where(mask, discount * column(further, "reward"), 0.0)
            discount *= torch.where(mask, column(further, "discount"), 1.0)
            alive &= (column(further, "terminated") + column(further, "truncated") == 0).numpy()
        end, end_outside = self.take(last % self.capacity)
        rows[:, s["next_obs"]] = end[:, s["next_obs"]]
        rows[:, s["terminated"]] = end[:, s["terminated"]]
        rows[:, s["reward"].start] = reward
        rows[:, s["discount"].start] = discount
        return Gathered(rows, (outside[0], end_outside[1]) if outside is not None and end_outside is not None else None)

    def sample(self, batch_size: int, n_batches: int) -> Iterator[Batch]:
        """`n_batches` minibatches, gathered at once."""
        yield from cut(self.layout, self.gather(batch_size, n_batches), batch_size)

    # -- checkpoints: rows are written once, in segments of the stream --------------------------------------------

    def segment(self, start: int, end: int) -> dict[str, Tensor]:
        """Rows [start, end) of the stream, for a checkpoint."""
        index = np.arange(start, end) % self.capacity
        found = {"rows": torch.from_numpy(self._rows[index])}
        if self._outside is not None:
            found |= {k: torch.from_numpy(v[index]) for k, v in zip(("obs", "next_obs"), self._outside, strict=True)}
        return found

    def load_segment(self, start: int, tensors: dict[str, Tensor]) -> None:
        """Put rows back where `segment` took them from."""
        n = len(tensors["rows"])
        index = np.arange(start, start + n) % self.capacity
        self._rows[index] = tensors["rows"].numpy()
        if self._outside is not None:
            self._outside[0][index] = tensors["obs"].numpy()
            self._outside[1][index] = tensors["next_obs"].numpy()

    def state(self) -> dict:
        """What a checkpoint keeps besides the rows."""
        return {"total": self.total, "rng": self._rng.bit_generator.state}

    def load_state(self, state: dict) -> None:
        self.total = whole(state["total"])
        self._rng.bit_generator.state = state["rng"]

    def cut_off(self, envs: Sequence[int]) -> None:
        """The running episodes of these envs go no further: their newest rows become boundaries."""
        if self.total:
            at = (self.total - self.num_envs + np.array(envs)) % self.capacity
            terminated, truncated = (self.layout.slices[name].start for name in ("terminated", "truncated"))
            self._rows[at, truncated] = 1.0 - self._rows[at, terminated]

    def tensors(self) -> dict[str, Tensor]:
        """What changes after a row was written, from the oldest row to the newest; in every full checkpoint."""
        if "mc_return" not in self.layout.slices:
            return {}
        stream = np.arange(self.total - len(self), self.total)
        return {
            "mc_return": torch.from_numpy(self._rows[stream % self.capacity, self.layout.slices["mc_return"].start])
        }

    def load_tensors(self, saved: dict[str, Tensor]) -> None:
        """Take `tensors` back, after the rows and the state."""
        if "mc_return" in saved:
            found = saved["mc_return"].numpy()[-self.capacity :]  # the capacity may have changed since
            stream = np.arange(self.total - len(found), self.total)
            self._rows[stream % self.capacity, self.layout.slices["mc_return"].start] = found


class Mixture:
    """Minibatches of which an exact share comes from prior data and the rest from a replay."""

    def __init__(self, online: Replay, prior: Replay, fraction: float):
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
        rows = _interleave([(g.rows, n) for g, n in parts], n_batches)
        outside = None
        if parts[0][0].outside is not None:
            pairs = [[(g.outside[k], n) for g, n in parts if g.outside is not None] for k in (0, 1)]
            outside = (_interleave(pairs[0], n_batches), _interleave(pairs[1], n_batches))
        yield from cut(self.online.layout, Gathered(rows, outside), batch_size)


def _interleave(parts: list[tuple[Tensor, int]], n_batches: int) -> Tensor:
    """Give each of the minibatches its share of every part."""
    cat = torch.cat([x.view(n_batches, n, *x.shape[1:]) for x, n in parts], dim=1)
    return cat.view(-1, *cat.shape[2:])


def cut(layout: Layout, gathered: Gathered, batch_size: int) -> Iterator[Batch]:
    """Gathered transitions as minibatches."""
    for start in range(0, len(gathered.rows), batch_size):
        part = slice(start, start + batch_size)
        outside = gathered.outside
        yield layout.batch(gathered.rows[part], None if outside is None else (outside[0][part], outside[1][part]))


class DatasetReplay(Replay):
    """A dataset as a full replay, so that both are sampled by the same code."""

    kind = "dataset"

    def __init__(self, dataset: TransitionDataset, spec: Spec, discount: float, n_step: int, seed: int):
        if n_step > 1:
            dataset.check_order("n-step returns")
        cfg = UniformConfig(capacity=len(dataset), n_step=n_step)
        self._dataset = dataset
        on_disk = dataset.memory == "mmap"
        super().__init__(cfg, spec, 1, discount, seed, mc_return=dataset.mc_return is not None, outside=on_disk)
        self.add(
            dataset.obs,
            dataset.action,
            dataset.reward,
            dataset.next_obs,
            dataset.terminated,
            np.where(dataset.ends, 1.0 - dataset.terminated, 0.0),
            dataset.mc_return,
        )

    @property
    def nbytes(self) -> int:
        """Bytes besides those of the dataset, to which the observations outside the rows belong."""
        return self.capacity * 4 * self.layout.width

    def _smaller(self, share: float) -> str:
        if self.layout.outside:
            return "use a smaller one"
        return "leave its observations on disk with dataset.memory=mmap, or use a smaller one"

    def _make_outside(self) -> tuple[Any, Any]:
        return self._dataset.obs, self._dataset.next_obs

    def _add_outside(self, at: Any, obs: np.ndarray, next_obs: np.ndarray) -> None:
        """They are there already."""

    def indices(self, batch_size: int, n_batches: int) -> np.ndarray:
        return self._dataset.sample_rows(self._rng, batch_size, n_batches).ravel()
