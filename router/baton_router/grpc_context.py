"""What a gRPC call tells of its request besides its tokens: whose it is, and how fast it has to be."""

from __future__ import annotations

import asyncio
import math
from typing import Any, TypeAlias

import grpc

from baton_core.errors import InvalidRequestError
from baton_core.requests.request_context import RequestContext, Slo
from baton_proto.v1 import baton_pb2 as pb
from baton_router.session_ids import checked_session_id
from baton_router.trace_context import HEADER, read_traceparent
from baton_service.keys import HEADER as AUTHORIZATION
from baton_service.keys import Keys

_Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]


def read_context(request: pb.GenerateRequest, call: _Context, keys: Keys) -> RequestContext:
    """Read the fields and metadata of a call that has been let in.

    Raises:
        InvalidRequestError: a value is too long, or out of range; the message names the field.
    """
    metadata = {str(key): str(value) for key, value in call.invocation_metadata() or ()}
    return RequestContext(
        tenant=keys.tenant(metadata.get(AUTHORIZATION, "")) or "",
        session_id=checked_session_id("session_id", request.session_id),
        slo=Slo(ttft_s=_seconds(request, "slo_ttft_s"), tpot_s=_seconds(request, "slo_tpot_s")),
        traceparent=read_traceparent(metadata.get(HEADER, "")),
        arrived_s=asyncio.get_running_loop().time(),
    )


def _seconds(request: pb.GenerateRequest, field: str) -> float | None:
    if not request.HasField(field):
        return None
    value: float = getattr(request, field)
    if not (0 < value < math.inf):
        raise InvalidRequestError(field, value, "seconds, over 0")
    return value
