"""Fitted Q evaluation: what a policy is worth, judged from the dataset alone (Le et al., 2019, arXiv:1903.08738).

    Q <- argmin (Q(s, a) - r - discount * (1 - terminated) * Q'(s', pi(s')))^2     value = mean Q(s_0, pi(s_0))

For those who have data and no simulator: a way to compare checkpoints. Each estimate is a fit from scratch that
depends on the policy, the dataset and the seed only, and leaves the randomness of the training alone. A signal ends it
in the middle, and the run with it: a resume has it to make.

Targets are kept within what the rewards of the data could add up to, or bootstrapping could carry the values of actions
that the data do not have to any size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from rlx.callbacks import crossed, refuse_memory
from rlx.callbacks.bus import Callback
from rlx.data.replay import DatasetReplay
from rlx.envs.evaluation import EvaluationInterrupted
from rlx.errors import UserError
from rlx.fields import number
from rlx.nn import Adam, Critic, polyak, target_of
from rlx.nn.encoders import Flat, FlatConfig
from rlx.obs import map_obs, take_rows, to_tensors
from rlx.reporting import counted
from rlx.returns import td_target
from rlx.rng import seeded
from rlx.system import INTERRUPTED
from rlx.types import Spec

if TYPE_CHECKING:
    from rlx.trainers.trainer import Trainer


@dataclass
class FittedQConfig:
    """How the estimate is fitted; how often: `trainer.eval_interval`."""

    _target_: str = "rlx.callbacks.fitted_q.FittedQ"
    updates: int = number(2000, least=0)  # steps of each fit
    batch_size: int = number(256, least=1)
    hidden: list[int] = field(default_factory=lambda: [64, 64])
    lr: float = number(1e-3, above=0)
    tau: float = number(0.05, above=0, most=1)  # step of the target network
    keep_best: bool = False  # save the policy of the highest value as `best`


def as_input(action: Tensor, spec: Spec) -> Tensor:
    """Actions as a critic reads them: discrete ones as one-hot vectors."""
    if not spec.discrete:
        return action
    columns = action.reshape(len(action), -1)
    return torch.cat([F.one_hot(columns[:, i], n) for i, n in enumerate(spec.action_sizes)], dim=1).float()


def possible_values(reward: np.ndarray, discount: float) -> tuple[float, float]:
    """The least and the largest sum of discounted rewards like these, of an episode of any length."""
    ahead = 1.0 / (1.0 - discount) if discount < 1.0 else math.inf
    low, high = float(reward.min()), float(reward.max())
    return (low * ahead if low < 0.0 else 0.0), (high * ahead if high > 0.0 else 0.0)


class FittedQ(Callback):
    """Logs `fqe/value` and the discounted return of the data beside it."""

    order = 35

    def __init__(self, cfg: FittedQConfig):
        self.cfg = cfg
        self.last = 0  # steps at the last estimate
        self.pending = False  # the one that was due was interrupted
        self.best: float | None = None

    def check(self, trainer: Trainer) -> None:
        if trainer.prior is None:
            raise UserError("callbacks.fitted_q judges by a dataset and there is none; add dataset=... or remove it.")
        refuse_memory(trainer.learner, "fitted_q")
        if trainer.dataset is not None:
            trainer.dataset.check_order(
                "the returns of callbacks.fitted_q", instead="; ~callbacks.fitted_q leaves it out"
            )

    def on_resumed(self, trainer: Trainer) -> None:
        if self.pending:
            self._log(trainer)

    def on_iteration(self, trainer: Trainer) -> None:
        if crossed(self.last, trainer.state.steps, trainer.plan.eval_interval):
            self._log(trainer)

    def on_run_end(self, trainer: Trainer) -> None:
        if trainer.state.steps > self.last and trainer.state.stop_reason not in INTERRUPTED:
            self._log(trainer)

    def state(self) -> dict[str, Any]:
        return {"last": self.last, "best": self.best, "pending": self.pending}

    def load_state(self, state: dict[str, Any]) -> None:
        self.last, self.best = state["last"], state["best"]
        self.pending = state.get("pending", False)  # older checkpoints have none

    def _log(self, trainer: Trainer) -> None:
        try:
            metrics = self.estimate(trainer)
        except EvaluationInterrupted:
            trainer.leave_evaluation()
            self.pending = True
            return
        self.last, self.pending = trainer.state.steps, False
        trainer.log("eval", metrics)
        if self.best is None or metrics["fqe/value"] > self.best:
            self.best = metrics["fqe/value"]
            if self.cfg.keep_best:
                trainer.save("best")

    def estimate(self, trainer: Trainer) -> dict[str, float]:
        """Fit Q of the deterministic policy on the dataset; its value at the first observations of the episodes."""
        dataset, prior, learner = trainer.dataset, trainer.prior, trainer.learner
        assert dataset is not None
        assert prior is not None
        before = prior.state()
        training = learner.training
        learner.eval()
        try:
            with seeded(int(trainer.cfg.seed), trainer.device):
                critic, loss = self._fit(trainer, possible_values(dataset.reward, learner.cfg.discount))
                first = to_tensors(map_obs(np.asarray, take_rows(dataset.obs, dataset.episodes[:, 0])))
                with torch.no_grad():
                    action = as_input(learner.actor.act(first, (), explore=False).action, trainer.spec)
                    value = critic(Flat(FlatConfig(), trainer.spec)(first), action).mean()
        finally:
            prior.load_state(before)
            learner.train(training)
        returns = dataset.with_mc_returns(learner.cfg.discount).mc_return
        assert returns is not None
        behavior = float(returns[dataset.episodes[:, 0]].mean())
        return {"fqe/value": float(value), "fqe/behavior_value": behavior, "fqe/loss": float(loss)}

    def _fit(self, trainer: Trainer, possible: tuple[float, float]) -> tuple[Critic, Tensor]:
        spec, cfg, actor = trainer.spec, self.cfg, trainer.learner.actor
        critic = Critic(spec.obs_dim, spec.action_dim, cfg.hidden, n=1)
        target = target_of(critic)
        optimizer = Adam(critic.parameters(), cfg.lr)
        as_vector = Flat(FlatConfig(), spec)
        loss = torch.zeros(())
        assert isinstance(trainer.prior, DatasetReplay)  # `check` has refused learners that read windows
        for done in range(cfg.updates):
            trainer.bus.emit("evaluating", trainer, f"{done:,} of {counted(cfg.updates, 'update')}")
            if trainer.interrupt is not None:
                raise EvaluationInterrupted
            for batch in trainer.prior.sample(cfg.batch_size, 1):
                with torch.no_grad():
                    next_action = as_input(actor.act(batch.next_obs, (), explore=False).action, spec)
                    next_value = target(as_vector(batch.next_obs), next_action)[0]
                    y = td_target(batch.reward, batch.discount, batch.terminated, next_value).clamp(*possible)
                loss = F.mse_loss(critic(as_vector(batch.obs), as_input(batch.action, spec))[0], y)
                optimizer.minimize(loss)
                polyak(target.parameters(), critic.parameters(), cfg.tau)
        return critic, loss.detach()
