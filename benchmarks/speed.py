"""Updates per second of our learners, side by side with other libraries and with the bare matrix products.

    python benchmarks/speed.py [case ...] [--widths 64 256 1024] [--threads 1 2] [--rounds 5] [--seconds 2]
                               [--peer-python PYTHON ...] [--against LIBRARY ...] [--ours KIND ...] [--cpu-time]
                               [--rows 1000000] [--store FILE] [--table]

Every measurement is a process of its own, since thread counts are global to a process, and the contestants take turns.
Shown are the median rate of each over the rounds and, in brackets, the median over the rounds of how many times as fast
the first of ours was in the same round, with its spread [min, max]. All of them learn on the CPU from random
transitions (obs 17, action 6, batch 256, two layers of each width; DQN: obs 4, 2 actions, batch 32) in a replay of a
million of them, far more than the caches of a CPU hold. Ours are `native` and `python` (native=false).

An update includes the sampling of its minibatch and what becomes of its metrics: ours go through the callback bus to
the means of a row every 500 calls, and the weights are looked at then, as in the trainer; the others write theirs to
their loggers or return them as numbers. As d3rlpy spends much of its time on sampling, `d3rlpy_drawn` is d3rlpy on
minibatches that were drawn beforehand. With UTD 20, and in a burst of 128 as RL Zoo has it for DQN, the updates are
asked for in one call. `gemm` runs the matrix products of one update of the algorithm and nothing else, by the library
that torch comes with. The sbx of REDQ and RLPD values the next state by all ten critics and ours by two: `redq_all` and
`rlpd_all` do the same work as it does, one step of the actor for twenty of the critics included.

Measurements go into the store, docs/benchmarks/speed.json, at once and are not made again, so that a long comparison
can be stopped and goes on where it was; `--table` only prints. Measure a change of rlx with another `--store`.

The other libraries come from PyPI: pip install stable-baselines3 sb3-contrib sbx-rl tianshou d3rlpy, here or in
environments that `--peer-python` names. A library that is not installed is left out, and said so. Where other work
shares the cores, `--cpu-time` counts the processor's time instead of the clock's; it is meant for one thread.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

FIRST_CALLS = 4  # at least, before the clock starts: all variants of an update have then been captured
LOG_INTERVAL = 500  # calls, each of which is an env step, between rows of our metrics: the default of runs
STORE = Path(__file__).parents[1] / "docs" / "benchmarks" / "speed.json"
Call = Callable[[], Any]


class Case(NamedTuple):
    """One algorithm at one size."""

    obs: int = 17
    actions: int = 6  # dimensions, or the number of choices
    discrete: bool = False
    batch_size: int = 256
    width: int = 256  # of both layers
    updates: int = 1  # per call: the updates per env step
    rows: int = 1_000_000  # of the replay
    peers: tuple[str, ...] = ()
    algo: str | None = None  # where the case is not called by it


CASES = {
    "sac": Case(peers=("gemm", "sb3", "sbx", "tianshou", "d3rlpy", "d3rlpy_drawn")),
    "td3": Case(peers=("gemm", "sb3", "sbx", "tianshou", "d3rlpy", "d3rlpy_drawn")),
    "ddpg": Case(peers=("gemm", "sb3", "sbx", "tianshou", "d3rlpy", "d3rlpy_drawn")),
    "tqc": Case(peers=("gemm", "sb3_contrib", "sbx")),
    "crossq": Case(peers=("sb3_contrib", "sbx")),
    "redq": Case(updates=20, peers=("gemm", "sbx")),
    "rlpd": Case(updates=20, peers=("gemm", "sbx")),
    "redq_all": Case(updates=20, peers=("sbx",), algo="redq"),
    "rlpd_all": Case(updates=20, peers=("sbx",), algo="rlpd"),
    "dqn": Case(
        obs=4,
        actions=2,
        discrete=True,
        batch_size=32,
        peers=("gemm", "sb3", "sbx", "tianshou", "d3rlpy", "d3rlpy_drawn"),
    ),
    "dqn_burst": Case(
        obs=4, actions=2, discrete=True, batch_size=32, updates=128, peers=("gemm", "sb3", "sbx"), algo="dqn"
    ),
    "td3_bc": Case(peers=("gemm", "d3rlpy", "d3rlpy_drawn")),
    "iql": Case(peers=("gemm", "d3rlpy", "d3rlpy_drawn")),
    "cql": Case(peers=("gemm", "d3rlpy", "d3rlpy_drawn")),
    "cal_ql": Case(peers=("d3rlpy", "d3rlpy_drawn")),
    "awac": Case(peers=("d3rlpy", "d3rlpy_drawn")),
    "bc": Case(peers=("d3rlpy", "d3rlpy_drawn")),
    "bcq": Case(peers=("d3rlpy", "d3rlpy_drawn")),
    "bear": Case(peers=("d3rlpy", "d3rlpy_drawn")),
}
# where defaults differ: two critics in TQC, all networks of the same width, as many samples, no warm-up
OURS: dict[str, dict[str, Any]] = {
    "tqc": {"critics": 2},
    "cql": {"bc_updates": 0},
    "cal_ql": {"bc_updates": 0},
    "bear": {"warmup_updates": 0},
    "redq_all": {"subset": 10},
    "rlpd_all": {"subset": 10},
}
WIDE = {"crossq": "critic_hidden", "bcq": "vae_hidden", "bear": "vae_hidden"}  # networks besides `hidden`
THEIRS: dict[str, dict[str, Any]] = {  # of d3rlpy
    "bcq": {"n_action_samples": 10},
    "bear": {"warmup_steps": 0, "n_mmd_action_samples": 5},
}


def transitions(case: Case) -> dict[str, np.ndarray]:
    rng, n = np.random.default_rng(0), case.rows
    action = rng.integers(case.actions, size=n) if case.discrete else 2 * rng.random((n, case.actions), np.float32) - 1
    return {
        "obs": rng.standard_normal((n, case.obs), dtype=np.float32),
        "action": action,
        "reward": rng.standard_normal(n, dtype=np.float32),
        "next_obs": rng.standard_normal((n, case.obs), dtype=np.float32),
        "terminated": (rng.random(n, np.float32) < 0.01).astype(np.float32),
        "truncated": np.zeros(n, np.float32),
    }


def iterations(case: Case, learner: Any, replay: Any) -> Call:
    """An iteration of the trainer without its env step: sample, update, and what becomes of the metrics."""
    from rlx.callbacks import crossed
    from rlx.callbacks.bus import CallbackBus
    from rlx.callbacks.metrics import TrainMetrics, TrainMetricsConfig
    from rlx.trainers.guard import Guard

    metrics_callback = TrainMetrics(TrainMetricsConfig())
    bus = CallbackBus({"train_metrics": metrics_callback})
    guard = Guard(learner, metrics_callback.pending)
    state = SimpleNamespace(steps=0, updates=0)
    plan = SimpleNamespace(log_interval=LOG_INTERVAL)
    trainer: Any = SimpleNamespace(state=state, plan=plan, bus=bus, log=lambda kind, row: None)

    def call() -> None:
        for batch in replay.sample(case.batch_size, case.updates):
            metrics = learner.update(batch)
            state.updates += 1
            guard.note(metrics)
            bus.emit("update", trainer, metrics)
        state.steps += 1
        if crossed(state.steps - 1, state.steps, LOG_INTERVAL):
            problem = guard.problem(state.updates)
            assert problem is None, problem
        bus.emit("iteration", trainer)

    return call


def rlx(name: str, case: Case, native: bool = False) -> Call:
    from rlx.data.replay import Replay, ReplayConfig
    from rlx.nn.native.choose import use_native
    from rlx.system import keep_freed_memory
    from rlx.types import Spec

    keep_freed_memory()
    use_native(native)
    settings = OURS.get(name, {}) | ({WIDE[name]: [case.width] * 2} if name in WIDE else {})
    name = case.algo or name
    module = importlib.import_module(f"rlx.algos.{name}")
    config = next(c for c in vars(module).values() if getattr(c, "_target_", "").startswith(f"{module.__name__}."))
    kind = {"action_kind": "discrete", "action_shape": (), "action_sizes": (case.actions,)}
    if not case.discrete:
        n = case.actions
        kind = {"action_kind": "box", "action_shape": (n,), "action_low": (-1.0,) * n, "action_high": (1.0,) * n}
    spec = Spec("bench", (case.obs,), "float32", **kind)
    cfg = config(batch_size=case.batch_size, hidden=[case.width] * 2, **settings)
    learner = getattr(module, config._target_.rsplit(".", 1)[1])(cfg, spec)
    replay = Replay(ReplayConfig(capacity=case.rows), spec, 1, cfg.discount, seed=0, mc_return=learner.needs_mc_return)
    replay.add(**transitions(case))
    return iterations(case, learner, replay)


def rlx_native(name: str, case: Case) -> Call:
    return rlx(name, case, native=True)


def fake_env(case: Case) -> Any:
    import gymnasium as gym

    class Fake(gym.Env):
        observation_space = gym.spaces.Box(-np.inf, np.inf, (case.obs,))
        action_space = gym.spaces.Discrete(case.actions) if case.discrete else gym.spaces.Box(-1, 1, (case.actions,))

        def reset(self, **_: Any) -> tuple[np.ndarray, dict]:
            return np.zeros(case.obs, np.float32), {}

        def step(self, _: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
            return np.zeros(case.obs, np.float32), 0.0, False, False, {}

    return Fake()


def of_the_sb3_family(library: str, name: str, case: Case, **policy: Any) -> Call:
    """The replay of Stable-Baselines3 is filled in place; `train` samples and updates."""
    from stable_baselines3.common.logger import Logger

    algorithm = getattr(importlib.import_module(library), "CrossQ" if name == "crossq" else name.upper())
    policy["net_arch"] = [case.width] * 2
    extra = {"batch_size": case.batch_size, "buffer_size": case.rows, "policy_kwargs": policy}
    if name == "sac" and case.updates > 1:
        extra["policy_delay"] = case.updates
    model = algorithm("MlpPolicy", fake_env(case), **extra)
    model.set_logger(Logger(None, []))
    data, replay = transitions(case), model.replay_buffer
    replay.observations[:, 0], replay.next_observations[:, 0] = data["obs"], data["next_obs"]
    replay.actions[:, 0] = data["action"].reshape(case.rows, -1)
    replay.rewards[:, 0], replay.dones[:, 0] = data["reward"], data["terminated"]
    replay.pos, replay.full = 0, True
    return lambda: model.train(gradient_steps=case.updates, batch_size=case.batch_size)


def sb3(name: str, case: Case) -> Call:
    return of_the_sb3_family("stable_baselines3", case.algo or name, case)


def sb3_contrib(name: str, case: Case) -> Call:
    return of_the_sb3_family("sb3_contrib", name, case)


def sbx(name: str, case: Case) -> Call:
    """REDQ and RLPD are its SAC with ten critics and a delayed policy; it takes the minimum over all ten."""
    name = case.algo or name
    if name in ("redq", "rlpd"):
        return of_the_sb3_family("sbx", "sac", case, n_critics=10, layer_norm=name == "rlpd")
    return of_the_sb3_family("sbx", name, case)


def tianshou(name: str, case: Case) -> Call:
    """Algorithms, networks and replay are put together by the user, here with the defaults of each."""
    algos = importlib.import_module("tianshou.algorithm.modelfree." + name)
    ddpg = importlib.import_module("tianshou.algorithm.modelfree.ddpg")
    continuous = importlib.import_module("tianshou.utils.net.continuous")
    data = importlib.import_module("tianshou.data")
    net = importlib.import_module("tianshou.utils.net.common").Net
    adam = importlib.import_module("tianshou.algorithm.optim").AdamOptimizerFactory
    training = importlib.import_module("tianshou.utils.torch_utils").policy_within_training_step
    space, hidden = fake_env(case).action_space, [case.width] * 2
    body = net(state_shape=case.obs, hidden_sizes=hidden)
    optimizers = {"policy_optim": adam(), "critic_optim": adam()}

    def critic() -> Any:
        both = net(state_shape=case.obs, action_shape=case.actions, hidden_sizes=hidden, concat=True)
        return continuous.ContinuousCritic(preprocess_net=both)

    if name == "dqn":
        model = net(state_shape=case.obs, action_shape=case.actions, hidden_sizes=hidden)
        policy = algos.DiscreteQLearningPolicy(model=model, action_space=space)
        algorithm = algos.DQN(policy=policy, optim=adam(), target_update_freq=500, is_double=False)
    elif name == "sac":
        actor = continuous.ContinuousActorProbabilistic(
            preprocess_net=body, action_shape=case.actions, unbounded=True, conditioned_sigma=True
        )
        alpha = algos.AutoAlpha(-float(case.actions), 0.0, adam())
        policy = algos.SACPolicy(actor=actor, action_space=space)
        algorithm = algos.SAC(policy=policy, critic=critic(), critic2=critic(), alpha=alpha, **optimizers)
    else:
        actor = continuous.ContinuousActorDeterministic(preprocess_net=body, action_shape=case.actions)
        policy = ddpg.ContinuousDeterministicPolicy(actor=actor, action_space=space)
        two = {"critic2": critic()} if name == "td3" else {}
        algorithm = getattr(algos, name.upper())(policy=policy, critic=critic(), **two, **optimizers)
    names = {"action": "act", "reward": "rew", "next_obs": "obs_next"}
    columns = {names.get(name, name): column for name, column in transitions(case).items()}
    flags = {name: columns[name].astype(bool) for name in ("terminated", "truncated")}
    columns |= flags | {"done": flags["terminated"] | flags["truncated"]}
    buffer = data.ReplayBuffer.from_data(**columns)  # row by row would take minutes
    buffer.last_index[:] = case.rows - 1

    def call() -> None:
        with training(algorithm.policy):
            for _ in range(case.updates):
                algorithm.update(buffer, case.batch_size)

    return call


def d3rlpy(name: str, case: Case, drawn: int = 0) -> Call:
    """With the sampling of its minibatches, or on `drawn` of them in turn."""
    algos = importlib.import_module("d3rlpy.algos")
    dataset = importlib.import_module("d3rlpy.dataset")
    data = transitions(case)
    ends = np.arange(1, case.rows + 1) % 1000 == 0
    buffer = dataset.MDPDataset(data["obs"], data["action"], data["reward"], ends.astype(np.float32))
    special = {"td3_bc": "TD3PlusBC", "cal_ql": "CalQL"}
    config = getattr(algos, f"{special.get(name, name.upper())}Config")
    layers = importlib.import_module("d3rlpy.models").VectorEncoderFactory([case.width] * 2)
    networks = {f.name: layers for f in dataclasses.fields(config) if f.name.endswith("encoder_factory")}
    algo = config(batch_size=case.batch_size, **networks, **THEIRS.get(name, {})).create(device="cpu")
    algo.build_with_dataset(buffer)
    if drawn:
        batches = itertools.cycle([buffer.sample_transition_batch(case.batch_size) for _ in range(drawn)])
        return lambda: algo.update(next(batches))
    return lambda: algo.update(buffer.sample_transition_batch(case.batch_size))


def d3rlpy_drawn(name: str, case: Case) -> Call:
    return d3rlpy(name, case, drawn=20)


Pass = tuple[tuple[int, ...], int, str, int]  # sizes of a network, members, what is computed, rows per row of the batch


def passes(name: str, case: Case) -> list[list[Pass]]:
    """The networks one update runs through; one list per update where updates take turns.

    "forward"; "train": forward, and gradients of the weights; "through": forward, and gradients of the inputs alone.
    """
    obs, act = case.obs, case.actions

    def net(inputs: int, outputs: int, members: int, kind: str, rows: int = 1) -> Pass:
        return (inputs, case.width, case.width, outputs), members, kind, rows

    def critic(kind: str, n: int = 2, outputs: int = 1, rows: int = 1) -> Pass:
        return net(obs + act, outputs, n, kind, rows)

    def actor(kind: str, heads: int = 1, rows: int = 1) -> Pass:
        return net(obs, heads * act, 1, kind, rows)

    def value(kind: str) -> Pass:
        return net(obs, 1, 1, kind)

    td3 = [actor("forward"), critic("forward"), critic("train")]
    redq = [actor("forward", 2), critic("forward"), critic("train", 10)]
    tqc = [critic("forward", 2, 25), critic("train", 2, 25), critic("through", 2, 25)]
    iql = [critic("forward"), value("train"), value("forward"), actor("train"), value("forward"), critic("train")]
    # the data's action, ten at random and ten of the policy at each of s and s'
    cql = [critic("forward"), actor("forward", 2, rows=2), critic("train", rows=31), critic("through")]
    return {
        "sac": [
            [actor("forward", 2), critic("forward"), critic("train"), actor("train", 2), critic("through")],
        ],
        "tqc": [[actor("forward", 2), actor("train", 2), *tqc]],
        "cql": [[actor("forward", 2), actor("train", 2), *cql]],
        "td3": [td3, [*td3, actor("train"), critic("through", 1)]],
        "td3_bc": [td3, [*td3, actor("train"), critic("through", 1)]],
        "ddpg": [[actor("forward"), critic("forward", 1), critic("train", 1), actor("train"), critic("through", 1)]],
        "redq": [redq] * 19 + [[*redq, actor("train", 2), critic("through", 10)]],
        "rlpd": [redq] * 19 + [[*redq, actor("train", 2), critic("through", 10)]],
        "iql": [iql],
        "dqn": [[net(obs, act, 1, "forward"), net(obs, act, 1, "train")]],
    }[name]


def gemm(name: str, case: Case) -> Call:
    import torch

    name = case.algo or name

    def products(sizes: tuple[int, ...], members: int, kind: str, rows: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        found, n = [], rows * case.batch_size
        for i, (a, b) in enumerate(itertools.pairwise(sizes)):
            shape = () if members == 1 else (members,)
            x, weight, grad = (torch.randn(*shape, *s) for s in ((n, a), (a, b), (n, b)))
            pairs = [(x, weight)]
            if kind == "train":
                pairs.append((x.mT, grad))
            if kind == "through" or (kind == "train" and i > 0):
                pairs.append((grad, weight.mT))
            for left, right in pairs:  # bmm is slow where there is one column: one product for each member
                found += zip(left, right, strict=True) if b == 1 and members > 1 else [(left, right)]
        return found

    cache = {p: products(*p) for p in set(itertools.chain(*passes(name, case)))}
    updates = itertools.cycle([[pair for p in update for pair in cache[p]] for update in passes(name, case)])

    def call() -> None:
        for _ in range(case.updates):
            for x, y in next(updates):
                torch.matmul(x, y)

    return call


CONTESTANTS: dict[str, Callable[[str, Case], Call]] = {
    "native": rlx_native,
    "python": rlx,
    "gemm": gemm,
    "sb3": sb3,
    "sb3_contrib": sb3_contrib,
    "sbx": sbx,
    "tianshou": tianshou,
    "d3rlpy": d3rlpy,
    "d3rlpy_drawn": d3rlpy_drawn,
}
KINDS = ("native", "python")  # of ours
PEERS = ("sb3", "sb3_contrib", "sbx", "tianshou", "d3rlpy", "d3rlpy_drawn")


def work(contestant: str, name: str, case: Case, threads: int, seconds: float, clock: Callable[[], float]) -> None:
    """Measure one contestant in this process and print its rate as JSON: the median of ten stretches of time."""
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = str(threads)
    if hasattr(os, "sched_setaffinity"):  # the only limit that every library obeys
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    try:
        import torch

        torch.set_num_threads(threads)
        torch.manual_seed(0)
        call = CONTESTANTS[contestant](name, case)
    except ImportError as error:
        print(json.dumps({"skipped": str(error)}))
        return
    for _ in range(FIRST_CALLS):
        call()
    start = clock()
    while clock() - start < seconds / 4:  # warm up
        call()
    rates: list[float] = []
    while len(rates) < 10:
        calls, began = 0, clock()
        while (spent := clock() - began) < seconds / 10:
            call()
            calls += 1
        rates.append(calls * case.updates / spent)
        if len(rates) >= 3 and clock() - start > 10 * seconds:  # calls that take longer than a stretch
            break
    print(json.dumps({"rate": statistics.median(rates)}))


def measure(contestant: str, name: str, width: int, threads: int, args: argparse.Namespace) -> dict[str, Any]:
    """By the first interpreter that has the library."""
    outcome: dict[str, Any] = {}
    for python in args.peer_python if contestant in PEERS else [sys.executable]:
        command = [python, __file__, "--work", contestant, name, "--rows", str(args.rows)]
        command += ["--widths", str(width), "--threads", str(threads), "--seconds", str(args.seconds)]
        command += ["--cpu-time"] * args.cpu_time
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        if run.returncode != 0:
            return {"skipped": f"failed: {(run.stderr.strip().splitlines() or ['no output'])[-1]}"}
        outcome = dict(json.loads(run.stdout.strip().splitlines()[-1]))
        if "rate" in outcome:
            break
    return outcome


def place(name: str, width: int, threads: int) -> str:
    return f"{name}, 2 x {width}, threads {threads}"


def settings(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """What a measurement depends on besides its place: where this has changed, the store starts anew."""
    case = CASES[name]._replace(rows=args.rows)
    kept = {key: value for key, value in case._asdict().items() if key not in ("width", "peers")}
    clock = "processor" if args.cpu_time else "wall"
    return {**kept, "seconds": args.seconds, "clock": clock, "versions": args.versions}


def compete(store: Any, args: argparse.Namespace) -> None:
    """The measurements that are missing, round by round; contestants take turns within each round."""
    skipped: set[tuple[str, str]] = set()
    turns = itertools.product(range(args.rounds), args.threads, args.widths, args.cases)
    for number, threads, width, name in turns:
        here = place(name, width, threads)
        known = store.open(here, settings(name, args))
        for contestant in contestants(name, args):
            if (contestant, name) in skipped or str(number) in known.get(contestant, {}):
                continue
            outcome = measure(contestant, name, width, threads, args)
            if "skipped" in outcome:
                skipped.add((contestant, name))
                print(f"{contestant} is left out of {name}: {outcome['skipped']}", file=sys.stderr)
                continue
            print(f"round {number}: {here}: {contestant} {outcome['rate']:.1f}", file=sys.stderr, flush=True)
            store.add(here, contestant, number, outcome["rate"])


def contestants(name: str, args: argparse.Namespace) -> list[str]:
    return [*args.ours, *(peer for peer in CASES[name].peers if peer in args.against)]


def table(store: Any, args: argparse.Namespace) -> str:
    """Markdown: updates/s, and in brackets how many times as fast the first of ours is."""
    places = [(n, w, t, store.cases.get(place(n, w, t), {}))
              for n, w, t in itertools.product(args.cases, args.widths, args.threads)]  # fmt: skip
    columns = [c for c in CONTESTANTS if any(c in contestants(n, args) and c in rates for n, _, _, rates in places)]
    lines = [f"| case | layers | threads | {' | '.join(columns)} |", "|---" * (len(columns) + 3) + "|"]
    first = args.ours[0]
    for name, width, threads, rates in places:
        if first not in rates:
            continue
        cells = []
        for column in columns:
            theirs = rates.get(column) if column in contestants(name, args) else None
            if not theirs:
                cells.append("-")
                continue
            ratios = [rates[first][number] / rate for number, rate in theirs.items() if number in rates[first]]
            spread = f" ({statistics.median(ratios):.2f}x [{min(ratios):.2f}, {max(ratios):.2f}])" if ratios else ""
            cells.append(f"{statistics.median(theirs.values()):.0f}{'' if column == first else spread}")
        lines.append(f"| {name} | 2 x {width} | {threads} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", help=f"of {', '.join(CASES)}; all where none is named")
    parser.add_argument("--widths", type=int, nargs="+", default=[64, 256, 1024], help="of the hidden layers")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of measuring per process")
    parser.add_argument("--rows", type=int, default=1_000_000, help="transitions in the replay")
    parser.add_argument(
        "--peer-python", nargs="+", default=[sys.executable], help="interpreters that have the other libraries"
    )
    parser.add_argument("--against", nargs="*", choices=("gemm", *PEERS), default=("gemm", *PEERS))
    parser.add_argument("--ours", nargs="+", choices=KINDS, default=["native", "python"])
    parser.add_argument("--cpu-time", action="store_true", help="count processor time; for one thread")
    parser.add_argument("--store", type=Path, default=STORE)
    parser.add_argument("--table", action="store_true", help="measure nothing, only print what the store holds")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        contestant, name = args.cases
        case = CASES[name]._replace(width=args.widths[0], rows=args.rows)
        clock = time.process_time if args.cpu_time else time.perf_counter
        work(contestant, name, case, args.threads[0], args.seconds, clock)
        return
    unknown = sorted(set(args.cases) - set(CASES))
    if unknown:
        parser.error(f"there is no case {unknown[0]}; choose of {', '.join(CASES)}")
    from end_to_end import versions  # not in the process of a measurement
    from side_by_side import Store

    args.cases = args.cases or list(CASES)
    store = Store(args.store)
    if not args.table:
        args.versions = [versions(python) for python in dict.fromkeys((sys.executable, *args.peer_python))]
        compete(store, args)
    print(table(store, args))


if __name__ == "__main__":
    main()
