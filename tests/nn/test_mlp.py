"""Networks against plain torch modules and hand-computed values."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor, nn

from rlx.errors import UserError
from rlx.nn.mlp import MLP


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)  # gradients are compared by differences, which a kink of relu nearby would spoil


def parts(net: MLP) -> list[Tensor]:
    return list(net.parameters())


def test_an_mlp_is_the_linear_layers_of_torch() -> None:
    net = MLP([4, 8, 3], layer_norm=True)
    with torch.no_grad():
        net.gains[0].uniform_(0.5, 1.5)
        net.shifts[0].uniform_(-0.5, 0.5)
    first, norm, last = nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 3)
    for module, weight, bias in ((first, *net.layers()[0][:2]), (last, *net.layers()[1][:2])):
        module.weight.data, module.bias.data = weight.data.T, bias.data
    norm.weight.data, norm.bias.data = net.gains[0].data, net.shifts[0].data
    x = torch.randn(5, 4)
    torch.testing.assert_close(net(x), nn.Sequential(first, norm, nn.ReLU(), last)(x))


def test_a_network_by_hand() -> None:
    net = MLP([1, 2, 1])
    with torch.no_grad():
        net.weights[0].copy_(torch.tensor([[1.0, -1.0]]))
        net.biases[0].copy_(torch.tensor([0.5, 0.5]))
        net.weights[1].copy_(torch.tensor([[2.0], [3.0]]))
        net.biases[1].fill_(1.0)
    assert net(torch.tensor([[2.0], [-2.0]])).tolist() == [[6.0], [8.5]]  # 2 * 2.5 + 1 and 3 * 2.5 + 1


def test_members_of_an_ensemble_do_not_mix() -> None:
    net = MLP([4, 8, 8, 2], ensemble=3, layer_norm=True)
    x = torch.randn(3, 5, 4)
    y = net(x)
    assert y.shape == (3, 5, 2)
    for i in range(3):
        single = MLP([4, 8, 8, 2], layer_norm=True)
        for mine, theirs in zip(parts(single), parts(net), strict=True):
            mine.data = theirs.data[i].reshape(mine.shape).clone()
        torch.testing.assert_close(y[i], single(x[i]))


def test_a_shared_input_reaches_every_member_and_members_can_be_picked() -> None:
    net = MLP([4, 8, 2], ensemble=3)
    x = torch.randn(5, 4)
    torch.testing.assert_close(net(x), net(x.expand(3, 5, 4)))
    torch.testing.assert_close(net(x, members=torch.tensor([2, 0])), net(x)[[2, 0]])
    torch.testing.assert_close(net(x, members=slice(1)), net(x)[:1])


def test_a_single_network_keeps_the_leading_dimensions() -> None:
    net = MLP([4, 8, 2])
    x = torch.randn(3, 5, 4)
    assert net(x).shape == (3, 5, 2)
    torch.testing.assert_close(net(x)[1], net(x[1]))
    assert net(torch.randn(4)).shape == (2,)


def test_no_graph_without_gradients() -> None:
    with torch.no_grad():
        assert MLP([3, 5, 2])(torch.randn(4, 3)).grad_fn is None


def test_dropout_acts_in_training_only() -> None:
    net = MLP([3, 64, 2], dropout=0.5)
    x = torch.ones(1, 3)
    assert not torch.equal(net(x), net(x))
    net.eval()
    assert torch.equal(net(x), net(x))


def test_uniform_initialisation_is_that_of_torch() -> None:
    net = MLP([100, 400, 1])
    assert net.weights[0].abs().max() <= 0.1
    assert net.weights[0].std().item() == pytest.approx(0.1 / math.sqrt(3.0), rel=0.05)
    assert net.biases[1].abs().max() <= 0.05


def test_orthogonal_initialisation() -> None:
    net = MLP([4, 8, 2], ensemble=2, init="orthogonal", final_gain=0.01)
    for member in net.weights[0]:
        torch.testing.assert_close(member @ member.T, 2.0 * torch.eye(4))
    for member in net.weights[1]:
        torch.testing.assert_close(member.T @ member, 1e-4 * torch.eye(2))
    assert net.biases[0].eq(0.0).all()


def test_xavier_by_hand() -> None:
    torch.manual_seed(0)
    net = MLP([2, 1000, 4], ensemble=3, init="xavier")
    for weight, (rows, columns) in zip(net.weights, [(2, 1000), (1000, 4)], strict=True):
        bound = math.sqrt(6.0 / (rows + columns))
        assert weight.abs().max().item() <= bound
        assert weight.std().item() == pytest.approx(bound / math.sqrt(3.0), rel=0.03)
    assert all(not bias.any() for bias in net.biases)
    with pytest.raises(UserError, match="final_gain"):
        MLP([2, 2], init="xavier", final_gain=1.0)


@pytest.mark.parametrize(
    "options",
    [{"activation": "sine"}, {"init": "zero"}, {"dropout": 1.0}, {"final_gain": 0.1}, {"sizes": [4]}],
)
def test_impossible_networks_are_refused(options: dict) -> None:
    with pytest.raises(UserError):
        MLP(**{"sizes": [3, 4, 1], **options})


def test_names_of_the_parameters() -> None:
    names = set(MLP([3, 4, 1], layer_norm=True).state_dict())
    assert names == {"weights.0", "weights.1", "biases.0", "biases.1", "gains.0", "shifts.0"}


def test_a_copy_computes_with_its_own_weights() -> None:
    net = MLP([3, 4, 1])
    other = copy.deepcopy(net)
    with torch.no_grad():
        for p in other.parameters():
            p.zero_()
    x = torch.ones(1, 3)
    assert other(x).item() == 0.0
    assert net(x).item() != 0.0
