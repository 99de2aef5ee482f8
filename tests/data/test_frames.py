"""Images in a store: what is read is what the env gave, whatever is kept of it."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

import rlx.data.sources.run as run_source
from rlx.checkpoint import CheckpointData, CheckpointStore
from rlx.collectors.runner import Runner
from rlx.data.frames import Frames, Packed, stacked_frames
from rlx.data.replay import Replay, ReplayConfig
from rlx.data.sources import read_replay
from rlx.data.store import make_columns
from rlx.envs import EnvConfig, make_vector_env
from rlx.errors import UserError
from rlx.types import Box, Spec

SHAPE = (4, 3, 2)
IMAGE = Spec("x", SHAPE, "uint8", "discrete", (), action_sizes=(3,))
BOX = Box(SHAPE, "uint8")


class Camera:
    """Numbered frames of one lane, stacked by four; `pad` says what a first stack is filled up with."""

    def __init__(self, lane: int = 0, pad: str = "repeat", shifts: bool = True):
        self.next_frame, self.lane, self.pad, self.shifts = 0, lane, pad, shifts
        self.stack: deque[np.ndarray] = deque(maxlen=4)
        self.reset()

    def frame(self) -> np.ndarray:
        self.next_frame += 1
        return np.full(SHAPE[1:], (37 * self.next_frame + 101 * self.lane) % 256, np.uint8)

    def reset(self) -> np.ndarray:
        first = self.frame()
        others = {"repeat": [first] * 3, "zeros": [0 * first] * 3, "own": [self.frame() for _ in range(3)]}
        self.stack.extend([*others[self.pad], first])
        return self.obs()

    def step(self) -> np.ndarray:
        if not self.shifts:
            self.stack.extend([self.frame() for _ in range(4)])
        self.stack.append(self.frame())
        return self.obs()

    def obs(self) -> np.ndarray:
        return np.stack(self.stack)


def walk(replay: Replay, cameras: list[Camera], ends: list[list[bool]], lanes: list[int] | None = None) -> list[Any]:
    """Add steps of all lanes (or of some); what went in, by lane."""
    seen: list[list[tuple[np.ndarray, np.ndarray]]] = [[] for _ in cameras]
    for ended in ends:
        before = [camera.obs() for camera in cameras]
        after = [camera.step() for camera in cameras]
        n = len(cameras)
        replay.add(np.stack(before), np.zeros(n, np.int64), np.zeros(n, np.float32), np.stack(after),
                   np.array(ended), np.zeros(n, bool), lanes=lanes)  # fmt: skip
        for lane, camera in enumerate(cameras):
            seen[lane].append((before[lane], after[lane]))
            if ended[lane]:
                camera.reset()
    return seen


def make(capacity: int, lanes: int = 1, stack: int = 4, n_step: int = 1) -> Replay:
    return Replay(ReplayConfig(capacity=capacity, n_step=n_step), IMAGE, lanes, 0.9, 0, frames={"obs": stack})


def check(replay: Replay, seen: list[Any]) -> None:
    for lane, steps in enumerate(seen):
        place = replay.store.history(lane)
        kept = steps[-len(place) :] if len(place) else []
        column = replay.store.columns["obs"]
        pair = column.both(place)
        for found, which in ((column.obs(place), 0), (column.next_obs(place), 1), (pair[0], 0), (pair[1], 1)):
            assert np.array_equal(found.numpy(), np.array([step[which] for step in kept]).reshape(found.shape))


@settings(max_examples=60, deadline=None)
@given(
    lanes=st.sampled_from([1, 3]),
    capacity=st.integers(3, 40),
    stack=st.sampled_from([1, 2, 4]),
    pad=st.sampled_from(["repeat", "zeros", "own"]),
    ends=st.lists(st.lists(st.booleans(), min_size=3, max_size=3), min_size=1, max_size=60),
)
def test_every_stack_is_the_one_that_went_in(
    lanes: int, capacity: int, stack: int, pad: str, ends: list[list[bool]]
) -> None:
    """At the borders of episodes, of any length, and round the ring."""
    replay = make(max(capacity, lanes), lanes, stack)
    seen = walk(replay, [Camera(i, pad) for i in range(lanes)], [row[:lanes] for row in ends])
    check(replay, seen)
    assert replay.store.columns["obs"].stack in (stack, 1)  # two by two, a stack that shifts by one does not shift


@settings(max_examples=30, deadline=None)
@given(
    lanes=st.sampled_from([1, 2]),
    capacity=st.integers(4, 30),
    other=st.integers(4, 30),
    cuts=st.lists(st.integers(1, 9), min_size=1, max_size=5),
    seed=st.integers(0, 99),
)
def test_segments_put_images_back(lanes: int, capacity: int, other: int, cuts: list[int], seed: int) -> None:
    """Written piece by piece, read into a ring of the same size, or of another one."""
    rng = np.random.default_rng(seed)
    replay, cameras = make(capacity, lanes), [Camera(i) for i in range(lanes)]
    seen: list[Any] = [[] for _ in cameras]
    segments = []
    for steps in cuts:
        start = max(segments[-1][1] if segments else 0, replay.oldest)
        for lane, more in enumerate(walk(replay, cameras, (rng.random((steps, lanes)) < 0.2).tolist())):
            seen[lane] += more
        start = max(start, replay.oldest)
        tensors = {k: v.clone() for k, v in replay.segment(start, replay.total).items()}
        segments.append((start, replay.total, tensors))
    needed = [s for s in segments if s[1] > replay.oldest]
    for size in (capacity, other):
        if size - size % lanes > replay.total - needed[0][0]:
            continue  # a larger ring would need what is overwritten
        twin = make(size, lanes)
        for start, _, tensors in needed:
            twin.load_segment(start, tensors)
        twin.load_state(replay.state())
        check(twin, seen)


def test_an_env_that_does_not_stack_is_kept_whole(caplog: pytest.LogCaptureFixture) -> None:
    replay = make(20)
    seen = walk(replay, [Camera(shifts=False)], [[i % 5 == 4] for i in range(13)])
    assert "kept whole" in caplog.text
    assert replay.store.columns["obs"].stack == 1
    check(replay, seen)


def test_a_stack_that_breaks_off_later_loses_nothing() -> None:
    replay, camera = make(12), Camera()
    (first,) = walk(replay, [camera], [[i % 7 == 6] for i in range(20)])
    assert replay.store.columns["obs"].stack == 4
    camera.shifts = False
    (then,) = walk(replay, [camera], [[False]] * 5)
    assert replay.store.columns["obs"].stack == 1
    check(replay, [[*first, *then]])
    twin = make(12)  # which takes stacks again, until it is told otherwise
    segments = (replay.segment(replay.oldest, replay.total),)
    twin.load_segment(replay.oldest, segments[0])
    twin.load_state(replay.state())
    check(twin, [[*first, *then]])


def test_a_million_stacks_take_a_seventh() -> None:
    """Of 52.6 GiB: 1,000,000 x 4 x 84 x 84 bytes, twice. Nothing is allocated before it is written to."""
    spec = Spec("x", (4, 84, 84), "uint8", "discrete", (), action_sizes=(4,))
    cfg = ReplayConfig(capacity=1_000_000)
    stacked = Replay(cfg, spec, 1, 0.99, 0, frames={"obs": 4})
    assert stacked.nbytes < 2 * 1_000_000 * 4 * 84 * 84 / 7
    assert stacked.nbytes / 2**30 < 6.7


def test_memory_grows_with_the_ends_of_episodes_only() -> None:
    replay = make(400)
    before = replay.nbytes
    walk(replay, [Camera()], [[False]] * 400)
    assert replay.nbytes == before
    walk(replay, [Camera(pad="zeros")], [[i % 4 == 3] for i in range(400)])
    assert (
        before < replay.nbytes < before + 4 * 100 * 2 * 24
    )  # a first and a last stack of 100 episodes, in powers of 2
    walk(replay, [Camera()], [[i % 4 == 3] for i in range(4000)])
    assert replay.nbytes < before + 4 * 100 * 2 * 24  # what is overwritten makes room


def test_n_steps_ahead_of_images() -> None:
    replay = make(20, n_step=3)
    (seen,) = walk(replay, [Camera()], [[i == 5] for i in range(10)])
    batch = replay.layout.batch(*replay.read(np.array([0, 4, 5, 8])))
    assert np.array_equal(batch.obs.numpy(), [seen[i][0] for i in (0, 4, 5, 8)])
    assert np.array_equal(batch.next_obs.numpy(), [seen[i][1] for i in (2, 5, 5, 9)])


class Moving(gym.Env[np.ndarray, np.integer[Any]]):
    """A camera as an env."""

    def __init__(self, shifts: bool):
        self.camera = Camera(shifts=shifts)
        self.observation_space = gym.spaces.Box(0, 255, SHAPE, np.uint8)
        self.action_space = gym.spaces.Discrete(2)  # type: ignore[assignment]
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        return self.camera.reset(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return self.camera.step(), 0.0, self.steps % 5 == 0, False, {}


@pytest.mark.parametrize(("shifts", "stack"), [(True, 4), (False, 1)])
def test_a_few_steps_tell_how_many_frames_are_stacked(shifts: bool, stack: int) -> None:
    assert stacked_frames(Moving(shifts), IMAGE) == {"obs": stack}


class Dark(gym.Env[np.ndarray, np.integer[Any]]):
    """Pictures that are black for the first steps of an episode, and noise then; the newest `stack` of them."""

    action_space = gym.spaces.Discrete(2)  # type: ignore[assignment]

    def __init__(self, shape: tuple[int, ...], stack: int, dark: int):
        self.observation_space = gym.spaces.Box(0, 255, (stack * shape[0], *shape[1:]), np.uint8)
        self.shape, self.stack, self.dark = shape, stack, dark

    def _obs(self) -> np.ndarray:
        self.steps += 1
        made = np.zeros(self.shape, np.uint8)
        if self.steps > self.dark:
            made[:] = self.np_random.integers(256, size=self.shape)
        self.frames.append(made)
        return np.concatenate(self.frames)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps, self.frames = 0, deque([np.zeros(self.shape, np.uint8)] * self.stack, maxlen=self.stack)
        return self._obs(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        return self._obs(), 0.0, False, self.steps >= 60, {}


@pytest.mark.parametrize(
    ("shape", "stack", "expected"),
    [((8, 8, 3), 1, 1), ((3, 8, 8), 1, 1), ((3, 8, 8), 4, 4), ((1, 8, 8), 4, 4)],
)
@pytest.mark.parametrize("dark", [0, 40])
def test_pictures_that_stand_still_tell_nothing_of_frames(
    shape: tuple[int, ...], stack: int, expected: int, dark: int
) -> None:
    """A black picture of eight rows shifts by one of them, and a black stack by any number of channels."""
    env = Dark(shape, stack, dark)
    spec = Spec("x", env.observation_space.shape or (), "uint8", "discrete", (), action_sizes=(2,))
    assert stacked_frames(env, spec) == {"obs": expected}


class Numbered(gym.Env[np.ndarray, np.integer[Any]]):
    """Pictures of 2 x 2 pixels that are all 1, 2, 3 in the first episode, 11, 12 in the second, 21, 22, 23 ..."""

    lengths = (2, 1, 4)  # steps of the episodes

    def __init__(self) -> None:
        self.observation_space = gym.spaces.Box(0, 255, (2, 2), np.uint8)
        self.action_space = gym.spaces.Discrete(2)  # type: ignore[assignment]
        self.episode = -1

    def picture(self) -> np.ndarray:
        return np.full((2, 2), 10 * self.episode + self.steps + 1, np.uint8)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        self.episode, self.steps = self.episode + 1, 0
        return self.picture(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        over = self.steps == self.lengths[self.episode]
        return self.picture(), 0.0, over and self.episode == 0, over and self.episode > 0, {}


def test_no_stack_reaches_into_the_episode_before() -> None:
    """From the env through the collector into the replay: a first picture fills its stack, and the last one stays."""
    gym.register("Numbered-v0", lambda **kwargs: Numbered())
    stack = {"_target_": "FrameStackObservation", "stack_size": 3}
    runner = Runner(make_vector_env(EnvConfig(id="Numbered-v0", num_envs=1, wrappers={"stack": stack})), seed=0)
    spec = IMAGE._replace(obs_shape=(3, 2, 2))
    replay = Replay(ReplayConfig(capacity=20), spec, 1, 0.9, 0, frames={"obs": 3})
    for _ in range(6):
        obs = runner.obs.copy()  # type: ignore[union-attr]
        step, _ = runner.step(np.zeros(1, np.int64))
        replay.add(obs, np.zeros(1, np.int64), step.reward, step.next_obs, step.terminated, step.truncated)
    expected = [
        ([1, 1, 1], [1, 1, 2]),
        ([1, 1, 2], [1, 2, 3]),  # the end of the first episode
        ([11, 11, 11], [11, 11, 12]),  # the whole second one
        ([21, 21, 21], [21, 21, 22]),
        ([21, 21, 22], [21, 22, 23]),
        ([21, 22, 23], [22, 23, 24]),
    ]
    column = replay.store.columns["obs"]
    assert column.stack == 3
    place = replay.store.history(0)
    for part in (place, *place[:, None]):  # all at once, and each by itself
        pictures = column.both(part)
        read = [[stacked[:, 0, 0].tolist() for stacked in side] for side in pictures]
        assert list(zip(*read, strict=True)) == [expected[i] for i in np.flatnonzero(np.isin(place, part))]
        assert all((side == side[:, :, :1, :1]).all() for side in pictures)


def test_vectors_of_bytes_are_no_stacks() -> None:
    spec = IMAGE._replace(obs_shape=(6,))
    replay = Replay(ReplayConfig(capacity=5), spec, 1, 0.9, 0)
    rows = np.arange(54, dtype=np.uint8).reshape(9, 6)
    for t in range(8):
        replay.add(rows[t : t + 1], np.zeros(1), np.zeros(1), rows[t + 1 : t + 2], np.zeros(1), np.zeros(1))
    place = replay.store.history(0)
    assert replay.store.columns["obs"].obs(place).tolist() == rows[3:8].tolist()
    assert replay.store.columns["obs"].next_obs(place).tolist() == rows[4:9].tolist()


@pytest.mark.parametrize(
    "change",
    [
        {"frames": np.zeros((2, 2, 3, 2), np.uint8)},
        {"whole": np.zeros((1, 4, 3, 3), np.uint8)},
        {"first": np.array([0, 1, 9], np.int32)},
        {"final": np.array([0, 0, 0])},
    ],
)
def test_images_that_do_not_fit_are_refused(change: dict[str, np.ndarray]) -> None:
    good = {"frames": np.zeros((3, 1, 3, 2), np.uint8), "whole": np.zeros((2, *SHAPE), np.uint8)}
    good |= {"first": np.array([0, -1, -1], np.int32), "final": np.array([-1, -1, 1], np.int32)}
    Packed(**good).check(BOX, 3)
    lane, step = np.zeros(3, np.int64), np.arange(3)
    with pytest.raises(ValueError, match="images"):
        Frames(BOX, 5, 1, 4).load_segment(lane, step, {k: torch.from_numpy(v) for k, v in (good | change).items()})


def test_images_that_are_kept_whole_need_the_memory_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlx.system.available_memory", lambda: 10_000)
    saved = {"frames": np.zeros((200, 1, 3, 2), np.uint8), "whole": np.zeros((1, *SHAPE), np.uint8)}
    few = {"first": np.full(200, -1, np.int32), "final": np.full(200, -1, np.int32)}
    few["first"][0] = few["final"][-1] = 0
    lane, step = np.zeros(200, np.int64), np.arange(200)
    Frames(BOX, 200, 1, 4).load_segment(lane, step, {k: torch.from_numpy(v) for k, v in (saved | few).items()})
    many = {"first": np.zeros(200, np.int32), "final": np.zeros(200, np.int32)}  # one picture, 400 times
    with pytest.raises(UserError, match="so many short episodes needs"):
        Frames(BOX, 200, 1, 4).load_segment(lane, step, {k: torch.from_numpy(v) for k, v in (saved | many).items()})


# -- the replay of a run as a dataset ----------------------------------------------------------------------------------


def saved_run(folder: Path, lanes: int = 2) -> list[Any]:
    """The checkpoint of a run of stacks; what went in, by lane."""
    replay, cameras = make(20, lanes), [Camera(i) for i in range(lanes)]
    seen = walk(replay, cameras, [[t % 5 == 4, t % 7 == 6][:lanes] for t in range(14)])
    state = {"learner": {"updates": 0}, "journal": {"episodes": [1] * lanes}, "replay": replay.state()}
    tensors = {"learner": {"w": torch.zeros(1)}}
    saved = CheckpointData.of(OmegaConf.create({}), IMAGE, state, tensors)
    CheckpointStore(folder / "checkpoints").save_step(saved, 28, replay)
    return seen


def test_the_stacks_of_a_run_are_put_together_for_a_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a store that keeps one frame per step as the run did, a few rows at a time."""
    seen, made = saved_run(tmp_path), []
    monkeypatch.setattr(run_source, "CHUNK", 4)
    monkeypatch.setattr(run_source, "make_columns", lambda *a: made.append(make_columns(*a)) or made[-1])
    arrays, _ = read_replay(tmp_path)
    assert [column["obs"].stack for column in made] == [4]
    kept = [step for lane in seen for step in lane[-10:]]
    assert np.array_equal(arrays["obs"], np.array([step[0] for step in kept]))
    assert np.array_equal(arrays["next_obs"], np.array([step[1] for step in kept]))
    assert np.flatnonzero(arrays["truncated"]).tolist() == [9], "the lane whose episode was still going on"


def test_a_replay_that_does_not_fit_into_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is allocated."""
    saved_run(tmp_path)
    monkeypatch.setattr("rlx.system.available_memory", lambda: 1000)
    monkeypatch.setattr(run_source, "make_columns", None)
    with pytest.raises(UserError, match=r"needs 0.0 GiB and 0.0 GiB are free; use a run with a smaller replay"):
        read_replay(tmp_path)
