"""From configs to envs and their specs, and what is said where there is none."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from toy_envs import BOX, Counter, Maze

import rlx
from rlx.collectors.runner import Runner
from rlx.envs import EnvConfig, make_env, make_vector_env, probe, spec_of
from rlx.envs.vector import AsyncEnvs, SyncEnvs
from rlx.errors import RunFailed, UserError

pytestmark = pytest.mark.usefixtures("toy_envs")


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
    with pytest.raises(RunFailed, match=r"Maze-v0 cannot be made: it raised AssertionError: joint type \(test_factory"):
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


def test_a_sentence_of_an_env_ends_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def step(self: Any, action: Any) -> Any:
        raise ValueError("There is no such thing.")

    cfg = EnvConfig(id="CartPole-v1", kwargs={"sutton_barto_reward": True})
    env = make_env(cfg)
    monkeypatch.setattr(type(env.unwrapped), "step", step)
    with pytest.raises(UserError, match=r"do not fit CartPole-v1: There is no such thing\.$"):
        probe(env, cfg)
