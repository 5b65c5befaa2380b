"""The transports of a simulated cluster, with the guarantees of each, and the timeouts of transfers.

These are shorter than in production, so that runs are short.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from baton_decode.core.transfer import PullTimings
from baton_prefill.core.lease_table import LeaseTimings


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Limits of both sides of a transfer."""

    pull: PullTimings
    hold: LeaseTimings


USUAL: Final = Timings(
    pull=PullTimings(lease_s=2.0, renew_s=0.5, pull_deadline_s=1.6), hold=LeaseTimings(hold_s=3.0)
)
SHORT: Final = Timings(
    pull=PullTimings(lease_s=0.8, renew_s=0.25, pull_deadline_s=0.7), hold=LeaseTimings(hold_s=3.0)
)
"""These run out while a node is frozen and its sessions go on."""
