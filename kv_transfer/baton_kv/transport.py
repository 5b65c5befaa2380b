"""How a worker's blocks may travel, as settings name it."""

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
    """What UCX finds: RDMA, or TCP; an optional extra. `auto` never takes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listen:
    """Where the TCP transport waits for pullers."""

    host: str = "127.0.0.1"
    """Address of an interface, one of IPv6 in brackets; `0.0.0.0` and `[::]` are all of them."""
    port: int = 0
    """0 takes any."""
    advertised_host: str = ""
    """What pullers connect to; empty stands for `host`. An address is better than a name, which is looked up
    on the one thread that also keeps up a puller's other connections."""
    curve: CurveKeys | None = None
    """What encrypts the blocks, and keeps out who has not been told the pool's description."""
