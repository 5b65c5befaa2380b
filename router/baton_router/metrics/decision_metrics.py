"""What a router tells of admission, of its queue, and of the roles that it shifts."""

from __future__ import annotations

from typing import Final

from baton_core.routing.admission_outcome import AdmissionOutcome
from baton_core.routing.router_core import RouterCore
from baton_service.exposition import Exposition, Family, Kind

ADMISSIONS: Final = Family(
    name="baton_admissions", kind=Kind.COUNTER, text="Requests by what admission said", labels=("outcome",)
)
QUEUE_LENGTH: Final = Family(
    name="baton_queue_length", kind=Kind.GAUGE, text="Requests that wait at the router for a worker"
)
QUEUE_TOKENS: Final = Family(
    name="baton_queue_tokens", kind=Kind.GAUGE, text="Tokens that those are expected to need"
)
OPEN_REQUESTS: Final = Family(
    name="baton_open_requests", kind=Kind.GAUGE, text="Requests that this router has and that are not over"
)
ROLE_SHIFTS: Final = Family(
    name="baton_role_shifts",
    kind=Kind.COUNTER,
    text="Changes of roles that --adaptive-roles asked for",
    labels=("before", "after"),
)
FAMILIES: Final = (ADMISSIONS, QUEUE_LENGTH, QUEUE_TOKENS, OPEN_REQUESTS, ROLE_SHIFTS)


def tell_decisions(page: Exposition, core: RouterCore) -> None:
    """Add a sample for each outcome there is, and for each pair of roles that occurred."""
    for outcome in AdmissionOutcome:
        page.add(ADMISSIONS, core.admission.num_by_outcome[outcome], outcome)
    page.add(QUEUE_LENGTH, core.admission.num_waiting)
    page.add(QUEUE_TOKENS, core.admission.line.num_tokens)
    page.add(OPEN_REQUESTS, core.num_requests)
    for (before, after), count in sorted(core.roles.num_shifts.items()):
        page.add(ROLE_SHIFTS, count, before, after)
