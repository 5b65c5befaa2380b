"""The transports of KV blocks, as settings name them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from baton_kv.curve import CurveKeys


class Transport(StrEnum):
    AUTO = "auto"
    """Shared memory where a peer's can be read, TCP elsewhere."""
    SHARED_MEMORY = "shared_memory"
    TCP = "tcp"
    NIXL = "nixl"
    """RDMA or TCP, as UCX finds it; an optional extra. `auto` never takes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listen:
    """The address at which the TCP transport waits for consumers."""

    host: str = "127.0.0.1"
    """Address of an interface, one of IPv6 in brackets; `0.0.0.0` and `[::]` are all of them."""
    port: int = 0
    """0 takes any."""
    advertised_host: str = ""
    """Host that consumers connect to; empty stands for `host`. An address is better than a name, which is
    looked up on the one thread that also keeps up a consumer's other connections."""
    curve: CurveKeys | None = None
    """Keys that encrypt the blocks, and keep out anyone without the pool's description."""
