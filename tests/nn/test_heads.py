"""Heads against torch.distributions and hand-computed values; how networks start."""

from __future__ import annotations

import math

import pytest
import torch

from rlx.config import learners, schemas
from rlx.errors import UserError
from rlx.nn.fused import plain_mlp
from rlx.nn.heads import ActionHead, Critic, Deterministic, SquashedGaussian, StateValue, first_log_std
from rlx.types import Spec

SPEC = Spec("Test-v0", (3,), "float32", "box", (2,), (-1.0, -1.0), (1.0, 1.0))


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)  # gradients are compared by differences, which a kink of relu nearby would spoil


def spec_of(kind: str) -> Spec:
    shapes = {"box": ((2,), ()), "discrete": ((), (3,)), "multi_discrete": ((2,), (3, 2))}
    shape, sizes = shapes[kind]
    return Spec("Test-v0", (4,), "float32", kind, shape, action_sizes=sizes)


def test_critics() -> None:
    critic = Critic(3, 2, [8], n=4)
    obs, action = torch.randn(5, 3), torch.randn(5, 2)
    assert critic(obs, action).shape == (4, 5)
    torch.testing.assert_close(critic(obs, action, members=torch.tensor([3])), critic(obs, action)[[3]])


def test_gaussian_actor_matches_torch_distributions() -> None:
    torch.manual_seed(0)
    actor = SquashedGaussian(3, 2, [8]).double()  # atanh of a float32 action near 1 has few digits left
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
    actor = SquashedGaussian(1, 1, [4])
    assert torch.isfinite(actor.log_prob(torch.zeros(2, 1), torch.tensor([[1.0], [-1.0]]))).all()
    with torch.no_grad():
        actor.net.biases[-1].copy_(torch.tensor([50.0, 9.0]))
    assert actor(torch.zeros(1, 1))[1].item() == 2.0  # log_std is clamped
    assert torch.isfinite(actor.sample(torch.zeros(1, 1))[1]).all()


def test_deterministic_actor() -> None:
    actor = Deterministic(3, 2, [8])
    obs = torch.randn(5, 3)
    torch.testing.assert_close(actor(obs), torch.tanh(actor.net(obs)))


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


@pytest.mark.parametrize(
    ("low", "high", "std"),
    [
        (-1.0, 1.0, 1.0),  # HalfCheetah, Hopper
        (-3.0, 3.0, 1 / 3),  # InvertedPendulum: 1 in its own units
        (-2.0, 2.0, 0.5),  # Pendulum
        (-0.4, 0.4, 1.0),  # Humanoid: never more than the half range
        (0.0, 8.0, 0.25),  # the width counts, not where the box lies
        (-math.inf, math.inf, 1.0),  # unbounded actions are not scaled
        (-5.0, math.inf, 1.0),
    ],
)
def test_the_first_std_is_1_in_the_units_of_the_env_and_at_most_the_half_range(low: float, high: float, std: float):
    spec = Spec("Test-v0", (4,), "float32", "box", (2,), (low, -1.0), (high, 1.0))
    assert first_log_std(spec, None).exp().tolist() == pytest.approx([std, 1.0])  # each dimension has its own
    assert first_log_std(spec, -0.5).tolist() == [-0.5, -0.5]  # as asked, in the learner's units
    assert first_log_std(spec_of("box"), None).tolist() == [0.0, 0.0]  # no bounds known


@pytest.mark.parametrize("name", ["ppo", "a2c", "trpo"])
def test_on_policy_learners_begin_with_a_std_that_fits_the_box(name: str):
    spec = Spec("Test-v0", (4,), "float32", "box", (1,), (-3.0,), (3.0,))
    torch.manual_seed(0)
    learner = learners()[name](schemas()[f"algo/{name}"](), spec)
    draws = learner.act(torch.zeros(20000, 4), explore=True)
    assert 3.0 * draws.std().item() == pytest.approx(1.0, abs=0.02)


def test_policy_starts_near_uniform_and_acts_in_its_space():
    torch.manual_seed(0)
    obs = torch.randn(50, 4)
    with torch.no_grad():
        assert ActionHead(4, spec_of("discrete"), [64, 64])(obs).entropy().mean() > 0.999 * math.log(3)
        assert ActionHead(4, spec_of("box"), [64, 64])(obs).mode().abs().max() < 0.1
        for kind, shape in {"box": (50, 2), "discrete": (50,), "multi_discrete": (50, 2)}.items():
            policy = ActionHead(4, spec_of(kind), [8])
            assert policy.act(obs, explore=True).shape == policy.act(obs, explore=False).shape == shape
            torch.testing.assert_close(policy.act(obs, explore=False), policy(obs).mode())


def test_heads_name_the_activations_there_are():
    with pytest.raises(UserError, match=r"Unknown activation 'swish'\. Choices: relu, tanh, elu, gelu"):
        ActionHead(4, spec_of("box"), [8], "swish")


def test_state_values():
    value = StateValue(3, [8, 8])
    obs = torch.randn(5, 3)
    assert value(obs).shape == (5,)
    torch.testing.assert_close(value(obs), plain_mlp(obs, value.layers(), "relu").squeeze(-1))
