"""Offline learning of rlx against d3rlpy: same data, updates, batch, networks, hyperparameters and evaluation.

    python benchmarks/learning_offline.py --data DATA_FOLDER [--cases td3_bc/hopper ...] [--seeds 5] [--jobs 2]
                                          [--peer-python PYTHON] [--table]

DATA_FOLDER holds the files named in SETS. Both libraries standardise observations and scale actions to [-1, 1]. An
evaluation is the mean return of 10 deterministic episodes, from the same seeds in both. On the small sets there is one
after the last update; on the broad `mixed_*` ones, where returns swing from checkpoint to checkpoint, there are four on
the way, and what a run reached is the mean of the last two. Prints the interquartile mean over seeds with a 95 %
bootstrap interval; runs go to docs/benchmarks/learning_offline.json, and those that are there already are not made
again. The peer (pip install d3rlpy, then 'gymnasium[mujoco]') may live in an environment that --peer-python names.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from side_by_side import OUT, Points, Store, arguments, compare, evaluation_seeds, play, train_rlx

# our preset, the file
SETS = {
    "pendulum": ("pendulum", "pendulum-rllib-sac-medium.npz"),
    "hopper": ("hopper", "gen-hopper-v5-medium.npz"),
    "halfcheetah": ("halfcheetah", "gen-halfcheetah-v5-medium.npz"),
    "mixed_hopper": ("hopper", "mixed-hopper-v5.npz"),
    "mixed_halfcheetah": ("halfcheetah", "mixed-halfcheetah-v5.npz"),
}
ENVS = {"pendulum": "Pendulum-v1", "hopper": "Hopper-v5", "halfcheetah": "HalfCheetah-v5"}
SMALL: dict[str, Any] = {"updates": 3_000, "hidden": 64, "batch_size": 128, "lr": 1e-3}
BROAD: dict[str, Any] = {"updates": 5_000, "hidden": 256, "batch_size": 256, "lr": 3e-4, "evaluations": 4}
SLOW = {"cql": 2_000, "cal_ql": 2_000}  # updates on the broad sets of those that take ten times as long
# hyperparameters by our names, then by d3rlpy's; everything else is the default of both
ALGOS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "bc": ("BC", {}, {}),
    "td3_bc": ("TD3PlusBC", {"alpha": 2.5}, {"alpha": 2.5}),
    "awac": ("AWAC", {"temperature": 1.0}, {"lam": 1.0}),
    "iql": ("IQL", {"expectile": 0.7, "beta": 3.0}, {"expectile": 0.7, "weight_temp": 3.0}),
    # d3rlpy turns its Lagrange multiplier off with an alpha_learning_rate of 0
    "cql": ("CQL", {"weight": 5.0, "bc_updates": 0}, {"conservative_weight": 5.0, "alpha_learning_rate": 0.0}),
    "cal_ql": ("CalQL", {"weight": 5.0, "bc_updates": 0}, {"conservative_weight": 5.0, "alpha_learning_rate": 0.0}),
    "bcq": (
        "BCQ",
        {"phi": 0.05, "vae_hidden": [64, 64], "candidates": 10, "eval_candidates": 10},
        {"action_flexibility": 0.05, "n_action_samples": 10},
    ),
    "bear": (
        "BEAR",
        {"sigma": 20.0, "epsilon": 0.05, "vae_hidden": [64, 64], "warmup_updates": 500, "mmd_samples": 4,
         "eval_candidates": 100},
        {"mmd_sigma": 20.0, "alpha_threshold": 0.05, "warmup_steps": 500, "n_mmd_action_samples": 4,
         "n_action_samples": 100},
    ),
}  # fmt: skip
SETTINGS = {
    f"{algo}/{name}": {
        **(BROAD | ({"updates": SLOW[algo]} if algo in SLOW else {}) if name.startswith("mixed") else SMALL),
        **ALGOS[algo][1],
    }
    for name in SETS
    for algo in ALGOS
}


def run_rlx(algo: str, name: str, path: Path, seed: int) -> Points:
    from rlx.config import schemas

    s = SETTINGS[f"{algo}/{name}"]
    fields = schemas()[f"algo/{algo}"].__dataclass_fields__
    rates = [f for f in fields if f == "lr" or (f.endswith("_lr") and f != "multiplier_lr")]
    own = {**dict.fromkeys(rates, s["lr"]), **ALGOS[algo][1], "batch_size": s["batch_size"]}
    overrides = [
        f"algo={algo}", f"env={SETS[name][0]}", "~algo_env", "dataset=npz", f"dataset.path={path}", "threads=1",
        "logger=jsonl", f"trainer.max_updates={s['updates']}", "trainer.checkpoint_interval=0",
        "trainer.eval_episodes=10", f"trainer.eval_interval={s['updates'] // s.get('evaluations', 1)}",
        "~callbacks.progress", f"algo.hidden=[{s['hidden']},{s['hidden']}]", "algo.normalize_obs=true",
        *(f"algo.{key}={value}" for key, value in own.items()),
    ]  # fmt: skip
    return train_rlx(overrides, seed)


def run_d3rlpy(algo: str, name: str, path: Path, seed: int) -> Points:
    import d3rlpy
    import gymnasium as gym
    import torch
    from d3rlpy.models.encoders import VectorEncoderFactory
    from d3rlpy.preprocessing import MinMaxActionScaler, StandardObservationScaler

    torch.set_num_threads(1)
    d3rlpy.seed(seed)
    s = SETTINGS[f"{algo}/{name}"]
    env = gym.make(ENVS[SETS[name][0]])
    low, high = env.action_space.low, env.action_space.high
    data = np.load(path)
    dataset = d3rlpy.dataset.MDPDataset(
        data["observations"], np.clip(data["actions"], low, high), data["rewards"], data["terminations"],
        timeouts=data["truncations"],
    )  # fmt: skip
    cls = getattr(d3rlpy.algos, f"{ALGOS[algo][0]}Config")
    encoder = VectorEncoderFactory([s["hidden"]] * 2)
    values = {f: encoder for f in cls.__dataclass_fields__ if f.endswith("encoder_factory")}
    rates = [f for f in cls.__dataclass_fields__ if f.endswith("learning_rate") and f != "alpha_learning_rate"]
    learner = cls(
        batch_size=s["batch_size"], observation_scaler=StandardObservationScaler(),
        action_scaler=MinMaxActionScaler(low, high), **values, **dict.fromkeys(rates, s["lr"]), **ALGOS[algo][2],
    ).create()  # fmt: skip
    every, seeds = s["updates"] // s.get("evaluations", 1), evaluation_seeds(seed)
    epochs = learner.fitter(
        dataset, n_steps=s["updates"], n_steps_per_epoch=every, show_progress=False,
        logger_adapter=d3rlpy.logging.NoopAdapterFactory(),
    )  # fmt: skip
    return [[i * every, play(lambda obs: learner.predict(obs[None])[0], env, seeds)] for i, _ in epochs]


def main() -> None:
    parser = arguments(__doc__, SETTINGS)
    parser.add_argument("--data", type=Path, required=True)
    args = parser.parse_args()
    if args.work:
        library, case, seed = args.work
        algo, name = case.split("/")
        run = run_rlx if library == "rlx" else run_d3rlpy
        print("RESULT " + json.dumps(run(algo, name, args.data / SETS[name][1], int(seed))))
        return
    for name, (_, file) in SETS.items():
        data = np.load(args.data / file)
        ends = (data["terminations"] + data["truncations"]) > 0
        print(f"{name}: the data's mean return is {data['rewards'].sum() / ends.sum():.1f}")
    store = Store(OUT / "learning_offline.json")
    compare(args, __file__, store, SETTINGS, "d3rlpy", ["--data", str(args.data.resolve())])


if __name__ == "__main__":
    main()
