"""The end of a request that is finished, with its time and its workers, as these and its router measured."""

from __future__ import annotations

from baton_core.sessions.router_messages import FirstToken, RequestSpec, Transferred
from baton_core.worker.step_plan import PooledValues
from baton_router.core.flow.token_stream import TokenStream
from baton_router.core.placement.placement import Placement
from baton_router.core.router_events import FinishRequest, RequestTimings


def measure_request(
    now: float,
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


def finish(
    spec: RequestSpec,
    stream: TokenStream,
    first: FirstToken | None,
    timings: RequestTimings,
    pooled: PooledValues | None,
) -> FinishRequest:
    """Return the end of a request that is finished."""
    return FinishRequest(
        request_id=spec.request_id,
        num_prompt_tokens=len(spec.prompt_token_ids),
        num_output_tokens=stream.num_tokens,
        num_cached_tokens=first.num_cached_tokens if first else 0,
        timings=timings,
        pooled=pooled,
    )
