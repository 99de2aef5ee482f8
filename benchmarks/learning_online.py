"""Learning curves of rlx against Stable-Baselines3 / sb3-contrib: same env, budget, hyperparameters, seeds, evaluation.

    python benchmarks/learning_online.py [--peer-python PYTHON] [--cases sac/pendulum ppo/cartpole ...] [--seeds 5]

Runs are interleaved, one thread each, as many at a time as --jobs says. Prints a table of the final return (mean of the
last two evaluations of 10 deterministic episodes on the same seeds), IQM over seeds with a 95 % bootstrap interval, and
writes the curves to docs/benchmarks/learning_online.json and .png. --peer-python names an interpreter in which the
peers are installed, if it is not this one.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from statistics_of_runs import interval, iqm

OUT = Path(__file__).parent.parent / "docs" / "benchmarks"
ENVS = {"pendulum": "Pendulum-v1", "cartpole": "CartPole-v1", "hopper": "Hopper-v5"}
STEPS = {
    ("pendulum", "off"): 5_000,
    ("cartpole", "off"): 20_000,
    ("hopper", "off"): 100_000,
    ("pendulum", "on"): 60_000,
    ("cartpole", "on"): 50_000,
    ("hopper", "on"): 300_000,
}
ON_POLICY = ("ppo", "a2c", "trpo")
HIDDEN = {"pendulum": 64, "cartpole": 64, "hopper": 256}
LR = {"pendulum": 1e-3, "cartpole": 1e-3, "hopper": 3e-4}
DEFAULT_CASES = [
    "sac/pendulum", "td3/pendulum", "ddpg/pendulum", "tqc/pendulum", "crossq/pendulum", "dqn/cartpole",
    "ppo/cartpole", "a2c/cartpole", "trpo/cartpole",
]  # fmt: skip


def budget(algo: str, env: str) -> int:
    return STEPS[env, "on" if algo in ON_POLICY else "off"]


# -- ours ------------------------------------------------------------------------------------------------------------


def rlx_overrides(algo: str, env: str) -> list[str]:
    steps, h, lr = budget(algo, env), HIDDEN[env], LR[env]
    common = [f"algo={algo}", f"env={env}", "threads=1", f"algo.hidden=[{h},{h}]", "~callbacks.progress"]
    common += [f"trainer.max_env_steps={steps}", f"trainer.eval_interval={steps // 10}", "logger=jsonl"]
    common += [
        "trainer.checkpoint_interval=0",
        "trainer.eval_episodes=10",
        "~algo_env",
    ]  # no tuned pairs: equal settings
    if algo == "tqc":
        common += ["algo.critics=2"]
    if algo in ("sac", "tqc", "crossq"):
        common += [f"algo.actor_lr={lr}", f"algo.critic_lr={lr}", f"algo.alpha_lr={lr}"]
    if algo in ("td3", "ddpg"):
        common += [f"algo.actor_lr={lr}", f"algo.critic_lr={lr}"]
    if algo == "crossq":
        common += [f"algo.critic_hidden=[{4 * h},{4 * h}]"]
    if algo in ("sac", "td3", "ddpg", "tqc", "crossq"):
        common += ["algo.batch_size=256", "trainer.learning_starts=500", "trainer.gradient_updates_per_step=1"]
    if algo == "dqn":
        common += [f"algo.lr={lr}", "algo.batch_size=64", "trainer.learning_starts=1000", "trainer.train_frequency=4"]
        common += ["trainer.gradient_updates_per_step=1", "algo.target_interval=500", "algo.double=false"]
        common += ["algo.epsilon=1.0", "algo.epsilon_end=0.04", f"algo.epsilon_steps={steps // 6}"]
    return common + {"ppo": PPO, "a2c": A2C, "trpo": TRPO}.get(algo, [])


PPO = ["env.num_envs=8", "trainer.rollout_length=32", "algo.batch_size=256", "algo.epochs=20", "algo.lr=1e-3",
       "algo.gae_lambda=0.8", "algo.discount=0.98", "algo.entropy_coef=0.0", "schedule=constant"]  # fmt: skip
A2C = ["env.num_envs=8", "trainer.rollout_length=5", "schedule=constant"]
TRPO = ["env.num_envs=2", "trainer.rollout_length=512", "schedule=constant"]


def run_rlx(algo: str, env: str, seed: int) -> list[tuple[int, float]]:
    import rlx

    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        rlx.train(*rlx_overrides(algo, env), run_dir=run_dir, seed=seed)
        rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [(r["env_steps"], r["eval/return_mean"]) for r in rows if r["kind"] == "eval"]


# -- theirs ----------------------------------------------------------------------------------------------------------


def make_peer(algo: str, env_id: str, env: str, seed: int):
    import sb3_contrib
    import stable_baselines3 as sb3
    import torch
    from stable_baselines3.common.env_util import make_vec_env

    torch.set_num_threads(1)
    h, lr = HIDDEN[env], LR[env]
    cls = getattr(sb3, algo.upper(), None) or getattr(sb3_contrib, {"crossq": "CrossQ"}.get(algo, algo.upper()))
    common = {"policy": "MlpPolicy", "seed": seed, "device": "cpu"}
    net = {"policy_kwargs": {"net_arch": [h, h]}}
    if algo in ("sac", "td3", "ddpg", "tqc", "crossq"):
        if algo == "crossq":
            net = {"policy_kwargs": {"net_arch": {"pi": [h, h], "qf": [4 * h, 4 * h]}}}
        elif algo != "ddpg" and algo != "td3":
            net["policy_kwargs"]["activation_fn"] = torch.nn.ReLU
        noise = {}
        if algo in ("td3", "ddpg"):
            from stable_baselines3.common.noise import NormalActionNoise

            noise = {"action_noise": NormalActionNoise(np.zeros(1), 0.1 * np.ones(1))}
        every = {"learning_rate": lr, "batch_size": 256, "learning_starts": 500, "train_freq": 1, "gradient_steps": 1}
        return cls(env=make_vec_env(env_id, 1, seed=seed), **common, **net, **noise, **every)
    if algo == "dqn":
        return cls(
            env=make_vec_env(env_id, 1, seed=seed), **common, **net, learning_rate=lr, batch_size=64, train_freq=4,
            gradient_steps=4, learning_starts=1000, target_update_interval=500, exploration_final_eps=0.04,
            exploration_fraction=1 / 6, max_grad_norm=10,
        )  # fmt: skip
    envs = make_vec_env(env_id, {"ppo": 8, "a2c": 8, "trpo": 2}[algo], seed=seed)
    settings = {
        "ppo": {
            "n_steps": 32,
            "batch_size": 256,
            "n_epochs": 20,
            "learning_rate": 1e-3,
            "gae_lambda": 0.8,
            "gamma": 0.98,
        },
        "a2c": {},
        "trpo": {"n_steps": 512},
    }[algo]
    return cls(env=envs, **common, **net, **settings)


def run_sb3(algo: str, env: str, seed: int) -> list[tuple[int, float]]:
    import gymnasium as gym
    from stable_baselines3.common.callbacks import BaseCallback

    points: list[tuple[int, float]] = []
    interval_ = budget(algo, env) // 10
    seeds = [int(s) for s in np.random.SeedSequence([seed, 7]).generate_state(10)]
    eval_env = gym.make(ENVS[env])

    class Evaluate(BaseCallback):
        def _on_step(self) -> bool:
            if self.num_timesteps // interval_ > len(points):
                points.append((self.num_timesteps, self.score()))
            return True

        def score(self) -> float:
            returns = []
            for s in seeds:
                obs, _ = eval_env.reset(seed=s)
                ended, total = False, 0.0
                while not ended:
                    action, _ = self.model.predict(obs, deterministic=True)
                    obs, reward, terminated, truncated, _ = eval_env.step(action)
                    total += float(reward)
                    ended = terminated or truncated
                returns.append(total)
            return float(np.mean(returns))

    callback = Evaluate()
    make_peer(algo, ENVS[env], env, seed).learn(budget(algo, env), callback=callback)
    points.append((budget(algo, env), callback.score()))
    return points


# -- the comparison --------------------------------------------------------------------------------------------------


def work(lib: str, case: str, seed: int) -> None:
    algo, env = case.split("/")
    points = (run_rlx if lib == "rlx" else run_sb3)(algo, env, seed)
    print("RESULT " + json.dumps(points))


def run_one(python: str, lib: str, case: str, seed: int) -> list[list[float]] | None:
    command = [python, __file__, "--work", lib, case, str(seed)]
    done = subprocess.run(command, capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if not lines:
        print(f"{lib} {case} seed {seed} failed: {(done.stderr.strip().splitlines() or ['no output'])[-1]}", flush=True)
        return None
    return json.loads(lines[0].removeprefix("RESULT "))


def final(points: list[list[float]]) -> float:
    return float(np.mean([value for _, value in points[-2:]]))


def draw(curves: dict) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    columns = 3
    rows = -(-len(curves) // columns)
    fig, axes = plt.subplots(rows, columns, figsize=(11, 2.8 * rows), squeeze=False)
    for ax in axes.flat[len(curves) :]:
        ax.set_visible(False)
    for ax, (case, libs) in zip(axes.flat, curves.items(), strict=False):
        for lib, runs in libs.items():
            n = min(len(r) for r in runs)
            values = np.array([[v for _, v in r[:n]] for r in runs])
            steps = [s for s, _ in runs[0][:n]]
            ax.plot(steps, values.mean(0), label=lib)
            ax.fill_between(steps, values.min(0), values.max(0), alpha=0.15)
        ax.set_title(case)
        ax.legend(frameon=False)
    fig.tight_layout()
    fig.savefig(OUT / "learning_online.png", dpi=90)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--peer-python", default=sys.executable)
    parser.add_argument("--cases", nargs="*", default=DEFAULT_CASES)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--work", nargs=3)
    args = parser.parse_args()
    if args.work:
        return work(args.work[0], args.work[1], int(args.work[2]))
    pythons = {"rlx": sys.executable, "sb3": args.peer_python}
    OUT.mkdir(parents=True, exist_ok=True)
    store = OUT / "learning_online.json"
    curves: dict = json.loads(store.read_text()) if store.exists() else {}
    print(f"{'case':18} {'rlx IQM [95 %]':>30} {'sb3 IQM [95 %]':>30}", flush=True)
    for case in args.cases:
        todo = [(lib, seed) for seed in range(args.seeds) for lib in pythons]
        with ThreadPoolExecutor(args.jobs) as pool:
            runs = list(pool.map(lambda job: run_one(pythons[job[0]], job[0], case, job[1]), todo))  # noqa: B023
        curves[case] = {
            lib: [r for (name, _), r in zip(todo, runs, strict=True) if name == lib and r] for lib in pythons
        }
        store.write_text(json.dumps(curves))
        cells = []
        for lib in pythons:
            finals = np.array([final(r) for r in curves[case][lib]])
            low, high = interval(finals) if len(finals) else (np.nan, np.nan)
            cells.append(f"{iqm(finals) if len(finals) else np.nan:9.1f} [{low:8.1f}, {high:8.1f}]")
        print(f"{case:18} {cells[0]:>30} {cells[1]:>30}", flush=True)
    draw(curves)


if __name__ == "__main__":
    main()
