"""Envs that are given from Python, beside parts of a run that make envs by their id; and what a merge left apart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import yaml
from gymnasium.envs.classic_control import PendulumEnv
from helpers import tiny

import rlx
from rlx.build import env_spec
from rlx.callbacks.bus import Callback, CallbackBus
from rlx.data.dataset import TransitionDataset
from rlx.data.episodes import Terminals
from rlx.data.sources import NpzConfig, finish, load_npz, roll_out_random
from rlx.data.specs import spec_of_dataset
from rlx.envs.factory import EnvConfig
from rlx.errors import RunFailed, UserError
from rlx.given import Given
from rlx.loggers.jsonl import Jsonl, JsonlConfig
from rlx.reporting import next_steps
from rlx.types import Spec

NO_ENV = [o for o in tiny("off_policy") if not o.startswith("env=")]


def make() -> gym.Env:
    return gym.wrappers.TimeLimit(PendulumEnv(), 20)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a registered env, with keywords for its constructor."""
    folder = tmp_path_factory.mktemp("given") / "run"
    overrides = [o for o in tiny("off_policy", "+env.kwargs.g=9.0") if o != "~callbacks.progress"]
    return rlx.train(*overrides, run_dir=folder, quiet=True).run_dir


def test_a_given_env_has_its_own_keywords(run: Path) -> None:
    assert len(rlx.evaluate(run, episodes=1, env=make)["returns"]) == 1


def test_no_dataset_can_be_made_of_it(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    with pytest.raises(UserError, match=r"python:PendulumEnv is not .*; register it"):
        rlx.collect(run, id="test/x-v0", episodes=1, env=make)
    extra = ("callbacks=[default,make_data]", "callbacks.make_data.prefix=test/x")
    with pytest.raises(UserError, match=r"make_data writes data of registered envs"):
        rlx.train(*NO_ENV, *extra, env=make, run_dir=tmp_path / "run")
    with pytest.raises(UserError, match=r"dataset=random makes envs by their id"):
        rlx.train(*NO_ENV, "dataset=random", "trainer.offline_batch_ratio=0.5", env=make, run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_an_id_beside_it_is_refused() -> None:
    with pytest.raises(UserError, match=r"env is given twice, as env\.id=CartPole-v1"):
        rlx.train(*NO_ENV, "env.id=CartPole-v1", env=make)


def test_its_time_limit_is_known() -> None:
    given = Given.of(PendulumEnv, None)
    assert given.env is not None
    assert env_spec(given.env.config(EnvConfig(id="x", max_episode_steps=7))).episode_limit == 7


def test_what_to_type_next_names_whom_to_trust() -> None:
    lines = next_steps({"env": "mod:X-v0"}, "run", ("mod",), ("dataset",))
    assert lines[:2] == ["rlx.evaluate('run', trust=('mod',))", "rlx.resume('run', dataset=..., trust=('mod',))"]


def test_a_quiet_resume_leaves_the_config_whole(run: Path) -> None:
    rlx.resume(run, "trainer.max_env_steps=150", quiet=True)
    for path in (run / "config.yaml", run / "checkpoints" / "last" / "config.yaml"):
        assert "progress" in yaml.safe_load(path.read_text())["callbacks"]


def test_trust_may_be_among_the_overrides(run: Path) -> None:
    result = rlx.resume(run, "trust=[my_module]", "trainer.max_env_steps=160", quiet=True)
    assert json.loads((result.run_dir / "summary.json").read_text())["env_steps"] == 160


def test_callbacks_of_others_keep_what_they_like() -> None:
    class Mine(Callback):
        def state(self) -> dict[str, Any]:
            return {"seen": None}

        def load_state(self, state: dict[str, Any]) -> None:
            self.loaded = state

    mine = Mine()
    CallbackBus({"mine": mine}).load_state({"mine": {"seen": ["a", {"b": "c"}]}})
    assert mine.loaded == {"seen": ["a", {"b": "c"}]}


def test_a_rule_may_get_a_number_where_it_had_none(tmp_path: Path) -> None:
    early = ("callbacks=[default,early_stopping]", "callbacks.early_stopping.patience=1000")
    run = rlx.train(*tiny("off_policy", *early), run_dir=tmp_path / "run", quiet=True).run_dir
    more = (
        "trainer.max_env_steps=150",
        "callbacks.early_stopping.patience=null",
        "callbacks.early_stopping.threshold=1e9",
    )
    rlx.resume(run, *more, quiet=True)
    rlx.resume(run, "trainer.max_env_steps=160", "callbacks.early_stopping.patience=5", quiet=True)


def test_a_name_of_ours_is_no_name_for_rows() -> None:
    with pytest.raises(UserError, match=r"error\.txt is not the name"):
        Jsonl(JsonlConfig(filename="error.txt"))


def test_data_of_a_module_fit_its_env() -> None:
    data = TransitionDataset.from_dict(
        {"obs": np.zeros((4, 3)), "action": np.zeros((4, 1)), "reward": np.zeros(4), "next_obs": np.zeros((4, 3)),
         "terminated": np.zeros(4), "truncated": np.array([0, 0, 0, 1])}, source="x", env_id="Mine-v0",
    )  # fmt: skip
    spec = Spec("my_module:Mine-v0", (3,), "float32", "box", (1,), (-1.0,), (1.0,))
    assert len(data.fitted_to(spec)) == 4


def test_choices_are_applied_once_where_the_data_tell_the_spec(tmp_path: Path) -> None:
    """Otherwise the second look would take genuine ends for time limits, the first one having cut those off."""
    lengths = [20] * 10 + [19] * 5
    ends = np.zeros(sum(lengths), bool)
    ends[np.cumsum(lengths) - 1] = True
    obs = np.arange(len(ends), dtype=np.float32)[:, None]
    arrays = {"observations": obs, "actions": obs * 0, "rewards": obs[:, 0], "terminals": ends}
    np.savez(tmp_path / "x.npz", **arrays)
    cfg = NpzConfig(path=str(tmp_path / "x.npz"), terminals=Terminals.time_limits)
    once = load_npz(cfg, None)
    twice = finish(once, cfg, spec_of_dataset(once))
    assert twice.terminated.sum() == once.terminated.sum()


class Broken(PendulumEnv):
    def __init__(self, at: str = "step"):
        super().__init__()
        self.at = at
        if at == "make":
            raise OSError("no licence")

    def step(self, u: Any) -> Any:
        raise OSError("it broke")


gym.register("TestBroken-v0", Broken)


def test_an_env_that_fails_before_a_run_is_a_sentence() -> None:
    with pytest.raises(RunFailed, match=r"TestBroken-v0 raised OSError: it broke \(test_given\.py, line \d+\)\."):
        roll_out_random("TestBroken-v0", 10, 0)
    with pytest.raises(RunFailed, match=r"TestBroken-v0 cannot be made: it raised OSError: no licence"):
        roll_out_random(EnvConfig(id="TestBroken-v0", kwargs={"at": "make"}), 10, 0)
