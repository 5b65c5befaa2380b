"""Backend that takes the best way to each peer: shared memory where it can be read, TCP elsewhere."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from baton_core.errors import InvalidConfigError
from baton_core.worker.worker_events import Pull, PullAborted, PullDone
from baton_kv.connector import Capabilities, KVConnector, ProducerUnreachableError, VerifiesBy
from baton_kv.description import decode_description, describe_pool
from baton_kv.part_reads import PartRead
from baton_kv.pool_memory import Lend
from baton_kv.row_copies import CopyRows, copy_rows
from baton_kv.shared_memory import SharedMemoryConnector
from baton_kv.tcp import TcpConnector

if TYPE_CHECKING:
    import torch

    from baton_core.kv_layout.kv_spec import KVSpec
    from baton_kv.tcp_socket import TcpTimings
    from baton_kv.transport import Listen

_log = logging.getLogger(__name__)


class AutoConnector(KVConnector):
    """One pool in shared memory, offered both ways; each peer's pool is opened one way.

    Whether shared memory can be used is found out by using it: the nonce behind the peer's blocks is read.
    """

    capabilities = Capabilities(
        name=f"{SharedMemoryConnector.capabilities.name}+{TcpConnector.capabilities.name}",
        verifies_by=VerifiesBy.CHECKSUM,
        has_safe_abort=True,
    )

    def __init__(
        self,
        spec: KVSpec,
        epoch: int,
        where: Listen | None = None,
        copy: CopyRows = copy_rows,
        *,
        timings: TcpTimings | None = None,
    ) -> None:
        self._spec = spec
        self._epoch = epoch
        self._shared_memory = SharedMemoryConnector(spec, epoch, copy)
        self._tcp = TcpConnector(spec, epoch, where, timings)
        self._chosen: dict[str, KVConnector] = {}

    def allocate(self, num_blocks: int, lend: Lend | None = None) -> torch.Tensor:
        pool = self._shared_memory.allocate(num_blocks, lend)
        try:
            self._tcp.register(pool)
        except InvalidConfigError:
            self.close()
            raise
        return pool

    def describe(self) -> bytes:
        num_blocks = len(self._shared_memory.blocks)
        offers = (self._shared_memory.offer, self._tcp.offer)
        return describe_pool(self._spec, self._epoch, num_blocks, *offers).encode()

    def connect(self, peer_id: str, description: bytes, part: PartRead | None = None) -> None:
        self.disconnect(peer_id)
        spec = part.spec if part else self._spec
        offers = {offer.transport for offer in decode_description(description, spec).offers}
        nonce = "the nonce in its shared memory"
        if SharedMemoryConnector.capabilities.name not in offers:
            reason = "it offers no shared memory"
        else:
            try:
                self._open(self._shared_memory, peer_id, description, part, f"{nonce} can be read")
                return
            except ProducerUnreachableError as error:
                if TcpConnector.capabilities.name not in offers:
                    raise
                reason = f"{nonce} cannot be read: {error}"
        self._open(self._tcp, peer_id, description, part, reason)

    def compute_checksums(self, block_ids: Sequence[int]) -> tuple[int | None, ...]:
        return self._shared_memory.compute_checksums(block_ids)

    def pull(self, pull: Pull) -> None:
        self._chosen.get(pull.source.worker_id, self._shared_memory).pull(pull)

    def poll(self) -> list[PullDone]:
        return self._shared_memory.poll() + self._tcp.poll()

    def wait(self, timeout_s: float | None = None) -> None:
        self._tcp.wait(0.0 if self._shared_memory.is_busy else timeout_s)

    def wake(self) -> None:
        self._tcp.wake()

    def abort(self, pull_id: int) -> PullAborted:
        self._shared_memory.abort(pull_id)
        return self._tcp.abort(pull_id)

    def gone_peers(self) -> list[str]:
        return self._shared_memory.gone_peers()

    def disconnect(self, peer_id: str) -> None:
        connector = self._chosen.pop(peer_id, None)
        if connector is not None:
            connector.disconnect(peer_id)

    def close(self) -> None:
        self._tcp.close()
        self._shared_memory.close()

    def transport_of(self, peer_id: str) -> str:
        return self._chosen[peer_id].capabilities.name

    def _open(
        self,
        connector: KVConnector,
        peer_id: str,
        description: bytes,
        part: PartRead | None,
        reason: str,
    ) -> None:
        connector.connect(peer_id, description, part)
        self._chosen[peer_id] = connector
        _log.info("KV blocks of worker %s come over %s: %s", peer_id, connector.capabilities.name, reason)
