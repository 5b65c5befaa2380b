"""The connectors by the name that settings have for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from baton_core.kv_layout.kv_spec import KVSpec
from baton_kv.auto import AutoConnector
from baton_kv.connector import KVConnector
from baton_kv.nixl import NixlConnector
from baton_kv.row_copies import CopyRows
from baton_kv.shared_memory import SharedMemoryConnector
from baton_kv.tcp import TcpConnector
from baton_kv.transport import Listen, Transport

CONNECTORS: Final[dict[Transport, Callable[[KVSpec, int, Listen, CopyRows], KVConnector]]] = {
    Transport.AUTO: AutoConnector,
    Transport.SHARED_MEMORY: lambda spec, epoch, listen, copy: SharedMemoryConnector(spec, epoch, copy),
    Transport.TCP: lambda spec, epoch, listen, copy: TcpConnector(spec, epoch, listen),
    Transport.NIXL: lambda spec, epoch, listen, copy: NixlConnector(spec, epoch, listen),
}
"""Each makes the connector of a worker from its spec, its epoch, where it may listen, and how it copies
within this host's memory."""
