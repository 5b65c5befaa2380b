"""The routers that a gateway may send a request to, in the order in which it tries them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from baton_router.core.placement.rendezvous import preferences

MAX_DESTINATIONS: Final = 3
"""Routers named to the gateway: one, and others that it tries when that fails."""


def order_destinations(
    own: str, others: Sequence[str], request_id: str, subset: Sequence[str] | None
) -> tuple[str, ...]:
    """Return addresses of routers, `host:port`, the one to take first first.

    This router comes first, since it has reserved the workers' load; requests spread over the others.

    Args:
        own: the address of this router; empty while it takes no requests.
        subset: addresses or hosts to which the gateway limits the choice; None is all.
    """
    prefers = preferences(request_id)
    found = [*([own] if own else []), *sorted(set(others) - {own}, key=prefers, reverse=True)]
    if subset is not None:
        allowed = {one.strip() for one in subset}
        found = [one for one in found if not allowed.isdisjoint(_names_of(one))]
    return tuple(found[:MAX_DESTINATIONS])


def _names_of(address: str) -> tuple[str, str, str]:
    """Return an address, and its host as in a URL and alone, which differ for IPv6."""
    host = address.rpartition(":")[0]
    return address, host, host.strip("[]")
