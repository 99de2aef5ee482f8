"""Damage run folders at random, and count how many damages go unnoticed. There should be none.

    python benchmarks/damages.py --damages 1000 --seed 0

Bits flip, files are cut, extended, emptied, deleted, swapped, overwritten in part, and replaced by links, folders,
FIFOs and devices: in manifests, states, tensors, replay segments, configs and links. Afterwards the run is read as
`resume` and `evaluate` read it. A damage is noticed if that ends in a sentence, warns, or passes over the checkpoint;
otherwise everything that was read has to be, byte for byte, what was written. One in --resume damages is resumed to
the end, too, and has to end with the bits of the run without damage.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import os
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import torch

import rlx
from rlx.checkpoint import CheckpointData, CheckpointStore, DamagedCheckpoint, find_checkpoint, read_folder
from rlx.config import load_config, read_config, tell_changes
from rlx.errors import UserError
from rlx.run_folder import refuse_links

OVERRIDES = ("algo=sac", "env=pendulum", "~algo_env", "threads=1", "logger=jsonl", "~callbacks.progress",
             "algo.hidden=[8,8]", "algo.batch_size=8", "env.max_episode_steps=20", "env.num_envs=2",
             "trainer.eval_episodes=1", "trainer.eval_interval=50", "trainer.checkpoint_interval=40",
             "trainer.learning_starts=20", "trainer.max_env_steps=120", "trainer.log_interval=40")  # fmt: skip
LONGER = "trainer.max_env_steps=140"

# -- damages ---------------------------------------------------------------------------------------------------------


def rewrite(path: Path, change: Callable[[bytearray], bytes | bytearray]) -> None:
    path.write_bytes(change(bytearray(path.read_bytes())))


def flip_bit(path: Path, chance: random.Random) -> None:
    def change(data: bytearray) -> bytearray:
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        return data

    rewrite(path, change)


def set_byte(path: Path, chance: random.Random) -> None:
    def change(data: bytearray) -> bytearray:
        data[chance.randrange(len(data))] = chance.randrange(256)
        return data

    rewrite(path, change)


def change_digit(path: Path, chance: random.Random) -> None:
    """What a flip seldom hits: a number in a text, which stays a number."""

    def change(data: bytearray) -> bytearray:
        digits = [i for i, byte in enumerate(data) if chr(byte).isdigit()]
        if digits:
            data[chance.choice(digits)] = ord(chance.choice("0123456789"))
        return data

    rewrite(path, change)


def zero_block(path: Path, chance: random.Random) -> None:
    def change(data: bytearray) -> bytearray:
        start = chance.randrange(len(data))
        end = min(len(data), start + chance.randint(1, 512))
        data[start:end] = bytes(end - start)
        return data

    rewrite(path, change)


def cut(path: Path, chance: random.Random) -> None:
    os.truncate(path, chance.randrange(path.stat().st_size))


def extend(path: Path, chance: random.Random) -> None:
    with path.open("ab") as file:
        file.write(chance.randbytes(chance.randint(1, 64)))


def drop_line(path: Path, chance: random.Random) -> None:
    def change(data: bytearray) -> bytes:
        lines = bytes(data).splitlines(keepends=True)
        del lines[chance.randrange(len(lines))]
        return b"".join(lines)

    rewrite(path, change)


def empty(path: Path, chance: random.Random) -> None:
    os.truncate(path, 0)


def delete(path: Path, chance: random.Random) -> None:
    path.unlink()


def swap(path: Path, chance: random.Random) -> None:
    """With a file of another checkpoint, or with another of the same one."""
    others = [p for p in files_of(path.parents[1] if path.name != "config.yaml" else path.parent) if p != path]
    other = chance.choice([p for p in others if p.name == path.name] or others)
    data = path.read_bytes()
    path.write_bytes(other.read_bytes())
    other.write_bytes(data)


def replace_by_folder(path: Path, chance: random.Random) -> None:
    path.unlink()
    path.mkdir()


def replace_by_fifo(path: Path, chance: random.Random) -> None:
    path.unlink()
    os.mkfifo(path)


def replace_by_link(path: Path, chance: random.Random) -> None:
    path.unlink()
    path.symlink_to(chance.choice(["/dev/zero", "/etc/hostname", "nowhere", path.name, "../../config.yaml"]))


def swap_checkpoints(path: Path, chance: random.Random) -> None:
    first, second = CheckpointStore(run_of(path) / "checkpoints").steps()[:2]
    aside = first.with_name("aside")
    for source, target in ((first, aside), (second, first), (aside, second)):
        source.rename(target)


def break_link(path: Path, chance: random.Random) -> None:
    link = run_of(path) / "checkpoints" / chance.choice(["last", "best"])
    link.unlink()
    target = chance.choice(["", "/etc", "../../elsewhere", "step_000000000001", "nowhere"])
    if target:
        link.symlink_to(target)


def link_a_folder(path: Path, chance: random.Random) -> None:
    checkpoints = run_of(path) / "checkpoints"
    folder = chance.choice([*CheckpointStore(checkpoints).steps(), checkpoints / "replay", checkpoints])
    aside = run_of(path).with_name(f"{run_of(path).name}-aside")
    folder.rename(aside)
    folder.symlink_to(aside)


DAMAGES = (flip_bit, flip_bit, flip_bit, set_byte, change_digit, change_digit, zero_block, cut, extend, drop_line,
           empty, delete, swap, swap, replace_by_folder, replace_by_fifo, replace_by_link, swap_checkpoints, break_link,
           link_a_folder)  # fmt: skip


def files_of(run: Path) -> list[Path]:
    """The files of a run that a resume believes."""
    found = [p for p in sorted(run.rglob("*")) if p.is_file() and not p.is_symlink() and "last" not in p.parts]
    return [p for p in found if "checkpoints" in p.parts or p.name == "config.yaml"]


def run_of(path: Path) -> Path:
    return next(p for p in path.parents if (p / "summary.json").exists())


def damage(run: Path, chance: random.Random) -> str:
    """One damage; what was done to what."""
    how = chance.choice(DAMAGES)
    path = chance.choice(files_of(run))
    how(path, chance)
    return f"{how.__name__} {path.relative_to(run)}"


# -- is it noticed? --------------------------------------------------------------------------------------------------


class Warnings(logging.Handler):
    """Keeps what is said."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


def content(checkpoint: CheckpointData, store: CheckpointStore | None) -> str:
    """A hash of everything that is read from a checkpoint."""
    digest = hashlib.sha256(repr((checkpoint.config, checkpoint.spec, checkpoint.state)).encode())
    for group, tensors in sorted(checkpoint.tensors.items()):
        for name, tensor in sorted(tensors.items()):
            data = tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
            digest.update(repr((group, name, tensor.dtype, tensor.shape)).encode() + data)
    for segment, data in store._read_segments(checkpoint) if store else ():
        digest.update(repr((segment["start"], segment["end"])).encode() + data)
    return digest.hexdigest()


def written(run: Path) -> dict[str, str]:
    """What is in each checkpoint of a whole run, by its name; and the config."""
    store = CheckpointStore(run / "checkpoints")
    found = {path.name: content(read_folder(path), store) for path in store.steps()}
    best = find_checkpoint(run)
    return {**found, best.name: content(read_folder(best), None), "config": read_config(run)}


def judge(run: Path, reference: dict[str, str]) -> str:
    """ "noticed", "no effect", or "SILENT": what reading a damaged run comes to."""
    store, newest = CheckpointStore(run / "checkpoints"), max(k for k in reference if k.startswith("step_"))
    warnings = Warnings()
    logging.getLogger("rlx").addHandler(warnings)
    verdict = "no effect"
    try:
        refuse_links(run)
        text = read_config(run)
        load_config(text)
        saved = store.latest()
        assert saved.path is not None
        tell_changes(run, text, saved.config)
        if warnings.said:
            verdict = "noticed"
        if content(saved, store) != reference[saved.path.name] or (saved.path.name != newest and not warnings.said):
            return "SILENT"
        if load_config(text) != load_config(reference["config"]) and not warnings.said:
            return "SILENT"
    except UserError:
        verdict = "noticed"
    finally:
        logging.getLogger("rlx").removeHandler(warnings)
    try:
        path = find_checkpoint(run)
        read = read_folder(path)
        if content(read, store if path.name.startswith("step_") else None) != reference[path.name]:
            return "SILENT"
    except (UserError, DamagedCheckpoint):
        verdict = "noticed"
    return verdict


def last_tensors(run: Path) -> str:
    saved = CheckpointStore(run / "checkpoints").latest()
    saved.state.clear()  # has wall times
    saved.config = ""
    return content(saved, None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--damages", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--resume", type=int, default=50, help="one in so many is resumed to the end; 0: none")
    options = parser.parse_args()
    logging.getLogger("rlx").addHandler(logging.NullHandler())
    logging.getLogger("rlx").propagate = False
    counts: Counter[str] = Counter()
    resumed: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        rlx.train(*OVERRIDES, run_dir=folder / "whole")
        reference = written(folder / "whole")
        shutil.copytree(folder / "whole", folder / "longer", symlinks=True)
        rlx.resume(folder / "longer", LONGER)
        longer = last_tensors(folder / "longer")
        for k in range(options.damages):
            chance, run = random.Random(f"{options.seed} {k}"), folder / "run"
            shutil.copytree(folder / "whole", run, symlinks=True)
            done = damage(run, chance)
            verdict = judge(run, reference)
            counts[verdict] += 1
            if verdict == "SILENT":
                print(f"damage {k}: {done}")
            if options.resume and k % options.resume == 0 and "config.yaml" not in done.split("/")[0]:
                try:
                    rlx.resume(run, LONGER)
                    resumed["same bits" if last_tensors(run) == longer else "OTHER BITS"] += 1
                except UserError:
                    resumed["refused"] += 1
            for path in folder.glob("run*"):
                path.unlink() if path.is_symlink() else shutil.rmtree(path)
    print(", ".join(f"{n} {verdict}" for verdict, n in sorted(counts.items())))
    print("resumed: " + ", ".join(f"{n} {verdict}" for verdict, n in sorted(resumed.items())))
    sys.exit(1 if counts["SILENT"] or resumed["OTHER BITS"] else 0)


if __name__ == "__main__":
    main()
