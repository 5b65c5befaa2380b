"""The transports of KV blocks, as settings name them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from baton_core.errors import InvalidConfigError

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
    """Host that consumers connect to, an address or a name; empty stands for `host`."""
    curve: CurveKeys | None = None
    """Keys that encrypt the blocks, and keep out anyone without the pool's description."""

    @property
    def endpoint(self) -> str:
        return f"tcp://{self.host}:{self.port}"

    def advertised(self, port: int | str) -> str:
        """Return the endpoint that consumers connect to, given the port that was taken."""
        return f"tcp://{self.advertised_host or self.host}:{port}"

    def refusal(self, reason: str | None) -> InvalidConfigError:
        """Return the error of an address that cannot be bound."""
        return InvalidConfigError(
            f"the address for KV blocks is {self.endpoint!r}, which cannot be bound ({reason}); "
            "allowed: an address of this machine and a port that is not in use"
        )
