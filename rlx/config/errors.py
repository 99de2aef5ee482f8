"""Hydra's and OmegaConf's complaints as one sentence: what was wrong, what was expected, what to type instead."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path, PurePath
from typing import Any

from rlx.choices import by_name, choices, games_meant
from rlx.config.overrides import parse_override
from rlx.config.schemas import schemas
from rlx.errors import UserError, nearest, shown
from rlx.paths import conf_dir

LISTS = ("callbacks", "logger")  # groups of which several choices can be taken
FILES = {".npz": "npz", ".pt": "pt", ".pth": "pt", ".hdf5": "hdf5", ".h5": "hdf5"}  # choices of dataset= by suffix

# What other libraries call a key -> what we call it; those that the chosen algorithm does not have are left out.
OTHER_NAMES: dict[str, tuple[str, ...]] = {
    "learning_rate": ("algo.lr", "algo.actor_lr", "algo.critic_lr"),
    "lr": ("algo.lr", "algo.actor_lr", "algo.critic_lr"),
    "policy_lr": ("algo.actor_lr", "algo.lr"),
    "q_lr": ("algo.critic_lr",),
    "gamma": ("algo.discount",),
    "batch": ("algo.batch_size",),
    "minibatch_size": ("algo.batch_size",),
    "n_epochs": ("algo.epochs",),
    "update_epochs": ("algo.epochs",),
    "net_arch": ("algo.hidden",),
    "hidden_sizes": ("algo.hidden",),
    "hidden_dim": ("algo.hidden",),
    "hidden_layers": ("algo.hidden",),
    "layers": ("algo.hidden",),
    "polyak": ("algo.tau",),
    "soft_update": ("algo.tau",),
    "ent_coef": ("algo.entropy_coef", "algo.alpha"),
    "entropy_weight": ("algo.entropy_coef", "algo.alpha"),
    "vf_coef": ("algo.value_coef",),
    "clip_coef": ("algo.clip_range",),
    "num_critics": ("algo.critics",),
    "n_critics": ("algo.critics",),
    "policy_freq": ("algo.policy_delay",),
    "target_update_interval": ("algo.target_interval",),
    "exploration_final_eps": ("algo.epsilon_end",),
    "normalize": ("algo.normalize_obs",),
    "total_timesteps": ("trainer.max_env_steps",),
    "timesteps": ("trainer.max_env_steps",),
    "total_steps": ("trainer.max_env_steps",),
    "steps": ("trainer.max_env_steps",),
    "env_steps": ("trainer.max_env_steps",),
    "total_env_steps": ("trainer.max_env_steps",),
    "frames": ("trainer.max_env_steps",),
    "total_frames": ("trainer.max_env_steps",),
    "num_timesteps": ("trainer.max_env_steps",),
    "max_steps": ("trainer.max_env_steps",),
    "max_timesteps": ("trainer.max_env_steps",),
    "num_steps": ("trainer.rollout_length", "trainer.max_env_steps"),
    "n_steps": ("trainer.rollout_length", "replay.n_step"),
    "n_step": ("replay.n_step",),
    "epochs": ("trainer.max_epochs", "algo.epochs"),
    "updates": ("trainer.max_updates",),
    "gradient_steps": ("trainer.gradient_updates_per_step",),
    "utd": ("trainer.gradient_updates_per_step",),
    "utd_ratio": ("trainer.gradient_updates_per_step",),
    "train_freq": ("trainer.train_frequency",),
    "start_steps": ("trainer.learning_starts",),
    "learning_start": ("trainer.learning_starts",),
    "eval_freq": ("trainer.eval_interval",),
    "n_eval_episodes": ("trainer.eval_episodes",),
    "save_freq": ("trainer.checkpoint_interval",),
    "buffer_size": ("replay.capacity",),
    "replay_size": ("replay.capacity",),
    "capacity": ("replay.capacity",),
    "n_envs": ("env.num_envs",),
    "num_envs": ("env.num_envs",),
    "env_id": ("env.id",),
    "env_name": ("env.id",),
    "max_episode_steps": ("env.max_episode_steps",),
    "random_seed": ("seed",),
    "seed": ("seed",),
    "num_threads": ("threads",),
    "cuda": ("device",),
    "output_dir": ("run_dir",),
    "log_dir": ("run_dir",),
    "data_path": ("dataset.path",),
    "dataset_path": ("dataset.path",),
    "reward_scale": ("reward.scale",),
}
FEW = 6  # choices that a sentence names
FORMER = {"algo.compile": "native nodes took its place (native=auto, see docs/speed.md)"}  # and what came instead


def explain(
    error: BaseException, overrides: Sequence[str], keys: Collection[str] = (), folders: Sequence[Path] = ()
) -> str:
    """One sentence for an error that composing a config raised.

    `keys` are those that the config could have, `folders` the user's own config folders.
    """
    chain = []
    e: BaseException | None = error
    while e is not None:
        chain.append(e)
        e = e.__cause__ or e.__context__
    text = "\n".join(str(e) for e in chain)
    return (
        _choice(text, folders)
        or _key(text, chain, keys)
        or _value(text, chain)
        or _sweep(text)
        or _plain(text, overrides)
    )


def check_choices(overrides: Sequence[str], folders: Sequence[Path] = ()) -> None:
    """Refuse `group=choice` where there is no such choice; what Hydra cannot read is left for it to say."""
    for override in overrides:
        read = parse_override(override)
        if read is None or read.is_delete() or read.is_sweep_override():
            continue
        group = read.key_or_group
        names = choices(group, folders) if re.fullmatch(r"[\w/]+", group) else []
        if not names:
            continue
        value: Any = read.value()
        for word in value if isinstance(value, list) and group in LISTS else [value]:
            if isinstance(word, list | dict):
                raise UserError(
                    f"{override} is not the name of a choice; write {group}=NAME, and {group}.KEY=VALUE for what is "
                    f"set in it. Choices: {', '.join(names)}."
                )
            if word is not None and str(word) not in names and "${" not in str(word):
                raise UserError(unknown_choice(group, str(word), names))


def unknown_choice(group: str, word: str, names: Sequence[str]) -> str:
    """`algo=SAC`: no such file in the group."""
    said = f"Unknown {group} {word!r}."
    suffix = PurePath(word).suffix.lower()
    if group == "dataset" and suffix in FILES:
        return f"{said} To read a file: dataset={FILES[suffix]} dataset.path={word}."
    if group == "dataset" and re.fullmatch(r"[\w./-]+-v\d+", word):
        return f"{said} To read a Minari dataset: dataset=minari dataset.id={word}."
    guess = nearest(word.lower(), names)
    meant = f" Did you mean {group}={guess}?" if guess else ""
    if group == "env":
        games = games_meant(word)
        meant = f" Did you mean {' or '.join(games)}?" if games else meant
        if not meant:
            meant = " A game or a task is named behind its preset, as in env=atari/pong."
        elif not games and re.search(r"-v\d+$", word):
            meant += f" An env by its id is env.id={word}."
    return f"{said}{meant} Choices: {', '.join(names)}."


def _choice(text: str, folders: Sequence[Path]) -> str | None:
    """A choice that a file asks for, or a group that there is not."""
    match = re.search(r"Could not find '([\w/]+)/([^'/]+)'", text)
    if match:
        names = choices(match.group(1), folders)
        if names:
            return unknown_choice(match.group(1), match.group(2), names)
    match = re.search(r"Could not find 'env/([^']+)'", text)
    parts = by_name(match.group(1), folders) if match else None
    if match and parts:
        preset, key, name = parts
        return (
            f"A config file cannot pick the env {match.group(1)!r}; write `override /env: {preset}` in its defaults "
            f"list and `env: {{{key}: {name}}}` below."
        )
    match = re.search(r"Could not override '([\w@./]+)'\.\s*\n?No match in the defaults list", text)
    if match:
        group = match.group(1)
        guess = nearest(group, [p.name for p in conf_dir().iterdir() if p.is_dir()])
        return f"There is no config group {group!r}" + (f"; did you mean {guess}=...?" if guess else ".")
    return None


def _key(text: str, chain: list[BaseException], keys: Collection[str]) -> str | None:
    """`algo.lrr=1`: no such key in the schema."""
    match = re.search(r"Key '([^']+)' (?:not in '(\w+)'|is not in struct)", text)
    if not match:
        return None
    key, schema = match.groups()
    known = _fields_of(chain)
    full = re.search(r"Could not override '([^']+)'", text) or re.search(r"full_key: (\S+)", text)
    name = full.group(1) if full else key
    if name in FORMER:
        return f"{name} is gone: {FORMER[name]}; leave it out."
    where = f" of {schema}" if schema else ""
    prefix = f"{name.rpartition('.')[0]}." if "." in name else ""
    meant = [k for k in OTHER_NAMES.get(key.lower(), ()) if k in keys and k != name]
    here = [k for k in meant if k.startswith(prefix)] if prefix else meant
    guess = nearest(key, known)
    owners = [f"{prefix[:-1]}={choice}" for choice in _with_key(prefix[:-1], key)]
    if meant:
        hint = f"did you mean {' or '.join(here or meant)}?"
    elif 0 < len(owners) <= FEW:
        hint = f"it goes with {' or '.join(owners)}."
    elif guess:
        hint = f"did you mean {prefix}{guess}?"
    elif known:
        hint = f"there are: {', '.join(sorted(known))}."
    else:
        hint = "`python -m rlx --cfg job` shows every key."
    return f"{name} is not a key{where}; {hint}"


def _with_key(group: str, key: str) -> list[str]:
    """The choices of a group whose schema has a key."""
    there = choices(group) if group else []
    has = {name.rpartition("/")[2] for name, cls in schemas().items() if name.startswith(f"{group}/")
           and any(field.name == key for field in fields(cls))}  # fmt: skip
    return [choice for choice in there if choice in has]


def _fields_of(chain: list[BaseException]) -> list[str]:
    """The keys of the config node that an error speaks of."""
    for error in chain:
        kind: Any = getattr(error, "object_type", None)
        if is_dataclass(kind):
            return [f.name for f in fields(kind) if not f.name.startswith("_")]
        node: Any = getattr(error, "parent_node", None)
        if node is not None and hasattr(node, "keys"):
            return [str(k) for k in node if not str(k).startswith("_")]
    return []


def _value(text: str, chain: list[BaseException]) -> str | None:
    """`trainer.max_env_steps=abc`: a value of the wrong type."""
    at = re.search(r"full_key: (\S+)", text)
    name = at.group(1) if at else "a key"
    match = re.search(r"Value '(.*)' of type '(\w+)' could not be converted to (\w+)", text, re.DOTALL)
    if match:
        value, _, wanted = match.groups()
        kinds: list[Any] = [getattr(e, "object_type", None) for e in chain]
        schema = next((str(kind.__name__) for kind in kinds if isinstance(kind, type) and is_dataclass(kind)), None)
        kind = {"Integer": "an integer", "Float": "a number", "Boolean": "true or false"}.get(wanted, wanted)
        return f"{name}={value} has the wrong type{f' for {schema}' if schema else ''}: expected {kind}."
    match = re.search(r"field '([\w.]+)' is not Optional", text)
    if match:
        nodes: list[Any] = [getattr(e, "child_node", None) for e in chain]
        before = next((str(child) for child in nodes if child is not None), "")
        example = f", for example {match.group(1)}={before}" if re.fullmatch(r"[\w.]+", before) else ""
        return f"{match.group(1)} needs a value (it is null){example}."
    match = re.search(r"Value '(.*)' is not a valid bool", text)
    if match:
        return f"{name}={match.group(1)} has the wrong type: expected true or false."
    match = re.search(r"Error merging override ([^=\s]+)=(.*)\n", text)
    if match and "ListConfig" in text:
        return f"{match.group(1)}={match.group(2)} has the wrong type: expected a list, such as [64,64]."
    match = re.search(r"Invalid value '(.*)', expected one of \[(.*)\]", text)
    if match:
        return f"Unknown value {name}={match.group(1)}. Choices: {match.group(2)}."
    return None


def _sweep(text: str) -> str | None:
    """`seed=1,2` without -m."""
    match = re.search(r"Ambiguous value for argument '([^'=]+)=(.*)'\n", text)
    if not match:
        return None
    key, value = match.groups()
    return f"{key}={value} gives several values; add -m for a sweep over them (a list is written [{value}])."


def _plain(text: str, overrides: Sequence[str]) -> str:
    """Anything else: its first line, and what it was about."""
    first = next((line.strip() for line in text.splitlines() if line.strip()), "unknown error")
    given = shown(" ".join(overrides), 300) or "no overrides"
    return f"The configuration does not compose ({shown(first.rstrip('.'), 300)}); given: {given}."
