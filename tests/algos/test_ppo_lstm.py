"""PPO with an LSTM: what is remembered in acting and in learning, and the rules of an update."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from toys import SPEC, ToyEnvs

from rlx.algos.ppo_lstm import PPOLSTM, Experience, PPOLSTMConfig, states_of
from rlx.collectors import LocalCollector, LocalConfig
from rlx.data.rollout import RolloutBuffer
from rlx.envs.vector import LIFE_LOST, Step
from rlx.errors import UserError
from rlx.losses import standardized
from rlx.nn.encoders import Flat, FlatConfig
from rlx.nn.recurrent import stretches
from rlx.returns import gae
from rlx.rewards import RewardConfig, RewardTransform
from rlx.types import Carry, Rollout, Spec

KINDS = {"box": ((2,), ()), "discrete": ((), (3,)), "multi_discrete": ((2,), (3, 2))}
STEPS, LANES = 16, 4


def make(kind: str = "discrete", **settings: Any) -> PPOLSTM:
    shape, sizes = KINDS[kind]
    torch.manual_seed(0)
    cfg = PPOLSTMConfig(**({"hidden": [8], "lstm_hidden": [6]} | settings))
    return PPOLSTM(cfg, Spec("Test-v0", (4,), "float32", kind, shape, action_sizes=sizes))


def moved(learner: PPOLSTM, by: float = 0.3) -> PPOLSTM:
    """Away from its first weights, where outputs hardly depend on inputs."""
    with torch.no_grad():
        for p in learner.parameters():
            p.add_(torch.randn_like(p), alpha=by)
    return learner


def act_through(learner: PPOLSTM, obs: Tensor, ended: Tensor, carry: Carry) -> tuple[Tensor, list[Carry]]:
    """Act step by step as a runner does: actions [T, N], and the carry after each step, before it begins anew."""
    actions, after = [], []
    for x, ends in zip(obs, ended, strict=True):
        acted = learner.actor.act(x, carry, explore=True)
        actions.append(acted.action)
        after.append(acted.carry)
        lanes = ends.nonzero().squeeze(1)
        fresh = learner.actor.initial(len(lanes))
        carry = tuple(old.index_copy(0, lanes, new) for old, new in zip(acted.carry, fresh, strict=True))
    return torch.stack(actions), after


def make_rollout(learner: PPOLSTM, steps: int = STEPS, lanes: int = LANES) -> Rollout:
    """Random observations, episodes that end both ways, and memories of what came before."""
    ends = torch.rand(steps, lanes)
    terminated, truncated = (ends < 0.1).float(), (ends > 0.85).float()
    carry = tuple(torch.randn_like(part) for part in learner.actor.initial(lanes))
    obs = torch.randn(steps, lanes, 4)
    action, _ = act_through(learner, obs, (terminated + truncated) > 0, carry)
    reward, next_obs = torch.randn(steps, lanes), torch.randn(steps, lanes, 4)
    return Rollout(obs, action, reward, next_obs, terminated, truncated, carry)


def weights(learner: PPOLSTM) -> list[Tensor]:
    return [p.detach().clone() for p in learner.parameters()]


def seen_step_by_step(learner: PPOLSTM, rollout: Rollout) -> tuple[Tensor, Tensor, list[Carry]]:
    """What policy and critic see [T, N, width], and the carry after each step, by a loop with gradients."""
    carry, seen, valued, after = rollout.carry, [], [], []
    for x, ends in zip(rollout.obs, rollout.terminated + rollout.truncated, strict=True):
        steps = [lstm.step(x, state) for lstm, state in zip(learner.lstms, states_of(carry), strict=True)]
        seen.append(steps[0][0])
        valued.append(steps[-1][0])
        after.append(tuple(part for _, state in steps for part in state))
        carry = tuple(part * (1.0 - ends).view(-1, 1, 1) for part in after[-1])
    return torch.stack(seen), torch.stack(valued), after


# -- acting ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shared", [False, True])
def test_the_carry_has_a_row_for_each_lane(shared: bool):
    learner = moved(make(lstm_hidden=[6, 6], shared_lstm=shared))
    carry = learner.actor.initial(5)
    assert [tuple(part.shape) for part in carry] == [(5, 2, 6)] * (2 if shared else 4)  # h, c of each LSTM
    assert not any(part.any() for part in carry)
    obs = torch.randn(3, 5, 4)
    for x in obs:
        carry = learner.actor.act(x, carry, explore=False).carry
    alone = learner.actor.initial(1)
    for x in obs:
        alone = learner.actor.act(x[2:3], alone, explore=False).carry
    for together, single in zip(carry, alone, strict=True):
        torch.testing.assert_close(together[2:3], single)


def test_what_was_seen_decides_what_is_done():
    """The same observation, after different ones."""
    learner = moved(make("box"), by=1.0)
    obs, last = torch.randn(6, 4), torch.randn(1, 4).expand(6, 4)
    carry = learner.actor.act(obs, learner.actor.initial(6), explore=False).carry
    action = learner.actor.act(last, carry, explore=False).action
    assert len({tuple(row) for row in action.tolist()}) == 6
    first = learner.act(last, explore=False)  # of new episodes
    torch.testing.assert_close(first, first[:1].expand(6, 2))


def test_acting_does_not_write_to_the_carry():
    learner = moved(make())
    carry = tuple(torch.randn_like(part) for part in learner.actor.initial(2))
    kept = tuple(part.clone() for part in carry)
    learner.actor.act(torch.randn(2, 4), carry, explore=True)
    assert all(torch.equal(a, b) for a, b in zip(carry, kept, strict=True))


# -- experience ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("shared", [False, True])
def test_log_probs_and_values_are_those_of_acting(kind: str, shared: bool):
    learner = moved(make(kind, lstm_hidden=[6, 6], shared_lstm=shared))
    rollout = make_rollout(learner)
    data = learner._experience(rollout)
    with torch.no_grad():
        seen, valued, _ = seen_step_by_step(learner, rollout)
        log_prob = learner.policy(seen.flatten(0, 1)).log_prob(rollout.action.flatten(0, 1)).view(STEPS, LANES)
        value = learner.critic(valued).squeeze(-1)
    torch.testing.assert_close(data.log_prob, log_prob.t())
    torch.testing.assert_close(data.value, value.t())


class Lives(ToyEnvs):
    """A life is lost at the fifth step of each episode."""

    def step(self, actions: Any) -> Step:
        return super().step(actions)._replace(infos=[{LIFE_LOST: at == 5} for at in self._at])


@pytest.mark.parametrize("shared", [False, True])
def test_a_lost_life_does_not_make_it_forget(shared: bool):
    """What is remembered in learning is what was remembered in acting; bootstrapping stops all the same."""
    torch.manual_seed(0)
    learner = PPOLSTM(PPOLSTMConfig(hidden=[8], lstm_hidden=[6], shared_lstm=shared, gae_lambda=0.0), SPEC)
    moved(learner)
    one = LocalCollector(LocalConfig(), learner, lambda: Lives(8, 5, 12), RewardTransform(RewardConfig()), seed=0)
    buffer, acted = RolloutBuffer(STEPS, 3, SPEC), []
    for _ in range(STEPS):
        steps = one.collect(1)
        with torch.no_grad():
            obs, action = torch.as_tensor(steps.obs, dtype=torch.float32), torch.from_numpy(steps.action)
            seen, _ = learner.policy_lstm.step(obs, states_of(steps.carry)[0])
            acted.append(learner.policy(seen).log_prob(action))
        buffer.add(*steps[:6], steps.carry, steps.lost_life)
    (rollout,) = buffer.sample(0, 1)
    data = learner._experience(rollout)
    assert rollout.terminated.t()[0].nonzero().flatten().tolist() == [4, 7, 12, 15]
    assert data.ended[0].nonzero().flatten().tolist() == [7, 15]
    torch.testing.assert_close(data.log_prob, torch.stack(acted, 1))
    ends = rollout.terminated.t() > 0
    torch.testing.assert_close(data.returns[ends], rollout.reward.t()[ends])


def test_truncation_bootstraps_from_the_final_observation_with_the_memory_of_the_episode():
    learner = moved(make(gae_lambda=0.0, discount=0.5))
    rollout = make_rollout(learner, steps=3, lanes=3)
    terminated, truncated = torch.zeros(3, 3), torch.zeros(3, 3)
    terminated[1, 0], truncated[1, 1] = 1.0, 1.0
    rollout = rollout._replace(terminated=terminated, truncated=truncated)
    data = learner._experience(rollout)
    with torch.no_grad():
        _, valued, after = seen_step_by_step(learner, rollout)
        value = learner.critic(valued).squeeze(-1)

        def following(t: int) -> Tensor:
            """V(next_obs), given the state after step t."""
            out, _ = learner.lstms[-1].step(rollout.next_obs[t], states_of(after[t])[-1])
            return learner.critic(out).squeeze(-1)

        expected = rollout.reward.clone()
        expected[0] += 0.5 * value[1]
        expected[1, 1] += 0.5 * following(1)[1]  # cut off: the final observation's value
        expected[1, 2] += 0.5 * value[2, 2]  # went on; and [1, 0] terminated: nothing
        expected[2] += 0.5 * following(2)
    torch.testing.assert_close(data.returns, expected.t())
    torch.testing.assert_close(data.advantage, (expected - value).t())


def test_advantages_are_those_of_gae():
    learner = moved(make(discount=0.9, gae_lambda=0.8))
    rollout = make_rollout(learner)
    data = learner._experience(rollout)
    with torch.no_grad():
        _, _, after = seen_step_by_step(learner, rollout)
        states = [states_of(carry)[-1] for carry in after]
        final = torch.stack(
            [learner.critic(learner.lstms[-1].step(x, s)[0]) for x, s in zip(rollout.next_obs, states, strict=True)]
        ).squeeze(-1)
    value = data.value.t()
    next_value = torch.cat([value[1:], final[-1:]])
    next_value = torch.where(rollout.truncated > 0, final, next_value)
    advantage, returns = gae(rollout.reward, value, next_value, rollout.terminated, rollout.truncated, 0.9, 0.8)
    torch.testing.assert_close(data.advantage, advantage.t())
    torch.testing.assert_close(data.returns, returns.t())


# -- updates ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("shared", [False, True])
def test_gradient_is_that_of_a_loop_over_the_steps(kind: str, shared: bool):
    cfg = {"lstm_hidden": [6, 6], "shared_lstm": shared, "entropy_coef": 0.1, "clip_range_value": 0.3}
    learner = moved(make(kind, max_grad_norm=0.05, **cfg))
    rollout = make_rollout(learner)
    data = learner._experience(rollout)
    moved(learner, by=0.2)  # away from the policy that collected, so that clips bind

    seen, valued, _ = seen_step_by_step(learner, rollout)
    actions = learner.policy(seen.flatten(0, 1))
    log_prob = actions.log_prob(rollout.action.flatten(0, 1))
    ratio = (log_prob - data.log_prob.t().flatten()).exp()
    advantage = data.advantage.t().flatten()
    advantage = (advantage - advantage.mean()) / advantage.std(correction=0)
    surrogate = torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
    value, old = learner.critic(valued).flatten(), data.value.t().flatten()
    near = old + (value - old).clamp(-0.3, 0.3)
    returns = data.returns.t().flatten()
    error = torch.max((value - returns) ** 2, (near - returns) ** 2).mean()
    loss = -surrogate + 0.5 * error - 0.1 * actions.entropy().mean()
    params = learner.optimizers["policy"].params
    expected = torch.autograd.grad(loss, params)
    norm = torch.cat([g.flatten() for g in expected]).norm()
    assert norm > 0.05

    taken: list[Tensor] = []
    learner.optimizers["policy"]._move = taken.extend  # type: ignore[method-assign]
    step = learner._improve(data)
    assert step is not None
    torch.testing.assert_close(torch.stack(step), torch.stack([-surrogate, error]).detach())
    for ours, theirs in zip(taken, expected, strict=True):
        torch.testing.assert_close(ours, theirs * (0.05 / norm), rtol=1e-4, atol=1e-6)


def test_gradients_reach_back_through_time_but_not_over_episodes():
    """What is seen at the beginning matters for the last step, unless an episode ended in between."""
    learner = moved(make())
    for ended_at, reaches in ((None, True), (3, False)):
        obs = torch.randn(2, 6, 4, requires_grad=True)
        ended = torch.zeros(2, 6, dtype=torch.bool)
        if ended_at is not None:
            ended[:, ended_at] = True
        seen, _ = learner._remember(obs.flatten(0, 1), list(stretches(ended)), learner.actor.initial(2))
        (slope,) = torch.autograd.grad(seen.view(2, 6, -1)[:, -1].sum(), obs)
        assert bool(slope[:, 0].any()) == reaches
        assert slope[:, 4:].any()


def test_learning_begins_with_what_was_remembered_before_the_rollout():
    results = []
    for forget in (False, True):
        learner = moved(make())
        rollout = make_rollout(learner)
        if forget:
            rollout = rollout._replace(carry=learner.actor.initial(LANES))
        results.append(learner._experience(rollout))
    assert torch.equal(results[0].obs, results[1].obs)
    assert not torch.allclose(results[0].value[:, 0], results[1].value[:, 0])


def numbered(lanes: int = 7, steps: int = 5) -> Experience:
    """Every number says which lane and step it belongs to."""
    place = torch.arange(lanes * steps, dtype=torch.float32).view(lanes, steps)
    lane = torch.arange(lanes, dtype=torch.float32).view(lanes, 1, 1)
    columns = [place.unsqueeze(-1), place, place, place, place, place, torch.zeros(lanes, steps, dtype=torch.bool)]
    return Experience._make([*columns, (lane, lane)])


@pytest.mark.parametrize(
    ("settings", "sizes"),
    [
        ({"batch_lanes": 3}, [3, 3, 1]),
        ({"batch_lanes": None, "batch_size": 14}, [2, 2, 2, 1]),  # two lanes of five rows fit into 14
        ({"batch_lanes": None, "batch_size": 1}, [1] * 7),  # at least one lane
        ({"batch_lanes": None, "batch_size": 10_000}, [7]),
        ({"batch_lanes": 2, "batch_size": 10_000}, [2, 2, 2, 1]),
    ],
    ids=str,
)
def test_minibatches_are_whole_lanes_with_their_carry(settings: dict[str, Any], sizes: list[int]):
    learner = make(epochs=2, **settings)
    data = numbered()
    seen = list(learner._minibatches(data))
    assert [len(m.value) for m in seen] == sizes * 2
    for m in seen:
        assert torch.equal(m.value[:, 1:], m.value[:, :1] + torch.arange(1.0, 5.0))  # steps stay in order
        assert torch.equal(m.obs.squeeze(-1), m.returns)
        assert all(torch.equal(part.flatten() * 5, m.value[:, 0]) for part in m.carry)
    for epoch in (seen[: len(sizes)], seen[len(sizes) :]):
        assert sorted(torch.cat([m.value for m in epoch]).flatten().tolist()) == list(range(35))


def test_lanes_are_drawn_anew_for_each_epoch():
    learner = make(epochs=2, batch_lanes=7)
    torch.manual_seed(1)
    first, second = (m.value[:, 0].tolist() for m in learner._minibatches(numbered()))
    assert first != sorted(first)
    assert first != second


@pytest.mark.parametrize("kind", list(KINDS))
def test_update_moves_every_weight_and_reports(kind: str):
    learner = make(kind, batch_lanes=2, epochs=3)
    before = weights(learner)
    metrics = learner.update(make_rollout(learner))
    assert learner.updates == 1
    assert all(not torch.equal(a, b) for a, b in zip(before, weights(learner), strict=True))
    assert metrics.keys() == {
        "loss/policy", "loss/value", "entropy", "kl", "clip_fraction", "explained_variance", "gradient_steps",
    }  # fmt: skip
    assert metrics["gradient_steps"] == 3 * 2
    assert all(v.dim() == 0 and v.isfinite() and not v.requires_grad for v in metrics.values())


def test_metrics_look_at_the_whole_rollout_with_its_memory():
    learner = moved(make(epochs=1))
    rollout = make_rollout(learner)
    data = learner._experience(rollout)
    metrics = learner._report(data, [(torch.tensor(1.0), torch.tensor(2.0)), (torch.tensor(3.0), torch.tensor(4.0))])
    assert metrics["kl"].item() == pytest.approx(0.0, abs=1e-6)  # nothing has moved yet
    assert metrics["clip_fraction"] == 0.0
    assert (metrics["loss/policy"], metrics["loss/value"], metrics["gradient_steps"]) == (2.0, 3.0, 2.0)
    learner.policy.net.weights[0].data.add_(1.0)
    assert learner._report(data, [(torch.tensor(1.0), torch.tensor(2.0))])["kl"] > 0.01


def test_update_learns_what_takes_a_memory():
    """The right action is a bit that the first observation of an episode of two steps has shown."""
    learner = make(lr=0.01, batch_lanes=32, hidden=[], normalize_obs=True)
    ended = torch.tensor([[0.0], [1.0]]).expand(2, 64)
    for _ in range(30):
        bit = torch.randint(2, (64,))
        obs = torch.zeros(2, 64, 4)
        obs[0, :, 0] = 2.0 * bit - 1.0
        carry = learner.actor.initial(64)
        action, _ = act_through(learner, obs, ended > 0, carry)
        reward = torch.stack([torch.zeros(64), (action[1] == bit).float()])
        learner.update(Rollout(obs, action, reward, obs, ended, torch.zeros(2, 64), carry))
    obs[0, :, 0] = 2.0 * bit - 1.0
    first = learner.actor.act(obs[0], learner.actor.initial(64), explore=False)
    assert (learner.actor.act(obs[1], first.carry, explore=False).action == bit).float().mean() > 0.95


def test_target_kl_stops_the_epochs():
    def steps(target_kl: float | None) -> float:
        learner = make(lr=0.05, batch_lanes=1, epochs=5, target_kl=target_kl)
        return learner.update(make_rollout(learner))["gradient_steps"].item()

    assert steps(None) == 20
    assert 1 <= steps(0.001) < 20


def test_observation_statistics_move_after_the_update_only():
    learner = make("box", normalize_obs=True)
    rollout = make_rollout(learner)._replace(obs=torch.randn(STEPS, LANES, 4) * 3 + 2)
    assert torch.equal(learner._experience(rollout).obs, rollout.obs.transpose(0, 1).clamp(-10, 10))
    learner.update(rollout)
    flat = rollout.obs.flatten(0, 1)
    torch.testing.assert_close(learner.obs_mean, flat.mean(0))
    torch.testing.assert_close(learner.obs_std, flat.std(0, correction=0))
    assert learner.normalize(learner.obs_mean + 1000.0 * learner.obs_std).tolist() == [10.0] * 4
    with torch.no_grad():
        seen, _ = learner.policy_lstm.step(learner.normalize(flat), learner.policy_lstm.initial(len(flat)))
        torch.testing.assert_close(learner.act(flat, explore=False), learner.policy(seen).mode())


def test_saved_and_loaded_learners_go_on_alike():
    first, second = make("box", normalize_obs=True), moved(make("box", normalize_obs=True))
    first.update(make_rollout(first))
    second.load_tensors({k: v.clone() for k, v in first.tensors().items()})
    rollout = make_rollout(first)
    for learner in (first, second):
        torch.manual_seed(7)
        learner.update(rollout)
    assert all(torch.equal(a, b) for a, b in zip(weights(first), weights(second), strict=True))


def test_one_lstm_or_two():
    assert len(make(shared_lstm=True).lstms) == 1
    first, second = make(shared_lstm=False).lstms
    assert not torch.equal(first.net.weight_ih_l0, second.net.weight_ih_l0)
    learner = moved(make(shared_lstm=True))
    data = learner._experience(make_rollout(learner))
    learner.cfg.normalize_advantage = False
    lost = [data._replace(advantage=0.0 * data.advantage), data._replace(returns=data.value)]  # of one loss each
    for alone in lost:
        copy = make(shared_lstm=True)
        copy.load_state_dict(learner.state_dict())
        copy.cfg.normalize_advantage = False
        before = copy.policy_lstm.net.weight_hh_l0.detach().clone()
        copy._improve(alone)
        assert not torch.equal(before, copy.policy_lstm.net.weight_hh_l0)  # it learns from both


def test_advantages_are_standardized_per_minibatch():
    rollout = make_rollout(moved(make()))
    losses = []
    for scale in (1.0, 50.0):
        learner = moved(make())
        data = learner._experience(rollout)
        moved(learner, by=0.1)
        step = learner._improve(data._replace(advantage=scale * data.advantage + 3.0))
        assert step is not None
        losses.append(step[0])
    torch.testing.assert_close(losses[0], losses[1], rtol=1e-3, atol=1e-4)
    assert standardized(torch.tensor([5.0])).tolist() == [0.0]  # one lane of one step is harmless


@pytest.mark.parametrize(
    "setting",
    [
        {"epochs": 0},
        {"batch_lanes": 0},
        {"clip_range": 0.0},
        {"max_grad_norm": -0.5},
        {"gae_lambda": 1.5},
        {"target_kl": 0.0},
        {"clip_range_value": -1.0},
        {"value_coef": -1.0},
        {"lstm_hidden": [8, 9]},
        {"lstm_hidden": []},
        {"lstm_hidden": [0]},
    ],
    ids=str,
)
def test_impossible_settings_are_refused(setting: dict[str, Any]):
    with pytest.raises(UserError, match=f"algo.{next(iter(setting))}"):
        make(**setting)


@pytest.mark.parametrize("shared", [False, True])
def test_images_are_learned_from_as_their_numbers_are(shared: bool) -> None:
    """Pictures through the encoder that only scales them: the weights of a learner that gets vectors."""
    torch.manual_seed(0)
    pixels = torch.randint(256, (2, 6, 2, 3, 3, 1), dtype=torch.uint8)
    ended, none = (torch.rand(6, 2) < 0.3).float(), torch.zeros(6, 2)
    action, reward = torch.randint(3, (6, 2)), torch.randn(6, 2)
    weights = []
    for image in (False, True):
        spec = Spec(
            "x", (3, 3, 1) if image else (9,), "uint8" if image else "float32", "discrete", (), action_sizes=(3,)
        )
        torch.manual_seed(1)
        cfg = PPOLSTMConfig(
            lstm_hidden=[8], hidden=[8], epochs=2, batch_lanes=1, normalize_obs=False, shared_lstm=shared
        )
        learner = PPOLSTM(cfg, spec, lambda spec: Flat(FlatConfig(), spec))
        obs, after = pixels if image else pixels.flatten(3).float() / 255.0
        torch.manual_seed(2)
        learner.update(Rollout(obs, action, reward, after, ended, none, learner.actor.initial(2)))
        weights.append(learner.state_dict())
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
