"""Where datasets come from, one module for each source.

Every source is a config dataclass and a function `load_x(cfg, spec, seed) -> TransitionDataset` whose result is
checked against the env and has its box actions in [-1, 1]. One that makes envs or other sources also takes `trust`, the
modules that the user allows. Where there is no env, the Spec is taken from the data: files are then read with
`spec=None`, and `finish` is called once it is known. Configs name the functions here (`rlx.data.sources.load_npz`).
"""

from rlx.data.sources.base import ActionsOutside, DatasetConfig, Memory, choices_of, finish
from rlx.data.sources.hdf5 import Hdf5Config, load_hdf5, read_hdf5
from rlx.data.sources.in_memory import InMemoryConfig, as_dataset, load_in_memory
from rlx.data.sources.load import load_transition_dataset, read_any
from rlx.data.sources.minari import MinariConfig, load_minari
from rlx.data.sources.mix import MixConfig, load_mix
from rlx.data.sources.npz import NpzConfig, load_npz, read_npz
from rlx.data.sources.pt import PtConfig, load_pt, read_pt
from rlx.data.sources.random import RandomConfig, load_random, roll_out_random
from rlx.data.sources.run import RunConfig, load_run, read_replay, read_run

__all__ = [
    "ActionsOutside",
    "DatasetConfig",
    "Hdf5Config",
    "InMemoryConfig",
    "Memory",
    "MinariConfig",
    "MixConfig",
    "NpzConfig",
    "PtConfig",
    "RandomConfig",
    "RunConfig",
    "as_dataset",
    "choices_of",
    "finish",
    "load_hdf5",
    "load_in_memory",
    "load_minari",
    "load_mix",
    "load_npz",
    "load_pt",
    "load_random",
    "load_run",
    "load_transition_dataset",
    "read_any",
    "read_hdf5",
    "read_npz",
    "read_pt",
    "read_replay",
    "read_run",
    "roll_out_random",
]
