"""A sweep over algorithms, rewards and schedules: every job has the config and the metrics that were asked for."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from rlx.cli import main
from rlx.config import compose_config

REWARDS, SCHEDULES, ALGOS = ("identity", "clip_1", "sign_clip"), ("constant", "warmup_cosine"), ("bc", "sac")


@pytest.mark.parametrize(("overrides", "share"), [((), 0.0), (("dataset=minari",), 0.5)])
def test_a_dataset_given_to_an_off_policy_learner_is_used(overrides: tuple[str, ...], share: float):
    assert compose_config(["algo=sac", *overrides]).trainer.phases.online.offline_fraction == share


def test_twelve_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    tiny = ["env=pendulum", "dataset=minari", "algo.hidden=[8]", "algo.batch_size=8", "trainer.max_updates=20",
            "trainer.log_interval=5", "trainer.learning_starts=5", "trainer.eval_episodes=1", "trainer.eval_interval=0",
            "logger=jsonl", "threads=1", "env.max_episode_steps=10", "~callbacks.progress"]  # fmt: skip
    groups = [f"algo={','.join(ALGOS)}", f"reward={','.join(REWARDS)}", f"schedule={','.join(SCHEDULES)}"]
    assert main(["-m", *groups, *tiny]) == 0
    (sweep,) = (tmp_path / "multirun_outputs" / "sweeps").iterdir()
    jobs = sorted(folder for folder in sweep.iterdir() if folder.is_dir())
    for job, (algo, reward, schedule) in zip(jobs, itertools.product(ALGOS, REWARDS, SCHEDULES), strict=True):
        cfg = OmegaConf.load(job / "config.yaml")
        expected = compose_config([f"algo={algo}", f"reward={reward}", f"schedule={schedule}", *tiny])
        assert cfg.algo.name == algo
        assert cfg.reward == OmegaConf.to_container(expected.reward)
        assert cfg.schedule.kind == expected.schedule.kind.name
        summary = json.loads((job / "summary.json").read_text())
        assert (summary["algo"], summary["updates"], summary["stop_reason"]) == (algo, 20, "max_updates")
        rows = [json.loads(line) for line in (job / "metrics.jsonl").read_text().splitlines()]
        multipliers = [row["schedule/lr"] for row in rows if row["kind"] == "train"]
        assert (set(multipliers) == {1.0}) == (schedule == "constant")
        if algo == "sac":
            assert all(row["data/prior_fraction"] == 0.5 for row in rows if row["kind"] == "train")
