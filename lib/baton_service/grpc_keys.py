"""Lets a gRPC call through whose metadata names a key of the server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Final, TypeAlias

import grpc
from grpc_health.v1 import health

from baton_service.keys import HEADER, Keys

_REFUSAL: Final = (
    "Incorrect API key provided, or none; allowed: authorization: Bearer and one of this server, as metadata"
)
_Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]


class KeyInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Ends calls without a key as UNAUTHENTICATED, those of methods that do not exist too.

    The standard health service needs none, nor do the services `keyless` (full names).
    """

    def __init__(self, keys: Keys, keyless: Sequence[str] = ()) -> None:
        self._keys = keys
        self._keyless = tuple(f"/{service}/" for service in (health.SERVICE_NAME, *keyless))

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        given = {str(name): str(value) for name, value in handler_call_details.invocation_metadata or ()}
        is_let_in = self._keys.tenant(given.get(HEADER, "")) is not None
        if is_let_in or handler_call_details.method.startswith(self._keyless):
            return await continuation(handler_call_details)
        # As a stream, whatever the method is: it is refused before a message is read.
        return grpc.stream_stream_rpc_method_handler(_refuse)


async def _refuse(_requests: AsyncIterator[bytes], context: _Context) -> None:
    await context.abort(grpc.StatusCode.UNAUTHENTICATED, _REFUSAL)
