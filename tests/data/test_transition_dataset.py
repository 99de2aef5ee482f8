"""TransitionDataset: boundaries, successors, returns and scaling by values that can be checked by hand."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

import rlx
from rlx.data import TransitionDataset
from rlx.data.dataset import apportion
from rlx.data.inspect import inspect_dataset
from rlx.data.sources.npz import read_npz
from rlx.envs import spec_of
from rlx.envs.observations import with_arrays
from rlx.errors import UserError
from rlx.types import Box, Spec

BOX = Spec("Toy-v0", (1,), "float32", "box", (2,), (-2.0, 0.0), (2.0, 10.0))


def make(**changes):
    """Two episodes: rows 0-2 (terminated), rows 3-4 (truncated)."""
    arrays = {
        "obs": np.array([[0.0], [1.0], [2.0], [10.0], [11.0]]),
        "action": np.zeros((5, 2)),
        "reward": np.array([1.0, 2.0, 3.0, 10.0, 20.0]),
        "next_obs": np.array([[1.0], [2.0], [3.0], [11.0], [12.0]]),
        "terminated": np.array([0, 0, 1, 0, 0]),
        "truncated": np.array([0, 0, 0, 0, 1]),
    }
    arrays |= changes
    return {key: value for key, value in arrays.items() if value is not None}


def test_columns_have_the_promised_types_and_episodes():
    data = TransitionDataset.from_dict(make())
    assert [str(c.dtype) for c in (data.obs, data.action, data.reward, data.terminated)] == ["float32"] * 4
    assert data.episodes.tolist() == [[0, 3], [3, 5]]
    assert data.ends.tolist() == [False, False, True, False, True]
    assert data.returns().tolist() == [6.0, 30.0]
    assert len(data) == 5


@pytest.mark.parametrize(
    "names",
    [
        ("observations", "actions", "rewards", "next_observations", "terminals", "timeouts"),  # D4RL, d3rlpy
        ("observations", "actions", "rewards", "next_observations", "terminations", "truncations"),  # Minari
        ("obs", "acts", "rews", "next_obs", "terminal", "timeout"),
    ],
)
def test_other_names_give_the_same_columns_and_are_reported(names):
    ours = make()
    theirs = dict(zip(names, ours.values(), strict=True))
    data, reference = TransitionDataset.from_dict(theirs), TransitionDataset.from_dict(ours)
    for column in ours:
        assert np.array_equal(getattr(data, column), getattr(reference, column))
    assert data.key_map == dict(zip(names, ours, strict=True))


def test_missing_next_obs_is_the_next_obs_and_rows_without_one_are_dropped():
    data = TransitionDataset.from_dict(make(next_obs=None))
    assert data.obs[:, 0].tolist() == [0, 1, 2, 10]
    assert data.next_obs[:, 0].tolist() == [1, 2, 2, 11]  # the terminated row repeats itself, it never bootstraps
    assert data.truncated.tolist() == [0, 0, 0, 1]  # row 3 is now the last that is known
    assert data.episodes.tolist() == [[0, 3], [3, 4]]


def test_an_episode_of_one_truncated_row_vanishes_without_a_successor():
    arrays = make(next_obs=None, truncated=np.array([0, 0, 0, 1, 1]))
    data = TransitionDataset.from_dict(arrays)
    assert data.obs[:, 0].tolist() == [0, 1, 2]
    assert data.truncated.tolist() == [0, 0, 0]


def test_one_more_observation_per_episode_loses_nothing():
    obs = np.array([[0.0], [1.0], [2.0], [3.0], [10.0], [11.0], [12.0]])
    data = TransitionDataset.from_dict(make(obs=obs, next_obs=None))
    reference = TransitionDataset.from_dict(make())
    assert np.array_equal(data.obs, reference.obs)
    assert np.array_equal(data.next_obs, reference.next_obs)


def test_n_plus_one_observations_of_a_single_episode():
    arrays = make(obs=np.arange(6.0)[:, None], next_obs=None, terminated=np.zeros(5), truncated=None)
    data = TransitionDataset.from_dict(arrays)
    assert data.next_obs[:, 0].tolist() == [1, 2, 3, 4, 5]
    assert data.episodes.tolist() == [[0, 5]]


def test_missing_boundaries_are_found_where_next_obs_does_not_continue():
    arrays = make(terminated=np.zeros(5), truncated=None)
    data = TransitionDataset.from_dict(arrays)
    assert data.truncated.tolist() == [0, 0, 1, 0, 1]
    assert any("1 boundary where" in note for note in data.notes)


def test_explicit_end_markers_become_truncations():
    arrays = make(truncated=None, episode_terminals=np.array([0, 1, 1, 0, 1]))
    data = TransitionDataset.from_dict(arrays)
    assert data.truncated.tolist() == [0, 1, 0, 0, 1]
    assert data.terminated.tolist() == [0, 0, 1, 0, 0]


def test_unfinished_last_episode_is_closed():
    data = TransitionDataset.from_dict(make(truncated=np.zeros(5)))
    assert data.truncated.tolist() == [0, 0, 0, 0, 1]


def test_the_given_arrays_are_never_changed():
    flags = np.zeros(5, dtype=np.float32)
    TransitionDataset.from_dict(make(truncated=flags))
    assert flags.tolist() == [0, 0, 0, 0, 0]


def test_discrete_actions_become_int64():
    data = TransitionDataset.from_dict(make(action=np.array([[0], [1], [0], [1], [1]], dtype=np.int32)))
    assert data.action.dtype == np.int64
    assert data.action.tolist() == [0, 1, 0, 1, 1]


def test_images_stay_bytes():
    images = np.zeros((5, 3, 8, 8), dtype=np.uint8)
    data = TransitionDataset.from_dict(make(obs=images, next_obs=images))
    assert data.obs.dtype == np.uint8


def test_actions_are_scaled_by_dimension():
    action = np.array([[-2.0, 0.0], [0.0, 5.0], [2.0, 10.0], [1.0, 7.5], [0.0, 0.0]])
    data = TransitionDataset.from_dict(make(action=action), spec=BOX)
    assert data.action.tolist() == [[-1, -1], [0, 0], [1, 1], [0.5, 0.5], [0, -1]]
    assert data.with_scaled_actions(BOX) is data  # never twice


def test_actions_outside_are_clipped_and_counted_or_refused(caplog):
    action = np.array([[-3.0, 0.0], [0.0, 5.0], [2.0, 12.0], [1.0, 7.5], [0.0, 0.0]])
    data = TransitionDataset.from_dict(make(action=action), source="some.npz")
    clipped = data.with_scaled_actions(BOX)
    assert clipped.action[[0, 2]].tolist() == [[-1, -1], [1, 1]]
    assert "2 action values (20.0 %) outside the box clipped" in caplog.text
    with pytest.raises(UserError, match=r"some\.npz: key 'action' has 2 values outside"):
        data.with_scaled_actions(BOX, "error")


def test_unbounded_actions_are_left_alone():
    spec = BOX._replace(action_low=(-np.inf, -1.0), action_high=(np.inf, 1.0))
    data = TransitionDataset.from_dict(make(action=np.full((5, 2), 7.0)), spec=spec)
    assert data.action[0].tolist() == [7.0, 1.0]


def test_reward_transform_keeps_raw_returns():
    data = TransitionDataset.from_dict(make()).with_reward_transform(lambda r, terminated: r * 2 - terminated)
    assert data.reward.tolist() == [2, 4, 5, 20, 40]
    assert data.returns().tolist() == [6.0, 30.0]


def test_monte_carlo_returns_by_hand():
    data = TransitionDataset.from_dict(make()).with_mc_returns(0.5)
    assert data.mc_return.tolist() == [1 + 0.5 * (2 + 0.5 * 3), 3.5, 3.0, 20.0, 20.0]


def test_a_failure_that_was_cut_off_goes_on_for_ever():
    flags = {"terminated": np.array([0, 0, 0, 0, 1]), "truncated": np.array([0, 0, 1, 0, 0])}
    data = TransitionDataset.from_dict(make(reward=-np.ones(5), **flags)).with_mc_returns(0.5)
    assert data.mc_return.tolist() == [-2.0, -2.0, -2.0, -1.5, -1.0]  # the second episode terminates


def test_n_step_columns_by_hand():
    data = TransitionDataset.from_dict(make()).with_n_step(2, 0.5)
    assert data.reward.tolist() == [2.0, 3.5, 3.0, 20.0, 20.0]
    assert data.next_obs[:, 0].tolist() == [2, 3, 3, 12, 12]
    assert data.terminated.tolist() == [0, 1, 1, 0, 0]
    assert data.discount.tolist() == [0.25, 0.25, 0.5, 0.25, 0.5]
    assert data.episodes.tolist() == [[0, 3], [3, 5]]  # still the episodes of the data
    with pytest.raises(UserError, match=r"at least 1 step \(n=0\)"):
        data.with_n_step(0, 0.5)


def test_subset_cuts_episodes_where_rows_are_missing():
    data = TransitionDataset.from_dict(make()).subset(np.array([0, 1, 3, 4]))
    assert data.truncated.tolist() == [0, 1, 0, 1]
    assert data.episodes.tolist() == [[0, 2], [2, 4]]
    by_mask = TransitionDataset.from_dict(make()).subset(np.array([True, True, False, True, True]))
    assert by_mask.returns().tolist() == data.returns().tolist() == [3.0, 30.0]
    with pytest.raises(UserError, match="subset is empty"):
        data.subset(np.zeros(4, dtype=bool))


def test_observation_statistics_by_hand():
    mean, std = TransitionDataset.from_dict(make(obs=np.array([[1.0], [1.0], [3.0], [3.0], [2.0]]))).obs_statistics()
    assert mean.tolist() == [2.0]
    assert std.tolist() == [np.float32(np.sqrt(0.8))]


@pytest.mark.parametrize(
    ("total", "shares", "expected"),
    [(10, (0.5, 0.5), [5, 5]), (10, (1, 2), [3, 7]), (3, (0.25, 0.75), [1, 2]), (7, (0.1, 0.1, 0.8), [1, 1, 5])],
)
def test_apportion_adds_up(total, shares, expected):
    assert apportion(total, shares) == expected


def test_rows_are_drawn_from_the_given_generator():
    data = TransitionDataset.from_dict(make())
    first = data.sample_rows(np.random.default_rng(3), 4, 2)
    assert first.shape == (2, 4)
    assert np.array_equal(first, data.sample_rows(np.random.default_rng(3), 4, 2))
    assert set(data.sample_rows(np.random.default_rng(0), 50, 2).ravel().tolist()) == {0, 1, 2, 3, 4}


def test_a_fingerprint_knows_every_column_and_not_the_reward_transform():
    data = TransitionDataset.from_dict(make())
    known = data.fingerprint()
    assert known["rows"] == 5
    assert TransitionDataset.from_dict(make()).fingerprint() == known
    assert data.with_reward_transform(lambda reward, terminated: 2.0 * reward).fingerprint() == known
    for column, name in {"obs": "obs", "action": "action", "reward": "raw_reward", "truncated": "truncated"}.items():
        arrays = make()
        arrays[column] = np.concatenate([[1 - arrays[column][0]], arrays[column][1:]])
        found = TransitionDataset.from_dict(arrays).fingerprint()
        assert {key for key in known if found[key] != known[key]} == {name, f"some {name}"}


# -- observations of other ranks, as an env gives them --------------------------------------------------------------


class Film(gym.Env):
    """Observations of any shape."""

    action_space = gym.spaces.Discrete(2)

    def __init__(self, shape: tuple[int, ...], dtype: str):
        self.observation_space = gym.spaces.Box(0, 255, shape, np.dtype(dtype).type)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._frame(), {}

    def step(self, action):
        return self._frame(), 0.0, False, False, {}

    def _frame(self):
        return self.np_random.integers(256, size=self.observation_space.shape).astype(self.observation_space.dtype)


def filmed(shape, dtype, rows=6):
    """What an env gave, as its own arrays and as `make_env` hands it on."""
    env = Film(shape, dtype)
    own = np.stack([env.reset(seed=0)[0], *(env.step(0)[0] for _ in range(rows))])
    seen = with_arrays(Film(shape, dtype))
    read = np.stack([seen.reset(seed=0)[0], *(seen.step(0)[0] for _ in range(rows))])
    return own, read, spec_of(seen, "Film-v0")


RANKS = [
    ((3, 20, 20, 3), "uint8"),  # stacks of pictures
    ((2, 3, 20, 20), "uint8"),
    ((2, 20, 30, 1), "float32"),
    ((20, 20), "uint8"),  # neither vectors nor images
    ((4, 5), "float32"),
    ((2, 2, 3, 2, 2), "float32"),
    ((20, 20, 3), "uint8"),
]


@pytest.mark.parametrize("mmap", [False, True])
@pytest.mark.parametrize(("shape", "dtype"), RANKS)
def test_observations_are_read_as_their_env_gives_them(shape, dtype, mmap, tmp_path):
    own, read, spec = filmed(shape, dtype)
    last = np.arange(6) == 5
    rest = {"action": np.arange(6) % 2, "reward": np.zeros(6), "terminated": np.zeros(6), "truncated": last}
    np.savez(tmp_path / "data.npz", obs=own[:-1], next_obs=own[1:], **rest)
    data = read_npz(str(tmp_path / "data.npz"), mmap).fitted_to(spec)
    assert (data.obs.shape[1:], str(data.obs.dtype)) == (spec.obs_shape, spec.obs_dtype)
    assert data.memory == ("mmap" if mmap else "ram")
    assert np.array_equal(data.obs[:], read[:-1])
    assert np.array_equal(data.next_obs[np.array([4, 0])], read[[5, 1]])
    assert np.array_equal(data.subset(np.array([3, 4])).obs[:], read[3:5])
    table = dict(inspect_dataset(read_npz(str(tmp_path / "data.npz"), mmap), spec))
    assert table["env match"].startswith("yes")


def test_pictures_that_were_scaled_are_told_what_to_do():
    """Those from 0 to 1 would be black as uint8."""
    pixels = np.zeros((5, 20, 20, 3), np.float32)
    spec = Spec("x", (20, 20, 3), "uint8", "discrete", (), action_sizes=(2,))
    with pytest.raises(UserError, match=r"is read as float32, .* save it as uint8, pixels from 0 to 1 times 255\.$"):
        TransitionDataset.from_dict(make(obs=pixels, next_obs=pixels, action=np.zeros(5, int)), spec=spec)


def test_parts_of_other_ranks_are_read_as_their_env_gives_them():
    pixels, depth = np.zeros((5, 20, 20, 3), np.uint8), np.arange(5 * 12, dtype=np.float32).reshape(5, 3, 4)
    rest = {k: v for k, v in make(action=np.zeros(5, int)).items() if "obs" not in k}
    parts = {"pixels": pixels, "depth": depth}
    boxes = (("pixels", Box((20, 20, 3), "uint8")), ("depth", Box((12,), "float32")))
    spec = Spec("x", (), "float32", "discrete", (), action_sizes=(2,), boxes=boxes)
    data = TransitionDataset.from_dict({"obs": parts, "next_obs": parts, **rest}, spec=spec)
    assert np.array_equal(data.obs["depth"], depth.reshape(5, 12))
    assert data.obs["pixels"].shape == (5, 20, 20, 3)


@pytest.mark.parametrize(
    ("shape", "box"),
    [
        ((3, 20, 20, 3), Box((9, 20, 20), "uint8")),
        ((2, 2, 2, 2, 2), Box((32,), "float32")),
        ((20, 20), Box((20, 20), "uint8")),
        ((20, 20, 3), Box((20, 20, 3), "uint8")),
    ],
)
def test_without_an_env_a_checkpoint_can_be_read(shape, box, tmp_path, caplog):
    """Its Spec is one that an env could have."""
    obs = np.random.default_rng(0).integers(256, size=(5, *shape)).astype(np.uint8)
    np.savez(tmp_path / "data.npz", **make(obs=obs, next_obs=obs, action=np.arange(5) % 2))
    few = ("algo.hidden=[4]", "algo.batch_size=2", "trainer.max_updates=1", "~callbacks.fitted_q")
    source = ("env=none", "dataset=npz", f"dataset.path={tmp_path / 'data.npz'}", "logger=jsonl", "~callbacks.progress")
    rlx.train("algo=bc", *source, *few, "threads=1", run_dir=tmp_path / "run")
    policy = rlx.load(tmp_path / "run")
    assert policy.spec.obs["obs"] == box
    assert policy.act(np.zeros(box.shape, box.dtype)) in (0, 1)
    assert ("grey pictures of 20 x 20 pixels" in caplog.text) == (len(shape) == 2)
