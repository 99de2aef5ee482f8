"""Whatever stands in a saved config, reading it ends in a config or in a sentence."""

from __future__ import annotations

import copy
import functools
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from omegaconf import DictConfig, OmegaConf

from rlx.config import as_text, as_written, compose_config, escaped, load_config, parse, references
from rlx.errors import UserError

QUICK = settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


@functools.cache
def saved() -> str:
    overrides = ["algo=rlpd", "env=pendulum", "dataset=mix", "reward=running_norm", "schedule=linear"]
    return OmegaConf.to_yaml(compose_config(overrides), resolve=False)


def places(values: Any, path: tuple = ()) -> list[tuple]:
    found = [path] if path else []
    children = values.items() if isinstance(values, dict) else enumerate(values) if isinstance(values, list) else ()
    for key, child in children:
        found += places(child, (*path, key))
    return found


PLACES = places(yaml.safe_load(saved()))
words = st.sampled_from(
    ["", "???", "null", "${", "${}", "${a}", "${env}", "${env.id}", "${oc.env:HOME}", "${round:x}", "${round:${seed}}",
     "${oc.select:a.b,c}", "\\${seed}", "<<", "rlx.algos.sac.SAC", "rlx.data.mixing.load_mix", "1e400", "0x_", "~"]
)  # fmt: skip
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | words
keys = st.sampled_from(["_target_", "kwargs", "env", "id", "sources", "phases", "online"]) | st.text(max_size=4) | words
anything = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3), max_leaves=6
)


def read(text: str) -> None:
    found: Any
    try:
        found = load_config(text)
    except UserError as error:
        found = str(error)
    assert isinstance(found, DictConfig) or (found and found.isprintable())


@QUICK
@given(st.sampled_from(PLACES), anything)
def test_any_value_anywhere(place: tuple, value: Any) -> None:
    values = copy.deepcopy(yaml.safe_load(saved()))
    node = values
    for key in place[:-1]:
        node = node[key]
    node[place[-1]] = value
    read(yaml.dump(values, Dumper=NoAliases, allow_unicode=True))


class NoAliases(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


@QUICK
@given(st.text(alphabet="${}[]:,-&*!<?|>'\"#%@`\n\t ab01.\\~\0\x1b", max_size=40), st.floats(0, 1))
def test_any_text_anywhere(text: str, where: float) -> None:
    whole = saved()
    at = int(where * len(whole))
    read(whole[:at] + text + whole[at:])


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("plain", []),
        ("$x {y}", []),
        ("${seed}", ["seed"]),
        ("${trainer.max_updates}", ["trainer.max_updates"]),
        ("${round:${trainer.gradient_updates_per_step}}", ["trainer.gradient_updates_per_step"]),
        ("${prior_share:${oc.select:dataset._target_,none}}", ["dataset._target_"]),
        ("a${b}c${d.0.e}", ["b", "d.0.e"]),
        ("${oc.env:X}", None),
        ("${oc.env:X,1}", None),
        ("${oc.decode:${a}}", None),
        ("${${a}:X}", None),
        ("${a.${b}}", None),
        ("${ a}", None),
        ("${.a}", None),
        ("\\${a}", None),
        ("${oc.select:${a}}", None),
        ("${oc.select:'a'}", None),
        ("${hydra:runtime.cwd}", None),
        ("${", None),
    ],
)
def test_where_an_interpolation_leads(text: str, keys: list[str] | None) -> None:
    assert references(text) == keys


@pytest.mark.parametrize(
    "text", ["${oc.env:X}", "a\\${b}", "\\\\${a}", "x ${oc.decode:${oc.env:X}} y", "a\\b", "plain"]
)
def test_an_escaped_text_resolves_to_itself(text: str) -> None:
    assert OmegaConf.create({"a": escaped(text)}).a == text
    assert OmegaConf.to_container(OmegaConf.create({"a": [escaped(text)]}), resolve=True) == {"a": [text]}


def test_only_what_reaches_beyond_the_config_stays_text() -> None:
    cfg = OmegaConf.create({"a": "${oc.env:X}", "b": "${a}!", "c": {"d": ["${e}"]}, "e": 3})
    assert OmegaConf.to_container(as_written(cfg), resolve=True) == {
        "a": "${oc.env:X}", "b": "${oc.env:X}!", "c": {"d": [3]}, "e": 3,
    }  # fmt: skip
    assert as_text({"e": "${e}"}) == {"e": "${e}"}


def test_parsing_keeps_what_rlx_writes() -> None:
    assert parse(saved()) == OmegaConf.to_container(OmegaConf.create(saved()), resolve=False)
    with pytest.raises(UserError, match="characters"):
        parse("a: " + "b" * 2**20)


def test_groups_that_are_not_used_may_reach_further() -> None:
    """A policy is evaluated without the dataset that it was trained on."""
    text = saved().replace("seed: 0", "seed: ${oc.env:X}")
    with pytest.raises(UserError, match=r"seed=VALUE.*trust=\[oc\.env\]"):
        load_config(text)
    load_config(text, use=("algo", "env"))
    assert load_config(text, ["seed=3"]).seed == 3  # what the user types replaces it
    with pytest.raises(UserError, match="seed"):
        load_config(text.replace("name: rlpd", "name: x${seed}"), use=("algo", "env"))


def test_phases_of_older_configs_keep_what_the_trainer_had_for_them() -> None:
    values = yaml.safe_load(OmegaConf.to_yaml(compose_config(["algo=sac", "trainer.min_buffer_size=77"])))
    del values["trainer"]["phases"]["online"]["min_buffer_size"]
    cfg = load_config(yaml.safe_dump(values))
    assert cfg.trainer.phases.online.min_buffer_size == 77


@pytest.mark.parametrize(
    ("former", "today"),
    [
        ("rlx.data.arrays.load_in_memory", "rlx.data.sources.load_in_memory"),
        ("rlx.data.minari.load_minari", "rlx.data.sources.load_minari"),
        ("rlx.data.mixing.load_mix", "rlx.data.sources.load_mix"),
        ("rlx.data.sources.load_npz", "rlx.data.sources.load_npz"),
    ],
)
def test_datasets_of_older_configs_are_found_under_the_names_of_today(former: str, today: str) -> None:
    values = parse(saved())
    values["dataset"] = {"_target_": former}
    assert load_config(yaml.safe_dump(values)).dataset._target_ == today
    values["dataset"] = {"_target_": "rlx.data.mixing.load_mix", "sources": {"a": {"_target_": former}}}
    assert load_config(yaml.safe_dump(values)).dataset.sources.a._target_ == today
