"""Returns and targets, all by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlx.returns import discounted_returns, gae, going_on, lambda_returns, td_target


def test_terminated_states_do_not_bootstrap() -> None:
    y = td_target(torch.ones(2), torch.tensor([0.5, 0.5]), torch.tensor([0.0, 1.0]), torch.tensor([2.0, 2.0]))
    assert y.tolist() == [2.0, 1.0]


def test_td_target_takes_a_discount_per_row() -> None:
    y = td_target(torch.zeros(2), torch.tensor([0.5, 0.25]), torch.zeros(2), torch.tensor([4.0, 4.0]))
    assert y.tolist() == [2.0, 1.0]


def column(*values: float) -> torch.Tensor:
    return torch.tensor(values).unsqueeze(1)


def test_gae_by_hand() -> None:
    # deltas: 1 + 0.5 * 2 - 1 = 1, 1 + 0.5 * 4 - 2 = 1; advantages: 1 + 0.25 * 1 and 1
    advantage, returns = gae(
        column(1, 1), column(1, 2), column(2, 4), column(0, 0), column(0, 0), discount=0.5, lam=0.5
    )
    assert advantage.flatten().tolist() == [1.25, 1.0]
    assert returns.flatten().tolist() == [2.25, 3.0]


def test_gae_is_cut_at_both_ends_and_bootstraps_from_truncation_only() -> None:
    reward = torch.ones(2, 2)
    next_value = torch.full((2, 2), 4.0)
    terminated = torch.tensor([[1.0, 0.0], [0.0, 0.0]])
    truncated = torch.tensor([[0.0, 1.0], [0.0, 0.0]])
    advantage, _ = gae(reward, torch.zeros(2, 2), next_value, terminated, truncated, discount=0.5, lam=1.0)
    assert advantage.tolist() == [[1.0, 3.0], [3.0, 3.0]]


def test_gae_with_lambda_one_is_the_return() -> None:
    reward = torch.randn(6, 3)
    value = torch.randn(6, 3)
    next_value = torch.cat([value[1:], torch.zeros(1, 3)])
    terminated = torch.zeros(6, 3)
    terminated[-1] = 1.0
    _, returns = gae(reward, value, next_value, terminated, torch.zeros(6, 3), discount=0.9, lam=1.0)
    for env in range(3):
        expected = discounted_returns(reward[:, env], terminated[:, env], 0.9)
        torch.testing.assert_close(returns[:, env], expected)


def slow_gae(reward: list, value: list, next_value: list, terminated: list, truncated: list, discount: float,
             lam: float) -> list[float]:  # fmt: skip
    """Of one env, as the sum of its definition: every later delta until the episode ends."""
    found = []
    for t in range(len(reward)):
        advantage, weight = 0.0, 1.0
        for k in range(t, len(reward)):
            bootstrap = 0.0 if terminated[k] else discount * next_value[k]
            advantage += weight * (reward[k] + bootstrap - value[k])
            if terminated[k] or truncated[k]:
                break
            weight *= discount * lam
        found.append(advantage)
    return found


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 12), st.integers(1, 4), st.floats(0, 1), st.floats(0, 1), st.floats(0, 1), st.integers(0, 2**31),
)  # fmt: skip
def test_gae_is_the_sum_of_its_definition(
    steps: int, envs: int, discount: float, lam: float, ends: float, seed: int
) -> None:
    random = torch.Generator().manual_seed(seed)
    reward, value, next_value = torch.randn(3, steps, envs, generator=random, dtype=torch.float64)
    terminated, truncated = (torch.rand(2, steps, envs, generator=random) < ends / 2).double()
    columns = (reward, value, next_value, terminated, truncated)
    advantage, returns = gae(*columns, discount, lam)
    for env in range(envs):
        expected = slow_gae(*(c[:, env].tolist() for c in columns), discount, lam)
        torch.testing.assert_close(advantage[:, env], torch.tensor(expected, dtype=torch.float64))
    torch.testing.assert_close(returns, advantage + value)


@pytest.mark.parametrize("kind", [np.array, torch.tensor])
def test_monte_carlo_returns_stay_inside_their_episode(kind: type) -> None:
    returns = discounted_returns(kind([1.0, 2.0, 4.0, 8.0]), kind([0.0, 1.0, 0.0, 0.0]), 0.5)
    assert isinstance(returns, type(kind([1.0])))
    assert returns.tolist() == [2.0, 2.0, 8.0, 8.0]


def test_returns_of_whole_numbers_are_not_rounded() -> None:
    assert discounted_returns(np.array([0, 1]), np.array([0, 1]), 0.5).tolist() == [0.5, 1.0]


def test_a_failure_that_was_cut_off_goes_on_for_ever() -> None:
    reward = np.array([-5.0, -5.0], np.float32)
    assert going_on(reward, truncated=True, discount=0.99).tolist() == pytest.approx([-5.0, -500.0])
    assert reward.tolist() == [-5.0, -5.0]  # a copy
    assert going_on(reward, truncated=False, discount=0.99).tolist() == [-5.0, -5.0]
    assert going_on(reward, truncated=True, discount=1.0).tolist() == [-5.0, -5.0]
    assert going_on(np.array([-5.0, 0.0]), truncated=True, discount=0.99).tolist() == [-5.0, 0.0]
    assert going_on(np.array([-5.0]), truncated=True, discount=0.99).tolist() == [-5.0]  # one row tells nothing


# -- lambda returns


def test_lambda_returns_by_hand() -> None:
    # 1 + 0.5 * 6 = 4 at the end; 1 + 0.5 * (0.5 * 4 + 0.5 * 4) = 3; 1 + 0.5 * (0.5 * 2 + 0.5 * 3) = 2.25
    none = column(0, 0, 0)
    returns = lambda_returns(column(1, 1, 1), column(2, 4, 6), none, none, discount=0.5, lam=0.5)
    assert returns.flatten().tolist() == [2.25, 3.0, 4.0]


def test_lambda_returns_are_cut_where_an_episode_ends() -> None:
    """Terminated: the reward alone. Truncated: the reward and the value of the final observation."""
    reward, next_value = torch.ones(2, 2), torch.full((2, 2), 4.0)
    terminated = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    truncated = torch.tensor([[0.0, 1.0], [0.0, 0.0]])
    returns = lambda_returns(reward, next_value, terminated, truncated, discount=0.5, lam=1.0)
    assert returns.tolist() == [[1.0, 3.0], [3.0, 1.0]]


def test_lambda_returns_between_one_step_and_the_whole_return() -> None:
    torch.manual_seed(0)
    reward, value = torch.randn(6, 3), torch.randn(7, 3)
    none, end = torch.zeros(6, 3), torch.zeros(6, 3)
    end[-1] = 1.0
    one_step = lambda_returns(reward, value[1:], none, none, discount=0.9, lam=0.0)
    torch.testing.assert_close(one_step, reward + 0.9 * value[1:])
    whole = lambda_returns(reward, value[1:], end, none, discount=0.9, lam=1.0)
    torch.testing.assert_close(whole[:, 0], discounted_returns(reward[:, 0], end[:, 0], 0.9))


def test_lambda_returns_are_those_of_generalised_advantages() -> None:
    torch.manual_seed(0)
    reward, value = torch.randn(9, 4), torch.randn(10, 4)
    ends = torch.rand(9, 4)
    terminated, truncated = (ends < 0.2).float(), (ends > 0.8).float()
    next_value = torch.where(truncated > 0, torch.randn(9, 4), value[1:])
    _, expected = gae(reward, value[:-1], next_value, terminated, truncated, discount=0.9, lam=0.7)
    found = lambda_returns(reward, next_value, terminated, truncated, discount=0.9, lam=0.7)
    torch.testing.assert_close(found, expected)
