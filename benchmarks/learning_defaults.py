"""Plain defaults of rlx against plain defaults of Stable-Baselines3 / sb3-contrib, on envs that nobody tuned for.

    python benchmarks/learning_defaults.py [--cases ppo/InvertedPendulum-v5 ...] [--seeds 3] [--jobs 1]
                                           [--peer-python PYTHON] [--table]

A case is an algorithm and an env id; only the budget is given. The question is not which library learns faster at
equal settings (learning_online.py asks that) but what somebody gets who types an algorithm and an env and nothing else.
A run is evaluated ten times on its way, over 10 deterministic episodes from the same seeds in both libraries; what it
reached is the mean of the last two evaluations. Runs go to docs/benchmarks/learning_defaults.json, and those that are
there already are not made again. LunarLander needs the extra box2d in both environments.
"""

from __future__ import annotations

import json
from typing import Any

from learning_online import EPISODES, EVALUATIONS, evaluate_on_the_way
from side_by_side import OUT, Points, Store, arguments, compare, train_rlx

BUDGETS: dict[str, int] = {
    **{f"{algo}/InvertedPendulum-v5": 25_000 for algo in ("ppo", "a2c", "trpo")},
    **{f"{algo}/InvertedDoublePendulum-v5": 50_000 for algo in ("ppo", "trpo")},
    **{f"{algo}/Acrobot-v1": 50_000 for algo in ("ppo", "a2c", "dqn")},
    **{f"{algo}/LunarLander-v3": 100_000 for algo in ("ppo", "dqn")},
    **{f"{algo}/MountainCarContinuous-v0": 20_000 for algo in ("ppo", "trpo", "td3")},
    **{f"{algo}/Reacher-v5": 50_000 for algo in ("ppo", "trpo")},
    "sac/Reacher-v5": 10_000,
}
SETTINGS: dict[str, dict[str, Any]] = {case: {"steps": steps} for case, steps in BUDGETS.items()}


def run_rlx(algo: str, env_id: str, seed: int) -> Points:
    steps = BUDGETS[f"{algo}/{env_id}"]
    overrides = [
        f"algo={algo}", f"env.id={env_id}", "threads=1", f"trainer.max_env_steps={steps}",
        f"trainer.eval_interval={steps // EVALUATIONS}", f"trainer.eval_episodes={EPISODES}",
        "trainer.checkpoint_interval=0", "logger=jsonl", "~callbacks.progress",
    ]  # fmt: skip
    return train_rlx(overrides, seed)


def run_sb3(algo: str, env_id: str, seed: int) -> Points:
    import gymnasium as gym
    import sb3_contrib
    import stable_baselines3 as sb3
    import torch

    torch.set_num_threads(1)
    cls = getattr(sb3, algo.upper(), None) or getattr(sb3_contrib, algo.upper())
    model = cls("MlpPolicy", env_id, seed=seed, device="cpu")
    return evaluate_on_the_way(model, gym.make(env_id), BUDGETS[f"{algo}/{env_id}"], seed)


def main() -> None:
    parser = arguments(__doc__, SETTINGS)
    parser.set_defaults(seeds=3)
    args = parser.parse_args()
    if args.work:
        library, case, seed = args.work
        print("RESULT " + json.dumps((run_rlx if library == "rlx" else run_sb3)(*case.split("/"), int(seed))))
        return
    compare(args, __file__, Store(OUT / "learning_defaults.json"), SETTINGS, "sb3")


if __name__ == "__main__":
    main()
