"""The deterministic policy as one function of tensors, and as an ONNX graph.

    obs             [N, ...] raw, as the env gives it; obs.NAME for each part where observations are dicts
    start           [N] bool, True where an episode begins (the carry is then ignored)   } of policies that
    reward          [N] of the step before, where a policy is told what it earned        } remember
    carry_0, ...    [N, ...] what next_carry_0, ... were at the step before; zeros at the very first

    action          [N, ...] in the env's own units, as `Policy.act` gives it
    next_carry_0, ...

N is any number. Normalisation of observations and scaling of actions are inside.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from rlx.envs.actions import box_scale
from rlx.errors import RunFailed, UserError, shown
from rlx.learner import Actor, Learner
from rlx.policy import Policy
from rlx.reporting import muted
from rlx.types import OBS, Carry, Spec

TOLERANCE = 1e-5  # of the ONNX graph's actions against those of `Policy.act`, in units of half the action's range
TIES = 0.02  # share of rows that may differ by more: two choices that are equally good up to rounding
OPSET = 18
CONVERTERS = ("torch.onnx", "torch.export", "onnxscript", "onnx_ir")  # loggers that tell their developers things
LARGEST = 2**31 - 2**20  # bytes of an ONNX file


class Port(NamedTuple):
    """An input or an output: its name, and shape and dtype of a row."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    def zeros(self, rows: int) -> np.ndarray:
        return np.zeros((rows, *self.shape), self.dtype)


class PolicyGraph(nn.Module):
    """A learner's actor from raw observations to actions in the env's units; its carry goes in and comes out."""

    action_half: Tensor  # see `box_scale`
    action_middle: Tensor
    action_limit: Tensor

    def __init__(self, learner: Learner):
        super().__init__()
        self.learner, self.spec = learner, learner.spec
        self.scaled = not self.spec.discrete
        if self.scaled:
            low, high = np.array(self.spec.action_low, np.float32), np.array(self.spec.action_high, np.float32)
            for name, values in zip(
                ("action_half", "action_middle", "action_limit"), box_scale(low, high), strict=True
            ):
                self.register_buffer(name, torch.from_numpy(values))
        with torch.no_grad():
            self.initial = learner.actor.initial(1)
        for i, part in enumerate(self.initial):
            self.register_buffer(f"initial_{i}", part)
        self.takes_reward = bool(self.initial) and type(learner.actor).feedback is not Actor.feedback

    def inputs(self) -> list[Port]:
        boxes = zip(obs_names(self.spec), self.spec.obs.values(), strict=True)
        ports = [Port(name, box.shape, box.dtype) for name, box in boxes]
        if self.initial:
            ports.append(Port("start", (), "bool"))
        if self.takes_reward:
            ports.append(Port("reward", (), "float32"))
        return [*ports, *self._carry("carry")]

    def outputs(self) -> list[Port]:
        action = Port("action", self.spec.action_shape, "float32" if self.scaled else "int64")
        return [action, *self._carry("next_carry")]

    def _carry(self, name: str) -> list[Port]:
        kinds = ((tuple(part.shape[1:]), str(part.dtype).removeprefix("torch.")) for part in self.initial)
        return [Port(f"{name}_{i}", shape, dtype) for i, (shape, dtype) in enumerate(kinds)]

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        rest = iter(inputs)
        parts = {name: next(rest) for name in self.spec.obs}
        obs: Any = parts if self.spec.boxes else parts[OBS]
        actor = self.learner.actor
        carry: Carry = ()
        if self.initial:
            start = next(rest)
            reward = next(rest) if self.takes_reward else None
            carry = tuple(rest)
            if reward is not None:
                carry = actor.feedback(carry, reward)
            fresh = [getattr(self, f"initial_{i}") for i in range(len(carry))]
            carry = tuple(
                torch.where(start.view(-1, *(1,) * (old.dim() - 1)), new, old)
                for old, new in zip(carry, fresh, strict=True)
            )
        acted = actor.act(obs, carry, False)
        action = acted.action
        if self.scaled:
            action = (
                torch.minimum(torch.maximum(action, -self.action_limit), self.action_limit) * self.action_half
                + self.action_middle
            )
        return action, *acted.carry


def obs_names(spec: Spec) -> list[str]:
    """How the graph calls the parts of an observation."""
    return [f"{OBS}.{name}" for name in spec.obs] if spec.boxes else [OBS]


def to_onnx(graph: PolicyGraph) -> bytes:
    """The graph as an ONNX file, compared with the policy that it is of."""
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise UserError(
            f"--format onnx needs the package {error.name}, which is not installed: pip install -e '.[export]' in a "
            "checkout of rlx, or use --format torch."
        ) from error
    if sum(tensor.nbytes for tensor in graph.state_dict().values()) > LARGEST:
        raise UserError("The networks are larger than the 2 GiB that an ONNX file holds; use --format torch.")
    name = graph.learner.cfg.name
    try:
        with torch.no_grad(), muted(*CONVERTERS):
            model = _converted(graph)
    except Exception as error:  # whatever a tracer says of an actor that it cannot follow
        text = shown(" ".join(str(error).split()))
        raise RunFailed(
            f"The policy of algo={name} cannot be written as one graph ({text}); use --format torch."
        ) from error
    worst = largest_difference(graph, model)
    if worst > TOLERANCE:
        raise RunFailed(
            f"The ONNX graph of algo={name} differs from the policy by {worst:.1e} and was not written; use "
            "--format torch."
        )
    return model


def _converted(graph: PolicyGraph) -> bytes:
    inputs, outputs = graph.inputs(), graph.outputs()
    rows = torch.export.Dim("N")
    examples = tuple(torch.from_numpy(port.zeros(2)) for port in inputs)
    program = torch.export.export(
        graph, examples, dynamic_shapes=(tuple({0: rows} for _ in inputs),), strict=False
    )  # fmt: skip
    made = torch.onnx.export(
        program,
        dynamo=True,
        input_names=[port.name for port in inputs],
        output_names=[port.name for port in outputs],
        opset_version=OPSET,
        verbose=False,
    )
    assert made is not None
    model = made.model_proto
    # The converter notes the place in the source of every node, with the folders of this machine.
    model.ClearField("metadata_props")
    for part in (model.graph, *model.functions):
        for item in (part, *part.node, *part.value_info):
            item.ClearField("metadata_props")
            item.ClearField("doc_string")
    for value in (*model.graph.input, *model.graph.output, *model.graph.initializer):
        value.ClearField("metadata_props")
        value.ClearField("doc_string")
    data: bytes = model.SerializeToString()
    return data


class OnnxPolicy:
    """An ONNX file of ours at work in N episodes, as `Policy` is."""

    def __init__(self, model: bytes):
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        self.carry: dict[str, np.ndarray] = {}

    def act(self, obs: dict[str, np.ndarray], start: np.ndarray, reward: np.ndarray) -> np.ndarray:
        names = [port.name for port in self.session.get_inputs()]
        given = {**obs, "start": start, "reward": reward, **self.carry}
        action, *carry = self.session.run(None, {name: given[name] for name in names})
        self.carry = dict(zip((name for name in names if name.startswith("carry_")), carry, strict=True))
        found: np.ndarray = action
        return found


def largest_difference(graph: PolicyGraph, model: bytes, steps: int = 4) -> float:
    """Of the actions of `Policy.act` and of its ONNX graph, in units of half the action's range; for policies that
    choose, a few ties aside.
    """
    rng = np.random.default_rng(0)
    differences = []
    for rows in (1, 3, 40):
        policy, exported = Policy(graph.learner), OnnxPolicy(model)
        exported.carry = {p.name: p.zeros(rows) for p in graph.inputs() if p.name.startswith("carry_")}
        reward = np.zeros(rows, np.float32)
        start = np.ones(rows, bool)
        for _ in range(steps):
            policy.reset(np.flatnonzero(start).tolist())
            obs = random_obs(graph.learner, rows, rng)
            expected = policy.act(obs if graph.spec.boxes else obs[OBS])
            named = dict(zip(obs_names(graph.spec), obs.values(), strict=True))
            found = exported.act(named, start, reward)
            differences.append(_apart(expected, found, graph))
            reward = rng.standard_normal(rows).astype(np.float32)
            start = rng.random(rows) < 0.25
            if graph.initial:
                policy.feedback(reward)
    worst = np.sort(np.concatenate(differences))
    chooses = graph.spec.action_kind != "box" or graph.learner.ranks_actions
    return float(worst[len(worst) - 1 - int(TIES * len(worst) if chooses else 0)])


def random_obs(learner: Learner, rows: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Observations by name, distributed as those that the policy was trained with where that is known."""
    obs: dict[str, np.ndarray] = {}
    for name, box in learner.spec.obs.items():
        if box.dtype == "uint8":
            obs[name] = rng.integers(0, 256, (rows, *box.shape), np.uint8)
            continue
        obs[name] = rng.standard_normal((rows, *box.shape)).astype(np.float32)
        if learner.cfg.normalize_obs:
            obs[name] = obs[name] * learner.obs_std.cpu().numpy() + learner.obs_mean.cpu().numpy()
    return obs


def _apart(expected: np.ndarray, found: np.ndarray, graph: PolicyGraph) -> np.ndarray:
    """[N] how far apart the actions of each row are; for choices, whether they differ."""
    difference: np.ndarray = np.abs(expected.astype(np.float64) - found)
    if graph.scaled:
        difference /= np.maximum(graph.action_half.numpy(), 1.0) * np.maximum(np.abs(expected), 1.0)
    worst: np.ndarray = difference.reshape(len(difference), -1).max(1)
    return worst
