"""The config tree: schemas, what composes, what is explained, what is trusted."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf

from rlx.callbacks.progress import Progress
from rlx.choices import choices, suite_of
from rlx.config import (
    GROUPS,
    check,
    check_regime,
    check_spec,
    compose_config,
    instantiate,
    learners,
    load_config,
    resolved_values,
    schemas,
    trusted,
    validate,
)
from rlx.config.schemas import node_of
from rlx.data.replay import check_replay
from rlx.errors import UserError, nearest
from rlx.paths import conf_dir
from rlx.rewards import RewardConfig, RewardTransform
from rlx.types import Spec

FILES = sorted(p for p in conf_dir().rglob("*.yaml") if p.parent.name in GROUPS)


def saved(*overrides: str) -> str:
    return OmegaConf.to_yaml(compose_config(overrides), resolve=False)


# -- the tree --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("group", GROUPS)
def test_every_schema_can_be_made_and_names_a_real_target(group: str) -> None:
    mine = {name: cls for name, cls in schemas().items() if name.startswith(f"{group}/")}
    assert mine
    for cls in mine.values():
        module, _, name = cls()._target_.rpartition(".")
        assert module.startswith("rlx.")
        assert hasattr(__import__(module, fromlist=[name]), name)
        assert "_target_" in {f.name for f in dataclasses.fields(cls)}
        assert node_of(cls)._target_ == cls()._target_


def test_what_hydra_takes_from_the_store_is_a_copy() -> None:
    """Schemas become nodes once, when they are first asked for; a run that changes its config changes no other."""
    first = compose_config(["env=pendulum"])
    first.trainer.phases.online.collect = 17
    first.env.kwargs["g"] = 3.0
    first.algo.hidden.append(5)
    second = compose_config(["env=pendulum"])
    assert second.trainer.phases.online.collect == 1
    assert second.env.kwargs == {}
    assert second.algo.hidden == [64, 64]


@pytest.mark.parametrize("path", FILES, ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_every_choice_names_a_schema_or_composes_others(path: Path) -> None:
    """And its first words, for `rlx list`, are a comment."""
    text = path.read_text()
    assert text.startswith("#")
    content = yaml.safe_load(text) or {}
    for entry in content.get("defaults", []):
        name = entry if isinstance(entry, str) else ""
        if name.startswith("/schema/"):
            assert name.removeprefix("/schema/").partition("@")[0] in schemas()


@pytest.mark.parametrize("name", [p.stem for p in sorted((conf_dir() / "experiment").glob("*.yaml"))])
def test_every_experiment_composes(name: str) -> None:
    cfg = compose_config([f"experiment={name}"])
    if cfg.dataset is None and cfg.trainer.regime.startswith("offline"):  # which one is the user's to say
        cfg = compose_config([f"experiment={name}", "dataset=minari"])
    validate(cfg)
    check_regime(cfg)


@pytest.mark.parametrize("name", [p.stem for p in sorted((conf_dir() / "algo_env").glob("*.yaml"))])
def test_every_tuned_pair_belongs_to_a_pair(name: str) -> None:
    own = choices("algo_env")
    pairs = {f"{a}_{suite_of(e)}": (a, e) for a in choices("algo") for e in choices("env") if f"{a}_{e}" not in own}
    pairs |= {f"{a}_{e}": (a, e) for a in choices("algo") for e in choices("env")}
    assert name in pairs
    algo, env = pairs[name]
    given = yaml.safe_load((conf_dir() / "algo_env" / f"{name}.yaml").read_text())
    cfg = compose_config([f"algo={algo}", f"env={env}"])
    for key, values in given.items():
        for inner, value in values.items() if isinstance(values, dict) else ():
            assert inner in cfg[key]
            if isinstance(value, bool | int | float | list):
                assert cfg[key][inner] == value


def test_the_pair_of_an_env_beats_that_of_its_suite() -> None:
    kernels = {env: compose_config(["algo=bear", f"env={env}"]).algo.kernel.name for env in ("hopper", "ant")}
    assert kernels == {"hopper": "laplacian", "ant": "gaussian"}
    assert compose_config(["algo=bear", "env=ant"]).algo.warmup_updates == 20000  # of the suite


@pytest.mark.parametrize("name", ["bear_hopper", "bear_ant", "iql_walker2d", "tqc_hopper", "ppo_pendulum"])
def test_a_pair_can_be_chosen_for_another_env(name: str) -> None:
    algo, _, env = name.rpartition("_")
    chosen = compose_config([f"algo={algo}", "env.id=Swimmer-v5", f"algo_env={name}"])
    expected = compose_config([f"algo={algo}", f"env={env}"])
    assert chosen.algo == expected.algo
    assert chosen.trainer == expected.trainer
    assert chosen.env.suite is None


def test_pqn_has_many_envs_where_nothing_else_is_said() -> None:
    chosen = {
        ("algo=pqn", "env=cartpole_hidden"): 16,
        ("algo=pqn", "env.id=CartPole-v1"): 16,
        ("algo=pqn", "env=cartpole", "~algo_env"): 16,
        ("algo=pqn", "env=pixel_goal"): 32,  # as tuned
        ("algo=pqn", "env=minatar"): 128,  # as tuned for the suite
        ("algo=pqn", "env=minatar", "env.num_envs=3"): 3,
        ("algo=dqn", "env=cartpole_hidden"): 1,
    }
    assert {given: compose_config(given).env.num_envs for given in chosen} == chosen


def test_a_schedule_that_is_chosen_goes_before_that_of_a_pair() -> None:
    of_pair = compose_config(["algo=ppo", "env=cartpole"])
    assert of_pair.schedule.kind.name == "linear"
    for name in ("constant", "cosine"):
        cfg = compose_config(["algo=ppo", "env=cartpole", f"schedule={name}"])
        assert (cfg.schedule.kind.name, cfg.choices.schedule) == (name, name)
        assert cfg.algo == of_pair.algo


def test_no_pair_is_left_where_none_is_wanted() -> None:
    for word in ("~algo_env", "algo_env=null"):
        plain = compose_config(["algo=bear", "env=ant", word]).algo
        assert (plain.batch_size, plain.sigma) == (schemas()["algo/bear"]().batch_size, schemas()["algo/bear"]().sigma)


def test_an_env_of_ones_own_needs_no_suite_and_may_join_one(tmp_path: Path) -> None:
    (tmp_path / "env").mkdir()
    schema, joins = "  - /schema/env/env@_here_\n", "  - override /env/suite@_global_.env: mujoco\n"
    for name, more in {"alone": "", "member": joins}.items():
        (tmp_path / "env" / f"{name}.yaml").write_text(f"defaults:\n{schema}{more}  - _self_\nid: Mine-v0\n")
    folder = f"hydra.searchpath=[file://{tmp_path}]"
    weights = {name: compose_config(["algo=cql", f"env={name}", folder]).algo.weight for name in ("alone", "member")}
    assert weights == {"alone": schemas()["algo/cql"]().weight, "member": 10.0}


def test_the_command_line_beats_a_tuned_pair() -> None:
    assert compose_config(["algo=rlpd", "env=pendulum", "dataset=minari"]).algo.hidden == [64, 64]
    assert compose_config(["algo=rlpd", "env=pendulum", "dataset=minari", "algo.hidden=[8]"]).algo.hidden == [8]


def test_null_takes_a_group_away() -> None:
    assert compose_config(["dataset=npz", "dataset.path=x"]).dataset is not None
    assert compose_config(["dataset=null"]).dataset is None
    assert compose_config(["algo=rlpd", "dataset=minari", "algo_env=null"]).algo.hidden == [256, 256]
    for group in ("algo", "env", "trainer", "reward", "schedule", "replay"):
        for word in (f"{group}=null", f"~{group}"):
            with pytest.raises(UserError, match=f"needs {group}="):
                compose_config([word])


# -- explanations ----------------------------------------------------------------------------------------------------

EXPLAINED = {
    "algo=sacc": ("Unknown algo 'sacc'.", "Did you mean algo=sac?"),
    "algo.lrr=1": ("algo.lrr", "SACConfig"),
    "algo.actor_lrs=1": ("did you mean algo.actor_lr?",),
    "trainer.max_env_step=1": ("did you mean trainer.max_env_steps?",),
    "trainer.max_env_steps=soon": ("trainer.max_env_steps=soon", "an integer", "TrainerConfig"),
    "algo.tau=small": ("algo.tau=small", "a number"),
    "algo.normalize_obs=maybe": ("true or false",),
    "sead=1": ("sead", "seed"),
    "schedule=linearr": ("schedule=linear",),
    "algos=sac": ("did you mean algo?",),
    "schedule.kind=zigzag": ("zigzag", "cosine"),
}


@pytest.mark.parametrize("override", EXPLAINED)
def test_a_wrong_override_is_explained(override: str) -> None:
    with pytest.raises(UserError) as error:
        compose_config([override])
    text = str(error.value)
    assert "\n" not in text
    for word in EXPLAINED[override]:
        assert word in text


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["algo=ppo", "dataset=minari"], ("on-policy", "algo=sac")),
        (["algo=td3_bc"], ("dataset=minari",)),
        (["algo=ppo", "trainer=offline", "dataset=minari"], ("trainer=on_policy", "algo=td3_bc")),
        (["algo=sac", "trainer=on_policy"], ("trainer=off_policy", "algo=ppo")),
        (["algo=rlpd"], ("dataset=",)),
        (["trainer.max_env_steps=null"], ("no budget", "trainer.max_seconds")),
        (["trainer.max_updates=-3"], ("max_updates=-3",)),
        (
            [
                "algo=rlpd",
                "dataset=random",
                "trainer=offline_to_online",
                "trainer.pretrain_updates=20",
                "trainer.max_updates=20",
            ],
            ("before it goes online", "trainer.max_updates=null"),
        ),
        (["algo=sac", "env=pendulum", "algo.normalize_obs=true"], ("algo.normalize_obs=false", "are vectors")),
        (["algo=ppo", "env=cartpole", "replay.n_step=3"], ("keeps no replay", "replay.n_step=3", "drop it.")),
        (["algo=ppo", "env=pixel_goal", "replay.memory=mmap"], ("keeps no replay", "replay.memory=mmap")),
        (["algo=ppo", "replay.alpha=0.5"], ("keeps no replay", "replay.alpha=0.5")),
        (["algo=bc", "dataset=random", "replay.memory=mmap"], ("keeps no replay", "trainer=offline")),
        (["algo=pqn", "replay=prioritized"], ("keeps no replay", "replay.prioritized=true", "replay=uniform")),
    ],
)
def test_what_does_not_fit_together_names_what_would(overrides: list[str], words: tuple[str, ...]) -> None:
    with pytest.raises(UserError) as error:
        check(compose_config(overrides))
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize("off", ["replay=uniform", "replay.prioritized=false"])
@pytest.mark.parametrize("suite", ["atari", "minatar"])
def test_a_pair_has_no_priorities_for_a_replay_without(suite: str, off: str) -> None:
    """What nobody asked for is not refused; what somebody did is."""
    chosen = ["algo=rainbow", f"env={suite}", off]
    replay, tuned = compose_config(chosen).replay, compose_config(chosen[:2]).replay
    check_replay(OmegaConf.to_object(replay))
    assert (replay.capacity, replay.n_step) == (tuned.capacity, tuned.n_step)
    assert tuned.alpha == 0.5
    with pytest.raises(UserError, match=r"replay.alpha=0.3 has no effect"):
        check_replay(OmegaConf.to_object(compose_config([*chosen, "replay.alpha=0.3"]).replay))


@pytest.mark.parametrize(("shape", "suggested"), [((8, 8, 3), False), ((4,), True)])
def test_what_is_suggested_for_other_actions_reads_the_observations(shape: tuple[int, ...], suggested: bool) -> None:
    spec = Spec("x", shape, "uint8" if len(shape) > 1 else "float32", "discrete", (), action_sizes=(2,))
    with pytest.raises(UserError, match="algo=td3_bc needs box actions and x has discrete ones") as error:
        check_spec(compose_config(["algo=td3_bc", "env=pendulum", "dataset=minari"]), spec)
    assert "algo=bc" in str(error.value)
    assert ("algo=dt" in str(error.value)) is suggested  # it reads vectors alone
    with pytest.raises(UserError, match="algo=sac needs box actions") as error:
        check_spec(compose_config(["algo=sac", "env=pendulum"]), spec)
    assert all(f"algo={name}" in str(error.value) for name in ("dqn", "ppo", "pqn"))
    assert "algo=bc" not in str(error.value)


def test_what_is_suggested_for_priorities_runs_without_a_dataset() -> None:
    with pytest.raises(UserError, match="choose one of algo=c51, algo=discrete_sac, algo=dqn, algo=qr_dqn") as error:
        check(compose_config(["algo=sac", "replay=prioritized"]))
    assert "discrete_cql" not in str(error.value)


def test_replay_keys_that_do_no_harm_without_a_replay() -> None:
    """A capacity is a limit, and a dataset is read over n steps as well."""
    check(compose_config(["algo=ppo", "replay.capacity=10"]))
    check(compose_config(["algo=td3_bc", "dataset=random", "replay.n_step=3"]))


def test_regimes_of_every_algorithm_are_the_ones_that_pass() -> None:
    for regime in choices("trainer"):
        data = ["dataset=random"] if regime.startswith("offline") else []
        cfg = compose_config([f"trainer={regime}", *data, "algo=sac" if regime != "on_policy" else "algo=ppo"])
        cfg.trainer.regime = regime
        OmegaConf.set_struct(cfg, False)
        for name, cls in learners().items():
            cfg.algo = OmegaConf.structured(schemas()[f"algo/{name}"])
            if regime in cls.regimes:
                check_regime(cfg)
            else:
                with pytest.raises(UserError, match=f"trainer={cls.regimes[0]}"):
                    check_regime(cfg)


# -- instantiation and trust -----------------------------------------------------------------------------------------


def test_a_node_becomes_its_class_with_its_dataclass() -> None:
    found = instantiate(compose_config(["reward=scale", "reward.scale=0.1"]).reward)
    assert isinstance(found, RewardTransform)
    assert isinstance(found.cfg, RewardConfig)
    assert found.cfg.scale == 0.1


def test_only_rlx_and_what_the_user_trusts_is_made() -> None:
    node = OmegaConf.create({"_target_": "collections.Counter", "a": 3})
    with pytest.raises(UserError, match=r"trust=\[collections\]"):
        instantiate(node)
    assert instantiate(node, trust=["collections"]) == {"a": 3}
    for target in ("", "rlx.nonsense.Thing", "rlx.config.Nonsense", "nodots"):
        with pytest.raises(UserError):
            instantiate(OmegaConf.create({"_target_": target}), trust=["nodots"])


@pytest.mark.parametrize(
    ("target", "trust", "allowed"),
    [
        ("rlx.algos.sac.SAC", (), True),
        ("rlxx.evil", (), False),
        ("rlx_evil.Thing", (), False),
        ("os.system", (), False),
        ("mine.Thing", ("mine",), True),
        ("mine_too.Thing", ("mine",), False),
    ],
)
def test_trust_goes_by_whole_names(target: str, trust: tuple[str, ...], allowed: bool) -> None:
    assert trusted(target, trust) is allowed


# -- configs from files ----------------------------------------------------------------------------------------------


def test_a_saved_config_comes_back_with_its_types() -> None:
    overrides = ("algo=rlpd", "dataset=minari", "schedule=cosine", "reward=clip_1")
    before, after = compose_config(overrides), load_config(saved(*overrides))
    assert OmegaConf.to_yaml(after, resolve=False) == OmegaConf.to_yaml(before, resolve=False)
    for group in ("algo", "env", "dataset", "reward", "schedule", "trainer", "replay"):
        assert OmegaConf.get_type(after[group]) is OmegaConf.get_type(before[group]), group
    for name, node in before.callbacks.items():
        assert OmegaConf.get_type(after.callbacks[name]) is OmegaConf.get_type(node)


def test_values_of_a_saved_config_can_be_overridden() -> None:
    cfg = load_config(
        saved("algo=rlpd", "dataset=minari"), ["trainer.gradient_updates_per_step=7", "~callbacks.progress"]
    )
    assert cfg.algo.policy_delay == 7  # interpolations live on
    assert "progress" not in cfg.callbacks


@pytest.mark.parametrize(
    ("override", "word"),
    [
        ("algo=td3", "selects another algo"),
        ("algo.nonsense=1", "nonsense"),
        ("trainer.max_env_steps=x", "max_env_steps"),
        ("~callbacks.nonsense", "nonsense"),
        ("~nonsense.deep", "nonsense"),
        ("nonsense=1", "nonsense"),
        ("trainer.max_env_steps=1,2", "max_env_steps"),
        ("=3", ""),
    ],
)
def test_wrong_overrides_of_a_saved_config(override: str, word: str) -> None:
    with pytest.raises(UserError, match=word):
        load_config(saved(), [override])


def test_whom_a_file_trusts_does_not_count() -> None:
    values = yaml.safe_load(saved())
    values["trust"] = ["collections"]
    values["callbacks"]["own"] = {"_target_": "collections.Counter"}
    with pytest.raises(UserError, match=r"collections\.Counter"):
        load_config(yaml.safe_dump(values))
    cfg = load_config(yaml.safe_dump(values), trust=["collections"])
    assert cfg.trust == ["collections"]


def test_the_user_still_sees_progress() -> None:
    assert isinstance(instantiate(compose_config([]).callbacks.progress), Progress)


def test_nearest_words() -> None:
    words: Any = ["pendulum", "cartpole"]
    assert nearest("pendulun", words) == "pendulum"
    assert nearest("zzz", words) is None
    games: Any = ["Pooyan", "Pong", "pong"]
    assert nearest("PONG", games) == "Pong"
    assert nearest("pong", games) == "pong"


def test_an_env_by_its_id_takes_nothing_from_the_default_one() -> None:
    cfg, plain = compose_config(["env.id=Hopper-v5"]), compose_config(["env=hopper", "~algo_env"])
    assert cfg.env.dataset_id is None
    for group in ("algo", "trainer", "replay"):
        assert cfg[group] == plain[group]
    tuned = compose_config([])
    assert tuned.algo != cfg.algo
    assert compose_config(["env.id=Pendulum-v1"]) == tuned
    assert compose_config(["env=pendulum", "env.id=Mine-v0"]).algo == tuned.algo  # asked for by name
    assert compose_config(["env.id=Mine-v0", "env.dataset_id=a/b-v0"]).env.dataset_id == "a/b-v0"


def test_the_choices_of_a_run_are_known_by_name():
    cfg = compose_config(["algo=td3", "reward=clip_1"])
    wanted = {"algo": "td3", "env": "pendulum", "reward": "clip_1", "trainer": "off_policy", "logger": "default"}
    assert wanted.items() <= dict(cfg.choices).items()
    assert "dataset" not in cfg.choices
    assert "hydra" not in cfg
    assert compose_config(["env.id=CartPole-v1", "algo=dqn"]).choices.env == "CartPole-v1", "not the default's name"


def test_values_for_others_are_resolved_but_for_what_comes_from_the_environment(monkeypatch):
    monkeypatch.setenv("A_RATE", "0.00123")
    cfg = compose_config(
        ["algo=cql", "dataset=random", "algo.actor_lr=${oc.env:A_RATE}", "algo.critic_lr=${algo.actor_lr}"]
    )
    values = resolved_values(cfg)
    assert (values["algo"]["actor_lr"], values["algo"]["critic_lr"]) == ("${oc.env:A_RATE}", "${algo.actor_lr}")
    assert values["dataset"]["env"]["id"] == "Pendulum-v1", "a whole part that another refers to"
    rest = str({key: value for key, value in values.items() if key != "algo"})
    assert "${" not in rest
    assert "0.00123" not in str(values)


def test_what_took_the_place_of_compile_is_told() -> None:
    with pytest.raises(UserError) as refused:
        compose_config(["algo.compile=true"])
    assert str(refused.value) == (
        "algo.compile is gone: native nodes took its place (native=auto, see docs/speed.md); leave it out."
    )


def test_a_saved_config_with_compile_loads_without_it(caplog: pytest.LogCaptureFixture) -> None:
    """Runs of before: torch.compile has been replaced by captured updates."""
    text = OmegaConf.to_yaml(compose_config([]))
    assert "compile" not in text
    for value, said in (("false", ""), ("true", "algo.compile is gone")):
        caplog.clear()
        cfg = load_config(text.replace("algo:\n", f"algo:\n  compile: {value}\n", 1))
        assert "compile" not in cfg.algo
        assert said in caplog.text
        assert bool(said) == bool(caplog.text)
