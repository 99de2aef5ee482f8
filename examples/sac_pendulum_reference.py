"""SAC on Pendulum in one file: what `python -m rlx algo=sac env=pendulum` computes, and nothing else.

    python examples/sac_pendulum_reference.py --total-timesteps 10000 --seed 0

Depends on torch, gymnasium and numpy. Given the same weights and the same batches, this script and the package make
the same losses and the same weights; a test holds them together.
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
BATCH_SIZE = 128
LR = 1e-3  # of actor, critics and temperature
DISCOUNT = 0.98
TAU = 0.01  # step of the target critics
LEARNING_STARTS = 500  # env steps with random actions, before the first update


def mlp(n_in: int, n_out: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(n_in, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, n_out)
    )


class Agent:
    """A tanh-Gaussian policy, two critics with their slow copies, a temperature, and an optimizer for each."""

    def __init__(self, obs_dim: int, action_dim: int):
        self.actor = mlp(obs_dim, 2 * action_dim)  # mean and log_std
        self.critics = nn.ModuleList([mlp(obs_dim + action_dim, 1) for _ in range(2)])
        self.target_critics = copy.deepcopy(self.critics)
        self.log_alpha = torch.zeros((), requires_grad=True)
        self.target_entropy = -float(action_dim)
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
        if explore:
            return self.sample(obs)[0].numpy()
        mean, _ = self.actor(obs).chunk(2, -1)
        return torch.tanh(mean).numpy()


def values(critics: nn.ModuleList, obs: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
    """Q(s, a) of every critic, [critics, B]."""
    x = torch.cat([obs, action], -1)
    return torch.stack([critic(x).squeeze(-1) for critic in critics])


def step(optimizer: torch.optim.Adam, loss: torch.Tensor) -> None:
    optimizer.zero_grad()  # also drops what another loss left here
    loss.backward()
    optimizer.step()


def update(agent: Agent, batch: dict[str, torch.Tensor]) -> tuple[float, float, float]:
    """Critics, actor, temperature, target critics; the three losses."""
    alpha = agent.log_alpha.detach().exp()

    with torch.no_grad():
        next_action, next_log_prob = agent.sample(batch["next_obs"])
        next_q = values(agent.target_critics, batch["next_obs"], next_action).amin(0)
        next_value = next_q - alpha * next_log_prob
        target = batch["reward"] + DISCOUNT * (1 - batch["terminated"]) * next_value
    q = values(agent.critics, batch["obs"], batch["action"])
    critic_loss = 0.5 * (q - target).pow(2).mean(1).sum()
    step(agent.critic_optimizer, critic_loss)

    action, log_prob = agent.sample(batch["obs"])
    q = values(agent.critics, batch["obs"], action).amin(0)
    actor_loss = (alpha * log_prob - q).mean()
    step(agent.actor_optimizer, actor_loss)

    alpha_loss = -agent.log_alpha * (log_prob.detach().mean() + agent.target_entropy)
    step(agent.alpha_optimizer, alpha_loss)

    with torch.no_grad():
        for slow, fast in zip(agent.target_critics.parameters(), agent.critics.parameters(), strict=True):
            slow.lerp_(fast, TAU)
    return critic_loss.item(), actor_loss.item(), alpha_loss.item()


class Replay:
    """All transitions so far. A truncated episode is not a terminated one: its last state still has a value."""

    def __init__(self, capacity: int, obs_dim: int, action_dim: int):
        self.size = 0
        self.columns = {
            "obs": torch.zeros(capacity, obs_dim),
            "action": torch.zeros(capacity, action_dim),
            "reward": torch.zeros(capacity),
            "next_obs": torch.zeros(capacity, obs_dim),
            "terminated": torch.zeros(capacity),
        }

    def add(self, *transition: np.ndarray | float) -> None:
        for column, x in zip(self.columns.values(), transition, strict=True):
            column[self.size] = torch.as_tensor(x)
        self.size += 1

    def sample(self) -> dict[str, torch.Tensor]:
        rows = torch.randint(self.size, (BATCH_SIZE,))
        return {name: column[rows] for name, column in self.columns.items()}


def evaluate(agent: Agent, episodes: int, seed: int) -> float:
    """Mean return of the deterministic policy."""
    env = gym.make("Pendulum-v1")
    total = 0.0
    for episode in range(episodes):
        obs, _ = env.reset(seed=seed + episode)
        ended = False
        while not ended:
            obs, reward, terminated, truncated, _ = env.step(agent.act(obs, explore=False) * env.action_space.high)
            total += float(reward)
            ended = terminated or truncated
    env.close()
    return total / episodes


def main(arguments: list[str] | None = None) -> float:
    parser = argparse.ArgumentParser(description="SAC on Pendulum")
    parser.add_argument("--total-timesteps", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(arguments)

    torch.set_num_threads(1)  # more wait for each other on products as small as these
    torch.manual_seed(args.seed)
    rng = np.random.default_rng(args.seed)
    env = gym.make("Pendulum-v1")
    obs_dim, action_dim = env.observation_space.shape[0], env.action_space.shape[0]
    agent, replay = Agent(obs_dim, action_dim), Replay(args.total_timesteps, obs_dim, action_dim)
    obs, _ = env.reset(seed=args.seed)
    start, losses = time.time(), (float("nan"),) * 3
    for t in range(1, args.total_timesteps + 1):
        random = t <= LEARNING_STARTS
        action = rng.uniform(-1, 1, action_dim).astype(np.float32) if random else agent.act(obs, explore=True)
        next_obs, reward, terminated, truncated, _ = env.step(action * env.action_space.high)
        replay.add(obs, action, float(reward), next_obs, float(terminated))
        obs = env.reset()[0] if terminated or truncated else next_obs
        if not random:
            losses = update(agent, replay.sample())
        if t % 1000 == 0:
            critic_loss, actor_loss, _ = losses
            speed = t / (time.time() - start)
            print(f"{t} steps, {speed:.0f}/s, critic loss {critic_loss:.3f}, actor loss {actor_loss:.3f}")
    env.close()
    mean = evaluate(agent, episodes=10, seed=10_000 + args.seed)
    print(f"return of 10 episodes: {mean:.1f}")
    return mean


if __name__ == "__main__":
    main()
