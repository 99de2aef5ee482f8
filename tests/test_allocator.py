"""Freed memory can be kept."""

from __future__ import annotations

import torch

from rlx.allocator import keep_freed_memory
from rlx.nn.mlp import MLP


def test_freed_memory_can_be_kept() -> None:
    keep_freed_memory()
    assert MLP([2, 3, 1])(torch.ones(1, 2)).shape == (1, 1)
