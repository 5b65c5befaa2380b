"""The port of the endpoint picker, with the health services by which gateways and probes ask for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from baton_proto.ext_proc.external_processor_pb2_grpc import add_ExternalProcessorServicer_to_server
from baton_router.gateway.picker import Picker
from baton_router.gateway.picker_service import EXTERNAL_PROCESSOR, PickerService
from baton_router.grpc.server import GrpcServer
from baton_router.http.app_state import AppState
from baton_router.process.router_settings import RouterSettings
from baton_service.grpc_options import MAX_GRPC_BYTES


class PickerServer:
    """Serves gateways. They show neither keys nor certificates; clients' keys are checked."""

    def __init__(self, settings: RouterSettings) -> None:
        self._settings = settings
        self._server = GrpcServer(
            credentials=settings.tls.grpc_credentials(asks_clients=False),
            max_message_bytes=settings.http.max_body_bytes + MAX_GRPC_BYTES,
        )
        self.port = 0
        """Port of gateways, once bound."""

    def bind(self) -> None:
        """Take the port.

        Raises:
            InvalidConfigError: it cannot be bound.
        """
        address = f"{self._settings.shown_grpc_host}:{self._settings.picker_port}"
        self.port = self._server.bind(address, flag="address of --grpc-host and --picker-port")

    async def start(self, state: AppState, own: str, others: Callable[[], Sequence[str]]) -> None:
        """Serve; the arguments are those of `Picker`."""
        service = PickerService(Picker(state, own, others))
        add_ExternalProcessorServicer_to_server(service, self._server.server)  # type: ignore[no-untyped-call]
        await self._server.start()
        await self.set_serving(state.service.is_ready)

    async def set_serving(self, is_serving: bool) -> None:
        """Set what health checks of readiness report, also under the name of the protocol's service."""
        await self._server.set_serving(is_serving, EXTERNAL_PROCESSOR)

    async def stop(self, within_s: float) -> None:
        """Refuse new calls and give running ones `within_s` to end."""
        await self._server.stop(within_s)
