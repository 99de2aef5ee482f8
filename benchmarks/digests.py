"""Digests of what every algorithm computes: has a change of structure changed a number?

    python benchmarks/digests.py [NAME ...]            print name, digest
    python benchmarks/digests.py --check [NAME ...]    compare with benchmarks/digests.json; exit code 1 if one differs
    python benchmarks/digests.py --write [NAME ...]    take the digests as the new ones

A learner with small networks is made from a fixed seed, makes 45 updates on fixed random batches, acts on fixed
observations, and everything is hashed: weights, targets, optimizer states, metrics of every update, actions. Enough
updates for delayed actors, and the ends of warm-ups lie within them. Rounding depends on the CPU and on torch: the file
says where its digests come from, and elsewhere nothing is compared (exit code 3).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import re
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rlx.config import learners, schemas
from rlx.learner import Learner
from rlx.types import Batch, Rollout, Spec, Windows

STORED = Path(__file__).with_suffix(".json")
UPDATES, ROWS = 45, 32
BOX = Spec("box", (5,), "float32", "box", (2,), (-1.0, -1.0), (1.0, 1.0))
CHOICE = Spec("choice", (5,), "float32", "discrete", (), action_sizes=(3,))
CHOICES = Spec("choices", (5,), "float32", "multi_discrete", (2,), action_sizes=(3, 2))
SPECS = {"box": BOX, "discrete": CHOICE, "multi_discrete": CHOICES}
SMALL: dict[str, dict[str, Any]] = {  # besides hidden layers of 24 and 16
    "bcq": {"vae_hidden": [24, 16]},
    "bear": {"vae_hidden": [24, 16], "warmup_updates": 10},
    "cql": {"bc_updates": 10},
    "crossq": {"critic_hidden": [32, 24], "renorm_warmup": 12},
    "dqn": {"target_interval": 10},
    "c51": {"target_interval": 10},
    "qr_dqn": {"target_interval": 10},
    "discrete_cql": {"target_interval": 10},
    "ppo_lstm": {"lstm_hidden": [12, 12]},
    "dt": {"context": 6, "width": 16, "layers": 2, "heads": 2, "warmup_updates": 10, "max_episode_length": 20},
}
FLAGS: dict[str, dict[str, Any]] = {  # branches that the defaults leave out, by "algorithm:what"
    "bc:gaussian": {"gaussian": True},
    "cql:lagrange": {"bc_updates": 10, "lagrange_threshold": 5.0, "max_q_backup": True},
    "cal_ql:lagrange": {"lagrange_threshold": 0.8},
    "dqn:double": {"target_interval": 10, "double": True, "dueling": True},
    "dqn:noisy": {"noisy": True},
    "c51:rainbow": {"double": True, "dueling": True, "noisy": True},
    "sac:normalized": {"normalize_obs": True},
    "ppo_lstm:shared": {"shared_lstm": True, "normalize_obs": True, "clip_range_value": 0.2, "entropy_coef": 0.01},
    "ppo:normalized": {"normalize_obs": True, "clip_range_value": 0.2, "entropy_coef": 0.01, "target_kl": 0.05},
}


def cases() -> dict[str, tuple[str, Spec, dict[str, Any]]]:
    """Algorithm, spec and settings of every case by its name."""
    found = {}
    for name, cls in sorted(learners().items()):
        for kind in cls.actions:
            suffix = "" if len(cls.actions) == 1 else f":{kind}"
            found[name + suffix] = (name, SPECS[kind], SMALL.get(name, {}))
    for case, settings in FLAGS.items():
        name = case.partition(":")[0]
        found[case] = (name, SPECS[learners()[name].actions[0]], SMALL.get(name, {}) | settings)
    return found


def actions(spec: Spec, shape: tuple[int, ...], random: torch.Generator) -> Tensor:
    if spec.action_kind == "box":
        return 2.0 * torch.rand(*shape, *spec.action_shape, generator=random) - 1.0
    parts = [torch.randint(n, shape, generator=random) for n in spec.action_sizes]
    return parts[0] if spec.action_kind == "discrete" else torch.stack(parts, -1)


def transitions(learner: Learner, spec: Spec, random: torch.Generator) -> Batch:
    obs, next_obs = torch.randn(2, ROWS, *spec.obs_shape, generator=random)
    reward, mc_return = torch.randn(2, ROWS, generator=random)
    terminated = (torch.rand(ROWS, generator=random) < 0.1).float()
    action = actions(spec, (ROWS,), random)
    return Batch(obs, action, reward, next_obs, terminated, torch.full((ROWS,), 0.99), mc_return=5.0 * mc_return)


def rollout(learner: Learner, spec: Spec, random: torch.Generator) -> Rollout:
    obs = torch.randn(33, 2, *spec.obs_shape, generator=random)
    reward = torch.randn(32, 2, generator=random)
    ends = torch.rand(32, 2, generator=random)
    terminated, truncated = (ends < 0.05).float(), (ends > 0.95).float()
    action, carry = actions(spec, (32, 2), random), learner.actor.initial(2)
    return Rollout(obs[:-1], action, reward, obs[1:], terminated, truncated, carry)


def windows(learner: Learner, spec: Spec, random: torch.Generator) -> Windows:
    """Six steps each, up to five of which are padded."""
    obs = torch.randn(ROWS, 6, *spec.obs_shape, generator=random)
    reward, return_to_go = torch.randn(2, ROWS, 6, generator=random)
    padded, first = torch.randint(6, (2, ROWS, 1), generator=random)
    mask = (torch.arange(6) >= padded).float()
    timestep = (first + torch.arange(6) - padded) * mask.long()
    action = actions(spec, (ROWS, 6), random)
    return Windows(obs, action, reward, 500.0 * return_to_go, torch.zeros(ROWS, 6), timestep, mask)


DRAWN: dict[type, Any] = {Batch: transitions, Rollout: rollout, Windows: windows}


def digest(name: str, spec: Spec, settings: dict[str, Any]) -> str:
    torch.manual_seed(0)
    random = torch.Generator().manual_seed(1)
    cfg = schemas()[f"algo/{name}"](hidden=[24, 16], **({"batch_size": ROWS} | settings))
    learner: Learner = learners()[name](cfg, spec)
    draw = DRAWN[learner.reads]
    text = hashlib.sha256()
    for _ in range(UPDATES):
        take(text, learner.update(draw(learner, spec, random)))
    obs = torch.randn(8, *spec.obs_shape, generator=random)
    saved = {former_name(name, learner): tensor for name, tensor in learner.tensors().items()}
    actor = learner.actor
    acted = {f"act.{explore}": actor.act(obs, actor.initial(8), explore).action for explore in (False, True)}
    take(text, saved | acted)
    return text.hexdigest()[:16]


def former_name(name: str, learner: Learner) -> str:
    """What a tensor was called when the digests were frozen: off-policy algorithms called their policies actors."""
    if "on_policy" in learner.regimes:
        return name
    return re.sub(r"^model\.(target_)?policy\.", r"model.\1actor.", name)


def take(text: Any, tensors: dict[str, Tensor]) -> None:
    """Names and bytes, whatever the order in which they came."""
    for name, tensor in sorted(tensors.items()):
        text.update(name.encode())
        text.update(tensor.detach().contiguous().numpy().tobytes())


def machine() -> dict[str, str]:
    """What rounding depends on."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "cpu": models[0] if models else platform.processor(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="cases, or algorithms for all of their cases; default: all")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    wanted = {n: c for n, c in cases().items() if not args.names or n in args.names or c[0] in args.names}
    if not wanted:
        parser.error(f"no such case; choose among {', '.join(cases())}")
    stored = json.loads(STORED.read_text()) if STORED.exists() else {"machine": {}, "digests": {}}
    same_machine = stored["machine"] == machine()
    if args.check and not same_machine:
        print(f"not compared: the digests were made on {stored['machine']}, and this is {machine()}")
        return 3
    found = {}
    for name, case in wanted.items():
        found[name] = digest(*case)
        verdict = "" if not args.check else "same" if stored["digests"].get(name) == found[name] else "DIFFERENT"
        print(f"{name:<24} {found[name]}  {verdict}".rstrip(), flush=True)
    if args.write:
        kept = stored["digests"] if same_machine else {}
        stored = {"machine": machine(), "digests": dict(sorted((kept | found).items()))}
        STORED.write_text(json.dumps(stored, indent=2) + "\n")
    return int(args.check and any(stored["digests"].get(name) != found[name] for name in found))


if __name__ == "__main__":
    sys.exit(main())
