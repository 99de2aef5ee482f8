"""RLPD on Pendulum in one file: what `python -m rlx algo=rlpd env=pendulum dataset=minari` computes, and nothing else.

    python examples/rlpd_pendulum_reference.py --total-timesteps 2000 --seed 0

SAC that draws half of every batch from prior data. Depends on torch, gymnasium and numpy. Given the same weights and
the same batches, this script and the package make the same losses and the same weights; a test holds them together.
"""

from __future__ import annotations

import argparse
import copy
import math
import time

import gymnasium as gym
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

HIDDEN = 64
BATCH_SIZE = 256  # half of it prior data
LR = 1e-3  # of actor, critics and temperature
DISCOUNT = 0.99
TAU = 0.01  # step of the target critics
CRITICS = 10
SUBSET = 2  # critics behind one target
UPDATES_PER_STEP = 4  # of the critics; actor and temperature learn from the last batch only
LEARNING_STARTS = 200  # env steps with random actions, before the first update
PRIOR_EPISODES = 30  # of each level of noise
NOISE = (0.2, 1.0, 2.0, None)  # on the torque of the prior data's controller; None: random actions
FIELDS = ("obs", "action", "reward", "next_obs", "terminated")


def mlp(n_in: int, n_out: int, layer_norm: bool) -> nn.Sequential:
    layers: list[nn.Module] = []
    for size in (n_in, HIDDEN):
        layers += [nn.Linear(size, HIDDEN), nn.LayerNorm(HIDDEN), nn.ReLU()]
    return nn.Sequential(
        *(m for m in layers if layer_norm or not isinstance(m, nn.LayerNorm)), nn.Linear(HIDDEN, n_out)
    )


class Agent:
    """A tanh-Gaussian policy, ten critics with their slow copies, a temperature, and an optimizer for each."""

    def __init__(self, obs_dim: int, action_dim: int):
        self.actor = mlp(obs_dim, 2 * action_dim, layer_norm=False)  # mean and log_std
        self.critics = nn.ModuleList([mlp(obs_dim + action_dim, 1, layer_norm=True) for _ in range(CRITICS)])
        self.target_critics = copy.deepcopy(self.critics)
        self.log_alpha = torch.zeros((), requires_grad=True)
        self.target_entropy = -0.5 * action_dim
        self.actor_optimizer = torch.optim.Adam(self.actor.parameters(), LR)
        self.critic_optimizer = torch.optim.Adam(self.critics.parameters(), LR)
        self.alpha_optimizer = torch.optim.Adam([self.log_alpha], LR)

    def sample(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Actions in (-1, 1) and their log-probabilities [B]; gradients flow through both."""
        mean, log_std = self.actor(obs).chunk(2, -1)
        log_std = log_std.clamp(-20, 2)
        noise = torch.randn_like(mean)
        raw = mean + log_std.exp() * noise
        log_normal = -0.5 * noise**2 - log_std - 0.5 * math.log(2 * math.pi)
        log_slope = 2 * (math.log(2) - raw - F.softplus(-2 * raw))  # log(1 - tanh(raw)^2), also for large |raw|
        return torch.tanh(raw), (log_normal - log_slope).sum(-1)

    @torch.no_grad()
    def act(self, obs: np.ndarray, explore: bool) -> np.ndarray:
        obs = torch.as_tensor(obs)
        action = self.sample(obs)[0] if explore else torch.tanh(self.actor(obs).chunk(2, -1)[0])
        return action.numpy()


def values(critics: list[nn.Module] | nn.ModuleList, obs: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
    """Q(s, a) of every critic, [critics, B]."""
    x = torch.cat([obs, action], -1)
    return torch.stack([critic(x).squeeze(-1) for critic in critics])


def step(optimizer: torch.optim.Adam, loss: torch.Tensor) -> None:
    optimizer.zero_grad()  # also drops what another loss left here
    loss.backward()
    optimizer.step()


def update(agent: Agent, batch: dict[str, torch.Tensor], last: bool) -> dict[str, float]:
    """The critics and their slow copies; on the last batch of an env step, actor and temperature as well."""
    alpha = agent.log_alpha.detach().exp()
    obs, next_obs = batch["obs"], batch["next_obs"]

    subset = [agent.target_critics[i] for i in torch.randperm(CRITICS)[:SUBSET].tolist()]
    with torch.no_grad():
        next_action, next_log_prob = agent.sample(next_obs)
        next_value = values(subset, next_obs, next_action).amin(0) - alpha * next_log_prob
        target = batch["reward"] + DISCOUNT * (1 - batch["terminated"]) * next_value
    critic_loss = 0.5 * (values(agent.critics, obs, batch["action"]) - target).pow(2).mean(1).sum()
    step(agent.critic_optimizer, critic_loss)
    with torch.no_grad():
        for slow, fast in zip(agent.target_critics.parameters(), agent.critics.parameters(), strict=True):
            slow.lerp_(fast, TAU)
    if not last:
        return {"critic": critic_loss.item()}

    action, log_prob = agent.sample(obs)
    actor_loss = (alpha * log_prob - values(agent.critics, obs, action).mean(0)).mean()
    step(agent.actor_optimizer, actor_loss)
    alpha_loss = -agent.log_alpha * (log_prob.detach().mean() + agent.target_entropy)
    step(agent.alpha_optimizer, alpha_loss)
    return {"critic": critic_loss.item(), "actor": actor_loss.item(), "alpha": alpha_loss.item()}


def swing_up(obs: np.ndarray) -> float:
    """Torque that pumps energy into the pendulum, and near the top holds it; the energy is 0 at rest upright."""
    cos, sin, velocity = (float(x) for x in obs)
    energy = velocity**2 / 2 + 15 * (cos - 1)
    if cos > 0.85 and abs(energy) < 6:
        return -(10 * math.atan2(sin, cos) + 2 * velocity)
    return -energy if velocity >= 0 else energy


def prior_data(episodes: int, seed: int) -> dict[str, torch.Tensor]:
    """Good, poor and random episodes; actions are scaled to [-1, 1]."""
    rng, env = np.random.default_rng(seed), gym.make("Pendulum-v1")
    rows = []
    for episode, noise in enumerate(noise for noise in NOISE for _ in range(episodes)):
        obs, _ = env.reset(seed=seed + episode)
        ended = False
        while not ended:
            torque = rng.uniform(-2, 2) if noise is None else np.clip(swing_up(obs), -2, 2) + noise * rng.normal()
            action = np.array([np.clip(torque / 2, -1, 1)], np.float32)
            next_obs, reward, terminated, truncated, _ = env.step(2 * action)
            rows.append((obs, action, reward, next_obs, terminated))
            obs, ended = next_obs, terminated or truncated
    env.close()
    return columns(rows)


def columns(rows: list[tuple]) -> dict[str, torch.Tensor]:
    stacked = (np.stack(column).astype(np.float32) for column in zip(*rows, strict=True))
    return {name: torch.from_numpy(column) for name, column in zip(FIELDS, stacked, strict=True)}


def sample(prior: dict[str, torch.Tensor], replay: list[tuple]) -> dict[str, torch.Tensor]:
    half = BATCH_SIZE // 2
    fresh = columns([replay[i] for i in torch.randint(len(replay), (half,)).tolist()])
    old = torch.randint(len(prior["reward"]), (half,))
    return {name: torch.cat([prior[name][old], fresh[name]]) for name in FIELDS}


def evaluate(agent: Agent, episodes: int, seed: int) -> float:
    """Mean return of the deterministic policy."""
    env, total = gym.make("Pendulum-v1"), 0.0
    for episode in range(episodes):
        obs, _ = env.reset(seed=seed + episode)
        ended = False
        while not ended:
            obs, reward, terminated, truncated, _ = env.step(2 * agent.act(obs, explore=False))
            total += float(reward)
            ended = terminated or truncated
    env.close()
    return total / episodes


def main(arguments: list[str] | None = None) -> float:
    parser = argparse.ArgumentParser(description="RLPD on Pendulum")
    parser.add_argument("--total-timesteps", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(arguments)

    torch.set_num_threads(1)  # more wait for each other on products as small as these
    torch.manual_seed(args.seed)
    rng = np.random.default_rng(args.seed)
    prior = prior_data(PRIOR_EPISODES, seed=0)
    env, agent, replay = gym.make("Pendulum-v1"), Agent(obs_dim=3, action_dim=1), []
    obs, _ = env.reset(seed=args.seed)
    start, losses = time.time(), {}
    for t in range(1, args.total_timesteps + 1):
        random = t <= LEARNING_STARTS
        action = rng.uniform(-1, 1, 1).astype(np.float32) if random else agent.act(obs, explore=True)
        next_obs, reward, terminated, truncated, _ = env.step(2 * action)
        replay.append((obs, action, reward, next_obs, terminated))
        obs = env.reset()[0] if terminated or truncated else next_obs
        for i in range(0 if random else UPDATES_PER_STEP):
            losses = update(agent, sample(prior, replay), last=i == UPDATES_PER_STEP - 1)
        if t % 250 == 0:
            print(f"{t} steps, {t / (time.time() - start):.0f}/s, losses", {k: round(v, 3) for k, v in losses.items()})
    env.close()
    mean = evaluate(agent, episodes=10, seed=10_000 + args.seed)
    print(f"return of 10 episodes: {mean:.1f}")
    return mean


if __name__ == "__main__":
    main()
