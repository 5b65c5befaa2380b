"""The descriptors that this process has, and may have: each connection takes one."""

from __future__ import annotations

import io
import os
import resource
import sys
from dataclasses import dataclass
from typing import Final

from baton_core.errors import InvalidConfigError
from baton_service.grpc_options import MAX_CONNECTIONS

MIN_DESCRIPTORS: Final = 256
"""Soft limit with which a service starts."""
_UNLIMITED: Final = 2**20
_RESERVED: Final = 128
"""Descriptors for files, Redis, connections made by this process, and those about to be closed."""
_GRPC_SHARE: Final = 4
"""One in so many of what is left is kept for gRPC, whose clients are workers too."""


def open_standard_files() -> None:
    """Open /dev/null in place of each of stdin, stdout and stderr that was closed before Python started.

    What the locale of stdout has no character for is written as an escape. Where Python does not buffer
    stdout, its lines are: what a full file does not take stays there, so that the end tells it.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)  # the lowest number that is free, in this order
            os.set_inheritable(descriptor, True)
            setattr(sys, name, os.fdopen(descriptor, mode, encoding="utf-8"))
    if isinstance(sys.stdout, io.TextIOWrapper):
        if isinstance(sys.stdout.buffer, io.RawIOBase):
            file, encoding = sys.stdout.fileno(), sys.stdout.encoding
            sys.stdout = os.fdopen(file, "w", buffering=1, encoding=encoding, closefd=False)
        sys.stdout.reconfigure(errors="backslashreplace")


def raise_descriptor_limit() -> None:
    """Let this process have as many descriptors as its hard limit allows; shells give it 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@dataclass(frozen=True, slots=True, kw_only=True)
class DescriptorShares:
    """Connections that each of a router's ports may have open."""

    num_allowed: int
    """Descriptors of the process."""
    max_http: int
    max_grpc: int

    @classmethod
    def divide(cls, max_http: int) -> DescriptorShares:
        """Divide what this process has left now; HTTP gets `max_http` at most.

        Raises:
            InvalidConfigError: too few descriptors are allowed.
        """
        num_allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if num_allowed == resource.RLIM_INFINITY:
            num_allowed = _UNLIMITED
        if num_allowed < MIN_DESCRIPTORS:
            raise InvalidConfigError(
                f"the limit of open files (ulimit -n) is {num_allowed}; allowed: {MIN_DESCRIPTORS} or more"
            )
        num_left = max(num_allowed - _num_open() - _RESERVED, MIN_DESCRIPTORS - _RESERVED)
        max_http = min(max_http, num_left - num_left // _GRPC_SHARE)
        max_grpc = min(num_left - max_http, MAX_CONNECTIONS)
        return cls(num_allowed=num_allowed, max_http=max_http, max_grpc=max_grpc)


def _num_open() -> int:
    return len(os.listdir("/proc/self/fd"))
