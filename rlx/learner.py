"""Learner and Actor: the two faces of an algorithm.

A learner updates and can be saved. It owns its networks, its optimizers, the order of its gradients and the observation
statistics its policy was trained with; it knows nothing of loops, files or environments. Its actor acts: in training,
evaluation, predict, collect and export. What an actor has to remember from one step to the next is its carry; whoever
runs it keeps the carry, one row per lane, and starts it anew where an episode begins.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from rlx.errors import UserError, require
from rlx.fields import check_number, check_numbers, number
from rlx.nn import Optimizer
from rlx.nn.encoders import AutoConfig, Encoder, EncoderFactory, auto, orthogonal, passes_through
from rlx.types import Acted, Batch, Carry, Metrics, Obs, Spec


@dataclass
class AlgoConfig:
    """Fields that every algorithm has."""

    _target_: str = ""
    name: str = ""  # how the algorithm is called in folders, tables and summaries
    discount: float = number(0.99, least=0, most=1, read_once=True)
    batch_size: int = number(256, least=1)
    hidden: list[int] = field(default_factory=lambda: [256, 256])
    normalize_obs: bool = False  # standardise observations; the statistics are part of the policy


@dataclass
class ActorCriticConfig(AlgoConfig):
    """Of algorithms with a policy and with values: their networks may differ in size."""

    actor_hidden: list[int] | None = None  # layers of the policy; None: as `hidden`
    critic_hidden: list[int] | None = None  # layers of the critics and of other value functions; None: as `hidden`

    @property
    def actor_layers(self) -> list[int]:
        return self.hidden if self.actor_hidden is None else self.actor_hidden

    @property
    def critic_layers(self) -> list[int]:
        return self.hidden if self.critic_hidden is None else self.critic_hidden


MOST_LAYERS = 200  # beyond which a list of widths is a mistake


def is_learning_rate(name: str) -> bool:
    return name == "lr" or name.endswith("_lr")


def check_algo(values: Mapping[str, Any]) -> None:
    """Refuse numbers that no algorithm can use."""
    for name, value in values.items():
        if is_learning_rate(name):
            require(value > 0, f"algo.{name} must be above 0, for example algo.{name}=3e-4 ({value} was given).")
        if name == "hidden" or name.endswith("_hidden"):
            widths = f"algo.{name}={list(value or ())[:MOST_LAYERS]}"
            whole = all(type(n) is int and n >= 1 for n in value or ())
            require(whole, f"Every layer must have at least 1 unit ({widths}).")
            require(len(value or ()) <= MOST_LAYERS, f"algo.{name} must have at most {MOST_LAYERS} layers.")
    rows, discount = values["batch_size"], values["discount"]
    require(rows >= 1, f"algo.batch_size must be at least 1 (algo.batch_size={rows}).")
    require(0 <= discount <= 1, f"algo.discount must be between 0 and 1 (algo.discount={discount}).")


def _current_name(name: str) -> str:
    """What a tensor of a checkpoint is called today; networks of policies were called actors until format 2."""
    return re.sub(r"^model\.(target_)?actor\.", r"model.\1policy.", name)


class Actor:
    """Acts for a learner. This one is for policies without memory, which are a function `act(obs, explore)`.

    A policy with memory overrides all three: `initial` gives the carry of n lanes at the start of an episode, `act`
    takes the carry of each lane and returns the next one, and `feedback` lets the carry know what a step earned, for
    policies that are conditioned on returns.
    """

    def __init__(self, learner: Learner):
        self.learner = learner

    @property
    def remembers(self) -> bool:
        """Does it act by more than the observation?"""
        return bool(self.initial(1))

    def initial(self, n: int) -> Carry:
        """The carry of n lanes that begin an episode: tensors [n, ...]."""
        return ()

    def act(self, obs: Obs, carry: Carry, explore: bool) -> Acted:
        """Actions for raw observations [N, ...], and the carry of the next step; no gradients."""
        return Acted(self.learner.act(obs, explore))

    def feedback(self, carry: Carry, reward: Tensor) -> Carry:
        """The carry once the rewards [N] of the step, in the env's units, are known."""
        return carry


class Learner(nn.Module):
    """Base of all algorithms. Class attributes say what fits; `config.check` reads them before any work."""

    reads: type = Batch  # what `update` takes: Batch, Windows or Rollout
    window: int = 1  # rows of each window, where it reads Windows
    explored: int = 0  # env steps that the policy has taken to explore; counted by the collector, read by schedules

    actions: tuple[str, ...] = ("box",)  # action kinds it can handle: "box", "discrete", "multi_discrete"
    regimes: tuple[str, ...] = ("off_policy",)  # regimes it can run in, its usual one first
    images: bool = False  # can it read image observations
    ranks_actions: bool = False  # does its policy take the best of several continuous actions; equals go by rounding
    needs_mc_return: bool = False  # does it read `batch.mc_return`
    needs_returns: bool = False  # does it take the episode returns of the dataset (`set_returns`)
    options: tuple[str, ...] = ()  # numbers of its config that whoever uses the policy may change (`set_options`)
    obs_mean: Tensor  # buffers, there if `normalize_obs`
    obs_std: Tensor
    prioritized: bool = False  # does it weigh its loss by `batch.weight` and set `td_error`
    native: bool | None = None  # does it act by native nodes; None, while it learns: as the process computes
    td_error: Tensor | None = None  # [B] of the last update, set where `batch.index` asks for new priorities

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"captured": {}}  # programs work on the memory of the learner that made them

    def __init__(self, cfg: AlgoConfig, spec: Spec, encoder: EncoderFactory | None = None):
        super().__init__()
        self._encoder: EncoderFactory = encoder or functools.partial(auto, AutoConfig())
        self.shared_encoder: Encoder | None = None  # of policy and values, see `make_encoders`
        check_algo(vars(cfg))
        check_numbers(cfg, "algo")
        self.cfg = cfg
        self.spec = spec
        self.updates = 0  # calls of `update` so far
        self.optimizers: dict[str, Optimizer] = {}  # filled by subclasses; saved, and driven by schedules
        self.captured: dict[Any, Any] = {}  # what rlx.capturing knows of its methods
        self.captures = all(len(box.shape) == 1 for box in spec.obs.values())  # pictures would fill the memory
        if cfg.normalize_obs:
            vectors = not spec.boxes and spec.obs_dtype != "uint8" and len(spec.obs_shape) == 1
            require(
                vectors,
                f"algo.normalize_obs=true is for vectors and {spec.env_id} has images; use algo.normalize_obs=false.",
            )
            self.register_buffer("obs_mean", torch.zeros(spec.obs_shape))
            self.register_buffer("obs_std", torch.ones(spec.obs_shape))

    def make_encoder(self, init: str = "uniform") -> Encoder | int:
        """An encoder for one more network, which starts "uniform" or "orthogonal" as that does; the number of inputs
        where observations are vectors, which need none.
        """
        encoder = self._encoder(self.spec)
        require(
            isinstance(encoder, nn.Module) and hasattr(encoder, "dim"),
            f"The encoder {type(encoder).__name__} has to be a torch.nn.Module with an attribute dim, the number of "
            "its features; set self.dim in its __init__.",
        )
        if passes_through(encoder, self.spec):
            return encoder.dim
        require(
            self.images,
            f"algo={self.cfg.name} reads vectors and takes no encoder; use encoder=auto and an env with vectors.",
        )
        if init == "orthogonal":
            orthogonal(encoder)
        return encoder

    def make_encoders(self, shared: bool) -> tuple[Encoder | int, Encoder | int]:
        """What a policy and its values read: observations through an encoder each, or features of one for both."""
        first = self.make_encoder("orthogonal")
        if not shared:
            return first, self.make_encoder("orthogonal")
        if isinstance(first, int):
            return first, first
        self.shared_encoder = first
        return first.dim, first.dim

    def features(self, obs: Any) -> Any:
        """Normalised observations as the networks read them: through the encoder that they share, if they do."""
        return obs if self.shared_encoder is None else self.shared_encoder(obs)

    @property
    def obs_width(self) -> int:
        """How many numbers an observation has, for learners that read vectors only."""
        width = self.make_encoder()
        assert isinstance(width, int)
        return width

    @property
    def actor(self) -> Actor:
        """What acts; a learner with memory returns an actor of its own."""
        return Actor(self)

    def act(self, obs: Any, explore: bool) -> Tensor:
        """Actions [N, dim(A)] in [-1, 1] (or int64 [N]) for raw observations [N, *obs_shape]; no gradients."""
        raise NotImplementedError(f"{type(self).__name__} does not define act")

    def update(self, batch: Any) -> Metrics:
        """One step of learning from a Batch, or from a Rollout; detached 0-d tensors under stable names."""
        raise NotImplementedError(f"{type(self).__name__} does not define update")

    def normalize(self, obs: Tensor) -> Tensor:
        """Raw observations as the networks see them."""
        if not self.cfg.normalize_obs:
            return obs
        return (obs - self.obs_mean) / self.obs_std

    def normalized(self, batch: Batch) -> Batch:
        if not self.cfg.normalize_obs:
            return batch
        return batch._replace(obs=self.normalize(batch.obs), next_obs=self.normalize(batch.next_obs))

    def set_normalizer(self, mean: Tensor, std: Tensor) -> None:
        """Take the observation statistics of a dataset (std + 1e-3, as TD3+BC does)."""
        self.obs_mean.copy_(mean)
        self.obs_std.copy_(std + 1e-3)

    def set_returns(self, returns: Tensor) -> None:
        """Take the undiscounted returns [E] of a dataset's episodes, in the env's units."""
        raise NotImplementedError(f"{type(self).__name__} does not define set_returns")

    def set_options(self, values: Mapping[str, float]) -> None:
        """Change numbers that only acting reads, such as the return to ask for."""
        for name, value in values.items():
            if name not in self.options:
                known = f"it takes {', '.join(self.options)}" if self.options else "it has none"
                raise UserError(f"algo={self.cfg.name} has no option {name}; {known}.")
            check_number(self.cfg, name, value, "algo")
            setattr(self.cfg, name, value)

    def due(self, every: int) -> bool:
        """True on every `every`-th update, counting the one under way."""
        return self.updates % every == 0

    def tensors(self) -> dict[str, Tensor]:
        """Everything a checkpoint has to hold of this learner, by name; live tensors, not copies."""
        tensors = {f"model.{k}": v for k, v in self.state_dict().items()}
        for name, optimizer in self.optimizers.items():
            tensors |= {f"optimizer.{name}.{k}": v for k, v in optimizer.tensors().items()}
        return tensors

    def load_tensors(self, saved: dict[str, Tensor], optimizers: bool = True) -> None:
        """Copy saved values into the live tensors; names, shapes and dtypes have to be exactly ours.

        Without `optimizers`, those of the networks alone: all that an exported policy has.
        """
        live = {name: tensor for name, tensor in self.tensors().items() if optimizers or name.startswith("model.")}
        saved = {_current_name(name): tensor for name, tensor in saved.items()}
        if live.keys() != saved.keys():
            odd = sorted(live.keys() ^ saved.keys())[0]
            raise UserError(f"The checkpoint does not fit {self.cfg.name}: only one of the two has the tensor {odd!r}.")
        with torch.no_grad():
            for name, tensor in live.items():
                if tensor.shape != saved[name].shape:
                    raise UserError(
                        f"The checkpoint does not fit {self.cfg.name}: {name!r} has shape {tuple(saved[name].shape)}, "
                        f"expected {tuple(tensor.shape)}; use the network sizes and the env it was trained with."
                    )
                if tensor.dtype != saved[name].dtype:
                    raise UserError(
                        f"The checkpoint does not fit {self.cfg.name}: {name!r} has dtype {saved[name].dtype}, "
                        f"expected {tensor.dtype}."
                    )
                if not saved[name].isfinite().all():
                    raise UserError(f"{name!r} of the checkpoint is not finite; use another checkpoint of the run.")
                tensor.copy_(saved[name])

    def counters(self) -> dict[str, int]:
        """Python-side state for the checkpoint."""
        return {"updates": self.updates, "explored": self.explored}

    def load_counters(self, saved: dict[str, int]) -> None:
        self.updates = saved["updates"]
        self.explored = saved.get("explored", 0)  # until format 2 only those that read it had one
