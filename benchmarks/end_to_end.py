"""Whole training runs, from the command to its exit, side by side with Stable-Baselines3 and sbx.

    python benchmarks/end_to_end.py [case ...] [--threads 1 2] [--rounds 5] [--scale 1.0] [--contestants native sb3 ...]
                                    [--peer-python PYTHON] [--store FILE] [--table]

A run evaluates, saves checkpoints and logs on its way, as runs do: ours is `python -m rlx ...` with its default
callbacks and loggers (`native` and `python`: native=true and native=false), theirs is a script with EvalCallback,
CheckpointCallback and their logger to the terminal, CSV and TensorBoard. All have the same env, networks, batches,
learning starts, updates per step, env steps, evaluations (as many envs as episodes, so that all step them together) and
checkpoint intervals; checkpoints hold the replay in all of them, since a resume needs it. The numbers of env steps and
of updates are read back, and a difference is an error. Envs are stepped one by one in all of them;
`ppo_cartpole_vector` is what ours does by itself with eight envs, the vector env that Gymnasium has for CartPole.

A run is a process of its own with as many CPUs as it has threads. The contestants take turns within a round, in another
order each time. Start-up ends with the tenth env step, so that whoever looks at the env with a step or two gains
nothing; sbx compiles its updates later, and that is part of its run. Printed for processor time and for the clock: the
median seconds of whole runs and of what comes after start-up, and the median over the rounds of theirs / ours in the
same round with its spread [min, max]; above 1, the first of ours is faster.

Finished runs go into the store at once and are not made again: a long comparison can be stopped and goes on where it
was. `--table` only prints. The other libraries come from PyPI: pip install stable-baselines3 sbx-rl tensorboard, and
gymnasium[mujoco] in the same version as here.
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
STARTED = 10  # env steps that end the start-up
OURS = ("native", "python")
LIBRARIES = {"sb3": "stable_baselines3", "sbx": "sbx"}
CONTESTANTS = (*OURS, *LIBRARIES)
PACKAGES = (
    "torch", "gymnasium", "mujoco", "numpy", "stable-baselines3", "sb3-contrib", "sbx-rl", "jax", "tianshou", "d3rlpy",
)  # fmt: skip


@dataclass
class Case:
    """What all contestants are given."""

    algo: str
    env: str  # the name of our preset
    env_id: str
    env_steps: int
    eval_interval: int
    checkpoint_interval: int
    lr: float
    hidden: tuple[int, int]
    batch_size: int
    discount: float
    eval_episodes: int = 10
    num_envs: int = 1
    learning_starts: int = 1000
    tau: float = 0.005
    train_frequency: int = 1
    gradient_updates: int = 1  # every `train_frequency` env steps
    rollout_length: int = 0  # of PPO, with its epochs
    epochs: int = 0
    vectorization: str = "sync"  # of ours
    log_every: int = 4  # theirs: rollouts, or episodes, between rows; about as often as ours


PENDULUM = {"env": "pendulum", "env_id": "Pendulum-v1", "env_steps": 20_000, "eval_interval": 2000} | {
    "checkpoint_interval": 5000, "lr": 1e-3, "hidden": (64, 64), "batch_size": 128, "discount": 0.98, "tau": 0.01,
    "learning_starts": 500, "log_every": 3,
}  # fmt: skip
PPO = Case(
    "ppo", "cartpole", "CartPole-v1", 100_096, 9984, 19_968, 1e-3, (64, 64), 256, 0.98,
    num_envs=8, learning_starts=0, rollout_length=32, epochs=20, log_every=8,
)  # fmt: skip
CASES = {
    "sac_pendulum": Case(algo="sac", **PENDULUM),
    "sac_hopper": Case(
        "sac", "hopper", "Hopper-v5", 10_000, 1000, 2500, 3e-4, (256, 256), 256, 0.99, log_every=10
    ),
    "td3_pendulum": Case(algo="td3", **PENDULUM),
    "ppo_cartpole": PPO,
    "ppo_cartpole_vector": replace(PPO, vectorization="auto"),
    "dqn_cartpole": Case(  # updates in bursts, as RL Zoo has it
        "dqn", "cartpole", "CartPole-v1", 50_176, 5120, 10_240, 2.3e-3, (256, 256), 64, 0.99,
        learning_starts=1024, train_frequency=256, gradient_updates=128, log_every=10,
    ),
}  # fmt: skip


def scaled(case: Case, scale: float) -> Case:
    """The case with a smaller or larger budget, and as many evaluations and checkpoints."""
    unit = case.num_envs * max(case.train_frequency, case.rollout_length)
    keys = ("env_steps", "eval_interval", "checkpoint_interval")
    steps = {key: max(unit, round(getattr(case, key) * scale / unit) * unit) for key in keys}
    return replace(case, **steps)


# -- one run, in a process of its own ----------------------------------------------------------------------------------


def overrides(case: Case, folder: Path, threads: int, native: bool) -> list[str]:
    """What is typed after `python -m rlx`; tuned pairs are left out, for they are not what the others have."""
    values: dict[str, Any] = {
        "threads": threads,
        "native": str(native).lower(),
        "run_dir": folder,
        "env.vectorization": case.vectorization,
        "trainer.max_env_steps": case.env_steps,
        "trainer.eval_interval": case.eval_interval,
        "trainer.eval_episodes": case.eval_episodes,
        "trainer.checkpoint_interval": case.checkpoint_interval,
        "algo.hidden": list(case.hidden),
        "algo.batch_size": case.batch_size,
        "algo.discount": case.discount,
    }
    if case.algo == "ppo":
        values |= {"env.num_envs": case.num_envs, "trainer.rollout_length": case.rollout_length}
        values |= {"algo.epochs": case.epochs, "algo.lr": case.lr, "algo.gae_lambda": 0.8}
    else:
        values |= {"trainer.learning_starts": case.learning_starts, "trainer.train_frequency": case.train_frequency}
        values |= {"trainer.gradient_updates_per_step": case.gradient_updates / case.train_frequency}
    if case.algo == "dqn":
        values |= {"algo.lr": case.lr, "algo.target_interval": 5, "algo.epsilon_end": 0.04}
        values |= {"algo.epsilon_steps": round(0.16 * case.env_steps)}
    if case.algo in ("sac", "td3"):
        values |= {"algo.tau": case.tau, "algo.actor_lr": case.lr, "algo.critic_lr": case.lr}
    if case.algo == "sac":
        values["algo.alpha_lr"] = case.lr
    text = [f"{key}={value}".replace(" ", "") for key, value in values.items()]
    return [f"algo={case.algo}", f"env={case.env}", "~algo_env", *text]


def run_peer(library: str, case: Case, folder: Path, threads: int) -> None:
    import importlib

    import numpy as np
    import torch
    from stable_baselines3.common.callbacks import CheckpointCallback, EvalCallback
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.logger import configure
    from stable_baselines3.common.noise import NormalActionNoise

    torch.set_num_threads(threads)
    n = case.num_envs
    env = make_vec_env(case.env_id, n, seed=0)
    settings: dict[str, Any] = {
        "learning_rate": case.lr,
        "batch_size": case.batch_size,
        "gamma": case.discount,
        "policy_kwargs": {"net_arch": list(case.hidden)},
    }
    if case.algo == "ppo":
        settings |= {"n_steps": case.rollout_length, "n_epochs": case.epochs, "gae_lambda": 0.8}
    else:
        settings |= {"buffer_size": case.env_steps, "learning_starts": case.learning_starts}
        settings |= {"train_freq": case.train_frequency, "gradient_steps": case.gradient_updates}
    if case.algo == "dqn":
        settings |= {"target_update_interval": 10, "exploration_fraction": 0.16, "exploration_final_eps": 0.04}
    if case.algo in ("sac", "td3"):
        settings["tau"] = case.tau
    if case.algo == "td3":
        size = env.action_space.shape
        settings["action_noise"] = NormalActionNoise(np.zeros(size), 0.1 * np.ones(size))
    model = getattr(importlib.import_module(LIBRARIES[library]), case.algo.upper())(
        "MlpPolicy", env, seed=0, device="cpu", verbose=1, **settings
    )
    model.set_logger(configure(str(folder), ["stdout", "csv", "tensorboard"]))
    watched = make_vec_env(case.env_id, case.eval_episodes, seed=1)
    callbacks = [
        EvalCallback(
            watched,
            n_eval_episodes=case.eval_episodes,
            eval_freq=case.eval_interval // n,
            log_path=str(folder),
            best_model_save_path=str(folder),
        ),
        CheckpointCallback(case.checkpoint_interval // n, str(folder), save_replay_buffer=case.algo != "ppo"),
    ]
    model.learn(case.env_steps, callback=callbacks, log_interval=case.log_every)
    summary = {"env_steps": model.num_timesteps, "updates": model._n_updates}
    (folder / "summary.json").write_text(json.dumps(summary | {"eval_return_mean": callbacks[0].last_mean_reward}))


def watch_first_steps(path: Path) -> None:
    """Write down the clocks at the tenth step of an env, or of a vector of them, then get out of the way."""
    from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
    from gymnasium.wrappers import TimeLimit  # which gymnasium.make wraps all of these envs in

    steps, count = {cls: cls.step for cls in (TimeLimit, CartPoleVectorEnv)}, 0

    def counted(step: Any) -> Any:
        def counting(self: Any, action: Any) -> Any:
            nonlocal count
            count += 1
            if count == STARTED:
                path.write_text(json.dumps({"clock": time.monotonic(), "cpu": time.process_time()}))
                for cls, own in steps.items():
                    cls.step = own
            return step(self, action)

        return counting

    for cls, step in steps.items():
        cls.step = counted(step)


def work(contestant: str, case: Case, threads: int, folder: Path) -> None:
    """A whole run in this process, on as many CPUs as it has threads: the only limit that every library obeys."""
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = str(threads)
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    watch_first_steps(folder / "first.json")
    run_dir = folder / "run"
    if contestant in OURS:
        sys.path[0] = str(HERE.parents[1])
        sys.argv = ["rlx", *overrides(case, run_dir, threads, contestant == "native")]
        runpy.run_module("rlx", run_name="__main__", alter_sys=True)
    else:
        run_dir.mkdir()
        run_peer(contestant, case, run_dir, threads)


# -- in turns ----------------------------------------------------------------------------------------------------------


def measure(contestant: str, name: str, threads: int, args: argparse.Namespace) -> dict[str, Any]:
    """Make one run and say what it took."""
    python = sys.executable if contestant in OURS else args.peer_python
    with tempfile.TemporaryDirectory() as at:
        folder = Path(at)
        command = [python, str(HERE), name, "--work", contestant, "--folder", at, "--threads", str(threads)]
        command += ["--scale", str(args.scale)]
        env = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
        with (folder / "output").open("w") as output:
            start = time.monotonic()
            process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=env)
            _, status, usage = os.wait4(process.pid, 0)
            seconds = time.monotonic() - start
            process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            lines = (folder / "output").read_text().strip().splitlines() or ["no output"]
            raise SystemExit(f"{contestant} failed in {name}: {lines[-1]}")  # what was measured so far is kept
        first = json.loads((folder / "first.json").read_text())
        summary = json.loads((folder / "run" / "summary.json").read_text())
    cpu = usage.ru_utime + usage.ru_stime
    return {
        "clock": {"all": round(seconds, 3), "startup": round(first["clock"] - start, 3)},
        "cpu": {"all": round(cpu, 3), "startup": round(first["cpu"], 3)},
        "env_steps": summary["env_steps"],
        "updates": summary["updates"],
        "eval_return_mean": summary["eval_return_mean"],
    }


def check_equal_work(case: Case, runs: dict[str, dict[str, Any]]) -> None:
    """Refuse to compare runs of different lengths. PPO counts its updates differently in each library."""
    for key in ("env_steps",) if case.algo == "ppo" else ("env_steps", "updates"):
        counts = {name: run[key] for name, run in runs.items()}
        if max(counts.values()) > 1.02 * min(counts.values()):
            raise SystemExit(f"The runs of {case.algo} on {case.env} differ in their {key}: {counts}.")


def versions(python: str) -> dict[str, str]:
    """Of the packages that an interpreter has."""
    code = (
        "import json, sys\nfrom importlib.metadata import PackageNotFoundError, version\nhere = {}\n"
        "for name in sys.argv[1:]:\n    try:\n        here[name] = version(name)\n"
        "    except PackageNotFoundError:\n        pass\nprint(json.dumps(here))"
    )
    return dict(json.loads(subprocess.check_output([python, "-c", code, *PACKAGES], text=True)))


def place(name: str, threads: int) -> str:
    return f"{name}, threads {threads}"


def make_runs(store: Any, args: argparse.Namespace) -> None:
    """The runs that are missing, round by round."""
    if "native" in args.contestants:
        subprocess.run([sys.executable, "-m", "rlx", "build-native"], cwd=HERE.parents[1], check=True)
    there = {"here": versions(sys.executable), "there": versions(args.peer_python)}
    for number in range(args.rounds):
        for threads in args.threads:
            for i, name in enumerate(args.cases):
                case = scaled(CASES[name], args.scale)
                known = store.open(place(name, threads), json.loads(json.dumps(asdict(case) | {"versions": there})))
                shift = (number + i) % len(args.contestants)
                for contestant in (*args.contestants[shift:], *args.contestants[:shift]):
                    if str(number) in known.get(contestant, {}):
                        continue
                    run = measure(contestant, name, threads, args)
                    store.add(place(name, threads), contestant, number, run)
                    said = f"{run['cpu']['all']:.1f} s of processor time, {run['clock']['all']:.1f} s by the clock"
                    print(f"round {number}: {place(name, threads)}: {contestant} {said}", file=sys.stderr, flush=True)
                here = {c: known[c][str(number)] for c in args.contestants if str(number) in known.get(c, {})}
                check_equal_work(case, here)


def spent(run: dict[str, Any], clock: str, part: str) -> float:
    """Seconds of the whole run, of its start-up, or of what comes after it."""
    times = run[clock]
    return float(times["all"] - times["startup"] if part == "after" else times[part])


def ratio(theirs: dict[str, Any], ours: dict[str, Any], clock: str, part: str) -> str:
    """Theirs / ours in the same round: the median, and the spread."""
    values = [spent(theirs[n], clock, part) / spent(ours[n], clock, part) for n in theirs if n in ours]
    return f"{statistics.median(values):.2f}x [{min(values):.2f}, {max(values):.2f}]" if values else "-"


def table(store: Any, args: argparse.Namespace, clock: str) -> str:
    first = args.contestants[0]
    lines = [f"| case | threads | contestant | rounds | start-up, s | whole run, s | / {first} | after start-up, s "
             f"| / {first} |", "|---" * 9 + "|"]  # fmt: skip
    for name in args.cases:
        for threads in args.threads:
            known = store.cases.get(place(name, threads), {})
            for contestant in args.contestants:
                runs = known.get(contestant, {})
                if not runs:
                    continue
                cells = [name, str(threads), contestant, str(len(runs))]
                for part in ("startup", "all", "after"):
                    cells.append(f"{statistics.median(spent(run, clock, part) for run in runs.values()):.2f}")
                    if part != "startup":
                        same = contestant == first or first not in known
                        cells.append("" if same else ratio(runs, known[first], clock, part))
                lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", help=f"of {', '.join(CASES)}; all where none is named")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="of all budgets")
    parser.add_argument("--contestants", nargs="+", choices=CONTESTANTS, default=list(CONTESTANTS))
    parser.add_argument("--peer-python", default=sys.executable, help="interpreter that has the other libraries")
    parser.add_argument("--store", type=Path, default=HERE.parents[1] / "docs" / "benchmarks" / "end_to_end.json")
    parser.add_argument("--table", action="store_true", help="make no runs, only print what the store holds")
    parser.add_argument("--work", choices=CONTESTANTS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    unknown = sorted(set(args.cases) - set(CASES))
    if unknown:
        parser.error(f"there is no case {unknown[0]}; choose of {', '.join(CASES)}")
    if args.work:
        work(args.work, scaled(CASES[args.cases[0]], args.scale), args.threads[0], args.folder)
        return
    from side_by_side import Store  # not in the process of a run, which would wait for it

    args.cases = args.cases or list(CASES)
    store = Store(args.store)
    if not args.table:
        make_runs(store, args)
    for clock, title in (("cpu", "Processor time"), ("clock", "Wall clock")):
        print(f"\n{title}:\n\n{table(store, args, clock)}")


if __name__ == "__main__":
    main()
