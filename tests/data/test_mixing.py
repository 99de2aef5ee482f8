"""Mixtures keep their ratio, their episodes and their seed."""

from __future__ import annotations

import numpy as np
import pytest

from rlx.data import TransitionDataset, mix_transition_datasets
from rlx.errors import UserError


def dataset(episodes, length, value, obs_dim=1):
    n = episodes * length
    stream = value + np.arange(n)[:, None] + np.zeros((n, obs_dim))
    return TransitionDataset.from_dict(
        {
            "obs": stream,
            "action": np.zeros((n, 1)),
            "reward": np.full(n, float(value)),
            "next_obs": stream + 1,
            "terminated": np.zeros(n),
            "truncated": np.arange(1, n + 1) % length == 0,
        }
    )


@pytest.fixture
def pair():
    return {"expert": dataset(4, 10, 1000), "random": dataset(10, 10, 0)}


def test_rows_have_the_ratio_and_no_row_is_left_that_fits(pair):
    mixed = mix_transition_datasets(pair, {"expert": 1, "random": 2})
    assert np.bincount(mixed.group).tolist() == [40, 80]
    assert (mixed.obs[mixed.group == 0] >= 1000).all()
    assert (mixed.obs[mixed.group == 1] < 1000).all()


def test_size_is_exact_and_the_last_episode_is_cut(pair):
    mixed = mix_transition_datasets(pair, {"expert": 0.5, "random": 0.5}, size=50)
    assert np.bincount(mixed.group).tolist() == [25, 25]
    assert np.diff(mixed.episodes, axis=1).ravel().tolist() == [10, 10, 5, 10, 10, 5]
    for start, stop in mixed.episodes:
        assert np.array_equal(np.diff(mixed.obs[start:stop, 0]), np.ones(stop - start - 1))


def test_the_same_seed_gives_the_same_mixture(pair):
    ratios = {"expert": 0.5, "random": 0.5}
    first, again, other = (mix_transition_datasets(pair, ratios, size=40, seed=seed) for seed in (0, 0, 1))
    assert np.array_equal(first.obs, again.obs)
    assert not np.array_equal(first.obs, other.obs)


def test_too_large_a_size_is_refused_unless_episodes_may_repeat(pair):
    ratios = {"expert": 0.5, "random": 0.5}
    with pytest.raises(UserError, match=r"dataset.size=100 .* at most 80; add dataset.oversample=true"):
        mix_transition_datasets(pair, ratios, size=100)
    mixed = mix_transition_datasets(pair, ratios, size=100, oversample=True)
    assert np.bincount(mixed.group).tolist() == [50, 50]
    assert len(mixed.episodes) == 10


def test_exact_ratio_in_every_batch(pair):
    mixed = mix_transition_datasets(pair, {"expert": 3, "random": 1}, exact_per_batch=True)
    assert len(mixed) == 140
    rows = mixed.sample_rows(np.random.default_rng(0), 16, 50)
    assert (mixed.group[rows] == 0).sum(1).tolist() == [12] * 50
    assert len(np.unique(rows)) > 100
    part = mixed.subset(np.arange(20, 60))  # 20 rows of each
    assert (part.group[part.sample_rows(np.random.default_rng(0), 16, 5)] == 0).sum(1).tolist() == [12] * 5


def test_a_source_of_share_zero_is_left_out(pair):
    mixed = mix_transition_datasets(pair, {"expert": 0, "random": 1})
    assert len(mixed) == 100
    assert mixed.obs.max() < 1000


def test_what_was_really_mixed_is_told(pair, caplog):
    with caplog.at_level("INFO", logger="rlx"):
        mixed = mix_transition_datasets(pair, {"expert": 1, "random": 2}, size=10)
    assert "expert 3 rows (30.0%), random 7 rows (70.0%)" in caplog.text
    assert "expert 3 rows (30.0%)" in mixed.notes[0]


@pytest.mark.parametrize(
    ("ratios", "expected"),
    [
        ({"expert": 1}, "no ratio for 'random'"),
        ({"expert": 1, "random": 1, "other": 1}, "a ratio but no source for 'other'"),
        ({"expert": -1, "random": 1}, "expert=-1"),
        ({"expert": 0, "random": 0}, "not all 0"),
        ({"expert": float("nan"), "random": 1}, "expected numbers of 0 or more"),
    ],
)
def test_bad_ratios(pair, ratios, expected):
    with pytest.raises(UserError, match=expected):
        mix_transition_datasets(pair, ratios)


def test_different_data_cannot_be_mixed(pair):
    with pytest.raises(UserError, match=r"'wide' cannot be mixed with 'expert': its obs has shape \(2,\)"):
        mix_transition_datasets(
            {"expert": pair["expert"], "wide": dataset(1, 10, 0, obs_dim=2)}, {"expert": 1, "wide": 1}
        )


def test_exact_batches_use_all_rows(pair):
    with pytest.raises(UserError, match="no effect with exact_per_batch"):
        mix_transition_datasets(pair, {"expert": 1, "random": 1}, size=10, exact_per_batch=True)
