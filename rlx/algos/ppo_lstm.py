"""PPO with memory: an LSTM between the observations and the networks of PPO (Schulman et al., 2017).

    memory   h_t, c_t = LSTM(s_t, h_t-1, c_t-1), and zeros before the first step of an episode
    policy   pi(a|h_t), value V(h_t): trained as in algo=ppo, with gradients through time

For envs whose observations do not tell everything: velocities, things seen earlier. Policy and critic have an LSTM
each, or share one (`shared_lstm`), which then learns from both losses.

Gradients flow back to the beginning of the rollout or of the episode, whichever is later; what the actor remembered
before the rollout is where they stop. Minibatches are made of whole lanes (envs), never of single rows. A truncated
episode bootstraps from V of its final observation, given the memory of all that came before it. After a lost life
(`env.episodic_life`, where a game has lives) the memory goes on, as it does in acting, and nothing is bootstrapped.
Values and log-probabilities of a rollout are computed here, in one pass, with the policy that collected it.

`batch_size` is in rows, as in algo=ppo: a minibatch has as many whole lanes as fit into it, at least one. `batch_lanes`
says how many directly.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rlx.errors import require
from rlx.fields import check_numbers, number
from rlx.learner import Actor, ActorCriticConfig, Learner
from rlx.losses import approximate_kl, explained_variance, standardized
from rlx.nn import OBS_CLIP, ActionHead, Adam, StateValue, clipped_surrogate, running_moments, value_error
from rlx.nn.encoders import EncoderFactory
from rlx.nn.heads import encoder_of, width_of
from rlx.nn.recurrent import LSTM, State, Stretches, stretches
from rlx.obs import map_obs, num_rows, take_rows
from rlx.returns import gae
from rlx.types import Acted, Carry, Metrics, Obs, Rollout, Spec


@dataclass
class PPOLSTMConfig(ActorCriticConfig):
    _target_: str = "rlx.algos.ppo_lstm.PPOLSTM"
    name: str = "ppo_lstm"
    lr: float = 3e-4
    batch_size: int = 256  # rows of a minibatch, which is made of whole lanes: as many as fit, at least one
    batch_lanes: int | None = number(None, least=1)  # lanes of a minibatch; None: as `batch_size` says
    epochs: int = number(10, least=1)  # passes over each rollout
    lstm_hidden: list[int] = field(default_factory=lambda: [64])  # layers of the LSTM, all of the same width
    shared_lstm: bool = False  # one LSTM for policy and critic instead of one each
    forget_bias: float = number(0.0, read_once=True)  # of forget gates at the start: 2 remembers for longer
    hidden: list[int] = field(default_factory=lambda: [64])  # between LSTM and output
    activation: str = "tanh"  # relu, tanh, elu or gelu
    gae_lambda: float = number(0.95, least=0, most=1)
    clip_range: float = number(0.2, above=0)  # how far the ratio may move before its gradient stops
    clip_range_value: float | None = number(None, above=0)  # the same for the value, in units of the return; None: off
    normalize_advantage: bool = True  # per minibatch
    entropy_coef: float = 0.0
    value_coef: float = number(0.5, least=0)
    max_grad_norm: float = number(0.5, above=0, read_once=True)  # of all networks together
    target_kl: float | None = number(None, above=0)  # stop once KL(old | new) of a minibatch exceeds 1.5 times this
    log_std_init: float | None = None  # of box actions scaled to [-1, 1]; None: a std of 1 in the env's units, or less


class Experience(NamedTuple):
    """A rollout lane by lane, with everything that the policy which collected it says of its steps."""

    obs: Obs  # [N, T, *obs_shape], normalised
    action: Tensor  # [N, T, ...]
    log_prob: Tensor  # [N, T], as are the rest
    value: Tensor
    advantage: Tensor
    returns: Tensor
    ended: Tensor  # True at the last step of an episode
    carry: Carry  # before the first step, [N, ...] each

    def of(self, lanes: Tensor) -> Experience:
        obs, *columns, carry = self
        picked = (column[lanes] for column in columns)
        return Experience._make([take_rows(obs, lanes), *picked, tuple(part[lanes] for part in carry)])


class RecurrentActor(Actor):
    """Its carry is the hidden and the cell state of the policy's LSTM, then of the critic's where that is another."""

    learner: PPOLSTM

    def initial(self, n: int) -> Carry:
        return tuple(part for lstm in self.learner.lstms for part in lstm.initial(n))

    @torch.no_grad()
    def act(self, obs: Obs, carry: Carry, explore: bool) -> Acted:
        learner = self.learner
        features = learner.features(learner.normalize(obs))
        steps = [lstm.step(x, state) for lstm, x, state in zip(learner.lstms, features, states_of(carry), strict=True)]
        action = learner.policy.act(steps[0][0], explore)
        return Acted(action, tuple(part for _, state in steps for part in state))


def by_lane(x: Tensor) -> Tensor:
    """Of a rollout [T, N, ...], the steps of each lane one after the other, [N * T, ...]."""
    return x.transpose(0, 1).flatten(0, 1)


def in_one_row(x: Tensor) -> Tensor:
    """[N, T, ...] as [N * T, ...]."""
    return x.flatten(0, 1)


def states_of(carry: Carry) -> list[State]:
    """Hidden and cell state of each LSTM."""
    return list(zip(carry[::2], carry[1::2], strict=True))


class PPOLSTM(Learner):
    actions = ("box", "discrete", "multi_discrete")
    regimes = ("on_policy",)
    reads = Rollout
    images = True
    obs_mean: Tensor
    obs_std: Tensor
    obs_count: Tensor  # observations in these statistics so far

    def __init__(self, cfg: PPOLSTMConfig, spec: Spec, encoder: EncoderFactory | None = None):
        super().__init__(cfg, spec, encoder)
        self.cfg: PPOLSTMConfig = cfg
        check_numbers(cfg, "algo")
        widths = list(cfg.lstm_hidden)
        require(
            len(set(widths)) == 1,
            f"All layers of an LSTM must have the same width, and there must be at least one, for example "
            f"algo.lstm_hidden=[64] (algo.lstm_hidden={widths}).",
        )
        lstm_count = 1 if cfg.shared_lstm else 2
        reads = [self.make_encoder("orthogonal") for _ in range(lstm_count)]
        self.encoders = nn.ModuleList([encoder for r in reads if (encoder := encoder_of(r)) is not None])
        lstms = [LSTM(width_of(r), widths[0], len(widths), cfg.forget_bias) for r in reads]
        self.policy_lstm, self.critic_lstm = lstms[0], None if cfg.shared_lstm else lstms[1]
        self.policy = ActionHead(widths[0], spec, cfg.actor_layers, cfg.activation, cfg.log_std_init)
        self.critic = StateValue(widths[0], cfg.critic_layers, cfg.activation)
        if cfg.normalize_obs:
            self.register_buffer("obs_count", torch.zeros((), dtype=torch.int64))
        self.optimizers["policy"] = Adam(self.parameters(), cfg.lr, eps=1e-5, max_grad_norm=cfg.max_grad_norm)

    @property
    def lstms(self) -> list[LSTM]:
        """That of the policy first, that of the critic last."""
        return [self.policy_lstm] if self.critic_lstm is None else [self.policy_lstm, self.critic_lstm]

    @property
    def actor(self) -> RecurrentActor:
        return RecurrentActor(self)

    def act(self, obs: Obs, explore: bool) -> Tensor:
        """Actions at the first step of episodes."""
        return self.actor.act(obs, self.actor.initial(num_rows(obs)), explore).action

    def features(self, obs: Obs) -> list[Tensor]:
        """[B, width] what each LSTM reads of observations."""
        if self.encoders:
            return [encoder(obs) for encoder in self.encoders]
        assert isinstance(obs, Tensor)
        return [obs.flatten(1)] * len(self.lstms)

    def normalize(self, obs: Any) -> Any:
        return super().normalize(obs).clamp(-OBS_CLIP, OBS_CLIP) if self.cfg.normalize_obs else obs

    def update(self, rollout: Rollout) -> Metrics:
        self.updates += 1
        data = self._experience(rollout)
        losses = []
        for minibatch in self._minibatches(data):
            step = self._improve(minibatch)
            if step is None:
                break
            losses.append(step)
        metrics = self._report(data, losses)
        if self.cfg.normalize_obs:
            running_moments(rollout.obs.flatten(0, 1), self.obs_mean, self.obs_std, self.obs_count)
        return metrics

    @torch.no_grad()
    def _experience(self, rollout: Rollout) -> Experience:
        """Values, log-probabilities and advantages of a rollout, by the policy that collected it."""
        steps, lanes = rollout.reward.shape
        both = [self.normalize(map_obs(by_lane, x)) for x in (rollout.obs, rollout.next_obs)]
        table = map_obs(lambda *parts: torch.cat(parts), *both)
        ended = torch.maximum(rollout.terminated, rollout.truncated) > 0
        ended = (ended if rollout.lost_life is None else ended & ~rollout.lost_life).t()
        seen, valued = self._remember(table, list(stretches(ended, final=True)), rollout.carry)
        value, after = self.critic(valued).view(2, lanes, steps)
        # V(next) is V of the following step, but at the end of an episode or of the rollout that of its final
        # observation; where the episode terminated, `gae` takes neither.
        next_value = torch.cat([torch.where(ended, after, value.roll(-1, 1))[:, :-1], after[:, -1:]], 1)
        advantage, returns = gae(
            rollout.reward, value.t(), next_value.t(), rollout.terminated, rollout.truncated,
            self.cfg.discount, self.cfg.gae_lambda,
        )  # fmt: skip
        rows, action = lanes * steps, rollout.action.transpose(0, 1)
        log_prob = self.policy(seen[:rows]).log_prob(action.flatten(0, 1)).view(lanes, steps)
        obs = map_obs(lambda part: part[:rows].view(lanes, steps, *part.shape[1:]), table)
        return Experience(obs, action, log_prob, value, advantage.t(), returns.t(), ended, rollout.carry)

    def _remember(self, table: Obs, groups: Sequence[Stretches], carry: Carry) -> tuple[Tensor, Tensor]:
        """What policy and critic see of the rows of a table, given what came before each of them."""
        parts = zip(self.lstms, self.features(table), states_of(carry), strict=True)
        seen = [lstm(x, groups, state) for lstm, x, state in parts]
        return seen[0], seen[-1]

    def _minibatches(self, data: Experience) -> Iterator[Experience]:
        lanes, steps = data.ended.shape
        size = self.cfg.batch_lanes or max(1, self.cfg.batch_size // steps)
        for _ in range(self.cfg.epochs):
            order = torch.randperm(lanes)
            yield from (data.of(order[i : i + size]) for i in range(0, lanes, size))

    def _improve(self, minibatch: Experience) -> tuple[Tensor, Tensor] | None:
        """One gradient step on everything; None, and no step, if the policy has already moved too far."""
        obs, *rows, ended, carry = minibatch
        columns = (x.flatten(0, 1) for x in rows)
        loss, surrogate, error, kl = self._loss(
            *self._remember(map_obs(in_one_row, obs), list(stretches(ended)), carry), *columns
        )
        if self.cfg.target_kl is not None and kl > 1.5 * self.cfg.target_kl:
            return None
        self.optimizers["policy"].minimize(loss)
        return surrogate, error

    def _loss(
        self, seen: Tensor, valued: Tensor, action: Tensor, old_log_prob: Tensor, old_value: Tensor,
        advantage: Tensor, returns: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
        """The loss of the rows of a minibatch; surrogate, error of the value and KL as well."""
        cfg, actions = self.cfg, self.policy(seen)
        log_prob = actions.log_prob(action)
        if cfg.normalize_advantage:
            advantage = standardized(advantage)
        surrogate = clipped_surrogate(log_prob, old_log_prob, advantage, cfg.clip_range)
        error = value_error(self.critic(valued), old_value, returns, cfg.clip_range_value)
        loss = surrogate + cfg.value_coef * error - cfg.entropy_coef * actions.entropy().mean()
        return loss, surrogate.detach(), error.detach(), approximate_kl(log_prob.detach(), old_log_prob)

    @torch.no_grad()
    def _report(self, data: Experience, losses: list[tuple[Tensor, Tensor]]) -> Metrics:
        """Mean losses of the steps taken, and how far the whole update moved the policy."""
        seen, _ = self._remember(map_obs(in_one_row, data.obs), list(stretches(data.ended)), data.carry)
        actions, old_log_prob = self.policy(seen), data.log_prob.flatten()
        log_prob = actions.log_prob(data.action.flatten(0, 1))
        beyond = ((log_prob - old_log_prob).exp() - 1.0).abs() > self.cfg.clip_range
        means = torch.stack([torch.stack(step) for step in losses]).mean(0)
        return {
            "loss/policy": means[0],
            "loss/value": means[1],
            "entropy": actions.entropy().mean(),
            "kl": approximate_kl(log_prob, old_log_prob),
            "clip_fraction": beyond.float().mean(),
            "explained_variance": explained_variance(data.value, data.returns),
            "gradient_steps": means.new_tensor(len(losses)),
        }
