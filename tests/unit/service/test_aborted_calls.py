"""A status that cannot be sent any more."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from baton_core.errors import ErrorCode, RequestError
from baton_router.grpc.server import _abort


class EndedCall:
    """As gRPC's own, when the client's deadline passes while its status is on the way."""

    async def abort(self, code: grpc.StatusCode, details: str, trailing_metadata: object) -> None:
        assert code is grpc.StatusCode.DEADLINE_EXCEEDED
        raise grpc.aio.InternalError("batch failed")


def test_a_call_that_ends_while_its_status_is_sent_counts_as_cancelled() -> None:
    late = RequestError(ErrorCode.DEADLINE_EXCEEDED, "not finished within 0.3 s")
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(_abort(EndedCall(), late, "/baton.v1.Baton/Generate"))
