"""Envs: specs, action units, vector envs that agree with each other, journals that replay, evaluation by hand."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.envs.registration import register, registry

import rlx
from rlx.collectors.runner import Journal, Runner, episode_seed
from rlx.envs import EnvConfig, make_env, make_vector_env, spec_of
from rlx.envs.actions import to_env_units
from rlx.envs.evaluation import run_episodes
from rlx.envs.vector import AsyncEnvs, SyncEnvs
from rlx.errors import RunFailed, UserError


class Counter(gym.Env):
    """Counts to three and terminates; the observation is the count and a number of the seed, the reward the action."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = spaces.Box(-2.0, 4.0, (1,), np.float32)
    random = False  # an env that does not replay

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self._count = 0
        self._tag = float(self.np_random.integers(0, 2**20))
        return self._observe(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        self._count += 1
        over = self._count == 3
        return self._observe(), float(action[0]), over, False, {"is_success": over} if over else {}

    def _observe(self) -> np.ndarray:
        drift = np.random.default_rng().random() if self.random else 0.0
        return np.array([self._count + drift, self._tag], np.float32)


class Odd(gym.Env):
    """Spaces that are unusual but allowed."""

    def __init__(self, obs: spaces.Space, action: spaces.Space):
        self.observation_space, self.action_space = obs, action

    def reset(self, **kwargs: Any) -> tuple[Any, dict]:
        super().reset(**kwargs)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        assert self.action_space.contains(action), action
        return self.observation_space.sample(), 0.0, False, False, {}


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    register("Counter-v0", entry_point=Counter)
    register("Odd-v0", entry_point=Odd, max_episode_steps=7)
    register("Maze-v0", entry_point=Maze)
    yield
    del registry["Counter-v0"], registry["Odd-v0"], registry["Maze-v0"]


def counter(n: int = 1, kind: str = "sync") -> Runner:
    return Runner(make_vector_env(EnvConfig(id="Counter-v0", num_envs=n, vectorization=kind)), seed=0)


# -- specs and units -------------------------------------------------------------------------------------------------


def test_specs_of_real_envs() -> None:
    spec = spec_of(make_env(EnvConfig(id="Pendulum-v1")), "Pendulum-v1")
    assert (spec.obs_shape, spec.action_kind, spec.action_shape) == ((3,), "box", (1,))
    assert (spec.action_low, spec.action_high, spec.episode_limit) == ((-2.0,), (2.0,), 200)
    spec = spec_of(make_env(EnvConfig(id="CartPole-v1", max_episode_steps=9)), "CartPole-v1")
    assert (spec.action_kind, spec.action_shape, spec.action_sizes, spec.episode_limit) == ("discrete", (), (2,), 9)
    assert spec.action_dim == 2


def test_the_goals_of_a_goal_env_are_found() -> None:
    env = make_env(EnvConfig(id="rlx/PointGoal-v0"))
    spec = spec_of(env, "rlx/PointGoal-v0")
    assert spec.obs_shape == (8,)
    assert spec.goal is not None
    assert (spec.goal.achieved, spec.goal.desired) == ((4, 6), (6, 8))
    obs, _ = env.reset(seed=1)
    inner = env.unwrapped._observe()  # type: ignore[attr-defined]
    np.testing.assert_array_equal(obs[slice(*spec.goal.desired)], inner["desired_goal"])
    np.testing.assert_array_equal(obs[slice(*spec.goal.achieved)], inner["achieved_goal"])


class Maze(gym.Env):
    """Calls its success as the mazes of gymnasium-robotics do, and may have goals that are dicts."""

    action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, nested: bool = False):
        box: spaces.Space = spaces.Box(-1.0, 1.0, (1,), np.float32)
        goal: spaces.Space = spaces.Dict(place=box) if nested else box
        self.observation_space = spaces.Dict(observation=box, achieved_goal=goal, desired_goal=goal)

    def reset(self, **kwargs: Any) -> tuple[Any, dict]:
        super().reset(**kwargs)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        return self.observation_space.sample(), 1.0, False, False, {"success": True}


def test_success_has_one_name() -> None:
    env = make_env(EnvConfig(id="Maze-v0"))
    env.reset(seed=0)
    obs, *_, info = env.step(np.zeros(1, np.float32))
    assert obs.shape == (3,)
    assert info["is_success"] is True


def test_goals_that_are_dicts_are_observations_only() -> None:
    env = make_env(EnvConfig(id="Maze-v0", kwargs={"nested": True}))
    spec = spec_of(env, "Maze-v0")
    assert (spec.obs_shape, spec.goal) == ((3,), None)


def test_an_extra_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gymnasium_robotics", None)  # cannot be imported
    with pytest.raises(UserError, match=r"pip install -e '\.\[robotics\]'"):
        make_env(EnvConfig(id="FetchReach-v4", extra="robotics"))


def test_packages_that_do_not_fit_each_other_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def outdated(self: Any, nested: bool = False) -> None:
        raise AssertionError("joint type")

    monkeypatch.setattr(Maze, "__init__", outdated)
    with pytest.raises(UserError, match=r"joint type.*pip install -e '\.\[mujoco\]'"):
        make_env(EnvConfig(id="Maze-v0", extra="mujoco"))
    with pytest.raises(RunFailed, match=r"Maze-v0 cannot be made: it raised AssertionError: joint type \(test_envs"):
        make_env(EnvConfig(id="Maze-v0"))  # an env of the user's own


@pytest.mark.parametrize("preset", ["fetch_reach", "fetch_push", "point_maze"])
def test_robotics_presets_go_with_hindsight(preset: str, tmp_path: Path) -> None:
    """Registered by the preset alone, evaluated with a success rate, and exact after a checkpoint."""
    pytest.importorskip("gymnasium_robotics", reason="needs the extra: pip install -e '.[robotics]'")
    limit = ("env.max_episode_steps=20", "trainer.max_env_steps=60", "trainer.learning_starts=30")
    small = ("algo.hidden=[16,16]", "algo.batch_size=16", "trainer.eval_episodes=2", "threads=1", "logger=jsonl")
    common = ("algo=her", f"env={preset}", *limit, *small)
    rlx.train(*common, run_dir=tmp_path / "run")
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert 0.0 <= rows[-1]["eval/success_rate"] <= 1.0
    summary = rlx.resume(tmp_path / "run", "trainer.max_env_steps=75").summary
    assert (summary["env_steps"], summary["updates"], summary["exact"]) == (75, 45, True)


BOX = spaces.Box(-1.0, 1.0, (2,), np.float32)
ODD = {
    "discrete_obs": (spaces.Discrete(5), BOX, (5,)),
    "tuple_obs": (spaces.Tuple((spaces.Discrete(3), BOX)), BOX, (5,)),
    "dict_obs": (spaces.Dict(a=BOX, b=spaces.MultiBinary(2)), BOX, (4,)),
    "matrix_obs": (spaces.Box(0, 1, (2, 3), np.float64), BOX, (6,)),
    "integer_obs": (spaces.Box(0, 255, (4,), np.uint8), BOX, (4,)),
    "shifted_discrete": (BOX, spaces.Discrete(3, start=-1), (2,)),
    "multi_discrete": (BOX, spaces.MultiDiscrete([2, 3]), (2,)),
    "matrix_action": (BOX, spaces.Box(-1, 3, (2, 2), np.float32), (2,)),
    "double_action": (BOX, spaces.Box(-1, 3, (2,), np.float64), (2,)),
    "unbounded_action": (BOX, spaces.Box(-np.inf, np.inf, (2,), np.float32), (2,)),
}


KINDS = [("sync", name) for name in ODD]
KINDS += [("async", name) for name in ("shifted_discrete", "multi_discrete", "matrix_action")]


@pytest.mark.parametrize(("kind", "name"), KINDS)
def test_unusual_spaces_work_from_end_to_end(kind: str, name: str) -> None:
    """The env itself checks the actions it gets."""
    obs, action, shape = ODD[name]
    cfg = EnvConfig(id="Odd-v0", kwargs={"obs": obs, "action": action}, num_envs=2, vectorization=kind)
    spec = spec_of(make_env(cfg), "Odd-v0")
    assert spec.obs_shape == shape
    runner = Runner(make_vector_env(cfg), seed=0)
    assert runner.obs.shape == (2, *shape)
    assert runner.obs.dtype == np.float32
    random = np.random.default_rng(0)
    for _ in range(10):
        if spec.action_kind == "box":
            given: np.ndarray = random.uniform(-1.5, 1.5, (2, *spec.action_shape)).astype(np.float32)
        else:
            given = random.integers(0, spec.action_sizes, (2, *(spec.action_shape or (1,)))).reshape(
                2, *spec.action_shape
            )
        step, _ = runner.step(given)
    assert step.next_obs.dtype == np.float32
    runner.envs.close()


def test_an_action_space_nobody_can_use_is_refused() -> None:
    env = make_env(EnvConfig(id="Odd-v0", kwargs={"obs": BOX, "action": spaces.MultiBinary(3)}))
    with pytest.raises(UserError, match="MultiBinary"):
        spec_of(env, "Odd-v0")


def test_box_actions_are_scaled_and_clipped() -> None:
    scale = to_env_units(spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 10.0], np.float32)))
    np.testing.assert_allclose(scale(np.array([[-1.0, -1.0], [0.0, 0.5], [3.0, -9.0]])), [[-2, 0], [0, 7.5], [2, 0]])
    free = to_env_units(spaces.Box(-np.inf, np.inf, (1,)))
    np.testing.assert_array_equal(free(np.array([[5.0]])), [[5.0]])


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"id": "Pendulum-v7"}, "Pendulum-v1"),
        ({"id": "no_such_module:X-v0"}, "no_such_module"),
        ({"id": ""}, "Pendulum-v1"),
        ({"id": ":X-v0"}, "Pendulum-v1"),
        ({"id": "Pendulum-v1", "kwargs": {"nonsense": 1}}, "nonsense"),
        ({"id": "Pendulum-v1", "num_envs": 0}, "num_envs"),
        ({"id": "Pendulum-v1", "vectorization": "native"}, "sync"),
        ({"id": "Pendulum-v1", "vectorization": "fast"}, "fast"),
    ],
)
def test_what_cannot_be_made_is_said(change: dict[str, Any], word: str) -> None:
    with pytest.raises(UserError, match=word):
        make_vector_env(EnvConfig(**change))


# -- vector envs -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("env_id", "kinds"), [("CartPole-v1", ("sync", "async", "native")), ("Pendulum-v1", ("sync", "async"))]
)
def test_every_kind_of_vectorization_gives_the_same_experience(env_id: str, kinds: tuple[str, ...]) -> None:
    found = []
    for kind in kinds:
        cfg = EnvConfig(id=env_id, num_envs=3, vectorization=kind, max_episode_steps=20)
        runner, random = Runner(make_vector_env(cfg), seed=5), np.random.default_rng(0)
        trace: list[Any] = [runner.obs.copy()]
        for _ in range(60):
            box = env_id.startswith("Pendulum")
            action = random.uniform(-1, 1, (3, 1)).astype(np.float32) if box else random.integers(0, 2, 3)
            step, finished = runner.step(action)
            trace += [step.next_obs.copy(), np.array(step.reward, np.float64), step.terminated.copy()]
            trace += [step.truncated.copy(), runner.obs.copy(), np.array([f.ret for f in finished])]
        runner.envs.close()
        found.append(trace)
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            np.testing.assert_array_equal(a, b)


def test_nested_infos_arrive_from_workers_as_they_were() -> None:
    class Nested(Counter):
        def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
            *rest, info = super().step(action)
            parts = {"parts": {"count": self._count, "deep": {"even": self._count % 2 == 0}}}
            return *rest, info | parts if self._count > 1 else info  # type: ignore[return-value]

    found = {}
    for kind in (SyncEnvs, AsyncEnvs):
        envs = kind([Nested] * 2)
        envs.reset({0: 1, 1: 2})
        found[kind] = [list(envs.step([np.ones(1)] * 2).infos) for _ in range(3)]
        envs.close()
    assert found[AsyncEnvs] == found[SyncEnvs]
    assert found[SyncEnvs][1] == [{"parts": {"count": 2, "deep": {"even": True}}}] * 2


@pytest.mark.parametrize(
    ("seconds", "n", "cores", "kind"),
    [(0.0, 4, 2, SyncEnvs), (0.002, 4, 2, AsyncEnvs), (0.002, 1, 2, SyncEnvs), (0.002, 4, 1, SyncEnvs)],
)
def test_slow_envs_get_workers_of_their_own(
    seconds: float, n: int, cores: int, kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, now = Counter.step, [0.0]  # a clock that only steps move, so that a busy machine changes nothing

    def slow(self: Counter, action: Any) -> Any:
        now[0] += seconds
        return step(self, action)

    monkeypatch.setattr(Counter, "step", slow)
    monkeypatch.setattr("rlx.envs.factory.time", SimpleNamespace(perf_counter=lambda: now[0]))
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(cores), raising=False)
    envs = make_vector_env(EnvConfig(id="Counter-v0", num_envs=n))
    assert type(envs) is kind
    envs.close()


def test_the_final_observation_is_the_real_one() -> None:
    runner = counter()
    counts = []
    for _ in range(4):
        step, finished = runner.step(np.zeros((1, 1), np.float32))
        counts.append((step.next_obs[0, 0], runner.obs[0, 0], bool(step.terminated[0]), len(finished)))
    assert counts == [(1, 1, False, 0), (2, 2, False, 0), (3, 0, True, 1), (1, 1, False, 0)]


def test_a_time_limit_truncates_and_does_not_terminate() -> None:
    cfg = EnvConfig(id="Pendulum-v1", max_episode_steps=2)
    runner = Runner(make_vector_env(cfg), seed=0)
    for _ in range(2):
        step, finished = runner.step(np.zeros((1, 1), np.float32))
    assert step.truncated[0]
    assert not step.terminated[0]
    assert finished[0].length == 2


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


# -- journals --------------------------------------------------------------------------------------------------------


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


# -- evaluation ------------------------------------------------------------------------------------------------------


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


def test_point_goal_by_hand() -> None:
    env = gym.make("rlx/PointGoal-v0").unwrapped
    obs, _ = env.reset(seed=0)
    assert 0.5 <= np.linalg.norm(obs["desired_goal"]) <= 1.0
    obs, reward, terminated, truncated, info = env.step(np.array([1.0, -5.0], np.float32))
    np.testing.assert_allclose(obs["observation"], [0.06, -0.06, 0.06, -0.06], rtol=1e-6)  # the force is clipped
    assert (reward, terminated, truncated, info) == (-1.0, False, False, {"is_success": False})
    achieved, desired = np.array([[0.0, 0.0], [0.0, 0.0]]), np.array([[0.05, 0.0], [0.2, 0.0]])
    assert env.compute_reward(achieved, desired, {}).tolist() == [0.0, -1.0]  # type: ignore[attr-defined]
