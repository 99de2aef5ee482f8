"""The runner: returns of episodes, seeds of their own, journals that replay."""

from __future__ import annotations

import numpy as np
import pytest
from toy_envs import Counter, counter

from rlx.collectors.runner import Journal, Runner, episode_seed
from rlx.envs import EnvConfig, make_vector_env

pytestmark = pytest.mark.usefixtures("toy_envs")


def test_returns_are_raw_and_counted_per_episode() -> None:
    runner = counter(2)
    for _ in range(3):
        _, finished = runner.step(np.array([[-1.0], [1.0]], np.float32))  # in env units: -2 and 4
    assert [(e.ret, e.length, e.info) for e in finished] == [
        (-6.0, 3, {"is_success": True}),
        (12.0, 3, {"is_success": True}),
    ]


def test_every_episode_has_a_seed_of_its_own() -> None:
    assert len({episode_seed(s, e, k) for s in range(4) for e in range(4) for k in range(4)}) == 64
    runner = counter(2)
    tags = [runner.obs[:, 1].copy()]
    for _ in range(6):
        runner.step(np.zeros((2, 1), np.float32))
        tags.append(runner.obs[:, 1].copy())
    assert len(set(np.concatenate(tags).tolist())) == 6


@pytest.mark.parametrize("kind", ["sync", "async", "native"])
@pytest.mark.parametrize("steps", [0, 1, 7, 23])
def test_a_journal_brings_the_envs_back(kind: str, steps: int) -> None:
    """Three CartPoles, whose episodes are of different lengths."""
    cfg = EnvConfig(id="CartPole-v1", num_envs=3, vectorization=kind)
    runner, twin = (Runner(make_vector_env(cfg), seed=1) for _ in range(2))
    random = np.random.default_rng(3)
    for _ in range(steps):
        runner.step(random.integers(0, 2, 3))
    for _ in range(4):
        twin.step(random.integers(0, 2, 3))  # has been elsewhere
    journal = runner.journal()
    assert len({len(a) for a in journal.actions}) > 1 or steps < 20
    assert twin.restore(journal) == []
    np.testing.assert_array_equal(twin.obs, runner.obs)
    for _ in range(60):
        action = random.integers(0, 2, 3)
        (step, finished), (other, also) = runner.step(action), twin.step(action)
        np.testing.assert_array_equal(step.next_obs, other.next_obs)
        assert finished == also
        again = [j.hashes for j in (runner.journal(), twin.journal())]
        assert again[0] == again[1]
    for one in (runner, twin):
        one.envs.close()


def test_a_restored_journal_can_be_written_again() -> None:
    runner, twin = counter(2), counter(2)
    runner.step(np.full((2, 1), 0.5, np.float32))
    runner.step(np.full((2, 1), -0.5, np.float32))
    twin.restore(runner.journal())
    a, b = runner.journal(), twin.journal()
    assert (a.episodes, a.hashes) == (b.episodes, b.hashes)
    np.testing.assert_array_equal(a.actions, b.actions)
    _, (first, second) = twin.step(np.zeros((2, 1), np.float32))
    assert first.ret == second.ret == 3.0  # 2.5 - 0.5 + 1 in env units, counted across the journal


def test_an_env_that_does_not_come_back_begins_a_new_episode(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = counter(2)
    runner.step(np.zeros((2, 1), np.float32))
    journal = runner.journal()
    forged = Journal(journal.episodes, [journal.hashes[0], "0" * 64], journal.actions)
    assert runner.restore(forged) == [1]
    assert runner.obs[:, 0].tolist() == [1.0, 0.0]
    monkeypatch.setattr(Counter, "random", True)
    assert runner.restore(journal) == [0, 1]
