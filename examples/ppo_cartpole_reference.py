"""PPO on CartPole in one file: what `python -m rlx algo=ppo env=cartpole` computes, and nothing else.

    python examples/ppo_cartpole_reference.py --total-timesteps 50000 --seed 0

Depends on torch, gymnasium and numpy. Given the same weights and the same rollouts, this script and the package make
the same losses and the same weights; a test holds them together.
"""

from __future__ import annotations

import argparse
import time

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import nn

NUM_ENVS = 8
ROLLOUT_LENGTH = 32  # steps of each env between two updates
EPOCHS = 20  # passes over each rollout
BATCH_SIZE = 256  # rows of a minibatch
LR = 1e-3  # falls linearly to 0
CLIP_RANGE = 0.2  # falls linearly to 0
DISCOUNT = 0.98
GAE_LAMBDA = 0.8
VALUE_COEF = 0.5
MAX_GRAD_NORM = 0.5


def layer(n_in: int, n_out: int, gain: float) -> nn.Linear:
    linear = nn.Linear(n_in, n_out)
    nn.init.orthogonal_(linear.weight, gain)
    nn.init.zeros_(linear.bias)
    return linear


def mlp(n_in: int, n_out: int, final_gain: float) -> nn.Sequential:
    gain = 2**0.5
    return nn.Sequential(layer(n_in, 64, gain), nn.Tanh(), layer(64, 64, gain), nn.Tanh(), layer(64, n_out, final_gain))


class Agent(nn.Module):
    """A policy over discrete actions and a value function, in two networks."""

    def __init__(self, obs_dim: int, n_actions: int):
        super().__init__()
        self.actor = mlp(obs_dim, n_actions, final_gain=0.01)  # nearly uniform at first
        self.critic = mlp(obs_dim, 1, final_gain=1.0)

    @torch.no_grad()
    def act(self, obs: np.ndarray, explore: bool) -> np.ndarray:
        logits = self.actor(torch.as_tensor(obs))
        action = torch.distributions.Categorical(logits=logits).sample() if explore else logits.argmax(-1)
        return action.numpy()

    def log_prob(self, obs: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        return torch.distributions.Categorical(logits=self.actor(obs)).log_prob(action)

    def value(self, obs: torch.Tensor) -> torch.Tensor:
        return self.critic(obs).squeeze(-1)


def make_optimizer(agent: Agent) -> torch.optim.Adam:
    return torch.optim.Adam(agent.parameters(), LR, eps=1e-5)


def collect(envs: SyncVectorEnv, agent: Agent, obs: np.ndarray) -> tuple[dict[str, torch.Tensor], np.ndarray]:
    """A rollout with all fields [T, N, ...], and the observation to go on from."""
    steps: dict[str, list[np.ndarray]] = {
        k: [] for k in ("obs", "action", "reward", "next_obs", "terminated", "truncated")
    }
    for _ in range(ROLLOUT_LENGTH):
        action = agent.act(obs, explore=True)
        following, reward, terminated, truncated, infos = envs.step(action)
        next_obs = following.copy()
        for i in np.flatnonzero(terminated | truncated):  # `following` is already the first of a new episode
            next_obs[i] = infos["final_obs"][i]
        for column, x in zip(steps.values(), (obs, action, reward, next_obs, terminated, truncated), strict=True):
            column.append(x)
        obs = following
    rollout = {name: torch.as_tensor(np.stack(column)) for name, column in steps.items()}
    for name in ("reward", "terminated", "truncated"):
        rollout[name] = rollout[name].float()
    return rollout, obs


def advantages(
    reward: torch.Tensor, value: torch.Tensor, next_value: torch.Tensor, terminated: torch.Tensor, ended: torch.Tensor
) -> torch.Tensor:
    """Generalised advantage estimation. Termination stops the bootstrap, any end stops the sum."""
    delta = reward + DISCOUNT * (1 - terminated) * next_value - value
    advantage = torch.zeros_like(delta)
    running = torch.zeros_like(delta[0])
    for t in reversed(range(len(delta))):
        running = delta[t] + DISCOUNT * GAE_LAMBDA * (1 - ended[t]) * running
        advantage[t] = running
    return advantage


def update(
    agent: Agent, optimizer: torch.optim.Adam, rollout: dict[str, torch.Tensor], clip_range: float
) -> tuple[float, float]:
    """Several epochs over one rollout; the mean policy and value losses."""
    obs, action = rollout["obs"], rollout["action"].flatten()
    with torch.no_grad():
        value, next_value = agent.value(obs), agent.value(rollout["next_obs"])
        ended = torch.maximum(rollout["terminated"], rollout["truncated"])
        advantage = advantages(rollout["reward"], value, next_value, rollout["terminated"], ended)
        returns = (advantage + value).flatten()
        advantage, obs = advantage.flatten(), obs.flatten(0, 1)
        old_log_prob = agent.log_prob(obs, action)

    policy_losses, value_losses = [], []
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(obs)).split(BATCH_SIZE):
            a = advantage[rows]
            a = (a - a.mean()) / (a.std(correction=0) + 1e-8)
            ratio = (agent.log_prob(obs[rows], action[rows]) - old_log_prob[rows]).exp()
            policy_loss = -torch.min(ratio * a, ratio.clamp(1 - clip_range, 1 + clip_range) * a).mean()
            value_loss = (agent.value(obs[rows]) - returns[rows]).pow(2).mean()
            optimizer.zero_grad()
            (policy_loss + VALUE_COEF * value_loss).backward()
            nn.utils.clip_grad_norm_(agent.parameters(), MAX_GRAD_NORM)
            optimizer.step()
            policy_losses.append(policy_loss.item())
            value_losses.append(value_loss.item())
    return float(np.mean(policy_losses)), float(np.mean(value_losses))


def evaluate(agent: Agent, episodes: int, seed: int) -> float:
    """Mean return of the deterministic policy."""
    env = gym.make("CartPole-v1")
    total = 0.0
    for episode in range(episodes):
        obs, _ = env.reset(seed=seed + episode)
        ended = False
        while not ended:
            obs, reward, terminated, truncated, _ = env.step(int(agent.act(obs[None], explore=False)[0]))
            total += float(reward)
            ended = terminated or truncated
    env.close()
    return total / episodes


def main(arguments: list[str] | None = None) -> float:
    parser = argparse.ArgumentParser(description="PPO on CartPole")
    parser.add_argument("--total-timesteps", type=int, default=50_000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(arguments)

    torch.set_num_threads(1)  # more wait for each other on products as small as these
    torch.manual_seed(args.seed)
    envs = SyncVectorEnv([lambda: gym.make("CartPole-v1")] * NUM_ENVS, autoreset_mode=AutoresetMode.SAME_STEP)
    agent = Agent(envs.single_observation_space.shape[0], int(envs.single_action_space.n))
    optimizer = make_optimizer(agent)
    obs, _ = envs.reset(seed=args.seed)
    start, iterations = time.time(), max(1, args.total_timesteps // (NUM_ENVS * ROLLOUT_LENGTH))
    for i in range(iterations):
        remaining = 1 - i / iterations
        optimizer.param_groups[0]["lr"] = LR * remaining
        rollout, obs = collect(envs, agent, obs)
        policy_loss, value_loss = update(agent, optimizer, rollout, CLIP_RANGE * remaining)
        if (i + 1) % 20 == 0:
            steps = (i + 1) * NUM_ENVS * ROLLOUT_LENGTH
            speed = steps / (time.time() - start)
            print(f"{steps} steps, {speed:.0f}/s, policy loss {policy_loss:.4f}, value loss {value_loss:.3f}")
    envs.close()
    mean = evaluate(agent, episodes=10, seed=10_000 + args.seed)
    print(f"return of 10 episodes: {mean:.1f}")
    return mean


if __name__ == "__main__":
    main()
