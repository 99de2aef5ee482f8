"""Vector envs: every kind gives the same experience, and the real final observations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from toy_envs import Counter, counter

from rlx.collectors.runner import Runner
from rlx.envs import EnvConfig, make_vector_env
from rlx.envs.vector import AsyncEnvs, SyncEnvs

pytestmark = pytest.mark.usefixtures("toy_envs")


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
