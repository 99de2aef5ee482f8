"""The card of an exported policy (README.md) and its example.

What they show comes from a run folder, which may be somebody else's: names are escaped for Markdown, text that was
typed stands in indented blocks on one line each, and what enters the example is the `repr` of plain values.
"""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Sequence
from typing import Any, NamedTuple

import gymnasium as gym
import yaml
from gymnasium import spaces

from rlx.envs.factory import REGISTERED_BY, EnvConfig, suite_of
from rlx.envs.observations import boxes_of
from rlx.errors import shown
from rlx.exports.folder import CARD, EXAMPLE, ONNX, WEIGHTS
from rlx.exports.graph import Port
from rlx.reporting import counted, in_digits
from rlx.types import Spec

MARKDOWN = re.compile(r"([\\`*_\[\]<>|#!~&])")


class Simulator(NamedTuple):
    """How others make the env of a policy, where it gives what the policy takes."""

    imports: tuple[str, ...]  # lines
    make: str  # an expression
    action: str  # what is done with an action, "{}", before the env takes it
    parts: tuple[str, ...]  # of its observations; none: a single array


def plain(text: Any) -> str:
    """Text of a file inside a line of Markdown."""
    return MARKDOWN.sub(r"\\\1", shown(text))


def block(lines: Sequence[str]) -> str:
    """An indented block of code, which nothing inside a line can end."""
    return "\n".join(f"    {shown(line, 2000)}" for line in lines)


def simulator_of(env: gym.Env, cfg: EnvConfig, spec: Spec) -> Simulator | None:
    """The env by its id, if nothing has been wrapped around it that changes observations; None if something has."""
    space, actions = env.unwrapped.observation_space, env.unwrapped.action_space
    if cfg.wrappers or not isinstance(space, spaces.Box | spaces.Dict):
        return None
    boxes = boxes_of(space)
    if (tuple(boxes.items()) != spec.boxes) if isinstance(boxes, dict) else (boxes != spec.obs.get("obs")):
        return None
    action = "{}"
    if isinstance(actions, spaces.Box) and actions.shape != spec.action_shape:
        action = f"{{}}.reshape({actions.shape!r})"
    elif isinstance(actions, spaces.Discrete) and int(actions.start) != 0:
        action = f"{{}} + {int(actions.start)}"
    limit = {"max_episode_steps": cfg.max_episode_steps} if cfg.max_episode_steps else {}
    parts = tuple(spec.obs) if spec.boxes else ()
    if suite_of(cfg.id) is not None:  # Gymnasium does not know the games and tasks by themselves
        values = {"id": cfg.id, **limit, **({"kwargs": dict(cfg.kwargs)} if cfg.kwargs else {})}
        arguments = ", ".join(f"{key}={value!r}" for key, value in values.items())
        return Simulator(
            ("from rlx.envs import EnvConfig, make_env",), f"make_env(EnvConfig({arguments}))", action, parts
        )
    arguments = "".join(f", {key}={value!r}" for key, value in {**limit, **cfg.kwargs}.items())
    if not all(key.isidentifier() for key in cfg.kwargs):
        return None
    registers = ["rlx.envs"] if cfg.id.startswith("rlx/") else []
    registers += [REGISTERED_BY[cfg.extra]] if cfg.extra in REGISTERED_BY else []
    return Simulator(
        ("import gymnasium as gym", *(f"import {name}  # registers the env" for name in registers)),
        f"gym.make({cfg.id!r}{arguments})",
        action,
        parts,
    )


# -- the example -------------------------------------------------------------------------------------------------------


def example(onnx: bool, simulator: Simulator | None, inputs: Sequence[Port]) -> str:
    """A script that runs the policy: an episode, or one step on an empty observation."""
    return (onnx_example if onnx else torch_example)(simulator, inputs)


def onnx_example(simulator: Simulator | None, inputs: Sequence[Port]) -> str:
    load = f'policy = ort.InferenceSession(Path(__file__).with_name("{ONNX}"))'
    memory = [port for port in inputs if port.name.startswith("carry_")]
    if simulator is None:
        arrays = ", ".join(f"{p.name!r}: np.zeros({(1, *p.shape)!r}, {p.dtype!r})" for p in inputs if p.name != "start")
        start = ', "start": np.array([True])' if memory else ""
        return _script(
            "An action for an empty observation. Needs: onnxruntime.",
            ["import numpy as np", "import onnxruntime as ort"],
            [load, f"inputs = {{{arrays}{start}}}", 'print(policy.run(["action"], inputs)[0])'],
        )
    act = simulator.action.format("action[0]")
    names = {f"obs.{part}": f"obs[{part!r}]" for part in simulator.parts} or {"obs": "obs"}
    kinds = {port.name: port.dtype for port in inputs}
    given = ", ".join(f"{name!r}: np.asarray({value}, {kinds[name]!r})[None]" for name, value in names.items())
    lines = [load, f"env = {simulator.make}", "(obs, _), total, over = env.reset(seed=0), 0.0, False"]
    if memory:
        carry = ", ".join(f"{p.name!r}: np.zeros({(1, *p.shape)!r}, {p.dtype!r})" for p in memory)
        lines += [f"carry = {{{carry}}}", "start, reward = True, 0.0"]
        given += ', "start": np.array([start])'
        given += ', "reward": np.array([reward], "float32")' if "reward" in kinds else ""
    lines.append("while not over:")
    if memory:
        lines += [
            f"    action, *after = policy.run(None, {{{given}, **carry}})",
            "    carry, start = dict(zip(carry, after)), False",
        ]
    else:
        lines.append(f'    (action,) = policy.run(["action"], {{{given}}})')
    lines += [
        f"    obs, reward, terminated, truncated, _ = env.step({act})",
        "    total, over = total + float(reward), terminated or truncated",
        "print(total)",
    ]
    needs = "rlx" if any("rlx" in line for line in simulator.imports) else "gymnasium"
    imports = in_order("import numpy as np", "import onnxruntime as ort", *simulator.imports)
    return _script(f"An episode with this policy. Needs: onnxruntime and {needs}.", imports, lines)


def torch_example(simulator: Simulator | None, inputs: Sequence[Port]) -> str:
    load = "policy = rlx.load(Path(__file__).parent)"
    if simulator is None:
        arrays = [(p.name, f"np.zeros({p.shape!r}, {p.dtype!r})") for p in inputs if p.name.startswith("obs")]
        parts = ", ".join(f"{name.removeprefix('obs.')!r}: {value}" for name, value in arrays)
        obs = f"{{{parts}}}" if arrays[0][0] != "obs" else arrays[0][1]
        return _script(
            "An action for an empty observation. Needs: rlx.",
            ["import numpy as np", "", "import rlx"],
            [load, f"print(policy.act({obs}))"],
        )
    lines = [
        load,
        f"env = {simulator.make}",
        "(obs, _), total, over = env.reset(seed=0), 0.0, False",
        "while not over:",
        f"    obs, reward, terminated, truncated, _ = env.step({simulator.action.format('policy.act(obs)')})",
        *(["    policy.feedback(reward)"] if any(port.name == "reward" for port in inputs) else []),
        "    total, over = total + float(reward), terminated or truncated",
        "print(total)",
    ]
    imports = in_order("import rlx", *simulator.imports)
    return _script("An episode with this policy. Needs: rlx and gymnasium.", imports, lines)


def in_order(*imports: str) -> list[str]:
    """As formatters sort them: `from` after `import`."""
    return sorted(imports, key=lambda line: (line.startswith("from"), line))


def _script(text: str, imports: Sequence[str], lines: Sequence[str]) -> str:
    return "\n".join([f'"""{text}"""', "", "from pathlib import Path", "", *imports, "", *lines, ""])


# -- the card ----------------------------------------------------------------------------------------------------------


def card(about: dict[str, Any], onnx: bool, licence: str | None) -> str:
    """README.md: front matter of the Hugging Face Hub, a table, how to use it, how it was trained."""
    algo, env, trained = about["algo"], about["env"], about["trained"]
    score = trained.get("return_mean")
    measured = "not evaluated" if score is None else f"{in_digits(score)} (mean evaluation return, raw rewards)"
    steps = ", ".join(counted(trained[key], noun) for key, noun in (("env_steps", "env step"), ("updates", "update")))
    rows = [
        ("algorithm", plain(algo)),
        ("environment", plain(env)),
        ("return", measured),
        ("trained for", f"{steps}, seed {about['config'].get('seed', 0)}"),
        ("licence", plain(licence) if licence else "none was chosen"),
        ("made with", plain(f"rlx {about['versions']['rlx']}, torch {about['versions']['torch']}")),
    ]
    weights = f"`{WEIGHTS}` has the weights; `rlx.load(FOLDER)` reads it back, without pickle."
    graph = f"`{ONNX}` is the policy as one graph, for onnxruntime and other runtimes. " if onnx else ""
    commands = about["commands"] or ["# not known: the run folder was not there"]
    return "\n".join(
        [
            "---",
            yaml.safe_dump(front_matter(about, licence), sort_keys=False, allow_unicode=True).rstrip(),
            "---",
            "",
            f"# {plain(algo)} on {plain(env)}",
            "",
            "The deterministic policy of a run of rlx. Raw observations go in and actions in the env's own units come",
            "out: normalisation and scaling are inside.",
            "",
            "| | |",
            "|---|---|",
            *(f"| {name} | {value} |" for name, value in rows),
            "",
            "## Use",
            "",
            f"    python {EXAMPLE}",
            "",
            f"{graph}{weights}",
            "",
            "| | name | row | dtype |",
            "|---|---|---|---|",
            *_ports("input", about["inputs"]),
            *_ports("output", about["outputs"]),
            "",
            "The first axis of each counts rows and may have any length."
            + (MEMORY if any(port["name"] == "start" for port in about["inputs"]) else ""),
            "",
            "## How it was trained",
            "",
            block(commands),
            "",
            "The whole config:",
            "",
            textwrap.indent(yaml.safe_dump(about["config"], sort_keys=False, allow_unicode=True).rstrip(), "    "),
            "",
            "## Licence",
            "",
            f"{plain(licence)}." if licence else f"None was chosen; add one here and in the head of {CARD}.",
            "",
        ]
    )


MEMORY = (
    " This policy remembers: `start` is true where an episode begins, and `carry_i` is what `next_carry_i` was at the "
    "step before, or zeros at the first."
)


def _ports(kind: str, ports: Sequence[dict[str, Any]]) -> list[str]:
    return [f"| {kind} | {plain(p['name'])} | {plain(list(p['shape']))} | {p['dtype']} |" for p in ports]


def front_matter(about: dict[str, Any], licence: str | None) -> dict[str, Any]:
    """What the Hugging Face Hub reads."""
    algo, env, score = shown(about["algo"]), shown(about["env"]), about["trained"].get("return_mean")
    head: dict[str, Any] = {"library_name": "rlx", "pipeline_tag": "reinforcement-learning"}
    head |= {"license": shown(licence)} if licence else {}
    head["tags"] = ["reinforcement-learning", "deep-reinforcement-learning", algo, env]
    if score is not None:
        result = {
            "task": {"type": "reinforcement-learning", "name": "reinforcement-learning"},
            "dataset": {"name": env, "type": env},
            "metrics": [{"type": "mean_reward", "name": "mean_reward", "value": round(float(score), 3)}],
        }
        head["model-index"] = [{"name": f"{algo} on {env}", "results": [result]}]
    return head


def command(overrides: Sequence[str]) -> str:
    """What was typed, to be typed again; where it went is nobody's business."""
    typed = [shlex.quote(o) for o in overrides if not o.lstrip("+").startswith("run_dir=")]
    return " ".join(["python -m rlx", *typed])
