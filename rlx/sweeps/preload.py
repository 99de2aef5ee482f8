"""Imported by the server that jobs are forked from, so that none of them pays for it: torch, rlx and all schemas."""

from __future__ import annotations

from rlx.config import register
from rlx.sweeps.launchers import local

__all__ = ["local"]

register()
