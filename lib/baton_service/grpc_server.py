"""The gRPC server that every service uses: its errors, its health, its description of itself."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeAlias

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health_aio
from grpc_reflection.v1alpha import reflection

from baton_core.errors import (
    STATUS,
    BatonError,
    ErrorCode,
    InvalidConfigError,
    InvalidRequestError,
    retry_after,
)
from baton_service.grpc_keys import KeyInterceptor
from baton_service.grpc_options import SERVER_KEEPALIVE, Keepalive, server_options
from baton_service.keys import Keys

_log = logging.getLogger(__name__)

_MAX_MESSAGE_BYTES: Final = 1000
"""Of an error in UTF-8. It travels as metadata: clients take 8 KB, and what is not ASCII counts thrice."""

_Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]


class GrpcServer:
    """One server with error mapping and the standard health service, NOT_SERVING until told.

    Make it on the loop that serves; add services to `server` before `start`. Messages go out uncompressed;
    compressed ones are refused with UNIMPLEMENTED.

    Args:
        keys: what all calls need, but those of health and of the services `keyless` (full names).
        credentials: of TLS; None: plain text.
    """

    def __init__(
        self,
        keepalive: Keepalive = SERVER_KEEPALIVE,
        *,
        keys: Keys | None = None,
        keyless: Sequence[str] = (),
        credentials: grpc.ServerCredentials | None = None,
    ) -> None:
        interceptors = (_ErrorInterceptor(), KeyInterceptor(keys or Keys(), keyless))
        self._credentials = credentials
        self.server = grpc.aio.server(interceptors=interceptors, options=server_options(keepalive))
        self._health = health_aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self.server)

    def bind(self, address: str, *, flag: str) -> int:
        """Listen on `address` (`host:port`; port 0 chooses one) and return the port.

        Raises:
            InvalidConfigError: it cannot be bound; the message names `flag`, the address and what is allowed.
        """
        if _names_a_port(address):
            with suppress(RuntimeError):
                if self._credentials is None:
                    return int(self.server.add_insecure_port(address))
                return int(self.server.add_secure_port(address, self._credentials))
        raise InvalidConfigError(
            f"{flag} is {address!r}, which cannot be bound; "
            "allowed: host:port with an address of this machine and a port that is not in use"
        )

    async def start(self, *, reflects: Sequence[str] = ()) -> None:
        """Serve, and describe the services `reflects` (full names) to those who ask by reflection."""
        if reflects:
            names = (*reflects, health.SERVICE_NAME, reflection.SERVICE_NAME)
            reflection.enable_server_reflection(names, self.server)
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
        # One request is decoded inside the guard, because what cannot be decoded is the client's error.
        is_stream, deserialize = handler.request_streaming, handler.request_deserializer
        decode = _unchanged if is_stream else partial(_decode, deserialize)
        return make(
            guard(behavior, decode, handler_call_details.method),
            request_deserializer=deserialize if is_stream else None,
            response_serializer=handler.response_serializer,
        )


def _unchanged(request: Any) -> Any:
    return request


def _decode(deserialize: Callable[[bytes], Any], request: bytes) -> Any:
    try:
        return deserialize(request)
    except DecodeError:
        allowed = "a protobuf message of the method's request type"
        raise InvalidRequestError("request", f"{len(request)} bytes", allowed) from None


def _guarded_call(
    behavior: Callable[[Any, _Context], Awaitable[Any]], decode: Callable[[Any], Any], method: str
) -> Any:
    async def call(request: Any, context: _Context) -> Any:
        try:
            return await behavior(decode(request), context)
        except Exception as error:
            await _abort(context, error, method)

    return call


def _guarded_stream(
    behavior: Callable[[Any, _Context], AsyncIterator[Any]], decode: Callable[[Any], Any], method: str
) -> Any:
    async def stream(request: Any, context: _Context) -> AsyncIterator[Any]:
        try:
            async for response in behavior(decode(request), context):
                yield response
        except Exception as error:
            await _abort(context, error, method)

    return stream


async def _abort(context: _Context, error: Exception, method: str) -> None:
    """End the call; an abort that the service itself made passes through.

    Where coming again is of use, `retry-after` in the trailing metadata says in how many seconds.

    Raises:
        asyncio.CancelledError: the client is gone, so that gRPC could not send the status.
    """
    metadata: tuple[tuple[str, str], ...] = ()
    match error:
        case grpc.aio.AbortError():
            raise error
        case BatonError():
            code, message = error.code, str(error)
            if (wait_s := retry_after(error)) is not None:
                metadata = (("retry-after", str(wait_s)),)
        case _:
            _log.error("%s failed", method, exc_info=error)
            code, message = ErrorCode.INTERNAL, "internal error; the server's log has the cause"
    try:
        await context.abort(grpc.StatusCode[STATUS[code].grpc], _cut(message), metadata)
    except grpc.aio.InternalError as failed:  # the call has ended meanwhile, and gRPC does not know it yet
        raise asyncio.CancelledError from failed


def _cut(message: str) -> str:
    encoded = message.encode(errors="replace")
    if len(encoded) <= _MAX_MESSAGE_BYTES:
        return encoded.decode()
    return encoded[: _MAX_MESSAGE_BYTES - 3].decode(errors="ignore") + "..."
