"""examples/wandb_sweep.yaml: what W&B's agent makes of it is a command line of rlx."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from rlx.config import check, compose_config

EXAMPLE = Path(__file__).parents[2] / "examples" / "wandb_sweep.yaml"


@pytest.mark.parametrize("last", [False, True])
def test_the_arguments_of_the_agent_compose(last):
    utils = pytest.importorskip("wandb.sdk.launch.sweeps.utils")
    sweep = yaml.safe_load(EXAMPLE.read_text())
    picked = {
        key: {"value": space["values"][-1 if last else 0] if "values" in space else space["max" if last else "min"]}
        for key, space in sweep["parameters"].items()
    }
    made = utils.create_sweep_command_args({"args": picked})["args_no_hyphens"]
    words = [word for word in sweep["command"] if word != "${env}"]
    assert words[:3] == ["python", "-m", "rlx"]
    assert words[-1] == "${args_no_hyphens}"
    assert not any(re.search(r"\$\{", word) for word in words[:-1])
    cfg = compose_config([*words[3:-1], *made])
    check(cfg)
    assert cfg.algo.actor_lr == picked["algo.actor_lr"]["value"]
    assert (cfg.choices.algo, cfg.logger.wandb.mode) == (picked["algo"]["value"], "online")
