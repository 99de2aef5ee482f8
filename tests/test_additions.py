"""One Python file and one YAML file of the user's own, in a folder of theirs, add a part of any kind to rlx."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import NamedTuple

import pytest
from helpers import tiny

import rlx
from rlx.errors import UserError

ALGO = """
import torch

from rlx.learner import AlgoConfig, Learner
from rlx.nn import MLP, Adam

used = 0


class Clone(Learner):
    '''Imitates the actions in the replay.'''

    def __init__(self, spec, lr, **values):
        super().__init__(AlgoConfig(**values), spec)
        self.policy = MLP([spec.obs_dim, *self.cfg.hidden, spec.action_dim])
        self.optimizers = {"policy": Adam(self.policy.parameters(), lr)}

    @torch.no_grad()
    def act(self, obs, explore):
        action = self.policy(obs).tanh()
        return (action + 0.1 * torch.randn_like(action)).clamp(-1, 1) if explore else action

    def update(self, batch):
        global used
        used += 1
        self.updates += 1
        loss = (self.policy(batch.obs).tanh() - batch.action).square().mean()
        self.optimizers["policy"].minimize(loss)
        return {"loss/clone": loss.detach()}
"""
ALGO_YAML = """
# Imitation of its own actions.
defaults:
  - override /trainer@_global_.trainer: off_policy
_target_: MODULE.Clone
name: clone
discount: 0.99
batch_size: 16
hidden: [8]
normalize_obs: false
lr: 1e-3
"""

REPLAY = """
from rlx.data.replay import Replay

used = 0


class Newest(Replay):
    '''Draws from the newest quarter alone.'''

    def draw(self, count):
        global used
        used += 1
        newest = max(1, len(self) // 4)
        return self.total - 1 - super().draw(count) % newest
"""

COLLECTOR = """
from rlx.collectors.local import LocalCollector

used = 0


class Counting(LocalCollector):
    def collect(self, n):
        global used
        used += 1
        return super().collect(n)
"""

ENCODER = """
from torch import nn

used = 0


class Features(nn.Module):
    def __init__(self, spec, width):
        super().__init__()
        self.dim = width
        self.layer = nn.Linear(spec.obs_dim, width)

    def forward(self, obs):
        global used
        used += 1
        return self.layer(obs).relu()
"""

DATASET = """
from rlx.data.sources import roll_out_random

used = 0


def load(spec, seed, size):
    global used
    used += 1
    return roll_out_random(spec.env_id, size, seed).fitted_to(spec)
"""

CALLBACK = """
from rlx.callbacks.bus import Callback

used = 0


class Greet(Callback):
    def __init__(self, word):
        self.word = word

    def on_run_start(self, trainer):
        global used
        used += len(self.word)
"""

LOGGER = """
from rlx.callbacks.bus import Callback

used = 0


class Count(Callback):
    def on_log(self, trainer, row):
        global used
        used += 1
"""

WRAPPER = """
import gymnasium

used = 0


class Halve(gymnasium.RewardWrapper):
    def reward(self, reward):
        global used
        used += 1
        return 0.5 * reward
"""


class Toy(NamedTuple):
    group: str
    code: str  # of the Python file
    text: str  # of the YAML file, called toy.yaml
    overrides: tuple[str, ...]  # that choose it
    regime: str = "off_policy"


TOYS = {
    "algorithm": Toy("algo", ALGO, ALGO_YAML, ("algo=toy",)),
    "replay": Toy(
        "replay", REPLAY, "defaults: [/schema/replay/replay@_here_, _self_]\n_target_: MODULE.Newest\n",
        ("replay=toy",),
    ),
    "collector": Toy(
        "collector", COLLECTOR, "defaults: [/schema/collector/local@_here_, _self_]\n_target_: MODULE.Counting\n",
        ("collector=toy",),
    ),
    "encoder": Toy("encoder", ENCODER, "_target_: MODULE.Features\nwidth: 7\n", ("encoder=toy",)),
    "dataset": Toy("dataset", DATASET, "_target_: MODULE.load\nsize: 100\n", ("dataset=toy",), "offline"),
    "callback": Toy(
        "callbacks", CALLBACK, "toy: {_target_: MODULE.Greet, word: hello}\n", ("callbacks=[default,toy]",)
    ),
    "logger": Toy("logger", LOGGER, "toy: {_target_: MODULE.Count}\n", ("logger=[default,toy]",)),
    "wrapper": Toy(
        "env", WRAPPER,
        "defaults: [/schema/env/env@_here_, _self_]\nid: Pendulum-v1\nwrappers: {halve: {_target_: MODULE.Halve}}\n",
        ("env=toy",),
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", TOYS)
def test_a_part_of_ones_own(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toy, module = TOYS[kind], f"toy_{kind}"
    (tmp_path / f"{module}.py").write_text(toy.code)
    (tmp_path / "conf" / toy.group).mkdir(parents=True)
    (tmp_path / "conf" / toy.group / "toy.yaml").write_text(toy.text.replace("MODULE", module))
    monkeypatch.syspath_prepend(tmp_path)
    chosen = {o.partition("=")[0] for o in toy.overrides}
    overrides = [o for o in tiny(toy.regime) if o.partition("=")[0].partition(".")[0] not in chosen]
    given = (*overrides, *toy.overrides)
    with pytest.raises(UserError, match=rf"trust=\[{module}\]"):
        rlx.train(*given, config_dir=tmp_path / "conf", run_dir=tmp_path / "refused")
    run = rlx.train(*given, config_dir=tmp_path / "conf", trust=[module], run_dir=tmp_path / "run").run_dir
    imported = importlib.import_module(module)
    assert imported.used > 0
    with pytest.raises(UserError, match=r"trust=\["):
        rlx.evaluate(run, episodes=1)
    assert rlx.evaluate(run, episodes=1, trust=(module,))["episodes"] == 1
    longer = "trainer.max_updates=70" if toy.regime == "offline" else "trainer.max_env_steps=140"
    with pytest.raises(UserError, match=r"trust=\["):
        rlx.resume(run, longer)
    assert rlx.resume(run, longer, trust=(module,)).summary["exact"]
