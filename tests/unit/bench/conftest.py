"""Lets the tests import the programs of `bench` as those import each other: by their bare names."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[3] / "bench"))
