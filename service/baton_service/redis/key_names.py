"""Names of everything that a cluster keeps in Redis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_KINDS: Final = {
    "workers": "set",
    "worker": "hash",
    "blocks": "set",
    "changes": "stream",
    "num-changes": "string",
    "routers": "set",
    "router": "hash",
    "loads": "stream",
    "adapters": "hash",
    "responses": "zset",
    "response-sizes": "hash",
    "response-numbers": "zset",
    "response-bytes": "zset",
    "response-changes": "stream",
}
"""The type that Redis has of each key, by the part of its name after the namespace."""


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of a cluster; each begins with its namespace."""

    namespace: str

    def kind(self, key: str) -> str | None:
        """Return the type that a key must have; None if it is none that the cluster writes anew."""
        namespace, _, name = key.partition(f"{self.namespace}:")
        return None if namespace else _KINDS.get(name.partition(":")[0])

    @property
    def workers(self) -> str:
        """Set of the ids of registered workers."""
        return f"{self.namespace}:workers"

    def worker(self, worker_id: str) -> str:
        """Hash, under the worker's lease: `info`, `epoch`, and the `number` of its last change."""
        return f"{self.namespace}:worker:{worker_id}"

    def blocks(self, worker_id: str) -> str:
        """Set, under the worker's lease: the hashes of the blocks that can be found there."""
        return f"{self.namespace}:blocks:{worker_id}"

    @property
    def changes(self) -> str:
        """Stream of the changes of all workers' sets."""
        return f"{self.namespace}:changes"

    @property
    def num_changes(self) -> str:
        """Number of entries that the stream has had."""
        return f"{self.namespace}:num-changes"

    @property
    def routers(self) -> str:
        """Set of the ids of registered routers."""
        return f"{self.namespace}:routers"

    @property
    def router_prefix(self) -> str:
        """Before a router's id: a hash, under its lease: `record` and `load`."""
        return f"{self.namespace}:router:"

    def router(self, router_id: str) -> str:
        return self.router_prefix + router_id

    @property
    def router_loads(self) -> str:
        """Stream of the routers' loads."""
        return f"{self.namespace}:loads"

    @property
    def adapters(self) -> str:
        """Hash: the LoRA adapters that routers were told to load, by name."""
        return f"{self.namespace}:adapters"

    @property
    def responses(self) -> str:
        """Sorted set of the names of responses, by the time of their beginning in ms."""
        return f"{self.namespace}:responses"

    @property
    def response_sizes(self) -> str:
        """Hash: the bytes of each response, and under the empty name of all together."""
        return f"{self.namespace}:response-sizes"

    @property
    def response_numbers(self) -> str:
        """Sorted set of the tenants that hold responses, by their number."""
        return f"{self.namespace}:response-numbers"

    @property
    def response_bytes(self) -> str:
        """Sorted set of the tenants that hold responses, by their bytes."""
        return f"{self.namespace}:response-bytes"

    @property
    def response_changes(self) -> str:
        """Stream of the names of responses that have more events, or were ended or deleted."""
        return f"{self.namespace}:response-changes"

    @property
    def response_prefix(self) -> str:
        """Before a response's name: a hash of what is kept of it."""
        return f"{self.namespace}:response:"

    @property
    def response_events_prefix(self) -> str:
        """Before a response's name: the list of its events."""
        return f"{self.namespace}:response-events:"
