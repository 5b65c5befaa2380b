"""Names of everything that a cluster keeps in Redis."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of a cluster; each begins with its namespace."""

    namespace: str

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
