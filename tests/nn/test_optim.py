"""Adam and RMSprop against those of torch, and slow copies of networks."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from rlx.errors import UserError
from rlx.nn.heads import Critic, Deterministic
from rlx.nn.mlp import MLP
from rlx.nn.optim import Adam, RAdam, RMSprop, polyak, target_of


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)  # gradients are compared by differences, which a kink of relu nearby would spoil


@pytest.mark.parametrize("options", [{}, {"weight_decay": 0.1}, {"betas": (0.5, 0.9), "eps": 1e-5}])
def test_adam_is_that_of_torch(options: dict) -> None:
    net = MLP([3, 16, 2], layer_norm=True)
    twin = copy.deepcopy(net)
    ours, theirs = Adam(net.parameters(), 1e-2, **options), torch.optim.Adam(twin.parameters(), 1e-2, **options)
    for _ in range(20):
        x = torch.randn(8, 3)
        ours.minimize(net(x).square().mean())
        theirs.zero_grad()
        twin(x).square().mean().backward()
        theirs.step()
    for mine, other in zip(net.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(mine, other, atol=1e-6, rtol=1e-6)


def test_adam_clips_like_torch() -> None:
    weight = nn.Parameter(torch.tensor([3.0, 4.0]))
    adam = Adam([weight], 0.1, betas=(0.0, 0.0), max_grad_norm=1.0)
    adam.minimize((weight * torch.tensor([3.0, 4.0])).sum())
    assert adam.grad_norm is not None
    assert adam.grad_norm.item() == pytest.approx(5.0)
    torch.testing.assert_close(adam.exp_avg[0], torch.tensor([0.6, 0.8]))
    adam.minimize((weight * torch.tensor([0.3, 0.4])).sum())
    torch.testing.assert_close(adam.exp_avg[0], torch.tensor([0.3, 0.4]))


def test_adam_takes_expanded_gradients() -> None:
    weight = nn.Parameter(torch.zeros(2, 3))
    Adam([weight], 0.5).minimize(weight.sum())
    torch.testing.assert_close(weight.detach(), torch.full((2, 3), -0.5))


def test_the_scale_of_a_schedule_multiplies_the_learning_rate() -> None:
    weight = nn.Parameter(torch.zeros(1))
    adam = Adam([weight], 0.5)
    adam.scale = 0.1
    adam.minimize(weight.sum())
    assert weight.item() == pytest.approx(-0.05)


def test_minimize_touches_its_own_parameters_only() -> None:
    critic, actor = Critic(2, 1, [4]), Deterministic(2, 1, [4])
    before = copy.deepcopy(critic.state_dict())
    obs = torch.randn(3, 2)
    Adam(actor.parameters(), 0.1).minimize(-critic(obs, actor(obs)).mean())
    for name, value in critic.state_dict().items():
        assert torch.equal(value, before[name])
    assert all(p.grad is None for p in [*critic.parameters(), *actor.parameters()])


@pytest.mark.parametrize("optimizer", [Adam, RAdam])
def test_the_state_of_adam_is_complete(optimizer: type[Adam]) -> None:
    def run(adam: Adam, weight: Tensor, n: int) -> None:
        for _ in range(n):
            adam.minimize((weight - 1.0).square().sum())

    weight = nn.Parameter(torch.zeros(3))
    adam = optimizer([weight], 0.1)
    run(adam, weight, 3)
    other = nn.Parameter(weight.detach().clone())
    resumed = optimizer([other], 0.1)
    for name, tensor in resumed.tensors().items():
        tensor.copy_(adam.tensors()[name])
    run(adam, weight, 4)
    run(resumed, other, 4)
    assert torch.equal(weight, other)


def test_rmsprop_is_that_of_torch() -> None:
    ours, theirs = torch.tensor([1.0, -2.0]), nn.Parameter(torch.tensor([1.0, -2.0]))
    optimizer = RMSprop([ours], lr=0.1, decay=0.9, eps=1e-3)
    reference = torch.optim.RMSprop([theirs], lr=0.1, alpha=0.9, eps=1e-3)
    for grad in ([3.0, 0.1], [-1.0, 0.2], [0.5, 0.0]):
        optimizer.step([torch.tensor(grad)])
        theirs.grad = torch.tensor(grad)
        reference.step()
    torch.testing.assert_close(ours, theirs.detach())
    optimizer.scale = 0.0
    optimizer.step([torch.ones(2)])
    torch.testing.assert_close(ours, theirs.detach())


def test_radam_is_that_of_torch() -> None:
    """The first five steps go down the mean gradient, the others are rectified."""
    ours, theirs = torch.tensor([1.0, -2.0]), nn.Parameter(torch.tensor([1.0, -2.0]))
    optimizer, reference = RAdam([ours], lr=0.1), torch.optim.RAdam([theirs], lr=0.1)
    generator = torch.Generator().manual_seed(0)
    for _ in range(40):
        grad = torch.randn(2, generator=generator)
        optimizer.step([grad])
        theirs.grad = grad
        reference.step()
        torch.testing.assert_close(ours, theirs.detach())
    optimizer.scale = 0.0
    optimizer.step([torch.ones(2)])
    torch.testing.assert_close(ours, theirs.detach())


def test_radam_by_hand() -> None:
    """rho_1 = 1: the first step is the learning rate times the gradient, however large that is."""
    weight = torch.tensor([1.0, 1.0])
    RAdam([weight], lr=0.5).step([torch.tensor([2.0, -4.0])])
    assert weight.tolist() == pytest.approx([0.0, 3.0], abs=1e-6)


def test_a_learning_rate_is_positive() -> None:
    with pytest.raises(UserError, match="positive"):
        Adam([nn.Parameter(torch.zeros(1))], 0.0)


def test_polyak_by_hand() -> None:
    target, online = [torch.tensor([0.0, 4.0])], [torch.tensor([10.0, 0.0])]
    polyak(target, online, 0.1)
    torch.testing.assert_close(target[0], torch.tensor([1.0, 3.6]))


def test_a_target_is_a_copy_without_gradients() -> None:
    net = MLP([2, 3, 1])
    target = target_of(net)
    assert not any(p.requires_grad for p in target.parameters())
    assert all(p.requires_grad for p in net.parameters())
    x = torch.randn(4, 2)
    torch.testing.assert_close(target(x), net(x))
    polyak(target.parameters(), [torch.zeros_like(p) for p in net.parameters()], 1.0)
    assert target(x).eq(0.0).all()
    assert not net(x).eq(0.0).all()
