"""Observation spaces: what becomes an array, what a dict of arrays, and how vector envs deliver them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from helpers import tiny

import rlx
from rlx.data.frames import stacked_frames
from rlx.envs import EnvConfig, make_env, make_vector_env, probe, spec_of
from rlx.envs.observations import boxes_of, flattened_picture, folded, holds_images, with_arrays
from rlx.envs.vector import AsyncEnvs, EnvFault, SyncEnvs, is_finite
from rlx.errors import UserError
from rlx.obs import copy_obs
from rlx.types import Box

IMAGE = spaces.Box(0, 255, (4, 5, 3), np.uint8)
VECTOR = spaces.Box(-np.inf, np.inf, (5,), np.float64)
CAMERA = spaces.Dict(pixels=IMAGE, state=VECTOR)


class Camera(gym.Env):
    """An image and a vector of the seed, the lane's steps and the action; three steps, or a fault at the second."""

    observation_space = CAMERA
    action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, fault: str = "none"):
        self.fault = fault

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self._seed, self._count = seed or 0, 0
        return self._observe(0.0), {}

    def step(self, action: np.ndarray) -> tuple[Any, float, bool, bool, dict]:
        self._count += 1
        obs, reward = self._observe(float(action[0])), 1.0
        if self._count == 2:
            match self.fault:
                case "nan":
                    obs["state"][3] = np.nan
                case "reward":
                    reward = float("inf")
                case "missing":
                    del obs["state"]
                case "shape":
                    obs["pixels"] = obs["pixels"][:2]
        return obs, reward, self._count == 3, False, {"count": self._count}

    def _observe(self, action: float) -> dict[str, np.ndarray]:
        pixels = np.full(IMAGE.shape, self._seed % 100 + self._count, np.uint8)
        return {"pixels": pixels, "state": np.array([self._seed, self._count, action, 0.0, 1.0])}


class Given(gym.Env):
    """An env with any observation space."""

    action_space = spaces.Discrete(2)

    def __init__(self, space: spaces.Space):
        self.observation_space = space

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        return self.observation_space.sample(), 0.0, False, False, {}


# -- specs -----------------------------------------------------------------------------------------------------------


def test_a_dict_with_an_image_is_a_dict_of_boxes() -> None:
    env = with_arrays(Camera())
    spec = spec_of(env, "Camera-v0")
    assert isinstance(env, Camera), "there is nothing to wrap"
    assert spec.boxes == (("pixels", Box((4, 5, 3), "uint8")), ("state", Box((5,), "float32")))
    assert (spec.obs_shape, spec.obs_dtype, spec.goal) == ((), "float32", None)
    assert spec.obs_dim == 4 * 5 * 3 + 5


DEPTH = spaces.Box(0, 1, (4, 5, 1), np.float32)
GREY = spaces.Box(0, 255, (4, 5), np.uint8)
SPACES = {
    "image": (IMAGE, Box((4, 5, 3), "uint8")),
    "float_image": (DEPTH, Box((4, 5, 1), "float32")),
    "matrix": (GREY, Box((20,), "float32")),
    "vectors": (spaces.Dict(a=VECTOR, b=spaces.Discrete(3)), Box((8,), "float32")),
    "float_image_and_vector": (spaces.Dict(a=DEPTH, b=VECTOR), Box((25,), "float32")),
    "tuple": (spaces.Tuple((VECTOR, spaces.Discrete(3))), Box((8,), "float32")),
    "only_image": (spaces.Dict(pixels=IMAGE), {"pixels": Box((4, 5, 3), "uint8")}),
    "odd_parts": (
        spaces.Dict(a=spaces.Discrete(3), b=GREY, c=IMAGE, d=DEPTH, e=spaces.Dict(x=VECTOR, y=spaces.MultiBinary(2))),
        {
            "a": Box((3,), "float32"), "b": Box((20,), "float32"), "c": Box((4, 5, 3), "uint8"),
            "d": Box((4, 5, 1), "float32"), "e": Box((7,), "float32"),
        },
    ),
    "nested_images": (
        spaces.Dict(camera=spaces.Dict(left=IMAGE, right=IMAGE), state=VECTOR),
        {
            "camera/left": Box((4, 5, 3), "uint8"), "camera/right": Box((4, 5, 3), "uint8"),
            "state": Box((5,), "float32"),
        },
    ),
    "goals_and_image": (
        spaces.Dict(observation=VECTOR, achieved_goal=VECTOR, desired_goal=VECTOR, pixels=IMAGE),
        {
            "achieved_goal": Box((5,), "float32"), "desired_goal": Box((5,), "float32"),
            "observation": Box((5,), "float32"), "pixels": Box((4, 5, 3), "uint8"),
        },
    ),
}  # fmt: skip


def test_a_stack_of_images_has_their_channels_one_after_the_other() -> None:
    """The oldest image first, each with its channels before its pixels, whichever way round the env has them."""
    last = np.arange(2 * 4 * 5 * 3, dtype=np.uint8).reshape(2, 4, 5, 3)
    for stack in (last, np.moveaxis(last, 3, 1)):
        image = folded(stack)
        assert image.shape == (6, 4, 5)
        for n, y, x, c in np.ndindex(last.shape):
            assert image[3 * n + c, y, x] == last[n, y, x, c]


def test_more_channels_than_pixels_are_refused() -> None:
    square = spaces.Box(0, 255, (2, 6, 6, 3), np.uint8)
    with pytest.raises(UserError, match=r"A stack of 2 images makes 6 channels of 6 x 6 pixels, which cannot be told"):
        with_arrays(Given(square))
    longer = spaces.Box(0, 255, (3, 6, 6, 3), np.uint8)  # which is not square any other way
    assert boxes_of(with_arrays(Given(longer)).observation_space) == Box((9, 6, 6), "uint8")
    with pytest.raises(UserError, match=r"stack fewer of them"):
        with_arrays(Given(spaces.Dict(pixels=spaces.Box(0, 255, (2, 4, 5, 3), np.uint8), state=VECTOR)))


@pytest.mark.parametrize(("env_id", "name", "shape"), [
    ("rlx/PixelGoal-v0", "obs", (9, 16, 16)),
    ("rlx/PixelState-v0", "pixels", (9, 16, 16)),
    ("CarRacing-v3", "obs", (9, 96, 96)),
])  # fmt: skip
def test_stacked_images_are_kept_as_one_frame_per_step(env_id: str, name: str, shape: tuple[int, ...]) -> None:
    if env_id.startswith("CarRacing"):
        pytest.importorskip("Box2D")
    stack = {"_target_": "FrameStackObservation", "stack_size": 3}
    plain, env = make_env(EnvConfig(id=env_id)), make_env(EnvConfig(id=env_id, wrappers={"stack": stack}))
    spec = spec_of(env, env_id)
    assert spec.obs[name] == Box(shape, "uint8")
    assert stacked_frames(env, spec)[name] == 3

    def image(obs: Any) -> np.ndarray:
        return np.moveaxis(obs if name == "obs" else obs[name], 2, 0)

    env.action_space.seed(0)
    first, (obs, _) = image(plain.reset(seed=1)[0]), env.reset(seed=1)
    images = [first] * 3
    for _ in range(4):
        stacked = obs if name == "obs" else obs[name]
        assert stacked.dtype == np.uint8
        np.testing.assert_array_equal(stacked, np.concatenate(images[-3:]))
        action = env.action_space.sample()
        obs = env.step(action)[0]
        images.append(image(plain.step(action)[0]))


@pytest.mark.parametrize("name", SPACES)
def test_every_space_is_an_array_or_a_dict_of_arrays(name: str) -> None:
    space, boxes = SPACES[name]
    envs = SyncEnvs([lambda: with_arrays(Given(space))] * 2)
    assert boxes_of(envs.envs[0].observation_space) == boxes
    first = envs.reset({0: 1, 1: 2})[1]
    obs = envs.step([0, 1]).next_obs
    spec = spec_of(envs.envs[0], "Given-v0")
    if isinstance(boxes, Box):
        assert (spec.obs_shape, spec.obs_dtype, spec.boxes) == (boxes.shape, boxes.dtype, ())
        boxes, obs, first = {"obs": boxes}, {"obs": obs}, {"obs": first}
    assert spec.obs == boxes
    assert {n: Box(part.shape, str(part.dtype)) for n, part in first.items()} == boxes
    assert {n: Box(part.shape[1:], str(part.dtype)) for n, part in obs.items()} == boxes
    assert all(len(part) == 2 for part in obs.values())


def test_parts_keep_their_values() -> None:
    space, _ = SPACES["nested_images"]
    plain, env = Given(space), with_arrays(Given(space))
    (raw, _), (obs, _) = plain.reset(seed=3), env.reset(seed=3)
    np.testing.assert_array_equal(obs["camera/right"], raw["camera"]["right"])
    np.testing.assert_array_equal(obs["state"], raw["state"])
    flat = with_arrays(Given(spaces.Dict(kind=spaces.Discrete(3), pixels=IMAGE)))
    chosen = flat.env.reset(seed=5)[0]["kind"]  # type: ignore[attr-defined]
    assert flat.reset(seed=5)[0]["kind"].tolist() == [float(i == chosen) for i in range(3)]


def test_names_that_are_not_words_become_words() -> None:
    env = with_arrays(Given(spaces.Dict({0: IMAGE, 1: VECTOR})))  # type: ignore[dict-item]
    assert [name for name, _ in spec_of(env, "Given-v0").boxes] == ["0", "1"]
    assert set(env.reset(seed=0)[0]) == {"0", "1"}


def test_only_images_of_uint8_make_a_dict() -> None:
    assert holds_images(CAMERA)
    assert not holds_images(IMAGE)
    assert not holds_images(spaces.Dict(a=DEPTH, b=VECTOR))


def test_a_space_that_cannot_be_flattened_is_refused() -> None:
    env = with_arrays(Given(spaces.Sequence(VECTOR)))
    with pytest.raises(UserError, match=r"Given-v0 has the observation space Sequence.*cannot be flattened"):
        spec_of(env, "Given-v0")


# -- vector envs -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [SyncEnvs, AsyncEnvs])
def test_dicts_arrive_with_the_lanes_first(kind: Any) -> None:
    envs = kind([Camera] * 2)
    first = envs.reset({0: 7, 1: 9})
    assert sorted(first) == [0, 1]
    assert (first[1]["pixels"] == 9).all()
    assert first[1]["state"].tolist() == [9.0, 0.0, 0.0, 0.0, 1.0]
    step = envs.step([np.array([0.5]), np.array([-0.5])])
    assert list(step.next_obs) == ["pixels", "state"]
    assert step.next_obs["pixels"].shape == (2, 4, 5, 3)
    assert step.next_obs["pixels"].dtype == np.uint8
    assert step.next_obs["pixels"][:, 0, 0, 0].tolist() == [8, 10]
    assert step.next_obs["state"].dtype == np.float32
    assert step.next_obs["state"].tolist() == [[7.0, 1.0, 0.5, 0.0, 1.0], [9.0, 1.0, -0.5, 0.0, 1.0]]
    envs.close()


@pytest.mark.parametrize("kind", [SyncEnvs, AsyncEnvs])
def test_a_reset_leaves_the_last_step_and_first_observations_alone(kind: Any) -> None:
    """The final observation of one lane, while the lane already begins its next episode."""
    envs = kind([Camera] * 2)
    first = envs.reset({0: 1, 1: 2})
    for _ in range(3):
        step = envs.step([np.zeros(1)] * 2)
    final = copy_obs(step.next_obs)
    again = envs.reset({1: 50})
    assert list(again) == [1]
    assert again[1]["state"][:2].tolist() == [50.0, 0.0]
    for name, part in final.items():
        np.testing.assert_array_equal(step.next_obs[name], part)
    envs.step([np.zeros(1)] * 2)
    assert first[0]["state"][:2].tolist() == [1.0, 0.0]
    assert again[1]["state"][:2].tolist() == [50.0, 0.0]
    envs.close()


def test_sync_and_async_give_the_same_dicts() -> None:
    traces = []
    for kind in (SyncEnvs, AsyncEnvs):
        envs, trace = kind([Camera] * 3), []
        envs.reset({0: 1, 1: 2, 2: 3})
        for k in range(9):
            step = envs.step(np.linspace(-1, 1, 3).reshape(3, 1))
            trace += [copy_obs(step.next_obs), step.reward.copy(), step.terminated.copy(), list(step.infos)]
            if step.terminated.any():
                trace.append(envs.reset({int(i): k for i in np.flatnonzero(step.terminated)}))
        envs.close()
        traces.append(trace)
    for a, b in zip(*traces, strict=True):
        np.testing.assert_equal(a, b)


@pytest.mark.parametrize("kind", [SyncEnvs, AsyncEnvs])
@pytest.mark.parametrize(("fault", "words"), [
    ("nan", r"gave the observation state=\[ 5., 2., 0., nan, 1.\]"), ("reward", "gave the reward inf"),
    ("missing", "raised KeyError"), ("shape", "raised ValueError"),
])  # fmt: skip
def test_faults_of_dicts_name_the_lane_and_the_part(kind: Any, fault: str, words: str) -> None:
    makers = [lambda lane=lane: Camera(fault if lane == 1 else "none") for lane in range(2)]
    envs = kind(makers, "Camera-v0")
    envs.reset({0: 4, 1: 5})
    envs.step([np.zeros(1)] * 2)
    with pytest.raises(EnvFault, match=rf"^Camera-v0, lane 1: step 2 of the episode with seed 5 {words}"):
        envs.step([np.zeros(1)] * 2)
    envs.close()


def test_a_first_observation_is_checked_part_by_part(monkeypatch: pytest.MonkeyPatch) -> None:
    obs = {"pixels": np.zeros(IMAGE.shape, np.uint8), "state": np.full(5, np.inf)}
    monkeypatch.setattr(Camera, "_observe", lambda self, action: obs)
    envs = SyncEnvs([Camera], "Camera-v0")
    with pytest.raises(EnvFault, match=r"lane 0: the reset of .* gave the observation state=\[inf"):
        envs.reset({0: 3})


def test_a_dict_is_finite_if_all_of_it_is() -> None:
    assert is_finite({"pixels": np.full(3, 255, np.uint8), "state": np.ones(2)})
    assert not is_finite({"pixels": np.full(3, 255, np.uint8), "state": np.array([1.0, np.nan])})


@pytest.mark.parametrize("kind", ["auto", "sync", "async"])
def test_dicts_from_a_registered_env(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where steps are timed (auto) and keywords are tried with one step (probe)."""
    gym.register("Camera-v0", entry_point=Camera)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(2), raising=False)
    try:
        cfg = EnvConfig(id="Camera-v0", num_envs=2, vectorization=kind, kwargs={"fault": "none"})
        env = make_env(cfg)
        probe(env, cfg)
        envs = make_vector_env(cfg)
        assert sorted(envs.reset({0: 1, 1: 2})[0]) == ["pixels", "state"]
        envs.close()
        with pytest.raises(UserError, match="cannot be run by a native vector env"):
            make_vector_env(EnvConfig(id="Camera-v0", num_envs=2, vectorization="native"))
    finally:
        del gym.registry["Camera-v0"]


# -- pictures that are not read as such ------------------------------------------------------------------------------


SCREEN = spaces.Box(0, 255, (16, 20), np.uint8)
RESHAPED = "env.wrappers.image={_target_: ReshapeObservation, shape: [16, 20, 1]}"


def test_a_run_says_that_a_grey_picture_is_read_as_a_vector(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    short = tiny("on_policy", "algo=ppo", "env.num_envs=2", "trainer.max_env_steps=64")
    overrides = [override for override in short if not override.startswith("env=")]
    with caplog.at_level("WARNING", "rlx"):
        made = rlx.train(*overrides, env=lambda: Given(SCREEN), run_dir=tmp_path / "vector").run_dir
        rlx.evaluate(made, env=lambda: Given(SCREEN))
    (warning,) = [record.message for record in caplog.records if "grey" in record.message]
    assert "gives grey pictures of 16 x 20 pixels" in warning
    assert "are read as vectors of 320 numbers" in warning
    assert f"add '{RESHAPED}'" in warning
    caplog.clear()
    with caplog.at_level("WARNING", "rlx"):
        made = rlx.train(*overrides, RESHAPED, env=lambda: Given(SCREEN), run_dir=tmp_path / "image").run_dir
    assert not caplog.records
    assert rlx.load(made).spec.obs == {"obs": Box((16, 20, 1), "uint8")}


@pytest.mark.parametrize(("env", "picture"), [
    (Given(SCREEN), (16, 20)),
    (Given(spaces.Box(0, 255, (84, 84), np.uint8)), (84, 84)),
    (Given(spaces.Box(0, 255, (15, 84), np.uint8)), None),  # a small grid
    (Given(spaces.Box(0, 1, (84, 84), np.float32)), None),  # numbers
    (Given(spaces.Box(0, 255, (84, 84, 1), np.uint8)), None),  # read as an image
    (Given(spaces.Box(0, 255, (7056,), np.uint8)), None),
    (gym.wrappers.FlattenObservation(Given(SCREEN)), None),  # as it was asked for
])  # fmt: skip
def test_which_grey_pictures_are_flattened(env: gym.Env, picture: tuple[int, int] | None) -> None:
    assert flattened_picture(with_arrays(env)) == picture
