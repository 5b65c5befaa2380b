"""A look at the ports that several processes of a router are about to share."""

from __future__ import annotations

from typing import Final

from baton_router.grpc.server import refuse_taken
from baton_router.http.connections.server import listen
from baton_router.process.router_settings import RouterSettings

GRPC_FLAG: Final = "address of --grpc-host and --grpc-port"


def refuse_shared_ports(settings: RouterSettings) -> None:
    """Refuse ports that another server shares with whoever asks.

    Raises:
        InvalidConfigError: one of them cannot be taken.
    """
    for listener in listen(settings.host, settings.port):
        listener.close()
    refuse_taken(settings.grpc_address, flag=GRPC_FLAG)
