"""Which runs belong together: methods, which are what was compared, on environments, each with its seeds.

What differs between runs is taken from the manifest of a sweep (what was swept, choices by name), and for runs of their
own from what was typed. Seeds never make a group, and neither does where a run ran or how it logged.
"""

from __future__ import annotations

from dataclasses import dataclass

from rlx.report.data import Collection, Run

ASIDE = ("seed", "run_dir", "device", "threads", "trust", "sweep")  # keys that make no difference to what is learned
ASIDE_GROUPS = ("hydra", "logger", "callbacks")
DEFAULT = "default"


@dataclass
class Method:
    """A combination of what was compared, such as algo=sac with reward=clip_1."""

    label: str
    choices: dict[str, str]


@dataclass
class Group:
    """The runs of a method on one environment: they differ by their seed."""

    method: int
    env: int
    runs: list[int]


@dataclass
class Grouping:
    keys: list[str]  # by which the methods differ
    methods: list[Method]
    envs: list[str]
    groups: list[Group]

    def of(self, method: int) -> list[Group]:
        """The groups of a method, by env."""
        return [group for group in self.groups if group.method == method]


def group(collection: Collection) -> Grouping:
    runs = collection.runs
    envs = list(dict.fromkeys(run.env for run in runs))
    keys = [key for key in _candidates(collection) if len({_value(run, key) for run in runs}) > 1]
    keys = [key for key in keys if not _says_the_env(runs, key)]
    methods: dict[tuple[str, ...], Method] = {}
    groups: dict[tuple[int, int], Group] = {}
    for i, run in enumerate(runs):
        values = tuple(_value(run, key) for key in keys)
        if values not in methods:
            methods[values] = Method(
                _label(keys, values) or run.algo or "all runs", dict(zip(keys, values, strict=True))
            )
        method, env = list(methods).index(values), envs.index(run.env)
        groups.setdefault((method, env), Group(method, env, [])).runs.append(i)
    return Grouping(keys, list(methods.values()), envs, list(groups.values()))


def _candidates(collection: Collection) -> list[str]:
    """What was swept, in the order typed; for runs outside of a sweep, everything that was asked for."""
    keys = [key for sweep in collection.sweeps for key in sweep.swept]
    keys += [key for run in collection.runs if not run.sweep for key in ("algo", *run.choices)]
    if len(collection.sweeps) > 1 or any(not run.sweep for run in collection.runs):
        keys.insert(0, "algo")
    kept = (k for k in keys if k not in ASIDE and k.split(".")[0].split("/")[0] not in ASIDE_GROUPS)
    return list(dict.fromkeys(kept))


def _value(run: Run, key: str) -> str:
    """What a run has under a key: as it was asked for, else as its config has it."""
    if key in run.choices:
        return run.choices[key]
    if key == "algo" and run.algo:
        return run.algo
    value = run.config.get(key)
    return DEFAULT if value is None else str(value)


def _says_the_env(runs: list[Run], key: str) -> bool:
    """Whether a key tells no more than the env does, which has a place of its own."""
    if key not in ("env", "env.id"):
        return False
    return len({(_value(run, key), run.env) for run in runs}) == len({run.env for run in runs})


def _label(keys: list[str], values: tuple[str, ...]) -> str:
    """Choices of a group by their names; of other values, also the last part of the key."""
    parts = (v if "." not in k else f"{k.rpartition('.')[2]}={v}" for k, v in zip(keys, values, strict=True))
    return " · ".join(parts)
