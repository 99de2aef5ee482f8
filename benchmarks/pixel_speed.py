"""Speed of training from pixels, env and all: DQN and PPO on Atari Pong, against Stable-Baselines3 at equal settings.

    python benchmarks/pixel_speed.py [dqn] [ppo] [--peer-python PYTHON] [--rounds 5] [--before CHECKOUT]

Both learn with the network of Mnih et al. (2015) from stacks of four 84 x 84 frames in uint8, with the same batches,
and make the same env steps and gradient steps, on one thread. Every library prepares the frames in its own way: that is
part of what is measured. Each contestant is a process of its own, the contestants take turns, and the clock starts
after the first updates. Printed are the best rates in env steps per second, of processor time and of the clock, and the
median over the rounds of how many times as fast rlx was in the same round, with its spread.

Our PPO has an encoder for the policy and one for the values. `sb3` has two as well (share_features_extractor=False);
`sb3_shared` is its default, one encoder for both, which is half the work. `--before` measures another checkout of rlx
beside this one. Stable-Baselines3 needs opencv-python-headless and ale-py for its frames.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
CONTESTANTS = {"dqn": ("rlx", "sb3"), "ppo": ("rlx", "sb3", "sb3_shared")}
LR, DISCOUNT = 1e-4, 0.99
DQN = {"warm_up": 400, "steps": 2400, "capacity": 4000, "batch_size": 32, "every": 4, "epsilon": 0.1, "target": 250}
PPO = {"warm_up": 1024, "steps": 3072, "envs": 8, "length": 128, "batch_size": 256, "epochs": 4, "entropy": 0.01}


class Clock:
    """Processor and wall time between two moments, with what was done in between."""

    def start(self, env_steps: int, updates: int) -> None:
        self._at = (time.process_time(), time.perf_counter(), env_steps, updates)

    @property
    def started(self) -> bool:
        return hasattr(self, "_at")

    def stop(self, env_steps: int, updates: int) -> dict[str, float]:
        cpu, wall, steps, made = self._at
        return {
            "cpu": time.process_time() - cpu,
            "wall": time.perf_counter() - wall,
            "env_steps": env_steps - steps,
            "gradient_steps": updates - made,
        }


def gradient_steps(case: str, updates: int) -> int:
    """Of so many updates of ours, which are rollouts in PPO."""
    s = PPO
    return updates if case == "dqn" else updates * s["epochs"] * (s["envs"] * s["length"] // s["batch_size"])


def time_rlx(case: str) -> dict[str, float]:
    import rlx
    from rlx import build
    from rlx.callbacks.bus import Callback

    measured: list[dict[str, float]] = []
    warm_up = (DQN if case == "dqn" else PPO)["warm_up"]

    class Timer(Callback):
        order = 1
        clock = Clock()

        def on_iteration(self, trainer: Any) -> None:
            if not self.clock.started and trainer.state.env_steps >= warm_up:
                self.clock.start(trainer.state.env_steps, gradient_steps(case, trainer.state.updates))

        def on_run_end(self, trainer: Any) -> None:
            measured.append(self.clock.stop(trainer.state.env_steps, gradient_steps(case, trainer.state.updates)))

    make_bus = build.make_bus

    def with_timer(*args: Any) -> Any:
        bus = make_bus(*args)
        return type(bus)({**bus.callbacks, "timer": Timer()})

    build.make_bus = with_timer  # type: ignore[assignment]
    if case == "dqn":
        s = DQN
        own = [
            "algo=dqn", "env.num_envs=1", f"algo.batch_size={s['batch_size']}", f"replay.capacity={s['capacity']}",
            f"trainer.learning_starts={s['warm_up'] // 2}", f"trainer.train_frequency={s['every']}",
            f"trainer.gradient_updates_per_step={1 / s['every']}", f"algo.target_interval={s['target']}",
            f"algo.epsilon={s['epsilon']}", f"algo.epsilon_end={s['epsilon']}", "algo.max_grad_norm=10",
        ]  # fmt: skip
    else:
        s = PPO
        own = [
            "algo=ppo", f"env.num_envs={s['envs']}", f"algo.batch_size={s['batch_size']}", f"algo.epochs={s['epochs']}",
            f"trainer.rollout_length={s['length']}", f"algo.entropy_coef={s['entropy']}", "algo.max_grad_norm=0.5",
        ]  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        rlx.train(
            *own, "env=atari", "env.game=Pong", "env.vectorization=sync", "encoder=nature", "algo.hidden=[]",
            f"algo.lr={LR}", f"algo.discount={DISCOUNT}", "reward=sign_clip", "schedule=constant", "threads=1",
            f"trainer.max_env_steps={s['steps']}", "trainer.eval_interval=0", "trainer.checkpoint_interval=0",
            "~callbacks.evaluate", "~callbacks.checkpoint", "~callbacks.progress", run_dir=Path(folder) / "run", seed=0,
        )  # fmt: skip
    return measured[0]


def time_sb3(case: str, shared: bool) -> dict[str, float]:
    import ale_py
    import gymnasium as gym
    import torch
    from stable_baselines3 import DQN as TheirDQN
    from stable_baselines3 import PPO as TheirPPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_atari_env
    from stable_baselines3.common.vec_env import VecFrameStack

    torch.set_num_threads(1)
    gym.register_envs(ale_py)
    s = DQN if case == "dqn" else PPO
    envs = make_atari_env(
        "ALE/Pong-v5", s.get("envs", 1), seed=0,
        env_kwargs={"frameskip": 1, "repeat_action_probability": 0.25},
        wrapper_kwargs={"noop_max": 0, "frame_skip": 4, "terminal_on_life_loss": False},
    )  # fmt: skip
    envs = VecFrameStack(envs, 4)
    model: Any
    if case == "dqn":
        model = TheirDQN(
            "CnnPolicy", envs, LR, s["capacity"], s["warm_up"] // 2, s["batch_size"], 1.0, DISCOUNT, s["every"], 1,
            target_update_interval=s["target"] * s["every"], exploration_initial_eps=s["epsilon"],
            exploration_final_eps=s["epsilon"], max_grad_norm=10, seed=0, device="cpu",
        )  # fmt: skip
    else:
        model = TheirPPO(
            "CnnPolicy", envs, LR, s["length"], s["batch_size"], s["epochs"], DISCOUNT, ent_coef=s["entropy"],
            max_grad_norm=0.5, seed=0, device="cpu", policy_kwargs={"share_features_extractor": shared},
        )  # fmt: skip
    clock = Clock()

    def made() -> int:
        return model._n_updates if case == "dqn" else model._n_updates * (s["envs"] * s["length"] // s["batch_size"])

    class Timer(BaseCallback):
        def _on_rollout_start(self) -> None:  # every `train_freq` steps, or with every rollout, as in ours
            if not clock.started and model.num_timesteps >= s["warm_up"]:
                clock.start(model.num_timesteps, made())

        def _on_step(self) -> bool:
            return True

    model.learn(s["steps"], callback=Timer())
    return clock.stop(model.num_timesteps, made())


def measure(case: str, contestant: str, python: str, checkout: Path) -> dict[str, float]:
    """In a process of its own, on one thread."""
    paths = os.pathsep.join([str(checkout), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONPATH": paths}
    command = [python, __file__, "--work", contestant, case]
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if not lines:
        raise SystemExit(f"{contestant} {case} failed: {(done.stderr.strip().splitlines() or ['no output'])[-1]}")
    return json.loads(lines[-1].removeprefix("RESULT "))


def rates(runs: list[dict[str, float]], kind: str) -> list[float]:
    return [run["env_steps"] / run[kind] for run in runs]


def table(case: str, runs: dict[str, list[dict[str, float]]]) -> str:
    lines = []
    for name, own in runs.items():
        cells = [case, name, f"{own[0]['env_steps']:.0f}", f"{own[0]['gradient_steps']:.0f}"]
        for kind in ("cpu", "wall"):
            ratios = [a / b for a, b in zip(rates(runs["rlx"], kind), rates(own, kind), strict=True)]
            ratio = f"{statistics.median(ratios):.2f}x ({min(ratios):.2f} to {max(ratios):.2f})"
            cells += [f"{max(rates(own, kind)):.0f}", "" if name == "rlx" else ratio]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", help="of dqn, ppo")
    parser.add_argument("--peer-python", default=sys.executable, help="interpreter that has Stable-Baselines3")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--before", type=Path, help="another checkout of rlx")
    parser.add_argument("--work", nargs=2, metavar=("CONTESTANT", "CASE"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        contestant, case = args.work
        ours = contestant in ("rlx", "before")
        print("RESULT", json.dumps(time_rlx(case) if ours else time_sb3(case, contestant == "sb3_shared")))
        return
    unknown = sorted(set(args.cases) - set(CONTESTANTS))
    if unknown:
        parser.error(f"there is no case {unknown[0]}; choose of {', '.join(CONTESTANTS)}")
    print("| case | contestant | env steps | gradient steps | per s of CPU | rlx is faster by | per s of wall | rlx is "
          "faster by |\n|---|---|---|---|---|---|---|---|", flush=True)  # fmt: skip
    for case in args.cases or CONTESTANTS:
        names = [*CONTESTANTS[case], *(["before"] if args.before else [])]
        runs: dict[str, list[dict[str, float]]] = {name: [] for name in names}
        for _ in range(args.rounds):
            for name in names:
                python = args.peer_python if name.startswith("sb3") else sys.executable
                checkout = args.before.resolve() if name == "before" else ROOT
                runs[name].append(measure(case, name, python, checkout))
        print(table(case, runs), flush=True)


if __name__ == "__main__":
    main()
