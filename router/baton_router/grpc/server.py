"""The gRPC server of every service: its keys, its errors, its health, its reflection."""

from __future__ import annotations

import asyncio
import errno
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

from baton_core.errors import (
    STATUS,
    BatonError,
    ErrorCode,
    InvalidConfigError,
    InvalidRequestError,
    retry_after,
)
from baton_router.grpc.reflection import add_reflection
from baton_service.grpc_options import (
    MAX_CONNECTIONS,
    MAX_GRPC_BYTES,
    SERVER_KEEPALIVE,
    Keepalive,
    server_options,
)
from baton_service.keys import AUTHORIZATION, Keys
from baton_service.tcp import listen_at

_REFUSAL: Final = (
    "Incorrect API key provided, or none; allowed: authorization: Bearer and one of this server, as metadata"
)
LIVENESS: Final = "liveness"
READINESS: Final = "readiness"
"""Names of the health service, as the probes of Kubernetes and gateways give them; "" is readiness.

gRPC's clients ask for the full name of the service that they call.
"""
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
        is_let_in = self._keys.tenant(given.get(AUTHORIZATION, "")) is not None
        if is_let_in or handler_call_details.method.startswith(self._keyless):
            return await continuation(handler_call_details)
        # As a stream, whatever the method is: it is refused before a message is read.
        return grpc.stream_stream_rpc_method_handler(_refuse)


async def _refuse(_requests: AsyncIterator[bytes], context: _Context) -> None:
    await context.abort(grpc.StatusCode.UNAUTHENTICATED, _REFUSAL)


_log = logging.getLogger(__name__)

_MAX_MESSAGE_BYTES: Final = 1000
"""Bytes of an error message. It travels as metadata: clients take 8 KB, and non-ASCII counts thrice."""

_NOT_BINDABLE: Final = frozenset({errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.EACCES})


class GrpcServer:
    """One server with error mapping and the standard health service, NOT_SERVING until set.

    Make it on the loop that serves; add services to `server` before `start`. Messages go out uncompressed;
    compressed ones are refused with UNIMPLEMENTED.

    Args:
        keys: what all calls need, but those of health and of the services `keyless` (full names).
        credentials: of TLS; None: plain text.
        max_message_bytes: larger messages end their call with RESOURCE_EXHAUSTED.
        shares_ports: addresses may be bound as shared ones.
        max_connections: further connections are closed, also those that have not shown to speak gRPC.
    """

    def __init__(
        self,
        keepalive: Keepalive = SERVER_KEEPALIVE,
        *,
        keys: Keys | None = None,
        keyless: Sequence[str] = (),
        credentials: grpc.ServerCredentials | None = None,
        max_connections: int = MAX_CONNECTIONS,
        max_message_bytes: int = MAX_GRPC_BYTES,
        shares_ports: bool = False,
    ) -> None:
        interceptors = (_ErrorInterceptor(), KeyInterceptor(keys or Keys(), keyless))
        self._credentials = credentials
        self.server = grpc.aio.server(
            interceptors=interceptors,
            options=server_options(
                keepalive, max_connections, max_message_bytes=max_message_bytes, shares_ports=shares_ports
            ),
        )
        self._health = health_aio.HealthServicer()
        self._ready_names: tuple[str, ...] = ("", READINESS)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self.server)

    def bind(self, address: str, *, flag: str, is_shared: bool = False) -> int:
        """Listen on `address` (`host:port`; port 0 chooses one) and return the port.

        Args:
            is_shared: other processes of this user may listen there too; the system deals connections out.

        Raises:
            InvalidConfigError: it cannot be bound; the message names `flag`, the address and what is allowed.
        """
        reason = "" if _names_a_port(address) else "it names no port"
        if not reason and not is_shared:
            refuse_taken(address, flag=flag)
        if not reason:  # gRPC would report it past the log
            with suppress(RuntimeError):
                if self._credentials is None:
                    return int(self.server.add_insecure_port(address))
                return int(self.server.add_secure_port(address, self._credentials))
            reason = "gRPC cannot listen there"
        raise _not_bindable(address, flag, reason)

    async def start(self, *, reflects: Sequence[str] = ()) -> None:
        """Serve, and describe the services `reflects` (full names) to those who ask by reflection.

        Health checks of these names report readiness.
        """
        self._ready_names += tuple(reflects)
        if reflects:
            add_reflection(self.server, (*reflects, health.SERVICE_NAME))
        await self.set_serving(False)
        await self._health.set(LIVENESS, health_pb2.HealthCheckResponse.SERVING)
        await self.server.start()

    async def set_serving(self, is_serving: bool, *names: str) -> None:
        """Set what health checks of readiness report, and those of further `names`."""
        response = health_pb2.HealthCheckResponse
        for name in (*self._ready_names, *names):
            await self._health.set(name, response.SERVING if is_serving else response.NOT_SERVING)

    def drain(self, within_s: float) -> None:
        """Free the port and tell clients to call elsewhere; running calls go on for at most `within_s`."""
        self._draining = asyncio.create_task(self.server.stop(within_s))

    async def stop(self, within_s: float) -> None:
        """Refuse new calls and give running ones `within_s` to end, or less where `drain` gave less."""
        await self._health.enter_graceful_shutdown()
        await self.server.stop(within_s)


def refuse_taken(address: str, *, flag: str) -> None:
    """Refuse an address at which another server listens: gRPC would share its port.

    Raises:
        InvalidConfigError: it cannot be bound.
    """
    if reason := _why_not_bindable(address):
        raise _not_bindable(address, flag, reason)


def _not_bindable(address: str, flag: str, reason: str) -> InvalidConfigError:
    return InvalidConfigError(
        f"{flag} is {address!r}, which cannot be bound ({reason}); "
        "allowed: host:port with an address of this machine and a port that is not in use"
    )


def _names_a_port(address: str) -> bool:
    """Checked here because gRPC takes port 99999 for 99999 - 65536."""
    host, _, port = address.rpartition(":")
    return bool(host) and port.isascii() and port.isdigit() and int(port) < 2**16


def _why_not_bindable(address: str) -> str:
    """Return the system's reason; empty where it has none, or where gRPC may know the host better."""
    host, _, port = address.rpartition(":")
    try:
        listen_at(host.removeprefix("[").removesuffix("]"), int(port)).close()
    except OSError as error:
        return (error.strerror or str(error)) if error.errno in _NOT_BINDABLE else ""
    return ""


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
        # Requests are decoded inside the guard, because what cannot be decoded is the client's error.
        decode = partial(_decode_each if handler.request_streaming else _decode, handler.request_deserializer)
        return make(
            guard(behavior, decode, handler_call_details.method),
            request_deserializer=None,
            response_serializer=handler.response_serializer,
        )


def _decode(deserialize: Callable[[bytes], Any], request: bytes) -> Any:
    try:
        return deserialize(request)
    except DecodeError:
        allowed = "a protobuf message of the method's request type"
        raise InvalidRequestError("request", f"{len(request)} bytes", allowed) from None


async def _decode_each(
    deserialize: Callable[[bytes], Any], requests: AsyncIterator[bytes]
) -> AsyncIterator[Any]:
    async for request in requests:
        yield _decode(deserialize, request)


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

    Where a retry helps, `retry-after` in the trailing metadata has the seconds to wait, and
    `grpc-retry-pushback-ms`, by which the retries of gRPC's clients go, the milliseconds.

    Raises:
        asyncio.CancelledError: the client is gone, so that gRPC could not send the status.
    """
    metadata: tuple[tuple[str, str], ...] = ()
    match error:
        case grpc.aio.AbortError():
            raise error
        case grpc.aio.InternalError():  # the service's own abort found the call ended
            raise asyncio.CancelledError from error
        case BatonError():
            code, message = error.code, str(error)
            if (wait_s := retry_after(error)) is not None:
                metadata = (("retry-after", str(wait_s)), ("grpc-retry-pushback-ms", str(1000 * wait_s)))
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
