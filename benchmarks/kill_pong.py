"""Pong from pixels, killed three times with SIGKILL and resumed, against the same run left alone.

    python benchmarks/kill_pong.py --steps 50000 --folder pong [--native]

Both runs learn by DQN with a small network, in Python or by native nodes, and their checkpoints hold a replay of
frames. They are the same if what benchmarks/kill_and_resume.py compares is the same. The folder keeps what is done, and
the same command goes on.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path

from kill_and_resume import anew, content, finish

from rlx.checkpoint import CheckpointStore

KILLS = (0.22, 0.5, 0.81)  # shares of the steps, a little after which the run is killed


def overrides(steps: int, native: bool) -> list[str]:
    return [
        f"native={str(native).lower()}",  # a build in the background that ends in between would change the bits
        "algo=dqn", "env=atari", "env.game=Pong", "reward=sign_clip", "encoder.channels=[8,16,16]", "encoder.dim=64",
        "encoder=nature", "algo.hidden=[]", "algo.lr=1e-4", "algo.batch_size=16", "algo.epsilon_steps=20000",
        "replay.capacity=20000", "threads=1", "logger=jsonl", "~callbacks.progress", f"trainer.max_env_steps={steps}",
        "trainer.learning_starts=1000", "trainer.train_frequency=4", "trainer.gradient_updates_per_step=0.25",
        f"trainer.checkpoint_interval={steps // 25}", f"trainer.eval_interval={steps // 2}", "trainer.eval_episodes=1",
        "trainer.log_interval=1000",
    ]  # fmt: skip


def saved_steps(run: Path) -> int:
    """Steps of the newest checkpoint."""
    steps = CheckpointStore(run / "checkpoints").steps()
    return int(steps[0].name.removeprefix("step_")) if steps else 0


def is_done(run: Path) -> bool:
    return (run / "summary.json").exists()


def whole(run: Path, wanted: list[str]) -> None:
    if not is_done(run):
        log = run.with_suffix(".log")
        arguments = ["resume", str(run)] if saved_steps(run) else [*wanted, f"run_dir={run}"]
        finish(anew(arguments, log), log)


def killed(run: Path, steps: int, wanted: list[str]) -> None:
    """Run to the end, and kill it on the way once it has passed each of KILLS; what was done is in a file."""
    log, notes = run.with_suffix(".log"), run.with_suffix(".kills")
    done = notes.read_text().splitlines() if notes.exists() else []
    for share in KILLS[len(done) :]:
        pid = anew(["resume", str(run)] if saved_steps(run) else [*wanted, f"run_dir={run}"], log)
        while saved_steps(run) < share * steps:
            if os.waitpid(pid, os.WNOHANG)[0]:
                sys.exit(f"A run ended by itself:\n{log.read_text()[-2000:]}")
            time.sleep(0.5)
        time.sleep(3.7)  # into the middle of what no checkpoint has
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        with notes.open("a") as file:
            file.write(f"killed after checkpoint {saved_steps(run)}\n")
    whole(run, wanted)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=50_000)
    parser.add_argument("--folder", type=Path, required=True, help="of both runs; a call goes on with what is there")
    parser.add_argument("--native", action="store_true", help="compute by native nodes")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    left_alone, disturbed = options.folder / "whole", options.folder / "killed"
    wanted = overrides(options.steps, options.native)
    killed(disturbed, options.steps, wanted)
    whole(left_alone, wanted)
    theirs, ours = content(left_alone), content(disturbed)
    wrong = [part for part, digest in theirs.items() if ours[part] != digest]
    print(disturbed.with_suffix(".kills").read_text(), end="")
    exact = json.loads((disturbed / "summary.json").read_text()).get("exact")
    print(f"differs in {', '.join(wrong)}" if wrong else f"bit-identical after {len(KILLS)} kills (exact: {exact})")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
