"""The envs that take a memory show what they should, and no more."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import rlx.envs  # noqa: F401  (registers them)


def test_recall_by_hand() -> None:
    env = gym.make("rlx/Recall-v0", cues=3, delay=2)
    seen = set()
    for seed in range(12):
        obs, _ = env.reset(seed=seed)
        cue = int(obs.argmax())
        seen.add(cue)
        assert obs.tolist() == [*np.eye(3)[cue], 0.0]
        obs, *rest = env.step(cue)  # too early
        assert (obs.tolist(), *rest) == ([0.0, 0.0, 0.0, 0.0], 0.0, False, False, {})
        obs, *rest = env.step(cue)
        assert (obs.tolist(), *rest) == ([0.0, 0.0, 0.0, 1.0], 0.0, False, False, {})
        right = seed % 2 == 0
        _, *rest = env.step(cue if right else (cue + 1) % 3)
        assert rest == [float(right), True, False, {"is_success": right}]
    assert seen == {0, 1, 2}


def test_cartpole_hides_its_velocities() -> None:
    hidden, whole = gym.make("rlx/CartPoleHidden-v0"), gym.make("CartPole-v1")
    assert hidden.observation_space.shape == (2,)
    assert hidden.spec is not None
    assert hidden.spec.max_episode_steps == 500
    obs, _ = hidden.reset(seed=3)
    full, _ = whole.reset(seed=3)
    for action in (0, 1, 1, 0, 0):
        np.testing.assert_array_equal(obs, full[[0, 2]])
        obs, *rest = hidden.step(action)
        full, *others = whole.step(action)
        assert rest == others


@pytest.mark.parametrize("name", ["rlx/Recall-v0", "rlx/CartPoleHidden-v0"])
def test_they_are_envs_as_gymnasium_wants_them(name: str) -> None:
    check_env(gym.make(name).unwrapped if "Recall" in name else gym.make(name), skip_render_check=True)
