"""Networks against plain torch modules, hand-written gradients against autograd, Adam against torch.optim.Adam."""

from __future__ import annotations

import copy
import itertools
import math

import pytest
import torch
from torch import Tensor, nn

from rlx import nn as rnn
from rlx.config import learners, schemas
from rlx.errors import UserError
from rlx.nn import (
    MLP,
    Adam,
    Critic,
    DeterministicActor,
    GaussianActor,
    RMSprop,
    noise_like,
    plain_mlp,
    polyak,
    product,
    target_of,
)
from rlx.types import Spec

SPEC = Spec("Test-v0", (3,), "float32", "box", (2,), (-1.0, -1.0), (1.0, 1.0))
OPTIONS = list(itertools.product([None, 3], ["relu", "tanh", "elu"], [False, True]))


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


@pytest.mark.parametrize(("inner", "columns"), [(5, 4), (5, 1), (1, 4)])
@pytest.mark.parametrize("members", [(), (3,)])
def test_products_are_those_of_matmul(members: tuple[int, ...], inner: int, columns: int) -> None:
    x, y = torch.randn(*members, 6, inner), torch.randn(*members, inner, columns)
    torch.testing.assert_close(product(x, y), x @ y)


def test_a_single_network_keeps_the_leading_dimensions() -> None:
    net = MLP([4, 8, 2])
    x = torch.randn(3, 5, 4)
    assert net(x).shape == (3, 5, 2)
    torch.testing.assert_close(net(x)[1], net(x[1]))
    assert net(torch.randn(4)).shape == (2,)


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


def test_critics() -> None:
    critic = Critic(3, 2, [8], n=4)
    obs, action = torch.randn(5, 3), torch.randn(5, 2)
    assert critic(obs, action).shape == (4, 5)
    torch.testing.assert_close(critic(obs, action, members=torch.tensor([3])), critic(obs, action)[[3]])


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


def test_gaussian_actor_matches_torch_distributions() -> None:
    torch.manual_seed(0)
    actor = GaussianActor(3, 2, [8]).double()  # atanh of a float32 action near 1 has few digits left
    obs = torch.randn(6, 3, dtype=torch.float64)
    action, log_prob = actor.sample(obs)
    mean, log_std = actor(obs)
    normal = torch.distributions.Normal(mean, log_std.exp())
    squash = torch.distributions.TanhTransform(cache_size=1)
    expected = torch.distributions.TransformedDistribution(normal, [squash]).log_prob(action).sum(-1)
    torch.testing.assert_close(log_prob, expected)
    torch.testing.assert_close(actor.log_prob(obs, action), log_prob)
    assert action.abs().max() < 1.0
    torch.testing.assert_close(actor.mode(obs), torch.tanh(mean))
    torch.testing.assert_close(actor.act(obs, explore=False), torch.tanh(mean))
    assert not torch.equal(actor.act(obs, explore=True), actor.act(obs, explore=True))


def test_gaussian_actor_at_the_borders() -> None:
    actor = GaussianActor(1, 1, [4])
    assert torch.isfinite(actor.log_prob(torch.zeros(2, 1), torch.tensor([[1.0], [-1.0]]))).all()
    with torch.no_grad():
        actor.net.biases[-1].copy_(torch.tensor([50.0, 9.0]))
    assert actor(torch.zeros(1, 1))[1].item() == 2.0  # log_std is clamped
    assert torch.isfinite(actor.sample(torch.zeros(1, 1))[1]).all()


def test_gradients_of_a_squashed_sample() -> None:
    head, noise = torch.randn(4, 6, dtype=torch.float64, requires_grad=True), torch.randn(4, 3, dtype=torch.float64)
    assert torch.autograd.gradcheck(rnn.SquashedSample.apply, (head, noise))


def test_gradients_of_a_clamped_std_vanish() -> None:
    actor = GaussianActor(1, 1, [4])
    with torch.no_grad():
        actor.net.biases[-1].copy_(torch.tensor([0.0, 9.0]))
    grad = torch.autograd.grad(actor.sample(torch.zeros(1, 1))[1].sum(), actor.net.biases[-1])[0]
    assert grad[1].item() == 0.0


def test_deterministic_actor() -> None:
    actor = DeterministicActor(3, 2, [8])
    obs = torch.randn(5, 3)
    torch.testing.assert_close(actor(obs), torch.tanh(actor.net(obs)))


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
    critic, actor = Critic(2, 1, [4]), DeterministicActor(2, 1, [4])
    before = copy.deepcopy(critic.state_dict())
    obs = torch.randn(3, 2)
    Adam(actor.parameters(), 0.1).minimize(-critic(obs, actor(obs)).mean())
    for name, value in critic.state_dict().items():
        assert torch.equal(value, before[name])
    assert all(p.grad is None for p in [*critic.parameters(), *actor.parameters()])


def test_the_state_of_adam_is_complete() -> None:
    def run(adam: Adam, weight: Tensor, n: int) -> None:
        for _ in range(n):
            adam.minimize((weight - 1.0).square().sum())

    weight = nn.Parameter(torch.zeros(3))
    adam = Adam([weight], 0.1)
    run(adam, weight, 3)
    other = nn.Parameter(weight.detach().clone())
    resumed = Adam([other], 0.1)
    for name, tensor in resumed.tensors().items():
        tensor.copy_(adam.tensors()[name])
    run(adam, weight, 3)
    run(resumed, other, 3)
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


@pytest.mark.parametrize("name", ["redq", "rlpd"])
def test_redq_and_rlpd_start_as_their_authors_do(name: str) -> None:
    learner = learners()[name](schemas()[f"algo/{name}"](hidden=[300, 200]), SPEC)
    for net in (learner.policy.net, learner.critic):
        assert all(not bias.any() for bias in net.biases)
        for weight in net.weights:
            bound = math.sqrt(6.0 / sum(weight.shape[-2:]))
            assert 0.95 * bound < weight.abs().max().item() <= bound


def test_iql_starts_orthogonal_with_a_gain_of_sqrt_2_everywhere() -> None:
    learner = learners()["iql"](schemas()["algo/iql"](hidden=[8, 8]), SPEC)
    for net in (learner.policy.net, learner.critic, learner.value):
        assert all(not bias.any() for bias in net.biases)
        for weight in net.weights:
            for member in weight.detach() if weight.dim() == 3 else [weight.detach()]:
                singular = torch.linalg.svdvals(member)
                torch.testing.assert_close(singular, torch.full_like(singular, math.sqrt(2.0)))
