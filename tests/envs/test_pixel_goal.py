"""The pixel envs that ship with rlx: what they show, what the best and a random policy score, and that they replay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from rlx.config import compose_config
from rlx.envs import EnvConfig, make_env, make_vector_env, spec_of
from rlx.obs import parts_of
from rlx.types import Box

IDS = ("rlx/PixelGoal-v0", "rlx/PixelState-v0")
VARIANTS = [(env_id, continuous) for env_id in IDS for continuous in (False, True)]
ALL = [*VARIANTS, ("rlx/PixelMemory-v0", False), ("rlx/PixelMemory-v0", True)]
UP, DOWN, LEFT, RIGHT = range(4)


def corner(picture: np.ndarray, color: int) -> tuple[int, int]:
    """The upper left pixel (x, y) of the one 2 x 2 square of a color."""
    rows, columns = np.nonzero(picture[:, :, color])
    y, x = int(rows.min()), int(columns.min())
    expected = np.zeros((16, 16), np.uint8)
    expected[y : y + 2, x : x + 2] = 255
    np.testing.assert_array_equal(picture[:, :, color], expected)
    return x, y


def distances(obs: Any) -> tuple[int, int]:
    """From the agent to the goal, in pixels, read off an observation."""
    picture = obs["pixels"] if isinstance(obs, dict) else obs
    goal = corner(picture, 1)
    if isinstance(obs, dict):
        agent = [round((place + 1) * 7) for place in obs["state"][:2].tolist()]
    else:
        agent = list(corner(picture, 0))
    return goal[0] - agent[0], goal[1] - agent[1]


def best(obs: Any, continuous: bool) -> Any:
    dx, dy = distances(obs)
    if continuous:
        return np.sign([dx, dy]).astype(np.float32)
    if dx:
        return RIGHT if dx > 0 else LEFT
    return DOWN if dy > 0 else UP


def play(env: gym.Env, seed: int, act: Callable[[Any], Any]) -> tuple[float, int, bool, bool]:
    """Return, length, terminated and truncated of an episode."""
    obs, _ = env.reset(seed=seed)
    total, length, terminated, truncated = 0.0, 0, False, False
    while not (terminated or truncated):
        obs, reward, terminated, truncated, info = env.step(act(obs))
        total, length = total + float(reward), length + 1
        assert info["is_success"] == terminated
    return total, length, terminated, truncated


@pytest.mark.parametrize(("env_id", "continuous"), ALL)
def test_gymnasium_finds_nothing_to_complain_about(env_id: str, continuous: bool) -> None:
    check_env(gym.make(env_id, continuous=continuous).unwrapped)


@pytest.mark.parametrize(("env_id", "continuous"), VARIANTS)
def test_the_best_policy_needs_the_shortest_way(env_id: str, continuous: bool) -> None:
    env = gym.make(env_id, continuous=continuous)
    for seed in range(60):
        dx, dy = (abs(d) // 2 for d in distances(env.reset(seed=seed)[0]))
        cells = max(dx, dy) if continuous else dx + dy
        assert play(env, seed, lambda obs: best(obs, continuous)) == (1 - cells / 32, cells, True, False)


def test_the_mean_of_the_best_returns_is_five_sixths() -> None:
    """Over all 64 x 63 pairs of cells, each of which is as likely."""
    cells = [(x, y) for x in range(8) for y in range(8)]
    ways = [abs(a - c) + abs(b - d) for a, b in cells for c, d in cells if (a, b) != (c, d)]
    assert 1 - np.mean(ways) / 32 == pytest.approx(5 / 6)
    env, seen = gym.make("rlx/PixelGoal-v0").unwrapped, set()
    for seed in range(600):
        dx, dy = distances(env.reset(seed=seed)[0])
        seen.add((dx, dy))
    assert (0, 0) not in seen
    assert len(seen) > 150  # of 224


def random_return() -> float:
    """What a policy that takes each move with probability 1/4 returns on average, by its Markov chain."""
    chain = np.zeros((64, 64))
    for x in range(8):
        for y in range(8):
            for dx, dy in ((0, -1), (0, 1), (-1, 0), (1, 0)):
                chain[8 * x + y, 8 * min(max(x + dx, 0), 7) + min(max(y + dy, 0), 7)] += 1 / 4
    total = 0.0
    for goal in range(64):
        on_the_way = np.full(64, 1 / 63)
        on_the_way[goal] = 0.0
        for _ in range(32):
            total -= on_the_way.sum() / 32 / 64
            on_the_way = on_the_way @ chain
            total += on_the_way[goal] / 64
            on_the_way[goal] = 0.0
    return total


def test_a_random_policy_scores_what_its_markov_chain_says() -> None:
    expected = random_return()
    assert -0.7 < expected < -0.6
    env, random = gym.make("rlx/PixelGoal-v0"), np.random.default_rng(0)
    returns = [play(env, seed, lambda _: int(random.integers(4)))[0] for seed in range(1000)]
    assert np.mean(returns) == pytest.approx(expected, abs=4 * np.std(returns) / 1000**0.5)


@pytest.mark.parametrize("env_id", IDS)
def test_who_never_arrives_returns_minus_one_and_is_cut_off(env_id: str) -> None:
    def away(obs: Any) -> int:
        dx, dy = distances(obs)
        return (LEFT if dx > 0 else RIGHT) if dx else (UP if dy > 0 else DOWN)

    env = gym.make(env_id)
    assert play(env, 1, away) == (-1.0, 32, False, True)


def test_moves_by_hand() -> None:
    env = gym.make("rlx/PixelGoal-v0").unwrapped
    obs, _ = env.reset(seed=3)
    x, y = corner(obs, 0)
    for move, dx, dy in ((UP, 0, -2), (DOWN, 0, 2), (LEFT, -2, 0), (RIGHT, 2, 0)):
        obs, reward, terminated, truncated, _ = env.step(move)
        assert not terminated
        x, y = min(max(x + dx, 0), 14), min(max(y + dy, 0), 14)
        assert corner(obs, 0) == (x, y)
        assert (reward, truncated) == (-1 / 32, False)
    for _ in range(9):
        obs, *_ = env.step(LEFT)
    assert corner(obs, 0)[0] == 0, "the border holds"


def test_a_continuous_action_is_clipped_and_moves_by_parts_of_a_cell() -> None:
    env = gym.make("rlx/PixelState-v0", continuous=True).unwrapped
    obs, _ = env.reset(seed=3)
    x, y = ((obs["state"][:2] + 1) * 7).tolist()
    obs, *_ = env.step(np.array([9.0, -0.25], np.float32))
    assert obs["state"].tolist() == pytest.approx([(x + 2) / 7 - 1, (y - 0.5) / 7 - 1, 1.0, -0.25])


def test_state_and_pixels_are_both_needed() -> None:
    """The picture of an episode stays the same and the vector does not know the goal."""
    env = gym.make("rlx/PixelState-v0").unwrapped
    first, _ = env.reset(seed=5)
    assert not first["pixels"][:, :, [0, 2]].any()
    obs, *_ = env.step(UP)
    np.testing.assert_array_equal(obs["pixels"], first["pixels"])
    assert obs["state"][3] == -1.0
    assert obs["state"][1] == pytest.approx(first["state"][1] - 2 / 7)


@pytest.mark.parametrize(("env_id", "continuous"), ALL)
def test_an_episode_replays_from_its_seed(env_id: str, continuous: bool) -> None:
    traces = []
    for _ in range(2):
        env = gym.make(env_id, continuous=continuous)
        env.action_space.seed(1)
        trace: list[Any] = [env.reset(seed=11)[0]]
        for _ in range(20):
            step = env.step(env.action_space.sample())
            trace.append(step)
            if step[2] or step[3]:
                break
        traces.append(trace)
    np.testing.assert_equal(traces[0], traces[1])
    assert not np.array_equal(*(gym.make("rlx/PixelGoal-v0").reset(seed=s)[0] for s in (11, 12)))


def test_observations_are_not_written_to_again() -> None:
    for env_id in IDS:
        env = gym.make(env_id).unwrapped
        first, _ = env.reset(seed=0)
        kept = {k: v.copy() for k, v in first.items()} if isinstance(first, dict) else first.copy()
        for move in (UP, LEFT, DOWN):
            env.step(move)
        env.reset(seed=1)
        np.testing.assert_equal(first, kept)


@pytest.mark.parametrize(("preset", "boxes"), [
    ("pixel_goal", {"obs": Box((16, 16, 3), "uint8")}),
    ("pixel_state", {"pixels": Box((16, 16, 3), "uint8"), "state": Box((4,), "float32")}),
])  # fmt: skip
def test_the_presets_have_their_specs(preset: str, boxes: dict[str, Box]) -> None:
    for continuous, kind in ((False, "discrete"), (True, "box")):
        cfg = compose_config([f"env={preset}", f"env.kwargs.continuous={continuous}"]).env
        made = EnvConfig(id=cfg.id, kwargs=dict(cfg.kwargs))
        spec = spec_of(make_env(made), cfg.id)
        assert (spec.obs, spec.action_kind, spec.episode_limit) == (boxes, kind, 32)


@pytest.mark.parametrize("env_id", IDS)
def test_sync_and_async_show_the_same(env_id: str) -> None:
    traces = []
    for kind in ("sync", "async"):
        envs, trace = make_vector_env(EnvConfig(id=env_id, num_envs=2, vectorization=kind)), []
        trace.append(envs.reset({0: 1, 1: 2}))
        for k in range(40):
            step = envs.step([k % 4, (k // 3) % 4])
            trace.append([np.copy(part) for part in (*parts_of(step.next_obs), step.reward, step.terminated)])
            ended = np.flatnonzero(step.terminated | step.truncated).tolist()
            if ended:
                trace.append(envs.reset(dict.fromkeys(ended, 100 + k)))
        envs.close()
        traces.append(trace)
    np.testing.assert_equal(*traces)


@pytest.mark.parametrize("continuous", [False, True])
def test_memory_shows_a_corner_once_and_then_lets_the_agent_go(continuous: bool) -> None:
    env, seen = gym.make("rlx/PixelMemory-v0", continuous=continuous), set()
    for seed in range(60):
        obs, _ = env.reset(seed=seed)
        first, away = obs.copy(), distances(obs)
        start, goal = corner(obs, 0), corner(obs, 1)
        seen.add((start, goal))
        cells = [abs(d) // 2 for d in away]
        way = max(cells) if continuous else sum(cells)
        obs, reward, terminated, truncated, info = env.step(best(first, continuous))
        assert (reward, terminated, truncated, info["is_success"]) == (-1 / 32, False, False, False)
        assert corner(obs, 0) == start, "the first step moves nothing"
        assert not obs[:, :, 1].any()
        total = reward
        for _ in range(way):
            assert not terminated
            at = corner(obs, 0)
            picture = first.copy()
            picture[:, :, 0] = obs[:, :, 0]  # where the agent is, and the goal as it was shown
            assert distances(picture) == (goal[0] - at[0], goal[1] - at[1])
            obs, reward, terminated, truncated, info = env.step(best(picture, continuous))
            assert not obs[:, :, 1].any()
            total += reward
        assert terminated
        assert info["is_success"]
        assert total == 1 - (way + 1) / 32
    assert {start for start, _ in seen} == {(x, y) for x in (6, 8) for y in (6, 8)}
    assert {goal for _, goal in seen} == {(x, y) for x in (0, 14) for y in (0, 14)}


def test_what_memory_is_worth() -> None:
    """Seven cells on average and the step at the start; a tour of the corners in any order is seven cells from one to
    the next at least, and no picture after the first says which of them is the goal."""
    ways = [abs(a - c) + abs(b - d) for a in (3, 4) for b in (3, 4) for c in (0, 7) for d in (0, 7)]
    assert 1 - (1 + np.mean(ways)) / 32 == 0.75
    assert 1 - np.mean([1 + 6, 1 + 13, 1 + 20, 1 + 27]) / 32 == pytest.approx(0.453, abs=1e-3)
