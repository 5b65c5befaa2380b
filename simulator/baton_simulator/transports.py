"""The transports of a simulated cluster, with the guarantees of each."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """A kind of transport."""

    name: str
    has_checksums: bool = True
    """True if the consumer compares checksums; otherwise it asks whether the lease held."""
    is_abort_safe: bool = True
    """True if nothing is written after an abort."""
    uses_network: bool = False
    """True if its bytes share the links, and wait where one is down."""
    stops_with_consumer: bool = True
    """True if a frozen consumer copies nothing; a network card continues."""
    stops_with_source: bool = False
    """True if a frozen or dead source gives nothing; mapped memory outlives its owner."""


_RDMA: Final = Backend(name="rdma", is_abort_safe=False, uses_network=True, stops_with_consumer=False)
BACKENDS: Final = {
    backend.name: backend
    for backend in (
        Backend(name="in_process", has_checksums=False),
        Backend(name="shared_memory"),
        Backend(name="tcp", uses_network=True, stops_with_source=True),
        replace(_RDMA, has_checksums=False),
        replace(_RDMA, name="rdma_checksums"),
    )
}
