"""rlx/pendulum/mixed-v0: a scripted swing-up with noise, and random actions, on Pendulum-v1.

With theta = 0 upright and torque u in [-2, 2] the env obeys  theta'' = 15 sin(theta) + 3 u, so the energy
E = theta'^2 / 2 + 15 (cos(theta) - 1)  changes by 3 u theta' and is 0 at rest upright. The controller pushes along
the motion while E < 0, against it while E > 0, and near the top holds with a PD law.
"""

from __future__ import annotations

import gymnasium
import numpy as np

from rlx.data.columns import Array

EPISODES = 30  # of each level
NOISE = (0.2, 1.0, 2.0)  # standard deviation of the noise on the controller's torque; a fourth level is random
MAX_TORQUE = 2.0


def swing_up(obs: Array) -> float:
    """Torque of the controller for one observation (cos, sin, angular velocity)."""
    cos, sin, velocity = (float(x) for x in obs)
    energy = velocity**2 / 2 + 15 * (cos - 1)
    if cos > 0.85 and abs(energy) < 6:
        torque = -(10 * np.arctan2(sin, cos) + 2 * velocity)
    else:
        direction = np.sign(velocity) if velocity else 1.0
        torque = -energy * direction
    return float(np.clip(torque, -MAX_TORQUE, MAX_TORQUE))


def pendulum_mixed(seed: int = 0) -> list[tuple[Array, Array, Array, Array, Array, int]]:
    """Episodes (obs [T + 1, 3], action, reward, terminated, truncated, seed), the same on every call."""
    rng = np.random.default_rng(seed)
    env = gymnasium.make("Pendulum-v1")
    levels = [noise for noise in (*NOISE, None) for _ in range(EPISODES)]
    episodes = [_episode(env, noise, rng, seed + i) for i, noise in enumerate(levels)]
    env.close()
    return episodes


def _episode(
    env: gymnasium.Env, noise: float | None, rng: np.random.Generator, seed: int
) -> tuple[Array, Array, Array, Array, Array, int]:
    obs, _ = env.reset(seed=seed)
    observations, actions, rewards, terminations, truncations = [obs], [], [], [], []
    ended = False
    while not ended:
        torque = (
            rng.uniform(-MAX_TORQUE, MAX_TORQUE) if noise is None else swing_up(obs) + noise * rng.standard_normal()
        )
        action = np.array([np.clip(torque, -MAX_TORQUE, MAX_TORQUE)], dtype=np.float32)
        obs, reward, terminated, truncated, _ = env.step(action)
        observations.append(obs)
        actions.append(action)
        rewards.append(reward)
        terminations.append(terminated)
        truncations.append(truncated)
        ended = terminated or truncated
    flags = np.array(terminations), np.array(truncations)
    return np.array(observations), np.array(actions), np.array(rewards, dtype=np.float32), *flags, seed
