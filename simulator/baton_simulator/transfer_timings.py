"""Transfer timeouts of simulated clusters: shorter than in production, so that runs are short."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from baton_decode.core.transfer import PullTimings
from baton_prefill.core.lease_table import LeaseTimings


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Limits of both sides."""

    pull: PullTimings
    hold: LeaseTimings


USUAL: Final = Timings(
    pull=PullTimings(lease_s=2.0, renew_s=0.5, pull_deadline_s=1.6), hold=LeaseTimings(hold_s=3.0)
)
SHORT: Final = Timings(
    pull=PullTimings(lease_s=0.8, renew_s=0.25, pull_deadline_s=0.7), hold=LeaseTimings(hold_s=3.0)
)
"""These run out while a node is frozen and its sessions go on."""
