"""Every number that a schedule may move is read while training goes on, in every algorithm."""

from __future__ import annotations

import math
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import REGIMES, SMALL, SMALL_TRANSFORMER, tiny

import rlx
from rlx.callbacks.schedule import movable
from rlx.config import compose_config, learners, schemas
from rlx.errors import UserError
from rlx.trainers.trainer import Trainer
from rlx.types import Windows

NAMES = sorted(name.removeprefix("algo/") for name in schemas() if name.startswith("algo/"))


def overrides_of(name: str) -> list[str]:
    env = "env=pendulum" if "box" in learners()[name].actions else "env=cartpole"
    config = schemas()[f"algo/{name}"]
    nets = [f"algo.{f.name}=[16,16]" for f in fields(config) if f.name.endswith("_hidden")]
    often = [f"algo.{f.name}=2" for f in fields(config) if f.name in ("target_interval", "policy_delay")]
    chosen = [f"algo={name}", env, "~algo_env", "encoder=auto", "augment=none"]
    regime = REGIMES[compose_config(chosen).trainer.regime]
    sequences = SMALL_TRANSFORMER if learners()[name].reads is Windows else ()
    return [*chosen, *SMALL, *nets, *sequences, *regime, *often]


@pytest.mark.parametrize("name", NAMES)
def test_what_can_move_is_read_again(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: set[str] = set()
    allowed: set[str] = set()
    run = Trainer.run

    def watched(self: Trainer) -> Any:
        cls = type(self.learner.cfg)

        class Watched(cls):  # type: ignore[valid-type,misc]
            def __getattribute__(self, field: str) -> Any:
                read.add(field)
                return super().__getattribute__(field)

        allowed.update(movable(self))
        self.learner.cfg.__class__ = Watched
        state = run(self)
        obs = torch.zeros(1, *self.spec.obs_shape)
        self.learner.act(obs, explore=True)  # as a run that collects would
        self.learner.cfg.__class__ = cls
        return state

    monkeypatch.setattr(Trainer, "run", watched)
    rlx.train(*overrides_of(name), run_dir=tmp_path / "run")
    assert allowed
    assert allowed - read <= {"offline_batch_ratio", "offline_fraction"}  # of the trainer


@pytest.mark.parametrize(
    ("regime", "target"),
    [
        ("off_policy", "gradient_updates_per_step"),
        ("off_policy", "learning_starts"),
        ("off_policy", "alpha"),
        ("off_policy", "target_entropy"),
        ("off_policy", "actor_lr"),
        ("off_policy", "discount"),
        ("off_policy", "offline_batch_ratio"),  # no dataset
        ("on_policy", "batch_size"),
    ],
)
def test_what_cannot_move_is_refused_and_leaves_no_folder(regime: str, target: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=rf"schedule.targets.{target} .* can move here: "):
        rlx.train(*tiny(regime, f"+schedule.targets.{target}=0.5"), run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("algo", "target", "spec"),
    [
        ("sac", "tau", "5"),
        ("sac", "batch_size", "{kind: linear, start: 8, end: 0}"),
        ("tqc", "dropped", "{kind: linear, start: 2, end: 30}"),
        ("td3", "policy_delay", "{kind: warmup_linear, start: 2, end: 2, warmup: 0.5}"),
        ("td3", "policy_delay", "{kind: step, start: 2, gamma: 0.1}"),
    ],
)
def test_a_value_that_the_algorithm_would_refuse_is_refused(algo: str, target: str, spec: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=rf"schedule.targets.{target} reaches .* algo.{target} must be"):
        rlx.train(*tiny("off_policy", f"algo={algo}", f"+schedule.targets.{target}={spec}"), run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("regime", "target", "spec"),
    [
        ("off_policy", "tau", "{kind: cosine, start: 0.01, end: 0}"),
        ("on_policy", "clip_range", "{kind: warmup_linear, start: 0.2, end: 0, warmup: 0.2}"),
    ],
)
def test_a_value_may_fall_to_nothing(regime: str, target: str, spec: str, tmp_path: Path) -> None:
    from helpers import rows

    rlx.train(*tiny(regime, f"+schedule.targets.{target}={spec}"), run_dir=tmp_path / "run")
    values = [row[f"schedule/{target}"] for row in rows(tmp_path / "run") if row["kind"] == "train"]
    assert 0.0 <= values[-1] < max(values) / 2


def test_a_share_beyond_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"offline_batch_ratio reaches 1.5: .*between 0 and 1"):
        rlx.train(*tiny("offline_to_online", "+schedule.targets.offline_batch_ratio=1.5"), run_dir=tmp_path / "run")


def test_looking_ahead_does_not_touch_the_numbers(tmp_path: Path) -> None:
    from helpers import rows

    for name, more in {"with": ("+schedule.targets.tau=0.005",), "without": ()}.items():
        rlx.train(*tiny("off_policy", "algo.tau=0.005", *more), run_dir=tmp_path / name)
    a, b = ([row.get("loss/critic") for row in rows(tmp_path / name)] for name in ("with", "without"))
    assert a == b
    assert any(a)


def test_a_mixture_may_begin_with_nothing(tmp_path: Path) -> None:
    """The share of prior data grows from 0."""
    from helpers import rows

    ramp = "+schedule.targets.offline_batch_ratio={kind: linear, start: 0.0, end: 1.0}"
    overrides = tiny("offline_to_online", "trainer.offline_batch_ratio=0", "trainer.pretrain_updates=0", ramp)
    rlx.train(*overrides, run_dir=tmp_path / "run")
    shares = [row["data/prior_fraction"] for row in rows(tmp_path / "run") if row["kind"] == "train"]
    assert shares[0] < 0.5 < shares[-1]


def shares(run_dir: Path) -> list[float]:
    from helpers import rows

    return [row["data/prior_fraction"] for row in rows(run_dir) if "data/prior_fraction" in row]


def test_a_phase_is_the_truth_about_its_batches(tmp_path: Path) -> None:
    online = tiny("offline_to_online", "trainer.pretrain_updates=0", "algo.batch_size=10")
    rlx.train(*online, "trainer.phases.online.offline_fraction=0.9", run_dir=tmp_path / "phase")
    rlx.train(*online, "trainer.offline_batch_ratio=0.3", run_dir=tmp_path / "flat")
    assert set(shares(tmp_path / "phase")) == {0.9}
    assert set(shares(tmp_path / "flat")) == {0.3}


def test_a_mixture_moves_by_either_of_its_names(tmp_path: Path) -> None:
    online = tiny("offline_to_online", "trainer.pretrain_updates=0", "algo.batch_size=10")
    ramp = "{kind: linear, start: 0.2, end: 0.8}"
    for name in ("offline_batch_ratio", "offline_fraction"):
        rlx.train(*online, f"+schedule.targets.{name}={ramp}", run_dir=tmp_path / name)
    assert shares(tmp_path / "offline_batch_ratio") == shares(tmp_path / "offline_fraction")
    assert shares(tmp_path / "offline_fraction")[-1] > 0.5
    both = [f"+schedule.targets.{name}=0.5" for name in ("offline_batch_ratio", "offline_fraction")]
    with pytest.raises(UserError, match="are the same number; give one"):
        rlx.train(*online, *both, run_dir=tmp_path / "both")


def test_a_phase_is_the_truth_about_its_rollout(tmp_path: Path) -> None:
    result = rlx.train(*tiny("on_policy"), "trainer.phases.online.collect=8", run_dir=tmp_path / "run")
    assert result.summary["updates"] == math.ceil(result.summary["env_steps"] / 8)
