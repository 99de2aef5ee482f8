"""Q-value diagnostics on fixed rows of the dataset: does a critic believe in actions that the data never took?

q_data/mean          mean Q(s, a) at the actions of the data
q_data/policy_mean   mean Q(s, pi(s)) at the policy's own actions
q_data/gap           the difference; growing without end means that the critic is being exploited
q_data/spread        standard deviation over the ensemble at the actions of the data
q_data/td_error      mean |r + discount * (1 - terminated) * Q(s', pi(s')) - Q(s, a)|
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from rlx.callbacks import crossed, refuse_memory
from rlx.callbacks.bus import Callback
from rlx.data.replay import DatasetReplay
from rlx.errors import UserError
from rlx.fields import number
from rlx.nn import Critic
from rlx.returns import td_target
from rlx.rng import seeded
from rlx.types import Batch

if TYPE_CHECKING:
    from rlx.trainers.trainer import Trainer


@dataclass
class QValuesConfig:
    """How many rows are looked at; how often: `trainer.eval_interval`."""

    _target_: str = "rlx.callbacks.q_values.QValues"
    rows: int = number(1024, least=1)  # of the dataset, drawn once


class QValues(Callback):
    """Logs what the learner's critic thinks of the data."""

    order = 36

    def __init__(self, cfg: QValuesConfig):
        self.cfg = cfg
        self.last = 0
        self._batch: Batch | None = None

    def check(self, trainer: Trainer) -> None:
        if trainer.prior is None:
            raise UserError("callbacks.q_values looks at a dataset and there is none; add dataset=... or remove it.")
        refuse_memory(trainer.learner, "q_values")
        if not isinstance(getattr(trainer.learner, "critic", None), Critic):
            raise UserError(
                f"callbacks.q_values needs a plain critic Q(s, a) and {trainer.cfg.algo.name} has none; remove it "
                "(~callbacks.q_values)."
            )

    def on_run_start(self, trainer: Trainer) -> None:
        assert isinstance(trainer.prior, DatasetReplay)  # learners that read windows have no critic
        before = trainer.prior.state()
        own = np.random.default_rng(np.random.SeedSequence([int(trainer.cfg.seed), 0x0DA7A]))
        trainer.prior.load_state({**before, "rng": own.bit_generator.state})  # the same rows after a resume
        self._batch = next(iter(trainer.prior.sample(self.cfg.rows, 1)))
        trainer.prior.load_state(before)

    def on_iteration(self, trainer: Trainer) -> None:
        if crossed(self.last, trainer.state.steps, trainer.plan.eval_interval):
            self.last = trainer.state.steps
            trainer.log("eval", self.measure(trainer))

    def state(self) -> dict[str, Any]:
        return {"last": self.last}

    def load_state(self, state: dict[str, Any]) -> None:
        self.last = state["last"]

    def measure(self, trainer: Trainer) -> dict[str, float]:
        assert self._batch is not None
        learner: Any = trainer.learner
        actor, batch = learner.actor, self._batch
        seen = learner.normalized(batch)
        with torch.no_grad(), seeded(int(trainer.cfg.seed), trainer.device):
            q = learner.critic(seen.obs, seen.action)
            action, next_action = (actor.act(obs, (), explore=False).action for obs in (batch.obs, batch.next_obs))
            q_policy = learner.critic(seen.obs, action)
            next_value = learner.critic(seen.next_obs, next_action).mean(0)
        y = td_target(batch.reward, batch.discount, batch.terminated, next_value)
        metrics = {
            "q_data/mean": q.mean(),
            "q_data/policy_mean": q_policy.mean(),
            "q_data/gap": q_policy.mean() - q.mean(),
            "q_data/spread": q.std(0, unbiased=False).mean(),
            "q_data/td_error": (y - q.mean(0)).abs().mean(),
        }
        return {name: float(value) for name, value in metrics.items()}
