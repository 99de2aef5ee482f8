"""The table of a dataset says what is in it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import rlx
from rlx.data import TransitionDataset, inspect_dataset
from rlx.types import Spec

SPEC = Spec("Toy-v0", (2,), "float32", "box", (1,), (-2.0,), (2.0,))


def dataset(action):
    return TransitionDataset.from_dict(
        {
            "observations": np.array([[0.0, -1.0], [1.0, 5.0], [2.0, 3.0], [4.0, 0.5]]),
            "actions": action,
            "rewards": np.array([1.0, 2.0, 3.0, -4.0]),
            "next_observations": np.zeros((4, 2)),
            "terminals": np.array([0, 1, 0, 0]),
            "timeouts": np.array([0, 0, 0, 1]),
        },
        source="toy.npz",
    )


def test_the_table_of_a_box_dataset():
    rows = dict(inspect_dataset(dataset(np.array([[-2.0], [0.0], [1.0], [3.0]])), SPEC))
    assert rows["source"] == "toy.npz"
    assert rows["transitions"].startswith("4 (")
    assert rows["episodes"] == "2 (1 terminated, 1 truncated)"
    assert rows["return"] == "1.0 +- 2.0, min -1.0, quartiles 0.0 1.0 2.0, max 3.0"
    assert rows["reward"] == "[-4, 3]"
    assert rows["obs"] == "(2,) float32, [0, 4], [-1, 5]"
    assert rows["action"] == "1 dimensions (env units), [-2, 3]"
    assert rows["saturation"] == "50.0% of entries on or outside the bounds, 1 outside"
    assert rows["NaN or inf"] == "0"
    assert rows["env match"] == "yes: Toy-v0"
    assert "timeouts -> truncated" in rows["keys"]


def test_the_table_after_scaling_and_without_an_env():
    data = dataset(np.array([[-2.0], [0.0], [1.0], [2.0]]))
    assert dict(inspect_dataset(data.fitted_to(SPEC)))["saturation"] == "50.0% of entries on the bounds"
    rows = dict(inspect_dataset(data))
    assert "bounds unknown" in rows["saturation"]
    assert "env match" not in rows


def test_the_table_of_a_discrete_dataset_that_does_not_match():
    rows = dict(inspect_dataset(dataset(np.array([0, 1, 1, 1])), SPEC))
    assert rows["action"] == "discrete, 0: 25.0%, 1: 75.0%"
    assert rows["saturation"] == "discrete"
    assert rows["env match"].startswith("no: toy.npz: key 'actions' has dtype int64")


def test_odd_numbers_after_a_transform_are_counted():
    data = dataset(np.zeros((4, 1))).with_reward_transform(lambda r, terminated: np.where(r > 1, np.nan, r))
    assert dict(inspect_dataset(data))["NaN or inf"] == "2"


def test_images_have_one_range():
    image = np.zeros((4, 3, 4, 4), np.uint8)
    image[1, 2] = 200
    arrays = {"obs": image, "action": np.zeros(4, int), "reward": np.zeros(4), "next_obs": image}
    data = TransitionDataset.from_dict(arrays | {"terminated": np.zeros(4), "truncated": np.zeros(4)})
    assert dict(inspect_dataset(data))["obs"] == "(3, 4, 4) uint8, [0, 200]"


def test_an_env_is_as_it_is_by_itself(tmp_path: Path):
    """Not as the pair of the default algorithm has it: SAC moves continuously in PixelGoal."""
    image = np.zeros((4, 16, 16, 3), np.uint8)
    np.savez(tmp_path / "data.npz", obs=image, action=[0, 1, 2, 3], reward=np.zeros(4), terminated=[0, 0, 0, 1])
    assert dict(rlx.workflows.inspect_data(tmp_path / "data.npz", env="pixel_goal"))["env match"].startswith("yes")
