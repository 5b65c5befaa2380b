"""Backend for workers anywhere: blocks travel over TCP with nothing else installed.

The connector's sockets, both ends, are used by the one thread that owns it, and nothing else writes what
arrives: so a pull that `abort` has dropped changes no byte any more, and its late chunks are thrown away.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain

import torch
import xxhash
import zmq

from baton_core.kv_layout.kv_spec import KVSpec
from baton_core.worker.worker_events import Pull, PullAborted, PullDone
from baton_kv.connector import (
    Capabilities,
    ProducerUnreachableError,
    VerifiesBy,
)
from baton_kv.curve import has_key, without_key
from baton_kv.description import Offer
from baton_kv.landing import Landing
from baton_kv.part_reads import PartRead, PoolPart
from baton_kv.pool_bytes import PoolBytes, open_pool
from baton_kv.pool_connector import PoolConnector
from baton_kv.running_pull import require_in_range
from baton_kv.tcp_connections import ConsumerConnections, ProducerConnection
from baton_kv.tcp_consumer import ProducerAddress, ProducerLink
from baton_kv.tcp_encrypted import EncryptedConsumerConnections, EncryptedProducerConnection
from baton_kv.tcp_named import Lookups, NamedProducerConnection, is_named
from baton_kv.tcp_plain import PlainConsumerConnections, PlainProducerConnection
from baton_kv.tcp_producer import BlockServer, ServedPool
from baton_kv.tcp_socket import TcpTimings
from baton_kv.transport import Listen
from baton_kv.wakeup import Wakeup


@dataclass(frozen=True, slots=True)
class _Local:
    blocks: PoolBytes
    server: BlockServer
    address: str


@dataclass(slots=True)
class _Peer:
    epoch: int
    num_blocks: int
    make_link: Callable[[], ProducerLink]
    link: ProducerLink


class TcpConnector(PoolConnector[_Peer]):
    """Sends and receives blocks in chunks; every block is checksummed.

    `connect` does not wait: a pull finds out whether the producer can be reached. A connection that was
    lost is made anew by the next pull.
    """

    capabilities = Capabilities(name="tcp", verifies_by=VerifiesBy.CHECKSUM, has_safe_abort=True)

    def __init__(
        self, spec: KVSpec, epoch: int, where: Listen | None = None, timings: TcpTimings | None = None
    ) -> None:
        super().__init__(spec, epoch)
        self._listen = where or Listen()
        self._timings = timings or TcpTimings()
        self._context = zmq.Context()
        self._wakeup = Wakeup()
        self._lookups = Lookups(self._wakeup.set)
        self._local: _Local | None = None

    # --- the local pool ---

    def register(self, pool: torch.Tensor) -> None:
        """Serve a pool that is placed already, on any device, instead of allocating one.

        Raises:
            InvalidConfigError: the address to listen on cannot be bound.
        """
        if self._local is not None:
            raise RuntimeError("the pool is already allocated")
        blocks = open_pool(pool)
        connections = self._listen_for_consumers(blocks)
        served = ServedPool(
            blocks=blocks,
            head_bytes=self._spec.head_bytes,
            epoch=self._epoch,
            token=secrets.token_hex(16),
        )
        server = BlockServer(connections, served, idle_s=self._timings.idle_s)
        self._local = _Local(blocks, server, f"{connections.address}/{served.token}")

    @property
    def offer(self) -> Offer:
        """`tcp://host:port/token`, with a key `tcp://host:port#KEY/token`."""
        return Offer(self.capabilities.name, self._pool.address)

    @property
    def connections(self) -> ConsumerConnections:
        """The connections to those who pull from the local pool."""
        return self._pool.server.connections

    @property
    def num_blocks(self) -> int:
        return len(self._pool.blocks)

    def compute_checksums(self, block_ids: Sequence[int]) -> tuple[int | None, ...]:
        pool = self._pool.blocks
        require_in_range("block_id", block_ids, len(pool))
        return tuple(xxhash.xxh3_64_intdigest(pool.block(block_id)) for block_id in block_ids)

    # --- pools of others ---

    def connect(self, peer_id: str, description: bytes, part: PartRead | None = None) -> None:
        self.disconnect(peer_id)
        described = self._decode(description, part)
        spec, address = described.spec(self._spec), described.address(self.capabilities.name)
        make_link = partial(self._make_link, peer_id, spec, part, address)
        self._peers[peer_id] = _Peer(described.epoch, described.num_blocks, make_link, make_link())

    def disconnect(self, peer_id: str) -> None:
        peer = self._peers.pop(peer_id, None)
        if peer is not None:
            peer.link.close(f"peer {peer_id!r} was disconnected")

    def _begin(self, peer: _Peer, pull: Pull) -> None:
        if not peer.link.is_open:
            peer.link = peer.make_link()
        peer.link.add(time.monotonic(), pull)

    def abort(self, pull_id: int) -> PullAborted:
        source = self._sources.pop(pull_id, None)
        if source is not None:
            self._peers[source].link.drop(pull_id)
        self._drop_ended(pull_id)
        return PullAborted(pull_id=pull_id, is_fenced=True)

    # --- running ---

    def poll(self) -> list[PullDone]:
        now = time.monotonic()
        if self._local is not None:
            self._local.server.advance(now)
        for link in self._open_links():
            link.advance(now)
        return self._take_ended()

    def wait(self, timeout_s: float | None = None) -> None:
        poller = zmq.Poller()
        poller.register(self._wakeup.file, zmq.POLLIN)
        ends = [link.files for link in self._open_links()]
        if self._local is not None:
            ends.append(self._local.server.connections.files)
        for file, events in chain.from_iterable(ends):
            poller.register(file, events)
        waits = [*self._waits(time.monotonic()), *([] if timeout_s is None else [timeout_s])]
        timeout_ms = math.ceil(1000 * max(0.0, min(waits))) if waits else None
        if (self._wakeup.file, zmq.POLLIN) in poller.poll(timeout_ms):
            self._wakeup.clear()

    def wake(self) -> None:
        self._wakeup.set()

    def close(self) -> None:
        for peer_id in list(self._peers):
            self.disconnect(peer_id)
        self._ended.clear()
        self._sources.clear()
        if self._local is not None:
            self._local.server.connections.close()
            self._local = None
        self._context.destroy(linger=0)

    # --- parts ---

    @property
    def _pool(self) -> _Local:
        if self._local is None:
            raise RuntimeError("the pool is not allocated")
        return self._local

    def _waits(self, now: float) -> list[float]:
        """For how long each thing that is under way may be left alone."""
        if self._ended or (self._local is not None and self._local.server.can_send):
            return [0.0]
        deadlines = [link.next_deadline() for link in self._open_links()]
        if self._local is not None:
            deadlines.append(self._local.server.next_deadline())
        return [deadline - now for deadline in deadlines if deadline is not None]

    def _open_links(self) -> list[ProducerLink]:
        return [peer.link for peer in self._peers.values() if peer.link.is_open]

    def _make_link(self, peer_id: str, spec: KVSpec, part: PartRead | None, address: str) -> ProducerLink:
        """Begin to connect; `spec` is that of a pool with the layout of the peer's blocks.

        Raises:
            ProducerUnreachableError: that is no address.
        """
        endpoint, _, token = address.rpartition("/")
        try:
            if not endpoint.startswith("tcp://"):
                raise ValueError("another form")
            connection = (
                NamedProducerConnection(endpoint, self._lookups, self._connect)
                if is_named(endpoint)
                else self._connect(endpoint)
            )
        except (zmq.ZMQError, OSError, ValueError) as error:
            raise ProducerUnreachableError("address", address, f"tcp://host:port/token ({error})") from None
        blocks = PoolPart(self._pool.blocks, part.targets) if part else self._pool.blocks
        return ProducerLink(
            connection,
            ProducerAddress(name=f"producer {peer_id!r}", endpoint=without_key(endpoint), token=token),
            Landing(blocks, self._spec, spec),
            part,
            silence_s=self._timings.silence_s,
            on_end=self._on_end,
        )

    def _connect(self, endpoint: str) -> ProducerConnection:
        """Begin to connect; raises ZMQError, OSError or ValueError where that is no endpoint."""
        if has_key(endpoint):
            return EncryptedProducerConnection(self._context, endpoint, self._timings)
        return PlainProducerConnection(endpoint, self._timings)

    def _listen_for_consumers(self, blocks: PoolBytes) -> ConsumerConnections:
        if self._listen.curve is None:
            return PlainConsumerConnections(self._listen, self._timings, len(blocks))
        return EncryptedConsumerConnections(
            self._context, self._listen, self._timings, blocks, self._wakeup.set
        )
