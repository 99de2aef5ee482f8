from __future__ import annotations

from types import SimpleNamespace

import pytest
from omegaconf import OmegaConf


@pytest.fixture
def make_run(tmp_path):
    """A trainer as loggers see it: a folder, a config, a step count."""

    def make(steps: int = 0, resumed: bool = False, cfg: dict | None = None):
        state = SimpleNamespace(steps=steps)
        return SimpleNamespace(run_dir=tmp_path, cfg=OmegaConf.create(cfg or {}), state=state, resumed=resumed)

    return make
