"""What every algorithm has to do, whoever wrote it.

Algorithms are found by themselves. Each is trained once, briefly, in its usual regime; the batches of that run, genuine
ones from whatever source the algorithm uses, feed the other tests.
"""

from __future__ import annotations

import ast
import copy
import functools
import importlib
import json
import pickle
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import REGIMES, SMALL, SMALL_TRANSFORMER, resumed, same_run, same_tensors, snapshots
from omegaconf import DictConfig
from torch import Tensor

import rlx
import rlx.algos
from rlx.checkpoint import CheckpointData, read_folder, write_folder
from rlx.config import compose_config, instantiate, learners, schemas
from rlx.learner import AlgoConfig, Learner
from rlx.paths import conf_dir
from rlx.trainers.trainer import Trainer
from rlx.types import Batch, Metrics, Rollout, Spec, Windows

NAMES = sorted(name.removeprefix("algo/") for name in schemas() if name.startswith("algo/"))
ENVS = {"box": "pendulum", "discrete": "cartpole"}
KEEP = 12  # updates whose batches are kept

every_algorithm = pytest.mark.parametrize("name", NAMES)


@dataclass
class Trained:
    """One short run and what went into its updates."""

    run_dir: Path
    killed: Path  # its folder as it was in the middle
    cfg: DictConfig
    spec: Spec
    batches: list[Any]
    metrics: list[Metrics]
    touched: bool  # did an update change its batch


def clone(batch: Any) -> Any:
    if isinstance(batch, Tensor):
        return batch.clone()
    if isinstance(batch, tuple):
        parts = [clone(x) for x in batch]
        return type(batch)(*parts) if hasattr(batch, "_fields") else tuple(parts)
    return batch


def same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return torch.equal(a.nan_to_num(), b.nan_to_num())
    return all(map(same, a, b)) if isinstance(a, tuple) else a == b


@functools.cache
def overrides_of(name: str) -> tuple[str, ...]:
    """A tiny run of an algorithm in the regime that its YAML picks, on an env that it can act in."""
    cls = learners()[name]
    presets = tuple(f"env={ENVS[kind]}" for kind in cls.actions if kind in ENVS)
    chosen = (f"algo={name}", presets[0], "~algo_env", "encoder=auto", "augment=none")  # these envs have vectors
    nets = [f.name for f in fields(schemas()[f"algo/{name}"]) if f.name.endswith("_hidden")]  # besides `hidden`
    small = (*SMALL, *(f"algo.{net}=[16,16]" for net in nets), *(SMALL_TRANSFORMER if cls.reads is Windows else ()))
    return (*chosen, *small, *REGIMES[compose_config(chosen).trainer.regime])


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """`trained(name)`: the run of an algorithm, made once."""

    @functools.cache
    def make(name: str) -> Trained:
        folder = tmp_path_factory.mktemp(name)
        batches: list[Any] = []
        metrics: list[Metrics] = []
        touched = False
        cls, original = learners()[name], Trainer._batches
        update = cls.update

        def watched_batches(self: Trainer, *args: Any) -> Iterator[Any]:
            nonlocal touched
            for batch in original(self, *args):
                copy = clone(batch)
                yield batch
                touched |= not same(batch, copy)
                if len(batches) < KEEP:
                    batches.append(copy)

        def watched_update(self: Learner, batch: Any) -> Metrics:
            found = update(self, batch)
            metrics.append(found)
            return found

        with pytest.MonkeyPatch.context() as patch, snapshots(("checkpoint", 2), into=folder) as at:
            patch.setattr(Trainer, "_batches", watched_batches)
            patch.setattr(cls, "update", watched_update)
            result = rlx.train(*overrides_of(name), run_dir=folder / "run")
        cfg = compose_config(overrides_of(name))
        return Trained(folder / "run", at["checkpoint", 2], cfg, result.learner.spec, batches, metrics, touched)

    return make


def fresh(run: Trained, seed: int = 0) -> Learner:
    torch.manual_seed(seed)
    learner: Learner = instantiate(run.cfg.algo, run.spec)
    return learner


def after(run: Trained, updates: int, seed: int = 0) -> Learner:
    """A learner that has made some updates on the batches of the run."""
    learner = fresh(run, seed)
    for batch in run.batches[:updates]:
        learner.update(clone(batch))
    return learner


def observations(spec: Spec, n: int = 5) -> Tensor:
    return torch.randn(n, *spec.obs_shape, generator=torch.Generator().manual_seed(7))


def check_actions(action: Tensor, spec: Spec, n: int) -> None:
    assert tuple(action.shape) == (n, *spec.action_shape)
    assert not action.requires_grad
    if spec.action_kind == "box":
        assert action.dtype == torch.float32
        assert action.isfinite().all()
    else:
        assert action.dtype == torch.int64
        assert (action >= 0).all()
        assert (action < torch.tensor(spec.action_sizes)).all()


def test_there_are_algorithms_for_every_regime_and_action_kind() -> None:
    assert {"ppo", "rlpd", "sac", "td3_bc"} <= set(NAMES)
    assert {regime for cls in learners().values() for regime in cls.regimes} == set(REGIMES)


# -- config and text -------------------------------------------------------------------------------------------------


@every_algorithm
def test_it_is_described(name: str) -> None:
    module = importlib.import_module(schemas()[f"algo/{name}"].__module__)
    first = (module.__doc__ or "").strip().splitlines()
    assert first, "the module says what the algorithm is"
    assert len(first[0]) > 10
    yaml = (conf_dir() / "algo" / f"{name}.yaml").read_text()
    comments = [line for line in yaml.splitlines() if line.startswith("#") and "@package" not in line]
    assert comments, "the YAML begins with a comment for `rlx list`"


@every_algorithm
def test_its_config_composes_to_its_schema(name: str) -> None:
    schema = schemas()[f"algo/{name}"]
    assert issubclass(schema, AlgoConfig)
    cfg = compose_config(overrides_of(name))
    assert cfg.algo._target_ == schema()._target_
    assert cfg.algo.name == name
    assert set(cfg.algo) == {f.name for f in fields(schema)}
    cls = learners()[name]
    assert cfg.trainer.regime == cls.regimes[0], "the YAML picks the usual regime, which stands first in `regimes`"
    assert set(cls.regimes) <= set(REGIMES)
    assert set(cls.actions) <= {"box", "discrete", "multi_discrete"}


FORBIDDEN = {"item", "cpu", "numpy", "tolist"}  # each of them makes an update wait for the device


@pytest.mark.parametrize("path", sorted(Path(rlx.algos.__file__).parent.glob("*.py")), ids=lambda p: p.stem)
def test_no_update_waits_for_a_number(path: Path) -> None:
    tree = ast.parse(path.read_text())
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute)]
    found = [f"line {n.lineno}: .{n.func.attr}()" for n in calls if n.func.attr in FORBIDDEN and not n.args]  # type: ignore[attr-defined]
    assert not found
    names = {n.id if isinstance(n, ast.Name) else n.arg for n in ast.walk(tree) if isinstance(n, ast.Name | ast.arg)}
    assert not names & {"print", "done", "dones"}


# -- acting ----------------------------------------------------------------------------------------------------------

KINDS = [(name, kind) for name in NAMES for kind in learners()[name].actions]
SPECS = {
    "box": Spec("x", (6,), "float32", "box", (2,), (-2.0, -1.0), (2.0, 3.0), episode_limit=50),
    "discrete": Spec("x", (6,), "float32", "discrete", (), action_sizes=(3,), episode_limit=50),
    "multi_discrete": Spec("x", (6,), "float32", "multi_discrete", (2,), action_sizes=(3, 2), episode_limit=50),
}


@pytest.mark.parametrize(("name", "kind"), KINDS)
def test_it_acts_within_the_spec(name: str, kind: str, trained: Any) -> None:
    run, spec = trained(name), SPECS[kind]
    if run.spec.goal is not None:
        spec = spec._replace(goal=run.spec.goal._replace(dim=1, achieved=(4, 5), desired=(5, 6)))
    torch.manual_seed(0)
    learner: Learner = instantiate(run.cfg.algo, spec)
    for n in (1, 5):
        obs = observations(spec, n)
        for explore in (True, False):
            check_actions(learner.act(obs.clone(), explore), spec, n)
    loud = observations(spec) * 1000
    if kind == "box" and name not in UNBOUNDED:
        assert (learner.act(loud, explore=False).abs() <= 1.0).all()


UNBOUNDED = {"ppo", "ppo_lstm", "a2c", "trpo"}  # Gaussian means without a squash: the env layer clips them


@every_algorithm
def test_acting_is_deterministic_without_exploration(name: str, trained: Any) -> None:
    run = trained(name)
    learner = after(run, 3).eval()
    obs = observations(run.spec)
    kept = obs.clone()
    torch.manual_seed(1)
    first = learner.act(obs, explore=False)
    torch.manual_seed(2)
    assert torch.equal(first, learner.act(obs, explore=False))
    assert torch.equal(obs, kept), "acting changed the observations"
    single = torch.cat([learner.act(o[None], explore=False) for o in obs])
    torch.testing.assert_close(first, single, rtol=1e-4, atol=1e-5)


@every_algorithm
def test_exploration_is_random_and_repeatable(name: str, trained: Any) -> None:
    run = trained(name)
    learner = after(run, 1)
    obs = observations(run.spec, 64)
    draws = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        draws.append(learner.act(obs, explore=True))
    assert torch.equal(draws[0], draws[1])
    if "off_policy" in learner.regimes or "on_policy" in learner.regimes:
        assert not torch.equal(draws[0], draws[2])


# -- updating --------------------------------------------------------------------------------------------------------


@every_algorithm
def test_metrics_are_finite_scalars_under_stable_names(name: str, trained: Any) -> None:
    run = trained(name)
    assert run.metrics, "the run made no update"
    for metrics in run.metrics:
        assert metrics
        for key, value in metrics.items():
            assert re.fullmatch(r"[a-z0-9_]+(/[a-z0-9_]+)*", key), key
            assert isinstance(value, Tensor)
            assert value.dim() == 0, key
            assert not value.requires_grad, key
            assert value.isfinite(), (key, value)
    again = fresh(run)
    names = [list(again.update(clone(batch))) for batch in run.batches]
    assert names == [list(m) for m in run.metrics[: len(names)]], "names depend on counters alone"


@every_algorithm
def test_updates_do_not_touch_the_batch(name: str, trained: Any) -> None:
    assert not trained(name).touched


@every_algorithm
def test_a_copy_learns_as_the_original_does(name: str, trained: Any) -> None:
    """Also one that has been elsewhere, with all that it had made for itself in its first updates."""
    run = trained(name)
    learner = after(run, 3)
    copies = [copy.deepcopy(learner), pickle.loads(pickle.dumps(learner))]
    found = []
    for one in (learner, *copies):
        torch.manual_seed(5)
        found.append([one.update(clone(batch)) for batch in run.batches[3:6]])
    for twin, told in zip(copies, found[1:], strict=True):
        assert all(torch.equal(row[key], again[key]) for row, again in zip(found[0], told, strict=True) for key in row)
        same_tensors(learner.tensors(), twin.tensors())


@every_algorithm
def test_updates_change_what_they_should(name: str, trained: Any) -> None:
    run = trained(name)
    learner = fresh(run)
    before = {k: v.clone() for k, v in learner.tensors().items()}
    for i, batch in enumerate(run.batches):
        learner.update(clone(batch))
        assert learner.updates == i + 1
    after_ = learner.tensors()
    assert all(v.isfinite().all() for v in after_.values() if v.is_floating_point())
    assert any(not torch.equal(before[k], v) for k, v in after_.items() if k.startswith("model."))
    for optimizer in learner.optimizers:
        mine = [k for k in after_ if k.startswith(f"optimizer.{optimizer}.")]
        assert mine
        assert any(not torch.equal(before[k], after_[k]) for k in mine), f"the optimizer {optimizer!r} never stepped"


@every_algorithm
def test_every_parameter_that_learns_belongs_to_an_optimizer(name: str, trained: Any) -> None:
    """A parameter that asks for gradients and that twelve updates leave as it was is dead, or was forgotten."""
    run = trained(name)
    learner = fresh(run)
    before = {k: v.clone() for k, v in learner.named_parameters() if v.requires_grad}
    for batch in run.batches:
        learner.update(clone(batch))
    now = dict(learner.named_parameters())
    assert not [k for k, v in before.items() if v.numel() > 1 and torch.equal(v, now[k])]


@every_algorithm
def test_updates_are_reproducible(name: str, trained: Any) -> None:
    run = trained(name)
    same_tensors(after(run, KEEP).tensors(), after(run, KEEP).tensors())


@every_algorithm
def test_statistics_of_observations_are_for_acting_and_learning(name: str, trained: Any) -> None:
    """With statistics, raw observations give what standardised ones give without."""
    run = trained(name)
    run.cfg.algo.normalize_obs, own = False, run.cfg.algo.normalize_obs
    plain = fresh(run)
    run.cfg.algo.normalize_obs = True
    learner = fresh(run)
    run.cfg.algo.normalize_obs = own
    learner.load_state_dict(plain.state_dict(), strict=False)
    learner.obs_mean.fill_(0.5)
    learner.obs_std.fill_(2.0)

    def standard(obs: Tensor) -> Tensor:
        return (obs - 0.5) / 2.0

    obs = observations(run.spec, 64)
    for explore in (False, True):
        torch.manual_seed(3)
        expected = plain.act(standard(obs), explore)
        torch.manual_seed(3)
        assert torch.equal(learner.act(obs, explore), expected)
    batch = clone(run.batches[0])
    parts = {part: standard(getattr(batch, part)) for part in ("obs", "next_obs") if part in batch._fields}
    torch.manual_seed(4)
    plain.update(batch._replace(**parts))
    torch.manual_seed(4)
    learner.update(batch)
    found = dict(learner.named_parameters())
    assert not [key for key, p in plain.named_parameters() if not torch.equal(p, found[key])]


@every_algorithm
def test_a_terminated_state_has_no_successor(name: str, trained: Any) -> None:
    """With terminated = 1 the targets are the rewards, whatever next_obs is; with terminated = 0 they are not."""
    run = trained(name)
    learner = after(run, 4)
    base = clone(run.batches[4 % len(run.batches)])
    if not isinstance(base, Batch | Rollout):
        pytest.skip(f"{type(base).__name__} is no batch of transitions")

    def targets(terminated: float, next_obs: Tensor) -> dict[str, Tensor]:
        twin = fresh(run, 1)
        twin.load_tensors(learner.tensors())
        twin.load_counters(learner.counters())
        torch.manual_seed(3)
        batch = clone(base)._replace(next_obs=next_obs, terminated=torch.full_like(base.terminated, terminated))
        if isinstance(batch, Rollout):
            batch = batch._replace(truncated=torch.zeros_like(batch.truncated))
        metrics = twin.update(batch)
        named = {k: v for k, v in metrics.items() if "target" in k}
        return named or metrics

    other = torch.randn(base.next_obs.shape, generator=torch.Generator().manual_seed(5)) * 3
    assert targets(1.0, base.next_obs) == targets(1.0, other)
    bootstraps = targets(0.0, base.next_obs) != targets(0.0, other)
    assert bootstraps or learner.cfg.name in WITHOUT_BOOTSTRAP


WITHOUT_BOOTSTRAP = {"bc"}  # imitation has no targets


# -- saving ----------------------------------------------------------------------------------------------------------


def through_disk(learner: Learner, run: Trained, folder: Path) -> Learner:
    """Save, and load into a learner that was initialised differently."""
    state, tensors = {"learner": learner.counters()}, {"learner": learner.tensors()}
    write_folder(CheckpointData.of(run.cfg, run.spec, state, tensors), folder)
    saved = read_folder(folder)
    twin = fresh(run, seed=99)
    twin.load_tensors(saved.tensors["learner"])
    twin.load_counters(saved.state["learner"])
    return twin


@every_algorithm
def test_a_checkpoint_holds_everything(name: str, trained: Any, tmp_path: Path) -> None:
    """After each number of updates, so that delayed ones are met in every phase: same actions, same next updates."""
    run = trained(name)
    obs = observations(run.spec)
    for made in (0, 1, 4, 7):
        learner = after(run, made)
        twin = through_disk(learner, run, tmp_path / str(made))
        for explore in (False, True):
            torch.manual_seed(5)
            expected = learner.act(obs, explore)
            torch.manual_seed(5)
            assert torch.equal(expected, twin.act(obs, explore))
        results = []
        for one in (learner, twin):
            torch.manual_seed(11)
            results.append([one.update(clone(batch)) for batch in run.batches[-4:]])
        assert results[0] == results[1]
        same_tensors(learner.tensors(), twin.tensors())
        assert learner.counters() == twin.counters()


@every_algorithm
def test_the_policy_works_from_the_checkpoint_alone(name: str, trained: Any, tmp_path: Path) -> None:
    run = trained(name)
    alone = tmp_path / "moved"
    shutil.copytree((run.run_dir / "checkpoints" / "best").resolve(), alone)
    policy = rlx.load(alone)
    obs = observations(run.spec).numpy()
    actions = policy.act(obs)
    assert actions.shape == (5, *run.spec.action_shape)
    policy.reset()  # the same episode once more, for those who remember
    one = policy.act(obs[0])
    assert np.shape(one) == run.spec.action_shape
    np.testing.assert_allclose(one, actions[0], rtol=1e-4, atol=1e-5)
    if run.spec.action_kind == "box":
        assert (actions >= np.array(run.spec.action_low)).all()
        assert (actions <= np.array(run.spec.action_high)).all()
    assert json.loads(json.dumps(rlx.predict(alone, obs[0].tolist()))) == np.asarray(one).tolist()
    found = rlx.evaluate(alone, episodes=2, seed=3)
    assert found == {**rlx.evaluate(alone, episodes=2, seed=3), "checkpoint": found["checkpoint"]}
    assert found["algo"] == name
    assert len(found["returns"]) == 2
    assert np.isfinite(found["returns"]).all()


@every_algorithm
def test_a_killed_run_resumes_to_the_same_bits(name: str, trained: Any, tmp_path: Path) -> None:
    run = trained(name)
    folder = tmp_path / "killed"
    shutil.copytree(run.killed, folder, symlinks=True)
    assert resumed(folder).summary["resumed"]
    same_run(folder, run.run_dir)


@pytest.mark.parametrize(
    "name", [n for n, cls in learners().items() if "box" in cls.actions and "off_policy" in cls.regimes]
)
def test_it_learns_from_goals_in_hindsight(name: str, tmp_path: Path) -> None:
    """Every off-policy learner of box actions takes relabelled batches."""
    own = [override for override in overrides_of(name) if not override.startswith("dataset")]
    more = ("trainer=off_policy", "env=point_goal", "replay=hindsight", *REGIMES["off_policy"])
    result = rlx.train(*own, *more, run_dir=tmp_path / "run")
    assert result.summary["env_steps"] == 130
    assert result.summary["updates"] > 0
