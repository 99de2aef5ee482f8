"""Data: offline datasets and their sources, mixtures, windows, and the replay of online runs."""

from rlx.data.dataset import TransitionDataset
from rlx.data.inspect import inspect_dataset
from rlx.data.mixing import mix_transition_datasets
from rlx.data.sources import load_transition_dataset
from rlx.data.windows import WindowReader, WindowSampler, sample_trajectory_windows

__all__ = [
    "TransitionDataset",
    "WindowReader",
    "WindowSampler",
    "inspect_dataset",
    "load_transition_dataset",
    "mix_transition_datasets",
    "sample_trajectory_windows",
]
