"""The data factory: four datasets that Minari itself loads, from one tiny run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import rlx
from rlx.data.sources import load_transition_dataset
from rlx.errors import UserError

TINY = ["experiment=make_data_pendulum", "algo.hidden=[8,8]", "algo.batch_size=16", "trainer.max_env_steps=450",
        "trainer.eval_interval=200", "trainer.eval_episodes=1", "trainer.learning_starts=400", "threads=1",
        "callbacks.make_data.episodes=2", "logger=none", "env.max_episode_steps=50", "~callbacks.progress"]  # fmt: skip


def test_four_datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    rlx.train(*TINY, "callbacks.make_data.medium_return=-1e9", run_dir=tmp_path / "run", seed=0)
    sets = {
        n: load_transition_dataset(f"rlx/pendulum/{n}-v0")
        for n in ("medium", "medium-replay", "expert", "medium-expert")
    }
    assert {name: len(data) for name, data in sets.items()} == {
        "medium": 100, "medium-replay": 200, "expert": 100, "medium-expert": 200,
    }  # fmt: skip
    both = sets["medium-expert"]
    assert np.array_equal(both.obs, np.concatenate([sets["medium"].obs, sets["expert"].obs]))
    replay = sets["medium-replay"]
    assert len(replay.episodes) == 4
    inside = ~replay.ends[:-1]
    assert np.array_equal(replay.next_obs[:-1][inside], replay.obs[1:][inside])
    assert 1.5 < np.abs(replay.action).max() <= 2.0  # in the units of the env
    import minari

    assert minari.load_dataset("rlx/pendulum/medium-v0").total_steps == 100
    with pytest.raises(UserError, match="exists already"):
        rlx.train(*TINY, run_dir=tmp_path / "again", seed=0)


def test_a_medium_return_that_is_never_reached_makes_no_data(tmp_path: Path, monkeypatch, caplog):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    rlx.train(*TINY, "callbacks.make_data.medium_return=0", run_dir=tmp_path / "run", seed=0)
    assert not (tmp_path / "minari").exists()
