"""Run folders as somebody with bad intentions, or a damaged disk, might hand them over: a name and a change for each.

A change gets a copy of a run folder. `evil_module` lies in the working folder and leaves a mark when it is imported,
SECRET is an environment variable, NEIGHBOUR a folder beside that nothing may touch.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import yaml
from safetensors.torch import load, save

from rlx.checkpoint import seal

Change = Callable[[Path], None]
NEIGHBOUR = "../neighbour"  # as seen from the folder of the run
EVIL = {"_target_": "rlx.envs.factory.make_vector_env", "id": "evil_module:X-v0"}
RANDOM = {"_target_": "rlx.data.sources.load_random", "size": 10, "env": EVIL}
ALL = ("evaluate", "predict", "collect", "resume")  # predict is `rlx.load` and `act`
MAKING_ENVS = ("evaluate", "collect", "resume")


class Case(NamedTuple):
    change: Change
    refused: tuple[str, ...] = ALL  # verbs that have to say no; the others may
    base: str = "online"


def checkpoints(folder: Path) -> Iterator[Path]:
    for path in sorted((folder / "checkpoints").iterdir()):
        if (path / "manifest.json").is_file() and not path.is_symlink():
            yield path


def rewrite(folder: Path, file: str, data: bytes) -> None:
    """Replace a file of a checkpoint as an attacker would: what vouches for it is rewritten, too."""
    (folder / file).write_bytes(data)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"][file] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}
    (folder / "manifest.json").write_bytes(seal(manifest))


# -- kinds of changes ------------------------------------------------------------------------------------------------


def text(new: str | bytes | Callable[[str], str]) -> Change:
    """Another config.yaml, in the run folder and in every checkpoint."""

    def change(folder: Path) -> None:
        old = (folder / "config.yaml").read_text()
        data = new(old) if callable(new) else new
        data = data.encode() if isinstance(data, str) else data
        (folder / "config.yaml").write_bytes(data)
        for path in checkpoints(folder):
            rewrite(path, "config.yaml", data)

    return change


def config(function: Callable[[dict], Any]) -> Change:
    def new(old: str) -> str:
        values = yaml.safe_load(old)
        function(values)
        values["trust"] = ["evil_module", "os", "oc.env", "env.kwargs"]  # whom the file trusts does not count
        return yaml.safe_dump(values)

    return text(new)


def put(key: str, value: Any) -> Change:
    def function(values: dict) -> None:
        *path, last = key.split(".")
        node = values
        for part in path:
            node = node[part]
        node[last] = value

    return config(function)


def puts(**values: Any) -> Change:
    def function(found: dict) -> None:
        for key, value in values.items():
            group, _, name = key.partition("__")
            found[group][name] = value

    return config(function)


def drop(key: str) -> Change:
    def function(values: dict) -> None:
        group, _, name = key.partition(".")
        del (values[group] if name else values)[name or group]

    return config(function)


def state(key: str, value: Any) -> Change:
    """Another value in state.json of every checkpoint; a KeyError is the value `drop`."""

    def change(folder: Path) -> None:
        for path in checkpoints(folder):
            found = json.loads((path / "state.json").read_text())
            *parents, last = key.split(".")
            node = found
            for part in parents:
                node = node.get(part, {})
            if value is KeyError:
                node.pop(last, None)
            else:
                node[last] = value
            rewrite(path, "state.json", json.dumps(found).encode())

    return change


def state_text(data: bytes) -> Change:
    def change(folder: Path) -> None:
        for path in checkpoints(folder):
            rewrite(path, "state.json", data)

    return change


def tensors(function: Callable[[dict], Any], file: str = "learner.safetensors") -> Change:
    def change(folder: Path) -> None:
        for path in checkpoints(folder):
            if (path / file).exists():
                found = load((path / file).read_bytes())
                function(found)
                rewrite(path, file, save(found))

    return change


def link(name: str, to: str) -> Change:
    def change(folder: Path) -> None:
        path = folder / name
        if path.exists():
            path.rename(folder / f"old_{name}")
        path.symlink_to(to)

    return change


def both(*changes: Change) -> Change:
    def change(folder: Path) -> None:
        for one in changes:
            one(folder)

    return change


def algo(target: str, **values: Any) -> Change:
    """The config of another algorithm in the place of the one that was trained."""

    def function(found: dict) -> None:
        from rlx.config import schemas

        name = target.split(".")[2]
        cls = schemas()[f"algo/{name}"]
        found["algo"] = {**vars(cls()), "name": name, **values}

    return config(function)


def bomb(levels: int) -> str:
    """Billion laughs."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, levels)]
    return "\n".join(lines)


def laughs(values: dict) -> None:
    """The same by interpolations."""
    kwargs = values["env"]["kwargs"]
    kwargs["a0"] = "x" * 10
    for i in range(1, 12):
        kwargs[f"a{i}"] = f"${{env.kwargs.a{i - 1}}}" * 10


def copies(values: dict) -> None:
    """The same by interpolations to containers."""
    kwargs = values["env"]["kwargs"]
    kwargs["a0"] = list(range(10))
    for i in range(1, 12):
        kwargs[f"a{i}"] = [f"${{env.kwargs.a{i - 1}}}"] * 10


def secret(values: dict) -> None:
    values["algo"]["name"] = "${dataset.path}"
    values["dataset"] = {"_target_": "rlx.data.sources.load_npz", "path": "${oc.env:SECRET}"}


def mix(**sources: Any) -> Change:
    def function(values: dict) -> None:
        values["dataset"] = {
            "_target_": "rlx.data.mixing.load_mix",
            "sources": sources,
            "ratios": dict.fromkeys(sources, 1.0),
        }

    return config(function)


def nans(found: dict) -> None:
    for name in found:
        found[name] = torch.full_like(found[name], np.nan) if found[name].is_floating_point() else found[name]


def other_shape(found: dict) -> None:
    name = sorted(found)[-1]
    found[name] = torch.zeros(3, 5, 7)


def other_dtype(found: dict) -> None:
    name = sorted(n for n in found if n.startswith("model."))[0]
    found[name] = found[name].to(torch.int64)


HUGE = 10**12
RESUME = ("resume",)

CASES: dict[str, Case] = {
    # -- targets: nothing is imported, and nothing is made in the place of something else
    "algo_is_a_dataset": Case(put("algo", RANDOM)),
    "reward_is_a_dataset": Case(put("reward", RANDOM)),
    "schedule_is_a_dataset": Case(put("schedule", RANDOM)),
    "replay_is_a_dataset": Case(put("replay", RANDOM)),
    "trainer_is_a_dataset": Case(put("trainer._target_", RANDOM["_target_"])),
    "env_is_a_dataset": Case(put("env", RANDOM)),
    "callback_is_a_dataset": Case(put("callbacks.own", RANDOM)),
    "logger_is_a_dataset": Case(put("logger.own", RANDOM)),
    "callback_is_a_logger": Case(put("callbacks.own", {"_target_": "rlx.loggers.jsonl.Jsonl"})),
    "dataset_rolls_out_a_module": Case(put("dataset", RANDOM), RESUME),
    "mix_rolls_out_a_module": Case(mix(a=RANDOM), RESUME),
    "mix_of_mixes": Case(
        mix(a={"_target_": "rlx.data.mixing.load_mix", "sources": {"b": RANDOM}, "ratios": {"b": 1.0}}), RESUME
    ),
    "mix_has_a_stranger": Case(mix(a={"_target_": "evil_module.load"})),
    "mix_has_an_algo": Case(mix(a={"_target_": "rlx.algos.sac.SAC"})),
    "random_env_is_a_stranger": Case(put("dataset", {**RANDOM, "env": {"_target_": "evil_module.Env", "id": "X"}})),
    "algo_is_a_stranger": Case(put("algo._target_", "evil_module.Learner")),
    "algo_is_a_builtin": Case(put("algo._target_", "builtins.exec")),
    "algo_is_the_command_line": Case(put("algo._target_", "rlx.cli.main")),
    "algo_is_reached_through_rlx": Case(put("algo._target_", "rlx.files.os.system")),
    "algo_is_a_base_class": Case(put("algo._target_", "rlx.learner.Learner")),
    "target_is_a_list": Case(put("reward._target_", ["os.system"])),
    "target_is_an_interpolation": Case(puts(algo___target_="${env.dataset_id}", env__dataset_id="evil_module.X")),
    "target_is_missing": Case(drop("algo._target_")),
    "target_within_kwargs": Case(put("env.kwargs", {"x": {"_target_": "evil_module.X"}})),
    "target_within_lists": Case(put("env.kwargs", {"x": [[{"_target_": "evil_module.X"}]]})),
    "target_at_the_root": Case(put("run_dir", {"_target_": "evil_module.X"})),
    "target_within_phases": Case(put("trainer.phases.online", {"_target_": "evil_module.X"})),
    "target_in_the_schedule": Case(put("schedule.targets", {"tau": {"_target_": "evil_module.X"}})),
    "hydra_settings": Case(put("hydra", {"run": {"dir": NEIGHBOUR}})),
    "env_of_a_module": Case(put("env.id", "evil_module:X-v0"), MAKING_ENVS),
    "env_of_a_module_in_a_package": Case(put("env.id", "evil_module.deep:X-v0"), MAKING_ENVS),
    "env_of_a_module_by_interpolation": Case(
        puts(env__id="${env.dataset_id}", env__dataset_id="evil_module:X-v0"), MAKING_ENVS
    ),
    "env_of_rlx_that_is_none": Case(put("env.id", "rlx.nonsense:X-v0"), MAKING_ENVS),
    "env_that_makes_another": Case(puts(env__id="GymV26Environment-v0", env__kwargs={"env_id": "evil_module:X"})),
    "env_that_reads_a_file": Case(put("env.kwargs", {"xml_file": f"{NEIGHBOUR}/model.xml"})),
    "env_that_reads_a_hidden_file": Case(put("env.kwargs", {"xml_file": ".hidden"})),
    "env_that_reads_a_file_by_interpolation": Case(
        puts(env__kwargs={"xml_file": "${env.dataset_id}"}, env__dataset_id=f"{NEIGHBOUR}/model.xml")
    ),
    "env_id_is_a_path": Case(put("env.id", f"{NEIGHBOUR}/x"), MAKING_ENVS),
    "extra_is_a_module": Case(put("env.extra", "evil_module"), ()),
    # -- secrets: interpolations stay within the config
    "secret_name": Case(put("algo.name", "${oc.env:SECRET}")),
    "secret_with_a_default": Case(put("algo.name", "x-${oc.env:SECRET,none}")),
    "secret_with_spaces": Case(put("algo.name", "${ oc.env : SECRET }")),
    "secret_nested": Case(puts(algo__name="${${env.dataset_id}:SECRET}", env__dataset_id="oc.env")),
    "secret_escaped": Case(put("algo.name", "\\${oc.env:SECRET}")),
    "secret_twice_escaped": Case(put("algo.name", "\\\\${oc.env:SECRET}")),
    "secret_decoded": Case(put("algo.name", "${oc.decode:'${oc.env:SECRET}'}")),
    "secret_decoded_from_a_text": Case(
        puts(algo__name="${oc.decode:${env.dataset_id}}", env__dataset_id="\\${oc.env:SECRET}")
    ),
    "secret_created": Case(put("algo.name", "${oc.create:'${oc.env:SECRET}'}")),
    "secret_deprecated": Case(put("algo.name", "${oc.deprecated:seed}")),
    "secret_dict_values": Case(put("algo.name", "${oc.dict.values:env}")),
    "secret_of_hydra": Case(put("algo.name", "${hydra:runtime.cwd}")),
    "secret_selected": Case(put("algo.name", "${oc.select:nothing,${oc.env:SECRET}}")),
    "secret_selected_by_a_text": Case(put("algo.name", "${oc.select:'${oc.env:SECRET}',1}")),
    "secret_quoted": Case(put("algo.name", '${prior_share:"${oc.env:SECRET}"}')),
    "secret_unknown_resolver": Case(put("algo.name", "${evil:SECRET}")),
    "secret_by_a_chain": Case(config(secret)),
    "secret_in_a_list": Case(put("algo.hidden", ["${oc.env:SECRET}"])),
    "secret_as_a_key": Case(put("env.kwargs", {"${oc.env:SECRET}": 1})),
    "secret_in_kwargs": Case(put("env.kwargs", {"x": {"y": ["${oc.env:SECRET}"]}})),
    "secret_env_id": Case(put("env.id", "${oc.env:SECRET}")),
    "secret_file_of_rows": Case(put("logger.jsonl.filename", "${oc.env:SECRET}"), RESUME),
    "secret_prefix": Case(
        put("callbacks.own", {"_target_": "rlx.callbacks.make_data.MakeData", "prefix": "${oc.env:SECRET}"}), RESUME
    ),
    "secret_behind_a_key_with_a_dot": Case(put("env.kwargs", {"a": {"b": 1}, "a.b": "${oc.env:SECRET}"})),
    "file_in_a_source_with_a_dot": Case(
        mix(**{"a.b": {**RANDOM, "env": {**EVIL, "id": "Pendulum-v1", "kwargs": {"x": f"{NEIGHBOUR}/y"}}}}), RESUME
    ),
    "secret_seed": Case(put("seed", "${oc.env:SECRET}"), RESUME),
    "secret_trust": Case(put("trust", ["${oc.env:SECRET}"]), ()),
    "secret_tags": Case(
        put("logger.own", {"_target_": "rlx.loggers.wandb.Wandb", "tags": ["${oc.env:SECRET}"]}), RESUME
    ),
    "secret_escaped_in_a_mix": Case(
        mix(a={"_target_": "rlx.data.sources.load_npz", "path": "\\${oc.env:SECRET}"}), RESUME
    ),
    "interpolation_to_itself": Case(put("algo.discount", "${algo.discount}")),
    "interpolations_in_a_circle": Case(puts(algo__tau="${algo.discount}", algo__discount="${algo.tau}")),
    "interpolation_to_its_parent": Case(put("env.kwargs", {"x": "${env}"})),
    "interpolation_to_nothing": Case(put("algo.discount", "${algo.nothing}")),
    "interpolation_without_an_end": Case(put("algo.name", "${oc.env:SECRET")),
    # -- text
    "alias_bomb": Case(text(lambda old: f"{bomb(12)}\n{old}")),
    "one_alias": Case(text(lambda old: old.replace("seed: 0", "seed: &s 0\nthreads: *s", 1))),
    "anchor_alone": Case(text(lambda old: old.replace("seed: 0", "seed: &s 0", 1))),
    "deep_flow": Case(text("[" * 100_000)),
    "deep_flow_closed": Case(text(lambda old: f"{old}\nx: {'[' * 3000}{']' * 3000}\n")),
    "deep_block": Case(text("\n".join(" " * i + "a:" for i in range(3000)))),
    "deep_keys": Case(text(lambda old: f"{old}\n? {'{? ' * 3000}")),
    "giant_text": Case(text(lambda old: f"{old}\nx: {'y' * 2**22}\n")),
    "giant_list": Case(text(lambda old: f"{old}\nx: [{'1,' * 10**6}1]\n")),
    "merge_key": Case(text(lambda old: old.replace("algo:\n", "algo:\n  <<: {discount: 0.1}\n", 1))),
    "python_object": Case(text(lambda old: f"{old}\nx: !!python/object/apply:os.system ['touch pwned']\n")),
    "python_module": Case(text(lambda old: f"{old}\nx: !!python/module:evil_module\n")),
    "binary_tag": Case(text(lambda old: f"{old}\nx: !!binary aGVsbG8=\n")),
    "set_tag": Case(text(lambda old: f"{old}\nx: !!set {{a, b}}\n")),
    "huge_integer": Case(text(lambda old: old.replace("seed: 0", f"seed: {'9' * 10_000}", 1))),
    "huge_hexadecimal": Case(text(lambda old: old.replace("seed: 0", f"seed: 0x{'f' * 100_000}", 1))),
    "integer_of_a_thousand_digits": Case(put("algo.discount", 10**1000)),
    "duplicate_keys": Case(text(lambda old: f"{old}\nseed: 1\n")),
    "interpolation_bomb": Case(config(laughs)),
    "container_bomb": Case(config(copies)),
    "empty": Case(text("")),
    "not_utf8": Case(text(b"\xff\xfe\x00algo: 3")),
    "zero_bytes": Case(text("algo:\0 3")),
    "control_characters": Case(put("env.kwargs", {"\x1b[31m\nrlx: all is well": 1}), MAKING_ENVS),
    "root_is_a_list": Case(text("- 1\n- 2\n")),
    "root_is_words": Case(text("just words")),
    "root_is_a_number": Case(text("3")),
    "two_documents": Case(text(lambda old: f"{old}\n---\n{old}")),
    # -- sizes
    "hidden_of_a_billion": Case(put("algo.hidden", [10**9, 10**9])),
    "hidden_of_a_million": Case(put("algo.hidden", [10**6])),
    "hidden_of_many_layers": Case(put("algo.hidden", [8] * 300)),
    "hidden_of_very_many_layers": Case(put("algo.hidden", [8] * 20_000)),
    "critics_of_a_million": Case(algo("rlx.algos.redq.REDQ", critics=10**6, hidden=[256, 256])),
    "quantiles_of_a_billion": Case(algo("rlx.algos.tqc.TQC", quantiles=10**9)),
    "candidates_of_a_billion": Case(algo("rlx.algos.bcq.BCQ", eval_candidates=10**9)),
    "batch_of_a_trillion": Case(put("algo.batch_size", HUGE), RESUME),
    "envs_of_a_billion": Case(put("env.num_envs", 10**9), RESUME),
    "async_envs_of_a_billion": Case(puts(env__num_envs=10**9, env__vectorization="async"), RESUME),
    "native_envs_of_a_billion": Case(puts(env__num_envs=10**9, env__vectorization="native"), RESUME),
    "episodes_of_a_trillion": Case(put("trainer.eval_episodes", HUGE), RESUME),
    "capacity_of_a_quadrillion": Case(puts(replay__capacity=10**15, trainer__max_env_steps=10**15), RESUME),
    "n_step_of_a_trillion": Case(put("replay.n_step", HUGE), ()),
    "threads_of_a_billion": Case(put("threads", 10**9), RESUME),
    "updates_of_a_trillion": Case(puts(trainer__gradient_updates_per_step=HUGE, trainer__max_env_steps=200), RESUME),
    "data_of_a_trillion": Case(put("dataset.size", HUGE), RESUME, "offline"),
    "limit_beyond_64_bits": Case(put("env.max_episode_steps", 10**30)),
    "seed_beyond_64_bits": Case(put("seed", 2**63), RESUME),
    "obs_of_a_billion": Case(state("spec.obs_shape", [10**9])),
    "actions_of_a_billion": Case(both(state("spec.action_shape", [10**9]), state("spec.action_low", [0.0] * 9))),
    # -- types, ranges, keys
    "algo_is_a_list": Case(put("algo", [1, 2])),
    "algo_is_null": Case(put("algo", None)),
    "env_is_a_word": Case(put("env", "pendulum")),
    "reward_is_gone": Case(drop("reward")),
    "trainer_is_a_number": Case(put("trainer", 3)),
    "callbacks_are_a_list": Case(put("callbacks", [{"_target_": "rlx.callbacks.evaluate.Evaluate"}])),
    "callbacks_are_null": Case(put("callbacks", None), ()),
    "callback_is_a_word": Case(put("callbacks.evaluate", "on")),
    "callback_is_null": Case(put("callbacks.evaluate", None), ()),
    "logger_is_a_word": Case(put("logger", "jsonl")),
    "dataset_is_a_number": Case(put("dataset", 3)),
    "dataset_is_unsuitable": Case(put("dataset", {"_target_": "rlx.data.sources.load_npz", "path": [1]})),
    "discount_is_a_word": Case(put("algo.discount", "x")),
    "discount_is_two": Case(put("algo.discount", 2.0)),
    "discount_is_null": Case(put("algo.discount", None)),
    "discount_is_infinite": Case(put("algo.discount", float("inf"))),
    "lr_is_nan": Case(put("algo.actor_lr", float("nan")), RESUME),
    "hidden_is_empty": Case(put("algo.hidden", [])),
    "hidden_is_negative": Case(put("algo.hidden", [-4, 8])),
    "hidden_is_zero": Case(put("algo.hidden", [0])),
    "hidden_is_a_word": Case(put("algo.hidden", "wide")),
    "hidden_is_nested": Case(put("algo.hidden", [[8]])),
    "hidden_is_another": Case(put("algo.hidden", [8, 8])),
    "unknown_key": Case(put("algo.nonsense", 1)),
    "unknown_group": Case(put("nonsense", {"a": 1})),
    "name_is_missing": Case(put("algo.name", "???"), ()),
    "env_id_is_missing": Case(put("env.id", "???")),
    "env_id_is_null": Case(put("env.id", None)),
    "env_id_is_unknown": Case(put("env.id", "Nonsense-v7"), MAKING_ENVS),
    "env_is_another": Case(put("env.id", "CartPole-v1"), MAKING_ENVS),
    "kwargs_are_a_list": Case(put("env.kwargs", [1])),
    "kwargs_are_of_no_use": Case(put("env.kwargs", {"g": "heavy"}), MAKING_ENVS),
    "kwargs_are_unknown": Case(put("env.kwargs", {"nonsense": 1}), MAKING_ENVS),
    "phases_are_empty": Case(put("trainer.phases", {}), RESUME),
    "phases_are_a_list": Case(put("trainer.phases", [1])),
    "phase_is_a_word": Case(put("trainer.phases.online", "go")),
    "regime_is_unknown": Case(put("trainer.regime", "nonsense"), RESUME),
    "device_is_unknown": Case(put("device", "nonsense"), RESUME),
    "device_has_no_numbers": Case(put("device", "meta"), RESUME),
    "vectorization_is_unknown": Case(put("env.vectorization", "nonsense"), MAKING_ENVS),
    "schedule_of_nothing": Case(put("schedule.targets", {"nonsense": {"kind": "linear"}}), RESUME),
    "schedule_is_odd": Case(put("schedule.targets", {"tau": "x"}), RESUME),
    # -- states and tensors
    "counters_are_gone": Case(state("learner", KeyError)),
    "counters_are_a_list": Case(state("learner", [1])),
    "updates_are_gone": Case(state("learner.updates", KeyError)),
    "updates_are_a_word": Case(state("learner.updates", "x")),
    "steps_are_a_word": Case(state("trainer.env_steps", "x"), RESUME),
    "steps_are_negative": Case(state("trainer.env_steps", -5), RESUME),
    "steps_are_beyond_64_bits": Case(state("trainer.env_steps", 10**30), RESUME),
    "state_of_the_trainer_is_gone": Case(state("trainer", KeyError), RESUME),
    "state_of_the_trainer_has_more": Case(state("trainer.nonsense", 1), RESUME),
    "phase_is_unknown": Case(state("trainer.phase", "nonsense"), RESUME),
    "journal_is_gone": Case(state("journal", KeyError), RESUME),
    "journal_is_of_other_envs": Case(state("journal.episodes", [1, 1]), RESUME),
    "journal_is_negative": Case(state("journal.episodes", [-7]), RESUME),
    "journal_hashes_are_gone": Case(state("journal.hashes", []), RESUME),
    "rng_is_garbage": Case(state("rng.python", [3, [1, 2], None]), RESUME),
    "rng_is_gone": Case(state("rng", KeyError), RESUME),
    "rng_of_actions_is_garbage": Case(state("journal.rng", {"bit_generator": "MT19937"}), RESUME),
    "reward_state_is_a_word": Case(state("reward", "x"), RESUME),
    "reward_returns_of_other_envs": Case(state("reward.returns", [1.0] * 5), RESUME),
    "replay_of_more_rows": Case(state("replay.total", 10**15), RESUME),
    "replay_is_negative": Case(state("replay.total", -3), RESUME),
    "replay_is_gone": Case(state("replay", None), RESUME),
    "callbacks_state_is_a_list": Case(state("callbacks", [1]), RESUME),
    "metrics_are_words": Case(state("callbacks.train_metrics.values", {"loss/x": ["y"]}), RESUME),
    "metrics_are_gone": Case(state("callbacks.train_metrics", {}), RESUME),
    "evaluation_is_a_word": Case(state("callbacks.evaluate.last", "x"), RESUME),
    "offset_is_a_word": Case(state("callbacks.jsonl.offset", "x"), RESUME),
    "offset_is_huge": Case(state("callbacks.jsonl.offset", 10**15), RESUME),
    "offset_is_negative": Case(state("callbacks.jsonl.offset", -1), RESUME),
    "schedule_state_is_a_word": Case(state("callbacks.schedule.at", "x"), RESUME),
    "threads_in_the_state": Case(state("threads", 10**9), RESUME),
    "threads_are_a_word": Case(state("threads", "x"), RESUME),
    "prior_of_another_length": Case(state("prior.total", 10**15), RESUME, "offline"),
    "state_is_deep": Case(state_text(b"[" * 100_000)),
    "state_is_a_list": Case(state_text(b"[1]")),
    "spec_is_gone": Case(state("spec", KeyError)),
    "spec_is_words": Case(state("spec.obs_shape", ["x"])),
    "spec_is_negative": Case(state("spec.obs_shape", [-3])),
    "spec_of_objects": Case(state("spec.obs_dtype", "object")),
    "spec_of_unknown_actions": Case(state("spec.action_kind", "evil_module")),
    "spec_without_bounds": Case(state("spec.action_low", [])),
    "spec_of_another_env": Case(state("spec.obs_shape", [5])),
    "spec_has_a_list_for_an_id": Case(state("spec.env_id", ["x"])),
    "spec_has_a_goal": Case(state("spec.goal", [1, [0, "x"], [0, 1]])),
    "tensors_are_missing": Case(tensors(lambda found: found.pop(sorted(found)[0]))),
    "tensors_are_empty": Case(tensors(lambda found: found.clear())),
    "tensors_of_another_shape": Case(tensors(other_shape)),
    "tensors_of_another_dtype": Case(tensors(other_dtype)),
    "tensors_are_nan": Case(tensors(nans)),
    "journal_tensors_are_empty": Case(tensors(lambda found: found.clear(), "journal.safetensors"), RESUME),
    "rng_tensors_are_empty": Case(tensors(lambda found: found.clear(), "rng.safetensors"), RESUME),
    # -- files: nothing is written outside of the run folder
    "rows_go_through_a_link": Case(link("metrics.jsonl", f"{NEIGHBOUR}/precious"), RESUME),
    "rows_go_to_a_folder_above": Case(put("logger.jsonl.filename", ".."), RESUME),
    "rows_go_elsewhere": Case(put("logger.jsonl.filename", f"{NEIGHBOUR}/rows"), RESUME),
    "tensorboard_goes_elsewhere": Case(
        put("logger.own", {"_target_": "rlx.loggers.tensorboard.Tensorboard", "folder": f"{NEIGHBOUR}/tb"}), RESUME
    ),
    "tensorboard_goes_through_a_link": Case(
        both(
            put("logger.own", {"_target_": "rlx.loggers.tensorboard.Tensorboard", "folder": "tb"}),
            link("tb", NEIGHBOUR),
        ),
        RESUME,
    ),
    "wandb_goes_through_a_link": Case(
        both(put("logger.own", {"_target_": "rlx.loggers.wandb.Wandb"}), link("wandb", NEIGHBOUR)), RESUME
    ),
    "data_goes_elsewhere": Case(
        put("callbacks.own", {"_target_": "rlx.callbacks.make_data.MakeData", "prefix": "../../neighbour/x"}), RESUME
    ),
    "data_are_built_elsewhere": Case(
        put(
            "dataset",
            {"_target_": "rlx.data.minari.load_minari", "id": "rlx/pendulum/mixed-v0", "root": "neighbour"},
        ),
        RESUME,
        "offline",
    ),
    "data_are_built_elsewhere_for_a_mix": Case(
        mix(a={"_target_": "rlx.data.minari.load_minari", "id": "rlx/pendulum/mixed-v0", "root": "neighbour"}),
        RESUME,
        "offline",
    ),
    "data_goes_to_a_root": Case(
        put("callbacks.own", {"_target_": "rlx.callbacks.make_data.MakeData", "prefix": "/neighbour"}), RESUME
    ),
    "config_is_a_link_to_a_device": Case(link("config.yaml", "/dev/zero"), RESUME),
    "config_is_a_link_to_nothing": Case(link("config.yaml", "nowhere"), RESUME),
}  # fmt: skip
