"""LSTMs over rollouts: what is carried where, by hand and against a loop over the steps."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from rlx.nn.recurrent import LSTM, State, Stretches, stretches


def lists(group: Stretches) -> list[list[int]]:
    """The rows of each stretch."""
    return [rows[real].tolist() for rows, real in zip(group.rows.t(), group.real.t(), strict=True)]


def cell_by_hand(lstm: LSTM, x: Tensor, state: State) -> tuple[Tensor, State]:
    """One step of one lane, from the definition: x [inputs], state [layers, width] each."""
    hidden, cell = [], []
    for (w_x, w_h, b_x, b_h), h, c in zip(lstm.net.all_weights, *state, strict=True):
        i, f, g, o = (w_x @ x + b_x + w_h @ h + b_h).chunk(4)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        x = o.sigmoid() * c.tanh()
        hidden.append(x)
        cell.append(c)
    return x, (torch.stack(hidden), torch.stack(cell))


def loop(lstm: LSTM, obs: Tensor, ended: Tensor, state: State) -> tuple[Tensor, Tensor, Tensor]:
    """Step by step, lane by lane: outputs [N, T, width], and the state after each step, [N, T, layers, width] each."""
    out, hidden, cell = [], [], []
    for n in range(len(obs)):
        now = (state[0][n], state[1][n])
        for t in range(obs.shape[1]):
            y, now = cell_by_hand(lstm, obs[n, t], now)
            out.append(y)
            hidden.append(now[0])
            cell.append(now[1])
            if ended[n, t]:
                now = (torch.zeros_like(now[0]), torch.zeros_like(now[1]))
    lead = ended.shape
    return tuple(torch.stack(x).unflatten(0, lead) for x in (out, hidden, cell))  # type: ignore[return-value]


def make(layers: int = 1, lanes: int = 3, steps: int = 20) -> tuple[LSTM, Tensor, Tensor, State]:
    torch.manual_seed(layers)
    lstm = LSTM(4, 5, layers)
    for parameter in lstm.parameters():  # biases that are not 0
        torch.nn.init.normal_(parameter, std=0.5)
    state = (torch.randn(lanes, layers, 5), torch.randn(lanes, layers, 5))
    return lstm, torch.randn(lanes, steps, 4), torch.rand(lanes, steps) < 0.25, state


def test_stretches_by_hand() -> None:
    ended = torch.tensor([[0, 1, 0, 0, 0], [0, 0, 0, 0, 1]], dtype=torch.bool)  # two lanes of five steps
    short, long = stretches(ended)
    assert lists(short) == [[0, 1], [2, 3, 4]]
    assert lists(long) == [[5, 6, 7, 8, 9]]
    assert (short.lane.tolist(), long.lane.tolist()) == ([0, 0], [1])
    assert (short.goes_on.tolist(), long.goes_on.tolist()) == ([True, False], [True])
    short, long = stretches(ended, final=True)
    assert lists(short) == [[0, 1, 10 + 1], [2, 3, 4, 10 + 4]]  # and the final observation, in the second table
    assert lists(long) == [[5, 6, 7, 8, 9, 10 + 9]]


@pytest.mark.parametrize("chance", [0.0, 0.02, 0.3, 1.0])
def test_every_step_is_in_one_stretch_and_padding_is_bounded(chance: float) -> None:
    torch.manual_seed(0)
    ended = torch.rand(7, 300) < chance
    ended[0] = False  # one long stretch beside many short ones
    groups = list(stretches(ended))
    assert sorted(row for group in groups for rows in lists(group) for row in rows) == list(range(7 * 300))
    assert sum(group.rows.numel() for group in groups) < 4 * 7 * 300
    assert all(group.rows.min() >= 0 and group.rows.max() < 7 * 300 for group in groups)


@pytest.mark.parametrize("layers", [1, 2])
def test_it_computes_what_a_loop_computes(layers: int) -> None:
    lstm, obs, ended, state = make(layers)
    out = lstm(obs.flatten(0, 1), list(stretches(ended)), state)
    expected, _, _ = loop(lstm, obs, ended, state)
    torch.testing.assert_close(out, expected.flatten(0, 1))
    weight = torch.randn_like(out)
    ours = torch.autograd.grad((out * weight).sum(), list(lstm.parameters()))
    theirs = torch.autograd.grad((expected.flatten(0, 1) * weight).sum(), list(lstm.parameters()))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("layers", [1, 2])
def test_the_final_observation_is_seen_with_the_state_after_the_last_step(layers: int) -> None:
    lstm, obs, ended, state = make(layers)
    final = torch.randn_like(obs)
    table = torch.cat([obs.flatten(0, 1), final.flatten(0, 1)])
    out = lstm(table, list(stretches(ended, final=True)), state).view(2, *ended.shape, -1)
    expected, hidden, cell = loop(lstm, obs, ended, state)
    torch.testing.assert_close(out[0], expected)
    for n in range(len(ended)):
        for t in range(ended.shape[1]):
            after, _ = cell_by_hand(lstm, final[n, t], (hidden[n, t], cell[n, t]))
            last = ended[n, t] or t == ended.shape[1] - 1
            torch.testing.assert_close(out[1, n, t], after if last else torch.zeros(5))


@pytest.mark.parametrize("layers", [1, 2])
def test_a_step_is_a_stretch_of_one(layers: int) -> None:
    lstm, obs, _, state = make(layers)
    out, after = lstm.step(obs[:, 0], state)
    expected, hidden, cell = loop(lstm, obs[:, :1], torch.zeros(3, 1), state)
    torch.testing.assert_close(out, expected[:, 0])
    torch.testing.assert_close(after, (hidden[:, 0], cell[:, 0]))


def test_a_new_episode_within_a_rollout_is_a_sequence_of_its_own() -> None:
    lstm, obs, _, state = make(lanes=1, steps=10)
    ended = torch.zeros(1, 10, dtype=torch.bool)
    ended[0, 5] = True
    whole = lstm(obs.flatten(0, 1), list(stretches(ended)), state)
    nothing = torch.zeros(1, 4, dtype=torch.bool)
    first = lstm(obs[0, :6], list(stretches(ended[:, :6])), state)
    second = lstm(obs[0, 6:], list(stretches(nothing)), lstm.initial(1))
    torch.testing.assert_close(whole, torch.cat([first, second]))


def test_it_starts_orthogonal_and_without_biases() -> None:
    lstm = LSTM(4, 8, 2)
    for weight_x, weight_h, bias_x, bias_h in lstm.net.all_weights:
        assert not bias_x.any()
        assert not bias_h.any()
        for weight in (weight_x, weight_h):
            torch.testing.assert_close(weight.t() @ weight, torch.eye(weight.shape[1]), rtol=0, atol=1e-5)
    hidden, cell = lstm.initial(3)
    assert hidden.shape == cell.shape == (3, 2, 8)
    assert not hidden.any()
    assert not cell.any()


def test_forget_gates_alone_start_with_their_bias():
    net = LSTM(3, 2, 2, forget_bias=1.5).net
    for layer in range(2):  # the gates are input, forget, cell, output, of two units each
        assert net.get_parameter(f"bias_ih_l{layer}").tolist() == [0, 0, 1.5, 1.5, 0, 0, 0, 0]
        assert not net.get_parameter(f"bias_hh_l{layer}").any()
