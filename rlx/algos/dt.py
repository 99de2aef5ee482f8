"""Decision Transformer (Chen et al., 2021), arXiv:2106.01345: offline learning as the modelling of sequences.

    tokens     R_1, s_1, a_1, R_2, s_2, a_2, ...           R_t = r_t + r_{t+1} + ...: the return-to-go
    embedding  LayerNorm(W x + b + e(t))                   W, b of returns, states and actions; e(t) of the timestep
    network    GPT-2: each token attends to itself and to those before it
    action     tanh(W h + b), h: what the network makes of the state's token; logits for discrete actions
    loss       mean of (action - a_t)^2 over real positions, not over padded ones; cross entropy for discrete actions
    acting     R_1 = target_return, R_{t+1} = R_t - r_t; the last `context` steps are remembered

Returns are sums without a discount, in the env's units. Without a target_return the policy asks for the highest return
of the dataset; `python -m rlx evaluate RUN target_return=3000` asks for another one. `hidden` is not used: width and
layers say how large the network is.

As in the authors' code for Gym: ReLU (their Atari code has GELU); AdamW decays all parameters; weights within the
blocks start at N(0, 0.02). Differences: their dropout of embeddings is 0.1 whatever the other one is; they standardise
with std + 1e-6, we with std + 1e-3; their heads for states and returns, which they do not train either, are left out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rlx.errors import require
from rlx.fields import check_numbers, number
from rlx.learner import Actor, AlgoConfig, Learner
from rlx.nn import AdamW, Categorical
from rlx.nn.encoders import EncoderFactory
from rlx.types import Acted, Carry, Metrics, Obs, Spec, Windows

UNLIMITED = 1000  # timesteps told apart where neither the config nor the env limits an episode


class Activation(str, Enum):
    relu = "relu"
    gelu = "gelu"


@dataclass
class DTConfig(AlgoConfig):
    _target_: str = "rlx.algos.dt.DT"
    name: str = "dt"
    discount: float = number(1.0, least=0, most=1, read_once=True)  # returns-to-go are plain sums: 1
    batch_size: int = number(64, least=1)  # windows
    hidden: list[int] = field(default_factory=list)  # not used; see width and layers
    normalize_obs: bool = True  # standardise observations; the statistics are part of the policy
    context: int = number(20, least=1, read_once=True)  # steps that the policy sees, three tokens each
    width: int = number(128, least=1, read_once=True)  # of a token
    layers: int = number(3, least=1, read_once=True)
    heads: int = number(1, least=1, read_once=True)  # of the attention; they divide the width
    activation: Activation = Activation.relu
    dropout: float = number(0.1, least=0, below=1)  # of embeddings, attention and layers
    lr: float = number(1e-4, above=0)
    warmup_updates: int = number(10_000, least=0)  # the learning rate rises to lr in as many updates
    weight_decay: float = number(1e-4, least=0, read_once=True)  # of all parameters, decoupled from the gradient
    adam_eps: float = number(1e-8, above=0, read_once=True)
    max_grad_norm: float = number(0.25, above=0, read_once=True)
    return_scale: float = number(1000.0, above=0, read_once=True)  # the network sees returns divided by this
    target_return: float | None = number(None, read_once=True)  # to ask for; null: the highest of the dataset
    max_episode_length: int | None = number(None, least=1, read_once=True)  # timesteps; null: the env's limit, or 1000


def dt_loss(error: Tensor, mask: Tensor) -> tuple[Tensor, Metrics]:
    """Mean error of the actions [B, L] where they are real."""
    loss = (error * mask).sum() / mask.sum()
    return loss, {"loss/actor": loss.detach()}


def visible(mask: Tensor) -> Tensor:
    """Which token (last axis) each token may attend to, [B, T, T] from a mask [B, T] of the real ones: those before it.

    And itself, so that a padded token attends to something; its output is not used.
    """
    here = torch.eye(mask.shape[1], dtype=torch.bool, device=mask.device)
    before = torch.ones_like(here).tril()
    return before & (mask.bool()[:, None] | here)


def warmup(updates: int, length: int) -> float:
    """Multiplier of the learning rate for the update after `updates` others; 1 without a warm-up."""
    return min(1.0, (updates + 1) / max(1, length))


class Block(nn.Module):
    """Attention and a layer of four times the width, each behind a LayerNorm and added to what it reads."""

    def __init__(self, width: int, heads: int, activation: Activation):
        super().__init__()
        self.heads = heads
        self.activation = F.gelu if activation is Activation.gelu else F.relu
        self.attention_norm, self.layer_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention_in, self.attention_out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.layer_in, self.layer_out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, seen: Tensor, dropout: float) -> Tensor:
        x = x + F.dropout(self.attend(self.attention_norm(x), seen, dropout), dropout)
        return x + F.dropout(self.layer_out(self.activation(self.layer_in(self.layer_norm(x)))), dropout)

    def attend(self, x: Tensor, seen: Tensor, dropout: float) -> Tensor:
        heads = self.attention_in(x).unflatten(-1, (3, self.heads, -1))
        query, key, value = heads.permute(2, 0, 3, 1, 4)  # [B, heads, T, width / heads] each
        scores = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5
        weights = scores.masked_fill(~seen[:, None], -torch.inf).softmax(-1)
        mixed: Tensor = self.attention_out((F.dropout(weights, dropout) @ value).transpose(1, 2).flatten(2))
        return mixed


class DecisionTransformer(nn.Module):
    """From returns-to-go, states and actions to an action for each state, which has not seen its own."""

    def __init__(self, cfg: DTConfig, obs_dim: int, action_dim: int, timesteps: int, squash: bool):
        super().__init__()
        self.squash = squash
        self.embed_time = nn.Embedding(timesteps, cfg.width)
        self.embed_return = nn.Linear(1, cfg.width)
        self.embed_obs = nn.Linear(obs_dim, cfg.width)
        self.embed_action = nn.Linear(action_dim, cfg.width)
        self.embed_norm = nn.LayerNorm(cfg.width)
        self.blocks = nn.ModuleList(Block(cfg.width, cfg.heads, cfg.activation) for _ in range(cfg.layers))
        self.norm = nn.LayerNorm(cfg.width)
        self.head = nn.Linear(cfg.width, action_dim)
        for module in self.blocks.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)

    def forward(
        self, obs: Tensor, action: Tensor, return_to_go: Tensor, timestep: Tensor, mask: Tensor, dropout: float = 0.0
    ) -> Tensor:
        """[B, L, dim(A)] from [B, L, ...]; positions where `mask` is 0 have no part in it."""
        kinds = self.embed_return(return_to_go.unsqueeze(-1)), self.embed_obs(obs), self.embed_action(action)
        x = (torch.stack(kinds, 2) + self.embed_time(timestep).unsqueeze(2)).flatten(1, 2)
        x = F.dropout(self.embed_norm(x), dropout)
        seen = visible(mask.repeat_interleave(3, 1))
        for block in self.blocks:
            x = block(x, seen, dropout)
        out = self.head(self.norm(x[:, 1::3]))  # of the states
        return torch.tanh(out) if self.squash else out


class DTActor(Actor):
    """Its carry: observations, actions and returns-to-go of the last steps [N, context, ...], newest last; the return
    that is left to earn [N]; how many steps the episode has had [N].
    """

    learner: DT

    def initial(self, n: int) -> Carry:
        dt = self.learner
        spec, device = dt.spec, dt.best_return.device
        obs = torch.zeros(n, dt.window, *spec.obs_shape, device=device)
        kind = torch.int64 if spec.discrete else torch.float32
        action = torch.zeros(n, dt.window, *spec.action_shape, dtype=kind, device=device)
        returns = torch.zeros(n, dt.window, device=device)
        return obs, action, returns, dt.target_return().repeat(n), torch.zeros(n, dtype=torch.int64, device=device)

    @torch.no_grad()
    def act(self, obs: Obs, carry: Carry, explore: bool) -> Acted:
        """The best action, or a drawn one to explore among discrete ones."""
        assert isinstance(obs, Tensor)
        observations, actions, returns, left, steps = carry
        observations, returns = appended(observations, obs), appended(returns, left)
        actions = appended(actions, torch.zeros_like(actions[:, 0]))  # a place for the one to be predicted
        steps = steps + 1
        ago = torch.arange(self.learner.window, 0, -1, device=steps.device)
        timestep = steps[:, None] - ago  # below 0: before the episode
        action = self.learner.predict(observations, actions, returns, timestep, (timestep >= 0).float())[:, -1]
        if self.learner.spec.discrete:
            choice = Categorical(action)
            action = choice.sample() if explore else choice.mode()
        actions[:, -1] = action
        return Acted(action, (observations, actions, returns, left, steps))

    def feedback(self, carry: Carry, reward: Tensor) -> Carry:
        """What was earned is no longer to be earned."""
        *context, left, steps = carry
        return *context, left - reward, steps


def appended(past: Tensor, new: Tensor) -> Tensor:
    """[N, L, ...] without its oldest entry and with a new one [N, ...]."""
    return torch.cat([past[:, 1:], new.unsqueeze(1)], 1)


class DT(Learner):
    reads = Windows
    actions = ("box", "discrete")
    regimes = ("offline",)
    needs_returns = True
    options = ("target_return",)
    best_return: Tensor  # of the dataset
    cfg: DTConfig

    def __init__(self, cfg: DTConfig, spec: Spec, encoder: EncoderFactory | None = None):
        super().__init__(cfg, spec, encoder)
        check_numbers(cfg, "algo")
        require(
            cfg.width % cfg.heads == 0,
            f"algo.width must be a multiple of algo.heads (algo.width={cfg.width}, algo.heads={cfg.heads}).",
        )
        require(
            cfg.discount == 1.0,
            f"algo={cfg.name} reads sums of rewards; use algo.discount=1 (algo.discount={cfg.discount}).",
        )
        self.window = cfg.context
        self.timesteps = cfg.max_episode_length or spec.episode_limit or UNLIMITED
        self.register_buffer("best_return", torch.zeros(()))
        self.policy = DecisionTransformer(cfg, self.obs_width, spec.action_dim, self.timesteps, not spec.discrete)
        adam = AdamW(
            self.policy.parameters(), cfg.lr, cfg.weight_decay, eps=cfg.adam_eps, max_grad_norm=cfg.max_grad_norm
        )
        self.optimizers = {"actor": adam}

    @property
    def actor(self) -> DTActor:
        return DTActor(self)

    def act(self, obs: Tensor, explore: bool) -> Tensor:
        """As in the first step of an episode."""
        return self.actor.act(obs, self.actor.initial(len(obs)), explore).action

    def set_returns(self, returns: Tensor) -> None:
        self.best_return.copy_(returns.max())

    def target_return(self) -> Tensor:
        """What an episode is asked to return, [1]."""
        asked = self.cfg.target_return
        return self.best_return.reshape(1) if asked is None else self.best_return.new_full((1,), asked)

    def predict(
        self, obs: Tensor, action: Tensor, return_to_go: Tensor, timestep: Tensor, mask: Tensor, dropout: float = 0.0
    ) -> Tensor:
        """Actions in [-1, 1], or logits, [B, L, dim(A)] from what a dataset or an env gives."""
        if self.spec.discrete:
            action = F.one_hot(action, self.spec.action_dim).float()
        timestep = timestep.clamp(0, self.timesteps - 1)
        returns = return_to_go / self.cfg.return_scale
        predicted: Tensor = self.policy(self.normalize(obs).flatten(2), action, returns, timestep, mask, dropout)
        return predicted

    def update(self, batch: Windows) -> Metrics:
        rise = warmup(self.updates, self.cfg.warmup_updates)  # besides the schedule's multiplier
        self.optimizers["actor"].lr = self.cfg.lr * rise
        self.updates += 1
        metrics: Metrics = self._learn(batch)
        return metrics

    def _learn(self, batch: Windows) -> Metrics:
        loss, metrics = self._loss(batch)
        self.optimizers["actor"].minimize(loss)
        return metrics

    def _loss(self, batch: Windows) -> tuple[Tensor, Metrics]:
        predicted = self.predict(
            batch.obs, batch.action, batch.return_to_go, batch.timestep, batch.mask, self.cfg.dropout
        )
        if self.spec.discrete:
            error = F.cross_entropy(predicted.transpose(1, 2), batch.action, reduction="none")
        else:
            error = (predicted - batch.action).square().mean(-1)
        return dt_loss(error, batch.mask)
