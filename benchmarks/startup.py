"""From the command to the first env step: how long, and what of. Two checkouts can be measured in turns.

    git worktree add /tmp/before COMMIT
    python benchmarks/startup.py [--before /tmp/before] [--rounds 9] [OVERRIDE ...]

Each start is `python -m rlx OVERRIDE ...` in a process of its own, on one CPU, which ends with its tenth env step (see
end_to_end.py). Printed are milliseconds of processor time, the median over the rounds: imports of the large packages,
each without the others; ours; composing the config; building the run; the rest, such as opening files. With --before,
also the other checkout and the median of the ratios after / before with its spread [min, max]; below 1 is quicker.
"""

from __future__ import annotations

import argparse
import importlib.machinery
import json
import os
import runpy
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
STARTED = 10  # env steps that end the start-up
DEFAULT = ["algo=sac", "env=pendulum", "native=false"]
PACKAGES = {  # a part of the start-up for each
    "torch": "torch", "numpy": "numpy", "hydra": "hydra", "omegaconf": "hydra", "gymnasium": "gymnasium",
    "rlx.commands": "rlx", "torch.utils.tensorboard": "tensorboard",
}  # fmt: skip
PARTS = ("python", "torch", "numpy", "hydra", "gymnasium", "rlx", "compose", "build", "tensorboard", "rest")


# -- in a process that starts ------------------------------------------------------------------------------------------


class Stopwatch:
    """Processor time by part; a part that begins within another stops that one's watch."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self.seconds["python"] = time.process_time()
        self._open = ["rest"]
        self._last = time.process_time()

    def _turn(self) -> None:
        now = time.process_time()
        self.seconds[self._open[-1]] += now - self._last
        self._last = now

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        self._turn()
        self._open.append(name)
        try:
            yield
        finally:
            self._turn()
            self._open.pop()

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            with self.part(name):
                return function(*args, **kwargs)

        return call

    def end(self) -> None:
        self._turn()
        sys.stdout.write("\nPARTS " + json.dumps(self.seconds) + "\n")
        sys.stdout.flush()
        os._exit(0)


class Importer:
    """Times the import of packages, and puts watches into some modules once they are there."""

    def __init__(self, watch: Stopwatch):
        self.watch = watch
        self._steps = 0

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name not in PACKAGES and name not in ("rlx.workflows", "gymnasium.wrappers.common"):
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module
            if name in PACKAGES:
                execute = self.watch.timed(PACKAGES[name], execute)

            def load(module: Any) -> None:
                execute(module)
                self._put_watches(module)

            spec.loader.exec_module = load  # type: ignore[method-assign]
        return spec

    def _put_watches(self, module: Any) -> None:
        if module.__name__ == "rlx.commands":
            module.compose_config = self.watch.timed("compose", module.compose_config)
        elif module.__name__ == "rlx.workflows":
            module.build = self.watch.timed("build", module.build)
        elif module.__name__ == "gymnasium.wrappers.common":  # all envs of gymnasium.make have a TimeLimit
            step = module.TimeLimit.step

            def counted(env: Any, action: Any) -> Any:
                self._steps += 1
                if self._steps == STARTED:
                    self.watch.end()
                return step(env, action)

            module.TimeLimit.step = counted


def work(overrides: list[str]) -> None:
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
    watch = Stopwatch()
    sys.meta_path.insert(0, Importer(watch))  # type: ignore[arg-type]
    sys.argv = ["rlx", *overrides]
    runpy.run_module("rlx", run_name="__main__", alter_sys=True)


# -- in turns ----------------------------------------------------------------------------------------------------------


def start(checkout: Path, overrides: list[str]) -> dict[str, float]:
    """Milliseconds by part."""
    env = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}  # modules are compiled
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(HERE), "--work", *overrides, f"run_dir={folder}/run"]
        env |= {"PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
        run = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    lines = [line for line in run.stdout.splitlines() if line.startswith("PARTS ")]
    if not lines:
        raise SystemExit(f"No env step was made: {(run.stderr.strip().splitlines() or ['no output'])[-1]}")
    parts = {name: 1000 * seconds for name, seconds in json.loads(lines[-1].removeprefix("PARTS ")).items()}
    total = sum(parts.values())
    return parts | {"without torch": total - parts["torch"], "all": total}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", help=f"default: {' '.join(DEFAULT)}")
    parser.add_argument("--before", type=Path, help="another checkout")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        work(args.overrides)
        return
    checkouts = {"after": HERE.parents[1]}
    if args.before is not None:
        if not (args.before / "rlx").is_dir():
            parser.error("--before has to be a checkout of rlx")
        checkouts["before"] = args.before.resolve()
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in checkouts}
    for number in range(-1, args.rounds):  # the first one compiles modules and fills the caches of files
        for name in sorted(checkouts, reverse=number % 2 == 0):
            parts = start(checkouts[name], args.overrides or DEFAULT)
            if number >= 0:
                runs[name].append(parts)
    for part in (*PARTS, "without torch", "all"):
        medians = {name: statistics.median(run[part] for run in runs[name]) for name in sorted(runs, reverse=True)}
        line = f"{part:<14}" + "".join(f"{value:8.0f} ms {name}" for name, value in medians.items())
        ratios = [a[part] / b[part] for a, b in zip(runs["after"], runs.get("before", []), strict=False) if b[part]]
        if ratios:
            line += f"{statistics.median(ratios):8.2f}x [{min(ratios):.2f}, {max(ratios):.2f}]"
        print(line)


if __name__ == "__main__":
    main()
