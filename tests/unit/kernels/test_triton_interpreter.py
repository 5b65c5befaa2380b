import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.kernels.interpreted_decode import CASES

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def largest_errors() -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.unit.kernels.interpreted_decode"],
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    errors: dict[str, float] = json.loads(done.stdout)
    return errors


@pytest.mark.parametrize("name", CASES)
def test_the_interpreted_kernels_equal_the_reference(name: str, largest_errors: dict[str, float]) -> None:
    assert largest_errors[name] <= CASES[name].tolerance
