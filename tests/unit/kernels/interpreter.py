"""Starts a module in Triton's interpreter, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]


def run_interpreted(module: str) -> dict[str, Any]:
    """Run `tests.unit.kernels.<module>` under TRITON_INTERPRET; return the JSON that it prints."""
    done = subprocess.run(
        [sys.executable, "-m", f"tests.unit.kernels.{module}"],
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=360,
    )
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report
