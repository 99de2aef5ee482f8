"""Offline learning on Pendulum: every algorithm beats the behaviour that it learned from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import rlx
