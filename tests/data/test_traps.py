"""Data with traps: time limits stored as terminals, boundaries that are missing, resets stored as next_obs."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest

import rlx.cli
import rlx.workflows
from rlx.data import TransitionDataset, WindowSampler, inspect_dataset
from rlx.data.episodes import reset_rows, with_episodes, with_terminals
from rlx.data.replay import DatasetReplay
from rlx.data.sources import (
    MixConfig,
    NpzConfig,
    finish,
    load_mix,
    load_npz,
    load_transition_dataset,
    roll_out_random,
)
from rlx.errors import UserError
from rlx.types import Spec

LIMIT = 40
SPEC = Spec("Toy-v0", (2,), "float32", "box", (1,), (-1.0,), (1.0,), episode_limit=LIMIT)


def walks(lengths: list[int], jump: float = 10.0) -> dict[str, np.ndarray]:
    """Random walks with small steps that begin anew far away; flags are truncations at the end of each."""
    rng = np.random.default_rng(0)
    streams = [rng.normal(0, jump, 2) + 0.01 * rng.standard_normal((n + 1, 2)).cumsum(0) for n in lengths]
    last = np.concatenate([np.arange(n) == n - 1 for n in lengths])
    total = sum(lengths)
    return {
        "obs": np.concatenate([s[:-1] for s in streams]).astype(np.float32),
        "action": rng.uniform(-1, 1, (total, 1)).astype(np.float32),
        "reward": rng.standard_normal(total).astype(np.float32),
        "next_obs": np.concatenate([s[1:] for s in streams]).astype(np.float32),
        "terminated": np.zeros(total, np.float32),
        "truncated": last.astype(np.float32),
    }


def saved(folder: Path, arrays: dict[str, np.ndarray], name: str = "data.npz") -> NpzConfig:
    np.savez(folder / name, **arrays)
    return NpzConfig(path=str(folder / name))


def as_terminals(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return arrays | {"terminated": arrays["truncated"], "truncated": 0 * arrays["truncated"]}


def warnings_of(caplog) -> str:
    return " ".join(record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING)


# -- time limits -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lengths", [[LIMIT] * 30, [LIMIT - 1] * 30, [LIMIT, LIMIT - 1] * 15, [LIMIT] * 30 + [7]])
def test_time_limits_stored_as_terminals_are_refused(lengths, tmp_path):
    arrays = as_terminals(walks(lengths))
    if lengths[-1] == 7:  # cut by the end of the data
        arrays["terminated"][-1] = 0.0
    with pytest.raises(UserError, match=r"time limit of Toy-v0 \(40\).*dataset\.terminals=time_limits.*as_stored"):
        load_npz(saved(tmp_path, arrays), SPEC)


def test_they_are_corrected_or_kept_on_request(tmp_path):
    cfg = saved(tmp_path, as_terminals(walks([LIMIT] * 30)))
    cfg.terminals = "time_limits"
    corrected = load_npz(cfg, SPEC)
    assert (corrected.terminated.sum(), corrected.truncated.sum(), len(corrected.episodes)) == (0, 30, 30)
    assert "30 terminals at the time limit turned into truncations" in corrected.notes
    cfg.terminals = "as_stored"
    kept = load_npz(cfg, SPEC)
    assert (kept.terminated.sum(), kept.truncated.sum()) == (30, 0)


def test_without_next_obs_the_corrected_rows_have_no_successor_and_are_dropped(tmp_path):
    arrays = as_terminals(walks([LIMIT] * 30))
    del arrays["next_obs"]
    cfg = saved(tmp_path, arrays)
    cfg.terminals = "time_limits"
    data = load_npz(cfg, SPEC)
    assert len(data) == 30 * (LIMIT - 1)
    assert (data.terminated.sum(), data.truncated.sum(), len(data.episodes)) == (0, 30, 30)
    inside = ~data.ends
    assert np.array_equal(data.next_obs[inside], data.obs[1:][inside[:-1]])
    assert not (data.next_obs == data.obs).all(1).any()


@pytest.mark.parametrize(
    ("lengths", "limit"),
    [
        ([LIMIT] * 9, LIMIT),  # too few to tell
        ([LIMIT] * 30, 1000),  # not the limit of this env
        ([LIMIT] * 30, None),
        (list(range(5, LIMIT)), LIMIT),  # lengths as failures have them
        ([LIMIT, 10, 20] * 3 + list(range(5, 35)), LIMIT),  # a few that met the limit
    ],
)
def test_no_false_alarm_of_time_limits(lengths, limit, tmp_path):
    cfg = saved(tmp_path, as_terminals(walks(lengths)))
    assert load_npz(cfg, SPEC._replace(episode_limit=limit)).terminated.sum() == len(lengths)


def test_truncations_at_the_limit_raise_no_alarm(tmp_path, caplog):
    load_npz(saved(tmp_path, walks([LIMIT] * 30)), SPEC)
    assert warnings_of(caplog) == ""


def test_many_terminals_exactly_at_the_limit_are_a_warning(tmp_path, caplog):
    lengths = [LIMIT] * 20 + list(range(10, 35))
    cfg = saved(tmp_path, as_terminals(walks(lengths)))
    load_npz(cfg, SPEC)
    assert "20 of 45 episodes terminated exactly at the time limit" in warnings_of(caplog)
    cfg.terminals = "time_limits"
    data = load_npz(cfg, SPEC)
    assert (data.terminated.sum(), data.truncated.sum()) == (25, 20)


def test_flags_that_the_env_gave_to_rlx_are_believed():
    data = TransitionDataset.from_dict(as_terminals(walks([LIMIT] * 30)))
    data.recorded = True
    assert with_terminals(data, "check", LIMIT) is data
    assert roll_out_random("Pendulum-v1", 10, 0).recorded


def test_equal_lengths_without_a_known_limit_are_a_warning(caplog):
    data = TransitionDataset.from_dict(as_terminals(walks([LIMIT] * 30)))
    with_terminals(data, "check", None)
    assert "all 30 episodes terminated after 40 steps, as at a time limit" in warnings_of(caplog)
    assert with_terminals(data, "time_limits", None).truncated.sum() == 30


# -- boundaries ------------------------------------------------------------------------------------------------------


def test_missing_boundaries_are_named_and_inferred(tmp_path, caplog):
    cfg = saved(tmp_path, walks([25] * 20) | {"truncated": np.zeros(500)})
    glued = load_npz(cfg, SPEC)
    assert len(glued.episodes) == 1
    assert "next_obs is not the next obs in 19 rows (24, 49, 74, ...)" in warnings_of(caplog)
    assert "dataset.episodes=infer" in warnings_of(caplog)
    cfg.episodes = "infer"
    data = load_npz(cfg, SPEC)
    assert (len(data.episodes), data.truncated.sum()) == (20, 20)
    assert not len(data.gaps)


def test_glued_episodes_have_no_returns_windows_or_n_steps(tmp_path):
    cfg = saved(tmp_path, walks([25] * 20) | {"truncated": np.zeros(500)})
    glued = load_npz(cfg, SPEC)
    for use in (
        lambda data: data.with_mc_returns(0.9),
        lambda data: data.with_n_step(3, 0.9),
        lambda data: WindowSampler(data, 5),
        lambda data: DatasetReplay(data, SPEC, 0.9, 3, 0),
    ):
        with pytest.raises(UserError, match=r"19 rows inside episodes.*dataset\.episodes=infer"):
            use(glued)
        for choice in ("infer", "as_stored"):
            cfg.episodes = choice
            use(load_npz(cfg, SPEC))
    DatasetReplay(glued, SPEC, 0.9, 1, 0)  # single transitions are right


def test_shuffled_rows_are_said_once_and_only_single_steps_are_left(tmp_path, caplog):
    order = np.random.default_rng(1).permutation(500)
    cfg = saved(tmp_path, {key: array[order] for key, array in walks([25] * 20).items()})
    data = load_npz(cfg, SPEC)
    assert warnings_of(caplog).count("the rows are not in order") == 1
    DatasetReplay(data, SPEC, 0.9, 1, 0)
    with pytest.raises(UserError, match="not in order, and Monte-Carlo returns need whole episodes"):
        data.with_mc_returns(0.9)
    cfg.episodes = "infer"
    with pytest.raises(UserError, match="finds no episodes"):
        load_npz(cfg, SPEC)


def test_shuffled_rows_without_truncations_are_no_episodes_of_one_row(tmp_path):
    order = np.random.default_rng(1).permutation(500)
    arrays = {key: array[order] for key, array in walks([25] * 20).items() if key != "truncated"}
    data = load_npz(saved(tmp_path, arrays), SPEC)
    with pytest.raises(UserError, match="not in order"):
        data.with_n_step(2, 0.9)


def with_resets(lengths: list[int], jump: float = 10.0) -> dict[str, np.ndarray]:
    """As a vector env that resets by itself records: next_obs at the end is the next first obs."""
    arrays = walks(lengths, jump)
    last = np.cumsum(lengths)[:-1] - 1
    arrays["next_obs"][last] = arrays["obs"][last + 1]
    return arrays


def test_resets_stored_as_next_obs_are_named_and_dropped(tmp_path, caplog):
    cfg = saved(tmp_path, with_resets([25] * 20))
    assert len(load_npz(cfg, SPEC)) == 500
    assert "the next_obs of 19 rows (24, 49, 74, ...), truncated, is the first obs of the next" in warnings_of(caplog)
    cfg.episodes = "infer"
    data = load_npz(cfg, SPEC)
    assert (len(data), len(data.episodes), data.truncated.sum()) == (481, 20, 20)
    assert np.abs(data.next_obs - data.obs).max() < 1


def test_one_long_episode_in_pieces_is_not_a_reset(tmp_path, caplog):
    arrays = walks([500])
    arrays["truncated"][24::25] = 1.0
    load_npz(saved(tmp_path, arrays), SPEC)
    assert warnings_of(caplog) == ""


def test_resets_after_terminal_rows_do_no_harm(tmp_path, caplog):
    load_npz(saved(tmp_path, as_terminals(with_resets([25, 20] * 10))), SPEC)
    assert warnings_of(caplog) == ""


def test_rounding_is_no_boundary(tmp_path, caplog):
    arrays = walks([25] * 20)
    arrays["next_obs"] = arrays["next_obs"] * np.float32(1 + 2e-7)
    data = load_npz(saved(tmp_path, arrays), SPEC)
    assert warnings_of(caplog) == ""
    assert data.compared().continues.sum() == 480


def test_one_episode_beyond_the_limit_without_successors_is_refused(tmp_path):
    arrays = walks([25] * 20)
    del arrays["next_obs"], arrays["truncated"]
    cfg = saved(tmp_path, arrays)
    with pytest.raises(UserError, match=r"an episode of 499 steps, and Toy-v0 stops after 40.*'timeouts'"):
        load_npz(cfg, SPEC)
    cfg.episodes = "as_stored"
    assert len(load_npz(cfg, SPEC)) == 499


def test_infer_needs_next_obs(tmp_path):
    arrays = walks([25] * 20)
    del arrays["next_obs"]
    cfg = saved(tmp_path, arrays)
    cfg.episodes = "infer"
    with pytest.raises(UserError, match="has no next_obs"):
        load_npz(cfg, SPEC)


# -- markers of boundaries -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "marker",
    [
        {"episode_starts": np.arange(500) % 25 == 0},
        {"episode_ids": np.arange(500) // 25},
        {"episode_index": np.arange(500) // 25 + 7.0},
    ],
)
def test_starts_and_ids_are_boundaries(marker, tmp_path):
    arrays = {key: array for key, array in walks([25] * 20).items() if key != "truncated"}
    data = load_npz(saved(tmp_path, arrays | marker), SPEC)
    assert data.truncated.tolist() == walks([25] * 20)["truncated"].tolist()
    assert next(iter(marker)) in data.key_map


def expert_set(lengths: list[int]) -> dict[str, np.ndarray]:
    """What Stable-Baselines 2 records: no next_obs, no flags, only where episodes start."""
    arrays = walks(lengths)
    starts = np.zeros(sum(lengths), bool)
    starts[np.cumsum([0, *lengths[:-1]])] = True
    returns = np.array([part.sum() for part in np.split(arrays["reward"], np.cumsum(lengths)[:-1])])
    return {
        "actions": arrays["action"],
        "obs": arrays["obs"],
        "rewards": arrays["reward"],
        "episode_returns": returns,
        "episode_starts": starts,
    }


def test_an_expert_set_of_stable_baselines(tmp_path, caplog):
    lengths = [LIMIT, 10, LIMIT, 20]
    arrays = expert_set(lengths)
    data = load_npz(saved(tmp_path, arrays), SPEC)
    assert "2 of 4 episodes reach the time limit of Toy-v0 (40 steps) and count as truncated" in warnings_of(caplog)
    assert (len(data.episodes), data.terminated.sum(), data.truncated.sum()) == (4, 2, 2)
    assert len(data) == sum(lengths) - 2  # the last rows at the limit have no successor
    raw = load_transition_dataset(tmp_path / "data.npz")
    assert np.allclose(raw.returns(), arrays["episode_returns"], atol=1e-4)
    assert dict(inspect_dataset(raw))["terminals"] == "the file does not tell terminal states from time limits"


def test_what_is_assumed_without_a_limit_is_said(tmp_path, caplog):
    cfg = saved(tmp_path, expert_set([LIMIT, 10, LIMIT, 20]))
    data = load_npz(cfg, SPEC._replace(episode_limit=None))
    assert "every end counts as terminal" in warnings_of(caplog)
    assert data.terminated.sum() == 4
    cfg.terminals = "as_stored"
    caplog.clear()
    load_npz(cfg, SPEC)
    assert warnings_of(caplog) == ""


def test_starts_and_timeouts_give_terminals(tmp_path):
    arrays = expert_set([25, 10, 25, 10])
    arrays["timeouts"] = walks([25, 10, 25, 10])["truncated"] * (np.arange(70) < 30)  # the first alone
    data = load_npz(saved(tmp_path, arrays), SPEC)
    assert (data.terminated.sum(), data.truncated.sum()) == (3, 1)


def test_trajectories_of_imitation(tmp_path):
    lengths = [25, 10, 15]
    arrays = walks(lengths)
    cuts = np.cumsum(lengths)
    obs = [np.concatenate([arrays["obs"][stop - n : stop], arrays["next_obs"][stop - 1 : stop]])
           for n, stop in zip(lengths, cuts, strict=True)]  # fmt: skip
    stored = {
        "obs": np.concatenate(obs),
        "acts": arrays["action"],
        "rews": arrays["reward"],
        "infos": np.array([{}] * 50, dtype=object),
        "terminal": np.array([True, False, True]),
        "indices": cuts[:-1],
    }
    data = load_npz(saved(tmp_path, stored), SPEC)
    assert np.array_equal(data.obs, arrays["obs"])
    assert np.array_equal(data.next_obs, arrays["next_obs"])
    assert np.flatnonzero(data.terminated).tolist() == [24, 49]
    assert np.flatnonzero(data.truncated).tolist() == [34]
    with pytest.raises(UserError, match="does not cut 50 actions into 3 trajectories"):
        load_npz(saved(tmp_path, stored | {"indices": np.array([40, 10])}), SPEC)


def test_what_other_libraries_write_is_refused_with_the_way_to_convert_it(tmp_path):
    (tmp_path / "rollouts.pkl").write_bytes(b"\x80\x04.")
    with pytest.raises(UserError, match=r"is a pickle, which is never loaded.*np\.savez"):
        load_transition_dataset(tmp_path / "rollouts.pkl")
    for name in ("dataset_info.json", "state.json"):
        (tmp_path / name).write_text("{}")
    with pytest.raises(UserError, match=r"Hugging Face.*imitation\.data\.serialize\.load.*np\.savez"):
        load_transition_dataset(tmp_path)


# -- where it is seen ------------------------------------------------------------------------------------------------


def test_the_table_tells_of_all_of_it(tmp_path, capsys):
    saved(tmp_path, as_terminals(walks([200] * 12)) | {"truncated": np.zeros(2400)}, "limits.npz")
    rows = dict(rlx.workflows.inspect_data(tmp_path / "limits.npz"))
    assert "as at a time limit" in rows["terminals"]
    assert rows["order"] == "next_obs is the next obs inside every episode"
    saved(tmp_path, walks([25] * 20) | {"truncated": np.zeros(500)}, "glued.npz")
    rows = dict(rlx.workflows.inspect_data(tmp_path / "glued.npz"))
    assert "next_obs is not the next obs in 19 rows" in rows["order"]
    rows = dict(rlx.workflows.inspect_data(tmp_path / "glued.npz", episodes="infer"))
    assert rows["episodes"] == "20 (0 terminated, 20 truncated)"
    assert rlx.cli.main(["inspect-data", str(tmp_path / "glued.npz"), "env=none", "episodes=infer"]) == 0
    assert rlx.cli.main(["inspect-data", str(tmp_path / "glued.npz"), "episodes=guess"]) == 2
    assert "episodes must be one of check, as_stored, infer (episodes=guess)" in capsys.readouterr().err


def test_a_mix_names_the_source_in_what_to_type(tmp_path):
    first = saved(tmp_path, as_terminals(walks([LIMIT] * 30)), "first.npz")
    second = saved(tmp_path, walks([LIMIT] * 30), "second.npz")
    mix = MixConfig(sources={"old": first, "new": second}, ratios={"old": 1, "new": 1})
    with pytest.raises(UserError, match=r"type dataset\.sources\.old\.terminals=time_limits"):
        load_mix(mix, SPEC)
    first.terminals = "time_limits"
    mixed = load_mix(mix, SPEC)
    assert mixed.terminated.sum() == 0
    mixed.with_mc_returns(0.9)
    mix.episodes = "infer"
    with pytest.raises(UserError, match=r"dataset\.sources\.NAME\.episodes"):
        load_mix(mix, SPEC)


def test_a_run_is_refused_and_corrected(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    obs = rng.standard_normal((12, 201, 3)).astype(np.float32)
    arrays = {
        "obs": obs[:, :-1].reshape(-1, 3),
        "next_obs": obs[:, 1:].reshape(-1, 3),
        "action": rng.uniform(-2, 2, (2400, 1)).astype(np.float32),
        "reward": rng.standard_normal(2400).astype(np.float32),
        "terminated": np.arange(2400) % 200 == 199,
    }
    np.savez(tmp_path / "data.npz", **arrays)
    run = ["algo=td3_bc", "env=pendulum", "dataset=npz", f"dataset.path={tmp_path / 'data.npz'}", "algo.hidden=[8,8]",
           "algo.batch_size=16", "trainer.max_updates=3", "trainer.eval_episodes=1", "logger=none", "threads=1",
           f"run_dir={tmp_path / 'run'}"]  # fmt: skip
    assert rlx.cli.main(run) == 2
    said = capsys.readouterr().err
    assert "time limit of Pendulum-v1 (200)" in said
    assert len(said.splitlines()) == 1
    assert not (tmp_path / "run").exists()
    assert rlx.cli.main([*run, "dataset.terminals=time_limits"]) == 0


def test_choices_without_an_env_have_to_be_countable(tmp_path):
    arrays = walks([25] * 4) | {"action": np.full(100, 2**62)}
    with pytest.raises(UserError, match=r"choices from .* expected 0 up to 65535"):
        finish(TransitionDataset.from_dict(arrays), NpzConfig(), None)


def test_a_dataset_without_doubts_is_left_alone():
    data = TransitionDataset.from_dict(walks([25] * 4))
    assert with_episodes(data, "infer").truncated.tolist() == data.truncated.tolist()


@pytest.mark.parametrize("kind", ["glued", "resets", "good"])
def test_large_sets_are_looked_at_in_places_and_then_in_every_row(kind):
    lengths = [500] * 400  # 200,000 rows: more than are looked at
    arrays = {"glued": walks, "resets": with_resets, "good": walks}[kind](lengths)
    if kind == "glued":
        arrays["truncated"] = np.zeros(200_000)
    data = TransitionDataset.from_dict(arrays)
    assert (data.continues is None) == (kind == "good")
    assert len(data.gaps) == (399 if kind == "glued" else 0)
    assert len(reset_rows(data)) == (399 if kind == "resets" else 0)
    assert int(data.compared().continues.sum()) == (199_999 if kind == "resets" else 199_600)


def test_a_callback_that_needs_returns_refuses_before_the_run(tmp_path, capsys):
    arrays = walks([25] * 20) | {"truncated": np.zeros(500)}
    np.savez(tmp_path / "glued.npz", **arrays)
    run = ["algo=td3_bc", "env=none", "dataset=npz", f"dataset.path={tmp_path / 'glued.npz'}", "algo.hidden=[8,8]",
           "trainer.max_updates=3", "callbacks=[no_env,fitted_q]", "logger=none", "threads=1",
           f"run_dir={tmp_path / 'run'}"]  # fmt: skip
    assert rlx.cli.main(run) == 2
    assert "the returns of callbacks.fitted_q need whole episodes" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
