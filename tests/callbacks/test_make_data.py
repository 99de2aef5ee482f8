"""The data factory: four datasets that Minari itself loads, from one tiny run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from helpers import resumed, snapshots

import rlx
from rlx.data.minari import load_episodes, write_minari
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


def test_dict_observations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    own = ("algo=dqn", "env=pixel_state", "algo.hidden=[8]", "callbacks.make_data.medium_return=-1e9",
           "env.max_episode_steps=20", "trainer.max_env_steps=100", "trainer.eval_interval=60")  # fmt: skip
    run = rlx.train(*TINY, *own, run_dir=tmp_path / "run", seed=0).run_dir
    sets = {n: load_transition_dataset(f"rlx/pendulum/{n}-v0") for n in ("medium", "medium-replay", "medium-expert")}
    whole = load_transition_dataset(run)
    replay = sets["medium-replay"]
    for part in ("pixels", "state"):
        assert np.array_equal(replay.obs[part], whole.obs[part][: len(replay)])
        assert np.array_equal(replay.next_obs[part], whole.next_obs[part][: len(replay)])
        first = sets["medium"].obs[part]
        assert np.array_equal(sets["medium-expert"].obs[part][: len(first)], first)


def test_a_medium_return_that_is_never_reached_makes_no_data(tmp_path: Path, monkeypatch, caplog):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    rlx.train(*TINY, "callbacks.make_data.medium_return=0", run_dir=tmp_path / "run", seed=0)
    assert not (tmp_path / "minari").exists()


# -- kills -----------------------------------------------------------------------------------------------------------

NAMES = ("medium", "medium-replay", "expert", "medium-expert")
MOMENTS = [
    ("checkpoint", 1),  # before the medium policy
    ("evaluated", 1),  # the medium sets are there, and no checkpoint knows of them
    ("checkpoint", 2),  # one does
    ("run_end", 1),  # everything is done but the summary
]


def written(storage: Path) -> dict[str, np.ndarray]:
    """Every column of every set below a storage."""
    sets = {name: load_transition_dataset(storage / f"rlx/pendulum/{name}-v0") for name in NAMES}
    return {
        f"{name} {column}": getattr(data, column)
        for name, data in sets.items()
        for column in ("obs", "action", "reward", "next_obs", "terminated", "truncated")
    }


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict]:
    """An undisturbed run with its storage inside its folder, and both as they were at every moment."""
    folder = tmp_path_factory.mktemp("factory")
    with pytest.MonkeyPatch.context() as patch, snapshots(*MOMENTS, into=folder) as taken:
        patch.setenv("MINARI_DATASETS_PATH", str(folder / "whole" / "minari"))
        always = ("callbacks.make_data.medium_return=-1e9", "trainer.checkpoint_interval=150")
        rlx.train(*TINY, *always, run_dir=folder / "whole", seed=0)
    return folder / "whole", taken


@pytest.mark.parametrize("moment", MOMENTS, ids=lambda m: f"{m[0]}_{m[1]}")
def test_a_killed_factory_ends_with_the_same_sets(
    killed: tuple[Path, dict], moment: tuple[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    whole, taken = killed
    storage = tmp_path / "run" / "minari"
    shutil.copytree(taken[moment], tmp_path / "run", symlinks=True)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(storage))
    resumed(tmp_path / "run")
    ours, reference = written(storage), written(whole / "minari")
    assert all(np.array_equal(ours[key], reference[key]) for key in reference)
    assert not list(storage.glob(".rlx-*"))


def test_a_resumed_factory_writes_its_sets_anew(killed: tuple[Path, dict], tmp_path: Path, monkeypatch):
    """With a larger budget the expert is another one, and so is its set; the medium ones stay."""
    whole, _ = killed
    shutil.copytree(whole, tmp_path / "run", symlinks=True)
    storage = tmp_path / "run" / "minari"
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(storage))
    resumed(tmp_path / "run", "trainer.max_env_steps=500")
    ours, before = written(storage), written(whole / "minari")
    assert np.array_equal(ours["medium obs"], before["medium obs"])
    assert not np.array_equal(ours["expert action"], before["expert action"])
    assert np.array_equal(ours["medium-expert action"], np.concatenate([ours["medium action"], ours["expert action"]]))
    metadata = json.loads((storage / "rlx/pendulum/expert-v0/data/metadata.json").read_text())
    assert "after 500 env steps" in metadata["description"]


@pytest.mark.parametrize("name", NAMES)
def test_a_set_of_others_is_refused_on_resume(killed: tuple[Path, dict], name: str, tmp_path: Path, monkeypatch):
    run, dataset = tmp_path / "run", f"rlx/pendulum/{name}-v0"
    shutil.copytree(killed[1]["evaluated", 1], run, symlinks=True)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(run / "minari"))
    episodes = load_episodes("rlx/pendulum/medium-v0")
    shutil.rmtree(run / "minari" / dataset, ignore_errors=True)
    write_minari(dataset, episodes, "Pendulum-v1", run / "minari", algorithm="theirs", description="(run 0)")
    before = {p: p.read_bytes() for p in (run / "minari").rglob("*") if p.is_file()}
    with pytest.raises(UserError, match=f"{dataset} exists already and was not written by this run"):
        resumed(run)
    assert {p: p.read_bytes() for p in (run / "minari").rglob("*") if p.is_file()} == before
