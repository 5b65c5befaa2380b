"""The transports of a simulated cluster, with the guarantees of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """A kind of transport."""

    name: str
    has_checksums: bool
    """True if the consumer compares checksums; otherwise it asks whether the lease held."""
    is_abort_safe: bool
    """True if nothing is written after an abort."""
    uses_network: bool
    """True if its bytes share the links, and wait where one is down."""
    stops_with_consumer: bool
    """True if a frozen consumer copies nothing; a network card continues."""
    stops_with_source: bool
    """True if a frozen or dead source gives nothing; mapped memory outlives its owner."""


BACKENDS: Final = {
    backend.name: backend
    for backend in (
        Backend(
            name="in_process",
            has_checksums=False,
            is_abort_safe=True,
            uses_network=False,
            stops_with_consumer=True,
            stops_with_source=False,
        ),
        Backend(
            name="shared_memory",
            has_checksums=True,
            is_abort_safe=True,
            uses_network=False,
            stops_with_consumer=True,
            stops_with_source=False,
        ),
        Backend(
            name="tcp",
            has_checksums=True,
            is_abort_safe=True,
            uses_network=True,
            stops_with_consumer=True,
            stops_with_source=True,
        ),
        Backend(
            name="rdma",
            has_checksums=False,
            is_abort_safe=False,
            uses_network=True,
            stops_with_consumer=False,
            stops_with_source=False,
        ),
        Backend(
            name="rdma_checksums",
            has_checksums=True,
            is_abort_safe=False,
            uses_network=True,
            stops_with_consumer=False,
            stops_with_source=False,
        ),
    )
}
