"""The time and the workers of a request that is finished, from what its workers and its router measured."""

from __future__ import annotations

from baton_core.sessions.router_messages import FirstToken, Transferred
from baton_router.core.flow.token_stream import TokenStream
from baton_router.core.placement.placement import Placement
from baton_router.core.router_events import RequestTimings


def measure_request(
    now: float,
    *,
    accepted_s: float,
    placed_s: float,
    stream: TokenStream,
    placement: Placement,
    first: FirstToken | None,
    transferred: Transferred | None,
) -> RequestTimings:
    """Put together the timings of a request: times in seconds, of the router's clock or between two."""
    is_decoded = not placement.is_split or transferred is not None
    return RequestTimings(
        queue_s=placed_s - accepted_s + (first.queue_s if first else 0.0),
        prefill_s=first.prefill_s if first else 0.0,
        transfer_s=transferred.transfer_s if transferred else 0.0,
        first_token_s=stream.first_s - accepted_s,
        total_s=now - accepted_s,
        per_token_s=stream.per_token_s,
        transferred_bytes=transferred.num_bytes if transferred else 0,
        prefill_worker=placement.prefill,
        decode_worker=placement.decode if is_decoded else "",
    )
