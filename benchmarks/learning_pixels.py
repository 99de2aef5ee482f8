"""Learning from pixels: PQN, DQN and PPO on the five games of MinAtar.

    python benchmarks/learning_pixels.py [--cases pqn/breakout ...] [--seeds 3] [--jobs 1] [--steps 1000000] [--table]

A case is an algorithm and a game, with the settings of the tuned pair (conf/algo_env/ALGO_minatar.yaml) and the budget
`--steps`. A run is evaluated ten times on its way over 10 deterministic episodes; what it reached is the mean of the
last two evaluations. Shown are the interquartile mean over the seeds with a 95 % interval, beside the return of random
actions and what was published, where that could be looked up. Runs go to docs/benchmarks/learning_pixels.json, and
those that are there already are not made again; another budget starts a case anew. The figure is
docs/benchmarks/learning_pixels.png. Needs the minatar extra.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any

import numpy as np
from side_by_side import OUT, Points, Store, arguments, cell, draw, final, make_runs, train_rlx

ALGOS = ("pqn", "dqn", "ppo")
GAMES = ("asterix", "breakout", "freeway", "seaquest", "space_invaders")
CASES = [f"{algo}/{game}" for algo in ALGOS for game in GAMES]
STEPS, EVALUATIONS, EPISODES = 1_000_000, 10, 10
# Returns of DQN during training after 1 and 5 million frames, read off the curves of Young & Tian (2019,
# arXiv:1903.03176) in img/learning_curves.gif of kenjyoung/MinAtar, so rounded; Seaquest is of a version before 1.0.11.
# Those of PQN (Gallici et al., 2024, arXiv:2407.04811) are after 10 million frames and were not at hand as numbers.
PUBLISHED = {
    "dqn/asterix": "7 / 17", "dqn/breakout": "9 / 10", "dqn/freeway": "48 / 50", "dqn/seaquest": "1 / 20",
    "dqn/space_invaders": "34 / 44",
}  # fmt: skip


def run(case: str, seed: int, steps: int) -> Points:
    algo, game = case.split("/")
    overrides = [
        f"algo={algo}", "env=minatar", f"env.game={game}", "threads=1", f"trainer.max_env_steps={steps}",
        f"trainer.eval_interval={steps // EVALUATIONS}", f"trainer.eval_episodes={EPISODES}",
        "trainer.checkpoint_interval=0", "logger=jsonl", "~callbacks.progress",
    ]  # fmt: skip
    return train_rlx(overrides, seed)


def random_return(game: str, episodes: int = 100) -> float:
    """Mean return of random actions, from fixed seeds."""
    import gymnasium as gym

    from rlx.envs.minatar import register_name

    register_name(game)
    env = gym.make(f"rlx/MinAtar-{game}-v0", sticky=0.1)
    env.action_space.seed(0)
    returns = []
    for seed in range(episodes):
        env.reset(seed=seed)
        total, ended = 0.0, False
        while not ended:
            _, reward, terminated, truncated, _ = env.step(env.action_space.sample())
            total, ended = total + float(reward), terminated or truncated
        returns.append(total)
    return float(np.mean(returns))


def show(args: argparse.Namespace, store: Store, settings: dict[str, dict[str, Any]]) -> None:
    known: dict[str, float] = {}
    print("| case | rlx | seeds | random | published, 1M / 5M frames |\n|---|---|---|---|---|", flush=True)
    shown = []
    for case in make_runs(args, __file__, store, settings, {"rlx": sys.executable}, ["--steps", str(args.steps)]):
        reached = np.array([final(points) for points in store.runs(case, "rlx")])
        game = case.split("/")[1]
        if game not in known:
            known[game] = random_return(game)
        cells = [case, cell(reached), str(len(reached)), f"{known[game]:.1f}", PUBLISHED.get(case, "-")]
        print(f"| {' | '.join(cells)} |", flush=True)
        shown += [case] if len(reached) else []
    if shown:
        draw(store, shown, OUT / "learning_pixels.png")


def main() -> None:
    parser = arguments(__doc__, CASES)
    parser.add_argument("--steps", type=int, default=STEPS, help="env steps of a run")
    parser.set_defaults(seeds=3, jobs=1)
    args = parser.parse_args()
    if args.work:
        _, case, seed = args.work
        print("RESULT " + json.dumps(run(case, int(seed), args.steps)))
        return
    os.environ["OMP_NUM_THREADS"] = "1"
    show(args, Store(OUT / "learning_pixels.json"), {case: {"steps": args.steps} for case in CASES})


if __name__ == "__main__":
    main()
