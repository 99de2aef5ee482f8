"""Gradients that are written by hand against autograd and against differences."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from rlx.nn.fused import (
    ACTIVATIONS,
    Places,
    SquashedSample,
    chosen,
    clipped_surrogate,
    dueling,
    go_back,
    huber_loss,
    is_recorded,
    noise_like,
    plain_mlp,
    product,
    recorded,
    value_error,
    weighted_sum,
)
from rlx.nn.heads import ActionHead, Critic, SquashedGaussian, StateValue
from rlx.nn.mlp import MLP
from rlx.nn.optim import Adam
from rlx.types import Spec

OPTIONS = list(itertools.product([None, 3], list(ACTIVATIONS), [False, True]))


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)  # gradients are compared by differences, which a kink of relu nearby would spoil


def parts(net: MLP) -> list[Tensor]:
    return list(net.parameters())


@pytest.mark.parametrize(("inner", "columns"), [(5, 4), (5, 1), (1, 4)])
@pytest.mark.parametrize("members", [(), (3,)])
def test_products_are_those_of_matmul(members: tuple[int, ...], inner: int, columns: int) -> None:
    x, y = torch.randn(*members, 6, inner), torch.randn(*members, inner, columns)
    torch.testing.assert_close(product(x, y), x @ y)


@pytest.mark.parametrize(("ensemble", "activation", "layer_norm"), OPTIONS)
def test_gradients_are_right(ensemble: int | None, activation: str, layer_norm: bool) -> None:
    net = MLP([3, 5, 4, 2], ensemble=ensemble, activation=activation, layer_norm=layer_norm).double()
    x = torch.randn(6, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda *_: net(x), [x, *parts(net)])
    direction = torch.randn_like(net(x))
    plain = plain_mlp(x if ensemble is None else x.expand(ensemble, 6, 3), net.layers(), activation)
    expected = torch.autograd.grad(plain, [x, *parts(net)], direction)
    found = torch.autograd.grad(net(x), [x, *parts(net)], direction)
    torch.testing.assert_close(net(x), plain)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    ("activation", "expected"),
    [
        ("relu", [0.0, 1.0]),
        ("tanh", [-0.7615942, 0.7615942]),
        ("elu", [-0.6321206, 1.0]),
        ("gelu", [-0.1586553, 0.8413447]),  # x times the standard normal distribution below x
    ],
)
def test_activations(activation: str, expected: list[float]) -> None:
    made = ACTIVATIONS[activation](torch.tensor([-1.0, 1.0]))
    torch.testing.assert_close(made, torch.tensor(expected))


@pytest.mark.parametrize("layer_norm", [False, True])
def test_gradients_can_be_differentiated_again(layer_norm: bool) -> None:
    net = MLP([3, 5, 2], activation="tanh", layer_norm=layer_norm).double()
    x = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda *_: net(x), [x, *parts(net)])


def test_the_gradient_is_one_node_of_autograd() -> None:
    y = MLP([3, 5, 2])(torch.randn(4, 3))
    assert type(y.grad_fn).__name__ == "HandWrittenMLPBackward"
    assert MLP([3, 5, 2], dropout=0.5)(torch.randn(4, 3)).grad_fn is not None


def test_frozen_weights_pass_gradients_on_and_take_none() -> None:
    net = MLP([3, 5, 2], ensemble=2)
    x = torch.randn(4, 3, requires_grad=True)
    expected = torch.autograd.grad(net(x).sum(), x)[0]
    torch.testing.assert_close(torch.autograd.grad(net(x, frozen=True).sum(), x)[0], expected)
    y = net(x, frozen=True).sum()
    with pytest.raises(RuntimeError, match="not have been used"):
        torch.autograd.grad(y, parts(net))


def test_backward_leaves_the_incoming_gradient_alone() -> None:
    net = MLP([3, 5, 2])
    grad = torch.ones(4, 2)
    torch.autograd.grad(net(torch.randn(4, 3)), parts(net), grad)
    assert grad.eq(1.0).all()


@pytest.mark.parametrize("wanted", ["obs", "action", "both", "none"])
@pytest.mark.parametrize("frozen", [False, True])
def test_critics_are_differentiated_by_what_asks_for_it(wanted: str, frozen: bool) -> None:
    critic = Critic(3, 2, [8, 6], n=4).double()
    obs, action = (
        torch.randn(5, n, dtype=torch.float64, requires_grad=wanted in (name, "both"))
        for name, n in (("obs", 3), ("action", 2))
    )
    asked = [x for x in (obs, action, *([] if frozen else critic.parameters())) if x.requires_grad]
    if not asked:
        assert not critic(obs, action, frozen=frozen).requires_grad
        return
    both = torch.cat([obs, action], -1).expand(4, 5, 5)
    weights = torch.randn(4, 5, dtype=torch.float64)
    plain = plain_mlp(both, critic.layers(frozen), "relu").squeeze(-1)
    q = critic(obs, action, frozen=frozen)
    assert torch.equal(q, plain)
    expected = torch.autograd.grad(plain, asked, weights)
    torch.testing.assert_close(torch.autograd.grad(q, asked, weights), expected)


def test_noise_does_not_depend_on_the_layout() -> None:
    x = torch.zeros(3, 5)
    torch.manual_seed(0)
    expected = noise_like(x)
    torch.manual_seed(0)
    assert torch.equal(noise_like(torch.zeros(5, 3).mT), expected)


def test_gradients_of_a_squashed_sample() -> None:
    head, noise = torch.randn(4, 6, dtype=torch.float64, requires_grad=True), torch.randn(4, 3, dtype=torch.float64)
    assert torch.autograd.gradcheck(SquashedSample.apply, (head, noise))


def test_gradients_of_a_clamped_std_vanish() -> None:
    actor = SquashedGaussian(1, 1, [4])
    with torch.no_grad():
        actor.net.biases[-1].copy_(torch.tensor([0.0, 9.0]))
    grad = torch.autograd.grad(actor.sample(torch.zeros(1, 1))[1].sum(), actor.net.biases[-1])[0]
    assert grad[1].item() == 0.0


# -- recorded computations


def compare(loss_of: Callable[[Tensor], Tensor], params: list[Tensor], obs: Tensor) -> None:
    """The gradients of a recorded loss are those of autograd."""
    plain = loss_of(obs.clone())
    expected = torch.autograd.grad(plain, params)
    places = Places(params)
    places.vector.fill_(torch.nan)
    loss = loss_of(recorded(obs.clone()))
    assert is_recorded(loss)
    assert not loss.requires_grad
    with torch.no_grad():
        go_back(loss, places)
    torch.testing.assert_close(loss, plain.detach())
    torch.testing.assert_close(places.parts, list(expected))


def moved(module: nn.Module) -> list[Tensor]:
    with torch.no_grad():
        for p in module.parameters():
            p.add_(torch.randn_like(p), alpha=0.3)
    return list(module.parameters())


@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("entropy", [0.0, 0.3])
@pytest.mark.parametrize(
    ("kind", "shape", "sizes"), [("box", (2,), ()), ("discrete", (), (3,)), ("multi_discrete", (2,), (3, 2))]
)
def test_recorded_policies(
    kind: str, shape: tuple[int, ...], sizes: tuple[int, ...], entropy: float, activation: str
) -> None:
    head = ActionHead(
        4, Spec("Test-v0", (4,), "float32", kind, shape, action_sizes=sizes), [8, 8], activation, log_std=-0.3
    )
    params = moved(head)
    obs, weight = torch.randn(7, 4), torch.randn(7)
    with torch.no_grad():
        action = head(obs).sample()
        old = head(obs).log_prob(action) + 0.3 * torch.randn(7)

    def loss_of(x: Tensor) -> Tensor:
        log_prob, h = head(x).score(action, entropy=entropy != 0.0)
        assert (h is None) == (entropy == 0.0)
        torch.testing.assert_close(log_prob.detach(), head(obs).log_prob(action).detach())
        policy = clipped_surrogate(log_prob, old, weight, 0.2)
        return weighted_sum((1.0, policy), *([] if h is None else [(-entropy, h)]))

    compare(loss_of, params, obs)


@pytest.mark.parametrize("clip_range", [None, 0.3])
def test_recorded_values(clip_range: float | None) -> None:
    net = StateValue(4, [8, 8], "tanh")
    params, obs, old, returns = moved(net), torch.randn(50, 4), torch.randn(50), torch.randn(50)
    compare(lambda x: weighted_sum((0.5, value_error(net(x), old, returns, clip_range))), params, obs)


@pytest.mark.parametrize("duel", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_recorded_choices_of_values(duel: bool, weighted: bool) -> None:
    net = MLP([4, 8, 3 + duel])
    params, obs, action = moved(net), torch.randn(9, 4), torch.randint(3, (9,))
    target, weight = 2.0 * torch.randn(9), torch.rand(9) if weighted else None
    compare(lambda x: huber_loss(chosen(dueling(net(x)) if duel else net(x), action), target, weight)[0], params, obs)


def test_the_clipped_surrogate_by_hand() -> None:
    ratio, advantage = torch.tensor([1.5, 0.5, 1.5, 0.5]), torch.tensor([1.0, 1.0, -1.0, -1.0])
    log_prob = ratio.log().requires_grad_()
    loss = clipped_surrogate(log_prob, torch.zeros(4), advantage, clip_range=0.2)
    assert loss.item() == pytest.approx(-(1.2 + 0.5 - 1.5 - 0.8) / 4)  # min(rho A, clip(rho) A), each
    slope = torch.autograd.grad(loss, log_prob)[0]
    assert slope.tolist() == pytest.approx([0.0, -0.5 / 4, 1.5 / 4, 0.0])  # clipped ratios do not pull


def test_the_error_of_values_by_hand() -> None:
    value, old, returns = torch.tensor([1.0, 3.0, 3.0]), torch.tensor([0.9, 0.0, 0.0]), torch.tensor([2.0, 4.0, 0.0])
    value.requires_grad_()
    loss = value_error(value, old, returns, None)
    assert loss.item() == pytest.approx((1 + 1 + 9) / 3)
    assert torch.autograd.grad(loss, value)[0].tolist() == pytest.approx([-2 / 3, -2 / 3, 6 / 3])
    loss = value_error(value, old, returns, clip_range=0.5)
    assert loss.item() == pytest.approx((1 + 3.5**2 + 9) / 3)  # the second is held at 0.5, 3.5 away from its return
    assert torch.autograd.grad(loss, value)[0].tolist() == pytest.approx([-2 / 3, 0.0, 6 / 3])


def test_what_cannot_be_recorded_is_left_to_autograd() -> None:
    x = torch.randn(4, 3)
    for net in (MLP([3, 5, 2], activation="elu"), MLP([3, 5, 2], layer_norm=True), MLP([3, 5, 2], ensemble=2)):
        y = net(recorded(x.clone()))
        assert not is_recorded(y)
        assert y.requires_grad
    assert not is_recorded(recorded(x.clone().requires_grad_()))


def test_a_loss_that_is_recorded_in_part_is_refused() -> None:
    value, obs = StateValue(3, [4]), torch.randn(5, 3)
    error = value_error(value(recorded(obs)), torch.zeros(5), torch.zeros(5), None)
    with pytest.raises(RuntimeError, match="some are not"):
        weighted_sum((1.0, error), (1.0, value(torch.randn(5, 3))))
    with pytest.raises(RuntimeError, match="each parameter"):
        Adam([*value.parameters(), nn.Parameter(torch.zeros(1))], 0.1).minimize(error)


def test_no_gradient_is_recorded_beyond_the_losses() -> None:
    obs, value = torch.randn(5, 3), StateValue(3, [4])
    assert torch.is_grad_enabled()
    error = value_error(value(recorded(obs)), torch.zeros(5), torch.zeros(5), None)
    assert torch.is_grad_enabled()
    assert not is_recorded(error.detach())  # so a metric does not keep what it was made from
