"""A data factory: offline datasets from an online run, so that offline work needs no download.

Writes Minari datasets below one prefix:

    <prefix>/medium-v0          episodes of the policy at the first evaluation that reached `medium_return`
    <prefix>/medium-replay-v0   everything the run had collected by then
    <prefix>/expert-v0          episodes of the policy at the end of the run
    <prefix>/medium-expert-v0   both kinds of episodes

Policies act deterministically with `noise`, as in `python -m rlx collect`.

A set that exists already is refused before any work, unless this very run wrote it: it was then killed, or goes on to
a larger budget, and writes the set again. A mark in the run folder, repeated in the description of every set, tells.
"""

from __future__ import annotations

import json
import logging
import os
import re
import tempfile
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from omegaconf import OmegaConf

from rlx.agent import LearnerAgent
from rlx.callbacks.bus import Callback
from rlx.config import PYTHON, as_written
from rlx.data.collect import collect_episodes, episodes_of_rows
from rlx.data.minari import Episode, load_episodes, minari_root, write_minari
from rlx.envs.evaluation import MOST_EPISODES
from rlx.envs.factory import make_vector_env
from rlx.errors import UserError
from rlx.fields import check_numbers, number
from rlx.files import read_bounded, write_atomically
from rlx.reporting import counted
from rlx.rng import seeded
from rlx.system import INTERRUPTED

if TYPE_CHECKING:
    from rlx.trainers.trainer import Trainer

log = logging.getLogger("rlx")

MARK = "make_data.mark"  # the file in the run folder


@dataclass
class MakeDataConfig:
    """What is written, and what counts as medium."""

    _target_: str = "rlx.callbacks.make_data.MakeData"
    prefix: str = ""  # of the dataset ids, such as rlx/hopper
    medium_return: float = 0.0  # an evaluation that reaches this is the medium policy
    episodes: int = number(100, least=1, most=MOST_EPISODES)  # of the medium and of the expert dataset
    noise: float = number(0.1, least=0)  # std of the noise on actions


def _read_mark(file: Path) -> str | None:
    """The mark in a run folder, if it is one that a run has made: no other names a set that may be replaced."""
    try:
        text = read_bounded(file, 100).decode()
    except (OSError, ValueError):
        return None
    return text if re.fullmatch(r"run [0-9a-f]{32}", text) else None


class MakeData(Callback):
    """Collects datasets when the policy is medium, and at the end."""

    order = 40

    def __init__(self, cfg: MakeDataConfig):
        if not cfg.prefix:
            raise UserError(
                "callbacks.make_data.prefix is empty; give the beginning of the dataset ids, for example rlx/hopper."
            )
        if not re.fullmatch(r"[\w-]+(/[\w-]+)*", cfg.prefix):
            raise UserError(
                f"callbacks.make_data.prefix={cfg.prefix} is not the beginning of a dataset id; give one such as "
                "rlx/hopper."
            )
        check_numbers(cfg, "callbacks.make_data")
        self.cfg = cfg
        self.medium = False  # has it been written
        self.mark = ""  # in the description of what this run writes

    def check(self, trainer: Trainer) -> None:
        if trainer.replay is None:
            raise UserError("callbacks.make_data keeps what a run collects into a replay; use an off-policy algorithm.")
        if trainer.cfg.env.wrappers:
            raise UserError(
                "callbacks.make_data writes what the env itself gives, and env.wrappers change that; leave them out."
            )
        if trainer.spec.env_id.startswith(PYTHON):
            raise UserError(
                "callbacks.make_data writes data of registered envs and this one was given from Python; register it "
                "and use env.id=module:Id."
            )
        if not trainer.reward.identity:
            raise UserError(
                "callbacks.make_data writes the replay, which holds rewards after the reward transform, and a dataset "
                "is to hold the env's own; use reward=identity, and transform rewards in runs that learn from the data."
            )
        file = trainer.run_dir / MARK
        self.mark = _read_mark(file) or f"run {uuid.uuid4().hex}"
        names = ("expert", "medium-expert") if self.medium else ("medium", "medium-replay", "expert", "medium-expert")
        for name in names:
            folder = self._folder(name)
            if folder.exists() and not self._is_own(folder):
                raise UserError(
                    f"The dataset {self._id(name)} exists already and was not written by this run; delete it, or set "
                    "another callbacks.make_data.prefix."
                )

    def on_run_start(self, trainer: Trainer) -> None:
        # before the first set, so that none is left without it if the run is killed
        write_atomically(trainer.run_dir / MARK, self.mark.encode())

    def on_evaluated(self, trainer: Trainer, metrics: dict[str, float]) -> None:
        if not self.medium and metrics["eval/return_mean"] >= self.cfg.medium_return:
            self.medium = True
            self._write(trainer, "medium", self._roll_out(trainer, seed=1))
            assert trainer.replay is not None
            self._write(trainer, "medium-replay", episodes_of_rows(trainer.replay))

    def on_run_end(self, trainer: Trainer) -> None:
        if trainer.state.stop_reason in INTERRUPTED:
            return
        if not self.medium:
            best = trainer.state.best
            log.warning(
                "No evaluation reached %s (the best was %s); no data was written.", self.cfg.medium_return, best
            )
            return
        expert = self._roll_out(trainer, seed=2)
        self._write(trainer, "expert", expert)
        self._write(trainer, "medium-expert", [*load_episodes(self._id("medium")), *expert])

    def state(self) -> dict[str, Any]:
        return {"medium": self.medium}

    def load_state(self, state: dict[str, Any]) -> None:
        self.medium = state["medium"]

    def _id(self, name: str) -> str:
        return f"{self.cfg.prefix}/{name}-v0"

    def _folder(self, name: str) -> Path:
        return minari_root() / self._id(name)

    def _is_own(self, folder: Path) -> bool:
        """Did this run write it, before it was killed or ended?"""
        try:
            description = json.loads(read_bounded(folder / "data" / "metadata.json"))["description"]
        except (OSError, ValueError, KeyError, TypeError):
            return False
        return str(description).endswith(f"({self.mark})")

    def _roll_out(self, trainer: Trainer, seed: int) -> list[Episode]:
        envs = make_vector_env(
            OmegaConf.to_object(trainer.cfg.env),  # type: ignore[arg-type]
            min(self.cfg.episodes, 10),
            trainer.cfg.trust,
        )
        try:
            with seeded(seed, trainer.device):
                agent = LearnerAgent(trainer.learner, envs.num_envs)
                return collect_episodes(agent, envs, trainer.spec, self.cfg.episodes, self.cfg.noise, seed)
        finally:
            envs.close()

    def _write(self, trainer: Trainer, name: str, episodes: list[Episode]) -> None:
        returns = [float(e.reward.sum()) for e in episodes]
        algorithm = str(as_written(trainer.cfg).algo.name)
        text = f"{name}: {algorithm} on {trainer.spec.env_id} after {trainer.state.env_steps} env steps"
        text = f"{text} ({self.mark})"
        root, env_id = minari_root(), trainer.spec.env_id
        folder = self._folder(name)
        if self._is_own(folder):  # of two writers the first one wins, and here the second one is to
            with tempfile.TemporaryDirectory(prefix=".rlx-", dir=root) as beside:
                os.rename(folder, Path(beside) / folder.name)  # at once: half a set would be nobody's
        write_minari(self._id(name), episodes, env_id, root, algorithm=algorithm, description=text)
        log.info("%s: %s, return %.1f +- %.1f", self._id(name), counted(len(episodes), "episode"),
                 np.mean(returns), np.std(returns))  # fmt: skip
