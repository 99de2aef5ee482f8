"""Evaluation counts whole episodes, by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from rlx.envs import EnvConfig, make_vector_env
from rlx.envs.evaluation import run_episodes

pytestmark = pytest.mark.usefixtures("toy_envs")


class Reflex:
    """An agent that is a function of the observation."""

    def __init__(self, act: Callable[[np.ndarray], np.ndarray]):
        self.act = act

    def begin(self, lanes: Sequence[int]) -> None: ...

    def feedback(self, reward: np.ndarray) -> None: ...


def test_evaluation_counts_whole_episodes_by_hand() -> None:
    envs = make_vector_env(EnvConfig(id="Counter-v0"), 3)
    seen: set[float] = set()

    def act(obs: np.ndarray) -> np.ndarray:
        seen.update(obs[:, 1].tolist())
        return obs[:, :1] * 0.5  # the count: 0, 1/2, 1

    found = run_episodes(Reflex(act), envs, episodes=5, seed=0)
    assert found.returns.tolist() == [1.0 + 2.5 + 4.0] * 5
    assert found.lengths.tolist() == [3] * 5
    assert found.metrics("Counter-v0") == {
        "eval/return_mean": 7.5, "eval/return_std": 0.0, "eval/length_mean": 3.0, "eval/success_rate": 1.0,
    }  # fmt: skip
    assert len(seen) == 5, "each episode from a seed of its own, none twice"


@pytest.mark.parametrize("n", [1, 2, 5, 7])
def test_evaluation_does_not_depend_on_the_number_of_envs(n: int) -> None:
    def act(obs: np.ndarray) -> np.ndarray:
        return (obs[:, 2] > 0).astype(np.int64)

    envs = make_vector_env(EnvConfig(id="CartPole-v1"), n)
    found = run_episodes(Reflex(act), envs, episodes=5, seed=3)
    alone = run_episodes(Reflex(act), make_vector_env(EnvConfig(id="CartPole-v1"), 1), episodes=5, seed=3)
    np.testing.assert_array_equal(found.returns, alone.returns)
    np.testing.assert_array_equal(found.lengths, alone.lengths)
