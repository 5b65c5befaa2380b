"""The threads that help a caller of the C++ kernels: from however many threads one calls, in a fork too."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from baton_kernels.cpu.linear_structs import PackedLinearArgs
from baton_kernels.cpu.packed import pack
from baton_kernels.cpu.variants import PLAIN
from baton_kernels.interface.kernels import NOT_GATED
from tests.unit.kernels.cpu_builds import load

WITHIN_S: Final = 30.0
X: Final = torch.randn(40, 96, generator=torch.Generator().manual_seed(0))
WEIGHT: Final = torch.randn(384, 96, generator=torch.Generator().manual_seed(1))
EXPECTED: Final = functional.linear(X.double(), WEIGHT.double())


def multiply(num_threads: int) -> Tensor:
    library, out = load(PLAIN), torch.empty(len(X), len(WEIGHT))
    packed_weight = pack(library, WEIGHT, library.packed_layout(WEIGHT.dtype).panel_width, depth=1)
    args = PackedLinearArgs(
        x=X.data_ptr(),
        packed_weight=packed_weight.data_ptr(),
        bias=None,
        out=out.data_ptr(),
        x_stride=X.stride(0),
        num_rows=len(X),
        in_features=X.shape[1],
        out_features=len(WEIGHT),
        num_threads=num_threads,
        is_bfloat16=False,
        function=NOT_GATED,
    )
    library.run(args)
    return out


def num_os_threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def test_any_number_of_threads_computes_the_same() -> None:
    alone = multiply(1)
    torch.testing.assert_close(alone.double(), EXPECTED, rtol=0, atol=1e-4)
    for num_threads in (2, 3, 16, 2):
        for _ in range(50):
            assert torch.equal(multiply(num_threads), alone)


def test_helpers_asleep_are_woken() -> None:
    alone = multiply(1)
    for _ in range(5):
        time.sleep(0.01)
        assert torch.equal(multiply(2), alone)


def test_each_calling_thread_has_helpers_that_end_with_it() -> None:
    alone = multiply(1)
    before = num_os_threads()
    with ThreadPoolExecutor(6) as callers:
        results = list(callers.map(multiply, [3] * 60))
    assert all(torch.equal(result, alone) for result in results)
    deadline = time.monotonic() + WITHIN_S
    while num_os_threads() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert num_os_threads() <= before


def compute_in_a_fork() -> None:
    alone = multiply(2)
    child = os.fork()
    same = torch.equal(multiply(2), alone)
    if not child:
        os._exit(0 if same else 1)
    assert same
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.slow
def test_a_fork_starts_helpers_of_its_own() -> None:
    """In a process of its own, which ends as any other: the forked one has nobody to wait for."""
    module = compute_in_a_fork.__module__
    script = f"from {module} import compute_in_a_fork; compute_in_a_fork()"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=WITHIN_S)
