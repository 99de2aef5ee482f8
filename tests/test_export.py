"""Exports: every algorithm's policy as ONNX acts as `Policy.act` does, and a folder comes back as it went."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
import yaml
from helpers import SMALL, SMALL_TRANSFORMER, tiny

import rlx
from rlx.build import make_learner
from rlx.cli import main
from rlx.config import compose_config, learners, schemas
from rlx.errors import RunFailed, UserError
from rlx.exports import graph as graph_module
from rlx.exports.card import block, plain
from rlx.exports.graph import TOLERANCE, PolicyGraph, largest_difference, to_onnx
from rlx.learner import Learner
from rlx.policy import Policy
from rlx.types import Acted, Box, Spec, Windows

NAMES = sorted(name.removeprefix("algo/") for name in schemas() if name.startswith("algo/"))
LOW, HIGH = (-2.0, -np.inf, 0.0), (2.0, np.inf, 10.0)
MEAN, STD = (1.0, -3.0, 0.0, 100.0, 7.0), (1.0, 0.1, 5.0, 30.0, 2.0)  # of observations
SPECS = {
    "box": Spec("Some-v0", (5,), "float32", "box", (3,), LOW, HIGH, episode_limit=50),
    "discrete": Spec("Some-v0", (5,), "float32", "discrete", (), action_sizes=(4,), episode_limit=50),
    "multi_discrete": Spec("Some-v0", (5,), "float32", "multi_discrete", (2,), action_sizes=(3, 4)),
}
CASES = [(name, kind) for name in NAMES for kind in learners()[name].actions if kind in SPECS]


def learner_for(name: str, spec: Spec, *overrides: str) -> Learner:
    """A small learner whose weights are far from where they start, with statistics of observations."""
    cls = learners()[name]
    nets = [f.name for f in fields(schemas()[f"algo/{name}"]) if f.name.endswith("_hidden")]
    small = [o for o in SMALL if o.startswith("algo.")] + [f"algo.{net}=[16,16]" for net in nets]
    small += SMALL_TRANSFORMER if cls.reads is Windows else ()
    vectors = not spec.boxes and len(spec.obs_shape) == 1
    cfg = compose_config(
        [f"algo={name}", "~algo_env", "encoder=auto", *small, f"algo.normalize_obs={vectors}", *overrides]
    )
    torch.manual_seed(0)
    learner = make_learner(cfg, spec, ()).eval()
    with torch.no_grad():
        for parameter in learner.parameters():
            if parameter.dim() > 1:  # biases would drown the observations
                parameter.add_(0.3 * torch.randn_like(parameter))
        if vectors:
            learner.obs_mean.copy_(torch.tensor(MEAN))
            learner.obs_std.copy_(torch.tensor(STD))
    return learner


def act_side_by_side(learner: Learner, model: bytes, rows: int, steps: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Actions of `Policy.act` and of the ONNX file, which is run by hand here."""
    session, policy, rng = onnxruntime.InferenceSession(model), Policy(learner), np.random.default_rng(1)
    ports = {port.name: port for port in session.get_inputs()}
    kinds = {"tensor(float)": "float32", "tensor(int64)": "int64", "tensor(bool)": "bool", "tensor(uint8)": "uint8"}
    inputs = {name: np.zeros([rows, *port.shape[1:]], kinds[port.type]) for name, port in ports.items()}
    spec, pairs = learner.spec, []
    for step in range(steps):
        obs = {}
        for name, box in spec.obs.items():
            size = (rows, *box.shape)
            usual = (MEAN, STD) if box.shape == (5,) else (1, 3)
            draw = rng.integers(0, 256, size) if box.dtype == "uint8" else rng.normal(*usual, size)
            obs[name] = draw.astype(box.dtype)
            inputs[f"obs.{name}" if spec.boxes else "obs"] = obs[name]
        if step == 2:
            policy.reset([0])  # one episode ends in the middle, or all of them where there is one
        if "start" in inputs:
            inputs["start"][:] = step == 0
            inputs["start"][0] |= step == 2
        action, *carry = session.run(None, inputs)
        pairs.append((policy.act(obs if spec.boxes else obs["obs"]), action))
        reward = rng.normal(size=rows).astype(np.float32)
        if carry:
            policy.feedback(reward)
        if "reward" in inputs:
            inputs["reward"] = reward
        inputs |= {f"carry_{i}": part for i, part in enumerate(carry)}
    return pairs


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_onnx_acts_as_predict_does(name: str, kind: str) -> None:
    learner = learner_for(name, SPECS[kind])
    model = to_onnx(PolicyGraph(learner))
    for rows in (1, 33):
        for expected, action in act_side_by_side(learner, model, rows, 4):
            assert action.shape == expected.shape
            assert action.dtype == expected.dtype
            np.testing.assert_allclose(action, expected, rtol=1e-5, atol=1e-5)
    if kind == "box":
        assert action[:, 2].min() >= 0.0  # the third dimension is [0, 10]
        assert action[:, 2].max() > 1.0
    assert len(np.unique(action)) > 1


IMAGE, STATE = Box((12, 12, 3), "uint8"), Box((4,), "float32")


@pytest.mark.parametrize(
    "spec",
    [
        Spec("Pixels-v0", IMAGE.shape, "uint8", "discrete", (), action_sizes=(3,)),
        Spec("Both-v0", (), "float32", "discrete", (), action_sizes=(3,), boxes=(("a camera", IMAGE), ("x/y", STATE))),
    ],
    ids=["image", "dict"],
)
@pytest.mark.parametrize("name", ["ppo", "ppo_lstm"])
def test_images_and_dicts_go_in_as_the_env_gives_them(name: str, spec: Spec) -> None:
    learner = learner_for(name, spec)
    for rows in (1, 9):
        for expected, action in act_side_by_side(learner, to_onnx(PolicyGraph(learner)), rows, 4):
            np.testing.assert_array_equal(action, expected)


def test_a_graph_that_differs_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = learner_for("sac", SPECS["box"])
    model = to_onnx(PolicyGraph(learner))
    assert largest_difference(PolicyGraph(learner), model) <= TOLERANCE
    with torch.no_grad():
        next(learner.policy.parameters()).add_(0.01)
    assert largest_difference(PolicyGraph(learner), model) > TOLERANCE
    monkeypatch.setattr(graph_module, "_converted", lambda graph: model)
    with pytest.raises(RunFailed, match=r"differs from the policy by .*--format torch"):
        to_onnx(PolicyGraph(learner))


def test_a_policy_that_cannot_be_traced_is_told_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = learner_for("sac", SPECS["box"])
    monkeypatch.setattr(type(learner.actor), "act", lambda self, obs, carry, explore: Acted(float(obs.sum())))  # type: ignore[arg-type]
    with pytest.raises(RunFailed, match="cannot be written as one graph"):
        to_onnx(PolicyGraph(learner))


def test_without_the_extra_there_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(UserError, match=r"needs the package onnxscript.*\[export\]"):
        to_onnx(PolicyGraph(learner_for("sac", SPECS["box"])))


# -- the folder --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "run"
    overrides = tiny("offline", "algo.normalize_obs=true", "trainer.max_updates=10", "trainer.eval_interval=10")
    rlx.train(*overrides, run_dir=folder, quiet=True)
    return folder


@pytest.fixture(scope="module")
def exported(run: Path) -> Path:
    return rlx.export(run, out=run.parent / "onnx")


@pytest.fixture
def copy(exported: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(exported, tmp_path / "copy"))


def about(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "policy.json").read_text())  # type: ignore[no-any-return]


def test_an_export_acts_as_the_run_it_is_of(run: Path, exported: Path) -> None:
    obs = np.random.default_rng(0).normal(size=(7, 3)).astype(np.float32)
    ours, theirs = rlx.load(run).act(obs), rlx.load(exported).act(obs)
    assert np.array_equal(ours, theirs)
    assert rlx.evaluate(exported, episodes=2)["returns"] == rlx.evaluate(run, episodes=2)["returns"]


def test_its_card_says_what_it_is(exported: Path) -> None:
    card = (exported / "README.md").read_text()
    head = yaml.safe_load(card.split("---")[1])
    assert head["library_name"] == "rlx"
    assert "license" not in head
    value = about(exported)["trained"]["return_mean"]
    assert head["model-index"][0]["results"][0]["metrics"][0]["value"] == pytest.approx(value, abs=1e-3)
    assert f"| return | {value:.1f} " in card
    assert "| algorithm | td3\\_bc |" in card
    assert "    python -m rlx algo=td3_bc env=pendulum" in card
    assert "run_dir" not in card
    assert "10 updates" in card


def test_nothing_of_this_machine_is_in_it(run: Path, exported: Path) -> None:
    for path in exported.iterdir():
        data = path.read_bytes()
        for place in (str(run.parent), str(Path(rlx.__file__).parent), os.path.expanduser("~") + "/"):
            assert place.encode() not in data, f"{place} is in {path.name}"


@pytest.mark.parametrize("format", ["onnx", "torch"])
def test_its_example_works(run: Path, tmp_path: Path, format: str) -> None:
    folder = rlx.export(run, format=format, out=tmp_path / format, license="mit")
    lines = (folder / "example.py").read_text().splitlines()
    assert sum(bool(line) and not line.startswith(("import", "from", '"""')) for line in lines) <= 10
    made = subprocess.run([sys.executable, folder / "example.py"], capture_output=True, text=True, cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    assert -400 < float(made.stdout) < 0  # thirty steps of Pendulum
    assert (folder / "policy.onnx").exists() == (format == "onnx")
    assert "| licence | mit |" in (folder / "README.md").read_text()


@pytest.mark.parametrize("format", ["onnx", "torch"])
@pytest.mark.parametrize("regime", ["memory", "wrapped", "game"])
def test_examples_of_other_policies_work(tmp_path: Path, format: str, regime: str) -> None:
    chosen = {
        "memory": ("algo=dt", "env=cartpole", "dataset=random", "dataset.size=200", *SMALL_TRANSFORMER),
        "wrapped": ("algo=bc", "env=cartpole", "dataset=random", "dataset.size=200",
                    "env.wrappers.time=TimeAwareObservation"),
        "game": ("algo=bc", "env=minatar/breakout", "dataset=random", "dataset.size=200", "env.kwargs.sticky=0.2"),
    }[regime]  # fmt: skip
    rlx.train(*chosen, "~algo_env", *SMALL, "trainer.max_updates=1", run_dir=tmp_path / "run", quiet=True)
    folder = rlx.export(tmp_path / "run", format=format)
    assert folder == tmp_path / "run" / "exports" / format
    made = subprocess.run([sys.executable, folder / "example.py"], capture_output=True, text=True, cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    if regime == "memory":
        assert float(made.stdout) >= 1
    elif regime == "game":
        assert float(made.stdout) >= 0
    else:
        assert int(made.stdout.strip("[]\n")) in (0, 1)


def test_an_earlier_export_is_replaced_and_nothing_else(run: Path, copy: Path, tmp_path: Path) -> None:
    rlx.export(run, format="torch", out=copy)
    assert not (copy / "policy.onnx").exists()
    (copy / "thesis.tex").write_text("mine")
    with pytest.raises(UserError, match="other files than those of an export"):
        rlx.export(run, format="torch", out=copy)
    (tmp_path / "link").symlink_to(copy)
    with pytest.raises(UserError, match="is a link"):
        rlx.export(run, format="torch", out=tmp_path / "link")
    assert (copy / "thesis.tex").read_text() == "mine"


# -- what comes from elsewhere is data ---------------------------------------------------------------------------------


def rewrite(folder: Path, change: Any) -> None:
    values = about(folder)
    change(values)
    (folder / "policy.json").write_text(json.dumps(values))


def resealed(folder: Path, data: bytes) -> None:
    (folder / "policy.safetensors").write_bytes(data)
    entry = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}
    rewrite(folder, lambda values: values["files"].update({"policy.safetensors": entry}))


FOREIGN = {
    "format": (lambda v: v.update(format=2), "export format 2"),
    "no spec": (lambda v: v.pop("spec"), "is damaged"),
    "odd spec": (lambda v: v["spec"].update(obs_shape=[10**12]), "is damaged"),
    "target": (lambda v: v["config"]["algo"].update(_target_="os.system"), "os.system"),
    "env module": (lambda v: v["config"]["env"].update(_target_="subprocess.run"), "subprocess.run"),
    "environment": (lambda v: v["config"]["algo"].update(hidden="${oc.env:HOME}"), "oc.env"),
    "counters": (lambda v: v.update(learner={"updates": "many"}), "is damaged"),
    "large network": (lambda v: v["config"]["algo"].update(hidden=[60000, 60000]), "larger networks"),
    "size": (lambda v: v["files"]["policy.safetensors"].update(size=10**12), "is damaged"),
    "no config": (lambda v: v.update(config=[1, 2]), "is incomplete"),
    "a list": (lambda v: v.update(files=[]), "is damaged"),
}


@pytest.mark.parametrize("case", FOREIGN)
def test_a_folder_from_elsewhere_is_data(copy: Path, case: str) -> None:
    change, words = FOREIGN[case]
    rewrite(copy, change)
    with pytest.raises(UserError, match=re.escape(words)):
        rlx.load(copy)


def test_files_are_read_as_they_were_written_and_from_nowhere_else(copy: Path, exported: Path) -> None:
    weights = copy / "policy.safetensors"
    good = weights.read_bytes()
    weights.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    with pytest.raises(UserError, match="not what was written"):
        rlx.load(copy)
    resealed(copy, b"\x80\x04cposix\nsystem\n.")  # a pickle
    with pytest.raises(UserError, match="holds what rlx does not write"):
        rlx.load(copy)
    for name in ("policy.safetensors", "policy.json"):
        (copy / name).unlink()
        (copy / name).symlink_to(exported / name)
        with pytest.raises(UserError, match="damaged"):
            rlx.load(copy)
        (copy / name).unlink()
        shutil.copy(exported / name, copy / name)
    (copy / "policy.json").write_bytes(b"[" * 200_000)
    with pytest.raises(UserError, match="damaged"):
        rlx.load(copy)
    os.truncate(copy / "policy.json", 2**24)
    with pytest.raises(UserError, match="damaged"):
        rlx.load(copy)


def test_text_of_a_run_cannot_break_out_of_the_card() -> None:
    assert plain("a|b`<script>*x*\n# y") == r"a\|b\`\<script\>\*x\* \# y"
    assert block(["one\n```\n# two"]) == "    one ``` # two"


def test_names_of_a_foreign_run_stay_text(run: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(run, tmp_path / "run", symlinks=True))
    (folder / "overrides.yaml").write_text(yaml.safe_dump(["algo=x\n# Heading\n<script>alert(1)</script>"]))
    card = (rlx.export(folder, format="torch") / "README.md").read_text()
    typed = [line for line in card.splitlines() if "<script>" in line]
    assert len(typed) == 1
    assert typed[0].startswith("    python -m rlx")
    assert "\n# Heading" not in card


# -- the command line --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--format", "onxn"], "Did you mean onnx?"),
        (["--format"], "--format needs a value"),
        (["license=a b"], "not the identifier of a licence"),
        (["folder=x"], "export does not know folder=x"),
    ],
)
def test_bad_input_is_a_sentence(
    run: Path, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(run), *arguments]) == 2
    assert words in capsys.readouterr().err


def test_a_checkpoint_of_no_run_needs_a_place(run: Path, tmp_path: Path) -> None:
    alone = Path(shutil.copytree((run / "checkpoints" / "best").resolve(), tmp_path / "a" / "b" / "alone"))
    with pytest.raises(UserError, match="--out DIR"):
        rlx.export(alone, format="torch")
    folder = rlx.export(alone, format="torch", out=tmp_path / "out")
    assert rlx.load(folder).act([1.0, 0.0, 0.0]) == rlx.load(run).act([1.0, 0.0, 0.0])
