"""How long loading a dataset takes, and how much memory, against the bare read of the same arrays.

    python benchmarks/data_loading.py [--transitions 1000000] [--repeats 5] [--folder FOLDER]

Every measurement is a process of its own; ours and the bare one take turns. Time is the best of the repeats, from the
call to the arrays in memory (imports excluded). Peak memory is what the process grew by, relative to the loaded data.
Files are written first and read from the page cache, so the disk does not hide our share.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

OBS, ACTION, EPISODE = 17, 6, 1000
FORMATS = {"npz": "data.npz", "hdf5": "data.hdf5", "minari": "bench/data-v0"}


def write_all(folder: Path, n: int) -> None:
    """The same transitions in all formats."""
    import h5py
    import minari
    from gymnasium.spaces import Box
    from minari.data_collector import EpisodeBuffer

    from rlx.data.minari import storage_at

    rng = np.random.default_rng(0)
    episodes = -(-n // EPISODE)
    stream = rng.standard_normal((episodes, EPISODE + 1, OBS), dtype=np.float32)
    truncated = np.arange(1, n + 1) % EPISODE == 0
    truncated[-1] = True
    arrays = {
        "observations": stream[:, :-1].reshape(-1, OBS)[:n],
        "actions": rng.uniform(-1, 1, (n, ACTION)).astype(np.float32),
        "rewards": rng.standard_normal(n, dtype=np.float32),
        "next_observations": stream[:, 1:].reshape(-1, OBS)[:n],
        "terminals": np.zeros(n, dtype=bool),
        "timeouts": truncated,
    }
    np.savez(folder / FORMATS["npz"], **arrays)
    with h5py.File(folder / FORMATS["hdf5"], "w") as file:
        for key, array in arrays.items():
            file.create_dataset(key, data=array)
    cuts = [(start, min(start + EPISODE, n)) for start in range(0, n, EPISODE)]
    buffers = [
        EpisodeBuffer(
            observations=np.concatenate([arrays["observations"][a:b], arrays["next_observations"][b - 1 : b]]),
            actions=arrays["actions"][a:b],
            rewards=arrays["rewards"][a:b],
            terminations=arrays["terminals"][a:b],
            truncations=arrays["timeouts"][a:b],
        )
        for a, b in cuts
    ]
    spaces = {"observation_space": Box(-np.inf, np.inf, (OBS,)), "action_space": Box(-1, 1, (ACTION,))}
    with storage_at(folder), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about an author and a description that nobody needs here
        minari.create_dataset_from_buffers(FORMATS["minari"], buffers, **spaces)


def read_bare(kind: str, path: Path) -> Any:
    if kind == "npz":
        with np.load(path) as arrays:
            return [arrays[key] for key in arrays]
    import h5py

    if kind == "hdf5":
        with h5py.File(path) as file:
            return [file[key][()] for key in file]
    keys = ("observations", "actions", "rewards", "terminations", "truncations")
    with h5py.File(path / "data" / "main_data.hdf5") as file:
        return [[file[f"episode_{i}"][key][()] for key in keys] for i in range(len(file))]


def measure(kind: str, who: str, path: Path) -> dict[str, float]:
    """One load in this process."""
    import h5py  # noqa: F401  # imported before the clock starts, for both

    from rlx.data.minari import read_minari_folder
    from rlx.data.sources import read_hdf5, read_npz
    from rlx.types import Spec

    spec = Spec("HalfCheetah-v5", (OBS,), "float32", "box", (ACTION,), (-1.0,) * ACTION, (1.0,) * ACTION)
    readers = {"npz": lambda: read_npz(str(path)), "hdf5": lambda: read_hdf5(str(path))}
    readers["minari"] = lambda: read_minari_folder(path)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    loaded = read_bare(kind, path) if who == "bare" else readers[kind]().fitted_to(spec)
    seconds = time.perf_counter() - start
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    return {"seconds": seconds, "grown": grown, "data": 0 if who == "bare" else loaded.nbytes}


def child(kind: str, who: str, path: Path) -> dict[str, float]:
    command = [sys.executable, __file__, "--measure", kind, who, str(path)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--transitions", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=None, help="where to write the files; default: a temporary one")
    parser.add_argument("--write", nargs=2, metavar=("FOLDER", "N"), help=argparse.SUPPRESS)
    parser.add_argument("--measure", nargs=3, metavar=("KIND", "WHO", "PATH"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        kind, who, path = args.measure
        print(json.dumps(measure(kind, who, Path(path))))
        return
    if args.write:
        write_all(Path(args.write[0]), int(args.write[1]))
        return
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        folder = Path(name)
        # in a process of its own: the peak of a process counts for the children that it starts afterwards
        subprocess.run([sys.executable, __file__, "--write", name, str(args.transitions)], check=True)
        print(f"{args.transitions:,} transitions, obs {OBS}, action {ACTION}; best of {args.repeats}")
        print(f"{'format':8}{'bare s':>9}{'rlx s':>9}{'ratio':>8}{'peak / data':>13}")
        for kind, file in FORMATS.items():
            runs: dict[str, list[dict[str, float]]] = {"bare": [], "rlx": []}
            for _ in range(args.repeats):
                for who, found in runs.items():
                    found.append(child(kind, who, folder / file))
            bare, ours = (min(run["seconds"] for run in runs[who]) for who in ("bare", "rlx"))
            peak = max(run["grown"] / run["data"] for run in runs["rlx"])
            print(f"{kind:8}{bare:9.3f}{ours:9.3f}{ours / bare:8.2f}{peak:13.2f}")


if __name__ == "__main__":
    main()
