"""What the user types or trusts works in every verb; what a file says by itself does not."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers import tiny

import rlx
from rlx.config import compose_config, loggers
from rlx.data.sources import roll_out_random
from rlx.envs import EnvConfig, make_env, make_vector_env
from rlx.errors import UserError
from rlx.system import Allocation

MODULE = """
import gymnasium
import torch
from rlx.algos.td3 import TD3
from rlx.callbacks.bus import Callback
from rlx.callbacks.evaluate import Evaluate
from rlx.config import instantiate
from rlx.data.sources import roll_out_random
from omegaconf import OmegaConf

if "Mine-v0" not in gymnasium.registry:
    gymnasium.register("Mine-v0", "gymnasium.envs.classic_control:PendulumEnv", max_episode_steps=30)

class MyTD3(TD3):
    pass

class MyEvaluate(Evaluate):
    pass

class Mine(Callback):
    def __init__(self, word):
        self.word = word

class Rows(torch.nn.Module):
    def __init__(self, spec):
        super().__init__()
        self.dim = spec.obs_shape[0]

    def forward(self, obs):
        return obs

class Wide(Rows):
    def __init__(self, spec, channels=1, dim=1):
        super().__init__(spec)
        self.given = channels, dim

def load(spec, seed, size):
    return roll_out_random("Pendulum-v1", size, seed).fitted_to(spec)

def read(cfg, spec, seed):
    return load(spec, seed, cfg.size)

def further(spec, seed, part, trust):
    return instantiate(OmegaConf.create(part), spec, seed, trust=trust)
"""
TD3 = ("algo=td3", "~algo_env", "trainer.max_env_steps=60", "trainer.eval_interval=0", "trainer.checkpoint_interval=0")


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module of the user's own; each test has one of another name, as imports are kept."""
    name = f"mine_{abs(hash(tmp_path.name)) % 10**9}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


def use(run: Path, module: str, needs_trust: bool = True) -> None:
    """Every verb refuses without trust and works with it."""
    verbs = {
        "evaluate": lambda **trust: rlx.evaluate(run, episodes=1, **trust),
        "collect": lambda **trust: rlx.collect(run, "test/mine-v0", episodes=1, **trust),
        "load": lambda **trust: rlx.load(run, **trust).act([1.0, 0.0, 0.0]),
        "resume": lambda **trust: rlx.resume(run, "trainer.max_env_steps=70", **trust),
    }
    for name, verb in verbs.items():
        if needs_trust or name in ("evaluate", "collect", "resume"):
            with pytest.raises(UserError, match=r"trust=\["):
                verb()
        verb(trust=(module,))


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_an_env_of_a_module_that_the_user_types(kind: str, mine: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    env = (f"env.id={mine}:Mine-v0", f"env.vectorization={kind}")
    run = rlx.train(*tiny("off_policy", *TD3, *env), run_dir=tmp_path / "run").run_dir
    if kind == "sync":
        use(run, mine, needs_trust=False)


def test_a_dataset_of_random_actions_in_the_env_that_the_user_types(mine: str, tmp_path: Path) -> None:
    env = (f"env.id={mine}:Mine-v0", "trainer.max_updates=3")
    for dataset in (("dataset=random",), ("dataset=mix", "~dataset.sources.prior", "~dataset.ratios.prior")):
        sizes = ("dataset.size=60",) if dataset == ("dataset=random",) else ("dataset.sources.random.size=60",)
        overrides = [o for o in tiny("offline", *env) if not o.startswith("dataset")]
        run = rlx.train(*overrides, *dataset, *sizes, run_dir=tmp_path / dataset[0]).run_dir
        with pytest.raises(UserError, match=r"trust=\["):
            rlx.resume(run, "trainer.max_updates=5")
        assert rlx.resume(run, "trainer.max_updates=5", trust=(mine,)).summary["updates"] == 5


def test_data_are_made_in_the_env_that_the_user_types(mine: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    data = ("callbacks=[default,make_data]", "callbacks.make_data.prefix=test/made", "callbacks.make_data.episodes=1")
    always = ("callbacks.make_data.medium_return=-1e9", f"env.id={mine}:Mine-v0")
    rlx.train(*tiny("off_policy", *TD3, *data, *always), run_dir=tmp_path / "run")
    assert (tmp_path / "minari" / "test" / "made" / "expert-v0").is_dir()


def test_classes_that_the_user_trusts(mine: str, tmp_path: Path, monkeypatch) -> None:
    """An algorithm in the place of ours, and a callback without a schema."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    own = (f"algo._target_={mine}.MyTD3", f"+callbacks.own={{_target_: {mine}.Mine, word: x}}", f"trust=[{mine}]")
    run = rlx.train(*tiny("off_policy", *TD3, *own), run_dir=tmp_path / "run").run_dir
    use(run, mine)


def test_a_callback_that_extends_one_without_keys_gets_its_config(mine: str, tmp_path: Path) -> None:
    own = (f"callbacks.evaluate._target_={mine}.MyEvaluate", f"trust=[{mine}]")
    result = rlx.train(*tiny("off_policy", *TD3, *own), run_dir=tmp_path / "run")
    assert result.summary["eval_return_mean"] is not None


def test_an_encoder_in_the_place_of_one_without_keys_is_made_from_the_spec(
    mine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    own = (f"encoder._target_={mine}.Rows", f"trust=[{mine}]")
    run = rlx.train(*tiny("off_policy", *TD3, *own), run_dir=tmp_path / "run").run_dir
    use(run, mine)


def test_an_encoder_in_the_place_of_one_with_keys_takes_them(mine: str, tmp_path: Path) -> None:
    own = ("encoder=small", "encoder.channels=3", f"trust=[{mine}]")
    run = rlx.train(*tiny("off_policy", *TD3, *own, f"encoder._target_={mine}.Wide"), run_dir=tmp_path / "run").run_dir
    rlx.resume(run, "trainer.max_env_steps=70", trust=(mine,))
    learner = rlx.load(run, trust=(mine,)).learner
    assert learner._encoder(learner.spec).given == (3, 128)
    with pytest.raises(UserError, match=r"argument 'channels'; its config has the keys channels, dim\.$"):
        rlx.train(*tiny("off_policy", *TD3, *own, f"encoder._target_={mine}.Rows"), run_dir=tmp_path / "other")


def test_sources_that_the_user_trusts_within_a_mix(mine: str, tmp_path: Path) -> None:
    source = f"+dataset.sources.own={{_target_: {mine}.load, size: 60}}"
    mix = ("dataset=mix", "~dataset.sources.prior", "~dataset.ratios.prior", "dataset.sources.random.size=60")
    overrides = [o for o in tiny("offline", "trainer.max_updates=3") if not o.startswith("dataset")]
    given = (*overrides, *mix, source, "+dataset.ratios.own=0.5")
    with pytest.raises(UserError, match=r"trust=\["):
        rlx.train(*given, run_dir=tmp_path / "refused")
    run = rlx.train(*given, f"trust=[{mine}]", run_dir=tmp_path / "run").run_dir
    with pytest.raises(UserError, match=rf"asks for {mine}.load as dataset.sources.own.* trust="):
        rlx.resume(run, "trainer.max_updates=5")
    assert rlx.resume(run, "trainer.max_updates=5", trust=(mine,)).summary["updates"] == 5


WAYS = {  # a source of the user's own as part of a mix
    "a choice of their own": ["+dataset@dataset.sources.own=own"],
    "their function in the place of ours": [
        "+dataset@dataset.sources.own=random", "dataset.sources.own._target_=MINE.read", "dataset.sources.own.size=60",
    ],
    "within a mix of its own": [
        "+dataset@dataset.sources.own=mix", "~dataset.sources.own.sources.prior", "~dataset.sources.own.ratios.prior",
        "dataset.sources.own.sources.random.size=60", "+dataset@dataset.sources.own.sources.deep=own",
        "+dataset.sources.own.ratios.deep=0.5",
    ],
    "that makes parts itself": [
        "+dataset.sources.own={_target_: MINE.further, part: {_target_: MINE.load, size: 60}}",
    ],
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_trust_reaches_every_part_of_a_mix(way: str, mine: str, tmp_path: Path) -> None:
    (tmp_path / "conf" / "dataset").mkdir(parents=True)
    (tmp_path / "conf" / "dataset" / "own.yaml").write_text(f"_target_: {mine}.load\nsize: 60\n")
    mix = ("dataset=mix", "~dataset.sources.prior", "~dataset.ratios.prior", "dataset.sources.random.size=60")
    overrides = [o for o in tiny("offline", "trainer.max_updates=3") if not o.startswith("dataset")]
    own = [o.replace("MINE", mine) for o in WAYS[way]]
    given = (*overrides, *mix, *own, "+dataset.ratios.own=0.5")
    with pytest.raises(UserError, match=rf"trust=\[{mine}\]"):
        rlx.train(*given, config_dir=tmp_path / "conf", run_dir=tmp_path / "refused")
    run = rlx.train(*given, config_dir=tmp_path / "conf", trust=[mine], run_dir=tmp_path / "run").run_dir
    with pytest.raises(UserError, match=r"trust=\["):
        rlx.resume(run, "trainer.max_updates=5")
    assert rlx.resume(run, "trainer.max_updates=5", trust=(mine,)).summary["updates"] == 5


def test_an_env_is_not_imported_unless_the_caller_says_so(mine: str) -> None:
    cfg = EnvConfig(id=f"{mine}:Mine-v0")
    for make in (make_env, make_vector_env, lambda cfg: roll_out_random(cfg, 3, 0)):
        with pytest.raises(UserError, match=rf"trust=\[{mine}\]"):
            make(cfg)
    make_env(cfg, (mine,)).close()
    make_vector_env(cfg, 2, (mine,)).close()
    assert len(roll_out_random(cfg, 3, 0, (mine,))) == 3


# -- what the user reads from the environment ------------------------------------------------------------------------


def test_what_loggers_write_is_what_was_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "hunter2")
    monkeypatch.setenv("SECONDS", "3.5")
    tags = "logger.wandb.tags=['${oc.env:SECRET}', b, '${algo.name}']"
    names = ("algo.name='${oc.env:SECRET}'", "logger.wandb.project='p-${algo.name}'")
    cfg = compose_config(["logger=wandb", tags, *names, "logger.wandb.timeout='${oc.decode:${oc.env:SECONDS}}'"])
    node = loggers(cfg)["wandb"]
    assert list(node.tags) == ["${oc.env:SECRET}", "b", "${oc.env:SECRET}"]
    assert (node.project, node.timeout) == ("p-${oc.env:SECRET}", 3.5)


def test_a_run_does_not_write_what_it_reads_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
) -> None:
    """And a policy can be used without the environment that it was trained in."""
    monkeypatch.setenv("SECRET", "hunter2-canary")
    monkeypatch.chdir(tmp_path)
    data = roll_out_random("Pendulum-v1", 60, 0).save(tmp_path / "data.npz")
    monkeypatch.setenv("DATA", str(data.parent))
    overrides = [o for o in tiny("offline", "trainer.max_updates=3") if not o.startswith(("dataset", "logger"))]
    given = ("algo.name='${oc.env:SECRET}'", "logger=wandb", "logger.wandb.tags=['${oc.env:SECRET}']")
    path = ("dataset=npz", "dataset.path='${oc.env:DATA}/data.npz'")
    run = rlx.train(*overrides, *given, *path).run_dir
    assert run.parent == Path("multirun_outputs/runs")
    with pytest.raises(UserError, match=r"trust=\[oc\.env\]"):
        rlx.load(run)
    assert rlx.evaluate(run, episodes=1, trust=("oc.env",))["algo"] == "${oc.env:SECRET}"
    with pytest.raises(UserError, match=r"dataset\.path=VALUE"):
        rlx.resume(run, "algo.name=mine", "logger.wandb.tags=[]")
    more = ("trainer.max_updates=4", f"dataset.path={data}")
    result = rlx.resume(run, "algo.name=mine", "logger.wandb.tags=[]", *more)
    assert result.summary["algo"] == "mine"
    assert "${oc.env:SECRET}" in (run / "overrides.yaml").read_text()
    assert "hunter2" not in str(capfd.readouterr())
    files = [p for p in tmp_path.rglob("*") if p.is_file()]
    assert [p for p in files if p.suffix == ".wandb"]
    assert not [p for p in files if b"hunter2" in p.read_bytes()]
    assert not [p for p in tmp_path.rglob("*") if "hunter2" in p.name]


def test_an_env_id_has_to_be_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENV", "Pendulum-v1")
    with pytest.raises(UserError, match=r"env\.id"):
        rlx.train("env.id='${oc.env:ENV}'", run_dir=tmp_path / "run")


# -- sizes -----------------------------------------------------------------------------------------------------------


def test_networks_are_refused_before_they_are_made(tmp_path: Path) -> None:
    for hidden in ("[1000000,1000000]", "[1000000000000]"):
        with pytest.raises(UserError, match="memory"):
            rlx.train(f"algo.hidden={hidden}", "trainer.max_env_steps=3", run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_an_allocation_counts_what_is_made() -> None:
    import torch

    with Allocation(4000, "too much") as counted:
        a = torch.zeros(10, 10)
        torch.empty((5,))
        torch.zeros_like(a)
    assert counted.used == 400 + 20 + 400
    with pytest.raises(UserError, match="too much"), Allocation(400, "too much"):
        torch.empty(10**12)


def test_a_class_of_ones_own_that_lacks_an_argument(mine: str, tmp_path: Path) -> None:
    own = (f"+callbacks.own={{_target_: {mine}.Mine}}", f"trust=[{mine}]")
    with pytest.raises(UserError, match=rf"_target_={mine}.Mine does not take what it is given: missing .* 'word'"):
        rlx.train(*tiny("off_policy", *TD3, *own), run_dir=tmp_path / "run")
