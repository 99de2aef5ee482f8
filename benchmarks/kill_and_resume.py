"""Kill runs at random moments with SIGKILL, resume them, and count how many end with the bits of the undisturbed run.

    python benchmarks/kill_and_resume.py --kills 200 --seed 0 --out kills.jsonl

For each algorithm one run is left alone. The others are killed, the algorithms in turn, each at a moment drawn from the
whole of its life, and resumed to the end. Two runs are the same if every tensor of the last and the best checkpoint
(networks, targets, optimizers, random states, env journal, replay), every counter and every row of metrics.jsonl, wall
times aside, are the same. With --out every kill is a line of a file, and the same command goes on where it was ended.

Every run is a process of its own that does what `python -m rlx` does. It is forked from one that has imported rlx,
which saves most of the time; --start anew starts a new interpreter each time. --native has all of them compute by
native nodes; without it, none does.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from rlx.checkpoint import CheckpointData, CheckpointStore, read_folder
from rlx.cli import main as rlx

COMMON = ("threads=1", "logger=jsonl", "~callbacks.progress", "~algo_env", "algo.hidden=[16,16]", "algo.batch_size=16",
          "trainer.eval_episodes=2", "env.max_episode_steps=50")  # fmt: skip
INTERVALS = ("trainer.checkpoint_interval={0}", "trainer.eval_interval={0}", "trainer.log_interval=40")


def every(steps: int) -> tuple[str, ...]:
    return tuple(interval.format(steps) for interval in INTERVALS)


REGIMES = {
    "off_policy": ("env.num_envs=2", "trainer.max_env_steps=600", "trainer.learning_starts=100", *every(110)),
    "on_policy": ("env.num_envs=2", "trainer.max_env_steps=2400", "trainer.rollout_length=64", *every(350)),
    "offline": ("dataset=random", "dataset.size=1000", "trainer.max_updates=700", *every(120)),
    "offline_to_online": ("dataset=random", "dataset.size=1000", "trainer.pretrain_updates=150",
                          "trainer.max_env_steps=350", "trainer.learning_starts=50", *every(110)),
}  # fmt: skip
ALGOS = {
    **dict.fromkeys(("sac", "td3", "ddpg", "redq", "tqc", "crossq"), ("off_policy", "env=pendulum")),
    **dict.fromkeys(("dqn", "c51", "qr_dqn", "rainbow", "discrete_sac"), ("off_policy", "env=cartpole")),
    "drq_v2": ("off_policy", "env=pixel_goal"),
    "her": ("off_policy", "env=point_goal"),
    **dict.fromkeys(("ppo", "a2c", "trpo", "pqn"), ("on_policy", "env=cartpole")),
    "ppo_lstm": ("on_policy", "env=recall"),
    **dict.fromkeys(("td3_bc", "bc", "bcq", "bear", "cql", "iql", "dt"), ("offline", "env=pendulum")),
    **dict.fromkeys(("discrete_cql", "discrete_bcq", "discrete_iql"), ("offline", "env=cartpole")),
    **dict.fromkeys(("rlpd", "cal_ql", "awac"), ("offline_to_online", "env=pendulum")),
}


SMALLER = {  # networks that algo.hidden does not reach, and many updates per step
    "crossq": ("algo.critic_hidden=[32,32]",), "redq": ("trainer.gradient_updates_per_step=2",),
    "drq_v2": ("env.kwargs.continuous=true", "encoder=small", "encoder.dim=8", "augment.pad=1",
               "trainer.train_frequency=4", "trainer.gradient_updates_per_step=0.25"),
    "ppo_lstm": ("algo.lstm_hidden=[8]",), "dt": ("algo.width=16", "algo.layers=1", "algo.context=5"),
}  # fmt: skip


def overrides_of(algo: str, native: bool) -> list[str]:
    regime, env = ALGOS[algo]
    nodes = f"native={str(native).lower()}"  # a build in the background that ends in between would change the bits
    return [f"algo={algo}", env, f"trainer={regime}", nodes, *COMMON, *REGIMES[regime], *SMALLER.get(algo, ())]


# -- processes -------------------------------------------------------------------------------------------------------


def forked(arguments: list[str], log: Path) -> int:
    """The pid of a process that does what `python -m rlx` does with these arguments."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(fd, 1)
        os.dup2(fd, 2)
        code = rlx(arguments)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def anew(arguments: list[str], log: Path) -> int:
    with log.open("ab") as file:
        return subprocess.Popen([sys.executable, "-m", "rlx", *arguments], stdout=file, stderr=file).pid


def finish(pid: int, log: Path) -> None:
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code != 0:
        sys.exit(f"A run failed with code {code}:\n{log.read_text()}")


def begin(start: Callable[[list[str], Path], int], overrides: list[str], folder: Path) -> int:
    """Start a run and wait until its folder appears; its pid."""
    log = folder.with_suffix(".log")
    pid = start([*overrides, f"run_dir={folder}"], log)
    while not (folder / "config.yaml").exists():
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            sys.exit(f"A run failed with status {status}:\n{log.read_text()}")
        time.sleep(0.001)
    return pid


def kill(start: Callable[[list[str], Path], int], overrides: list[str], folder: Path, delay: float) -> bool:
    """Start a run and kill it `delay` seconds after its folder appeared; False if it was over before."""
    log, pid = folder.with_suffix(".log"), begin(start, overrides, folder)
    time.sleep(delay)
    os.kill(pid, signal.SIGKILL)  # not yet waited for, hence still its pid
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code not in (0, -signal.SIGKILL):
        sys.exit(f"A run failed with code {code}:\n{log.read_text()}")
    return code == -signal.SIGKILL


# -- what has to be the same -----------------------------------------------------------------------------------------


def content(folder: Path) -> dict[str, str]:
    """A hash of each part of a run that has to be the same."""
    store = CheckpointStore(folder / "checkpoints")
    last, best = store.latest(), read_folder(folder / "checkpoints" / "best")
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for row in rows:
        del row["wall_time"]
    del last.state["callbacks"]["jsonl"]  # the length of a file that has wall times in it
    state = {k: {**v, "wall_time": 0} if k == "trainer" else v for k, v in last.state.items()}
    parts: dict[str, Any] = {
        "metrics": rows,
        "state": state,
        "replay": [s["sha256"] for s in last.segments],
        "last": tensors(last),
        "best": [best.path.resolve().name if best.path else "", tensors(best)],
    }
    return {name: hashlib.sha256(json.dumps(part).encode()).hexdigest() for name, part in parts.items()}


def tensors(checkpoint: CheckpointData) -> dict[str, str]:
    found = {f"{group}.{k}": v for group, values in checkpoint.tensors.items() for k, v in sorted(values.items())}
    return {k: hashlib.sha256(as_bytes(v)).hexdigest() for k, v in found.items()}


def as_bytes(tensor: torch.Tensor) -> bytes:
    if not tensor.numel():
        return repr((tensor.dtype, tuple(tensor.shape))).encode()
    return tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()


# -- the measurement -------------------------------------------------------------------------------------------------


def reference(start: Callable[[list[str], Path], int], algo: str, native: bool, folder: Path) -> dict[str, Any]:
    """The undisturbed run: what it came to, and how long it took."""
    run, overrides = folder / "whole", overrides_of(algo, native)
    pid = begin(start, overrides, run)
    began = time.monotonic()
    finish(pid, run.with_suffix(".log"))
    seconds = time.monotonic() - began
    return {"algo": algo, "overrides": overrides, "seconds": seconds, "content": content(run)}


def measure(start: Callable[[list[str], Path], int], whole: dict[str, Any], k: int, share: float, folder: Path) -> dict:
    """Kill a run at a share of its life and resume it; which parts of it are not those of the undisturbed run."""
    algo, overrides, run, attempt = whole["algo"], whole["overrides"], folder / str(k), 0
    while not kill(start, overrides, run, share * whole["seconds"] * 0.9**attempt):  # it was over: somewhat earlier
        run, attempt = folder / f"{k}.{attempt}", attempt + 1
    early = not CheckpointStore(run / "checkpoints").steps()
    log = run.with_suffix(".log")
    finish(start(["resume", str(run)], log), log)
    ours = content(run)
    wrong = [part for part, digest in whole["content"].items() if ours[part] != digest]
    return {"kill": k, "algo": algo, "before_first_checkpoint": early, "wrong": wrong}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=42, help="in all; the algorithms take turns")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--algos", nargs="+", choices=list(ALGOS), default=list(ALGOS))
    parser.add_argument("--out", type=Path, help="a file of results, which the next call goes on with")
    parser.add_argument("--start", choices=["forked", "anew"], default="forked", help="how processes begin")
    parser.add_argument("--native", action="store_true", help="compute by native nodes")
    options = parser.parse_args()
    torch.set_num_threads(1)
    start = {"forked": forked, "anew": anew}[options.start]
    lines = options.out.read_text().splitlines() if options.out and options.out.exists() else []
    records = [json.loads(line) for line in lines]
    wholes = {r["algo"]: r for r in records if "content" in r}
    kills = {r["kill"]: r for r in records if "kill" in r}
    for algo, whole in wholes.items():
        if algo in ALGOS and whole["overrides"] != overrides_of(algo, options.native):
            sys.exit(f"{options.out} has other runs of {algo}; use another --out.")

    def keep(record: dict[str, Any]) -> dict[str, Any]:
        if options.out:
            with options.out.open("a") as file:
                file.write(json.dumps(record) + "\n")
        return record

    with tempfile.TemporaryDirectory() as folder:
        for k in range(options.kills):
            algo = options.algos[k % len(options.algos)]
            if k in kills:
                continue
            place = Path(folder) / algo
            place.mkdir(exist_ok=True)
            if algo not in wholes:
                wholes[algo] = keep(reference(start, algo, options.native, place))
            share = random.Random(f"{options.seed} {k}").random()
            kills[k] = keep(measure(start, wholes[algo], k, share, place))
            wrong = f"differs in {', '.join(kills[k]['wrong'])}" if kills[k]["wrong"] else "bit-identical"
            print(f"kill {k + 1:>4} {algo:<14} {wrong}", flush=True)
    made, good = (Counter(r["algo"] for r in kills.values() if not (same and r["wrong"])) for same in (False, True))
    early = Counter(r["algo"] for r in kills.values() if r["before_first_checkpoint"])
    print(f"\n{'algorithm':<16}{'kills':>8}{'before the first checkpoint':>30}{'bit-identical':>16}")
    for algo in made:
        print(f"{algo:<16}{made[algo]:>8}{early[algo]:>30}{good[algo]:>16}")
    print(f"{good.total()} of {made.total()} bit-identical")
    sys.exit(0 if good == made else 1)


if __name__ == "__main__":
    main()
