"""IQL on Pendulum in one file: what `python -m rlx algo=iql env=pendulum dataset=minari` computes, and nothing else.

    python examples/iql_pendulum_reference.py --total-timesteps 5000 --seed 0

Learns from a fixed set of transitions; the env only makes this set and evaluates. Depends on torch, gymnasium and
numpy. Given the same weights and the same batches, this script and the package make the same losses and the same
weights; a test holds them together.
"""

from __future__ import annotations

import argparse
import copy
import math
import time

import gymnasium as gym
import numpy as np
import torch
from torch import nn

HIDDEN = 64
BATCH_SIZE = 256
LR = 1e-3  # of actor, critics and value; the actor's falls to 0 along a cosine
DISCOUNT = 0.95
TAU = 0.02  # step of the target critics
EXPECTILE = 0.8  # 0.5 values the behaviour policy, towards 1 the best actions of the data
BETA = 5.0  # inverse temperature of the advantages
MAX_WEIGHT = 100.0  # bound of the weights
REWARD_SCALE = 0.1
EPISODES = 30  # of each level of noise
NOISE = (0.2, 1.0, 2.0, None)  # on the torque of the data's controller; None: random actions
FIELDS = ("obs", "action", "reward", "next_obs", "terminated")


def mlp(n_in: int, n_out: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(n_in, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, n_out)
    )


class Agent:
    """A Gaussian policy with one std for all states, two critics with their slow copies, and a state value."""

    def __init__(self, obs: torch.Tensor, action_dim: int, total_updates: int):
        obs_dim = obs.shape[1]
        self.obs_mean, self.obs_std = obs.mean(0), obs.std(0, correction=0) + 1e-3  # of the dataset
        self.actor = mlp(obs_dim, action_dim)
        self.log_std = torch.zeros(action_dim, requires_grad=True)
        self.critics = nn.ModuleList([mlp(obs_dim + action_dim, 1) for _ in range(2)])
        self.target_critics = copy.deepcopy(self.critics)
        self.value_net = mlp(obs_dim, 1)
        self.value_optimizer = torch.optim.Adam(self.value_net.parameters(), LR)
        self.actor_optimizer = torch.optim.Adam([*self.actor.parameters(), self.log_std], LR)
        self.critic_optimizer = torch.optim.Adam(self.critics.parameters(), LR)
        self.updates, self.total_updates = 0, total_updates

    def normalize(self, obs: torch.Tensor) -> torch.Tensor:
        return (obs - self.obs_mean) / self.obs_std

    def value(self, obs: torch.Tensor) -> torch.Tensor:
        return self.value_net(obs).squeeze(-1)

    def log_prob(self, obs: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        """Of an unsquashed Gaussian: an action on the border of the box has a density like any other."""
        std = self.log_std.clamp(-5, 2).exp()
        return torch.distributions.Normal(torch.tanh(self.actor(obs)), std).log_prob(action).sum(-1)

    @torch.no_grad()
    def act(self, obs: np.ndarray) -> np.ndarray:
        return torch.tanh(self.actor(self.normalize(torch.as_tensor(obs)))).numpy()


def values(critics: nn.ModuleList, obs: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
    """Q(s, a) of every critic, [critics, B]."""
    x = torch.cat([obs, action], -1)
    return torch.stack([critic(x).squeeze(-1) for critic in critics])


def step(optimizer: torch.optim.Adam, loss: torch.Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def update(agent: Agent, batch: dict[str, torch.Tensor]) -> tuple[float, float, float]:
    """State value, then actor and critics with the new state value, then target critics; the three losses."""
    obs, next_obs, action = agent.normalize(batch["obs"]), agent.normalize(batch["next_obs"]), batch["action"]
    with torch.no_grad():
        q = values(agent.target_critics, obs, action).amin(0)

    error = q - agent.value(obs)
    value_loss = (torch.where(error < 0, 1 - EXPECTILE, EXPECTILE) * error.pow(2)).mean()
    step(agent.value_optimizer, value_loss)

    with torch.no_grad():
        weight = (BETA * (q - agent.value(obs))).exp().clamp(max=MAX_WEIGHT)
        target = batch["reward"] + DISCOUNT * (1 - batch["terminated"]) * agent.value(next_obs)
    actor_loss = -(weight * agent.log_prob(obs, action)).mean()
    decay = 0.5 * (1 + math.cos(math.pi * agent.updates / agent.total_updates))
    agent.actor_optimizer.param_groups[0]["lr"] = LR * decay
    step(agent.actor_optimizer, actor_loss)

    critic_loss = (values(agent.critics, obs, action) - target).pow(2).mean(1).sum()
    step(agent.critic_optimizer, critic_loss)
    with torch.no_grad():
        for slow, fast in zip(agent.target_critics.parameters(), agent.critics.parameters(), strict=True):
            slow.lerp_(fast, TAU)
    agent.updates += 1
    return value_loss.item(), actor_loss.item(), critic_loss.item()


def swing_up(obs: np.ndarray) -> float:
    """Torque that pumps energy into the pendulum, and near the top holds it; the energy is 0 at rest upright."""
    cos, sin, velocity = (float(x) for x in obs)
    energy = velocity**2 / 2 + 15 * (cos - 1)
    if cos > 0.85 and abs(energy) < 6:
        return -(10 * math.atan2(sin, cos) + 2 * velocity)
    return -energy if velocity >= 0 else energy


def collect(episodes: int, seed: int) -> tuple[dict[str, torch.Tensor], float]:
    """Good, poor and random episodes, and their mean return; actions are scaled to [-1, 1], rewards are small."""
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
    columns = (torch.from_numpy(np.stack(column).astype(np.float32)) for column in zip(*rows, strict=True))
    data = dict(zip(FIELDS, columns, strict=True))
    mean_return = data["reward"].sum().item() / (len(NOISE) * episodes)
    data["reward"] *= REWARD_SCALE
    return data, mean_return


def evaluate(agent: Agent, episodes: int, seed: int) -> float:
    """Mean return of the policy's mean action."""
    env, total = gym.make("Pendulum-v1"), 0.0
    for episode in range(episodes):
        obs, _ = env.reset(seed=seed + episode)
        ended = False
        while not ended:
            obs, reward, terminated, truncated, _ = env.step(2 * agent.act(obs))
            total += float(reward)
            ended = terminated or truncated
    env.close()
    return total / episodes


def main(arguments: list[str] | None = None) -> float:
    parser = argparse.ArgumentParser(description="IQL on Pendulum")
    parser.add_argument("--total-timesteps", type=int, default=5000, help="updates: offline, no env step is taken")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(arguments)

    torch.set_num_threads(1)  # more wait for each other on products as small as these
    torch.manual_seed(args.seed)
    data, mean_return = collect(EPISODES, seed=0)
    print(f"{len(data['reward'])} transitions, mean return of their episodes: {mean_return:.1f}")
    agent = Agent(data["obs"], action_dim=1, total_updates=args.total_timesteps)
    start = time.time()
    for i in range(1, args.total_timesteps + 1):
        rows = torch.randint(len(data["reward"]), (BATCH_SIZE,))
        value_loss, actor_loss, critic_loss = update(agent, {name: column[rows] for name, column in data.items()})
        if i % 1000 == 0:
            losses = f"value loss {value_loss:.4f}, actor loss {actor_loss:.3f}, critic loss {critic_loss:.4f}"
            print(f"{i} updates, {i / (time.time() - start):.0f}/s, {losses}")
    mean = evaluate(agent, episodes=10, seed=10_000 + args.seed)
    print(f"return of 10 episodes: {mean:.1f}")
    return mean


if __name__ == "__main__":
    main()
