"""Policies and critics of different sizes, in every algorithm that has both."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from rlx.config import compose_config, instantiate, learners, schemas
from rlx.learner import ActorCriticConfig, Learner
from rlx.types import Spec

BOX = Spec("Test-v0", (3,), "float32", "box", (2,), (-1.0, -1.0), (1.0, 1.0))
CHOICE = Spec("Test-v0", (3,), "float32", "discrete", (), action_sizes=(2,))
POLICY_ONLY, VALUES_ONLY = {"bc", "dt"}, {"dqn", "c51", "qr_dqn", "pqn", "discrete_cql", "discrete_bcq"}
BOTH = sorted(set(learners()) - POLICY_ONLY - VALUES_ONLY)


def widths(module: nn.Module) -> list[list[int]]:
    """The hidden layers of every network in a module, from its weights [..., in, out]."""
    return [[w.shape[-1] for w in net.weights][:-1] for net in module.modules() if hasattr(net, "weights")]


def make(name: str, **sizes: list[int]) -> Learner:
    cls = learners()[name]
    return cls(schemas()[f"algo/{name}"](**sizes), BOX if "box" in cls.actions else CHOICE)


@pytest.mark.parametrize("name", BOTH)
def test_actor_and_critic_take_their_own_sizes(name: str) -> None:
    learner = make(name, hidden=[7, 7], actor_hidden=[5, 6, 4], critic_hidden=[9])
    policies = [getattr(learner, part) for part in ("policy", "target_policy") if hasattr(learner, part)]
    values = [getattr(learner, part) for part in ("critic", "target_critic", "value") if hasattr(learner, part)]
    assert policies
    assert values
    assert all(widths(part) == [[5, 6, 4]] for part in policies)
    assert all(widths(part) == [[9]] for part in values)


@pytest.mark.parametrize("name", BOTH)
def test_without_them_hidden_is_both(name: str) -> None:
    torch.manual_seed(0)
    one = make(name, hidden=[6, 5], critic_hidden=None)
    torch.manual_seed(0)
    other = make(name, hidden=[7], actor_hidden=[6, 5], critic_hidden=[6, 5])
    ours, theirs = one.state_dict(), other.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)


def test_only_algorithms_with_both_have_the_keys() -> None:
    for name in learners():
        assert issubclass(schemas()[f"algo/{name}"], ActorCriticConfig) == (name in BOTH)


@pytest.mark.parametrize(
    ("algo", "actor", "critic"),
    [("cal_ql", [256, 256], [256] * 4), ("awac", [256] * 4, [256, 256])],  # the authors' on AntMaze
)
def test_the_authors_sizes_can_be_typed(algo: str, actor: list[int], critic: list[int]) -> None:
    sizes = (f"algo.actor_hidden={actor}", f"algo.critic_hidden={critic}")
    cfg = compose_config((f"algo={algo}", "dataset=minari", *sizes))
    learner = instantiate(cfg.algo, BOX)
    assert widths(learner.policy) == [actor]
    assert widths(learner.critic) == [critic]
