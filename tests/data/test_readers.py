"""n-step, priorities and hindsight in every combination, against a slow reference in plain Python."""

from __future__ import annotations

import itertools
import json
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlx.data.replay import Replay, ReplayConfig
from rlx.envs import EnvConfig, make_env, spec_of
from rlx.errors import UserError
from rlx.rewards import RewardConfig, RewardTransform

ENV = make_env(EnvConfig(id="rlx/PointGoal-v0"))
SPEC = spec_of(ENV, "rlx/PointGoal-v0")
GAMMA = 0.5  # sums of small integers are exact
COMBINATIONS = list(itertools.product((1, 3), (False, True), (False, True), (1, 3)))


class Step(NamedTuple):
    """A transition as it went in; the achieved goal is (lane, t), and moves on by one or stands still."""

    lane: int
    t: int
    moves: bool
    reward: float
    terminated: bool
    truncated: bool

    @property
    def obs(self) -> list[float]:
        return [self.lane, self.t, 0, 0, self.lane, self.t, 99, 99]

    @property
    def achieved(self) -> tuple[float, float]:
        return (self.lane, self.t + self.moves)

    @property
    def next_obs(self) -> list[float]:
        return [self.lane, self.t + 1, 0, 0, *self.achieved, 99, 99]

    @property
    def ends(self) -> bool:
        return self.terminated or self.truncated


def make(n_step: int, prioritized: bool, hindsight: bool, lanes: int, capacity: int, seed: int = 0) -> Replay:
    cfg = ReplayConfig(capacity=capacity, n_step=n_step, prioritized=prioritized, hindsight=hindsight)
    replay = Replay(cfg, SPEC, lanes, GAMMA, seed)
    if hindsight:
        replay.attach_env(ENV, RewardTransform(RewardConfig(shift=2.0)))
    return replay


def add(replay: Replay, steps: list[Step], lanes: list[int] | None = None) -> None:
    columns = [np.array([getattr(s, name) for s in steps]) for name in ("obs", "next_obs", "reward")]
    flags = [np.array([getattr(s, name) for s in steps]) for name in ("terminated", "truncated")]
    obs, next_obs, reward = (column.astype(np.float32) for column in columns)
    replay.add(obs, np.zeros((len(steps), 2), np.float32), reward, next_obs, *flags, lanes=lanes)


def fill(replay: Replay, length: int, rng: np.random.Generator, start: int = 0) -> list[list[Step]]:
    """`length` steps of all lanes; what went in, by lane."""
    history: list[list[Step]] = [[] for _ in range(replay.lanes)]
    for t in range(start, start + length):
        ends = rng.random((2, replay.lanes)) < 0.15
        steps = [
            Step(lane, t, bool(rng.random() < 0.5), float(rng.integers(-3, 4)), bool(a), bool(b and not a))
            for lane, (a, b) in enumerate(ends.T)
        ]
        add(replay, steps)
        for lane, step in enumerate(steps):
            history[lane].append(step)
    return history


def episode_of(lane: list[Step], t: int) -> list[Step] | None:
    """The whole episode that step t of a lane is part of; None while it goes on."""
    begin = max((s.t + 1 for s in lane if s.ends and s.t < t), default=lane[0].t)
    for last in (s.t for s in lane if s.ends and s.t >= t):
        return [s for s in lane if begin <= s.t <= last]
    return None


def rows_that_can_be_drawn(replay: Replay, history: list[list[Step]]) -> set[tuple[int, int]]:
    kept = {(s.lane, s.t) for lane in history for s in lane[-replay.store.slots :]}
    if replay.hindsight is None:
        return kept
    found = set()
    for lane, t in kept:
        episode = episode_of(history[lane], t)
        if episode is not None and all((lane, s.t) in kept for s in episode):
            found.add((lane, t))
    return found


def check_row(replay: Replay, history: list[list[Step]], batch: Any, i: int) -> bool:
    """Is row i of a batch what a loop over the steps of its episode makes of it? And was it relabelled."""
    obs = batch.obs[i].tolist()
    lane, t, goal = int(obs[0]), int(obs[1]), tuple(obs[6:8])
    relabelled = goal != (99, 99)
    steps = [s for s in history[lane] if s.t >= t][: replay.n_step]
    stop = next((k for k, s in enumerate(steps) if s.ends), len(steps) - 1)
    total, factor = 0.0, 1.0
    for step in steps[: stop + 1]:
        reward = step.reward
        if relabelled:
            reward = (0.0 if step.achieved == goal else -1.0) + 2.0  # of the env, and the transform's shift
        total += factor * reward
        factor *= GAMMA
    last = steps[stop]
    if relabelled:
        episode = episode_of(history[lane], t)
        assert episode is not None
        assert goal in {s.achieved for s in episode if s.t >= t}
    assert batch.reward[i].item() == total
    assert batch.discount[i].item() == factor
    assert batch.terminated[i].item() == last.terminated
    assert batch.next_obs[i].tolist() == [*last.next_obs[:6], *goal]
    return relabelled


@pytest.mark.parametrize(("n_step", "prioritized", "hindsight", "lanes"), COMBINATIONS)
@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 10_000), capacity=st.integers(9, 60), length=st.integers(5, 50))
def test_every_combination_reads_what_a_slow_loop_reads(
    n_step: int, prioritized: bool, hindsight: bool, lanes: int, seed: int, capacity: int, length: int
) -> None:
    """Round the ring too. Whatever can be drawn is drawn, and nothing else."""
    replay, rng = make(n_step, prioritized, hindsight, lanes, capacity), np.random.default_rng(seed)
    history = fill(replay, length, rng)
    possible = rows_that_can_be_drawn(replay, history)
    assert replay.ready == bool(possible)
    if not possible:
        return
    drawn, relabelled, rows = set(), 0, 0
    for batch in replay.sample(400, 2):
        assert (batch.weight is not None) == prioritized
        for i in range(400):
            relabelled += check_row(replay, history, batch, i)
            drawn.add((int(batch.obs[i, 0]), int(batch.obs[i, 1])))
            rows += 1
    assert drawn == possible  # at most 60 rows, 800 draws
    assert relabelled == 0 if not hindsight else abs(relabelled / rows - 0.8) < 0.08


@pytest.mark.parametrize(("n_step", "prioritized", "hindsight", "lanes"), COMBINATIONS)
def test_every_combination_resumes_exactly(n_step: int, prioritized: bool, hindsight: bool, lanes: int) -> None:
    """Through segments and JSON in the middle of an episode, after the ring went round."""
    replay, rng = make(n_step, prioritized, hindsight, lanes, 45), np.random.default_rng(3)
    segments: list[tuple[int, dict[str, torch.Tensor]]] = []
    at, t = 0, 0
    for steps in (20, 11, 8):
        fill(replay, steps, rng, t)
        t += steps
        for batch in replay.sample(16, 2):
            if prioritized:
                replay.prioritize(batch.index, batch.reward.abs())  # type: ignore[arg-type]
        at = max(at, replay.oldest)
        segments.append((at, {k: v.clone() for k, v in replay.segment(at, replay.total).items()}))
        at = replay.total
    twin = make(n_step, prioritized, hindsight, lanes, 45, seed=9)
    for start, tensors in segments:
        if start + len(tensors["rows"]) > replay.oldest:
            twin.load_segment(start, tensors)
    twin.load_state(json.loads(json.dumps(replay.state())))
    twin.load_tensors({k: v.clone() for k, v in replay.tensors().items()})
    rngs = [np.random.default_rng(5) for _ in range(2)]
    for more in (0, 9):
        for one, its in ((replay, rngs[0]), (twin, rngs[1])):
            fill(one, more, its, t)
        for a, b in zip(replay.sample(64, 3), twin.sample(64, 3), strict=True):
            assert all((x is None and y is None) or torch.equal(x, y) for x, y in zip(a, b, strict=True))
            if prioritized:
                for one, batch in ((replay, a), (twin, b)):
                    one.prioritize(batch.index, batch.reward.abs())  # type: ignore[arg-type]
        t += more


@pytest.mark.parametrize(
    ("n_step", "prioritized", "hindsight"), list(itertools.product((1, 3), (False, True), (False, True)))
)
@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 10_000), capacity=st.integers(12, 60))
def test_lanes_that_come_one_by_one(n_step: int, prioritized: bool, hindsight: bool, seed: int, capacity: int) -> None:
    """Four lanes at different speeds, some steps at a time; and exactly so after a checkpoint."""
    replay, twin = (make(n_step, prioritized, hindsight, 4, capacity) for _ in range(2))
    rng = np.random.default_rng(seed)
    history: list[list[Step]] = [[] for _ in range(4)]
    segments, at = [], 0
    for turn in range(12):
        order = rng.permutation(4)[: rng.integers(1, 5)]
        steps = []
        for lane in order.tolist():
            for _ in range(int(rng.integers(1, 3 + 2 * lane))):
                a, b = rng.random(2) < 0.15
                step = Step(lane, len(history[lane]), bool(rng.random() < 0.5), float(rng.integers(-3, 4)), bool(a),
                            bool(b and not a))  # fmt: skip
                history[lane].append(step)
                steps.append(step)
        add(replay, steps, [s.lane for s in steps])
        if turn % 4 == 3:
            at = max(at, replay.oldest)
            segments.append((at, replay.total, {k: v.clone() for k, v in replay.segment(at, replay.total).items()}))
            at = replay.total
    assert len(replay) == sum(min(len(lane), replay.store.slots) for lane in history)
    for start, end, tensors in segments:
        if end > replay.oldest:
            assert len(tensors["rows"]) == end - start
            twin.load_segment(start, tensors)
    twin.load_state(json.loads(json.dumps(replay.state())))
    twin.load_tensors(replay.tensors())
    possible = rows_that_can_be_drawn(replay, history)
    assert replay.ready == twin.ready == bool(possible)
    if not possible:
        return
    drawn = set()
    for a, b in zip(replay.sample(400, 2), twin.sample(400, 2), strict=True):
        assert all((x is None and y is None) or torch.equal(x, y) for x, y in zip(a, b, strict=True))
        for i in range(400):
            check_row(replay, history, a, i)
            drawn.add((int(a.obs[i, 0]), int(a.obs[i, 1])))
    assert drawn == possible


def test_three_steps_to_a_goal_by_hand() -> None:
    """Goals (0, 1), (0, 2), (0, 3) are achieved one after the other; a step that has not reached its goal gets -1."""
    replay = make(3, prioritized=True, hindsight=True, lanes=1, capacity=10)
    replay.attach_env(ENV, RewardTransform(RewardConfig()))
    for t in range(3):
        add(replay, [Step(0, t, True, 7.0, False, t == 2)])
    expected = {  # (step, goal): reward
        (0, 1): 0 - 0.5 - 0.25, (0, 2): -1 + 0 - 0.25, (0, 3): -1 - 0.5 + 0,
        (1, 2): 0 - 0.5, (1, 3): -1 + 0, (2, 3): 0.0,
        (0, 99): 7 + 3.5 + 1.75, (1, 99): 7 + 3.5, (2, 99): 7.0,
    }  # fmt: skip
    (batch,) = replay.sample(400, 1)
    found = {(int(o[1]), int(o[7])): r for o, r in zip(batch.obs.tolist(), batch.reward.tolist(), strict=True)}
    assert found == expected
    steps = batch.obs[:, 1]
    assert batch.discount.tolist() == (0.5 ** (3 - steps)).tolist()
    assert (batch.next_obs[:, 5] == 3).all()


def test_priorities_of_episodes_that_are_over_or_gone() -> None:
    replay = make(1, prioritized=True, hindsight=True, lanes=1, capacity=6)
    priorities = replay.priorities
    assert priorities is not None
    add(replay, [Step(0, 0, True, 0.0, False, False)])
    assert priorities[np.arange(6)].tolist() == [0.0] * 6  # the episode goes on
    add(replay, [Step(0, 1, True, 0.0, False, True)])
    assert priorities[np.arange(6)].tolist() == [1.0, 1.0, 0, 0, 0, 0]
    replay.prioritize(torch.tensor([1]), torch.tensor([1023.0]))
    largest = priorities.largest
    for t in range(2, 6):
        add(replay, [Step(0, t, True, 0.0, False, t == 4)])
    assert priorities[np.arange(6)].tolist() == [1.0, largest, largest, largest, largest, 0.0]
    add(replay, [Step(0, 6, True, 0.0, False, False)])  # over the first row of the first episode
    assert priorities[np.arange(6)].tolist() == [0.0, 0.0, largest, largest, largest, 0.0]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"alpha": 0.7}, r"replay\.alpha=0\.7 has no effect without replay\.prioritized=true"),
        ({"hindsight": True, "beta_batches": 5}, r"replay\.beta_batches=5 has no effect without replay\.prioritized"),
        ({"relabel_fraction": 0.5}, r"replay\.relabel_fraction=0\.5 has no effect without replay\.hindsight=true"),
        ({"n_step": 0}, r"replay\.n_step must be at least 1"),
        ({"hindsight": True, "relabel_fraction": 1.5}, r"replay\.relabel_fraction must be between 0 and 1"),
        ({"prioritized": True, "eps": 0.0}, r"replay\.eps must be above 0"),
        ({"union": True, "prioritized": True}, r"replay\.union=true .*replay\.prioritized=true cannot"),
        ({"union": True, "hindsight": True}, r"replay\.union=true .*replay\.hindsight=true cannot"),
        ({"union": True}, "there is none; add dataset="),
    ],
)
def test_what_has_no_effect_or_no_meaning_is_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        Replay(ReplayConfig(capacity=100, **options), SPEC, 1, GAMMA, 0)


def test_steps_have_to_be_those_of_all_lanes() -> None:
    replay = make(1, False, False, 3, 12)
    with pytest.raises(ValueError, match="3 lanes"):
        add(replay, [Step(0, 0, True, 0.0, False, False)])
