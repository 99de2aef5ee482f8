"""Encoders: shapes, scaling, which axis counts channels, and every learner that reads images."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from rlx.config import learners, schemas
from rlx.errors import UserError
from rlx.nn.encoders import (
    AutoConfig,
    ChannelNorm,
    Convolutions,
    DrqConfig,
    Flat,
    FlatConfig,
    ImpalaConfig,
    NatureConfig,
    Parts,
    SmallConfig,
    auto,
    convolve,
    drq,
    image_shape,
    impala,
    nature,
    small,
    split,
    with_layer_norm,
)
from rlx.types import Batch, Box, Rollout, Spec

FRAMES = Spec("frames", (4, 84, 84), "uint8", "discrete", (), action_sizes=(3,))
PICTURE = Spec("picture", (16, 16, 3), "uint8", "discrete", (), action_sizes=(3,))
VECTOR = Spec("vector", (5,), "float32", "box", (2,), (-1.0, -1.0), (1.0, 1.0))
BOXES = (("pixels.front", Box((16, 16, 3), "uint8")), ("state", Box((4,), "float32")))
DICT = Spec("dict", (), "float32", "discrete", (), action_sizes=(3,), boxes=BOXES)


def images(spec: Spec, *lead: int) -> Any:
    parts = {}
    for name, box in spec.obs.items():
        shape = (*lead, *box.shape)
        parts[name] = torch.randint(256, shape, dtype=torch.uint8) if box.is_image else torch.randn(shape)
    return parts if spec.boxes else parts["obs"]


@pytest.mark.parametrize(("shape", "expected"), [
    ((84, 84, 3), (3, 84, 84)),
    ((4, 84, 84), (4, 84, 84)),
    ((90, 84, 84), (90, 84, 84)),  # a stack that is longer than its pictures are wide
    ((10, 10, 12), (12, 10, 10)),
    ((9, 9, 9), (9, 9, 9)),
    ((96, 128, 3), (3, 96, 128)),  # neither is square: the shorter of the outer axes
    ((9, 96, 128), (9, 96, 128)),
])  # fmt: skip
def test_images_are_square_or_have_fewer_channels_than_rows(shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    assert image_shape(Box(shape, "uint8")) == expected


def test_auto_goes_by_the_observation() -> None:
    assert isinstance(auto(AutoConfig(), VECTOR), Flat)
    assert auto(AutoConfig(), VECTOR).dim == 5
    assert auto(AutoConfig(), FRAMES).dim == 512
    assert auto(AutoConfig(), PICTURE).dim == 128
    both = auto(AutoConfig(), DICT)
    assert isinstance(both, Parts)
    assert both.dim == 128 + 4


def test_pixels_are_scaled_to_one() -> None:
    encoder = Flat(FlatConfig(), PICTURE)
    assert torch.equal(encoder(torch.full((2, 16, 16, 3), 255, dtype=torch.uint8)), torch.ones(2, 768))
    assert torch.equal(Flat(FlatConfig(), VECTOR)(torch.ones(2, 5)), torch.ones(2, 5))


def test_a_picture_is_convolved_over_its_pixels_and_not_its_channels() -> None:
    """A kernel that reads one pixel of one channel gives this channel of the picture."""
    encoder = small(SmallConfig(channels=1, dim=196), PICTURE)
    assert isinstance(encoder, Convolutions)
    convolution: Any = encoder.layers[0]
    with torch.no_grad():
        convolution.weight.zero_()
        convolution.bias.zero_()
        convolution.weight[0, 2, 1, 1] = 255.0
        encoder.out.weight.copy_(torch.eye(196))
        encoder.out.bias.zero_()
    picture = images(PICTURE, 3)
    inner = picture[:, 1:-1, 1:-1, 2].flatten(1).float()
    assert torch.allclose(encoder(picture), inner, atol=1e-4)


@pytest.mark.parametrize("spec", [FRAMES, PICTURE, DICT], ids=lambda spec: spec.env_id)
def test_impala_reads_every_size(spec: Spec) -> None:
    encoder = impala(ImpalaConfig(dim=32, layer_norm=True), spec)
    features = encoder(images(spec, 2))
    assert features.shape == (2, encoder.dim)
    assert (features[:, :32] >= 0).all()


@pytest.mark.parametrize("spec", [FRAMES, PICTURE, DICT], ids=lambda spec: spec.env_id)
def test_drq_gives_fifty_features_within_one(spec: Spec) -> None:
    encoder = drq(DrqConfig(), spec)
    obs = images(spec, 2)
    features = encoder(obs)[:, :50]
    assert encoder.dim == (54 if spec.boxes else 50)
    assert (features.abs() <= 1).all()
    inside = torch.atanh(features)  # of tanh: LayerNorm as it is at the start
    assert torch.allclose(inside.mean(1), torch.zeros(2), atol=1e-4)
    assert torch.allclose(inside.std(1, correction=0), torch.ones(2), atol=0.1)


def test_drq_has_the_convolutions_of_its_paper() -> None:
    encoder = drq(DrqConfig(), Spec("x", (9, 84, 84), "uint8", "box", (2,), (-1.0, -1.0), (1.0, 1.0)))
    assert isinstance(encoder, Convolutions)
    assert encoder.out.in_features == 39200  # 32 x 35 x 35
    kernels = [(tuple(p.shape)) for p in encoder.layers.parameters() if p.dim() == 4]
    assert kernels == [(32, 9, 3, 3), *[(32, 32, 3, 3)] * 3]
    image = torch.randint(256, (2, 9, 84, 84), dtype=torch.uint8)
    shifted = image.float() / 255.0 - 0.5
    assert torch.allclose(convolve(encoder, image), encoder.layers(shifted), atol=1e-5)


@pytest.mark.parametrize("spec", [PICTURE, FRAMES, DICT], ids=lambda spec: spec.env_id)
def test_halves_make_a_whole(spec: Spec) -> None:
    encoder = auto(AutoConfig(), spec)
    front, trunk = split(encoder)
    obs = images(spec, 2)
    assert torch.equal(trunk(front(obs)), encoder(obs))
    assert trunk.dim == encoder.dim
    halves = [*front.parameters(), *trunk.parameters()]
    assert {id(p) for p in halves} == {id(p) for p in encoder.parameters()}
    assert len(halves) == len(list(encoder.parameters()))


def test_what_has_no_convolutions_is_shared_as_a_whole() -> None:
    encoder = Flat(FlatConfig(), PICTURE)
    front, trunk = split(encoder)
    obs = images(PICTURE, 2)
    assert front is encoder
    assert torch.equal(trunk(front(obs)), encoder(obs))


def test_the_order_of_memory_changes_nothing() -> None:
    encoder = nature(NatureConfig(dim=8), FRAMES)
    assert isinstance(encoder, Convolutions)
    image = images(FRAMES, 3)
    plain = encoder.layers((image.float() / 255.0).contiguous())
    assert torch.allclose(convolve(encoder, image), plain, atol=1e-5)


def test_boxes_stand_side_by_side() -> None:
    encoder = auto(AutoConfig(), DICT)
    obs = images(DICT, 2)
    assert torch.equal(encoder(obs)[:, -4:], obs["state"])
    other = {**obs, "state": obs["state"] + 1.0}
    assert torch.equal(encoder(other)[:, :-4], encoder(obs)[:, :-4])


def test_what_does_not_fit_is_told() -> None:
    with pytest.raises(UserError, match="at least 36 x 36 pixels and these have 16 x 16"):
        nature(NatureConfig(), PICTURE)
    with pytest.raises(UserError, match="encoder=nature reads images and vector has none"):
        nature(NatureConfig(), VECTOR)
    with pytest.raises(UserError, match="at least 15 x 15 pixels and these have 14 x 20"):
        drq(DrqConfig(), PICTURE._replace(obs_shape=(14, 20, 3)))
    with pytest.raises(UserError, match="three numbers of channels"):
        impala(ImpalaConfig(channels=[8]), FRAMES)
    with pytest.raises(UserError, match=r"encoder.dim must be at least 1"):
        small(SmallConfig(dim=0), PICTURE)


READERS = sorted(name for name, cls in learners().items() if cls.images)


def test_many_algorithms_read_images() -> None:
    assert {"dqn", "ppo", "a2c", "bc", "sac", "td3", "discrete_sac", "iql", "td3_bc"} <= set(READERS)


def batch_of(learner: Any, spec: Spec) -> Any:
    discrete = spec.action_kind == "discrete"
    if learner.reads is Rollout:
        action = torch.randint(3, (6, 2)) if discrete else torch.randn(6, 2, 2)
        ends = torch.zeros(6, 2)
        return Rollout(
            images(spec, 6, 2), action, torch.randn(6, 2), images(spec, 6, 2), ends, ends, learner.actor.initial(2)
        )
    action = torch.randint(3, (8,)) if discrete else 2 * torch.rand(8, 2) - 1
    return Batch(images(spec, 8), action, torch.randn(8), images(spec, 8), torch.zeros(8), torch.full((8,), 0.9))


def as_read_by(name: str, obs: Spec) -> Spec:
    """The same observations with actions that an algorithm takes."""
    box = {"action_kind": "box", "action_shape": (2,), "action_low": (-1.0,) * 2, "action_high": (1.0,) * 2}
    return obs if "discrete" in learners()[name].actions else obs._replace(**box, action_sizes=())


@pytest.mark.parametrize("obs", [PICTURE, DICT], ids=lambda spec: spec.env_id)
@pytest.mark.parametrize("name", READERS)
def test_a_learner_learns_its_encoder_and_acts(name: str, obs: Spec) -> None:
    torch.manual_seed(0)
    cls, spec = learners()[name], as_read_by(name, obs)
    small_networks = {"hidden": [16, 16], "batch_size": 4, "normalize_obs": False}
    learner = cls(schemas()[f"algo/{name}"](**small_networks), spec)
    kernels = {k: v.clone() for k, v in learner.state_dict().items() if v.dim() == 4 and "target" not in k}
    assert kernels, "no network has convolutions"
    for _ in range(20):  # some policies are updated only now and then
        metrics = learner.update(batch_of(learner, spec))
    assert all(value.isfinite() for value in metrics.values())
    after = learner.state_dict()
    still = [k for k, before in kernels.items() if torch.equal(before, after[k])]
    assert not still
    for explore in (False, True):
        assert learner.actor.act(images(spec, 3), learner.actor.initial(3), explore).action.shape == (
            3,
            *spec.action_shape,
        )


NARROW: dict[str, tuple[Any, Spec]] = {  # encoders, and pictures that are large enough for each
    "small": (partial(small, SmallConfig(channels=4, dim=8)), PICTURE),
    "nature": (partial(nature, NatureConfig(channels=[4, 4, 4], dim=8)), FRAMES._replace(obs_shape=(2, 36, 36))),
    "impala": (partial(impala, ImpalaConfig(channels=[8, 8, 8], dim=8, layer_norm=True)), PICTURE),
    "drq": (partial(drq, DrqConfig(channels=8, dim=8)), PICTURE._replace(obs_shape=(20, 20, 3))),
}


@pytest.mark.parametrize("encoder", NARROW)
@pytest.mark.parametrize("name", READERS)
def test_every_learner_learns_every_encoder_and_comes_back_from_a_file(name: str, encoder: str, tmp_path: Path) -> None:
    factory, obs = NARROW[encoder]
    cls, spec = learners()[name], as_read_by(name, obs)

    def fresh(seed: int) -> Any:
        torch.manual_seed(seed)
        return cls(schemas()[f"algo/{name}"](hidden=[8], batch_size=4, normalize_obs=False), spec, factory)

    learner = fresh(0)
    before = {k: v.clone() for k, v in learner.state_dict().items() if v.dim() == 4 or k.endswith("out.weight")}
    learned = [k for k in before if not k.startswith("target")]
    kernels = {"small": 1, "nature": 3, "impala": 15, "drq": 4}[encoder]
    assert len([k for k in learned if before[k].dim() == 4]) in (kernels, 2 * kernels, 3 * kernels)
    for _ in range(max(2, getattr(learner.cfg, "policy_delay", 1))):  # until the policy has moved
        metrics = learner.update(batch_of(learner, spec))
    assert all(value.isfinite() for value in metrics.values())
    after = learner.state_dict()
    assert not [k for k in learned if torch.equal(before[k], after[k])]

    save_file({k: v.contiguous() for k, v in learner.tensors().items()}, tmp_path / "learner.safetensors")
    twin = fresh(1)
    twin.load_tensors(load_file(tmp_path / "learner.safetensors"))
    twin.load_counters(learner.counters())
    pictures = images(spec, 5)
    for explore in (False, True):
        acted = []
        for one in (learner, twin):
            torch.manual_seed(2)
            acted.append(one.actor.act(pictures, one.actor.initial(5), explore))
        assert acted[0].action.shape == (5, *spec.action_shape)
        assert torch.equal(acted[0].action, acted[1].action)
        assert all(map(torch.equal, acted[0].carry, acted[1].carry))
    batch = batch_of(learner, spec)
    for one in (learner, twin):  # which also go on alike
        torch.manual_seed(3)
        one.update(batch)
    assert all(map(torch.equal, learner.tensors().values(), twin.tensors().values()))


@pytest.mark.parametrize("name", ["ppo", "a2c"])
def test_policy_and_values_share_an_encoder_that_learns_from_both(name: str) -> None:
    """No gradient passes a head whose weights are 0: the other one alone moves the encoder, and nothing if both are."""
    for silent, moves in (("policy", True), ("critic", True), ("both", False)):
        epochs = {"epochs": 1, "batch_size": 12} if name == "ppo" else {}
        learner = learners()[name](schemas()[f"algo/{name}"](hidden=[], **epochs), PICTURE)
        assert learner.policy.net.encoder is None
        assert learner.critic.encoder is None
        with torch.no_grad():
            if silent != "critic":
                learner.policy.net.weights[0].zero_()
            if silent != "policy":
                learner.critic.weights[0].zero_()
        before = learner.shared_encoder.layers[0].weight.clone()
        learner.update(batch_of(learner, PICTURE))
        assert torch.equal(before, learner.shared_encoder.layers[0].weight) != moves


@pytest.mark.parametrize("name", ["ppo", "a2c"])
def test_policy_and_values_may_have_an_encoder_each(name: str) -> None:
    config = schemas()[f"algo/{name}"]
    learner = learners()[name](config(hidden=[8], shared_encoder=False), PICTURE)
    assert learner.shared_encoder is None
    assert learner.policy.net.encoder is not learner.critic.encoder
    vectors = learners()[name](config(hidden=[8]), VECTOR)  # have nothing to share
    assert vectors.shared_encoder is None
    assert vectors.policy.net.weights[0].shape == (5, 8)


@pytest.mark.parametrize("name", ["ppo", "a2c", "trpo", "ppo_lstm"])
def test_encoders_of_on_policy_learners_start_orthogonal(name: str) -> None:
    learner = learners()[name](schemas()[f"algo/{name}"](hidden=[8]), PICTURE)
    parts = [part for part in learner.modules() if isinstance(part, Convolutions)]
    assert parts
    for part in parts:
        for weight in (part.layers[0].weight.flatten(1), part.out.weight):
            torch.testing.assert_close(weight @ weight.t(), 2.0 * torch.eye(len(weight)), rtol=0, atol=1e-4)
        assert not any(bias.any() for bias in (part.layers[0].bias, part.out.bias))


def test_an_encoder_of_somebody_else_starts_as_it_is() -> None:
    class Trained(nn.Module):
        dim = 2

        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(768, 2)
            nn.init.constant_(self.layer.weight, 0.5)

        def forward(self, obs: Tensor) -> Tensor:
            return self.layer(obs.flatten(1) / 255.0)

    factory: Any = lambda spec: Trained()  # noqa: E731
    learner = learners()["ppo"](schemas()["algo/ppo"](hidden=[8]), PICTURE, factory)
    assert (learner.shared_encoder.layer.weight == 0.5).all()


def test_an_encoder_of_somebody_else_says_how_many_features_it_has() -> None:
    factory: Any = lambda spec: nn.Flatten()  # noqa: E731
    with pytest.raises(UserError, match=r"^The encoder Flatten has to be .* set self.dim in its __init__\.$"):
        learners()["ppo"](schemas()["algo/ppo"](hidden=[8]), PICTURE, factory)


def test_statistics_are_for_vectors() -> None:
    with pytest.raises(UserError, match=r"algo\.normalize_obs=true is for vectors"):
        learners()["dqn"](schemas()["algo/dqn"](normalize_obs=True), PICTURE)


def test_a_learner_of_vectors_takes_no_encoder() -> None:
    class Net(nn.Module):
        dim = 3

        def forward(self, obs: Tensor) -> Tensor:
            return obs[:, :3]

    factory: Any = lambda spec: Net()  # noqa: E731
    with pytest.raises(UserError, match="algo=bcq reads vectors and takes no encoder"):
        learners()["bcq"](schemas()["algo/bcq"](), VECTOR, factory)
    learner = learners()["sac"](schemas()["algo/sac"](hidden=[8]), VECTOR, factory)
    assert learner.policy.net.weights[0].shape[0] == 3


# -- with LayerNorm


def test_channels_are_normalised_pixel_by_pixel() -> None:
    image = torch.tensor([[[[1.0, 0.0]], [[3.0, 10.0]]]])  # two channels, one row of two pixels
    found = ChannelNorm(2)(image)
    torch.testing.assert_close(found, torch.tensor([[[[-1.0, -1.0]], [[1.0, 1.0]]]]), rtol=0, atol=1e-4)


@pytest.mark.parametrize(("make", "spec", "convolutions"), [
    (lambda spec: small(SmallConfig(), spec), PICTURE, 1),
    (lambda spec: nature(NatureConfig(), spec), FRAMES, 3),
    (lambda spec: impala(ImpalaConfig(), spec), PICTURE, 0),
    (lambda spec: small(SmallConfig(), spec), DICT, 1),
])  # fmt: skip
def test_layer_norm_stands_behind_convolutions_and_features(make: Any, spec: Spec, convolutions: int) -> None:
    torch.manual_seed(0)
    encoder = with_layer_norm(make(spec))
    parts = [part for part in encoder.modules() if isinstance(part, Convolutions)]
    assert len(parts) == 1
    layers = list(parts[0].layers)
    behind = [layers[i + 1] for i, layer in enumerate(layers) if isinstance(layer, nn.Conv2d)]
    assert len(behind) == convolutions
    assert all(isinstance(layer, ChannelNorm) for layer in behind)
    assert isinstance(parts[0].norm, nn.LayerNorm)
    assert encoder(images(spec, 5)).shape == (5, encoder.dim)


def test_layer_norm_leaves_vectors_as_they_are() -> None:
    encoder = with_layer_norm(auto(AutoConfig(), VECTOR))
    assert isinstance(encoder, Flat)
    assert not list(encoder.parameters())
