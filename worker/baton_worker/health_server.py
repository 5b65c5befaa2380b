"""gRPC's standard health service of a worker, for probes that speak gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final, TypeAlias

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from baton_core.errors import InvalidConfigError
from baton_service.grpc_options import SERVER_KEEPALIVE, server_options
from baton_worker.probes import Probes

_MAX_CONNECTIONS: Final = 32
_WATCH_EVERY_S: Final = 0.5
_STOP_WITHIN_S: Final = 1.0
_Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]


class HealthServer:
    """A server of the health service alone, in plain text and without keys. Make it on the loop that serves.

    Args:
        host: address to listen at.
        port: port to listen at; 0 takes any.
        probes: the worker's state.

    Raises:
        InvalidConfigError: the port cannot be taken.
    """

    def __init__(self, host: str, port: int, probes: Probes) -> None:
        self._server = grpc.aio.server(options=server_options(SERVER_KEEPALIVE, _MAX_CONNECTIONS))
        health_pb2_grpc.add_HealthServicer_to_server(_Health(probes), self._server)
        try:
            self.port = int(self._server.add_insecure_port(f"{host}:{port}"))
        except RuntimeError:
            text = f"--health-port is {port}, which cannot be taken on {host}"
            raise InvalidConfigError(f"{text}; allowed: a free port, or 0 for any") from None

    async def start(self) -> None:
        await self._server.start()

    async def close(self) -> None:
        await self._server.stop(_STOP_WITHIN_S)


class _Health(health_pb2_grpc.HealthServicer):  # type: ignore[misc]
    """Services: `liveness`, `started`, `readiness`, and the empty name, which is readiness."""

    def __init__(self, probes: Probes) -> None:
        self._probes = probes

    async def Check(  # noqa: N802 (name of the protocol)
        self, request: health_pb2.HealthCheckRequest, context: _Context
    ) -> health_pb2.HealthCheckResponse:
        if (status := self._status(request.service)) is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, _unknown(request.service))
        return health_pb2.HealthCheckResponse(status=status)

    async def Watch(  # noqa: N802 (name of the protocol)
        self, request: health_pb2.HealthCheckRequest, context: _Context
    ) -> AsyncIterator[health_pb2.HealthCheckResponse]:
        last = None
        while True:
            status = self._status(request.service)
            if status is None:
                status = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
            if status != last:
                yield health_pb2.HealthCheckResponse(status=status)
            last = status
            await asyncio.sleep(_WATCH_EVERY_S)

    def _status(self, service: str) -> health_pb2.HealthCheckResponse.ServingStatus | None:
        """Return the status of a service; None for one that is not known."""
        response = health_pb2.HealthCheckResponse
        match service:
            case "liveness":
                return response.SERVING
            case "started":
                is_serving = self._probes.is_started
            case "readiness" | "":
                is_serving = not self._probes.why_not_ready
            case _:
                return None
        return response.SERVING if is_serving else response.NOT_SERVING


def _unknown(service: str) -> str:
    return f"service is {service!r}; allowed: liveness, started, readiness, or none"
