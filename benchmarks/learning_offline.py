"""Offline learning of rlx against d3rlpy: same data, updates, batch, networks, seeds and evaluation.

    python benchmarks/learning_offline.py --data DATA_FOLDER [--peer-python PYTHON] [--sets pendulum hopper halfcheetah]
        [--algos bc td3_bc ...] [--seeds 5] [--updates 3000]

DATA_FOLDER holds pendulum-rllib-sac-medium.npz, gen-hopper-v5-medium.npz and gen-halfcheetah-v5-medium.npz. Runs are
interleaved, one thread each. Prints the final return (10 deterministic episodes on the same seeds), IQM over seeds with
a 95 % bootstrap interval, and writes all of it to docs/benchmarks/learning_offline.json.
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
SETS = {
    "pendulum": ("pendulum-rllib-sac-medium.npz", "Pendulum-v1", 64),
    "hopper": ("gen-hopper-v5-medium.npz", "Hopper-v5", 64),
    "halfcheetah": ("gen-halfcheetah-v5-medium.npz", "HalfCheetah-v5", 64),
}
ALGOS = ["bc", "td3_bc", "awac", "iql", "cql", "bcq", "bear", "cal_ql"]
EVAL_SEEDS = [int(s) for s in np.random.SeedSequence(7).generate_state(10)]
BATCH, LR = 128, 1e-3


def play(act, env_id: str) -> float:
    """Mean return of a deterministic policy over the evaluation seeds."""
    import gymnasium as gym

    env = gym.make(env_id)
    returns = []
    for seed in EVAL_SEEDS:
        obs, _ = env.reset(seed=seed)
        ended, total = False, 0.0
        while not ended:
            obs, reward, terminated, truncated, _ = env.step(act(np.asarray(obs, np.float32)))
            total += float(reward)
            ended = terminated or truncated
        returns.append(total)
    return float(np.mean(returns))


def run_rlx(algo: str, name: str, path: Path, seed: int, updates: int) -> float:
    import rlx
    from rlx.config import schemas

    _, env_id, h = SETS[name]
    fields = schemas()[f"algo/{algo}"].__dataclass_fields__
    rates = [f"algo.{f}={LR}" for f in fields if f == "lr" or f.endswith("_lr")]
    warm_up = [f"algo.{f}=0" for f in ("bc_updates", "warmup_updates") if f in fields and algo != "bear"]
    warm_up += [f"algo.warmup_updates={updates // 6}"] if algo == "bear" and "warmup_updates" in fields else []
    with tempfile.TemporaryDirectory() as folder:
        result = rlx.train(
            f"algo={algo}", f"env.id={env_id}", "env=pendulum" if name == "pendulum" else f"env={name}", "logger=none",
            "dataset=npz", f"dataset.path={path}", f"trainer.max_updates={updates}", "trainer.eval_interval=0",
            "threads=1", "~callbacks.progress",
            "trainer.checkpoint_interval=0", "~callbacks.evaluate", f"algo.hidden=[{h},{h}]",
            f"algo.batch_size={BATCH}", "algo.normalize_obs=true", *rates, *warm_up,
            run_dir=Path(folder) / "run", seed=seed,
        )  # fmt: skip
        return play(result.policy.act, env_id)


def run_d3rlpy(algo: str, name: str, path: Path, seed: int, updates: int) -> float:
    import d3rlpy
    import torch
    from d3rlpy.dataset import MDPDataset
    from d3rlpy.models.encoders import VectorEncoderFactory
    from d3rlpy.preprocessing import MinMaxActionScaler, StandardObservationScaler

    torch.set_num_threads(1)
    d3rlpy.seed(seed)
    _, env_id, h = SETS[name]
    data = np.load(path)
    low, high = {"pendulum": (-2.0, 2.0)}.get(name, (-1.0, 1.0))
    dataset = MDPDataset(
        data["observations"], np.clip(data["actions"], low, high), data["rewards"], data["terminations"],
        timeouts=data["truncations"],
    )  # fmt: skip
    configs = {"bc": "BCConfig", "td3_bc": "TD3PlusBCConfig", "awac": "AWACConfig", "iql": "IQLConfig",
               "cql": "CQLConfig", "bcq": "BCQConfig", "bear": "BEARConfig", "cal_ql": "CalQLConfig"}  # fmt: skip
    cls = getattr(d3rlpy.algos, configs[algo])
    known = cls.__dataclass_fields__
    encoder = VectorEncoderFactory([h, h])
    values = {f: encoder for f in known if f.endswith("encoder_factory")}
    values |= {f: LR for f in known if f.endswith("learning_rate") and f not in ("alpha_learning_rate",)}
    if algo == "bear":
        values["warmup_steps"] = updates // 6
    n = data["actions"].shape[1]
    scaler = MinMaxActionScaler(np.full(n, low, np.float32), np.full(n, high, np.float32))
    learner = cls(
        batch_size=BATCH, observation_scaler=StandardObservationScaler(), action_scaler=scaler, **values
    ).create()
    with tempfile.TemporaryDirectory() as folder:
        learner.fit(
            dataset, n_steps=updates, n_steps_per_epoch=updates, show_progress=False, with_timestamp=False,
            experiment_name="run", logger_adapter=d3rlpy.logging.NoopAdapterFactory(),
        )  # fmt: skip
        del folder
    return play(lambda obs: learner.predict(obs[None])[0], env_id)


def one(python: str, lib: str, algo: str, name: str, path: Path, seed: int, updates: int) -> float | None:
    command = [python, __file__, "--work", lib, algo, name, str(path), str(seed), str(updates)]
    done = subprocess.run(command, capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if not lines:
        print(f"{lib} {algo}/{name} seed {seed}: {(done.stderr.strip().splitlines() or ['no output'])[-1]}", flush=True)
        return None
    return float(lines[0].split()[1])


def cell(values: list[float]) -> str:
    if not values:
        return "-"
    low, high = interval(np.array(values))
    return f"{iqm(np.array(values)):9.1f} [{low:8.1f}, {high:8.1f}]"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path)
    parser.add_argument("--peer-python", default=sys.executable)
    parser.add_argument("--sets", nargs="*", default=list(SETS))
    parser.add_argument("--algos", nargs="*", default=ALGOS)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--updates", type=int, default=3000)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--work", nargs=6)
    args = parser.parse_args()
    if args.work:
        lib, algo, name, path, seed, updates = args.work
        work = run_rlx if lib == "rlx" else run_d3rlpy
        print("RESULT", work(algo, name, Path(path), int(seed), int(updates)))
        return
    pythons = {"rlx": sys.executable, "d3rlpy": args.peer_python}
    OUT.mkdir(parents=True, exist_ok=True)
    store = OUT / "learning_offline.json"
    found: dict = json.loads(store.read_text()) if store.exists() else {}
    print(f"{'case':22} {'rlx IQM [95 %]':>30} {'d3rlpy IQM [95 %]':>30} {'data':>9}", flush=True)
    for name in args.sets:
        path = args.data / SETS[name][0]
        rewards, ends = np.load(path)["rewards"], np.load(path)["terminations"] + np.load(path)["truncations"] > 0
        behaviour = float(rewards.sum() / ends.sum())
        for algo in args.algos:
            todo = [(lib, seed) for seed in range(args.seeds) for lib in pythons]
            with ThreadPoolExecutor(args.jobs) as pool:
                jobs = [pool.submit(one, pythons[lib], lib, algo, name, path, seed, args.updates) for lib, seed in todo]
                results = [job.result() for job in jobs]
            case = {
                lib: [r for (n, _), r in zip(todo, results, strict=True) if n == lib and r is not None]
                for lib in pythons
            }
            found[f"{algo}/{name}"] = {**case, "updates": args.updates, "behaviour": behaviour}
            store.write_text(json.dumps(found, indent=1))
            print(
                f"{algo + '/' + name:22} {cell(case['rlx']):>30} {cell(case['d3rlpy']):>30} {behaviour:9.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
