"""Discrete IQL: implicit Q-learning (arXiv:2110.06169) where actions are choices.

    value   min L(min_i Q_i'(s, a) - V(s)),  L(u) = |expectile - 1(u < 0)| u^2
    actor   max min(exp(beta * A), max_weight) * log pi(a|s),  A = min_i Q_i'(s, a) - V(s)
    critic  min sum_i (Q_i(s, a) - r - discount * (1 - terminated) * V(s'))^2

as in `algo=iql`, whose losses, order and decay these are. The policy is a softmax over the actions, evaluated by its
most likely one, and the critics give a value for every action, of which only those of the data are ever read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rlx.algos.iql import IQL, IQLConfig
from rlx.nn import ChoiceCritic, DiscreteHead


@dataclass
class DiscreteIQLConfig(IQLConfig):
    _target_: str = "rlx.algos.discrete_iql.DiscreteIQL"
    name: str = "discrete_iql"


class DiscreteIQL(IQL):
    actions = ("discrete",)
    cfg: DiscreteIQLConfig

    def _make_policy(self, start: dict[str, Any]) -> DiscreteHead:
        cfg = self.cfg
        return DiscreteHead(self.make_encoder(), self.spec, cfg.actor_layers, dropout=cfg.dropout, **start)

    def _make_critic(self, start: dict[str, Any]) -> ChoiceCritic:
        return ChoiceCritic(self.make_encoder(), self.spec.action_dim, self.cfg.critic_layers, **start)
