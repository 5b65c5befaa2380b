"""The gRPC server that every service uses: its options, its errors, its health."""

from __future__ import annotations

import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any, Final, TypeAlias

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health_aio

from baton_core.errors import STATUS, BatonError, ErrorCode, InvalidConfigError

MAX_GRPC_BYTES: Final = 4 * 2**20

MESSAGE_OPTIONS: Final = (
    ("grpc.max_receive_message_length", MAX_GRPC_BYTES),
    ("grpc.max_send_message_length", MAX_GRPC_BYTES),
)
_SERVER_OPTIONS: Final = (
    *MESSAGE_OPTIONS,
    ("grpc.so_reuseport", 0),  # two processes on one port would share its connections unnoticed
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
)
_log = logging.getLogger(__name__)

_Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]


class GrpcServer:
    """One server with error mapping and the standard health service, NOT_SERVING until told.

    Make it on the loop that serves; add services to `server` before `start`.
    """

    def __init__(self) -> None:
        self.server = grpc.aio.server(interceptors=(_ErrorInterceptor(),), options=_SERVER_OPTIONS)
        self._health = health_aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self.server)

    def bind(self, address: str, *, flag: str) -> int:
        """Listen on `address` (`host:port`; port 0 chooses one) and return the port.

        Raises:
            InvalidConfigError: it cannot be bound; the message names `flag`, the address and what is allowed.
        """
        if _names_a_port(address):
            with suppress(RuntimeError):
                return int(self.server.add_insecure_port(address))
        raise InvalidConfigError(
            f"{flag} is {address!r}, which cannot be bound; "
            "allowed: host:port with an address of this machine and a port that is not in use"
        )

    async def start(self) -> None:
        await self.set_serving(False)
        await self.server.start()

    async def set_serving(self, is_serving: bool) -> None:
        """Tell health checks whether requests are wanted."""
        response = health_pb2.HealthCheckResponse
        await self._health.set("", response.SERVING if is_serving else response.NOT_SERVING)

    async def stop(self, within_s: float) -> None:
        """Refuse new calls and give running ones `within_s` to end."""
        await self._health.enter_graceful_shutdown()
        await self.server.stop(within_s)


def _names_a_port(address: str) -> bool:
    """Checked here because gRPC takes port 99999 for 99999 - 65536."""
    host, _, port = address.rpartition(":")
    return bool(host) and port.isascii() and port.isdigit() and int(port) < 2**16


class _ErrorInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Ends a call that raises with the status of its error; what is no BatonError stays in the log."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any]]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        kind = "_".join(
            "stream" if s else "unary" for s in (handler.request_streaming, handler.response_streaming)
        )
        behavior = getattr(handler, kind)
        guard = _guarded_stream if inspect.isasyncgenfunction(behavior) else _guarded_call
        make = getattr(grpc, f"{kind}_rpc_method_handler")
        return make(
            guard(behavior, handler_call_details.method),
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )


def _guarded_call(behavior: Callable[[Any, _Context], Awaitable[Any]], method: str) -> Any:
    async def call(request: Any, context: _Context) -> Any:
        try:
            return await behavior(request, context)
        except Exception as error:
            await _abort(context, error, method)

    return call


def _guarded_stream(behavior: Callable[[Any, _Context], AsyncIterator[Any]], method: str) -> Any:
    async def stream(request: Any, context: _Context) -> AsyncIterator[Any]:
        try:
            async for response in behavior(request, context):
                yield response
        except Exception as error:
            await _abort(context, error, method)

    return stream


async def _abort(context: _Context, error: Exception, method: str) -> None:
    """End the call; an abort that the service itself made passes through."""
    match error:
        case grpc.aio.AbortError():
            raise error
        case BatonError():
            code, message = error.code, str(error)
        case _:
            _log.error("%s failed", method, exc_info=error)
            code, message = ErrorCode.INTERNAL, "internal error; the server's log has the cause"
    await context.abort(grpc.StatusCode[STATUS[code].grpc], message)
