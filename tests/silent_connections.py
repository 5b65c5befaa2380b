"""Clients that connect and say nothing, more of them than a service may have files open."""

from __future__ import annotations

import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Final

import pytest

from baton_service.descriptors import raise_descriptor_limit

NUM_SILENT: Final = 1100
NUM_DESCRIPTORS: Final = 1024
"""Files that a service may have open, as most shells have it."""


@contextmanager
def many_descriptors() -> Iterator[None]:
    """Let this process have both ends of the connections, or skip the test."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    raise_descriptor_limit()
    try:
        if 0 <= resource.getrlimit(resource.RLIMIT_NOFILE)[0] < 3 * NUM_SILENT:
            pytest.skip(f"this process may not open {3 * NUM_SILENT} files")
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@contextmanager
def silent_connections(port: int) -> Iterator[None]:
    """Connections that no byte is sent over, as many as there is place for in line."""
    with ExitStack() as stack:
        for _ in range(NUM_SILENT):
            connection = stack.enter_context(socket.socket())
            connection.setblocking(False)
            with suppress(BlockingIOError):
                connection.connect(("127.0.0.1", port))
        yield
