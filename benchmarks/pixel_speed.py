"""Speed of training from pixels, env and all: DQN and PPO on Atari Pong, against other libraries at equal settings.

    python benchmarks/pixel_speed.py [dqn] [ppo] [ppo_two] [--rounds 5] [--peer-python PYTHON]
                                     [--cleanrl CHECKOUT --cleanrl-python PYTHON] [--before CHECKOUT]

Both learn with the network of Mnih et al. (2015) from stacks of four 84 x 84 frames in uint8, with the same batches,
and make the same env steps and gradient steps, on one thread. Every library prepares the frames in its own way: that is
part of what is measured. Each contestant is a process of its own, the contestants take turns, and the clock starts
after the first updates. Printed are the best rates in env steps per second, of processor time and of the clock, and the
median over the rounds of how many times as fast rlx was in the same round, with its spread.

Policy and values of PPO share an encoder, which is the default of all three; `ppo_two` gives them one each, which is
twice the work. `--before` measures another checkout of rlx beside this one. Stable-Baselines3 needs
opencv-python-headless and ale-py for its frames. Of CleanRL the scripts dqn_atari.py and ppo_atari.py run as they are,
in their own env: no sticky actions, up to 30 no-ops first, and DQN's gradients are not clipped. They need gymnasium
0.29 with ale-py 0.10, opencv-python-headless, tensorboard, tyro and torch.
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
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
CASES = ("dqn", "ppo", "ppo_two")
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
            f"algo.shared_encoder={str(case == 'ppo').lower()}",
        ]  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        rlx.train(
            *own, "env=atari", "env.game=Pong", "env.vectorization=sync", "encoder=nature", "algo.hidden=[]",
            f"algo.lr={LR}", f"algo.discount={DISCOUNT}", "reward=sign_clip", "schedule=constant", "threads=1",
            f"trainer.max_env_steps={s['steps']}", "trainer.eval_interval=0", "trainer.checkpoint_interval=0",
            "~callbacks.evaluate", "~callbacks.checkpoint", "~callbacks.progress", run_dir=Path(folder) / "run", seed=0,
        )  # fmt: skip
    return measured[0]


def time_sb3(case: str) -> dict[str, float]:
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
            max_grad_norm=0.5, seed=0, device="cpu", policy_kwargs={"share_features_extractor": case == "ppo"},
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


def time_cleanrl(case: str) -> dict[str, float]:
    import ale_py  # noqa: F401, which registers the games
    import gymnasium as gym
    import torch

    torch.set_num_threads(1)
    s: dict[str, Any] = DQN if case == "dqn" else PPO
    own = {"env-id": "PongNoFrameskip-v4", "total-timesteps": s["steps"], "learning-rate": LR, "gamma": DISCOUNT}
    if case == "dqn":
        own |= {
            "buffer-size": s["capacity"], "learning-starts": s["warm_up"] // 2, "train-frequency": s["every"],
            "batch-size": s["batch_size"], "start-e": s["epsilon"], "end-e": s["epsilon"],
            "target-network-frequency": s["target"] * s["every"],
        }  # fmt: skip
    else:
        own |= {
            "num-envs": s["envs"], "num-steps": s["length"], "update-epochs": s["epochs"], "ent-coef": s["entropy"],
            "num-minibatches": s["envs"] * s["length"] // s["batch_size"],
        }  # fmt: skip
    clock, made = Clock(), {"env_steps": 0, "updates": 0}
    step_envs, step_optimizer = gym.vector.SyncVectorEnv.step, torch.optim.Adam.step

    def env_step(self: Any, actions: Any) -> Any:
        if not clock.started and made["env_steps"] >= s["warm_up"]:
            clock.start(**made)
        made["env_steps"] += self.num_envs
        return step_envs(self, actions)

    def gradient_step(self: Any, *args: Any) -> Any:
        made["updates"] += 1
        return step_optimizer(self, *args)

    gym.vector.SyncVectorEnv.step, torch.optim.Adam.step = env_step, gradient_step
    script = f"{case}_atari.py"
    sys.argv = [script, "--no-cuda", *(str(word) for key, value in own.items() for word in (f"--{key}", value))]
    scripts = next(path for path in map(Path, sys.path) if (path / "cleanrl" / script).is_file())
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # they write into ./runs
        runpy.run_path(str(scripts / "cleanrl" / script), run_name="__main__")
        os.chdir(scripts)
    return clock.stop(**made)


TIMED = {"rlx": time_rlx, "before": time_rlx, "sb3": time_sb3, "cleanrl": time_cleanrl}


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
    parser.add_argument("cases", nargs="*", help=f"of {', '.join(CASES)}; all where none is named")
    parser.add_argument("--peer-python", default=sys.executable, help="interpreter that has Stable-Baselines3")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cleanrl", type=Path, help="a checkout of CleanRL")
    parser.add_argument("--cleanrl-python", default=sys.executable, help="interpreter that has what its scripts need")
    parser.add_argument("--before", type=Path, help="another checkout of rlx")
    parser.add_argument("--work", nargs=2, metavar=("CONTESTANT", "CASE"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        contestant, case = args.work
        print("RESULT", json.dumps(TIMED[contestant](case)))
        return
    unknown = sorted(set(args.cases) - set(CASES))
    if unknown:
        parser.error(f"there is no case {unknown[0]}; choose of {', '.join(CASES)}")
    print("| case | contestant | env steps | gradient steps | per s of CPU | rlx is faster by | per s of wall | rlx is "
          "faster by |\n|---|---|---|---|---|---|---|---|", flush=True)  # fmt: skip
    pythons = {"sb3": args.peer_python, "cleanrl": args.cleanrl_python}
    checkouts = {"rlx": ROOT, "sb3": ROOT, "cleanrl": args.cleanrl, "before": args.before}
    for case in args.cases or CASES:
        names = [name for name, checkout in checkouts.items() if checkout]
        if case == "ppo_two" and args.cleanrl:
            names.remove("cleanrl")  # its PPO shares the encoder
        runs: dict[str, list[dict[str, float]]] = {name: [] for name in names}
        for _ in range(args.rounds):
            for name in names:
                python = pythons.get(name, sys.executable)
                runs[name].append(measure(case, name, python, checkouts[name].resolve()))
        print(table(case, runs), flush=True)


if __name__ == "__main__":
    main()
