"""Where a worker's KV pool lies, and how its blocks can travel from there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from baton_core.errors import InvalidConfigError
from baton_core.kv_spec import KVSpec
from baton_engine.device import resolve_device
from baton_kv.connector import KVConnector
from baton_kv.tcp import TcpConnector
from baton_kv.transport import Transport


def choose_device(requested: str, transport: Transport) -> torch.device:
    """Return the device for `--device`; "auto" takes no GPU whose pool the transport cannot hand over.

    Raises:
        InvalidConfigError: no such device, or blocks in its memory would have to travel by shared memory.
    """
    device = resolve_device(requested)
    if device.type == "cpu" or transport is not Transport.SHARED_MEMORY:
        return device
    if requested == "auto":
        return torch.device("cpu")
    raise InvalidConfigError(f"device is {requested!r}; allowed with transport {str(transport)!r}: auto, cpu")


def choose_transport(transport: Transport, device: torch.device) -> Transport:
    """Return how blocks travel from a pool on `device`: from a GPU's memory only over TCP."""
    return transport if device.type == "cpu" else Transport.TCP


@dataclass(slots=True)
class PoolPlacement:
    """Lets a connector place the pool once the model's shape is known, or serve one on a GPU."""

    make_connector: Callable[[KVSpec], KVConnector]
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    connector: KVConnector | None = field(default=None, init=False)

    def allocate(self, spec: KVSpec, num_blocks: int) -> torch.Tensor:
        """Make the connector and its pool `[num_blocks, *spec.block_shape]`."""
        connector = self.connector = self.make_connector(spec)
        if self.device.type == "cpu":
            return connector.allocate(num_blocks)
        assert isinstance(connector, TcpConnector), "choose_transport takes TCP for a GPU"
        dtype = getattr(torch, spec.dtype)
        pool = torch.zeros((num_blocks, *spec.block_shape), dtype=dtype, device=self.device)
        connector.register(pool)
        return pool
