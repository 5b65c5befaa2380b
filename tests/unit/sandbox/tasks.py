"""Work that a bounded process does in these tests."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any


def make(prefix: str) -> Callable[[bytes], bytes]:
    """Return what does a task: a JSON list of a name and an argument."""

    def work(task: bytes) -> bytes:
        name, argument = json.loads(task)
        return f"{prefix}{_TASKS[name](argument)}".encode()

    return work


def broken() -> Callable[[bytes], bytes]:
    raise ValueError("its settings are wrong")


def _spin(_: Any) -> None:
    sum(range(10**12))


def _hold_interpreter(_: Any) -> None:
    3 ** (10**9)


def _allocate(num_bytes: int) -> int:
    return len(bytearray(num_bytes))


def _fail(text: str) -> None:
    raise ValueError(text)


_TASKS: dict[str, Callable[[Any], Any]] = {
    "echo": lambda value: value,
    "pid": lambda _: os.getpid(),
    "spin": _spin,
    "hold": _hold_interpreter,
    "sleep": time.sleep,
    "allocate": _allocate,
    "fail": _fail,
    "abort": lambda _: os.abort(),
    "environment": lambda _: " ".join(sorted(os.environ)),
    "niceness": lambda _: os.nice(0),
    "print": sys.stderr.write,
}
