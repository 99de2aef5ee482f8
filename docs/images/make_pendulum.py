"""Trains RLPD with prior data and SAC from scratch on Pendulum-v1 and draws their evaluation returns.

pip install matplotlib && python docs/images/make_pendulum.py
"""

import json
import tempfile
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

import rlx

here = Path(__file__).parent
runs = {
    "RLPD, prior data in every batch": ["algo=rlpd", "dataset=minari"],
    "SAC from scratch": ["algo=sac"],
}
fig, ax = plt.subplots(figsize=(7, 3.6), dpi=110)
for label, overrides in runs.items():
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        shared = ["trainer.max_env_steps=6000", "trainer.eval_interval=250", "threads=1"]
        rlx.train(*overrides, "env=pendulum", *shared, run_dir=run_dir, seed=0)
        rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    points = [(r["env_steps"], r["eval/return_mean"]) for r in rows if r["kind"] == "eval"]
    ax.plot(*zip(*points, strict=True), marker=".", label=label)
ax.axhline(-200, color="gray", linewidth=0.8, linestyle=":")
ax.set(xlabel="env steps", ylabel="evaluation return (10 episodes)", title="Pendulum-v1, seed 0")
ax.legend(frameon=False)
ax.spines[["top", "right"]].set_visible(False)
fig.tight_layout()
fig.savefig(here / "pendulum.png")
