"""Env steps per second of training PPO on CartPole with 8 envs, at equal settings, against SB3 and sbx.

    python benchmarks/throughput.py [--peer-python PYTHON] [--rounds 3] [--threads 1]

Each round trains every library once for the same number of env steps in a fresh process; the time is that of the
training alone (imports, compilation and the first rollouts come before the clock starts). Best of rounds; the ratios
are what counts.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

STEPS, WARM_UP = 40_000, 4_096
SETTINGS = {"n_envs": 8, "n_steps": 128, "batch_size": 256, "n_epochs": 4, "lr": 3e-4, "hidden": 64}


def time_rlx() -> float:
    import rlx
    from rlx.callbacks.bus import Callback

    class Clock(Callback):
        """Starts after the warm-up."""

        order = 1
        start = steps = 0.0

        def on_iteration(self, trainer):
            if not self.start and trainer.state.env_steps >= WARM_UP:
                self.start, self.steps = time.perf_counter(), trainer.state.env_steps

        def on_run_end(self, trainer):
            rate.append((trainer.state.env_steps - self.steps) / (time.perf_counter() - self.start))

    rate: list[float] = []
    from rlx import build

    make_bus = build.make_bus

    def with_clock(*args):
        bus = make_bus(*args)
        return type(bus)({**bus.callbacks, "clock": Clock()})

    build.make_bus = with_clock
    s = SETTINGS
    with tempfile.TemporaryDirectory() as folder:
        rlx.train(
            "algo=ppo", "env=cartpole", f"env.num_envs={s['n_envs']}", f"trainer.rollout_length={s['n_steps']}",
            f"algo.batch_size={s['batch_size']}", f"algo.epochs={s['n_epochs']}", f"algo.lr={s['lr']}",
            f"algo.hidden=[{s['hidden']},{s['hidden']}]", f"trainer.max_env_steps={STEPS}", "trainer.eval_interval=0",
            "trainer.checkpoint_interval=0", "schedule=constant", "~callbacks.evaluate", "~callbacks.checkpoint",
            "~callbacks.progress", f"threads={torch_threads()}", run_dir=Path(folder) / "run", seed=0,
        )  # fmt: skip
    return rate[0]


def time_peer(lib: str) -> float:
    import gymnasium as gym
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env

    if lib == "sbx":
        import flax.linen as nn
        from sbx import PPO
    else:
        import torch.nn as nn
        from stable_baselines3 import PPO
    del gym

    class Clock(BaseCallback):
        start = steps = 0.0

        def _on_rollout_start(self) -> None:
            if not self.start and self.num_timesteps >= WARM_UP:
                self.start, self.steps = time.perf_counter(), self.num_timesteps

        def _on_step(self) -> bool:
            return True

    s, clock = SETTINGS, Clock()
    activation = nn.tanh if lib == "sbx" else nn.Tanh
    model = PPO(
        "MlpPolicy", make_vec_env("CartPole-v1", s["n_envs"], seed=0), n_steps=s["n_steps"], batch_size=s["batch_size"],
        n_epochs=s["n_epochs"], learning_rate=s["lr"], seed=0, device="cpu" if lib == "sb3" else "auto",
        policy_kwargs={"net_arch": [s["hidden"]] * 2, "activation_fn": activation},
    )  # fmt: skip
    model.learn(STEPS, callback=clock)
    return (model.num_timesteps - clock.steps) / (time.perf_counter() - clock.start)


def torch_threads() -> int:
    import torch

    return torch.get_num_threads()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--peer-python", default=sys.executable)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--work")
    args = parser.parse_args()
    if args.work:
        print("RESULT", time_rlx() if args.work == "rlx" else time_peer(args.work))
        return
    pythons = {"rlx": sys.executable, "sb3": args.peer_python, "sbx": args.peer_python}
    found: dict[str, list[float]] = {lib: [] for lib in pythons}
    for _ in range(args.rounds):
        for lib, python in pythons.items():
            environment = {"OMP_NUM_THREADS": str(args.threads), "PATH": "/usr/bin:/bin"}
            done = subprocess.run([python, __file__, "--work", lib], capture_output=True, text=True, env=environment)
            lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT")]
            if lines:
                found[lib].append(float(lines[0].split()[1]))
            else:
                print(f"{lib} failed: {(done.stderr.strip().splitlines() or ['no output'])[-1]}")
    print(f"{'library':8} {'env steps/s (best)':>20} {'worst':>10} {'rlx is faster by':>18}")
    for lib, rates in found.items():
        if rates:
            ratio = max(found["rlx"]) / max(rates) if found["rlx"] else float("nan")
            print(f"{lib:8} {max(rates):20,.0f} {min(rates):10,.0f} {ratio:17.2f}x")


if __name__ == "__main__":
    main()
