"""Learning curves of rlx against Stable-Baselines3 / sb3-contrib: same env, budget, hyperparameters and evaluation.

    python benchmarks/learning_online.py [--cases sac/pendulum ppo/cartpole ...] [--seeds 5] [--jobs 2]
                                         [--peer-python PYTHON] [--table]

SETTINGS below holds the hyperparameters, once for both libraries; no tuned pairs are used. A run is evaluated ten times
on its way, over 10 deterministic episodes from the same seeds in both libraries; what it reached is the mean of the
last two evaluations. Prints the interquartile mean over seeds with a 95 % bootstrap interval; runs and curves go to
docs/benchmarks/learning_online.json and .png, and runs that are there already are not made again. The peers
(pip install stable-baselines3 sb3-contrib 'gymnasium[mujoco]') may live in an environment that --peer-python names.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from side_by_side import OUT, Points, Store, arguments, compare, draw, evaluation_seeds, play, train_rlx

ENVS = {"pendulum": "Pendulum-v1", "cartpole": "CartPole-v1", "hopper": "Hopper-v5"}
EVALUATIONS, EPISODES = 10, 10

PENDULUM = {"steps": 10_000, "hidden": 64, "lr": 1e-3, "batch_size": 256, "learning_starts": 500}
HOPPER = {"steps": 100_000, "hidden": 128, "lr": 3e-4, "batch_size": 128, "learning_starts": 5_000}
NORMALIZED = {"normalize": True, "discount": 0.99, "hidden": 64}
SETTINGS: dict[str, dict[str, Any]] = {
    **{f"{algo}/pendulum": PENDULUM for algo in ("sac", "td3", "ddpg", "tqc", "crossq")},
    "dqn/cartpole": {"steps": 50_000, "hidden": 256, "lr": 2.3e-3, "batch_size": 64, "learning_starts": 1_000},
    "ppo/cartpole": {
        "steps": 50_000, "hidden": 64, "num_envs": 8, "rollout_length": 32, "batch_size": 256, "epochs": 20, "lr": 1e-3,
        "gae_lambda": 0.8, "discount": 0.98,
    },
    "a2c/cartpole": {
        "steps": 100_000, "hidden": 64, "num_envs": 8, "rollout_length": 5, "lr": 7e-4, "gae_lambda": 1.0,
        "discount": 0.99,
    },
    "trpo/cartpole": {
        "steps": 50_000, "hidden": 64, "num_envs": 2, "rollout_length": 512, "batch_size": 512, "epochs": 20,
        "lr": 1e-3, "gae_lambda": 0.98, "discount": 0.99,
    },
    "ppo/pendulum": {
        "steps": 100_000, "hidden": 64, "num_envs": 4, "rollout_length": 1024, "batch_size": 64, "epochs": 10,
        "lr": 1e-3, "gae_lambda": 0.95, "discount": 0.9,
    },
    "a2c/pendulum": {
        "steps": 150_000, "num_envs": 8, "rollout_length": 8, "lr": 7e-4, "gae_lambda": 0.9, **NORMALIZED,
        "discount": 0.9,
    },
    "trpo/pendulum": {
        "steps": 100_000, "hidden": 64, "num_envs": 2, "rollout_length": 1024, "batch_size": 128, "epochs": 15,
        "lr": 1e-3, "gae_lambda": 0.95, "discount": 0.9,
    },
    "ppo/hopper": {
        "steps": 300_000, "num_envs": 4, "rollout_length": 512, "batch_size": 64, "epochs": 10, "lr": 3e-4,
        "gae_lambda": 0.95, **NORMALIZED,
    },
    "a2c/hopper": {
        "steps": 300_000, "num_envs": 8, "rollout_length": 8, "lr": 7e-4, "gae_lambda": 0.9, **NORMALIZED,
    },
    "trpo/hopper": {
        "steps": 300_000, "num_envs": 4, "rollout_length": 512, "batch_size": 128, "epochs": 10, "lr": 1e-3,
        "gae_lambda": 0.95, **NORMALIZED,
    },
    **{f"{algo}/hopper": HOPPER for algo in ("sac", "td3", "tqc")},
}  # fmt: skip

# how the settings are called: ours, Stable-Baselines3's
NAMES = {
    "discount": ("algo.discount", "gamma"),
    "gae_lambda": ("algo.gae_lambda", "gae_lambda"),
    "batch_size": ("algo.batch_size", "batch_size"),
    "rollout_length": ("trainer.rollout_length", "n_steps"),
    "learning_starts": ("trainer.learning_starts", "learning_starts"),
}
EPOCHS = {"ppo": "n_epochs", "trpo": "n_critic_updates"}
DQN = {"every": 256, "updates": 128, "epsilon_end": 0.04, "epsilon_share": 0.16}  # of RL-Zoo; a target update per burst


# -- ours ------------------------------------------------------------------------------------------------------------


def rlx_overrides(algo: str, env: str) -> list[str]:
    s = SETTINGS[f"{algo}/{env}"]
    steps, h = s["steps"], s["hidden"]
    found = [
        f"algo={algo}", f"env={env}", "~algo_env", "schedule=constant", "threads=1", f"algo.hidden=[{h},{h}]",
        f"trainer.max_env_steps={steps}", f"trainer.eval_interval={steps // EVALUATIONS}",
        f"trainer.eval_episodes={EPISODES}", "trainer.checkpoint_interval=0", "logger=jsonl", "~callbacks.progress",
    ]  # fmt: skip
    found += [f"{ours}={s[name]}" for name, (ours, _) in NAMES.items() if name in s]
    rates = {"sac": ("actor", "critic", "alpha"), "tqc": ("actor", "critic", "alpha"), "td3": ("actor", "critic"),
             "crossq": ("actor", "critic", "alpha"), "ddpg": ("actor", "critic")}  # fmt: skip
    found += [f"algo.{part}_lr={s['lr']}" for part in rates.get(algo, ())] or [f"algo.lr={s['lr']}"]
    if "num_envs" in s:
        found += [f"env.num_envs={s['num_envs']}"]
    if "epochs" in s:
        found += [f"algo.epochs={s['epochs']}"]
    if s.get("normalize"):
        found += ["algo.normalize_obs=true", "reward=running_norm"]
    if algo == "trpo":  # sb3-contrib takes the mean of the KL over the dimensions of an action where we take the sum
        n = {"hopper": 3}.get(env, 1)
        found += [f"algo.max_kl={0.01 * n}", f"algo.cg_damping={0.1 * n}"]
    if algo == "tqc":
        found += ["algo.critics=2"]
    if algo == "crossq":
        found += [f"algo.critic_hidden=[{4 * h},{4 * h}]"]
    if algo == "dqn":
        found += [
            f"trainer.train_frequency={DQN['every']}",
            f"trainer.gradient_updates_per_step={DQN['updates'] / DQN['every']}",
            f"algo.target_interval={DQN['updates']}", f"algo.epsilon_end={DQN['epsilon_end']}",
            f"algo.epsilon_steps={int(DQN['epsilon_share'] * steps) - s['learning_starts']}",
        ]  # fmt: skip
    return found


def run_rlx(algo: str, env: str, seed: int) -> Points:
    return train_rlx(rlx_overrides(algo, env), seed)


# -- theirs ----------------------------------------------------------------------------------------------------------


def make_peer(algo: str, env: str, seed: int) -> Any:
    import sb3_contrib
    import stable_baselines3 as sb3
    import torch
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.noise import NormalActionNoise
    from stable_baselines3.common.vec_env import VecNormalize

    torch.set_num_threads(1)
    s = SETTINGS[f"{algo}/{env}"]
    h = s["hidden"]
    arch: Any = {"pi": [h, h], "qf": [4 * h, 4 * h]} if algo == "crossq" else [h, h]
    found: dict[str, Any] = {"learning_rate": s["lr"], "policy_kwargs": {"net_arch": arch}}
    found |= {theirs: s[name] for name, (_, theirs) in NAMES.items() if name in s}
    if "epochs" in s:
        found[EPOCHS[algo]] = s["epochs"]
    envs = make_vec_env(ENVS[env], s.get("num_envs", 1), seed=seed)
    if s.get("normalize"):
        envs = VecNormalize(envs, gamma=s["discount"])
    if algo in ("td3", "ddpg"):
        (n,) = envs.action_space.shape
        found["action_noise"] = NormalActionNoise(np.zeros(n), np.full(n, 0.1))
    if algo == "dqn":
        found |= {
            "train_freq": DQN["every"], "gradient_steps": DQN["updates"], "target_update_interval": 10,
            "exploration_final_eps": DQN["epsilon_end"], "exploration_fraction": DQN["epsilon_share"],
        }  # fmt: skip
    elif "learning_starts" in s:
        found |= {"train_freq": 1, "gradient_steps": 1}
    name = "CrossQ" if algo == "crossq" else algo.upper()
    cls = getattr(sb3, name, None) or getattr(sb3_contrib, name)
    return cls("MlpPolicy", envs, seed=seed, device="cpu", **found)


def evaluate_on_the_way(model: Any, eval_env: Any, steps: int, seed: int) -> Points:
    """Train a model of Stable-Baselines3; its evaluations, where and as ours are."""
    from stable_baselines3.common.callbacks import BaseCallback

    points: Points = []
    every, seeds = steps // EVALUATIONS, evaluation_seeds(seed, EPISODES)
    normalizer = model.get_vec_normalize_env()

    def act(obs: np.ndarray) -> Any:
        return model.predict(obs if normalizer is None else normalizer.normalize_obs(obs), deterministic=True)[0]

    class Evaluate(BaseCallback):
        def _on_step(self) -> bool:
            if every * (len(points) + 1) <= self.num_timesteps < steps:
                points.append([self.num_timesteps, play(act, eval_env, seeds)])
            return True

    model.learn(steps, callback=Evaluate())
    return [*points[: EVALUATIONS - 1], [steps, play(act, eval_env, seeds)]]


def run_sb3(algo: str, env: str, seed: int) -> Points:
    import gymnasium as gym

    steps = SETTINGS[f"{algo}/{env}"]["steps"]
    return evaluate_on_the_way(make_peer(algo, env, seed), gym.make(ENVS[env]), steps, seed)


def main() -> None:
    args = arguments(__doc__, SETTINGS).parse_args()
    if args.work:
        library, case, seed = args.work
        print("RESULT " + json.dumps((run_rlx if library == "rlx" else run_sb3)(*case.split("/"), int(seed))))
        return
    store = Store(OUT / "learning_online.json")
    compare(args, __file__, store, SETTINGS, "sb3")
    draw(store, [case for case in SETTINGS if store.runs(case, "rlx")], OUT / "learning_online.png")


if __name__ == "__main__":
    main()
