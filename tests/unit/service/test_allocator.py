"""Memory of large allocations goes back to the system, whatever small objects outlive them."""

from __future__ import annotations

import subprocess
import sys
from typing import Final

import pytest

MIB: Final = 1 << 20
PROGRAM: Final = """
import ctypes, re, sys
from pathlib import Path
from threading import Thread
from baton_service.allocator import return_freed_memory

def resident_kib():
    return int(re.search(r"VmRSS:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

def allocate_and_free():
    first = b"x" * (24 << 20)
    del first  # raises the size from which glibc maps an allocation
    larges = []
    for number in range(24):
        larges.append(b"x" * (4 << 20))
        small.append(bytes(1000))

small = []
if sys.argv[1] == "returns":
    assert return_freed_memory()
before = resident_kib()
thread = Thread(target=allocate_and_free)
thread.start()
thread.join()
print(resident_kib() - before)
"""


@pytest.mark.parametrize("mode", ["returns", "keeps"])
def test_what_was_freed_below_a_small_object_goes_back(mode: str) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, mode], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    kept_bytes = int(done.stdout) * 1024
    assert (kept_bytes < 8 * MIB) is (mode == "returns")
