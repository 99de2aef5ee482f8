"""From the arrays of a file to checked transition columns: names, shapes, dtypes, boundaries, successors.

What is missing is derived here, once, for every source:

    boundaries  an episode ends where `terminated`, `truncated` or the file's own markers of ends, starts or episodes
                say so, and at the end. Without any but `terminated`, it also ends where `next_obs` is not the `obs` of
                the following row.
    terminated  with markers of boundaries alone, ends are terminal for now: see rlx/data/episodes.py.
    next_obs    the following `obs` of the same episode. With one more observation per episode than rows (N + episodes,
                as Minari stores them) nothing is lost. Otherwise a terminated row, which never bootstraps, repeats its
                own `obs`, and the last row of an episode that did not terminate has no successor and is dropped.

Observations of several parts have an array for each, under keys such as `observations/pixels`: column `obs/pixels`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlx.data.keys import ALIASES, MARKERS, OBSERVATIONS, kind_of, map_keys
from rlx.errors import UserError, shown
from rlx.nn.encoders import channels_first
from rlx.obs import map_obs, num_rows, parts_of
from rlx.reporting import counted
from rlx.system import available_memory
from rlx.types import Box

Array = NDArray[Any]

CLOSE = 1e-3  # of the spread of observations: what next_obs may differ from the next obs by rounding
CHUNK = 1 << 19  # bytes looked at in one go: checks need little memory, and a second look finds them in the cache


Declared = Callable[[str], tuple[tuple[int, ...], "np.dtype[Any]"]]  # of a key: shape and dtype, before it is read
Claim = Callable[[int, int], None]  # bytes declared and bytes needed; refuses what is too much


class Columns(NamedTuple):
    """Columns of equal length N, episodes in order, every episode closed by a flag."""

    obs: Any  # [N, *obs_shape] float32 or uint8; a dict of such arrays where observations have parts
    action: Array  # [N, dim] float32, [N] or [N, components] int64
    reward: Array  # [N] float32
    next_obs: Any
    terminated: Array  # [N] float32
    truncated: Array  # [N] float32
    key_map: dict[str, str]  # key in the file -> column
    notes: tuple[str, ...]  # what was derived, in words
    continues: Array | None = None  # [N] True where next_obs is the obs of the next row; None: not compared
    derived: bool = False  # next_obs was not in the file
    shuffled: bool = False  # the rows are not in order
    made_up: bool = False  # terminated rows repeat their own obs as next_obs
    ends_only: bool = False  # nothing tells terminal states from time limits


class MappedColumn:
    """Rows of an array on disk, picked, cast and reshaped only when they are asked for."""

    def __init__(self, base: Array, index: Array | None = None, dtype: Any = None, row: tuple[int, ...] | None = None):
        self.base = base
        self.index = index
        self.dtype = np.dtype(dtype or base.dtype)
        self.row = base.shape[1:] if row is None else row
        self.shape = (len(base) if index is None else len(index), *self.row)
        self.ndim = len(self.shape)

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, rows: Any) -> Array:
        picked = self.base[rows if self.index is None else self.index[rows]]
        with np.errstate(over="ignore"):
            cast = np.asarray(picked).astype(self.dtype, copy=False)
        return cast.reshape(*cast.shape[: cast.ndim + 1 - self.base.ndim], *self.row)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return self[:].astype(dtype or self.dtype)

    @property
    def size(self) -> int:
        return int(np.prod(self.shape))

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize


def on_disk(column: Any) -> bool:
    return isinstance(column, (np.memmap, MappedColumn))


def take(column: Any, index: Array) -> Any:
    """Rows of a column; a column on disk stays there."""
    if isinstance(column, dict):
        return map_obs(lambda part: take(part, index), column)
    if isinstance(column, MappedColumn):
        index = index if column.index is None else column.index[index]
        return MappedColumn(column.base, index, column.dtype, column.row)
    return MappedColumn(column, index) if isinstance(column, np.memmap) else column[index]


def seen_box(row: tuple[int, ...], dtype: Any) -> Box:
    """What `make_env` makes of observations of this shape: of a stack of images one, of what has more axes a vector."""
    if len(row) < 4:
        return Box(row, str(dtype))
    if len(row) > 4:
        return Box((math.prod(row),), "float32")
    count, depth, height, width = channels_first(np.broadcast_to(np.uint8(0), row)).shape
    return Box((count * depth, height, width), str(dtype))


def seen_as(column: Any, box: Box) -> Any:
    """A column as `make_env` has an env give it, where that is this box; on disk it stays there."""
    row = tuple(column.shape[1:])
    made = seen_box(row, column.dtype)
    if len(row) == 2 and box.shape == (math.prod(row),):  # what is neither a vector nor an image is one vector
        made = box
    if made.shape == row or made != box:
        return column
    base, index = (column.base, column.index) if isinstance(column, MappedColumn) else (column, None)
    base = channels_first(base) if len(row) == 4 else base
    if on_disk(column):
        return MappedColumn(base, index, made.dtype, made.shape)
    return base.reshape(len(base), *made.shape).astype(made.dtype, copy=False)


def assemble(
    keys: Collection[str],
    read: Callable[[str], Array],
    source: str,
    declared: Declared | None = None,
    claim: Claim | None = None,
    mmap: bool = False,
) -> Columns:
    """Checked columns of a source whose arrays `read` gives one by one, each only once.

    With `declared`, the memory that all of them take is claimed before the first is read.
    """
    try:
        return _assemble(keys, read, source, declared, claim, mmap)
    except MemoryError as error:
        raise UserError(f"{source}: needs more memory than is available; use a smaller dataset.") from error


def _assemble(
    keys: Collection[str],
    read: Callable[[str], Array],
    source: str,
    declared: Declared | None,
    claim: Claim | None,
    mmap: bool,
) -> Columns:
    names = map_keys(keys, source)
    files = {column: f"{source}: key '{name}'" for column, name in names.items()}
    if declared is not None and claim is not None:
        sizes = {column: declared(name) for column, name in names.items()}
        claim(sum(math.prod(s) * d.itemsize for s, d in sizes.values()), memory_needed(sizes, mmap))
    arrays = _read_columns(names, files, read)
    _check_alike(arrays, names, files)
    obs, next_obs, reward = _whole(arrays, "obs"), _whole(arrays, "next_obs"), arrays["reward"]
    stored = num_rows(obs)
    notes: list[str] = []
    ends = _marked_ends(arrays, len(reward))
    ends_only = "terminated" not in arrays and "truncated" not in arrays
    if "terminated" not in arrays and ends is not None:
        arrays["terminated"] = np.where(ends & ~(arrays.get("truncated", 0 * reward) > 0), np.float32(1), np.float32(0))
        notes.append("no terminal flags: an episode that was not truncated counts as terminated")
    terminated = arrays["terminated"]
    flagged = terminated + arrays.get("truncated", 0) + (0 if ends is None else ends) > 0
    continues = None
    if next_obs is not None and (
        ("truncated" not in arrays and ends is None)
        or any(parts_of(map_obs(lambda a, b: _doubtful(a, b, terminated, flagged), obs, next_obs)))
    ):
        continues = compare_successors(obs, next_obs)
    truncated = _close_episodes(continues, terminated, arrays.get("truncated"), ends, notes)
    columns = (arrays["action"], reward, terminated, truncated)
    derived = next_obs is None
    if next_obs is None:
        where = next(file for column, file in files.items() if kind_of(column) == "obs")
        keep, here, there = _successors(stored, terminated, truncated, where, notes)
        obs, next_obs = take(obs, here), take(obs, there)
        columns = columns if keep is None else tuple(column[keep] for column in columns)  # type: ignore[assignment]
    made_up = derived and stored == len(arrays["reward"])
    action, reward, terminated, truncated = columns
    key_map = {name: column for column, name in names.items()}
    shuffled = continues is not None and bool(_shuffled(continues, flagged))
    return Columns(
        *(obs, action, reward, next_obs, terminated, truncated),
        key_map=key_map,
        notes=tuple(notes),
        continues=continues,
        shuffled=shuffled,
        derived=derived,
        made_up=made_up,
        ends_only=ends_only,
    )


def _whole(arrays: Mapping[str, Any], kind: str) -> Any:
    """A column as one array, or as a dict of its parts; None if there is none."""
    parts = {column.partition("/")[2]: array for column, array in arrays.items() if kind_of(column) == kind}
    return parts.get("", parts or None)


def _check_alike(arrays: Mapping[str, Any], names: Mapping[str, str], files: Mapping[str, str]) -> None:
    """As many rows in all columns (obs may have more where next_obs is missing), and successors as observations are."""
    rows = len(arrays["reward"])
    if rows == 0:
        raise UserError(f"{files['reward']} is empty: expected at least one transition.")
    has_next = any(kind_of(column) == "next_obs" for column in arrays)
    first = next(column for column in arrays if kind_of(column) == "obs")
    for column, array in arrays.items():
        like = first if kind_of(column) == "obs" and not has_next else "reward"
        if len(array) != len(arrays[like]):
            raise UserError(
                f"{files[column]} has {len(array)} rows, expected {len(arrays[like])} as in '{names[like]}'."
            )
        if kind_of(column) == "next_obs":
            same = column.removeprefix("next_")
            obs = arrays[same]
            if array.shape != obs.shape or array.dtype != obs.dtype:
                raise UserError(
                    f"{files[column]} has rows of shape {array.shape[1:]} and dtype {array.dtype}, expected "
                    f"{obs.shape[1:]} and {obs.dtype} as in '{names[same]}'."
                )


def _read_columns(names: dict[str, str], files: dict[str, str], read: Callable[[str], Array]) -> dict[str, Any]:
    """Every column in its shape and dtype. A second thread looks for NaN while the next array is read."""
    convert = {"obs": _observation, "next_obs": _observation, "action": _action, "reward": _scalars}
    convert |= {"ids": _numbers}
    kinds = list({**convert, **ALIASES})
    order = sorted(names, key=lambda column: kinds.index(kind_of(column)))  # the large ones first
    columns: dict[str, Any] = {}
    with ThreadPoolExecutor(1) as pool:
        checks = []
        for column in order:
            array = _plain(read(names[column]), files[column])
            columns[column] = convert.get(kind_of(column), _flags)(array, files[column])
            if columns[column].dtype.kind == "f":
                checks.append(pool.submit(_finite, columns[column], files[column]))
        for check in checks:
            check.result()
    return columns


def memory_needed(sizes: dict[str, tuple[tuple[int, ...], np.dtype[Any]]], mmap: bool = False) -> int:
    """Bytes that columns of these shapes and dtypes take while they are read, converted and joined."""
    total = 0
    kinds = {kind_of(column) for column in sizes}
    for name, (shape, dtype) in sizes.items():
        column = kind_of(name)
        if mmap and column in OBSERVATIONS:
            continue
        entries = math.prod(shape)
        flag = column in ("terminated", "truncated", *MARKERS)
        final: Any = np.float32
        if dtype == np.uint8 and column in OBSERVATIONS:
            final = np.uint8
        elif dtype.kind in "iu" and column == "action":
            final = np.int64
        converted = entries * np.dtype(final).itemsize
        total += entries * dtype.itemsize + (converted if flag or dtype != final else 0)
        if column == "obs" and "next_obs" not in kinds:
            total += 2 * converted  # obs and next_obs are picked from it
    return total


def claim_memory(source: str) -> Claim:
    """For arrays that are in memory already: what is needed has to be free."""

    def claim(declared: int, needed: int) -> None:
        free = available_memory()
        if free is not None and needed - declared > free:
            raise UserError(
                f"{source}: needs {(needed - declared) / 2**30:.1f} GiB and {free / 2**30:.1f} GiB are free; use a "
                "smaller dataset."
            )

    return claim


def chunks(column: Any) -> Iterator[slice]:
    """Slices of rows that cover a column piece by piece."""
    length = len(column)
    step = max(1, CHUNK * length // max(1, column.nbytes))
    return (slice(start, min(start + step, length)) for start in range(0, length, step))


def bounds(column: Any) -> tuple[float, float]:
    """Smallest and largest entry; NaN if there is one."""
    if not column.size:
        return 0.0, 0.0
    ends = np.array([(part.min(), part.max()) for part in (column[rows] for rows in chunks(column))])
    return ends[:, 0].min(), ends[:, 1].max()


def plain_dtype(dtype: np.dtype[Any], where: str) -> None:
    """Numbers; objects, strings, dates and records are refused."""
    if dtype.kind == "O":
        raise UserError(f"{where} is an object array: expected plain numbers, and objects are never unpickled.")
    if dtype.kind not in "fiub":
        raise UserError(f"{where} has dtype {shown(dtype, 60)}: expected floats, integers or booleans.")


def _plain(array: Any, where: str) -> Array:
    """A numeric array of rows that are not empty."""
    if not isinstance(array, (np.memmap, MappedColumn)):
        try:
            array = np.asarray(array)
        except (ValueError, TypeError, RuntimeError) as error:
            raise UserError(f"{where} is not an array ({shown(error)}): expected plain numbers.") from error
    plain_dtype(array.dtype, where)
    if array.ndim == 0:
        raise UserError(f"{where} is a single number: expected one row per transition.")
    if 0 in array.shape[1:]:
        raise UserError(f"{where} has shape {tuple(array.shape)}: expected rows with at least one number.")
    plain: Array = array
    return plain


def _one_dimensional(array: Array, where: str) -> Array:
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise UserError(f"{where} has shape {tuple(array.shape)}: expected one number per transition, [N] or [N, 1].")
    return array


def _scalars(array: Array, where: str) -> Array:
    return _as_float32(_one_dimensional(array, where))


def _flags(array: Array, where: str) -> Array:
    array = _one_dimensional(array, where)
    if array.dtype.kind != "b":
        odd = np.flatnonzero((array != 0) & (array != 1))
        if len(odd):
            raise UserError(f"{where} holds {array[odd[0]]} in row {odd[0]}: expected only 0 and 1.")
    return np.array(array, dtype=np.float32)


def _numbers(array: Array, where: str) -> Array:
    return _one_dimensional(array, where)


def _action(array: Array, where: str) -> Array:
    """Floats are a box [N, dim], integers are choices [N] or [N, components]."""
    if array.dtype.kind == "b" or array.ndim > 2:
        raise UserError(
            f"{where} has dtype {array.dtype} and shape {tuple(array.shape)}: expected floats [N, dim] or integers [N]."
        )
    if array.dtype.kind in "iu":
        array = array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array
        return np.ascontiguousarray(array, dtype=np.int64)
    return _as_float32(array[:, None] if array.ndim == 1 else array)


def _observation(array: Any, where: str) -> Any:
    if array.dtype.kind == "b":
        raise UserError(f"{where} has dtype bool: expected float observations, or uint8 images.")
    if array.ndim == 1:
        array = array[:, None]
    dtype = np.uint8 if array.dtype == np.uint8 else np.float32
    if on_disk(array):
        return array if array.dtype == dtype else MappedColumn(array, dtype=dtype)
    return array if array.dtype == np.uint8 else _as_float32(array)


def _as_float32(array: Array) -> Array:
    with np.errstate(over="ignore"):  # what is too large becomes inf, and is then refused with its place
        return np.ascontiguousarray(array, dtype=np.float32)


def _finite(array: Any, where: str) -> None:
    """No NaN, no inf: both show in the smallest or the largest value, which are found faster than isfinite() runs."""
    if np.isfinite(bounds(array)).all():
        return
    for rows in chunks(array):
        odd = np.argwhere(~np.isfinite(array[rows]))
        if len(odd):
            value = array[rows][tuple(odd[0])]
            raise UserError(f"{where} holds {value} in row {rows.start + odd[0][0]}: expected finite float32 numbers.")


def _marked_ends(arrays: dict[str, Any], length: int) -> Array | None:
    """[N] where the file's own markers end an episode; None if it has none."""
    ends = np.zeros(length, dtype=bool)
    if "ends" in arrays:
        ends |= arrays["ends"] > 0
    if "starts" in arrays:
        ends[:-1] |= arrays["starts"][1:] > 0
    if "ids" in arrays:
        ends[:-1] |= arrays["ids"][1:] != arrays["ids"][:-1]
    if not arrays.keys() & {"ends", "starts", "ids"}:
        return None
    ends[-1] = True
    return ends


def _close_episodes(
    continues: Array | None, terminated: Array, truncated: Array | None, ends: Array | None, notes: list[str]
) -> Array:
    """`truncated`, set wherever an episode ends without being terminated."""
    closed = np.zeros_like(terminated) if truncated is None else truncated
    if ends is not None:
        closed[ends & (terminated == 0)] = 1.0
    elif truncated is None and continues is not None:
        breaks = ~continues[:-1] & (terminated[:-1] == 0)
        closed[:-1][breaks] = 1.0
        count = counted(int(breaks.sum()), "boundary", "boundaries")
        notes.append(f"no truncation flags: {count} where next_obs is not the next obs")
    elif truncated is None:
        notes.append("no truncation flags: episodes end only where terminated")
    if terminated[-1] == 0 and closed[-1] == 0:
        closed[-1] = 1.0
        notes.append("the last episode is cut by the end of the data")
    return closed


def compare_successors(obs: Any, next_obs: Any) -> Array:
    """[N] is a row's next_obs the obs of the row after it, in every part? Not for the last one, which has none."""
    compared: Array = np.logical_and.reduce(parts_of(map_obs(_compare_part, obs, next_obs)))
    return compared


def _compare_part(obs: Any, next_obs: Any) -> Array:
    continues = np.ones(len(obs), dtype=bool)
    continues[-1] = False
    for part in chunks(obs):
        continues[_broken_rows(obs, next_obs, part.start, part.stop)] = False
    if obs.dtype == np.uint8:
        return continues
    broken = np.flatnonzero(~continues[:-1])  # usually the ends of episodes; rounding may have made more of them
    if len(broken) > 1:
        step = max(1, CHUNK // (4 * math.prod(obs.shape[1:])))
        spread = np.std(obs[broken[:step] + 1], axis=0, dtype=np.float64) * CLOSE
        for start in range(0, len(broken), step):
            rows = broken[start : start + step]
            close = np.abs(next_obs[rows].astype(np.float64) - obs[rows + 1]) <= spread
            continues[rows[close.reshape(len(rows), -1).all(1)]] = True
    return continues


def _broken_rows(obs: Any, next_obs: Any, start: int, stop: int) -> Array:
    """Rows from `start` up to `stop` whose next_obs is not the obs of the row after them."""
    after = obs[start + 1 : stop + 1]
    before = next_obs[start : start + len(after)]
    differs = np.flatnonzero(before.reshape(-1) != after.reshape(-1))  # few, so this is faster than any(1)
    return np.unique(start + differs // math.prod(obs.shape[1:]))


def _doubtful(obs: Any, next_obs: Any, terminated: Array, flagged: Array) -> bool:
    """Does next_obs, in the rows that are looked at, break off inside an episode or go on after a truncation?

    To compare all rows would add a tenth to the time of loading. These are blocks at random places, a sixteenth of
    the rows: one of a hundred missing boundaries is found for certain, a single one hardly. Then all rows are compared.
    """
    size = max(1, CHUNK // 4 * len(obs) // max(1, obs.nbytes))
    share = 64 if on_disk(obs) else 16
    share = 1 if len(obs) <= share * size else share
    offsets = np.random.default_rng(0).integers(share, size=len(obs) // (size * share) + 1) * size
    for first, offset in enumerate(offsets):
        start = first * size * share + int(offset)
        rows = _broken_rows(obs, next_obs, start, min(start + size, len(obs) - 1))
        if not flagged[rows].all():
            return True
    truncated = np.flatnonzero(flagged[:-1] & (terminated[:-1] == 0))
    truncated = truncated[:: max(1, len(truncated) // 1000)]
    if not len(truncated):
        return False
    same = np.asarray(next_obs[truncated] == obs[truncated + 1]).reshape(len(truncated), -1).all(1)
    return bool(same.mean() > 0.5)


def _shuffled(continues: Array, flagged: Array) -> bool:
    """Do most rows break off that are not the ends of episodes? Then they are not in order."""
    inside = ~flagged[:-1]
    breaks = int((~continues[:-1] & inside).sum())
    return breaks >= 10 and breaks > 0.5 * int(inside.sum())


def _successors(
    observations: int, terminated: Array, truncated: Array, where: str, notes: list[str]
) -> tuple[Array | None, Array, Array]:
    """Rows to keep (None: all), and for those the places of obs and next_obs among the stored observations."""
    rows = np.arange(len(terminated))
    ends = (terminated + truncated) > 0
    if observations == len(rows) + int(ends.sum()):
        here = rows + np.cumsum(ends) - ends
        notes.append("next_obs taken from the observations, which include the last one of every episode")
        return None, here, here + 1
    if observations != len(rows):
        episodes = int(ends.sum())
        raise UserError(
            f"{where} has {observations} rows, expected {len(rows)} (one per transition) or {len(rows) + episodes} "
            "(one more per episode)."
        )
    keep = ~(ends & (terminated == 0))
    dropped = np.flatnonzero(~keep)
    before = dropped[dropped > 0] - 1
    truncated[before[~ends[before]]] = 1.0  # the row before is now the last one that is known
    notes.append(f"next_obs taken from the next obs; {counted(len(dropped), 'row')} without a successor dropped")
    if not keep.any():
        raise UserError(f"{where} leaves no transition: without next_obs, every episode needs at least two rows.")
    kept = np.flatnonzero(keep)
    return kept, kept, np.where(ends[kept], kept, np.minimum(kept + 1, len(rows) - 1))
