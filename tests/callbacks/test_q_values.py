"""Q-value diagnostics: rows that stay the same, whatever has been drawn from the dataset before."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from helpers import resumed, same_run, snapshots, tiny

import rlx
from rlx.callbacks.q_values import QValues
from rlx.trainers.trainer import Trainer

OVERRIDES = tiny("offline", "callbacks=[default,q_values]", "trainer.eval_interval=10")


def test_a_resume_looks_at_the_same_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[torch.Tensor] = []
    start = QValues.on_run_start

    def watched(self: QValues, trainer: Trainer) -> None:
        assert trainer.prior is not None
        before = trainer.prior.state()
        start(self, trainer)
        assert trainer.prior.state() == before  # training draws what it would have drawn
        assert self._batch is not None
        drawn.append(self._batch.obs.clone())

    monkeypatch.setattr(QValues, "on_run_start", watched)
    with snapshots(("iteration", 30), into=tmp_path) as at:
        rlx.train(*OVERRIDES, run_dir=tmp_path / "whole")
    resumed(at["iteration", 30])
    assert torch.equal(drawn[0], drawn[1])
    same_run(at["iteration", 30], tmp_path / "whole")
