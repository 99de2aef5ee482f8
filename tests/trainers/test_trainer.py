"""The loop: budgets to the step, ratios as asked, phases, and what the learner gets to see."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import rows, tiny

import rlx
from rlx.callbacks.bus import CallbackBus
from rlx.collectors import LocalCollector, Steps
from rlx.errors import UserError
from rlx.learner import Learner
from rlx.trainers.trainer import Trainer
from rlx.types import Batch


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int]]:
    """Every event of a run with its env steps and updates."""
    seen: list[tuple[str, int, int]] = []
    original = CallbackBus.emit

    def emit(self: CallbackBus, event: str, trainer: Trainer, *args: Any) -> None:
        seen.append((event, trainer.state.env_steps, trainer.state.updates))
        original(self, event, trainer, *args)

    monkeypatch.setattr(CallbackBus, "emit", emit)
    return seen


def train(tmp_path: Path, regime: str, *overrides: str) -> dict[str, Any]:
    return rlx.train(*tiny(regime, *overrides), run_dir=tmp_path / "run").summary


# -- budgets ---------------------------------------------------------------------------------------------------------

BUDGETS = {
    "env_steps": ("off_policy", ["trainer.max_env_steps=77"], (77, "max_env_steps")),
    "env_steps_of_three_envs": ("off_policy", ["trainer.max_env_steps=77", "env.num_envs=3"], (75, "max_env_steps")),
    "env_steps_within_a_rollout": ("on_policy", ["trainer.max_env_steps=77"], (77, "max_env_steps")),
    "env_steps_within_an_iteration": (
        "off_policy", ["trainer.max_env_steps=77", "trainer.train_frequency=10"], (77, "max_env_steps"),
    ),
    "epochs": ("off_policy", ["trainer.max_epochs=2", "trainer.epoch_length=33"], (66, "max_epochs")),
    "epochs_on_policy": ("on_policy", ["trainer.max_epochs=2", "trainer.epoch_length=33"], (66, "max_epochs")),
    "nothing": ("off_policy", ["trainer.max_env_steps=0"], (0, "max_env_steps")),
    "first_of_two": ("off_policy", ["trainer.max_env_steps=90", "trainer.max_updates=21"], (61, "max_updates")),
}  # fmt: skip


@pytest.mark.parametrize("name", BUDGETS)
def test_a_budget_is_kept_to_the_step(name: str, tmp_path: Path) -> None:
    regime, overrides, (env_steps, reason) = BUDGETS[name]
    summary = train(tmp_path, regime, *overrides)
    assert (summary["env_steps"], summary["stop_reason"]) == (env_steps, reason)


@pytest.mark.parametrize(
    ("regime", "overrides", "updates"),
    [
        ("offline", ["trainer.max_updates=17"], 17),
        ("offline", ["trainer.max_updates=null", "trainer.max_epochs=3", "trainer.epoch_length=7"], 21),
        ("off_policy", ["trainer.max_updates=17"], 17),
        ("on_policy", ["trainer.max_updates=2"], 2),
        ("offline_to_online", ["trainer.max_updates=16"], 16),
        ("offline_to_online", ["trainer.max_updates=25"], 25),
    ],
)
def test_updates_are_kept_to_the_update(regime: str, overrides: list[str], updates: int, tmp_path: Path) -> None:
    summary = train(tmp_path, regime, *overrides)
    assert summary["updates"] == updates
    assert summary["stop_reason"] in ("max_updates", "max_epochs")


def test_wall_time_is_a_budget(tmp_path: Path) -> None:
    summary = train(tmp_path, "off_policy", "trainer.max_seconds=0")
    assert (summary["stop_reason"], summary["env_steps"]) == ("max_seconds", 0)


# -- ratios and warm-up ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "updates"),
    [
        ([], 2 * 80),
        (["trainer.gradient_updates_per_step=0.25"], 20),
        (["trainer.gradient_updates_per_step=1", "env.num_envs=4"], 128 - 50),
        (["trainer.gradient_updates_per_step=1", "trainer.train_frequency=13"], 80),
        (["trainer.gradient_updates_per_step=1", "trainer.warmup_steps=100"], 30),
        (["trainer.gradient_updates_per_step=1", "trainer.min_buffer_size=110"], 20),
        (["trainer.learning_starts=500"], 0),
        (["trainer.gradient_updates_per_step=0.1", "trainer.train_frequency=7"], 8),
    ],
)
def test_the_ratio_of_updates_to_steps_is_what_was_asked(overrides: list[str], updates: int, tmp_path: Path) -> None:
    assert train(tmp_path, "off_policy", *overrides)["updates"] == updates


def test_no_update_before_the_warm_up_is_over(events: list[tuple[str, int, int]], tmp_path: Path) -> None:
    train(tmp_path, "off_policy", "trainer.learning_starts=20", "trainer.warmup_steps=60")
    assert min(steps for event, steps, _ in events if event == "update") == 61


def test_random_actions_end_where_learning_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[Steps] = []
    acted: list[int] = []  # env steps that were taken before the policy acted
    collect, original = LocalCollector.collect, LocalCollector._act

    def counted(self: LocalCollector, n: int) -> Steps:
        taken.append(collect(self, n))
        return taken[-1]

    def act(self: LocalCollector, obs: Any) -> Any:
        acted.append(len(taken))
        return original(self, obs)

    monkeypatch.setattr(LocalCollector, "collect", counted)
    monkeypatch.setattr(LocalCollector, "_act", act)
    train(tmp_path, "off_policy", "~callbacks.evaluate")
    assert acted == list(range(50, 130))


# -- phases and order ------------------------------------------------------------------------------------------------


def test_offline_updates_come_first(events: list[tuple[str, int, int]], tmp_path: Path) -> None:
    train(tmp_path, "offline_to_online", "trainer.pretrain_updates=15")
    assert [e for e in events if e[0] == "phase_start"] == [("phase_start", 0, 0), ("phase_start", 0, 15)]
    assert [u for e, s, u in events if e == "update" and s == 0] == list(range(1, 16))


def test_without_pretraining_no_dataset_is_needed_for_it(tmp_path: Path) -> None:
    none = ("dataset=null", "trainer.pretrain_updates=0", "trainer.offline_batch_ratio=0", "algo=sac")
    overrides = [o for o in tiny("offline_to_online") if not o.startswith(("dataset", "algo=", "trainer.pretrain"))]
    summary = rlx.train(*overrides, *none, "trainer=offline_to_online", run_dir=tmp_path / "run").summary
    assert summary["updates"] == 70


def test_events_come_in_their_order(events: list[tuple[str, int, int]], tmp_path: Path) -> None:
    train(tmp_path, "on_policy", "trainer.max_env_steps=64", "trainer.eval_interval=0", "env.max_episode_steps=500")
    names = [e for e, _, _ in events if e not in ("episode", "log")]
    assert names == [
        "run_start", "phase_start", "update", "iteration", "update", "iteration", "checkpoint",
        "run_end", "evaluated", "checkpoint", "checkpoint",  # the best policy, and what a resume is to know of this
    ]  # fmt: skip


def test_intervals_that_steps_jump_over_are_still_met(tmp_path: Path) -> None:
    """Three envs and intervals of 10: one evaluation for each ten steps, at the first step beyond."""
    train(tmp_path, "off_policy", "env.num_envs=3", "trainer.max_env_steps=36", "trainer.eval_interval=10")
    assert [r["env_steps"] for r in rows(tmp_path / "run") if r["kind"] == "eval"] == [12, 21, 30, 36]


def test_the_mixture_that_was_used_is_logged(tmp_path: Path) -> None:
    train(tmp_path, "offline_to_online", "trainer.offline_batch_ratio=0.3", "trainer.pretrain_updates=0")
    logged = [r["data/prior_fraction"] for r in rows(tmp_path / "run") if r["kind"] == "train"]
    assert set(logged) == {5 / 16}  # of a batch of 16, what is nearest to 30 %


def test_a_phase_is_the_one_truth_about_its_mixture(tmp_path: Path) -> None:
    train(tmp_path, "offline_to_online", "trainer.phases.online.offline_fraction=0.75", "trainer.pretrain_updates=0")
    assert {r["data/prior_fraction"] for r in rows(tmp_path / "run") if r["kind"] == "train"} == {12 / 16}


def test_rewards_are_transformed_for_the_learner_and_raw_in_evaluation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[torch.Tensor] = []
    update = Learner.normalized

    def watch(self: Learner, batch: Batch) -> Batch:
        seen.append(batch.reward.clone())
        return update(self, batch)

    monkeypatch.setattr(Learner, "normalized", watch)
    summary = train(tmp_path, "off_policy", "reward=scale", "reward.scale=1e-6", "env.max_episode_steps=30")
    assert torch.cat(seen).abs().max() < 1e-4
    assert summary["eval_return_mean"] < -10
    row = rows(tmp_path / "run")[0]
    assert row["train/return_transformed_mean"] == pytest.approx(row["train/return_mean"] * 1e-6, rel=1e-3)


def test_evaluation_disturbs_nothing(tmp_path: Path) -> None:
    found = [
        rlx.train(*tiny("off_policy", f"trainer.eval_interval={n}"), run_dir=tmp_path / str(n)).learner.tensors()
        for n in (10, 0)
    ]
    assert all(torch.equal(found[0][k], found[1][k]) for k in found[0])


def test_a_seed_decides_everything(tmp_path: Path) -> None:
    runs = [rlx.train(*tiny("off_policy"), run_dir=tmp_path / str(i), seed=seed) for i, seed in enumerate((3, 3, 4))]
    a, b, c = (r.learner.tensors() for r in runs)
    assert all(torch.equal(a[k], b[k]) for k in a)
    assert rows(runs[0].run_dir) == rows(runs[1].run_dir)
    assert any(not torch.equal(a[k], c[k]) for k in a)


def test_the_learner_may_live_elsewhere(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="device=cpu"):
        train(tmp_path, "off_policy", "device=nonsense")


def test_the_best_policy_keeps_the_units_of_its_rewards(tmp_path: Path) -> None:
    train(tmp_path, "on_policy", "reward=running_norm")
    state = json.loads((tmp_path / "run" / "checkpoints" / "best" / "state.json").read_text())
    assert state["policy_only"]
    assert state["reward"]["running"]["count"] > 0


def test_the_best_policy_is_kept_and_not_the_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scores = iter([-5.0, 3.0, float("nan"), 1.0, 2.0])

    def evaluate(self: Trainer, episodes: int) -> dict[str, float]:
        self.state.last_eval = next(scores)
        return {"eval/return_mean": self.state.last_eval, "eval/return_std": 0.0, "eval/length_mean": 1.0}

    monkeypatch.setattr(Trainer, "evaluate", evaluate)
    summary = train(tmp_path, "offline", "trainer.max_updates=50", "trainer.eval_interval=10")
    assert (summary["eval_return_mean"], summary["best_eval_return_mean"]) == (2.0, 3.0)
    assert (tmp_path / "run" / "checkpoints" / "best").resolve().name == "best_000000000020"
    written = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [r["eval/return_mean"] for r in written if r["kind"] == "eval"] == [-5.0, 3.0, None, 1.0, 2.0]


def test_evaluations_tell_how_far_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Episodes of Pendulum have 200 steps."""
    told: list[str] = []
    original = CallbackBus.emit

    def emit(self: CallbackBus, event: str, trainer: Trainer, *args: Any) -> None:
        original(self, event, trainer, *args)
        if event == "evaluating":
            told.extend(args)

    monkeypatch.setattr(CallbackBus, "emit", emit)
    few = ("algo.hidden=[4]", "trainer.max_env_steps=2", "trainer.eval_episodes=1", "logger=none", "threads=1")
    rlx.train("algo=sac", "env=pendulum", "~algo_env", *few, run_dir=tmp_path / "run", quiet=True)
    assert told == ["100 steps", "200 steps"]
