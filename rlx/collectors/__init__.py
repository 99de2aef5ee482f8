"""Collectors: act in envs, wherever these are, and give back steps."""

from rlx.collectors.base import Collector, FinishedEpisode, Steps
from rlx.collectors.local import LocalCollector, LocalConfig

__all__ = ["Collector", "FinishedEpisode", "LocalCollector", "LocalConfig", "Steps"]
