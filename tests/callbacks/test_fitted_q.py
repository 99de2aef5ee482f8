"""Fitted Q evaluation: values that can be computed by hand, and what a signal leaves to a resume."""

from __future__ import annotations

import math
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import resumed, rows, same_run, tiny

import rlx
from rlx.callbacks import fitted_q
from rlx.callbacks.fitted_q import possible_values

FEW = ("env=none", "algo=bc", "algo.hidden=[4]", "algo.batch_size=4", "algo.normalize_obs=false", "algo.discount=0.5",
       "trainer.max_updates=1", "callbacks.fitted_q.batch_size=32", "~callbacks.progress", "threads=1")  # fmt: skip


@pytest.mark.parametrize(
    ("reward", "discount", "expected"),
    [
        ([1.0, 3.0], 0.5, (0.0, 6.0)),
        ([-1.0, 3.0], 0.75, (-4.0, 12.0)),
        ([-2.0, -1.0], 0.5, (-4.0, 0.0)),
        ([0.0, 0.0], 1.0, (0.0, 0.0)),
        ([-1.0, 0.0], 1.0, (-math.inf, 0.0)),
    ],
)
def test_what_rewards_can_add_up_to(reward: list[float], discount: float, expected: tuple[float, float]) -> None:
    assert possible_values(np.array(reward, np.float32), discount) == expected


def judged(data: dict[str, Any], folder: Path, *overrides: str) -> dict[str, Any]:
    rlx.train(*FEW, *overrides, dataset=data, run_dir=folder, quiet=True)
    (row,) = (row for row in rows(folder) if "fqe/value" in row)
    return row


@pytest.mark.parametrize(("ends", "expected"), [("terminated", 2.0), ("truncated", (3.0 + 4.0) / 2)])
def test_the_value_of_a_chain(ends: str, expected: float, tmp_path: Path) -> None:
    """Rewards 1 and 2 from 0 over 1 to 2, where nothing follows: 1 + 2 / 2. Where the time was over in 2, and 2 is also
    a place that pays 2 for ever, where half of the episodes begin: 1 + (2 + (2 + ...) / 2) / 2, and 2 + (2 + ...) / 2.
    """
    step = np.tile([0, 1], 30)
    data = {"obs": step[:, None], "next_obs": step[:, None] + 1, "reward": step + 1.0}
    data |= {"terminated": np.zeros(60), "truncated": np.zeros(60)} | {ends: step == 1}
    if ends == "truncated":
        stays = {"obs": [[2]], "next_obs": [[2]], "reward": [2.0], "terminated": [0], "truncated": [1]}
        data = {name: np.concatenate([column, *[stays[name]] * 30]) for name, column in data.items()}
    data = {name: column.astype(np.float32) for name, column in data.items()}
    data["action"] = np.zeros(len(data["reward"]), np.int64)
    row = judged(data, tmp_path / "run", "callbacks.fitted_q.updates=1500")
    assert row["fqe/value"] == pytest.approx(expected, abs=0.1)
    assert row["fqe/behavior_value"] == pytest.approx(2.0), "what was seen of it"


def test_values_stay_within_what_the_rewards_allow(tmp_path: Path) -> None:
    """Each state is far beyond the one before, so that a value that follows from the next one grows without end."""
    size = np.float32(4.0) ** np.arange(12)
    data = {"obs": size[:-1, None], "next_obs": size[1:, None], "reward": np.ones(11), "terminated": np.zeros(11),
            "truncated": np.arange(11) == 10, "action": np.zeros(11, np.int64)}  # fmt: skip
    row = judged(data, tmp_path / "run", "callbacks.fitted_q.updates=300", "algo.discount=0.9")
    assert abs(row["fqe/value"]) < 20.0  # the most that is possible is 10


@pytest.mark.parametrize("at", [7, 25])
def test_a_signal_ends_a_fit_and_a_resume_makes_it(at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the middle of the run, and in the last fit of it."""
    overrides = tiny("offline", "callbacks=[default,fitted_q]", "callbacks.fitted_q.updates=10",
                     "trainer.eval_interval=20")  # fmt: skip
    rlx.train(*overrides, run_dir=tmp_path / "whole")
    calls, original = 0, fitted_q.td_target

    def counted(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == at:
            signal.raise_signal(signal.SIGTERM)
        return original(*args)

    monkeypatch.setattr(fitted_q, "td_target", counted)
    result = rlx.train(*overrides, run_dir=tmp_path / "left")
    assert result.summary["stop_reason"] == "terminated"
    assert calls == at
    resumed(tmp_path / "left")
    same_run(tmp_path / "left", tmp_path / "whole")
