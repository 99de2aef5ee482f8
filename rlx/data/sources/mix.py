"""Several sources in a fixed ratio; rlx/data/mixing.py says how they are mixed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

from omegaconf import OmegaConf

from rlx.config import escaped, instantiate
from rlx.data.dataset import TransitionDataset
from rlx.data.mixing import mix_transition_datasets
from rlx.data.sources.base import DatasetConfig
from rlx.errors import UserError
from rlx.types import Spec


@dataclass
class MixConfig(DatasetConfig):
    """Several datasets in a fixed ratio."""

    _target_: str = "rlx.data.sources.load_mix"
    sources: dict[str, Any] = field(default_factory=dict)  # name -> any dataset
    ratios: dict[str, float] = field(default_factory=dict)  # name -> share; they need not add up to 1
    size: int | None = None  # transitions in all; null: as many as there are without repeating any
    exact_per_batch: bool = False  # keep the ratio in every batch instead of in the rows
    oversample: bool = False  # repeat episodes of a source that is too small for its share of `size`


def load_mix(cfg: MixConfig, spec: Spec, seed: int = 0, trust: Sequence[str] = ()) -> TransitionDataset:
    if not cfg.sources:
        raise UserError(
            "dataset=mix has no sources: add one with +dataset@dataset.sources.NAME=npz and give its ratio."
        )
    for name, source in cfg.sources.items():
        if source is None:
            raise UserError(
                f"dataset.sources.{name} is null and a mix has no empty sources; choose one with "
                f"+dataset@dataset.sources.{name}=npz, or leave it out with its ratio."
            )
    nodes = {name: OmegaConf.create({"source": _as_node(source)})["source"] for name, source in cfg.sources.items()}
    for field_name in ("terminals", "episodes"):
        if getattr(cfg, field_name) != "check":
            raise UserError(
                f"dataset.{field_name} cannot be set for a mix; set dataset.sources.NAME.{field_name}=... instead."
            )
    datasets = {}
    for i, (name, node) in enumerate(nodes.items()):
        try:
            datasets[name] = instantiate(node, spec, seed + i, trust=trust)
        except UserError as error:  # what to type has to name the source
            said = re.sub(r"\bdataset\.(?=[a-z_]+=)", f"dataset.sources.{name}.", str(error))
            raise UserError(said) from error
    return mix_transition_datasets(
        datasets, cfg.ratios, size=cfg.size, seed=seed, exact_per_batch=cfg.exact_per_batch, oversample=cfg.oversample
    )


def _as_node(value: Any) -> Any:
    """What a source was made into, as OmegaConf takes it; the values are resolved and have nothing to interpolate."""
    if is_dataclass(value) and not isinstance(value, type):
        values = {f.name: _as_node(getattr(value, f.name)) for f in fields(value)}
        return OmegaConf.merge(OmegaConf.structured(type(value)), values)
    if isinstance(value, dict):
        return {key: _as_node(child) for key, child in value.items()}
    return escaped(value)
