"""Windows: never across an episode, padding masked, returns-to-go by hand."""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlx.data import TransitionDataset, WindowReader, WindowSampler, sample_trajectory_windows
from rlx.errors import UserError
from rlx.learner import AlgoConfig, Learner
from rlx.nn import Optimizer
from rlx.types import Windows


def dataset(lengths):
    """Episodes whose observations are (episode, timestep) and whose rewards are 1, 2, 3, ..."""
    obs = np.array([(e, t) for e, length in enumerate(lengths) for t in range(length)], dtype=np.float32)
    last = np.array([t == length - 1 for length in lengths for t in range(length)])
    return TransitionDataset.from_dict(
        {
            "obs": obs,
            "action": np.arange(len(obs)) % 3,
            "reward": obs[:, 1] + 1,
            "next_obs": obs,
            "terminated": last,
            "truncated": np.zeros(len(obs)),
        }
    )


def test_a_window_inside_an_episode():
    window = WindowSampler(dataset([4]), 2).at(np.array([1]))
    assert window.reward.tolist() == [[2, 3]]
    assert window.return_to_go.tolist() == [[9, 7]]
    assert window.timestep.tolist() == [[1, 2]]
    assert window.mask.tolist() == [[1, 1]]
    assert window.action.dtype == torch.int64


@pytest.mark.parametrize(("pad", "reward", "mask"), [("left", [0, 3, 4], [0, 1, 1]), ("right", [3, 4, 0], [1, 1, 0])])
def test_a_window_at_the_end_of_an_episode_is_padded(pad, reward, mask):
    window = WindowSampler(dataset([4, 4]), 3, pad=pad).at(np.array([2]))
    assert window.reward.tolist() == [reward]
    assert window.mask.tolist() == [mask]
    assert window.obs.shape == (1, 3, 2)


def test_discounted_returns_to_go():
    window = WindowSampler(dataset([3]), 3, discount=0.5).at(np.array([0]))
    assert window.return_to_go.tolist() == [[1 + 0.5 * 3.5, 3.5, 3.0]]


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 7), min_size=1, max_size=5), st.integers(1, 9), st.sampled_from(["left", "right"]))
def test_windows_never_cross_an_episode(lengths, length, pad):
    data = dataset(lengths)
    windows = WindowSampler(data, length, pad=pad).at(np.arange(len(data)))
    for row in range(len(data)):
        real = windows.mask[row] > 0
        episode, start = data.obs[row]
        assert real.sum() == min(length, lengths[int(episode)] - start)
        assert set(windows.obs[row, real, 0].tolist()) == {episode}
        assert windows.timestep[row, real].tolist() == list(range(int(start), int(start) + int(real.sum())))
        assert windows.obs[row, ~real].abs().sum() == 0


def test_sampling_depends_on_the_generator_alone():
    data = dataset([5, 8])
    first, again = (sample_trajectory_windows(data, 6, 4, np.random.default_rng(1)) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert first.obs.shape == (6, 4, 2)


@pytest.mark.parametrize(("length", "pad", "expected"), [(0, "left", "length 0"), (2, "up", "padded on the 'up'")])
def test_impossible_windows(length, pad, expected):
    with pytest.raises(UserError, match=expected):
        WindowSampler(dataset([3]), length, pad=pad)


def test_a_reader_draws_every_row_alike_and_resumes_exactly():
    data = dataset([5, 8, 1])
    reader, twin = WindowReader(data, 3, seed=0), WindowReader(data, 3, seed=1)
    assert reader.ready
    batches = list(reader.sample(2000, 2))
    assert [batch.obs.shape for batch in batches] == [(2000, 3, 2)] * 2
    places = torch.cat([batch.timestep[:, 0] + 20 * batch.obs[:, 0, 0].long() for batch in batches])
    full = torch.cat([batch.mask[:, 0] for batch in batches]) > 0
    counts = places[full].unique(return_counts=True)[1]  # of windows that nothing had to be padded in
    assert len(counts) == 3 + 6
    assert counts.float().mean().item() == pytest.approx(4000 / 14, rel=0.1)
    twin.load_state(json.loads(json.dumps(reader.state())))
    for a, b in zip(reader.sample(4, 3), twin.sample(4, 3), strict=True):
        assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_dict_observations_become_dicts_of_windows():
    data = dataset([4])
    data.obs = {"a": data.obs, "b": data.obs[:, :1] + 10}
    window = WindowSampler(data, 2).at(np.array([1]))
    assert window.obs["a"].tolist() == [[[0, 1], [0, 2]]]
    assert window.obs["b"].tolist() == [[[10], [10]]]


@dataclass
class ClonerConfig(AlgoConfig):
    _target_: str = "test_windows.Cloner"
    name: str = "cloner"


class Cloner(Learner):
    """Regresses the actions of windows of four rows on their observations; shows that windows reach a learner."""

    reads = Windows
    window = 4
    regimes = ("offline",)

    def __init__(self, cfg, spec):
        super().__init__(cfg, spec)
        self.policy = torch.nn.Linear(spec.obs_dim, spec.action_dim)
        self.optimizers = {"actor": Optimizer(self.policy.parameters(), lr=1e-2)}

    def act(self, obs, explore):
        with torch.no_grad():
            return self.policy(obs).tanh()

    def update(self, batch):
        assert isinstance(batch, Windows)
        assert batch.obs.shape[:2] == (self.cfg.batch_size, 4)
        error = (self.policy(batch.obs).tanh() - batch.action).pow(2).mean(-1)
        loss = (error * batch.mask).sum() / batch.mask.sum()
        self.optimizers["actor"].zero_grad()
        loss.backward()
        self.optimizers["actor"].step()
        self.updates += 1
        return {"loss/actor": loss.detach()}
