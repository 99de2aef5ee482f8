"""Prioritized replay: the sum tree against plain sums, weights by hand, and an exact way through a checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import rlx
from rlx.data.prioritized import FAN_OUT, SumTree
from rlx.data.replay import Replay, ReplayConfig
from rlx.errors import UserError
from rlx.types import Spec

SPEC = Spec("x", (1,), "float32", "discrete", (), action_sizes=(2,))


def make(capacity: int = 100, num_envs: int = 1, seed: int = 0, **options: float) -> Replay:
    return Replay(ReplayConfig(prioritized=True, capacity=capacity, **options), SPEC, num_envs, 0.5, seed)  # type: ignore[arg-type]


def fill(replay: Replay, rows: int, start: int = 0) -> Replay:
    for k in range(start, start + rows):
        x = np.full(1, k, np.float32)
        replay.add(x[:, None], np.zeros(1, np.int64), x, x[:, None] + 1, np.zeros(1), np.zeros(1))
    return replay


def test_find_by_hand() -> None:
    tree = SumTree(4)
    tree[np.arange(4)] = np.array([1.0, 0.0, 2.0, 1.0])
    assert tree.total == 4.0
    assert tree.find(np.array([0.0, 0.99, 1.0, 2.99, 3.0, 3.99])).tolist() == [0, 0, 2, 2, 3, 3]


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 3 * FAN_OUT**2), st.integers(0, 2**32 - 1))
def test_the_tree_is_a_running_sum(size: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    tree, values = SumTree(size), np.zeros(size)
    for _ in range(5):
        leaf = rng.integers(0, size, 7)
        value = rng.choice([0.0, 1.0, 2.0, 0.5], 7)  # exact in binary: all sums are, too
        tree[leaf] = values[leaf] = value
    assert tree.total == values.sum()
    if tree.total > 0:
        mass = rng.random(20) * tree.total
        assert tree.find(mass).tolist() == np.searchsorted(values.cumsum(), mass, side="right").tolist()


@settings(max_examples=50, deadline=None)
@given(st.integers(2, 2000), st.integers(0, 2**32 - 1))
def test_the_leaves_determine_the_tree(size: int, seed: int) -> None:
    """Bit for bit, however the leaves came to be; and rounding never leads to a leaf that is 0."""
    rng = np.random.default_rng(seed)
    tree, again = SumTree(size), SumTree(size)
    for _ in range(10):
        tree[rng.integers(0, size // 2 + 1, 8)] = rng.random(8) ** 8
    again.fill(np.arange(size), tree[np.arange(size)])
    assert all(np.array_equal(a, b) for a, b in zip(tree.levels, again.levels, strict=True))
    edge = np.array([0.0, np.nextafter(tree.total, 0.0), tree.total])
    assert (tree[tree.find(edge)] > 0).all()


def test_rows_are_drawn_by_their_priorities() -> None:
    replay = fill(make(alpha=1.0, eps=1e-9), 4)
    replay.prioritize(torch.arange(4), torch.tensor([1.0, 2.0, 0.0, 5.0]))
    batches = list(replay.sample(80, 10))
    share = torch.cat([b.index for b in batches if b.index is not None]).bincount(minlength=4) / 800
    assert share.tolist() == pytest.approx([1 / 8, 2 / 8, 0.0, 5 / 8], abs=0.005)  # one row from each share of the sum
    assert all(torch.equal(b.obs[:, 0].long(), b.index) for b in batches)


def test_alpha_flattens_priorities() -> None:
    replay = fill(make(alpha=0.5, eps=1e-9), 2)
    replay.prioritize(torch.arange(2), torch.tensor([1.0, 9.0]))
    (batch,) = replay.sample(400, 1)
    assert batch.index is not None
    assert batch.index.float().mean().item() == pytest.approx(0.75, abs=0.01)  # 3 of 1 + 3


def test_weights_by_hand() -> None:
    replay = fill(make(alpha=1.0, beta=0.5, beta_end=0.5, eps=1e-9), 2)
    replay.prioritize(torch.arange(2), torch.tensor([1.0, 4.0]))
    assert replay.priorities.weights(np.array([0, 1, 1])).tolist() == pytest.approx([1.0, 0.5, 0.5])  # (1/4)^0.5


def test_full_weights_make_the_mean_unbiased() -> None:
    replay = fill(make(alpha=1.0, beta=1.0, eps=1e-9), 4)
    replay.prioritize(torch.arange(4), torch.tensor([1.0, 2.0, 4.0, 8.0]))
    (batch,) = replay.sample(15_000, 1)
    assert batch.weight is not None
    mean = (batch.weight * batch.reward).sum() / batch.weight.sum()
    assert mean.item() == pytest.approx(1.5, abs=0.01)  # of rewards 0, 1, 2, 3


def test_beta_rises_with_the_minibatches() -> None:
    replay = fill(make(beta=0.5, beta_end=1.0, beta_batches=4), 2)
    seen = [replay.priorities.beta for _ in replay.sample(2, 6)]
    assert seen == [0.625, 0.75, 0.875, 1.0, 1.0, 1.0]


def test_new_rows_have_the_largest_priority() -> None:
    replay = fill(make(alpha=1.0, eps=1e-9), 2)
    replay.prioritize(torch.arange(2), torch.tensor([6.0, 2.0]))
    fill(replay, 1, start=2)
    replay.prioritize(torch.tensor([0]), torch.tensor([2.0]))
    (batch,) = replay.sample(1000, 1)
    assert batch.index is not None
    assert (batch.index == 2).float().mean().item() == pytest.approx(0.6, abs=0.01)  # 6 of 2 + 2 + 6


def test_minibatches_follow_the_update_before() -> None:
    replay = fill(make(alpha=1.0, eps=1e-12), 8)
    batches = replay.sample(8, 2)
    next(batches)
    replay.prioritize(torch.arange(8), torch.tensor([0.0] * 7 + [1.0]))
    batch = next(batches)
    assert batch.index is not None
    assert batch.index.tolist() == [7] * 8


def test_overwritten_rows_are_new_rows() -> None:
    replay = fill(make(capacity=4, alpha=1.0, eps=1e-12), 4)
    replay.prioritize(torch.arange(4), torch.zeros(4))
    fill(replay, 1, start=4)
    (batch,) = replay.sample(6, 1)
    assert batch.obs[:, 0].tolist() == [4.0] * 6


def test_n_step_returns() -> None:
    replay = fill(make(n_step=2, alpha=1.0, eps=1e-12), 3)
    replay.prioritize(torch.arange(3), torch.tensor([0.0, 1.0, 0.0]))
    (batch,) = replay.sample(2, 1)
    assert batch.reward.tolist() == [2.0, 2.0]  # 1 + 0.5 * 2
    assert batch.next_obs[:, 0].tolist() == [3.0, 3.0]
    assert batch.discount.tolist() == [0.25, 0.25]


@pytest.mark.parametrize("capacity", [4, 6, 9])
def test_priorities_come_back_also_to_another_capacity(capacity: int) -> None:
    replay = fill(make(capacity=6, alpha=1.0, eps=1e-12), 6)
    replay.prioritize(torch.arange(6), torch.arange(6))
    list(replay.sample(2, 3))
    other = make(capacity=capacity, seed=9)
    other.load_state(replay.state())
    other.load_tensors(replay.tensors())
    kept = min(6, capacity)
    assert other.tensors()["priority"].tolist() == pytest.approx([0.0, 1.0, 2.0, 3.0, 4.0, 5.0][-kept:])
    assert (other.priorities.drawn, other.priorities.largest) == (3, pytest.approx(5.0))


@pytest.mark.parametrize(
    "options", [{"alpha": -0.1}, {"beta": 1.5}, {"beta_end": -1.0}, {"beta_batches": 0}, {"eps": 0.0}, {"n_step": 0}]
)
def test_impossible_settings_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(UserError):
        make(**options)


OVERRIDES = (
    "env=cartpole", "~algo_env", "replay=prioritized", "replay.n_step=5", "threads=1", "algo.hidden=[16,16]",
    "trainer.learning_starts=50", "trainer.train_frequency=1", "trainer.gradient_updates_per_step=1",
)  # fmt: skip


def rows(folder: Path) -> list[dict[str, float]]:
    found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if k != "wall_time"} for row in found]


@pytest.mark.parametrize("algo", ["dqn", "discrete_sac"])
def test_a_resumed_run_is_the_uninterrupted_one(algo: str, tmp_path: Path) -> None:
    """The priorities, the largest of them, beta and epsilon go through the checkpoint."""
    common = (f"algo={algo}", *OVERRIDES, "trainer.log_interval=50", "trainer.eval_interval=0", "logger=jsonl")
    whole = rlx.train(*common, "trainer.max_env_steps=300", run_dir=tmp_path / "whole", seed=3)
    rlx.train(*common, "trainer.max_env_steps=200", run_dir=tmp_path / "parts", seed=3)
    parts = rlx.resume(tmp_path / "parts", "trainer.max_env_steps=300")
    ours, theirs = parts.learner.tensors(), whole.learner.tensors()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert parts.learner.counters() == whole.learner.counters()
    assert rows(tmp_path / "parts")[-1] == rows(tmp_path / "whole")[-1]


def test_a_dataset_may_stand_by(tmp_path: Path) -> None:
    """What the refusal below says to type works."""
    common = ("algo=dqn", *OVERRIDES, "dataset=random", "trainer.offline_batch_ratio=0", "logger=none")
    result = rlx.train(*common, "trainer.max_env_steps=60", run_dir=tmp_path / "run")
    assert result.summary["updates"] == 10


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (("algo=sac", "env=pendulum"), "does not weigh its loss"),
        (
            ("algo=dqn", "env=cartpole", "dataset=random", "trainer.offline_batch_ratio=0.5"),
            "draws from a dataset",
        ),
        (("algo=dqn", "env=cartpole", "dataset=random", "trainer=offline"), "draws from a dataset"),
    ],
)
def test_priorities_without_effect_are_refused(overrides: tuple[str, ...], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=sentence):
        rlx.train(*overrides, "replay=prioritized", run_dir=tmp_path / "run")
