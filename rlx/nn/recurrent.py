"""An LSTM over rollouts: the state goes on from step to step and begins anew where an episode does.

A rollout is cut into stretches, each of them (a part of) one episode of one lane. Stretches do not know of each other,
so that they are steps of a batch: a rollout in which many episodes end costs less time than one without, and there is
nothing to mask. They are padded to the longest of their group; lengths within a group differ by less than a factor of
four, which bounds what is wasted. Compared with a loop over the steps this is 4 to 50 times as fast.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

State = tuple[Tensor, Tensor]  # hidden and cell state, [N, layers, width] each


class Stretches(NamedTuple):
    """Some stretches of similar length side by side, as places in a table whose row n * T + t is step t of lane n."""

    rows: Tensor  # [L, S] the row that each step reads
    real: Tensor  # [L, S] False where padded
    lane: Tensor  # [S]
    goes_on: Tensor  # [S] True at the beginning of the rollout, where the lane's state is that of before


def stretches(ended: Tensor, final: bool = False) -> Iterator[Stretches]:
    """All stretches of a rollout, in groups; `ended` [N, T] is True at the last step of an episode.

    With `final`, each goes one step further, from its last step to the observation that this one led to: row r of a
    second table below the first, N * T + r, where r is the last step's.
    """
    lanes, steps = ended.shape
    last = ended.index_fill(1, torch.tensor(steps - 1, device=ended.device), True).flatten().nonzero().squeeze(1)
    first = torch.cat([last.new_zeros(1), last[:-1] + 1])
    length = last - first + 1
    size = (0.5 * length.float().log2()).floor()  # 0: 1 to 3 steps, 1: 4 to 15, 2: 16 to 63, ...
    for group in sorted(set(size.tolist())):
        begin, end = first[size == group], last[size == group]
        step = torch.arange(int((end - begin).max()) + 1 + final, device=ended.device).unsqueeze(1)
        rows = torch.minimum(begin + step, end)
        real = begin + step <= end + final
        if final:
            rows = torch.where(begin + step > end, lanes * steps + end, rows)
        yield Stretches(rows, real, begin // steps, begin % steps == 0)


class LSTM(nn.Module):
    """One or more layers of the same width; at the start orthogonal with gain 1, biases 0 but those of forget gates."""

    def __init__(self, inputs: int, width: int, layers: int, forget_bias: float = 0.0):
        super().__init__()
        self.net = nn.LSTM(inputs, width, layers)
        for name, parameter in self.net.named_parameters():
            if name.startswith("bias"):
                nn.init.zeros_(parameter)
            else:
                nn.init.orthogonal_(parameter)
            if name.startswith("bias_ih"):  # the gates are input, forget, cell, output
                nn.init.constant_(parameter[width : 2 * width], forget_bias)

    def initial(self, n: int) -> State:
        """The state of n lanes where an episode begins."""
        zeros = next(self.net.parameters()).new_zeros(n, self.net.num_layers, self.net.hidden_size)
        return zeros, zeros.clone()

    def step(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """One step of all lanes, [N, inputs] to [N, width], and the state after it."""
        hidden, cell = [], []
        for weights, h, c in zip(self.net.all_weights, state[0].unbind(1), state[1].unbind(1), strict=True):
            x, c = torch.lstm_cell(x, (h, c), *weights)
            hidden.append(x)
            cell.append(c)
        return x, (torch.stack(hidden, 1), torch.stack(cell, 1))

    def forward(self, table: Tensor, groups: Sequence[Stretches], state: State) -> Tensor:
        """What each row of a table [R, inputs] becomes, [R, width]; 0 for rows that are in no stretch.

        `state` is that of the lanes before the rollout.
        """
        out = table.new_zeros(len(table), self.net.hidden_size)
        for rows, real, lane, goes_on in groups:
            hidden, cell = ((s[lane] * goes_on.view(-1, 1, 1)).transpose(0, 1).contiguous() for s in state)
            y, _ = self.net(table[rows], (hidden, cell))
            out = out.index_copy(0, rows[real], y[real])
        return out
