"""Sets recorded by others load with the episode counts and returns that their README states."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rlx.data import TransitionDataset, load_transition_dataset
from rlx.data.episodes import doubt_order, doubt_terminals, with_episodes, with_terminals
from rlx.errors import UserError
from rlx.types import Spec

FOLDER = Path(__file__).parents[2].parent / "shared" / "data"
pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="the real sets (../shared/data) are not here")

# N, obs, action (0: discrete), terminated and truncated episodes, return mean, std, min, max
SETS = {
    "pendulum-rllib-sac-medium": (10000, 3, 1, 0, 50, -524.3, 496.6, -1260.8, -0.9),
    "pendulum-rllib-sac-expert": (10000, 3, 1, 0, 50, -174.7, 96.9, -359.2, -1.3),
    "cartpole-imitation-expert": (26964, 4, 0, 42, 15, 473.1, 26.5, 393, 500),
    "hopper-cs285-expert": (2000, 11, 3, 0, 2, 3717.5, 0.4, 3717.2, 3717.9),
    "halfcheetah-cs285-expert": (2000, 17, 6, 0, 2, 4034.8, 32.9, 4001.9, 4067.7),
    "gen-hopper-v5-medium": (50430, 11, 3, 106, 11, 1575.9, 758.3, 1033.9, 3600.0),
    "gen-halfcheetah-v5-medium": (50000, 17, 6, 0, 50, 5557.9, 798.7, 1048.4, 5832.8),
}
MINARI = {
    "pendulum/sac-medium-v0": ("pendulum-rllib-sac-medium", "Pendulum-v1"),
    "cartpole/imitation-expert-v0": ("cartpole-imitation-expert", "CartPole-v1"),
    "hopper/gen-medium-v0": ("gen-hopper-v5-medium", "Hopper-v5"),
}
HOPPER = Spec("Hopper-v4", (11,), "float32", "box", (3,), (-1.0,) * 3, (1.0,) * 3)


@pytest.mark.parametrize("name", SETS)
def test_npz_as_its_readme_says(name):
    n, obs, action, terminated, truncated, *returns = SETS[name]
    data = load_transition_dataset(FOLDER / f"{name}.npz")
    assert len(data) == n
    assert data.obs.shape == data.next_obs.shape == (n, obs)
    assert data.action.shape == ((n, action) if action else (n,))
    assert (data.terminated.sum(), data.truncated.sum()) == (terminated, truncated)
    assert len(data.episodes) == terminated + truncated
    found = data.returns()
    assert [found.mean(), found.std(), found.min(), found.max()] == pytest.approx(returns, abs=0.0501)


@pytest.mark.parametrize("dataset_id", MINARI)
def test_minari_holds_the_same_data(dataset_id, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(FOLDER / "minari"))
    file, env_id = MINARI[dataset_id]
    data, same = load_transition_dataset(dataset_id), load_transition_dataset(FOLDER / f"{file}.npz")
    assert data.env_id == env_id
    for column in ("obs", "action", "reward", "next_obs", "terminated", "truncated"):
        assert np.array_equal(getattr(data, column), getattr(same, column))


def test_unclipped_actions_of_a_real_set_are_counted(caplog):
    data = load_transition_dataset(FOLDER / "hopper-cs285-expert.npz", HOPPER)
    assert np.abs(data.action).max() == 1
    share = float(caplog.text.partition("values (")[2].partition(" %")[0])
    assert share == pytest.approx(44, abs=0.5)


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.npz")), ids=lambda path: path.stem)
def test_real_sets_raise_no_false_alarm(path, caplog):
    limit = 200 if "pendulum" in path.name else 500 if "cartpole" in path.name else 1000
    data = load_transition_dataset(path).compared()
    assert doubt_order(data) is None
    assert doubt_terminals(data, limit) is None
    assert with_terminals(with_episodes(data, "check", limit), "check", limit).terminated.sum() == data.terminated.sum()
    assert with_episodes(data, "infer").truncated.sum() == data.truncated.sum()
    assert caplog.text == ""


def test_real_time_limits_stored_as_terminals_are_seen():
    with np.load(FOLDER / "pendulum-rllib-sac-medium.npz") as arrays:
        stored = {key: arrays[key] for key in arrays}
    stored["terminations"], stored["truncations"] = stored["truncations"], stored["terminations"]
    data = TransitionDataset.from_dict(stored)
    with pytest.raises(UserError, match="all 50 episodes terminated after 200 steps"):
        with_terminals(data, "check", 200)
    assert with_terminals(data, "time_limits", 200).truncated.sum() == 50
