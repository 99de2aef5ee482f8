"""Decision Transformer: losses by hand, what a token can see, and an actor that remembers."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import rlx
from rlx.algos.dt import DT, Activation, DTConfig, dt_loss, visible, warmup
from rlx.errors import UserError
from rlx.nn import AdamW
from rlx.types import Carry, Spec, Windows

BOX = Spec("box", (3,), "float32", "box", (2,), (-1.0, -1.0), (1.0, 1.0), episode_limit=30)
DISCRETE = Spec("discrete", (3,), "float32", "discrete", (), action_sizes=(4,), episode_limit=30)
SMALL: dict[str, Any] = {"context": 5, "width": 16, "layers": 2, "heads": 2, "dropout": 0.0, "warmup_updates": 0}

both_kinds = pytest.mark.parametrize("spec", [BOX, DISCRETE], ids=["box", "discrete"])


def make(spec: Spec = BOX, **options: Any) -> DT:
    """A learner whose weights are large enough for every input to matter."""
    torch.manual_seed(0)
    learner = DT(DTConfig(**{**SMALL, "return_scale": 10.0, **options}), spec)
    with torch.no_grad():
        for parameter in learner.policy.blocks.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    learner.set_normalizer(torch.tensor([1.0, -1.0, 0.5]), torch.tensor([2.0, 0.5, 1.0]))
    return learner


def windows(spec: Spec, real: list[int], length: int = 5, seed: int = 1) -> Windows:
    """Windows with so many real steps each, behind their padding."""
    random = torch.Generator().manual_seed(seed)
    n = len(real)
    mask = (torch.arange(length) >= length - torch.tensor(real)[:, None]).float()
    obs, returns = torch.randn(n, length, 3, generator=random), 10.0 * torch.randn(n, length, generator=random)
    action = 2.0 * torch.rand(n, length, 2, generator=random) - 1.0
    if spec.discrete:
        action = torch.randint(4, (n, length), generator=random) * mask.long()
    else:
        action = action * mask[..., None]
    timestep = ((torch.arange(length) + 3) * mask).long()
    zeros = torch.zeros(n, length)
    return Windows(obs * mask[..., None], action, zeros, returns * mask, zeros, timestep, mask)


def predictions(learner: DT, batch: Windows) -> Tensor:
    return learner.predict(batch.obs, batch.action, batch.return_to_go, batch.timestep, batch.mask).detach()


# -- losses ----------------------------------------------------------------------------------------------------------


def test_loss_is_the_mean_over_real_positions() -> None:
    error = torch.tensor([[100.0, 1.0, 2.0], [100.0, 100.0, 6.0]])
    loss, metrics = dt_loss(error, torch.tensor([[0.0, 1.0, 1.0], [0.0, 0.0, 1.0]]))
    assert loss.item() == 3.0
    assert {k: v.item() for k, v in metrics.items()} == {"loss/actor": 3.0}


def test_box_loss_is_the_squared_error() -> None:
    learner, batch = make(), windows(BOX, [5, 2])
    error = (predictions(learner, batch) - batch.action).square()
    real = torch.cat([error[0], error[1, 3:]])  # [7, 2]
    assert learner.update(batch)["loss/actor"].item() == pytest.approx(real.mean().item())


def test_discrete_loss_is_the_cross_entropy() -> None:
    learner, batch = make(DISCRETE), windows(DISCRETE, [5, 2])
    found = predictions(learner, batch).log_softmax(-1)
    rows = [(0, i) for i in range(5)] + [(1, 3), (1, 4)]
    expected = -sum(found[b, i, batch.action[b, i]].item() for b, i in rows) / 7
    assert learner.update(batch)["loss/actor"].item() == pytest.approx(expected)


def test_box_actions_are_squashed_and_logits_are_not() -> None:
    learner = make()
    with torch.no_grad():
        learner.policy.head.weight.mul_(1000.0)
    assert predictions(learner, windows(BOX, [5])).abs().max() <= 1.0
    learner = make(DISCRETE)
    with torch.no_grad():
        learner.policy.head.weight.mul_(1000.0)
    assert predictions(learner, windows(DISCRETE, [5])).abs().max() > 1.0


# -- what a token can see --------------------------------------------------------------------------------------------


def test_a_token_sees_itself_and_real_ones_before_it() -> None:
    seen = visible(torch.tensor([[0.0, 1.0, 1.0]]))[0]
    assert seen.int().tolist() == [[1, 0, 0], [0, 1, 0], [0, 1, 1]]


def changed(name: str, batch: Windows, step: int) -> Windows:
    """The same windows with something else in one step."""
    column = getattr(batch, name).clone()
    if column.is_floating_point():
        column[:, step] += 1.0
    else:
        column[:, step] = (column[:, step] + 1) % 4
    return batch._replace(**{name: column})


@both_kinds
@pytest.mark.parametrize(
    ("name", "first"), [("return_to_go", 2), ("obs", 2), ("timestep", 2), ("action", 3)]
)  # an action is read off its state, before it is known
def test_predictions_depend_on_the_past_alone(spec: Spec, name: str, first: int) -> None:
    learner, batch = make(spec), windows(spec, [5, 5])
    before, after = predictions(learner, batch), predictions(learner, changed(name, batch, 2))
    assert torch.equal(before[:, :first], after[:, :first])
    assert (before[:, first:] - after[:, first:]).abs().amax((0, 2)).min() > 1e-4


@both_kinds
def test_padding_has_no_part_in_predictions(spec: Spec) -> None:
    learner, batch = make(spec), windows(spec, [2, 2])
    short = Windows(*(column[:, 3:] for column in batch))
    torch.testing.assert_close(predictions(learner, batch)[:, 3:], predictions(learner, short), rtol=1e-5, atol=1e-6)
    for name in ("return_to_go", "obs", "timestep", "action"):
        other = predictions(learner, changed(name, batch, 1))
        assert torch.equal(other[:, 3:], predictions(learner, batch)[:, 3:]), name


def test_padding_has_no_part_in_gradients() -> None:
    found = []
    for batch in (windows(BOX, [2, 4]), changed("obs", changed("action", windows(BOX, [2, 4]), 0), 0)):
        learner = make()
        learner.update(batch)
        assert all(v.isfinite().all() for v in learner.tensors().values())
        found.append(learner.state_dict())
    assert all(torch.equal(found[0][k], found[1][k]) for k in found[0])


def test_scores_are_scaled_and_heads_are_apart() -> None:
    """One token each of two: the weights are the softmax of q k / sqrt(width / heads), head by head."""
    block = make().policy.blocks[0]
    x = torch.randn(1, 2, 16)
    q, k, v = block.attention_in(x)[0].chunk(3, -1)
    mixed = []
    for part in (slice(0, 8), slice(8, 16)):
        weights = torch.softmax(q[1, part] @ k[:, part].T / math.sqrt(8.0), 0)
        mixed.append(weights @ v[:, part])
    found = block.attend(x, visible(torch.ones(1, 2)), 0.0)[0, 1]
    torch.testing.assert_close(found, block.attention_out(torch.cat(mixed)), rtol=1e-5, atol=1e-6)


def test_returns_are_scaled_and_observations_standardised() -> None:
    learner, batch = make(), windows(BOX, [5])
    twin = make(return_scale=1.0, normalize_obs=True)
    twin.set_normalizer(torch.zeros(3), torch.ones(3) - 1e-3)
    obs = (batch.obs - torch.tensor([1.0, -1.0, 0.5])) / torch.tensor([2.001, 0.501, 1.001])
    same = batch._replace(obs=obs, return_to_go=batch.return_to_go / 10.0)
    torch.testing.assert_close(predictions(learner, batch), predictions(twin, same), rtol=1e-5, atol=1e-6)


def test_timesteps_beyond_the_limit_are_the_last() -> None:
    batch = windows(BOX, [5])
    early, late = (batch._replace(timestep=batch.timestep + n) for n in (22, 1000))  # 25 to 29 is within
    learner = make()
    last = predictions(learner, batch._replace(timestep=torch.full_like(batch.timestep, 29)))
    assert torch.equal(predictions(learner, late), last)
    assert not torch.equal(predictions(learner, early), last)


@pytest.mark.parametrize(
    ("length", "limit", "expected"), [(None, 30, 30), (None, None, 1000), (7, 30, 7), (50, None, 50)]
)
def test_the_number_of_timesteps(length: int | None, limit: int | None, expected: int) -> None:
    learner = make(BOX._replace(episode_limit=limit), max_episode_length=length)
    assert learner.policy.embed_time.weight.shape == (expected, 16)


def test_activations() -> None:
    x, seen = torch.randn(1, 4, 16), visible(torch.ones(1, 4))
    relu, gelu = (make(activation=kind).policy.blocks[0] for kind in (Activation.relu, Activation.gelu))
    hidden = relu.layer_in(relu.layer_norm(x + relu.attend(relu.attention_norm(x), seen, 0.0)))
    added = [block(x, seen, 0.0) - x - block.attend(block.attention_norm(x), seen, 0.0) for block in (relu, gelu)]
    torch.testing.assert_close(added[0], relu.layer_out(hidden.clamp(min=0.0)), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(
        added[1], gelu.layer_out(torch.nn.functional.gelu(hidden)), rtol=1e-4, atol=1e-5
    )  # the same weights


# -- learning --------------------------------------------------------------------------------------------------------


def test_the_learning_rate_warms_up() -> None:
    assert [warmup(i, 4) for i in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    assert warmup(0, 0) == 1.0
    learner, rates = make(lr=0.01, warmup_updates=4), []
    for _ in range(5):
        learner.update(windows(BOX, [5]))
        rates.append(learner.optimizers["actor"].lr)
    assert rates == pytest.approx([0.0025, 0.005, 0.0075, 0.01, 0.01])


def test_adamw_is_that_of_torch() -> None:
    torch.manual_seed(0)
    ours = [torch.randn(4, 3), torch.randn(3)]
    theirs = [p.clone().requires_grad_() for p in ours]
    adam = AdamW(ours, 0.01, weight_decay=0.3, betas=(0.8, 0.9), eps=1e-5)
    reference = torch.optim.AdamW(theirs, 0.01, (0.8, 0.9), 1e-5, 0.3)
    for i in range(10):
        adam.scale = 1.0 / (i + 1)
        reference.param_groups[0]["lr"] = 0.01 * adam.scale
        grads = [torch.randn_like(p) for p in ours]
        adam.step(grads)
        for p, grad in zip(theirs, grads, strict=True):
            p.grad = grad
        reference.step()
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b.detach(), rtol=1e-6, atol=1e-6)


def test_every_parameter_decays() -> None:
    learner = make(lr=0.1, weight_decay=0.5)
    adam = learner.optimizers["actor"]
    assert {id(p) for p in adam.params} == {id(p) for p in learner.policy.parameters()}
    before = [p.clone() for p in adam.params]
    adam.step([torch.zeros_like(p) for p in adam.params])
    for old, new in zip(before, adam.params, strict=True):
        torch.testing.assert_close(new, 0.95 * old)


def test_gradients_are_clipped() -> None:
    learner = make(max_grad_norm=0.25)
    learner.update(windows(BOX, [5, 5]))
    norm = learner.optimizers["actor"].grad_norm
    assert norm is not None
    assert norm > 0.25
    first = torch.cat([m.flatten() for m in learner.optimizers["actor"].exp_avg]) / 0.1  # the gradient, after one step
    assert first.norm().item() == pytest.approx(0.25, rel=1e-3)


def test_dropout_is_for_learning_only() -> None:
    learner, batch = make(dropout=0.5), windows(BOX, [5])
    assert torch.equal(predictions(learner, batch), predictions(learner, batch))
    columns = (batch.obs, batch.action, batch.return_to_go, batch.timestep, batch.mask)
    assert not torch.equal(learner.predict(*columns, 0.5), learner.predict(*columns, 0.5))
    losses = []
    for seed in (1, 1, 2):
        twin = make(dropout=0.5)
        torch.manual_seed(seed)
        losses.append(twin.update(batch)["loss/actor"].item())
    assert losses[0] == losses[1] != losses[2]
    obs, carry = torch.randn(2, 3), learner.actor.initial(2)
    assert torch.equal(*(learner.actor.act(obs, carry, explore=False).action for _ in range(2)))


def test_dropout_falls_on_embeddings_attention_and_both_sums() -> None:
    calls: list[tuple[int, ...]] = []
    learner, batch = make(dropout=0.5), windows(BOX, [5])
    real = torch.nn.functional.dropout
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("torch.nn.functional.dropout", lambda x, p: calls.append(tuple(x.shape)) or real(x, p))
        learner.update(batch)
    block = [(1, 2, 15, 15), (1, 15, 16), (1, 15, 16)]
    assert calls == [(1, 15, 16), *block, *block]


def test_weights_begin_as_the_authors() -> None:
    torch.manual_seed(0)
    policy = DT(DTConfig(width=64), BOX).policy
    for block in policy.blocks:
        for part in (block.attention_in, block.attention_out, block.layer_in, block.layer_out):
            assert part.weight.std().item() == pytest.approx(0.02, rel=0.1)
            assert part.bias.abs().max() == 0.0
    assert policy.embed_time.weight.std().item() == pytest.approx(1.0, rel=0.1)
    assert policy.embed_obs.weight.abs().max().item() == pytest.approx(1.0 / math.sqrt(3.0), rel=0.1)


# -- acting ----------------------------------------------------------------------------------------------------------


def walk(learner: DT, observations: Tensor, rewards: Tensor) -> tuple[Tensor, Carry]:
    """Actions [T, N, ...] of the actor for observations [T, N, 3] and rewards [T, N], and its last carry."""
    actor = learner.actor
    carry, found = actor.initial(observations.shape[1]), []
    for obs, reward in zip(observations, rewards, strict=True):
        acted = actor.act(obs, carry, explore=False)
        found.append(acted.action)
        carry = actor.feedback(acted.carry, reward)
    return torch.stack(found), carry


@both_kinds
@pytest.mark.parametrize("steps", [3, 5, 9])
def test_the_actor_equals_the_network_on_the_whole_window(spec: Spec, steps: int) -> None:
    learner = make(spec, target_return=25.0)
    observations, rewards = torch.randn(steps, 2, 3), 5.0 * torch.randn(steps, 2)
    actions, _ = walk(learner, observations, rewards)
    earned = torch.cat([torch.zeros(1, 2), rewards.cumsum(0)[:-1]])
    columns = [observations, actions, 25.0 - earned, torch.arange(steps)[:, None].expand(steps, 2)]
    obs, action, returns, timestep = (column[-5:].transpose(0, 1) for column in columns)
    found = learner.predict(obs, action, returns, timestep, torch.ones(2, min(5, steps)))[:, -1]
    if spec.discrete:
        assert torch.equal(actions[-1], found.argmax(-1))
        assert actions.dtype == torch.int64
    else:
        torch.testing.assert_close(actions[-1], found, rtol=1e-5, atol=1e-6)


def test_the_return_to_go_falls_by_the_reward() -> None:
    learner = make(target_return=25.0)
    _, carry = walk(learner, torch.randn(3, 1, 3), torch.tensor([[1.0], [-2.0], [4.0]]))
    _, _, returns, left, steps = carry
    assert returns.tolist() == [[0.0, 0.0, 25.0, 24.0, 26.0]]
    assert left.tolist() == [22.0]
    assert steps.tolist() == [3]


@both_kinds
def test_a_lane_can_begin_anew_beside_another(spec: Spec) -> None:
    """Rows of the carry are independent: one that is reset acts as in a new episode, the other as if alone."""
    learner = make(spec, target_return=25.0)
    observations, rewards = torch.randn(6, 2, 3), torch.randn(6, 2)
    alone, _ = walk(learner, observations[:, 1:], rewards[:, 1:])
    anew, _ = walk(learner, observations[3:, :1], rewards[3:, :1])
    actor = learner.actor
    carry, found = actor.initial(2), []
    for i in range(6):
        if i == 3:
            for part, fresh in zip(carry, actor.initial(1), strict=True):
                part[0] = fresh[0]
        acted = actor.act(observations[i], carry, explore=False)
        found.append(acted.action)
        carry = actor.feedback(acted.carry, rewards[i])
    torch.testing.assert_close(torch.stack(found)[:, 1:], alone, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(torch.stack(found)[3:, :1], anew, rtol=1e-5, atol=1e-6)


def test_acting_leaves_the_carry_it_was_given_alone() -> None:
    actor = make(target_return=1.0).actor
    carry = actor.act(torch.randn(2, 3), actor.initial(2), explore=False).carry
    kept = [part.clone() for part in carry]
    actor.feedback(actor.act(torch.randn(2, 3), carry, explore=False).carry, torch.ones(2))
    assert all(torch.equal(a, b) for a, b in zip(kept, carry, strict=True))


def test_the_target_is_the_best_of_the_data_unless_asked_for_another() -> None:
    learner = make()
    learner.set_returns(torch.tensor([-3.0, 42.0, 7.0], dtype=torch.float64))
    assert learner.actor.initial(2)[3].tolist() == [42.0, 42.0]
    assert learner.tensors()["model.best_return"].item() == 42.0  # and so in the checkpoint
    learner.set_options({"target_return": 5.0})
    assert learner.actor.initial(2)[3].tolist() == [5.0, 5.0]
    assert make(target_return=0.0).actor.initial(1)[3].tolist() == [0.0]


def test_exploring_draws_discrete_actions() -> None:
    learner = make(DISCRETE)
    obs = torch.zeros(200, 3)
    assert set(learner.act(obs, explore=True).tolist()) == {0, 1, 2, 3}
    assert len(set(learner.act(obs, explore=False).tolist())) == 1
    assert torch.equal(make().act(obs, explore=True), make().act(obs, explore=False))


# -- settings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"context": 0}, "algo.context must be at least 1"),
        ({"width": 0}, "algo.width must be at least 1"),
        ({"heads": 3}, "algo.width must be a multiple of algo.heads"),
        ({"dropout": 1.0}, "algo.dropout must be"),
        ({"lr": 0.0}, "algo.lr must be above 0"),
        ({"weight_decay": -1.0}, "algo.weight_decay must be at least 0"),
        ({"return_scale": 0.0}, "algo.return_scale must be above 0"),
        ({"max_episode_length": 0}, "algo.max_episode_length must be at least 1"),
        ({"discount": 0.99}, "use algo.discount=1"),
        ({"target_return": math.inf}, "algo.target_return must be finite"),
    ],
)
def test_impossible_settings_are_refused(options: dict[str, Any], expected: str) -> None:
    with pytest.raises(UserError, match=expected):
        make(**options)


def test_options_are_refused_that_are_none_or_impossible() -> None:
    with pytest.raises(UserError, match="algo=dt has no option lr; it takes target_return"):
        make().set_options({"lr": 1.0})
    with pytest.raises(UserError, match=r"algo\.target_return must be finite"):
        make().set_options({"target_return": math.nan})


def test_transformed_rewards_are_refused(tmp_path: Path) -> None:
    chosen = ("algo=dt", "env=pendulum", "dataset=random", "dataset.size=60", "reward=scale", "reward.scale=0.1")
    with pytest.raises(UserError, match=r"algo=dt learns from returns in the env's units; use reward=identity\."):
        rlx.train(*chosen, run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()
